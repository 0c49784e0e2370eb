//! Everything that touches the world: runc, processes, streams, mounts, control groups, containerd's event socket.
//! [`Supervisor`] joins these to the state machine of [`crate::task`]; nothing here knows protobuf but the publisher,
//! which passes sealed envelopes on, and `cgroup`, whose numbers are containerd's messages.

mod broker;
mod caller;
mod cgroup;
mod console;
mod criu;
mod gpu;
mod logger;
mod members;
mod oom;
pub mod orphans;
pub mod publisher;
mod reaper;
pub mod rootfs;
mod runc;
mod spec;
mod stdio;
mod supervisor;

pub use crate::error::{GpuError, GpuFault, GpuResult};
pub use caller::Caller;
pub use cgroup::{Cgroup, Stats};
pub(crate) use gpu::left_behind;
pub use gpu::{Cards, Ended, Gpu, Prepared, Rejected, Running, StartWatch, Started};
pub use members::Members;
pub use reaper::Reaper;
pub use runc::Runc;
pub use spec::Spec;
pub use supervisor::{KillScope, Process, Supervisor};

/// The reaper takes every child of its process (`waitpid(-1)`), and a child has all that is open until its program is executed: a test
/// that has any, or that must be the last to have something open, holds this.
#[cfg(test)]
pub(crate) static CHILDREN: std::sync::Mutex<()> = std::sync::Mutex::new(());
