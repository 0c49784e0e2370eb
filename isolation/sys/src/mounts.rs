//! Properties of mounts.
//!
//! UNSAFETY: neither nix nor rustix has mount_setattr(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Whether a mount can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writing {
    /// As it could before.
    AsBefore,
    /// Not.
    Forbidden,
}

/// Gives a mount that is nowhere yet (`open_tree` with `OPEN_TREE_CLONE`), and those below it, the owners that a user namespace
/// maps those on disk to. The mounts become private.
///
/// # Errors
/// `EINVAL` for a file system that cannot be mapped, a mount that is mapped already or stands somewhere, and a kernel
/// before 5.12 says `ENOSYS`.
pub fn map_owners(tree: BorrowedFd<'_>, users: BorrowedFd<'_>, writing: Writing) -> io::Result<()> {
    let read_only = match writing {
        Writing::AsBefore => 0,
        Writing::Forbidden => libc::MOUNT_ATTR_RDONLY,
    };
    let users = u64::try_from(users.as_raw_fd()).map_err(io::Error::other)?;
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP | read_only,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: users,
    };
    // SAFETY: the path is empty and the struct has the size that is given; both live across the call, which only reads them.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
