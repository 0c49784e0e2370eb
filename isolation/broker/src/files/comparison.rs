//! Which open file a descriptor is of, by `kcmp`.

use std::cmp::Ordering;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use sys::pidfd::PidFd;

use super::{InUse, OpenFile};

/// Where a file is among others in the order of `kcmp`, or where it would; `order` compares one of them with it.
///
/// # Errors
/// The first that `order` meets.
pub(crate) fn position<T>(
    files: &[T],
    mut order: impl FnMut(&T) -> io::Result<Ordering>,
) -> io::Result<Result<usize, usize>> {
    let mut failed = None;
    let at = files.binary_search_by(|file| {
        order(file).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            Ordering::Equal
        })
    });
    failed.map_or(Ok(at), Err)
}

/// Where an open file of this process is among others in the order of `kcmp`, or where it would.
///
/// # Errors
/// A descriptor that is none.
pub(crate) fn own_position(
    files: &[Arc<OpenFile>],
    fd: BorrowedFd<'_>,
) -> io::Result<Result<usize, usize>> {
    position(files, |file| sys::kcmp::own_files(file.fd.as_fd(), fd))
}

/// The one of these files, which are in the order of `kcmp`, that is under a number of a thread.
///
/// # Errors
/// The thread is gone, has no such descriptor, or may not be looked at.
pub(crate) fn held_by_thread(
    files: &[Arc<OpenFile>],
    tid: i32,
    number: i32,
) -> io::Result<Option<InUse>> {
    let at = position(files, |file| {
        sys::kcmp::file(tid, number, file.fd.as_fd()).map(Ordering::reverse)
    })?;
    Ok(at.ok().and_then(|at| files.get(at)).map(InUse::new))
}

/// Duplicates what *the thread* has under that number. `pidfd_getfd` looks into the table of the process's leader, and a
/// thread made without CLONE_FILES has another.
pub(crate) fn duplicate(tid: i32, tgid: i32, number: i32) -> io::Result<OwnedFd> {
    match PidFd::open(tgid)?.duplicate(number) {
        Ok(fd) if sys::kcmp::file(tid, number, fd.as_fd())? == Ordering::Equal => return Ok(fd),
        Ok(_of_the_process) => {}
        // Before Linux 6.9 no thread can be opened: what its process has not, it has not either, where they have one table.
        Err(error) if sys::kcmp::tables(tgid, tid)? == Ordering::Equal => return Err(error),
        Err(_of_the_process) => {}
    }
    let fd = PidFd::open_thread(tid)?.duplicate(number)?;
    match sys::kcmp::file(tid, number, fd.as_fd())? {
        Ordering::Equal => Ok(fd),
        Ordering::Less | Ordering::Greater => Err(io::ErrorKind::NotFound.into()),
    }
}
