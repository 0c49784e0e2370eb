//! A file of the host that a container finds at another place.

use std::path::PathBuf;

/// One file bound into the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// On the host; root's.
    pub source: PathBuf,
    /// In the container.
    pub target: PathBuf,
    /// As in `config.json`, for example `bind`, `rw`, `nosuid`, `noexec`.
    pub options: Vec<String>,
}
