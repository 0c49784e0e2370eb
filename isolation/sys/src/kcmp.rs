//! `kcmp(2)`: whether two descriptors name one open file, or two threads share one table of them, or their memory.
//!
//! UNSAFETY: neither libc nor nix wraps the call.

use std::cmp::Ordering;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

const KCMP_FILE: libc::c_int = 0;
const KCMP_VM: libc::c_int = 1;
const KCMP_FILES: libc::c_int = 2;

/// Orders the open file behind `tid`'s descriptor `number` against the one behind `ours`. The order is arbitrary but fixed
/// while the system runs, so it can key a search.
///
/// # Errors
/// `ESRCH` when the thread has gone, `EBADF` when it has no such descriptor, `EPERM` without ptrace access.
pub fn file(tid: i32, number: i32, ours: BorrowedFd<'_>) -> io::Result<Ordering> {
    order(tid, i64::from(number), ours)
}

/// As [`file`], between two descriptors of this process.
///
/// # Errors
/// As [`file`].
pub fn own_files(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> io::Result<Ordering> {
    order(own_pid(), i64::from(a.as_raw_fd()), b)
}

/// Asked for once: nothing here forks without executing another program, and the C library asks the kernel each time.
fn own_pid() -> i32 {
    static OWN: OnceLock<i32> = OnceLock::new();
    *OWN.get_or_init(|| std::process::id().cast_signed())
}

/// Orders the descriptor tables of two threads.
///
/// # Errors
/// `ESRCH` when a thread has gone, `EPERM` without ptrace access.
pub fn tables(one: i32, other: i32) -> io::Result<Ordering> {
    compare(one, other, KCMP_FILES, 0, 0)
}

/// Orders the memory of two threads.
///
/// # Errors
/// As [`tables`].
pub fn memory(one: i32, other: i32) -> io::Result<Ordering> {
    compare(one, other, KCMP_VM, 0, 0)
}

fn order(pid: i32, number: i64, ours: BorrowedFd<'_>) -> io::Result<Ordering> {
    compare(
        pid,
        own_pid(),
        KCMP_FILE,
        number,
        i64::from(ours.as_raw_fd()),
    )
}

fn compare(
    one: i32,
    other: i32,
    kind: libc::c_int,
    in_one: i64,
    in_other: i64,
) -> io::Result<Ordering> {
    // SAFETY: kcmp takes numbers only; a wrong pid or descriptor is reported as an error.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            libc::c_long::from(one),
            libc::c_long::from(other),
            libc::c_long::from(kind),
            in_one,
            in_other,
        )
    };
    match answer {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        -1 => Err(io::Error::last_os_error()),
        // 3: "not equal, but ordering information is unavailable"; cannot be for files.
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_duplicate_is_equal_and_a_second_open_is_not() {
        let first = std::fs::File::open("/dev/null").unwrap();
        let second = std::fs::File::open("/dev/null").unwrap();
        let copy = first.try_clone().unwrap();
        assert_eq!(
            own_files(first.as_fd(), copy.as_fd()).unwrap(),
            Ordering::Equal
        );
        let order = own_files(first.as_fd(), second.as_fd()).unwrap();
        assert_ne!(order, Ordering::Equal);
        assert_eq!(
            own_files(second.as_fd(), first.as_fd()).unwrap(),
            order.reverse()
        );
    }
}
