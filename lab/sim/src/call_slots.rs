//! The last answer of every call slot: a call that is asked for again after a broker was replaced is not done twice.
//!
//! ```text
//! (none) ──begin──▶ under way ──finish──▶ done ──begin of a higher call──▶ under way …
//!                      │ └── the same ticket: waits for the end, and gets its answer
//!                      └──── dropped without an end: lost, and refused when it is asked for again
//! ```
//!
//! On one call slot the numbers of calls rise. A lower one is what a killed broker had sent before its successor went on: it
//! must not be executed any more. The numbers of native calls are the kernel's, in no order: only the last is known again.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use driver::Ticket;

use crate::latch::{Latch, Waited};
use crate::locked;

/// Call slots that one session may use: more than a broker has threads.
pub(crate) const MOST_CALL_SLOTS: u32 = 4096;

/// The call slots of a session; `A` is an answer.
#[derive(Debug)]
pub(crate) struct CallSlots<A>(Mutex<HashMap<u32, CallSlot<A>>>);

#[derive(Debug)]
struct CallSlot<A> {
    call: u64,
    state: State<A>,
}

#[derive(Debug)]
enum State<A> {
    /// Executed by some thread; the gate, once somebody waits for it, opens at its end.
    UnderWay(Option<Arc<Latch>>),
    Done(A),
    /// Its thread went without an answer.
    Lost,
}

/// What is to be done with a call.
#[derive(Debug)]
pub(crate) enum Begun<'a, A> {
    /// Execute it.
    Execute(UnderWay<'a, A>),
    /// It was executed.
    Answered(A),
    /// It must not be executed.
    Refused(Refused),
    /// The broker that asked has gone while the call was waited for.
    PeerGone,
}

/// Why a call is not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("call slot {0}: must be below {MOST_CALL_SLOTS}")]
    NoSuchCallSlot(u32),
    #[error("call {call} of call slot {call_slot}: the slot has gone on to call {now}")]
    Stale { call_slot: u32, call: u64, now: u64 },
    #[error("call {call} of call slot {call_slot}: its execution was cut off")]
    Lost { call_slot: u32, call: u64 },
    #[error("call {call} of call slot {call_slot}: nothing to wait with")]
    NoGate { call_slot: u32, call: u64 },
}

/// A call that its holder executes.
#[derive(Debug)]
#[must_use]
pub(crate) struct UnderWay<'a, A> {
    call_slots: &'a CallSlots<A>,
    ticket: Ticket,
}

impl<A> Default for CallSlots<A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<A: Clone> CallSlots<A> {
    /// Begins a call, or finds what came of it; waits as long as another thread executes it.
    pub(crate) fn begin(&self, ticket: Ticket, peer: Option<BorrowedFd<'_>>) -> Begun<'_, A> {
        let Ticket { call_slot, call } = ticket;
        let native = ticket.as_native();
        let number = ticket.slot_number();
        if number >= MOST_CALL_SLOTS {
            return Begun::Refused(Refused::NoSuchCallSlot(number));
        }
        loop {
            let mut call_slots = locked(&self.0);
            let known = call_slots.get_mut(&call_slot).filter(|known| match native {
                Some(_in_no_order) => known.call == call,
                None => known.call >= call,
            });
            let Some(known) = known else {
                let state = State::UnderWay(None);
                call_slots.insert(call_slot, CallSlot { call, state });
                return Begun::Execute(UnderWay {
                    call_slots: self,
                    ticket,
                });
            };
            if known.call > call {
                let now = known.call;
                return Begun::Refused(Refused::Stale {
                    call_slot,
                    call,
                    now,
                });
            }
            let latch = match &mut known.state {
                State::Done(answer) => return Begun::Answered(answer.clone()),
                State::Lost => return Begun::Refused(Refused::Lost { call_slot, call }),
                State::UnderWay(Some(latch)) => latch.clone(),
                State::UnderWay(latch @ None) => match Latch::closed() {
                    Ok(new) => latch.insert(Arc::new(new)).clone(),
                    Err(error) => {
                        tracing::error!(%error, "a call under way cannot be waited for");
                        return Begun::Refused(Refused::NoGate { call_slot, call });
                    }
                },
            };
            drop(call_slots);
            if latch.wait(peer) == Waited::PeerGone {
                return Begun::PeerGone;
            }
        }
    }
}

impl<A> UnderWay<'_, A> {
    /// Remembers the answer, for whoever waits for it and whoever asks again.
    pub(crate) fn finish(self, answer: A) {
        self.end(State::Done(answer));
    }

    fn end(&self, state: State<A>) {
        let before = {
            let mut call_slots = locked(&self.call_slots.0);
            call_slots
                .get_mut(&self.ticket.call_slot)
                .filter(|call_slot| {
                    call_slot.call == self.ticket.call
                        && matches!(call_slot.state, State::UnderWay(_))
                })
                .map(|call_slot| std::mem::replace(&mut call_slot.state, state))
        };
        if let Some(State::UnderWay(Some(latch))) = before {
            latch.open();
        }
    }
}

impl<A> Drop for UnderWay<'_, A> {
    fn drop(&mut self) {
        // Changes nothing after `finish`.
        self.end(State::Lost);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;

    fn ticket(call_slot: u32, call: u64) -> Ticket {
        Ticket { call_slot, call }
    }

    /// Executes a call as a connection does; what it answered, or why not.
    fn ask(
        call_slots: &CallSlots<u64>,
        executed: &AtomicU64,
        ticket: Ticket,
    ) -> Result<u64, Refused> {
        match call_slots.begin(ticket, None) {
            Begun::Execute(under_way) => {
                let answer = executed.fetch_add(1, Ordering::Relaxed);
                under_way.finish(answer);
                Ok(answer)
            }
            Begun::Answered(answer) => Ok(answer),
            Begun::Refused(reason) => Err(reason),
            Begun::PeerGone => panic!("there is no peer"),
        }
    }

    proptest! {
        #[test]
        fn every_call_is_executed_once_and_only_the_last_of_a_call_slot_is_known(
            requested in proptest::collection::vec((0..3_u32, 1..6_u64), 1..60)
        ) {
            let (call_slots, executed) = (CallSlots::default(), AtomicU64::new(0));
            let mut last: HashMap<u32, (u64, u64)> = HashMap::new();
            for (call_slot, call) in requested {
                let got = ask(&call_slots, &executed, ticket(call_slot, call));
                match last.get(&call_slot) {
                    Some((now, _answer)) if *now > call => {
                        prop_assert_eq!(got, Err(Refused::Stale { call_slot, call, now: *now }));
                    }
                    Some((now, answer)) if *now == call => prop_assert_eq!(got, Ok(*answer)),
                    _newer => {
                        let answer = executed.load(Ordering::Relaxed) - 1;
                        prop_assert_eq!(got, Ok(answer));
                        last.insert(call_slot, (call, answer));
                    }
                }
            }
        }
    }

    #[test]
    fn a_repetition_waits_for_the_call_that_is_under_way() {
        let call_slots = CallSlots::default();
        let Begun::Execute(first) = call_slots.begin(ticket(0, 1), None) else {
            panic!("a new call is executed");
        };
        std::thread::scope(|scope| {
            let repetitions: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| ask(&call_slots, &AtomicU64::new(100), ticket(0, 1))))
                .collect();
            first.finish(7);
            for repetition in repetitions {
                assert_eq!(repetition.join().unwrap(), Ok(7));
            }
        });
    }

    #[test]
    fn what_a_call_slot_goes_on_from_is_neither_known_nor_done_again() {
        let (call_slots, executed) = (CallSlots::default(), AtomicU64::new(0));
        let Begun::Execute(first) = call_slots.begin(ticket(2, 1), None) else {
            panic!("a new call is executed");
        };
        // Its broker is gone, and the next one does not ask for it.
        assert_eq!(ask(&call_slots, &executed, ticket(2, 5)), Ok(0));
        first.finish(9);
        assert_eq!(ask(&call_slots, &executed, ticket(2, 5)), Ok(0));
        let stale = Refused::Stale {
            call_slot: 2,
            call: 1,
            now: 5,
        };
        assert_eq!(ask(&call_slots, &executed, ticket(2, 1)), Err(stale));
    }

    #[test]
    fn a_call_that_was_cut_off_is_refused_and_call_slots_are_counted() {
        let (call_slots, executed) = (CallSlots::default(), AtomicU64::new(0));
        drop(call_slots.begin(ticket(0, 1), None));
        assert_eq!(
            ask(&call_slots, &executed, ticket(0, 1)),
            Err(Refused::Lost {
                call_slot: 0,
                call: 1
            })
        );
        assert_eq!(ask(&call_slots, &executed, ticket(0, 2)), Ok(0));
        assert_eq!(
            ask(&call_slots, &executed, ticket(MOST_CALL_SLOTS, 1)),
            Err(Refused::NoSuchCallSlot(MOST_CALL_SLOTS))
        );
    }

    #[test]
    fn the_last_native_call_is_known_again_whatever_its_number_and_beside_the_call_slot_s_others() {
        let (call_slots, executed) = (CallSlots::default(), AtomicU64::new(0));
        let native = |call| Ticket::native(1, call);
        assert_eq!(ask(&call_slots, &executed, native(900)), Ok(0));
        assert_eq!(ask(&call_slots, &executed, native(900)), Ok(0));
        assert_eq!(ask(&call_slots, &executed, ticket(1, 5)), Ok(1));
        assert_eq!(ask(&call_slots, &executed, native(3)), Ok(2));
        assert_eq!(ask(&call_slots, &executed, ticket(1, 5)), Ok(1));
        assert_eq!(
            ask(&call_slots, &executed, Ticket::native(MOST_CALL_SLOTS, 1)),
            Err(Refused::NoSuchCallSlot(MOST_CALL_SLOTS))
        );
    }

    #[test]
    fn a_call_before_another_is_known_again_beside_it() {
        let (call_slots, executed) = (CallSlots::default(), AtomicU64::new(0));
        for _ in 0..2 {
            assert_eq!(ask(&call_slots, &executed, ticket(1, 5).before()), Ok(0));
        }
        for _ in 0..2 {
            assert_eq!(ask(&call_slots, &executed, ticket(1, 5)), Ok(1));
        }
        assert_eq!(ask(&call_slots, &executed, ticket(1, 5).before()), Ok(0));
    }

    #[test]
    fn a_repetition_whose_broker_dies_does_not_wait_on() {
        let call_slots = CallSlots::<u64>::default();
        let Begun::Execute(first) = call_slots.begin(ticket(0, 1), None) else {
            panic!("a new call is executed");
        };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(theirs);
        let peer = std::os::fd::AsFd::as_fd(&ours);
        assert!(matches!(
            call_slots.begin(ticket(0, 1), Some(peer)),
            Begun::PeerGone
        ));
        first.finish(1);
    }
}
