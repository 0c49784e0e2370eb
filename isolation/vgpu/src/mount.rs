//! A file of the host that a container finds at another place.

use std::path::PathBuf;

use crate::Error;

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

impl Mount {
    /// Checks that there is something to bind, and that it is no link: its target would be the link's owner's choice.
    pub(crate) fn new(source: PathBuf, target: PathBuf, options: &[&str]) -> Result<Self, Error> {
        let metadata = std::fs::symlink_metadata(&source)
            .map_err(Error::io("find the file to bind", &source))?;
        if metadata.is_symlink() || metadata.is_dir() {
            return Err(Error::MountSource { path: source });
        }
        Ok(Self {
            source,
            target,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        })
    }
}
