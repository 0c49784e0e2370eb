//! Signals that come while a call waits.
//!
//! UNSAFETY: installing a handler and starting the timer need raw calls.

use std::io;

extern "C" fn ignore(_signal: libc::c_int) {}

/// Installs an empty handler with SA_RESTART: the kernel repeats an interrupted call where it can.
///
/// # Errors
/// The system's.
pub fn restarts(signal: i32) -> io::Result<()> {
    // SAFETY: all-zero is a valid sigaction; the handler does nothing, so it is async-signal-safe.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` lives across the call; the former action is not asked for.
    let set = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Starts a real-time interval timer that sends `SIGALRM` every `micros` microseconds; 0 stops it.
///
/// # Errors
/// The system's.
pub fn interval_timer(micros: u32) -> io::Result<()> {
    let period = libc::timeval {
        tv_sec: libc::time_t::from(micros / 1_000_000),
        tv_usec: libc::suseconds_t::from(micros % 1_000_000),
    };
    let timer = libc::itimerval {
        it_interval: period,
        it_value: period,
    };
    // SAFETY: `timer` lives across the call; the former value is not asked for.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
