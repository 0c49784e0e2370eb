//! Calls: which one it is, what is written down of it on its way, and what is kept of it afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use driver::{Caller, FileId, FileKind, Segment};
use serde::{Deserialize, Serialize};
use sys::seccomp::Notification;

use crate::reservation::Reservation;
use crate::segments;

/// Records of threads that died stay until the next interval; beyond this many no further result is kept.
pub(crate) const MOST_RECORDS: usize = 1024;
/// The same, of what their blocks take together.
pub(crate) const MOST_RECORD_BYTES: usize = 8 << 20;

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
    /// Who makes it.
    pub tid: i32,
    nr: i32,
    fd: u32,
    /// Its command.
    pub cmd: u32,
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

/// A descriptor that a call's struct names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFd {
    /// The block that holds the number; [`driver::FdSlot::BESIDE`]: none.
    pub segment: u8,
    /// Offset of the number in it.
    pub at: u32,
    /// The tenant's number.
    pub number: i32,
    /// Which file of the driver it is, if it is one.
    pub file: Option<(FileId, FileKind)>,
}

/// A call that the driver is about to execute: all that is needed to ask it again, without another look at the tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// The call's number in its container, never used again.
    pub number: u64,
    /// Thread and registers.
    pub key: CallKey,
    /// Who makes it.
    pub caller: Caller,
    /// On which file.
    pub file: FileId,
    /// What that file is.
    pub kind: FileKind,
    /// The command.
    pub cmd: u32,
    /// The blocks, as they were read.
    #[serde(with = "segments")]
    pub before: Arc<Vec<Segment>>,
    /// Descriptors in the struct.
    pub fds: Vec<NamedFd>,
    /// What the account holds ready.
    pub reservation: Reservation,
}

/// What the tenant is to get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Its number in the container.
    pub number: u64,
    /// What the ioctl returns.
    pub ret: i32,
    /// The blocks as the tenant gave them.
    #[serde(with = "segments")]
    pub before: Arc<Vec<Segment>>,
    /// The blocks as they are to be written back.
    #[serde(with = "segments")]
    pub after: Arc<Vec<Segment>>,
    /// The descriptor that a file, which is kept apart, is to replace.
    pub replaces: Option<i32>,
    /// Whether the account changed with it.
    pub changes_account: ChangesAccount,
}

/// A call under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    /// What was asked of the driver.
    pub begun: Begun,
    /// What came of it; `None`: the call is in doubt.
    pub finished: Option<Finished>,
}

/// A finished call whose caller may not have seen the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Which call.
    pub key: CallKey,
    /// How it ended.
    pub end: End,
    /// Its result.
    pub finished: Finished,
}

impl OpenCall {
    pub(super) fn begin(begun: Begun) -> Self {
        Self {
            begun,
            finished: None,
        }
    }

    pub(super) fn end(&mut self, answer: Answer) {
        self.begun.reservation = Reservation::Nothing;
        self.finished = Some(Finished {
            number: self.begun.number,
            ret: answer.ret,
            before: Arc::clone(&self.begun.before),
            after: answer.after,
            replaces: answer.replaces,
            changes_account: answer.changes_account,
        });
    }
}

impl Finished {
    /// What its blocks take.
    pub(super) fn bytes(&self) -> usize {
        let blocks = self.before.iter().chain(self.after.iter());
        blocks.map(|block| block.bytes.len()).sum()
    }
}

/// A result as the journal writes it: a [`Finished`] without what the call's beginning says already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// See [`Finished::ret`].
    pub ret: i32,
    /// See [`Finished::after`].
    #[serde(with = "segments")]
    pub after: Arc<Vec<Segment>>,
    /// See [`Finished::replaces`].
    pub replaces: Option<i32>,
    /// See [`Finished::changes_account`].
    pub changes_account: ChangesAccount,
}

/// What is kept, by thread.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Records {
    by_thread: BTreeMap<i32, Kept>,
    /// Of all their blocks.
    pub(super) bytes: usize,
}

impl Records {
    pub(super) fn insert(&mut self, tid: i32, kept: Kept) {
        let bytes = self.bytes.saturating_add(kept.finished.bytes());
        if self.by_thread.len() < MOST_RECORDS && bytes <= MOST_RECORD_BYTES {
            self.bytes = bytes;
            self.by_thread.insert(tid, kept);
        }
    }

    pub(super) fn remove(&mut self, tid: i32) {
        if let Some(kept) = self.by_thread.remove(&tid) {
            self.bytes = self.bytes.saturating_sub(kept.finished.bytes());
        }
    }

    /// What is kept of the thread's call ended so after all.
    pub(super) fn end(&mut self, tid: i32, end: End) {
        if let Some(kept) = self.by_thread.get_mut(&tid) {
            kept.end = end;
        }
    }

    pub(super) fn of(&self, tid: i32) -> Option<&Kept> {
        self.by_thread.get(&tid)
    }

    pub(super) fn threads(&self) -> impl Iterator<Item = i32> {
        self.by_thread.keys().copied()
    }
}
