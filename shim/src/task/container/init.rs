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
    /// Being written to a checkpoint; it ran before.
    Dumping,
    /// Being written to a checkpoint; it was paused before.
    DumpingPaused,
}

/// What a container is deleted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// It was to be restored and never was.
    Nothing,
    /// Init, and how it ended if it has.
    Process { pid: Pid, exit: Option<Exit> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Init {
    Creating,
    Created {
        pid: Pid,
    },
    Starting {
        pid: Pid,
        exit: Option<Exit>,
    },
    /// To be restored from a checkpoint.
    Prepared,
    Restoring,
    Running {
        pid: Pid,
        pace: Pace,
    },
    Stopped {
        pid: Pid,
        exit: Exit,
    },
    Deleting(Left),
    Gone(Left),
}

impl Container {
    pub(super) fn init_view(&self) -> View {
        let (pid, phase) = match self.init {
            Init::Creating
            | Init::Prepared
            | Init::Restoring
            | Init::Deleting(Left::Nothing)
            | Init::Gone(Left::Nothing) => (None, Phase::Created),
            Init::Created { pid } => (Some(pid), Phase::Created),
            Init::Starting { pid, exit: None } => (Some(pid), Phase::Created),
            Init::Running {
                pid,
                pace: Pace::Free | Pace::Dumping,
            } => (Some(pid), Phase::Running),
            Init::Running {
                pid,
                pace: Pace::Pausing,
            } => (Some(pid), Phase::Pausing),
            Init::Running {
                pid,
                pace: Pace::Paused | Pace::Resuming | Pace::DumpingPaused,
            } => (Some(pid), Phase::Paused),
            Init::Starting {
                pid,
                exit: Some(exit),
            }
            | Init::Stopped { pid, exit } => (Some(pid), Phase::Stopped(exit)),
            Init::Deleting(Left::Process { pid, exit })
            | Init::Gone(Left::Process { pid, exit }) => {
                (Some(pid), exit.map_or(Phase::Created, Phase::Stopped))
            }
        };
        View { pid, phase }
    }

    pub(super) fn created(&mut self, pid: Pid) -> Result<Vec<Effect>, Denied> {
        if self.init != Init::Creating {
            return Err(Denied::AlreadyStarted(Target::Init));
        }
        self.init = Init::Created { pid };
        Ok(vec![Effect::Publish(Happened::Created(Some(pid)))])
    }

    pub(super) fn prepared(&mut self) -> Result<Vec<Effect>, Denied> {
        if self.init != Init::Creating {
            return Err(Denied::AlreadyStarted(Target::Init));
        }
        self.init = Init::Prepared;
        Ok(vec![Effect::Publish(Happened::Created(None))])
    }

    pub(super) fn begin_start(&mut self) -> Result<Vec<Effect>, Denied> {
        match self.init {
            Init::Created { pid } => self.init = Init::Starting { pid, exit: None },
            Init::Prepared => self.init = Init::Restoring,
            Init::Creating => return Err(busy("create")),
            Init::Starting { .. } | Init::Restoring => return Err(busy("start")),
            Init::Running { .. } => return Err(Denied::AlreadyStarted(Target::Init)),
            Init::Stopped { .. } => return Err(Denied::Ended(Target::Init)),
            Init::Deleting(_) | Init::Gone(_) => return Err(Denied::Deleting),
        }
        Ok(Vec::new())
    }

    /// A restored init is known only now, by `started`.
    pub(super) fn started(&mut self, started: Pid) -> Result<Vec<Effect>, Denied> {
        let (pid, exit) = match self.init {
            Init::Starting { pid, exit } => (pid, exit),
            Init::Restoring => (started, None),
            Init::Creating
            | Init::Created { .. }
            | Init::Prepared
            | Init::Running { .. }
            | Init::Stopped { .. }
            | Init::Deleting(_)
            | Init::Gone(_) => return Err(Denied::NotStarted(Target::Init)),
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
        if self.init == Init::Restoring {
            self.init = Init::Prepared;
            return Ok(Vec::new());
        }
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
            Init::Deleting(Left::Process { pid, exit: None }) => {
                self.init = Init::Deleting(Left::ended(pid, exit));
                vec![Effect::Settle(Target::Init, pid, exit)]
            }
            Init::Gone(Left::Process { pid, exit: None }) => {
                self.init = Init::Gone(Left::ended(pid, exit));
                vec![Effect::Settle(Target::Init, pid, exit)]
            }
            Init::Creating
            | Init::Prepared
            | Init::Restoring
            | Init::Starting { exit: Some(_), .. }
            | Init::Stopped { .. }
            | Init::Deleting(Left::Nothing | Left::Process { exit: Some(_), .. })
            | Init::Gone(Left::Nothing | Left::Process { exit: Some(_), .. }) => Vec::new(),
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
            Init::Creating
            | Init::Created { .. }
            | Init::Starting { .. }
            | Init::Prepared
            | Init::Restoring
            | Init::Stopped { .. }
            | Init::Deleting(_)
            | Init::Gone(_) => Err(self.not_running()),
        }
    }

    pub(super) fn begin_checkpoint(&mut self) -> Result<Vec<Effect>, Denied> {
        let Init::Running { pace, .. } = &mut self.init else {
            return Err(self.not_running());
        };
        *pace = match *pace {
            Pace::Free => Pace::Dumping,
            Pace::Paused => Pace::DumpingPaused,
            busy @ (Pace::Pausing | Pace::Resuming | Pace::Dumping | Pace::DumpingPaused) => {
                return Err(Denied::WrongPace {
                    is: pace_name(busy),
                    must: "running or paused",
                });
            }
        };
        Ok(Vec::new())
    }

    pub(super) fn checkpoint_ended(&mut self) -> Result<Vec<Effect>, Denied> {
        let Init::Running { pace, .. } = &mut self.init else {
            return Err(self.not_running());
        };
        *pace = match *pace {
            Pace::Dumping => Pace::Free,
            Pace::DumpingPaused => Pace::Paused,
            other @ (Pace::Free | Pace::Pausing | Pace::Paused | Pace::Resuming) => {
                return Err(Denied::WrongPace {
                    is: pace_name(other),
                    must: pace_name(Pace::Dumping),
                });
            }
        };
        Ok(Vec::new())
    }

    fn not_running(&self) -> Denied {
        match self.init {
            Init::Creating
            | Init::Created { .. }
            | Init::Starting { .. }
            | Init::Prepared
            | Init::Restoring
            | Init::Running { .. } => Denied::NotStarted(Target::Init),
            Init::Stopped { .. } => Denied::Ended(Target::Init),
            Init::Deleting(_) | Init::Gone(_) => Denied::Deleting,
        }
    }

    pub(super) fn begin_delete(&mut self) -> Result<Vec<Effect>, Denied> {
        let left = match self.init {
            Init::Created { pid } => Left::Process { pid, exit: None },
            Init::Stopped { pid, exit } => Left::ended(pid, exit),
            Init::Prepared => Left::Nothing,
            Init::Creating => return Err(busy("create")),
            Init::Starting { .. } | Init::Restoring => return Err(busy("start")),
            Init::Running { .. } => return Err(Denied::StillRunning(Target::Init)),
            Init::Deleting(_) | Init::Gone(_) => return Err(Denied::Deleting),
        };
        self.init = Init::Deleting(left);
        Ok(Vec::new())
    }

    pub(super) fn deleted(&mut self) -> Result<Vec<Effect>, Denied> {
        let Init::Deleting(left) = self.init else {
            return Err(Denied::StillRunning(Target::Init));
        };
        self.init = Init::Gone(left);
        Ok(Vec::new())
    }

    pub(super) fn delete_failed(&mut self) -> Result<Vec<Effect>, Denied> {
        let Init::Deleting(left) = self.init else {
            return Err(Denied::StillRunning(Target::Init));
        };
        self.init = match left {
            Left::Nothing => Init::Prepared,
            Left::Process { pid, exit: None } => Init::Created { pid },
            Left::Process {
                pid,
                exit: Some(exit),
            } => Init::Stopped { pid, exit },
        };
        Ok(Vec::new())
    }
}

fn busy(doing: &'static str) -> Denied {
    Denied::Busy {
        target: Target::Init,
        doing,
    }
}

impl Left {
    fn ended(pid: Pid, exit: Exit) -> Self {
        Self::Process {
            pid,
            exit: Some(exit),
        }
    }
}

fn pace_name(pace: Pace) -> &'static str {
    match pace {
        Pace::Free => "running",
        Pace::Pausing => "being paused",
        Pace::Paused => "paused",
        Pace::Resuming => "being resumed",
        Pace::Dumping | Pace::DumpingPaused => "being checkpointed",
    }
}
