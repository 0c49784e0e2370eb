//! What can go wrong beside the calls themselves.

use std::io;
use std::path::PathBuf;

use rmclient::Status;

/// A step of a program that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of the client.
    #[error(transparent)]
    Client(#[from] rmclient::Error),
    /// The card offers no class that is known here for a purpose.
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
        match self {
            Self::Client(error) => error.status(),
            Self::NoClass { .. }
            | Self::NotDone { .. }
            | Self::OtherBytes { .. }
            | Self::Mapping { .. } => None,
        }
    }

    /// Whether the driver (or the slice) has no memory left.
    #[must_use]
    pub fn is_no_memory(&self) -> bool {
        self.status() == Some(Status::NO_MEMORY)
    }
}
