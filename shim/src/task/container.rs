//! The state machine of one container; the drawing stands in the module above.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::identity::{ExecId, Pid, Target};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, or 128 + signal, as shells count.
    pub status: u32,
    /// When the shim reaped it.
    pub at: SystemTime,
}

/// Something that was asked for or that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// runc has created the container.
    Created(Pid),
    /// Exec was asked for.
    AddExec(ExecId),
    /// Start was asked for; runc is about to be called.
    BeginStart(Target),
    /// runc started it.
    Started(Target, Pid),
    /// runc did not start it.
    StartFailed(Target),
    /// Pause was asked for.
    BeginPause,
    /// runc froze the container.
    Paused,
    /// runc did not.
    PauseFailed,
    /// Resume was asked for.
    BeginResume,
    /// runc thawed the container.
    Resumed,
    /// runc did not.
    ResumeFailed,
    /// The reaper saw the process end.
    Exited(Target, Exit),
    /// Delete was asked for. An exec is removed at once.
    BeginDelete(Target),
    /// runc has deleted the container.
    Deleted,
    /// runc has not.
    DeleteFailed,
}

/// What containerd is told as a consequence of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// Init exists.
    Created(Pid),
    /// A process runs.
    Started(Target, Pid),
    /// An exec is known.
    ExecAdded(ExecId),
    /// Frozen.
    Paused,
    /// Thawed.
    Resumed,
}

/// What the runtime must do after a step, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Publish now.
    Publish(Happened),
    /// Deliver the rest of the output, then publish the exit, then answer those who wait.
    Settle(Target, Pid, Exit),
}

/// Why a step is not possible now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No such exec.
    #[error("exec {0} does not exist")]
    NoExec(ExecId),
    /// The identity is taken.
    #[error("exec {0} already exists")]
    ExecExists(ExecId),
    /// Another request on the same process is under way.
    #[error("{target} is busy: {doing}")]
    Busy {
        /// Which process.
        target: Target,
        /// What is under way.
        doing: &'static str,
    },
    /// It has been started before.
    #[error("{0} has already been started")]
    AlreadyStarted(Target),
    /// It has not been started.
    #[error("{0} has not been started")]
    NotStarted(Target),
    /// It has ended.
    #[error("{0}: process already finished")]
    AlreadyExited(Target),
    /// Still alive, so it cannot be deleted.
    #[error("{0} is still running")]
    StillRunning(Target),
    /// Pause needs a running container, resume a paused one.
    #[error("container is {is}, not {must}")]
    WrongPace {
        /// What it is.
        is: &'static str,
        /// What it would have to be.
        must: &'static str,
    },
    /// The container is being deleted.
    #[error("container is being deleted")]
    Deleting,
}

/// Whether a running container's processes are scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Free,
    Pausing,
    Paused,
    Resuming,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Init {
    Creating,
    Created { pid: Pid },
    Starting { pid: Pid, exit: Option<Exit> },
    Running { pid: Pid, pace: Pace },
    Stopped { pid: Pid, exit: Exit },
    Deleting { pid: Pid, exit: Option<Exit> },
    Gone { pid: Pid, exit: Option<Exit> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExecState {
    Added,
    Starting,
    Running { pid: Pid },
    Stopped { pid: Pid, exit: Exit },
}

/// What State answers; the wire's status is computed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Exists, not started.
    Created,
    /// Runs.
    Running,
    /// Being frozen.
    Pausing,
    /// Frozen.
    Paused,
    /// Ended.
    Stopped(Exit),
}

/// One process as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Its process, if it has one yet.
    pub pid: Option<Pid>,
    /// Where it stands.
    pub phase: Phase,
}

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
            Step::AddExec(id) => self.add_exec(id),
            Step::BeginStart(Target::Init) => self.begin_start(),
            Step::BeginStart(Target::Exec(id)) => self.begin_exec(id),
            Step::Started(Target::Init, _) => self.started(),
            Step::Started(Target::Exec(id), pid) => self.exec_started(id, pid),
            Step::StartFailed(Target::Init) => self.start_failed(),
            Step::StartFailed(Target::Exec(id)) => self.exec_start_failed(id),
            Step::BeginPause => self.pace(Pace::Free, Pace::Pausing, None),
            Step::Paused => self.pace(Pace::Pausing, Pace::Paused, Some(Happened::Paused)),
            Step::PauseFailed => self.pace(Pace::Pausing, Pace::Free, None),
            Step::BeginResume => self.pace(Pace::Paused, Pace::Resuming, None),
            Step::Resumed => self.pace(Pace::Resuming, Pace::Free, Some(Happened::Resumed)),
            Step::ResumeFailed => self.pace(Pace::Resuming, Pace::Paused, None),
            Step::Exited(Target::Init, exit) => Ok(self.exited(exit)),
            Step::Exited(Target::Exec(id), exit) => self.exec_exited(id, exit),
            Step::BeginDelete(Target::Init) => self.begin_delete(),
            Step::BeginDelete(Target::Exec(id)) => self.delete_exec(id),
            Step::Deleted => self.deleted(),
            Step::DeleteFailed => self.delete_failed(),
        }
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

    /// The processes that the shim knows by name and that are alive.
    #[must_use]
    pub fn running_execs(&self) -> Vec<(ExecId, Pid)> {
        let running = |(id, state): (&ExecId, &ExecState)| match *state {
            ExecState::Running { pid } => Some((id.clone(), pid)),
            ExecState::Added | ExecState::Starting | ExecState::Stopped { .. } => None,
        };
        self.execs.iter().filter_map(running).collect()
    }

    fn init_view(&self) -> View {
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

    fn created(&mut self, pid: Pid) -> Result<Vec<Effect>, Denied> {
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

    fn begin_start(&mut self) -> Result<Vec<Effect>, Denied> {
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

    fn started(&mut self) -> Result<Vec<Effect>, Denied> {
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

    fn start_failed(&mut self) -> Result<Vec<Effect>, Denied> {
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
    fn exited(&mut self, exit: Exit) -> Vec<Effect> {
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

    fn pace(
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

    fn begin_delete(&mut self) -> Result<Vec<Effect>, Denied> {
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

    fn deleted(&mut self) -> Result<Vec<Effect>, Denied> {
        let Init::Deleting { pid, exit } = self.init else {
            return Err(Denied::StillRunning(Target::Init));
        };
        self.init = Init::Gone { pid, exit };
        Ok(Vec::new())
    }

    fn delete_failed(&mut self) -> Result<Vec<Effect>, Denied> {
        let Init::Deleting { pid, exit } = self.init else {
            return Err(Denied::StillRunning(Target::Init));
        };
        self.init = match exit {
            None => Init::Created { pid },
            Some(exit) => Init::Stopped { pid, exit },
        };
        Ok(Vec::new())
    }

    fn add_exec(&mut self, id: ExecId) -> Result<Vec<Effect>, Denied> {
        self.may_exec()?;
        if self.execs.contains_key(&id) {
            return Err(Denied::ExecExists(id));
        }
        self.execs.insert(id.clone(), ExecState::Added);
        Ok(vec![Effect::Publish(Happened::ExecAdded(id))])
    }

    /// runc too can exec in a created container; a paused one it refuses itself, saying so.
    fn may_exec(&self) -> Result<(), Denied> {
        match self.init {
            Init::Created { .. } | Init::Starting { exit: None, .. } | Init::Running { .. } => {
                Ok(())
            }
            Init::Creating => Err(Denied::NotStarted(Target::Init)),
            Init::Starting { exit: Some(_), .. } | Init::Stopped { .. } => {
                Err(Denied::AlreadyExited(Target::Init))
            }
            Init::Deleting { .. } | Init::Gone { .. } => Err(Denied::Deleting),
        }
    }

    fn exec_mut(&mut self, id: &ExecId) -> Result<&mut ExecState, Denied> {
        self.execs
            .get_mut(id)
            .ok_or_else(|| Denied::NoExec(id.clone()))
    }

    fn begin_exec(&mut self, id: ExecId) -> Result<Vec<Effect>, Denied> {
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
            ExecState::Stopped { .. } => Err(Denied::AlreadyExited(Target::Exec(id))),
        }
    }

    fn exec_started(&mut self, id: ExecId, pid: Pid) -> Result<Vec<Effect>, Denied> {
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

    fn exec_start_failed(&mut self, id: ExecId) -> Result<Vec<Effect>, Denied> {
        let state = self.exec_mut(&id)?;
        if *state != ExecState::Starting {
            return Err(Denied::NotStarted(Target::Exec(id)));
        }
        *state = ExecState::Added;
        Ok(Vec::new())
    }

    fn exec_exited(&mut self, id: ExecId, exit: Exit) -> Result<Vec<Effect>, Denied> {
        let state = self.exec_mut(&id)?;
        let ExecState::Running { pid } = *state else {
            return Ok(Vec::new());
        };
        *state = ExecState::Stopped { pid, exit };
        Ok(vec![Effect::Settle(Target::Exec(id), pid, exit)])
    }

    fn delete_exec(&mut self, id: ExecId) -> Result<Vec<Effect>, Denied> {
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

fn pace_name(pace: Pace) -> &'static str {
    match pace {
        Pace::Free => "running",
        Pace::Pausing => "being paused",
        Pace::Paused => "paused",
        Pace::Resuming => "being resumed",
    }
}
