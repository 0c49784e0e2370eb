//! Each call once: what is under way on a call slot, and its last answer. The numbers of a call slot's calls rise.
//!
//! ```text
//! (nothing) ── begin ─▶ Running(call) ── finish ─▶ Done(call, answer) ── begin(another) ─▶ Running(another)
//!                          │ begin(same): waits          │ begin(same): the answer again
//!                          └─ dropped ─▶ what was there before
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};

use driver::Ticket;
use sys::sync;
use sys::sync::lock;

/// A finished call's message.
pub type Answer = Arc<[u8]>;

/// More call slots than any broker has threads, each with that of the calls before its own ([`Ticket::before`]): a broken one must not fill
/// the memory.
const MOST_CALL_SLOTS: usize = 2 * 4096;

/// The call slots of one container.
#[derive(Debug, Default)]
pub struct CallSlots {
    call_slots: Mutex<HashMap<u32, CallSlot>>,
    finished: Condvar,
}

#[derive(Debug)]
enum CallSlot {
    Running,
    Done(u64, Answer),
}

/// What is to be done with a ticket.
#[derive(Debug)]
pub enum Begun<'a> {
    /// The call is to be made, and its answer given to [`SlotTurn::finish`].
    Turn(SlotTurn<'a>),
    /// It was made: this is its answer.
    Answered(Answer),
    /// The call slot has answered a later call: whoever asks is a broker of the past.
    Past,
    /// There are too many call slots.
    TooMany,
}

/// A call under way. Dropped unfinished, nothing was made, and the call slot is as it was: it still knows which tickets are past.
#[derive(Debug)]
pub struct SlotTurn<'a> {
    call_slots: &'a CallSlots,
    ticket: Ticket,
    former: Option<CallSlot>,
}

impl CallSlots {
    /// Takes a ticket's turn, waiting for what is under way on its call slot.
    pub fn begin(&self, ticket: Ticket) -> Begun<'_> {
        let turn = |former| {
            Begun::Turn(SlotTurn {
                call_slots: self,
                ticket,
                former,
            })
        };
        if ticket.call == 0 {
            return turn(None);
        }
        let mut call_slots = lock(&self.call_slots);
        loop {
            match call_slots.get(&ticket.call_slot) {
                Some(CallSlot::Done(call, answer)) if *call == ticket.call => {
                    return Begun::Answered(Arc::clone(answer));
                }
                // The same call, or one that a killed broker left behind.
                Some(CallSlot::Running) => {
                    call_slots = sync::wait(&self.finished, call_slots);
                }
                Some(CallSlot::Done(call, _)) if *call > ticket.call => return Begun::Past,
                Some(CallSlot::Done(..)) => break,
                None if call_slots.len() >= MOST_CALL_SLOTS => return Begun::TooMany,
                None => break,
            }
        }
        turn(call_slots.insert(ticket.call_slot, CallSlot::Running))
    }
}

impl SlotTurn<'_> {
    /// Ends the turn; the call slot remembers the answer until its next ticket.
    pub fn finish(mut self, answer: &Answer) {
        if self.ticket.call != 0 {
            let done = CallSlot::Done(self.ticket.call, Arc::clone(answer));
            lock(&self.call_slots.call_slots).insert(self.ticket.call_slot, done);
            self.call_slots.finished.notify_all();
            // What runs there from now on is another one's to end.
            self.ticket.call = 0;
        }
    }
}

impl Drop for SlotTurn<'_> {
    fn drop(&mut self) {
        if self.ticket.call == 0 {
            return;
        }
        let mut call_slots = lock(&self.call_slots.call_slots);
        match self.former.take() {
            Some(former) => call_slots.insert(self.ticket.call_slot, former),
            None => call_slots.remove(&self.ticket.call_slot),
        };
        drop(call_slots);
        self.call_slots.finished.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    fn ticket(call_slot: u32, call: u64) -> Ticket {
        Ticket { call_slot, call }
    }

    fn turn(begun: Begun<'_>) -> SlotTurn<'_> {
        match begun {
            Begun::Turn(turn) => turn,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_same_ticket_gets_the_same_answer_until_the_next() {
        let call_slots = CallSlots::default();
        turn(call_slots.begin(ticket(1, 7))).finish(&Arc::from(&b"first"[..]));
        let Begun::Answered(answer) = call_slots.begin(ticket(1, 7)) else {
            panic!("made twice")
        };
        assert_eq!(&*answer, b"first");
        turn(call_slots.begin(ticket(2, 7))).finish(&Arc::from(&b"another slot"[..]));
        turn(call_slots.begin(ticket(1, 8))).finish(&Arc::from(&b"second"[..]));
        assert!(matches!(call_slots.begin(ticket(1, 7)), Begun::Past));
    }

    #[test]
    fn a_call_before_another_gets_the_same_answer_beside_it() {
        let call_slots = CallSlots::default();
        let call = ticket(1, 7);
        turn(call_slots.begin(call.before())).finish(&Arc::from(&b"before"[..]));
        turn(call_slots.begin(call)).finish(&Arc::from(&b"itself"[..]));
        for (ticket, needed) in [(call.before(), &b"before"[..]), (call, b"itself")] {
            let Begun::Answered(answer) = call_slots.begin(ticket) else {
                panic!("made twice")
            };
            assert_eq!(&*answer, needed);
        }
    }

    #[test]
    fn what_is_not_to_be_remembered_is_made_every_time() {
        let call_slots = CallSlots::default();
        for _ in 0..2 {
            turn(call_slots.begin(Ticket::UNREMEMBERED)).finish(&Arc::from(&b""[..]));
        }
    }

    #[test]
    fn a_turn_that_made_nothing_leaves_the_call_slot_free() {
        let call_slots = CallSlots::default();
        drop(turn(call_slots.begin(ticket(1, 7))));
        turn(call_slots.begin(ticket(1, 7))).finish(&Arc::from(&b""[..]));
        drop(turn(call_slots.begin(ticket(1, 8))));
        let Begun::Answered(_) = call_slots.begin(ticket(1, 7)) else {
            panic!("made twice")
        };
        assert!(matches!(call_slots.begin(ticket(1, 6)), Begun::Past));
    }

    #[test]
    fn a_call_under_way_is_waited_for_and_made_once() {
        let call_slots = CallSlots::default();
        let made = AtomicU32::new(0);
        let first = turn(call_slots.begin(ticket(3, 9)));
        std::thread::scope(|scope| {
            let (begins, begun) = mpsc::channel();
            let again: Vec<_> = (0..4)
                .map(|_| {
                    let begins = begins.clone();
                    let (call_slots, made) = (&call_slots, &made);
                    scope.spawn(move || {
                        begins.send(()).unwrap();
                        match call_slots.begin(ticket(3, 9)) {
                            Begun::Turn(_) => made.fetch_add(1, Ordering::SeqCst),
                            Begun::Answered(answer) => u32::from(answer[0]),
                            other => panic!("{other:?}"),
                        }
                    })
                })
                .collect();
            for _ in 0..4 {
                begun.recv().unwrap();
            }
            first.finish(&Arc::from(&[42_u8][..]));
            for thread in again {
                assert_eq!(thread.join().unwrap(), 42);
            }
        });
        assert_eq!(made.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn call_slots_are_bounded() {
        let call_slots = CallSlots::default();
        for call_slot in 0..u32::try_from(MOST_CALL_SLOTS).unwrap() {
            turn(call_slots.begin(ticket(call_slot, 1))).finish(&Arc::from(&b""[..]));
        }
        assert!(matches!(
            call_slots.begin(ticket(u32::MAX, 1)),
            Begun::TooMany
        ));
        turn(call_slots.begin(ticket(0, 2))).finish(&Arc::from(&b""[..]));
    }
}
