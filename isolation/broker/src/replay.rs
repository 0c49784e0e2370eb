//! Exactly once: one call of a thread at a time, and what a call had brought when its caller never saw the answer.
//!
//! runc cannot set WAIT_KILLABLE_RECV, so any signal ends a caller's wait; the program (or the kernel, by SA_RESTART) then
//! makes the same call again, under a new id. The driver may have executed it, so it must not execute it twice.
//!
//! ```text
//!            enter                       deliver failed
//! (nothing) ───────▶ under way ──────────────────────────▶ undelivered ──┐ the thread's next call:
//!     ▲                 │  ▲ └──── answered, books ───▶ answered ────────┤ the same → gets the record
//!     └── answered ─────┘  └─────────────────────────────────────────────┘ another  → record dropped
//! ```
//!
//! - *Under way*: the repetition can arrive while a worker still executes the first try. It waits for that worker; of several
//!   repetitions only the newest waits, since the caller has given up the others.
//! - *Undelivered*: the kernel said that nobody waited for the answer. The repetition gets it.
//! - *Answered*: the kernel took the answer, but a waiter that a signal had just woken drops it unseen (kernel/seccomp.c,
//!   `seccomp_do_user_notification`: the signal's error wins over an answer that comes before the waiter has the lock). Nothing
//!   tells this from a delivered answer, so the repetition is executed, and if it is refused *because its first try still
//!   stands* (the handle exists already, or is gone already), the first answer is given. Kept for calls that book.
//!
//! "The same" means thread, system call, registers, and the struct as it was read: either as at the first try, or as that
//! try's answer left it, since the answer is written before it is sent.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use driver::{NewFile, Segment};

/// A finished call.
#[derive(Debug)]
pub struct Finished {
    /// What the ioctl returns.
    pub ret: i32,
    /// The blocks as the tenant gave them.
    pub before: Vec<Segment>,
    /// The blocks as they are to be written back.
    pub after: Vec<Segment>,
    /// A file that is to be put in place of a descriptor.
    pub new_file: Option<NewFile>,
    /// Whether the account changed with it.
    pub books: Books,
}

/// Whether a call changes the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Books {
    /// It does: it must not be executed twice.
    Yes,
    /// It does not.
    No,
}

/// One system call by its registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallKey {
    tid: i32,
    nr: i32,
    fd: u32,
    cmd: u32,
    pointer: u64,
}

impl CallKey {
    /// The kernel truncates the descriptor and the command; what lies above them in the registers is the caller's dirt.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Undelivered,
    Answered,
}

#[derive(Debug)]
enum Slot {
    /// A worker serves the thread's call; the newest repetition waits under this ticket (0: none does).
    UnderWay {
        waiting: u64,
    },
    Kept(CallKey, End, Finished),
}

/// Calls under way and kept results, by thread: a thread makes one call at a time, so it has at most one of either.
#[derive(Debug, Default)]
pub struct Replay {
    inner: Mutex<Inner>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    threads: HashMap<i32, Slot>,
    next_ticket: u64,
}

/// Records of threads that died stay until the next beat; beyond this many no further result is kept.
const MOST_RECORDS: usize = 1024;

impl Replay {
    /// Begins a call. Waits while another worker serves the thread's former call; `None` when a newer call of the thread came
    /// meanwhile, or is over already: the caller waits for this one no more. A worker can be that late, and must not take what
    /// is kept of the newer call; `is_waiting` asks the kernel.
    pub fn enter(&self, call: CallKey, is_waiting: impl FnOnce() -> bool) -> Option<Turn<'_>> {
        let mut inner = self.lock();
        let mut ticket = 0;
        while let Some(Slot::UnderWay { waiting }) = inner.threads.get(&call.tid) {
            if ticket == 0 {
                inner.next_ticket += 1;
                ticket = inner.next_ticket;
                inner
                    .threads
                    .insert(call.tid, Slot::UnderWay { waiting: ticket });
                // An older repetition gives up.
                self.freed.notify_all();
            } else if *waiting != ticket {
                return None;
            }
            inner = self
                .freed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if inner.threads.contains_key(&call.tid) && !is_waiting() {
            return None;
        }
        let former = inner
            .threads
            .insert(call.tid, Slot::UnderWay { waiting: 0 });
        let earlier = match former {
            Some(Slot::Kept(key, end, finished)) if key == call => Some((end, finished)),
            Some(Slot::Kept(..) | Slot::UnderWay { .. }) | None => None,
        };
        Some(Turn {
            replay: self,
            call,
            earlier,
        })
    }

    /// Forgets what is kept for threads that are gone.
    pub fn retain(&self, is_alive: impl Fn(i32) -> bool) {
        self.lock()
            .threads
            .retain(|tid, slot| matches!(slot, Slot::UnderWay { .. }) || is_alive(*tid));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to serve a thread's call. Dropped without an end, it leaves what is kept as it was: the caller had given up.
#[must_use = "the thread's next call waits until it is dropped"]
#[derive(Debug)]
pub struct Turn<'a> {
    replay: &'a Replay,
    call: CallKey,
    earlier: Option<(End, Finished)>,
}

impl Turn<'_> {
    /// Whether something is kept of a former try: it may be taken only while the caller is known to wait for this one.
    pub fn is_repetition(&self) -> bool {
        self.earlier.is_some()
    }

    /// The result of the same call that could not be delivered. `arg` is the struct as it was read now: where it is neither
    /// as at the first try nor as that try's answer left it, this is another call, and nothing is kept of the first.
    pub fn undelivered(&mut self, arg: &[u8]) -> Option<Finished> {
        let is = |segments: &[Segment]| segments.first().is_some_and(|first| first.bytes == arg);
        match self.earlier.take()? {
            (End::Undelivered, finished) if is(&finished.before) || is(&finished.after) => {
                Some(finished)
            }
            (End::Answered, finished) if is(&finished.after) => {
                self.earlier = Some((End::Answered, finished));
                None
            }
            (End::Undelivered | End::Answered, _) => None,
        }
    }

    /// The answer that the same call was given, which may have been dropped unseen, if `stands` finds its result in place.
    pub fn answered(&mut self, stands: impl FnOnce(&Finished) -> bool) -> Option<Finished> {
        self.earlier
            .take_if(|(end, finished)| *end == End::Answered && stands(finished))
            .map(|(_, finished)| finished)
    }

    /// Nobody waited for the result: it is kept for the repetition.
    pub fn keep_undelivered(self, finished: Finished) {
        self.keep(End::Undelivered, finished);
    }

    /// The kernel took the answer.
    pub fn delivered(mut self, finished: Finished) {
        match finished.books {
            Books::Yes => self.keep(End::Answered, finished),
            Books::No => self.earlier = None,
        }
    }

    /// The call was refused, and the kernel took that answer.
    pub fn refused(mut self) {
        self.earlier = None;
    }

    fn keep(mut self, end: End, finished: Finished) {
        self.earlier = Some((end, finished));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut inner = self.replay.lock();
        let tid = self.call.tid;
        let kept = self
            .earlier
            .take()
            .filter(|_| inner.threads.len() <= MOST_RECORDS)
            .map(|(end, finished)| Slot::Kept(self.call, end, finished));
        let former = match kept {
            Some(slot) => inner.threads.insert(tid, slot),
            None => inner.threads.remove(&tid),
        };
        drop(inner);
        if matches!(former, Some(Slot::UnderWay { waiting }) if waiting != 0) {
            self.replay.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const CALL: [u64; 3] = [3, 0xc020_462b, 0x1000];

    fn call(tid: i32, registers: [u64; 3]) -> CallKey {
        CallKey::new(tid, 16, registers)
    }

    fn finished(before: u8, after: u8) -> Finished {
        let segment = |byte| {
            vec![Segment {
                address: 0x1000,
                link: None,
                bytes: vec![byte; 4],
            }]
        };
        Finished {
            ret: 0,
            before: segment(before),
            after: segment(after),
            new_file: None,
            books: Books::Yes,
        }
    }

    fn with_undelivered(call: CallKey) -> Replay {
        let replay = Replay::default();
        replay
            .enter(call, || true)
            .unwrap()
            .keep_undelivered(finished(1, 2));
        replay
    }

    fn take(replay: &Replay, call: CallKey, arg: u8) -> bool {
        let mut turn = replay.enter(call, || true).unwrap();
        let taken = turn.undelivered(&[arg; 4]).is_some();
        turn.refused();
        taken
    }

    #[test]
    fn the_same_call_made_again_gets_the_record_once() {
        let replay = with_undelivered(call(7, CALL));
        let dirty = call(7, [3, 0xffff_0000_c020_462b, 0x1000]);
        assert!(take(&replay, dirty, 1));
        assert!(!take(&replay, dirty, 1));
    }

    #[test]
    fn a_struct_that_holds_the_answer_already_is_the_same_call() {
        assert!(take(&with_undelivered(call(7, CALL)), call(7, CALL), 2));
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
            let replay = with_undelivered(first);
            assert!(!take(&replay, other, arg), "{other:?}");
            assert!(!take(&replay, first, 1), "the record is gone: {other:?}");
        }
    }

    #[test]
    fn a_caller_that_gave_up_again_finds_its_record_next_time() {
        let replay = with_undelivered(call(7, CALL));
        drop(replay.enter(call(7, CALL), || true).unwrap());
        assert!(take(&replay, call(7, CALL), 1));
    }

    #[test]
    fn threads_do_not_share_records() {
        let replay = with_undelivered(call(7, CALL));
        assert!(!take(&replay, call(8, CALL), 1));
        assert!(take(&replay, call(7, CALL), 1));
    }

    #[test]
    fn an_answer_is_given_again_only_where_it_still_stands() {
        for (stands, arg, given) in [(true, 2, true), (false, 2, false), (true, 1, false)] {
            let replay = Replay::default();
            replay
                .enter(call(7, CALL), || true)
                .unwrap()
                .delivered(finished(1, 2));
            let mut turn = replay.enter(call(7, CALL), || true).unwrap();
            assert!(turn.undelivered(&[arg; 4]).is_none());
            assert_eq!(turn.answered(|_| stands).is_some(), given);
        }
    }

    #[test]
    fn a_repetition_waits_for_the_first_try_and_only_the_newest_one_does() {
        let replay = Replay::default();
        let (replay, first) = (&replay, replay.enter(call(7, CALL), || true).unwrap());
        let is_waited_for = |ticket| matches!(replay.lock().threads.get(&7), Some(Slot::UnderWay { waiting }) if *waiting == ticket);
        std::thread::scope(|scope| {
            let (said, heard) = mpsc::channel();
            let repeat = |number: u8| {
                let said = said.clone();
                scope.spawn(move || {
                    let turn = replay.enter(call(7, CALL), || true);
                    let result = turn.map(|mut turn| turn.undelivered(&[1; 4]).is_some());
                    said.send((number, result)).unwrap();
                });
            };
            repeat(1);
            while !is_waited_for(1) {
                std::thread::yield_now();
            }
            repeat(2);
            assert_eq!(heard.recv().unwrap(), (1, None));
            first.keep_undelivered(finished(1, 2));
            assert_eq!(heard.recv().unwrap(), (2, Some(true)));
        });
    }

    #[test]
    fn a_worker_that_is_late_leaves_what_is_kept_of_the_newer_call() {
        let replay = Replay::default();
        replay
            .enter(call(7, CALL), || true)
            .unwrap()
            .keep_undelivered(finished(1, 2));
        assert!(replay.enter(call(7, [3, 1, 2]), || false).is_none());
        let mut turn = replay.enter(call(7, CALL), || true).unwrap();
        assert!(turn.is_repetition());
        assert!(turn.undelivered(&[1; 4]).is_some());
    }
}
