//! Signals between threads, and process attributes that nix does not cover.
//!
//! UNSAFETY: installing a handler and sending to a thread need raw calls.

use std::io;

extern "C" fn ignore(_signal: libc::c_int) {}

/// Installs an empty handler without SA_RESTART, so that the signal ends a blocking call with `EINTR`.
///
/// # Errors
/// The system's.
pub fn interrupts(signal: i32) -> io::Result<()> {
    // SAFETY: all-zero is a valid sigaction; the handler does nothing, so it is async-signal-safe.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    // SAFETY: `action` lives across the call; the former action is not asked for.
    let set = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Closes every descriptor from 3 upwards: what a parent has left open by mistake. The very first thing that a program does.
///
/// # Errors
/// The system's; `ENOSYS` before Linux 5.9.
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: nothing of this program has opened a descriptor yet, by the contract above, so none that is owned is closed.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if closed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A thread of this process that can be interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadId(i32);

impl ThreadId {
    /// The calling thread.
    #[must_use]
    pub fn current() -> Self {
        Self(nix::unistd::gettid().as_raw())
    }

    /// Sends a signal to the thread.
    ///
    /// # Errors
    /// `ESRCH` when it has ended.
    pub fn signal(self, signal: i32) -> io::Result<()> {
        let process = std::process::id().cast_signed();
        // SAFETY: tgkill takes numbers only, and reaches threads of this process only.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, self.0, signal) };
        if sent == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}
