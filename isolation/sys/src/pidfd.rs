//! Process descriptors.
//!
//! UNSAFETY: nix has no pidfd calls; libc has only their numbers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A process that stays the same one even when its pid is used again. Poll it for reading: readable means exited.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<PidFd> for OwnedFd {
    fn from(process: PidFd) -> Self {
        process.0
    }
}

impl From<OwnedFd> for PidFd {
    /// One that another process has opened and sent.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

const PIDFD_THREAD: libc::c_uint = libc::O_EXCL.cast_unsigned();

impl PidFd {
    /// Opens a process by its thread-group leader's pid.
    ///
    /// # Errors
    /// `ESRCH` when it has gone; when `pid` is not a leader, `EINVAL`, or `ENOENT` on newer kernels (seen on 6.18).
    pub fn open(pid: i32) -> io::Result<Self> {
        Self::open_with(pid, 0)
    }

    /// Opens a single thread (Linux 6.9 and later).
    ///
    /// # Errors
    /// As [`PidFd::open`]; `EINVAL` on an older kernel.
    pub fn open_thread(tid: i32) -> io::Result<Self> {
        Self::open_with(tid, PIDFD_THREAD)
    }

    fn open_with(pid: i32, flags: libc::c_uint) -> io::Result<Self> {
        // SAFETY: pidfd_open takes numbers only.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) };
        owned(fd).map(Self)
    }

    /// Duplicates descriptor `number` of the process into this one.
    ///
    /// # Errors
    /// `EBADF` when it has no such descriptor, `EPERM` without ptrace access, `ESRCH` when it has gone.
    pub fn duplicate(&self, number: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: pidfd_getfd takes numbers only.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.0.as_raw_fd(), number, 0) };
        owned(fd)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// `ESRCH` when the process has gone.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: a null siginfo is what pidfd_send_signal documents as "like kill".
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        if sent == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Waits until the process has exited; `false` when `timeout_ms` passed first.
    ///
    /// # Errors
    /// The system's.
    pub fn wait_exit(&self, timeout_ms: u16) -> io::Result<bool> {
        loop {
            match poll(
                &mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)],
                PollTimeout::from(timeout_ms),
            ) {
                Ok(ready) => return Ok(ready > 0),
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_is_seen_and_a_dead_process_cannot_be_signalled() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pidfd = PidFd::open(child.id().cast_signed()).unwrap();
        assert!(!pidfd.wait_exit(0).unwrap());
        pidfd.signal(libc::SIGKILL).unwrap();
        assert!(pidfd.wait_exit(10_000).unwrap());
        child.wait().unwrap();
        assert_eq!(
            pidfd.signal(0).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
    }
}
