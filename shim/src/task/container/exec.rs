//! The transitions of an exec.

use super::Container;
use super::init::Init;
use super::step::{Denied, Effect, Exit, Happened};
use crate::task::identity::{ExecId, Pid, Target};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExecState {
    Added,
    Starting,
    Running { pid: Pid },
    Stopped { pid: Pid, exit: Exit },
}

impl Container {
    pub(super) fn add_exec(&mut self, id: ExecId) -> Result<Vec<Effect>, Denied> {
        self.may_exec()?;
        if self.execs.contains_key(&id) {
            return Err(Denied::ExecExists(id));
        }
        self.execs.insert(id.clone(), ExecState::Added);
        Ok(vec![Effect::Publish(Happened::ExecAdded(id))])
    }

    /// runc too can exec in a created container; a paused one it refuses itself, saying so. As long as runc is asked for another
    /// exec, nobody has heard of init's end yet, and containerd's own shim asks it for one more: the refusal is runc's too.
    pub(super) fn may_exec(&self) -> Result<(), Denied> {
        let requested = || self.execs.values().any(|exec| *exec == ExecState::Starting);
        match self.init {
            Init::Stopped { .. } if requested() => Ok(()),
            Init::Created { .. } | Init::Starting { exit: None, .. } | Init::Running { .. } => {
                Ok(())
            }
            Init::Creating | Init::Prepared | Init::Restoring => {
                Err(Denied::NotStarted(Target::Init))
            }
            Init::Starting { exit: Some(_), .. } | Init::Stopped { .. } => Err(Denied::InitEnded),
            Init::Deleting(_) | Init::Gone(_) => Err(Denied::Deleting),
        }
    }

    pub(super) fn exec_mut(&mut self, id: &ExecId) -> Result<&mut ExecState, Denied> {
        self.execs
            .get_mut(id)
            .ok_or_else(|| Denied::NoExec(id.clone()))
    }

    pub(super) fn begin_exec(&mut self, id: ExecId) -> Result<Vec<Effect>, Denied> {
        let init = self.may_exec();
        let state = self.exec_mut(&id)?;
        match state {
            ExecState::Added => {
                init?;
                *state = ExecState::Starting;
                Ok(Vec::new())
            }
            ExecState::Starting => Err(Denied::Busy {
                target: Target::Exec(id),
                doing: "start",
            }),
            ExecState::Running { .. } => Err(Denied::AlreadyStarted(Target::Exec(id))),
            ExecState::Stopped { .. } => Err(Denied::Ended(Target::Exec(id))),
        }
    }

    pub(super) fn exec_started(&mut self, id: ExecId, pid: Pid) -> Result<Vec<Effect>, Denied> {
        let state = self.exec_mut(&id)?;
        if *state != ExecState::Starting {
            return Err(Denied::NotStarted(Target::Exec(id)));
        }
        *state = ExecState::Running { pid };
        Ok(vec![Effect::Publish(Happened::Started(
            Target::Exec(id),
            pid,
        ))])
    }

    pub(super) fn exec_start_failed(&mut self, id: ExecId) -> Result<Vec<Effect>, Denied> {
        let state = self.exec_mut(&id)?;
        if *state != ExecState::Starting {
            return Err(Denied::NotStarted(Target::Exec(id)));
        }
        *state = ExecState::Added;
        Ok(Vec::new())
    }

    pub(super) fn exec_exited(&mut self, id: ExecId, exit: Exit) -> Result<Vec<Effect>, Denied> {
        let state = self.exec_mut(&id)?;
        let ExecState::Running { pid } = *state else {
            return Ok(Vec::new());
        };
        *state = ExecState::Stopped { pid, exit };
        Ok(vec![Effect::Settle(Target::Exec(id), pid, exit)])
    }

    pub(super) fn delete_exec(&mut self, id: ExecId) -> Result<Vec<Effect>, Denied> {
        match self.exec_mut(&id)? {
            ExecState::Added | ExecState::Stopped { .. } => {
                self.execs.remove(&id);
                Ok(Vec::new())
            }
            ExecState::Starting => Err(Denied::Busy {
                target: Target::Exec(id),
                doing: "start",
            }),
            ExecState::Running { .. } => Err(Denied::StillRunning(Target::Exec(id))),
        }
    }
}
