//! The processes of a control group.

use std::fs;
use std::io;
use std::path::Path;

use crate::maps::has_gone;

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
    let (mut pids, mut left) = (Vec::new(), vec![folder.to_owned()]);
    for _group in 0..most {
        let Some(folder) = left.pop() else { break };
        match fs::read_to_string(folder.join("cgroup.procs")) {
            Ok(text) => pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok())),
            // The processes of a threaded group are listed in the domain above it.
            Err(error) if has_gone(&error) || error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => return Err(error),
        }
        let entries = match fs::read_dir(&folder) {
            Err(error) if has_gone(&error) => continue,
            other => other?,
        };
        for entry in entries {
            let entry = match entry {
                Err(error) if has_gone(&error) => break,
                other => other?,
            };
            if left.len() < most && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(entry.path());
            }
        }
    }
    Ok(pids)
}
