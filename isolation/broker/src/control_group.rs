//! The processes of a control group.

use std::io;
use std::path::Path;

use sys::control_group::subtree;

/// The processes of a cgroup and of those below it, as far as they can be seen.
pub(crate) fn processes_of_group(folder: &Path) -> Vec<i32> {
    list_group(folder).unwrap_or_default()
}

/// The processes of a cgroup and of those below it.
///
/// # Errors
/// A group that is there and cannot be read.
pub(crate) fn list_group(folder: &Path) -> io::Result<Vec<i32>> {
    list_group_up_to(folder, usize::MAX)
}

/// [`list_group`], of this many groups at most: a tenant may make as many below its own as it likes.
///
/// # Errors
/// As [`list_group`].
pub(crate) fn list_group_up_to(folder: &Path, most: usize) -> io::Result<Vec<i32>> {
    let groups = subtree(folder, most)?;
    Ok(groups
        .into_iter()
        .flat_map(|group| group.processes)
        .collect())
}
