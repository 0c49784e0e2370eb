//! Files of the host that are bound into containers.

use std::path::PathBuf;

use spec::edit::Mount;
use sys::failed;

use crate::error::Error;

/// Where `cgpu` is found inside a container.
const TOOL_TARGET: &str = "/usr/bin/cgpu";

/// Checks that there is something to bind, and that it is no link: its target would be the link's owner's choice.
pub(crate) fn checked(source: PathBuf, target: PathBuf, options: &[&str]) -> Result<Mount, Error> {
    let metadata =
        std::fs::symlink_metadata(&source).map_err(failed("find the file to bind", &source))?;
    if metadata.is_symlink() || metadata.is_dir() {
        return Err(Error::MountSource { path: source });
    }
    Ok(Mount {
        source,
        target,
        options: options.iter().map(|option| (*option).to_owned()).collect(),
    })
}

/// The `cgpu` that a container finds.
pub(crate) fn tools(source: PathBuf) -> Result<Mount, Error> {
    let options = ["bind", "ro", "nosuid", "nodev"];
    let mount = checked(source, PathBuf::from(TOOL_TARGET), &options);
    mount.map_err(|error| Error::ContainerTools(Box::new(error)))
}
