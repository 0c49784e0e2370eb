//! Why a configuration cannot be obeyed.

use std::path::PathBuf;

use crate::trusted;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Others can change it.
    #[error(transparent)]
    Trusted(#[from] trusted::Error),
    /// It cannot be read, or is too long.
    #[error(transparent)]
    Read(#[from] cards::Error),
    /// It cannot be kept with a container.
    #[error("cannot keep the configuration as {}", path.display())]
    Keep {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A configuration that is not text.
    #[error("configuration {} is not UTF-8", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Where it stops being text.
        #[source]
        source: std::str::Utf8Error,
    },
    /// A configuration that is not TOML, or has an unknown key, or a value of the wrong type.
    #[error("configuration {} is wrong", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, the key and what is allowed.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A configuration value out of its range.
    #[error("configuration {}: {key} = {value} is not allowed: {allowed}", path.display())]
    Value {
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
