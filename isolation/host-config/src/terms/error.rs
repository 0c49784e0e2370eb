//! Terms that say nothing.

/// What is wrong with a term, whoever wrote it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value that is not allowed.
    #[error("{key} = {value:?} is not allowed: {allowed}")]
    Value {
        /// The annotation, variable, option or key of the configuration.
        key: String,
        /// Its value, cut.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// An annotation of ours that does not exist.
    #[error("unknown annotation {key}: allowed are {allowed}")]
    UnknownKey {
        /// The annotation.
        key: String,
        /// Those that exist.
        allowed: String,
    },
    /// Terms for compute time that no card's policy gives a meaning.
    #[error("these terms exclude each other on every card")]
    Together(#[source] plan::TermsError),
    /// A request without an amount of memory.
    #[error("a vGPU needs an amount of memory: set cgpu.io/memory, for example to 4Gi")]
    NoMemoryTerm,
}
