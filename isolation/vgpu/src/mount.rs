//! Files of the host that are bound into containers.

use std::path::PathBuf;

use spec::edit::Mount;

use crate::error::Error;

/// Checks that there is something to bind, and that it is no link: its target would be the link's owner's choice.
pub(crate) fn checked(source: PathBuf, target: PathBuf, options: &[&str]) -> Result<Mount, Error> {
    let metadata =
        std::fs::symlink_metadata(&source).map_err(Error::io("find the file to bind", &source))?;
    if metadata.is_symlink() || metadata.is_dir() {
        return Err(Error::MountSource { path: source });
    }
    Ok(Mount {
        source,
        target,
        options: options.iter().map(|option| (*option).to_owned()).collect(),
    })
}
