//! Mounts whose files have other owners than on disk (mount_setattr(2), MOUNT_ATTR_IDMAP).

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use sys::mounts::Writing;

use crate::error::{Result, file};

/// Puts the mount at `target` over itself, with owners as `users` maps them.
pub(super) fn over_itself(target: &Path, users: &OwnedFd) -> Result<()> {
    mapped(target, target, users, Writing::AsBefore)
}

/// Mounts what is at `source` at `target` too, read-only and with owners as `users` maps them.
pub(super) fn read_only_copy(source: &Path, target: &Path, users: &OwnedFd) -> Result<()> {
    mapped(source, target, users, Writing::Forbidden)
}

fn mapped(source: &Path, target: &Path, users: &OwnedFd, writing: Writing) -> Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, source, flags)
        .map_err(|errno| file("open the mounts of", source)(errno.into()))?;
    sys::mounts::map_owners(tree.as_fd(), users.as_fd(), writing)
        .map_err(file("map the owners of", source))?;
    let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&tree, "", CWD, target, whole).map_err(|errno| file("mount", target)(errno.into()))
}
