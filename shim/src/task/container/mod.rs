//! The state machine of one container; the drawing is in the module above.

mod exec;
mod init;
mod step;

use std::collections::BTreeMap;

use self::exec::ExecState;
use self::init::{Init, Pace};
pub use self::step::{Denied, Effect, Exit, Happened, Phase, Step, View};
use super::identity::{ExecId, Pid, Target};

/// One container and its execs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    init: Init,
    execs: BTreeMap<ExecId, ExecState>,
}

impl Default for Container {
    fn default() -> Self {
        Self::new()
    }
}

impl Container {
    /// A container for which runc has not been called yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            init: Init::Creating,
            execs: BTreeMap::new(),
        }
    }

    /// Takes one step. A denied step changes nothing.
    ///
    /// # Errors
    /// [`Denied`] says which precondition is missing.
    pub fn apply(&mut self, step: Step) -> Result<Vec<Effect>, Denied> {
        match step {
            Step::Created(pid) => self.created(pid),
            Step::Prepared => self.prepared(),
            Step::AddExec(id) => self.add_exec(id),
            Step::BeginStart(Target::Init) => self.begin_start(),
            Step::BeginStart(Target::Exec(id)) => self.begin_exec(id),
            Step::Started(Target::Init, pid) => self.started(pid),
            Step::Started(Target::Exec(id), pid) => self.exec_started(id, pid),
            Step::StartFailed(Target::Init) => self.start_failed(),
            Step::StartFailed(Target::Exec(id)) => self.exec_start_failed(id),
            Step::BeginPause => self.pace(Pace::Free, Pace::Pausing, None),
            Step::Paused => self.pace(Pace::Pausing, Pace::Paused, Some(Happened::Paused)),
            Step::PauseFailed => self.pace(Pace::Pausing, Pace::Free, None),
            Step::BeginResume => self.pace(Pace::Paused, Pace::Resuming, None),
            Step::Resumed => self.pace(Pace::Resuming, Pace::Free, Some(Happened::Resumed)),
            Step::ResumeFailed => self.pace(Pace::Resuming, Pace::Paused, None),
            Step::BeginCheckpoint => self.begin_checkpoint(),
            Step::CheckpointEnded => self.checkpoint_ended(),
            Step::Exited(Target::Init, exit) => Ok(self.exited(exit)),
            Step::Exited(Target::Exec(id), exit) => self.exec_exited(id, exit),
            Step::BeginDelete(Target::Init) => self.begin_delete(),
            Step::BeginDelete(Target::Exec(id)) => self.delete_exec(id),
            Step::Deleted => self.deleted(),
            Step::DeleteFailed => self.delete_failed(),
        }
    }

    /// Whether the container waits to be restored from a checkpoint, or is just being restored.
    #[must_use]
    pub fn to_be_restored(&self) -> bool {
        matches!(self.init, Init::Prepared | Init::Restoring)
    }

    /// Whether `target` is an exec whose start is under way.
    #[must_use]
    pub fn is_starting_exec(&self, target: &Target) -> bool {
        matches!(target, Target::Exec(id) if self.execs.get(id) == Some(&ExecState::Starting))
    }

    /// Where `target` stands.
    ///
    /// # Errors
    /// [`Denied::NoExec`] for an exec that is not there.
    pub fn view(&self, target: &Target) -> Result<View, Denied> {
        let exec = match target {
            Target::Init => return Ok(self.init_view()),
            Target::Exec(id) => self
                .execs
                .get(id)
                .ok_or_else(|| Denied::NoExec(id.clone()))?,
        };
        Ok(match *exec {
            ExecState::Added | ExecState::Starting => View {
                pid: None,
                phase: Phase::Created,
            },
            ExecState::Running { pid } => View {
                pid: Some(pid),
                phase: Phase::Running,
            },
            ExecState::Stopped { pid, exit } => View {
                pid: Some(pid),
                phase: Phase::Stopped(exit),
            },
        })
    }

    /// The process that a signal for `target` goes to.
    ///
    /// # Errors
    /// [`Denied::NotStarted`], [`Denied::AlreadyExited`] or [`Denied::NoExec`].
    pub fn signalled(&self, target: &Target) -> Result<Pid, Denied> {
        let View { pid, phase } = self.view(target)?;
        match (pid, phase) {
            (_, Phase::Stopped(_)) => Err(Denied::AlreadyExited(target.clone())),
            (Some(pid), _) => Ok(pid),
            (None, _) => Err(Denied::NotStarted(target.clone())),
        }
    }

    /// The execs that have ended, run, or are being started: init's end ends them, and theirs is told first.
    #[must_use]
    pub fn execs_that_end(&self) -> Vec<Target> {
        let ends = |(id, state): (&ExecId, &ExecState)| match *state {
            ExecState::Added => None,
            ExecState::Starting | ExecState::Running { .. } | ExecState::Stopped { .. } => {
                Some(Target::Exec(id.clone()))
            }
        };
        self.execs.iter().filter_map(ends).collect()
    }

    /// The processes that the shim knows by name and that are alive.
    #[must_use]
    pub fn running_execs(&self) -> Vec<(ExecId, Pid)> {
        let running = |(id, state): (&ExecId, &ExecState)| match *state {
            ExecState::Running { pid } => Some((id.clone(), pid)),
            ExecState::Added | ExecState::Starting | ExecState::Stopped { .. } => None,
        };
        self.execs.iter().filter_map(running).collect()
    }
}
