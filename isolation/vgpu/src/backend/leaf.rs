//! The container's own control group in version 2's tree.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use serde::{Deserialize, Serialize};
use sys::failed;

use crate::error::Error;
use crate::state::ContainerDir;

/// One group. The inode tells it from a later one of the same path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leaf {
    pub(super) path: PathBuf,
    pub(super) inode: u64,
}

/// Whether version 2's tree is mounted there.
pub(super) fn is_v2(root: &Path) -> bool {
    statfs(root).is_ok_and(|mounted| mounted.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

impl Leaf {
    /// The group of a container's first process.
    ///
    /// # Errors
    /// Version 1, or a group that is not the container's own: a limit there would be another's too, and would not be what the
    /// container sees.
    pub(super) fn of(root: &Path, pid: i32) -> Result<Self, Error> {
        if !is_v2(root) {
            return Err(Error::NoCgroupV2 {
                root: root.to_owned(),
            });
        }
        let (theirs, ours) = (group_of(&pid.to_string())?, group_of("self")?);
        let own = theirs
            .as_deref()
            .filter(|path| *path != "/" && theirs != ours)
            .map(|path| Path::new(path.trim_start_matches('/')))
            .filter(|path| {
                path.components()
                    .all(|part| matches!(part, Component::Normal(_)))
            });
        let path = own
            .map(|path| root.join(path))
            .ok_or_else(|| Error::NoOwnCgroup {
                pid,
                path: theirs.unwrap_or_default(),
            })?;
        let metadata = std::fs::metadata(&path).map_err(failed("find the control group", &path))?;
        Ok(Self {
            path,
            inode: metadata.ino(),
        })
    }

    /// Whether this very group is still there.
    pub(super) fn exists(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode)
    }

    /// Whether a process is in it or below it.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub(super) fn is_populated(&self) -> Result<bool, Error> {
        if !self.exists() {
            return Ok(false);
        }
        let path = self.path.join("cgroup.events");
        match std::fs::read_to_string(&path) {
            Ok(events) => Ok(events.lines().any(|line| line == "populated 1")),
            Err(error) if is_removed(&error) => Ok(false),
            Err(error) => Err(failed("read", path)(error).into()),
        }
    }
}

/// Whether a group has gone: before its file was opened, or before it was read.
fn is_removed(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// Whether a process lives in the noted leaf of a container of backend `driver-limit`.
///
/// # Errors
/// Nobody knows: the note or the leaf cannot be looked at.
pub(super) fn is_populated(dir: &ContainerDir) -> Result<bool, Error> {
    match super::driver_limit::recorded_leaf(dir)? {
        Some(leaf) => leaf.is_populated(),
        None => Ok(false),
    }
}

/// The path in version 2's tree, `0::` in `/proc/<pid>/cgroup`.
fn group_of(process: &str) -> Result<Option<String>, sys::FileError> {
    sys::proc::group_of(process, "")
        .map_err(|source| failed("read", format!("/proc/{process}/cgroup"))(source))
}
