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
//! What is kept of finished calls is journaled state ([`crate::state`]), so it outlives a broker; who serves whom is not.
//!
//! A broker that was killed while it gave an answer leaves the same doubt as a signal that woke the waiter: if the call no
//! longer waits, its answer counts as taken. The blocks were written back before, so a repetition shows the answer's.
//!
//! "The same" means thread, system call, registers, and the struct as it was read: either as at the first try, or as that
//! try's answer left it, since the answer is written before it is sent.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use driver::Segment;

use crate::journal::Journal;
use crate::shared_state::{CallSlot, Phase};
use crate::state::{CallKey, ChangesAccount, End, Finished, Kept, Op};

/// Calls under way, by thread: a thread makes one call at a time.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    inner: Mutex<Inner>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// A worker serves the thread's call; a repetition waits under this ticket (0: none does).
    threads: HashMap<i32, u64>,
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
        let mut inner = self.lock();
        let mut ticket = 0;
        while let Some(waiting) = inner.threads.get(&tid).copied() {
            if ticket == 0 || waiting != ticket {
                // Of a thread's calls the kernel has one waiting: among workers that send each other away, its own remains.
                if !is_waiting() {
                    return None;
                }
                inner.next_ticket += 1;
                ticket = inner.next_ticket;
                inner.threads.insert(tid, ticket);
                self.freed.notify_all();
            }
            inner = self
                .freed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
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
        self.lock().threads.insert(tid, 0);
        Served {
            threads: self,
            tid,
            has_waited: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let waiting = self.threads.lock().threads.remove(&self.tid);
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
            if !self.threads.lock().threads.contains_key(&tid) {
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
mod tests {
    use super::*;
    use crate::reservation::Reservation;
    use crate::shared_state::SharedState;
    use crate::shared_state::tests::put;
    use crate::state::{Answer, Begun, Numbering, State};
    use driver::{Caller, FileId, FileKind};
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Arc, mpsc};

    const CALL: [u64; 3] = [3, 0xc020_462b, 0x1000];

    fn call(tid: i32, registers: [u64; 3]) -> CallKey {
        CallKey::new(tid, 16, registers)
    }

    fn segments(byte: u8) -> Arc<Vec<Segment>> {
        Arc::new(vec![Segment {
            address: 0x1000,
            link: None,
            bytes: vec![byte; 4],
        }])
    }

    struct Fixture {
        replay: Replay,
        journal: Journal,
        call_slot: CallSlot,
        other_call_slot: CallSlot,
    }

    impl Fixture {
        fn new() -> Self {
            Self::on(Journal::memfd().unwrap())
        }

        fn on(journal: OwnedFd) -> Self {
            let state = || State::new(ledger::Ledger::new(&[]), Numbering::default());
            let shared_state = SharedState::open(SharedState::memfd().unwrap()).unwrap();
            Self {
                replay: Replay::default(),
                journal: Journal::open(journal, state).unwrap(),
                call_slot: shared_state.call_slot(1).unwrap(),
                other_call_slot: shared_state.call_slot(1).unwrap(),
            }
        }

        fn enter(&self, call: CallKey) -> ThreadTurn<'_> {
            self.replay
                .enter(&self.journal, &self.call_slot, call, || true)
                .unwrap()
        }

        /// What the driver made of the turn's call: 1 became 2.
        fn execute(&self, call: CallKey) -> Finished {
            let mut change = self.journal.change();
            let begun = Begun {
                number: change.next_call(),
                key: call,
                caller: Caller {
                    tgid: call.tid,
                    tid: call.tid,
                },
                file: FileId(1),
                kind: FileKind::Ctl,
                cmd: call.cmd,
                before: segments(1),
                fds: Vec::new(),
                reservation: Reservation::Nothing,
            };
            change.record_op(Op::Begin(0, Box::new(begun)));
            change.record_op(Op::End(
                0,
                Answer {
                    ret: 0,
                    after: segments(2),
                    replaces: None,
                    changes_account: ChangesAccount::Yes,
                },
            ));
            change.open_in(0).unwrap().finished.clone().unwrap()
        }

        fn with_undelivered(call: CallKey) -> Self {
            let fixture = Self::new();
            let turn = fixture.enter(call);
            fixture.execute(call);
            turn.keep_undelivered();
            fixture
        }

        /// Whether the call, with this struct, gets the record; its answer is delivered.
        fn take(&self, call: CallKey, arg: u8) -> bool {
            let mut turn = self.enter(call);
            match turn.undelivered(&[arg; 4]) {
                Some(finished) => {
                    turn.delivered(&finished);
                    true
                }
                None => {
                    turn.refused();
                    false
                }
            }
        }
    }

    #[test]
    fn the_same_call_made_again_gets_the_record_once() {
        let fixture = Fixture::with_undelivered(call(7, CALL));
        let dirty = call(7, [3, 0xffff_0000_c020_462b, 0x1000]);
        assert!(fixture.take(dirty, 1));
        assert!(!fixture.take(dirty, 1));
    }

    #[test]
    fn a_struct_that_holds_the_answer_already_is_the_same_call() {
        assert!(Fixture::with_undelivered(call(7, CALL)).take(call(7, CALL), 2));
    }

    #[test]
    fn another_call_drops_the_record() {
        let first = call(7, CALL);
        for (other, arg) in [
            (call(7, [4, 0xc020_462b, 0x1000]), 1),
            (call(7, [3, 0xc010_4629, 0x1000]), 1),
            (call(7, [3, 0xc020_462b, 0x2000]), 1),
            (CallKey::new(7, 9, CALL), 1),
            (first, 9),
        ] {
            let fixture = Fixture::with_undelivered(first);
            assert!(!fixture.take(other, arg), "{other:?}");
            assert!(!fixture.take(first, 1), "the record is gone: {other:?}");
        }
    }

    #[test]
    fn a_caller_that_gave_up_again_finds_its_record_next_time() {
        let fixture = Fixture::with_undelivered(call(7, CALL));
        drop(fixture.enter(call(7, CALL)));
        let mut turn = fixture.enter(call(7, CALL));
        assert!(turn.undelivered(&[1; 4]).is_some());
        turn.keep_undelivered();
        assert!(fixture.take(call(7, CALL), 1));
    }

    #[test]
    fn threads_do_not_share_records() {
        let fixture = Fixture::with_undelivered(call(7, CALL));
        assert!(!fixture.take(call(8, CALL), 1));
        assert!(fixture.take(call(7, CALL), 1));
        fixture.replay.retain(&fixture.journal, |tid| tid != 7);
        assert!(fixture.journal.change().kept(7).is_none());
    }

    #[test]
    fn an_answer_is_given_again_only_where_it_still_stands() {
        for (is_current, arg, given) in [(true, 2, true), (false, 2, false), (true, 1, false)] {
            let fixture = Fixture::new();
            let turn = fixture.enter(call(7, CALL));
            let finished = fixture.execute(call(7, CALL));
            turn.delivered(&finished);
            let mut turn = fixture.enter(call(7, CALL));
            assert!(turn.undelivered(&[arg; 4]).is_none());
            assert_eq!(turn.answered(|_| is_current).is_some(), given);
        }
    }

    #[test]
    fn a_repetition_waits_for_the_first_try_and_only_the_one_whose_caller_waits() {
        let fixture = Fixture::new();
        let (fixture, first) = (&fixture, fixture.enter(call(7, CALL)));
        let is_waited_for = |ticket| fixture.replay.threads.lock().threads.get(&7) == Some(&ticket);
        let is_given_up = AtomicBool::new(false);
        let (reply, heard) = mpsc::channel();
        let repeat = &move |number: u8, is_waiting: &dyn Fn() -> bool| {
            let turn = fixture.replay.enter(
                &fixture.journal,
                &fixture.call_slot,
                call(7, CALL),
                is_waiting,
            );
            let result = turn.map(|mut turn| turn.undelivered(&[1; 4]).is_some());
            reply.send((number, result)).unwrap();
        };
        std::thread::scope(|scope| {
            let waits_no_more = || !is_given_up.load(Ordering::SeqCst);
            scope.spawn(move || repeat(1, &waits_no_more));
            while !is_waited_for(1) {
                std::thread::yield_now();
            }
            is_given_up.store(true, Ordering::SeqCst);
            scope.spawn(move || repeat(2, &|| true));
            assert_eq!(heard.recv().unwrap(), (1, None));
            // One that the kernel gave to its worker before the others, and that comes here behind them.
            repeat(3, &|| false);
            assert_eq!(heard.recv().unwrap(), (3, None));
            fixture.execute(call(7, CALL));
            first.keep_undelivered();
            assert_eq!(heard.recv().unwrap(), (2, Some(true)));
        });
    }

    #[test]
    fn of_workers_that_send_each_other_away_the_callers_own_remains() {
        let fixture = Fixture::new();
        let (fixture, first) = (&fixture, fixture.enter(call(7, CALL)));
        let requested = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let own = scope.spawn(|| {
                let turn = fixture.replay.enter(
                    &fixture.journal,
                    &fixture.call_slot,
                    call(7, CALL),
                    || true,
                );
                turn.is_some()
            });
            let late = scope.spawn(|| {
                // It still waits when it is asked first, and no more when it is asked again.
                let is_waiting = || requested.fetch_add(1, Ordering::SeqCst) == 0;
                let turn = fixture.replay.enter(
                    &fixture.journal,
                    &fixture.other_call_slot,
                    call(7, CALL),
                    is_waiting,
                );
                turn.is_some()
            });
            assert!(!late.join().unwrap());
            drop(first);
            assert!(own.join().unwrap());
        });
    }

    #[test]
    fn a_worker_that_is_late_leaves_what_is_kept_of_the_newer_call() {
        let fixture = Fixture::with_undelivered(call(7, CALL));
        let late = call(7, [3, 1, 2]);
        assert!(
            fixture
                .replay
                .enter(&fixture.journal, &fixture.other_call_slot, late, || false)
                .is_none()
        );
        let mut turn = fixture.enter(call(7, CALL));
        assert!(turn.is_repetition());
        assert!(turn.undelivered(&[1; 4]).is_some());
    }

    #[test]
    fn no_call_slot_tells_of_a_call_whose_thread_makes_the_next() {
        let fixture = Fixture::new();
        let first = fixture.enter(call(7, CALL));
        let finished = fixture.execute(call(7, CALL));
        put(&fixture.call_slot, 99);
        fixture.call_slot.set_phase(Phase::Answering);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| {
                let next = call(7, [3, 1, 2]);
                let _turn =
                    fixture
                        .replay
                        .enter(&fixture.journal, &fixture.other_call_slot, next, || true);
                fixture.call_slot.call()
            });
            first.delivered(&finished);
            assert_eq!(next.join().unwrap(), None);
        });
    }

    #[test]
    fn a_successor_takes_what_was_kept() {
        let file = Journal::memfd().unwrap();
        let fixture = Fixture::on(file.try_clone().unwrap());
        let turn = fixture.enter(call(7, CALL));
        fixture.execute(call(7, CALL));
        turn.keep_undelivered();
        drop(fixture);
        let fixture = Fixture::on(file);
        assert!(fixture.take(call(7, CALL), 1));
        assert!(!fixture.take(call(7, CALL), 1));
    }
}
