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

    /// Whether a node is not there: no driver, or a card that is not visible from here.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
