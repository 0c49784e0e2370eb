//! What containerd is told of, in the order in which it happened.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::container::Exit;
use super::identity::{ContainerId, ExecId, Pid, Target};
use super::request::{Mount, StdioRequest};

/// Whether an event waits to be sent: another one like it would tell nothing more.
#[derive(Debug, Clone, Default)]
pub struct Pending(Arc<AtomicBool>);

impl Pending {
    /// Whether none waited; one does now.
    #[must_use]
    pub fn begin(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// It is being sent: what happens from now on is another one's.
    pub fn end(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// No part of what an event says.
impl PartialEq for Pending {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Pending {}

/// One event of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The container exists, its init waits.
    Create {
        /// Which container.
        id: ContainerId,
        /// Its bundle.
        bundle: PathBuf,
        /// What was mounted.
        rootfs: Vec<Mount>,
        /// Init's streams.
        stdio: StdioRequest,
        /// The checkpoint that it will be restored from; empty for none.
        checkpoint: PathBuf,
        /// Init; a container that is to be restored has none yet.
        pid: Option<Pid>,
    },
    /// Init runs the user's program.
    Start {
        /// Which container.
        id: ContainerId,
        /// Init.
        pid: Pid,
    },
    /// An exec is known, not yet started.
    ExecAdded {
        /// Which container.
        id: ContainerId,
        /// Which exec.
        exec: ExecId,
    },
    /// An exec runs.
    ExecStarted {
        /// Which container.
        id: ContainerId,
        /// Which exec.
        exec: ExecId,
        /// Its process.
        pid: Pid,
    },
    /// A process has ended and its output is delivered.
    Exit {
        /// Which container.
        id: ContainerId,
        /// Which process.
        target: Target,
        /// Its process number.
        pid: Pid,
        /// How it ended.
        exit: Exit,
    },
    /// The container is gone.
    Delete {
        /// Which container.
        id: ContainerId,
        /// What init was, and how it ended; one that was to be restored and never started has none.
        init: Option<(Pid, Exit)>,
    },
    /// The kernel killed for want of memory.
    Oom {
        /// Which container.
        id: ContainerId,
        /// Of this container.
        pending: Pending,
    },
    /// The container is frozen.
    Paused {
        /// Which container.
        id: ContainerId,
    },
    /// The container runs again.
    Resumed {
        /// Which container.
        id: ContainerId,
    },
}
