//! What the state machine takes and what it answers.

use std::time::SystemTime;

use crate::task::identity::{ExecId, Pid, Target};

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
    /// Everything is ready to restore the container from a checkpoint, which its start does. It has no process yet.
    Prepared,
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
    /// A checkpoint was asked for; of a running or of a paused container.
    BeginCheckpoint,
    /// runc has done it, or has not. An init that was to end with it ends by itself.
    CheckpointEnded,
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
    /// Init exists, or will when the container is restored.
    Created(Option<Pid>),
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
    /// It has ended, and gets no signal.
    #[error("{0}: process already finished")]
    AlreadyExited(Target),
    /// It has ended, so it is not started, paused, resumed or checkpointed.
    #[error("{0} has ended")]
    Ended(Target),
    /// The container's init has ended, so nothing can be added.
    #[error("container's init process is not running")]
    InitEnded,
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
