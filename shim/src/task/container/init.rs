//! Init's own transitions.

use super::Container;
use super::step::{Denied, Effect, Exit, Happened, Phase, View};
use crate::task::identity::{Pid, Target};

/// Whether a running container's processes are scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    Free,
    Pausing,
    Paused,
    Resuming,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Init {
    Creating,
    Created { pid: Pid },
    Starting { pid: Pid, exit: Option<Exit> },
    Running { pid: Pid, pace: Pace },
    Stopped { pid: Pid, exit: Exit },
    Deleting { pid: Pid, exit: Option<Exit> },
    Gone { pid: Pid, exit: Option<Exit> },
}

impl Container {
    pub(super) fn init_view(&self) -> View {
        let (pid, phase) = match self.init {
            Init::Creating => (None, Phase::Created),
            Init::Created { pid } => (Some(pid), Phase::Created),
            Init::Starting { pid, exit: None } => (Some(pid), Phase::Created),
            Init::Running {
                pid,
                pace: Pace::Free,
            } => (Some(pid), Phase::Running),
            Init::Running {
                pid,
                pace: Pace::Pausing,
            } => (Some(pid), Phase::Pausing),
            Init::Running {
                pid,
                pace: Pace::Paused | Pace::Resuming,
            } => (Some(pid), Phase::Paused),
            Init::Starting {
                pid,
                exit: Some(exit),
            }
            | Init::Stopped { pid, exit } => (Some(pid), Phase::Stopped(exit)),
            Init::Deleting { pid, exit } | Init::Gone { pid, exit } => {
                (Some(pid), exit.map_or(Phase::Created, Phase::Stopped))
            }
        };
        View { pid, phase }
    }

    pub(super) fn created(&mut self, pid: Pid) -> Result<Vec<Effect>, Denied> {
        match self.init {
            Init::Creating => {
                self.init = Init::Created { pid };
                Ok(vec![Effect::Publish(Happened::Created(pid))])
            }
            Init::Created { .. }
            | Init::Starting { .. }
            | Init::Running { .. }
            | Init::Stopped { .. }
            | Init::Deleting { .. }
            | Init::Gone { .. } => Err(Denied::AlreadyStarted(Target::Init)),
        }
    }

    pub(super) fn begin_start(&mut self) -> Result<Vec<Effect>, Denied> {
        match self.init {
            Init::Created { pid } => {
                self.init = Init::Starting { pid, exit: None };
                Ok(Vec::new())
            }
            Init::Creating => Err(Denied::Busy {
                target: Target::Init,
                doing: "create",
            }),
            Init::Starting { .. } => Err(Denied::Busy {
                target: Target::Init,
                doing: "start",
            }),
            Init::Running { .. } => Err(Denied::AlreadyStarted(Target::Init)),
            Init::Stopped { .. } => Err(Denied::AlreadyExited(Target::Init)),
            Init::Deleting { .. } | Init::Gone { .. } => Err(Denied::Deleting),
        }
    }

    pub(super) fn started(&mut self) -> Result<Vec<Effect>, Denied> {
        let Init::Starting { pid, exit } = self.init else {
            return Err(Denied::NotStarted(Target::Init));
        };
        let mut effects = vec![Effect::Publish(Happened::Started(Target::Init, pid))];
        self.init = match exit {
            None => Init::Running {
                pid,
                pace: Pace::Free,
            },
            Some(exit) => {
                effects.push(Effect::Settle(Target::Init, pid, exit));
                Init::Stopped { pid, exit }
            }
        };
        Ok(effects)
    }

    pub(super) fn start_failed(&mut self) -> Result<Vec<Effect>, Denied> {
        let Init::Starting { pid, exit } = self.init else {
            return Err(Denied::NotStarted(Target::Init));
        };
        Ok(match exit {
            None => {
                self.init = Init::Created { pid };
                Vec::new()
            }
            Some(exit) => {
                self.init = Init::Stopped { pid, exit };
                vec![Effect::Settle(Target::Init, pid, exit)]
            }
        })
    }

    /// The reaper reports each process once; what comes before `Created` or twice is not a process of this container.
    pub(super) fn exited(&mut self, exit: Exit) -> Vec<Effect> {
        match self.init {
            Init::Starting { pid, exit: None } => {
                self.init = Init::Starting {
                    pid,
                    exit: Some(exit),
                };
                Vec::new()
            }
            Init::Created { pid } | Init::Running { pid, .. } => {
                self.init = Init::Stopped { pid, exit };
                vec![Effect::Settle(Target::Init, pid, exit)]
            }
            Init::Deleting { pid, exit: None } => {
                self.init = Init::Deleting {
                    pid,
                    exit: Some(exit),
                };
                vec![Effect::Settle(Target::Init, pid, exit)]
            }
            Init::Gone { pid, exit: None } => {
                self.init = Init::Gone {
                    pid,
                    exit: Some(exit),
                };
                vec![Effect::Settle(Target::Init, pid, exit)]
            }
            Init::Creating
            | Init::Starting { exit: Some(_), .. }
            | Init::Stopped { .. }
            | Init::Deleting { exit: Some(_), .. }
            | Init::Gone { exit: Some(_), .. } => Vec::new(),
        }
    }

    pub(super) fn pace(
        &mut self,
        from: Pace,
        to: Pace,
        then: Option<Happened>,
    ) -> Result<Vec<Effect>, Denied> {
        match &mut self.init {
            Init::Running { pace, .. } if *pace == from => {
                *pace = to;
                Ok(then.map(Effect::Publish).into_iter().collect())
            }
            Init::Running { pace, .. } => Err(Denied::WrongPace {
                is: pace_name(*pace),
                must: pace_name(from),
            }),
            Init::Creating | Init::Created { .. } | Init::Starting { .. } => {
                Err(Denied::NotStarted(Target::Init))
            }
            Init::Stopped { .. } => Err(Denied::AlreadyExited(Target::Init)),
            Init::Deleting { .. } | Init::Gone { .. } => Err(Denied::Deleting),
        }
    }

    pub(super) fn begin_delete(&mut self) -> Result<Vec<Effect>, Denied> {
        match self.init {
            Init::Created { pid } => self.init = Init::Deleting { pid, exit: None },
            Init::Stopped { pid, exit } => {
                self.init = Init::Deleting {
                    pid,
                    exit: Some(exit),
                }
            }
            Init::Creating => {
                return Err(Denied::Busy {
                    target: Target::Init,
                    doing: "create",
                });
            }
            Init::Starting { .. } => {
                return Err(Denied::Busy {
                    target: Target::Init,
                    doing: "start",
                });
            }
            Init::Running { .. } => return Err(Denied::StillRunning(Target::Init)),
            Init::Deleting { .. } | Init::Gone { .. } => return Err(Denied::Deleting),
        }
        Ok(Vec::new())
    }

    pub(super) fn deleted(&mut self) -> Result<Vec<Effect>, Denied> {
        let Init::Deleting { pid, exit } = self.init else {
            return Err(Denied::StillRunning(Target::Init));
        };
        self.init = Init::Gone { pid, exit };
        Ok(Vec::new())
    }

    pub(super) fn delete_failed(&mut self) -> Result<Vec<Effect>, Denied> {
        let Init::Deleting { pid, exit } = self.init else {
            return Err(Denied::StillRunning(Target::Init));
        };
        self.init = match exit {
            None => Init::Created { pid },
            Some(exit) => Init::Stopped { pid, exit },
        };
        Ok(Vec::new())
    }
}

fn pace_name(pace: Pace) -> &'static str {
    match pace {
        Pace::Free => "running",
        Pace::Pausing => "being paused",
        Pace::Paused => "paused",
        Pace::Resuming => "being resumed",
    }
}
