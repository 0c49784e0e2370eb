//! What can go wrong around a vGPU, one variant per step. Errors reach people through engines: each stands alone.

use std::path::PathBuf;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value that is not allowed.
    #[error("{key} = {value:?} is not allowed: {allowed}")]
    Value {
        /// The annotation or variable.
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
    /// Two parts of a request that cannot both hold.
    #[error("{one} contradicts {other}")]
    Contradiction {
        /// The one.
        one: String,
        /// The other.
        other: String,
    },
    /// A request without an amount of memory.
    #[error("a vGPU needs an amount of memory: set cgpu.io/memory, for example to 4Gi")]
    NoMemoryTerm,
    /// The cluster's scheduler found no card and said so in its only way.
    #[error("the scheduler found no card for this container: {value}")]
    Unscheduled {
        /// The variable that says so.
        value: String,
    },
    /// A spec whose JSON has another shape than the OCI specification's.
    #[error("{field} of the container's spec is not {expected}")]
    SpecShape {
        /// Where.
        field: String,
        /// What it must be.
        expected: &'static str,
    },
    /// Placeholder of a body that is being written.
    #[error("this part of cgpu is not built yet")]
    Unfinished,
    /// Cards, books, grants, placement, names.
    #[error(transparent)]
    Cards(#[from] cards::Error),
    /// A configuration that is not text.
    #[error("configuration {} is not UTF-8", path.display())]
    ConfigText {
        /// The file.
        path: PathBuf,
        /// Where it stops being text.
        #[source]
        source: std::str::Utf8Error,
    },
    /// A configuration that is not TOML, or has an unknown key, or a value of the wrong type.
    #[error("configuration {} is wrong", path.display())]
    ConfigSyntax {
        /// The file.
        path: PathBuf,
        /// The line, the key and what is allowed.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A configuration value out of its range.
    #[error("configuration {}: {key} = {value} is not allowed: {allowed}", path.display())]
    ConfigValue {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

/// An error and its sources on one line, as doors hand it to their engines.
#[must_use]
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
