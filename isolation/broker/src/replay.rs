//! Exactly once: one call of a thread at a time, and what a call had brought when its caller never saw the answer.
//!
//! runc cannot set WAIT_KILLABLE_RECV, so any signal ends a caller's wait; the program (or the kernel, by SA_RESTART) then
//! makes the same call again, under a new id. The driver may have executed it, so it must not execute it twice.
//!
//! ```text
//!            enter                       deliver failed
//! (nothing) ───────▶ under way ──────────────────────────▶ undelivered ──┐ the thread's next call:
//!     ▲                 │  ▲ └──── answered, changed ─▶ answered ────────┤ the same → gets the record
//!     └── answered ─────┘  └─────────────────────────────────────────────┘ another  → record dropped
//! ```
//!
//! - *Under way*: the repetition can arrive while a worker still executes the first try. It waits for that worker; of several
//!   repetitions only the one waits that the caller waits for: it has given up the others.
//! - *Undelivered*: the kernel said that nobody waited for the answer. The repetition gets it.
//! - *Answered*: the kernel took the answer, but a waiter that a signal had just woken drops it unseen (kernel/seccomp.c,
//!   `seccomp_do_user_notification`: the signal's error wins over an answer that comes before the waiter has the lock). Nothing
//!   tells this from a delivered answer, so the repetition is executed, and if it is refused *because its first try still
//!   stands* (the handle exists already, or is gone already), the first answer is given. Kept for calls that change the account.
//!
//! What is kept of finished calls is journaled state ([`journal::state`]), so it outlives a broker; who serves whom is not.
//!
//! A broker that was killed while it gave an answer leaves the same doubt as a signal that woke the waiter: if the call no
//! longer waits, its answer counts as taken. The blocks were written back before, so a repetition shows the answer's.
//!
//! "The same" means thread, system call, registers, and the struct as it was read: either as at the first try, or as that
//! try's answer left it, since the answer is written before it is sent.

use std::sync::{Condvar, Mutex};

use driver::Segment;

use journal::Journal;
use journal::shared_state::{CallSlot, Phase};
use journal::state::{CallKey, ChangesAccount, End, Finished, Kept, Op};
use sys::sync;

use crate::table::Table;

/// Calls under way, by thread: a thread makes one call at a time.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    inner: Mutex<Inner>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// A worker serves the thread's call; a repetition waits under this ticket (0: none does).
    threads: Table<i32, u64>,
    next_ticket: u64,
}

/// A worker serves the thread's call until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Served<'a> {
    threads: &'a Threads,
    tid: i32,
    /// Whether the thread's former call was waited for.
    pub(crate) has_waited: bool,
}

impl Threads {
    /// Begins a call. Waits while another worker serves the thread's former call; `None` when the caller waits for this one no
    /// more, which `is_waiting` asks of the kernel. A worker can be that late: workers come here in another order than their calls
    /// were made, so one that comes later may neither send away one whose caller waits, nor take what is kept of the newer call.
    pub(crate) fn enter(&self, tid: i32, is_waiting: impl Fn() -> bool) -> Option<Served<'_>> {
        let mut inner = sync::lock(&self.inner);
        let mut ticket = 0;
        while let Some(waiting) = inner.threads.get(&tid).copied() {
            if ticket == 0 || waiting != ticket {
                // Of a thread's calls the kernel has one waiting: among workers that send each other away, its own remains.
                if !is_waiting() {
                    return None;
                }
                inner.next_ticket = inner.next_ticket.saturating_add(1);
                ticket = inner.next_ticket;
                inner.threads.insert(tid, ticket);
                self.freed.notify_all();
            }
            inner = sync::wait(&self.freed, inner);
        }
        inner.threads.insert(tid, 0);
        Some(Served {
            threads: self,
            tid,
            has_waited: ticket != 0,
        })
    }

    /// The same where nobody else serves the thread yet.
    fn resume(&self, tid: i32) -> Served<'_> {
        sync::lock(&self.inner).threads.insert(tid, 0);
        Served {
            threads: self,
            tid,
            has_waited: false,
        }
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let waiting = sync::lock(&self.threads.inner).threads.remove(&self.tid);
        if waiting.is_some_and(|ticket| ticket != 0) {
            self.threads.freed.notify_all();
        }
    }
}

/// Calls under way, and what is kept of former ones.
#[derive(Debug, Default)]
pub struct Replay {
    threads: Threads,
}

impl Replay {
    /// Begins a call, in a call slot, once no other worker serves the thread's former one; `None` when the caller waits for it no more.
    pub fn enter<'a>(
        &'a self,
        journal: &'a Journal,
        call_slot: &'a CallSlot,
        call: CallKey,
        is_waiting: impl Fn() -> bool,
    ) -> Option<ThreadTurn<'a>> {
        let served = self.threads.enter(call.tid, &is_waiting)?;
        let kept = journal.change().kept(call.tid).cloned();
        if (served.has_waited || kept.is_some()) && !is_waiting() {
            return None;
        }
        Some(ThreadTurn::new(journal, call_slot, call, kept, served))
    }

    /// Goes on with a call that a former broker began: nobody else serves its thread yet.
    pub fn resume<'a>(
        &'a self,
        journal: &'a Journal,
        call_slot: &'a CallSlot,
        call: CallKey,
    ) -> ThreadTurn<'a> {
        let served = self.threads.resume(call.tid);
        let kept = journal.change().kept(call.tid).cloned();
        ThreadTurn::new(journal, call_slot, call, kept, served)
    }

    /// Forgets what is kept for threads that are gone.
    pub fn retain(&self, journal: &Journal, is_alive: impl Fn(i32) -> bool) {
        let kept: Vec<i32> = journal.change().kept_threads().collect();
        for tid in kept.into_iter().filter(|tid| !is_alive(*tid)) {
            if !sync::lock(&self.threads.inner).threads.contains_key(&tid) {
                journal.change().record_op(Op::ForgetThread(tid));
            }
        }
    }
}

/// The right to serve a thread's call. Dropped without an end, it leaves what is kept as it was: the caller had given up.
#[must_use = "the thread's next call waits until it is dropped"]
#[derive(Debug)]
pub struct ThreadTurn<'a> {
    journal: &'a Journal,
    call_slot: &'a CallSlot,
    call: CallKey,
    /// Whether anything is kept for the thread.
    had: bool,
    /// What is kept of this very call, as far as it is still wanted.
    earlier: Option<Kept>,
    /// Let go of last.
    _served: Served<'a>,
}

impl<'a> ThreadTurn<'a> {
    fn new(
        journal: &'a Journal,
        call_slot: &'a CallSlot,
        call: CallKey,
        kept: Option<Kept>,
        served: Served<'a>,
    ) -> Self {
        Self {
            journal,
            call_slot,
            call,
            had: kept.is_some(),
            earlier: kept.filter(|kept| kept.key == call),
            _served: served,
        }
    }

    /// Whether something is kept of a former try: it may be taken only while the caller is known to wait for this one.
    #[must_use]
    pub fn is_repetition(&self) -> bool {
        self.earlier.is_some()
    }

    /// The result of the same call that could not be delivered. `arg` is the struct as it was read now: where it is neither
    /// as at the first try nor as that try's answer left it, this is another call, and nothing is kept of the first.
    pub fn undelivered(&mut self, arg: &[u8]) -> Option<Finished> {
        let is = |segments: &[Segment]| segments.first().is_some_and(|first| first.bytes == arg);
        let kept = self.earlier.take()?;
        let finished = &kept.finished;
        match kept.end {
            End::Undelivered if is(&finished.before) || is(&finished.after) => {
                let finished = finished.clone();
                // Kept until the answer is taken.
                self.earlier = Some(kept);
                Some(finished)
            }
            End::Answered if is(&finished.after) => {
                self.earlier = Some(kept);
                None
            }
            End::Undelivered | End::Answered => None,
        }
    }

    /// The answer that the same call was given, which may have been dropped unseen, if `is_current` finds its result in place.
    #[must_use]
    pub fn answered(&self, is_current: impl FnOnce(&Finished) -> bool) -> Option<Finished> {
        let kept = self.earlier.as_ref()?;
        (kept.end == End::Answered && is_current(&kept.finished)).then(|| kept.finished.clone())
    }

    /// Nobody waited for the result: it is kept for the repetition.
    pub fn keep_undelivered(mut self) {
        // The kernel did not take it: a successor must not believe that.
        self.call_slot.set_phase(Phase::Serving);
        let mut change = self.journal.change();
        if change.open_in(self.call_slot.number()).is_some() {
            change.record_op(Op::Settle(self.call_slot.number(), Some(End::Undelivered)));
        }
        self.had = false;
    }

    /// The kernel took the answer.
    pub fn delivered(mut self, finished: &Finished) {
        let end = match finished.changes_account {
            ChangesAccount::Yes => Some(End::Answered),
            ChangesAccount::No => None,
        };
        let mut change = self.journal.change();
        if change.open_in(self.call_slot.number()).is_some() {
            change.record_op(Op::Settle(self.call_slot.number(), end));
        } else {
            change.record_op(Op::Keep(self.call.tid, end));
        }
        self.had = false;
    }

    /// The caller was told that the call has failed, and the kernel took that answer: nothing of it is given again.
    pub fn failed(mut self) {
        let mut change = self.journal.change();
        if change.open_in(self.call_slot.number()).is_some() {
            change.record_op(Op::Settle(self.call_slot.number(), None));
        } else {
            change.record_op(Op::Keep(self.call.tid, None));
        }
        self.had = false;
    }

    /// The call was refused, and the kernel took that answer.
    pub fn refused(mut self) {
        self.earlier = None;
    }
}

impl Drop for ThreadTurn<'_> {
    fn drop(&mut self) {
        if self.had && self.earlier.is_none() {
            self.journal
                .change()
                .record_op(Op::Keep(self.call.tid, None));
        }
        // Before the thread's next call is begun: a successor would take how far this one's answer had come for that call's.
        self.call_slot.clear();
    }
}

#[cfg(test)]
mod tests;
