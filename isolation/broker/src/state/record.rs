//! What is kept of a call: which one it was, and how it ended.

use serde::{Deserialize, Serialize};
use sys::seccomp::Notification;

/// Whether a call changes the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangesAccount {
    /// It does: it must not be executed twice.
    Yes,
    /// It does not.
    No,
}

/// One system call by its registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallKey {
    pub(crate) tid: i32,
    nr: i32,
    fd: u32,
    pub(crate) cmd: u32,
    pointer: u64,
}

impl CallKey {
    /// That of a call.
    #[must_use]
    pub fn of(call: &Notification) -> Self {
        let [first, second, third, ..] = call.args;
        Self::new(call.tid, call.nr, [first, second, third])
    }

    /// The kernel truncates the descriptor and the command; what is above them in the registers is the caller's dirt.
    #[must_use]
    pub fn new(tid: i32, nr: i32, [fd, cmd, pointer]: [u64; 3]) -> Self {
        let low = |register: u64| u32::try_from(register & 0xffff_ffff).unwrap_or_default();
        Self {
            tid,
            nr,
            fd: low(fd),
            cmd: low(cmd),
            pointer,
        }
    }
}

/// How a kept call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// Nobody waited for the answer.
    Undelivered,
    /// The kernel took it; the caller may have dropped it.
    Answered,
}
