//! What can go wrong, one variant a step.

use std::io;
use std::path::PathBuf;

use nvabi::{DriverVersion, UnsupportedRelease};

use crate::Status;

/// A step of the client that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A node of the driver could not be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The node.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The ioctl itself failed: the driver has not processed the call.
    #[error("{call} on {}", path.display())]
    Ioctl {
        /// The driver's name of the call.
        call: &'static str,
        /// The node it was made on.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The driver processed the call and refused it.
    #[error("{call} answered {status}")]
    Refused {
        /// The driver's name of the call, control or class.
        call: &'static str,
        /// Its answer.
        status: Status,
    },
    /// The driver's version string is not one.
    #[error("the driver calls itself {text:?}, which is not a version such as 570.195.03")]
    Version {
        /// What it answered.
        text: String,
    },
    /// The driver's layouts are not known.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedRelease),
    /// The release has no such control.
    #[error("driver {version} has no control {cmd:#x}")]
    NoControl {
        /// The driver.
        version: DriverVersion,
        /// The command.
        cmd: u32,
    },
    /// The driver's answer contradicts its own headers.
    #[error("{call} answered {what}")]
    Malformed {
        /// The driver's name of the call.
        call: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The card offers no class that this client knows for a purpose.
    #[error("the card has no {purpose} that this client knows")]
    NoClass {
        /// What for.
        purpose: &'static str,
    },
    /// What was submitted to a channel has not been done in time: the channel is dead, or the card does not run it.
    #[error("the channel has not come to {value} within {milliseconds} ms")]
    NotDone {
        /// The fence's value.
        value: u32,
        /// How long it was waited for.
        milliseconds: u128,
    },
    /// An engine has written other bytes than it was given.
    #[error("{class} has written other bytes than it was given, the first at {at}")]
    OtherBytes {
        /// The engine's class.
        class: &'static str,
        /// Where the first of them is.
        at: usize,
    },
    /// The memory could not be mapped after the driver had agreed to it.
    #[error("cannot map {bytes} bytes of card memory through {}", path.display())]
    Mapping {
        /// The node that was mapped.
        path: PathBuf,
        /// How much.
        bytes: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// The driver's status, where the driver has answered.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        if let Self::Refused { status, .. } = self {
            Some(*status)
        } else {
            None
        }
    }

    /// Whether the driver (or the slice) has no memory left.
    #[must_use]
    pub fn is_no_memory(&self) -> bool {
        self.status() == Some(Status::NO_MEMORY)
    }

    /// Whether a fault of the card is behind it, after which the objects it hit must be made anew: a dead channel, a
    /// lost card, or work that does not come to its end.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::NotDone { .. })
            || matches!(self.status(), Some(Status::RC_ERROR | Status::GPU_IS_LOST))
    }

    /// Whether a node is not there: no driver, or a card that is not visible from here.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
