//! Why the process could not do what it is for.

use std::io;

use caps::CapSet;

/// What went wrong. One that could not give up its rights must not serve; one that is not near its card serves all the same.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A step failed.
    #[error("{step}")]
    Step {
        /// Which.
        step: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Capabilities could not be read or dropped.
    #[error("dropping capabilities: {set:?}")]
    Capabilities {
        /// The set.
        set: CapSet,
        /// Why.
        #[source]
        source: caps::errors::CapsError,
    },
    /// A set is not empty although it was emptied.
    #[error("capabilities are left: {set:?}")]
    Left {
        /// The set.
        set: CapSet,
    },
    /// What is reported of the processors cannot be read.
    #[error("no list of processors: {0:?}")]
    Cpus(String),
}

/// For `map_err` of a step.
pub(crate) fn failed<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::Step {
        step,
        source: error.into(),
    }
}
