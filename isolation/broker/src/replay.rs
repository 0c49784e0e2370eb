//! Exactly once: what a call had brought when its caller was interrupted before it got the answer.
//!
//! runc cannot set WAIT_KILLABLE_RECV, so any signal ends a caller's wait; the program (or the kernel, by SA_RESTART) then
//! makes the same call again, under a new id. The driver has executed it, so it must not execute it twice: the finished
//! result is kept, and given to the thread's next call if that is the same one. If it is another, the record is dropped; the
//! ledger holds what the driver made in either case.
//!
//! "The same" means thread, system call, registers, and the struct as it was read: either as at the first try, or as that
//! try's answer left it, since the answer may have been written before the signal was seen.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use driver::{NewFile, Segment};

/// A finished call whose caller has not got its answer.
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
}

/// Records by thread. A thread waits for one call at a time, so it has at most one.
#[derive(Debug, Default)]
pub struct Replay {
    records: Mutex<HashMap<i32, (CallKey, Finished)>>,
}

/// One ioctl by its registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallKey {
    tid: i32,
    fd: u32,
    cmd: u32,
    pointer: u64,
}

impl CallKey {
    /// The kernel truncates the descriptor and the command; what lies above them in the registers is the caller's dirt.
    #[must_use]
    pub fn new(tid: i32, fd: u64, cmd: u64, pointer: u64) -> Self {
        let low = |register: u64| u32::try_from(register & 0xffff_ffff).unwrap_or_default();
        Self {
            tid,
            fd: low(fd),
            cmd: low(cmd),
            pointer,
        }
    }
}

/// Threads that died with a record leave it behind; beyond this many, all are dropped.
const MOST_RECORDS: usize = 1024;

impl Replay {
    /// Keeps a result that could not be delivered.
    pub fn keep(&self, call: CallKey, finished: Finished) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() >= MOST_RECORDS {
            records.clear();
        }
        records.insert(call.tid, (call, finished));
    }

    /// Takes the thread's record if this call is the same one made again; a record of another call is dropped.
    pub fn take(&self, call: CallKey, arg: &[u8]) -> Option<Finished> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.is_empty() {
            return None;
        }
        let (key, finished) = records.remove(&call.tid)?;
        let same_struct =
            |segments: &[Segment]| segments.first().is_some_and(|first| first.bytes == arg);
        (key == call && (same_struct(&finished.before) || same_struct(&finished.after)))
            .then_some(finished)
    }

    /// Forgets what is kept for threads that are gone.
    pub fn retain(&self, is_alive: impl Fn(i32) -> bool) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.retain(|tid, _| is_alive(*tid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tid: i32, [fd, cmd, pointer]: [u64; 3]) -> CallKey {
        CallKey::new(tid, fd, cmd, pointer)
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
        }
    }

    #[test]
    fn the_same_call_made_again_gets_the_record_once() {
        let replay = Replay::default();
        replay.keep(call(7, [3, 0xc020_462b, 0x1000]), finished(1, 2));
        let again = call(7, [3, 0xffff_0000_c020_462b, 0x1000]);
        assert!(replay.take(again, &[1; 4]).is_some());
        assert!(replay.take(again, &[1; 4]).is_none());
    }

    #[test]
    fn a_struct_that_holds_the_answer_already_is_the_same_call() {
        let replay = Replay::default();
        let first = call(7, [3, 0xc020_462b, 0x1000]);
        replay.keep(first, finished(1, 2));
        assert!(replay.take(first, &[2; 4]).is_some());
    }

    #[test]
    fn another_call_drops_the_record() {
        let first = call(7, [3, 0xc020_462b, 0x1000]);
        for (other, arg) in [
            (call(7, [4, 0xc020_462b, 0x1000]), [1; 4]),
            (call(7, [3, 0xc010_4629, 0x1000]), [1; 4]),
            (call(7, [3, 0xc020_462b, 0x2000]), [1; 4]),
            (first, [9; 4]),
        ] {
            let replay = Replay::default();
            replay.keep(first, finished(1, 2));
            assert!(replay.take(other, &arg).is_none());
            assert!(replay.take(first, &[1; 4]).is_none(), "the record is gone");
        }
    }

    #[test]
    fn threads_do_not_share_records() {
        let replay = Replay::default();
        replay.keep(call(7, [3, 1, 0x1000]), finished(1, 2));
        assert!(replay.take(call(8, [3, 1, 0x1000]), &[1; 4]).is_none());
        assert!(replay.take(call(7, [3, 1, 0x1000]), &[1; 4]).is_some());
    }
}
