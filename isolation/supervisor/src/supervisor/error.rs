//! Why a supervisor could not start, or not go on.

use std::io;
use std::path::{Path, PathBuf};

/// One variant a step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A step failed.
    #[error("{step} {path}")]
    Io {
        /// What was being done.
        step: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The grant cannot be read.
    #[error(transparent)]
    Grant(#[from] crate::grant::Unreadable),
    /// The driver's side of the container cannot be joined.
    #[error(transparent)]
    Driver(#[from] driver::Error),
    /// Another broker serves this container.
    #[error("another broker holds {0}")]
    Taken(PathBuf),
    /// The kernel has no user notification.
    #[error("this kernel has no seccomp user notification")]
    Seccomp(#[source] io::Error),
    /// Capabilities could not be dropped.
    #[error("capabilities could not be dropped")]
    Capabilities(#[source] caps::errors::CapsError),
    /// A program that others than root could have written.
    #[error(
        "{path} is owned by uid {owner} with mode {mode:o}: a broker's program must be root's and writable by root only"
    )]
    Program {
        /// The program.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// The executor could not be started.
    #[error(transparent)]
    Executor(#[from] driver::executor::SpawnError),
    /// The broker that has started this supervisor did not hand everything over.
    #[error("the broker did not hand over")]
    NotHandedOver,
    /// The first broker did not start.
    #[error("the broker did not start")]
    FirstBroker,
}

impl Error {
    pub(super) fn io(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { step, path, source }
    }
}
