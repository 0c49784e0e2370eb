//! What a broker's threads write where a successor finds it: calls received and not finished, counters, the heartbeat.
//!
//! A thread waits for its next call with the kernel writing into the thread's *call slot*, in a shared memfd. So a call whose
//! broker is killed in the very moment of receiving it is not lost: its identity is in the call slot, and whoever knows it may
//! answer.
//!
//! ```text
//! page 0: magic, version, heartbeat, counters …     call slot n, at 4096 + 128 n:
//!                                                   10 words the notification (word 0: its identity, 0: none)
//!                                                    1 word  the listener that it came from
//!                                                    1 word  the phase
//!                                                    1 word  since when it is at the driver (0: it is not)
//!                                                    1 word  that moment again, once somebody was told that it hangs
//! ```
//!
//! A call slot's identity is cleared after its call is settled in the journal, and the phase is reset before the next is received.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sys::seccomp::{NOTIFICATION_WORDS, Notification};
use sys::shared::{Shared, memfd};
use sys::sync;

const MAGIC: u64 = u64::from_le_bytes(*b"cgpubrd\0");
/// Raised when the layout changes.
const VERSION: u64 = 1;

const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 8;
const HEARTBEAT_AT: usize = 16;
/// Call slots from here on were never taken. Reading their memory would make it.
const UNUSED_AT: usize = 24;
const COUNTERS_AT: usize = 512;
/// Room for counters.
pub const COUNTERS: usize = 256;

const CALL_SLOTS_AT: usize = 4096;
const CALL_SLOT_BYTES: usize = 128;
const LISTENER_AT: usize = NOTIFICATION_WORDS * 8;
const PHASE_AT: usize = LISTENER_AT + 8;
const SINCE_AT: usize = PHASE_AT + 8;
const REPORTED_AT: usize = SINCE_AT + 8;
/// As many calls can be under way in one container, at all its listeners together.
pub const CALL_SLOTS: u32 = 4096;
const BYTES: usize = CALL_SLOTS_AT + CALL_SLOTS as usize * CALL_SLOT_BYTES;

/// How far the answer of a call slot's call has come. It matters when the call no longer waits and its broker is dead: was it
/// answered, or given up?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not answered.
    Serving,
    /// A result is written back, and is being answered.
    Answering,
    /// A refusal, or the kernel's own execution, is being answered.
    Refusing,
}

impl Phase {
    fn word(self) -> u64 {
        match self {
            Self::Serving => 0,
            Self::Answering => 1,
            Self::Refusing => 2,
        }
    }
}

/// The shared memory.
#[derive(Debug)]
pub struct SharedState {
    shared: Shared,
    call_slots: Mutex<CallSlots>,
}

/// Call slots that no thread has: those given back, and all from `unused` on. The lowest is taken first, so that few are used.
#[derive(Debug, Default)]
struct CallSlots {
    returned: BTreeSet<u32>,
    unused: u32,
}

impl SharedState {
    /// The memory of a new container.
    ///
    /// # Errors
    /// The system's.
    pub fn memfd() -> io::Result<OwnedFd> {
        let file = memfd(c"cgpu-shared-state", BYTES)?;
        let shared_state = Shared::map(file.try_clone()?, BYTES)?;
        for (at, value) in [(VERSION_AT, VERSION), (MAGIC_AT, MAGIC)] {
            if let Some(word) = shared_state.word(at) {
                word.store(value, Ordering::Release);
            }
        }
        Ok(file)
    }

    /// Takes the memory over: no process writes it now.
    ///
    /// # Errors
    /// The system's; `InvalidData` for memory of another layout.
    pub fn open(file: OwnedFd) -> io::Result<Arc<Self>> {
        let shared = Shared::map(file, BYTES)?;
        let is = |at, value| {
            shared
                .word(at)
                .is_some_and(|word| word.load(Ordering::Acquire) == value)
        };
        if !is(MAGIC_AT, MAGIC) || !is(VERSION_AT, VERSION) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Arc::new(Self {
            shared,
            call_slots: Mutex::default(),
        }))
    }

    /// The broker lives.
    pub fn heartbeat(&self) {
        if let Some(word) = self.shared.word(HEARTBEAT_AT) {
            word.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often [`SharedState::heartbeat`] was called.
    #[must_use]
    pub fn heartbeats(&self) -> u64 {
        self.shared
            .word(HEARTBEAT_AT)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn counter(&self, number: usize) -> Option<&AtomicU64> {
        let at = COUNTERS_AT.checked_add(number.checked_mul(8)?)?;
        (number < COUNTERS).then(|| self.shared.word(at))?
    }

    /// Adds to a counter; beyond [`COUNTERS`] none is kept.
    pub fn count(&self, number: usize, more: u64) {
        if let Some(word) = self.counter(number) {
            word.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Reads a counter.
    #[must_use]
    pub fn counted(&self, number: usize) -> u64 {
        self.counter(number)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// A call slot for a thread that waits on this listener; `None` when all are taken.
    #[must_use]
    pub fn call_slot(self: &Arc<Self>, listener: u64) -> Option<CallSlot> {
        let number = {
            let mut call_slots = self.call_slots();
            match call_slots.returned.pop_first() {
                Some(number) => number,
                None if call_slots.unused < CALL_SLOTS => {
                    let number = call_slots.unused;
                    call_slots.unused = number.saturating_add(1);
                    if let Some(word) = self.shared.word(UNUSED_AT) {
                        word.store(call_slots.unused.into(), Ordering::Release);
                    }
                    number
                }
                None => return None,
            }
        };
        let call_slot = self.at(number);
        if let Some(word) = call_slot.word(LISTENER_AT) {
            word.store(listener, Ordering::Relaxed);
        }
        Some(call_slot)
    }

    /// The call slots in which a former broker has left a call, and those `also` named. Call it once, before any call slot is taken.
    #[must_use]
    pub fn left_behind(self: &Arc<Self>, also: impl Fn(u32) -> bool) -> Vec<CallSlot> {
        let mut left = Vec::new();
        let mut call_slots = self.call_slots();
        let unused = self
            .shared
            .word(UNUSED_AT)
            .map_or(0, |word| word.load(Ordering::Acquire));
        call_slots.unused = u32::try_from(unused).unwrap_or(CALL_SLOTS).min(CALL_SLOTS);
        for number in 0..call_slots.unused {
            let has_call = self
                .notification(number)
                .is_some_and(|words| Notification::written(words).is_some());
            if has_call || also(number) {
                left.push(self.at(number));
            } else {
                call_slots.returned.insert(number);
            }
        }
        left
    }

    fn notification(&self, call_slot: u32) -> Option<&[AtomicU64; NOTIFICATION_WORDS]> {
        let words = self.shared.words(start_of(call_slot), NOTIFICATION_WORDS)?;
        words.try_into().ok()
    }

    fn at(self: &Arc<Self>, number: u32) -> CallSlot {
        CallSlot {
            shared_state: Arc::clone(self),
            number,
        }
    }

    fn call_slots(&self) -> std::sync::MutexGuard<'_, CallSlots> {
        sync::lock(&self.call_slots)
    }
}

/// A call that is at the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtDriver {
    /// Its call slot.
    pub call_slot: u32,
    /// Since when, as [`now_ms`] counts.
    pub since_ms: u64,
    /// Whether it was told of with [`SharedState::set_reported`].
    pub is_reported: bool,
}

/// Milliseconds since the host's start; never 0.
#[must_use]
pub fn now_ms() -> u64 {
    (sys::clock::now_ns() / 1_000_000).max(1)
}

impl SharedState {
    /// A call slot's call goes to the driver. One that a former broker has sent keeps its time.
    pub fn goes_to_driver(&self, call_slot: u32) {
        if let Some(word) = self.shared.word(word_of(call_slot, SINCE_AT))
            && word.load(Ordering::Relaxed) == 0
        {
            word.store(now_ms(), Ordering::Relaxed);
        }
    }

    /// It has come back. Since when it was there, if somebody was told that it hangs.
    pub fn is_back(&self, call_slot: u32) -> Option<u64> {
        let since = self.shared.word(word_of(call_slot, SINCE_AT))?;
        let reported = self.shared.word(word_of(call_slot, REPORTED_AT))?;
        let since_ms = since.swap(0, Ordering::Relaxed);
        (since_ms > 0 && reported.load(Ordering::Relaxed) == since_ms).then_some(since_ms)
    }

    /// The calls at the driver.
    #[must_use]
    pub fn at_driver(&self) -> Vec<AtDriver> {
        let unused = self.call_slots().unused;
        let word = |at| {
            let word = self.shared.word(at);
            word.map_or(0, |word| word.load(Ordering::Relaxed))
        };
        (0..unused)
            .map(|call_slot| {
                let since_ms = word(word_of(call_slot, SINCE_AT));
                AtDriver {
                    call_slot,
                    since_ms,
                    is_reported: word(word_of(call_slot, REPORTED_AT)) == since_ms,
                }
            })
            .filter(|call| call.since_ms > 0)
            .collect()
    }

    /// Somebody was told that the call which is at the driver since then hangs.
    pub fn set_reported(&self, call_slot: u32, since_ms: u64) {
        if let Some(word) = self.shared.word(word_of(call_slot, REPORTED_AT)) {
            word.store(since_ms, Ordering::Relaxed);
        }
    }
}

fn start_of(call_slot: u32) -> usize {
    CALL_SLOTS_AT.saturating_add((call_slot as usize).saturating_mul(CALL_SLOT_BYTES))
}

/// Where a word of a call slot is.
fn word_of(call_slot: u32, at: usize) -> usize {
    start_of(call_slot).saturating_add(at)
}

/// One thread's place in the shared state.
#[derive(Debug)]
pub struct CallSlot {
    shared_state: Arc<SharedState>,
    number: u32,
}

impl CallSlot {
    /// Its number, from 0.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Where the kernel writes the next call. Resets the phase.
    #[must_use]
    pub fn for_next_call(&self) -> Option<&[AtomicU64; NOTIFICATION_WORDS]> {
        self.set_phase(Phase::Serving);
        self.notification()
    }

    /// The call that was received and not finished.
    #[must_use]
    pub fn call(&self) -> Option<Notification> {
        Notification::written(self.notification()?)
    }

    /// The listener that it came from.
    #[must_use]
    pub fn listener(&self) -> u64 {
        self.word(LISTENER_AT)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Says how far its call's answer has come.
    pub fn set_phase(&self, phase: Phase) {
        if let Some(word) = self.word(PHASE_AT) {
            word.store(phase.word(), Ordering::Release);
        }
    }

    /// How far it had come.
    #[must_use]
    pub fn phase(&self) -> Phase {
        let word = self
            .word(PHASE_AT)
            .map_or(0, |word| word.load(Ordering::Acquire));
        [Phase::Answering, Phase::Refusing]
            .into_iter()
            .find(|phase| phase.word() == word)
            .unwrap_or(Phase::Serving)
    }

    /// The call is finished.
    pub fn clear(&self) {
        let _reported_by_whoever_had_it_back = self.shared_state.is_back(self.number);
        if let Some([identity, ..]) = self.notification() {
            identity.store(0, Ordering::Release);
        }
    }

    fn notification(&self) -> Option<&[AtomicU64; NOTIFICATION_WORDS]> {
        self.shared_state.notification(self.number)
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.shared_state.shared.word(word_of(self.number, at))
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        self.clear();
        self.shared_state.call_slots().returned.insert(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if the kernel had written a call with this identity.
    fn put(call_slot: &CallSlot, id: u64) {
        call_slot.notification().unwrap()[0].store(id, Ordering::Relaxed);
    }

    #[test]
    fn a_successor_finds_what_was_received() {
        let file = SharedState::memfd().unwrap();
        let first = SharedState::open(file.try_clone().unwrap()).unwrap();
        let call_slots: Vec<CallSlot> = (0..4).map(|_| first.call_slot(7).unwrap()).collect();
        put(&call_slots[2], 99);
        call_slots[2].set_phase(Phase::Answering);
        first.count(3, 5);
        // Killed: nothing is given back.
        let _call_slots = std::mem::ManuallyDrop::new(call_slots);
        let second = SharedState::open(file).unwrap();
        let left = second.left_behind(|number| number == 0);
        let found: Vec<_> = left
            .iter()
            .map(|call_slot| {
                (
                    call_slot.number(),
                    call_slot.call().is_some(),
                    call_slot.phase(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [(0, false, Phase::Serving), (2, true, Phase::Answering)]
        );
        assert_eq!(left[1].listener(), 7);
        assert_eq!(second.counted(3), 5);
        // The others are free, the lowest first.
        assert_eq!(second.call_slot(1).unwrap().number(), 1);
        drop(left);
        assert_eq!(second.call_slot(1).unwrap().number(), 0);
    }

    #[test]
    fn a_call_at_the_driver_keeps_its_time_and_is_reported_once_over_all_brokers() {
        let file = SharedState::memfd().unwrap();
        let first = SharedState::open(file.try_clone().unwrap()).unwrap();
        let call_slot = first.call_slot(7).unwrap();
        put(&call_slot, 99);
        first.goes_to_driver(0);
        let [call] = first.at_driver()[..] else {
            panic!("one call is there")
        };
        assert!(!call.is_reported && call.since_ms <= now_ms());
        first.set_reported(0, call.since_ms);
        let _killed = std::mem::ManuallyDrop::new(call_slot);
        let second = SharedState::open(file).unwrap();
        let left = second.left_behind(|_| false);
        second.goes_to_driver(0);
        let reported = AtDriver {
            is_reported: true,
            ..call
        };
        assert_eq!(second.at_driver(), [reported]);
        drop(left);
        assert_eq!(second.at_driver(), []);
    }

    #[test]
    fn memory_of_another_layout_is_refused() {
        let file = memfd(c"other", BYTES).unwrap();
        assert_eq!(
            SharedState::open(file).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
