//! What a program that is executed next inherits.
//!
//! UNSAFETY: nix has no close_range, and a descriptor that this program did not open is only a number to it.

use std::io;
use std::os::fd::RawFd;

/// Descriptors from 3 on, of which the first `kept` an engine hands to a program by their numbers (`LISTEN_FDS`,
/// `--preserve-fds`). The rest is of no concern to anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inherited {
    kept: u32,
}

const FIRST: u32 = 3;

impl Inherited {
    /// From now on nothing but the three streams is inherited, whatever the caller's own parent has left open.
    ///
    /// # Errors
    /// The system's.
    pub fn hold_back(kept: u32) -> io::Result<Self> {
        // Before Linux 5.11 there was no such flag.
        close_on_exec_from(FIRST).or_else(|_unknown| close_on_exec_each())?;
        Ok(Self { kept })
    }

    /// The first number that is none of the kept ones.
    #[must_use]
    pub fn after(self) -> RawFd {
        RawFd::try_from(FIRST.saturating_add(self.kept)).unwrap_or(RawFd::MAX)
    }

    /// What is executed next has the kept descriptors, under their numbers. Those that are not open are left out.
    ///
    /// # Errors
    /// The system's.
    pub fn pass_on(self) -> io::Result<()> {
        self.each(0)
    }

    /// Undoes [`Inherited::pass_on`], for what is executed after that.
    ///
    /// # Errors
    /// The system's.
    pub fn hold_back_again(self) -> io::Result<()> {
        self.each(libc::FD_CLOEXEC)
    }

    fn each(self, flags: libc::c_int) -> io::Result<()> {
        for number in FIRST..FIRST.saturating_add(self.kept) {
            set_flags(RawFd::try_from(number).unwrap_or(RawFd::MAX), flags)?;
        }
        Ok(())
    }
}

/// A number that is not open is fine.
fn set_flags(number: RawFd, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: F_SETFD takes numbers only, and changes nothing but what an executed program inherits.
    if unsafe { libc::fcntl(number, libc::F_SETFD, flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EBADF) {
        Ok(())
    } else {
        Err(error)
    }
}

fn close_on_exec_each() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_string_lossy().parse::<RawFd>();
        if let Ok(number) = number
            && u32::try_from(number).is_ok_and(|number| number >= FIRST)
        {
            set_flags(number, libc::FD_CLOEXEC)?;
        }
    }
    Ok(())
}

fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: close_range takes numbers only; with this flag it closes nothing in this process.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
