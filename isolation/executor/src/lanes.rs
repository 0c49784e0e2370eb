//! Each call once: what is under way on a lane, and its last answer. The numbers of a lane's calls rise.
//!
//! ```text
//! (nothing) ── begin ─▶ Running(call) ── finish ─▶ Done(call, answer) ── begin(another) ─▶ Running(another)
//!                          │ begin(same): waits          │ begin(same): the answer again
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use driver::Ticket;

/// A finished call's message.
pub type Answer = Arc<[u8]>;

/// More lanes than any broker has threads: a broken one must not fill the memory.
const MOST_LANES: usize = 4096;

/// The lanes of one container.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: Mutex<HashMap<u32, Lane>>,
    finished: Condvar,
}

#[derive(Debug)]
enum Lane {
    Running,
    Done(u64, Answer),
}

/// What is to be done with a ticket.
#[derive(Debug)]
pub enum Begun<'a> {
    /// The call is to be made, and its answer given to [`Turn::finish`].
    Turn(Turn<'a>),
    /// It was made: this is its answer.
    Answered(Answer),
    /// The lane has answered a later call: whoever asks is a broker of the past.
    Past,
    /// There are too many lanes.
    TooMany,
}

/// A call under way. Dropped unfinished, nothing was made, and the lane is free.
#[derive(Debug)]
pub struct Turn<'a> {
    lanes: &'a Lanes,
    ticket: Ticket,
}

impl Lanes {
    /// Takes a ticket's turn, waiting for what is under way on its lane.
    pub fn begin(&self, ticket: Ticket) -> Begun<'_> {
        let turn = Turn {
            lanes: self,
            ticket,
        };
        if ticket.call == 0 {
            return Begun::Turn(turn);
        }
        let mut lanes = self.lock();
        loop {
            match lanes.get(&ticket.lane) {
                Some(Lane::Done(call, answer)) if *call == ticket.call => {
                    return Begun::Answered(Arc::clone(answer));
                }
                // The same call, or one that a killed broker left behind.
                Some(Lane::Running) => {
                    lanes = self
                        .finished
                        .wait(lanes)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Some(Lane::Done(call, _)) if *call > ticket.call => return Begun::Past,
                Some(Lane::Done(..)) => break,
                None if lanes.len() >= MOST_LANES => return Begun::TooMany,
                None => break,
            }
        }
        lanes.insert(ticket.lane, Lane::Running);
        Begun::Turn(turn)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Ends the turn; the lane remembers the answer until its next ticket.
    pub fn finish(self, answer: &Answer) {
        if self.ticket.call != 0 {
            let done = Lane::Done(self.ticket.call, Arc::clone(answer));
            self.lanes.lock().insert(self.ticket.lane, done);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.ticket.call == 0 {
            return;
        }
        let mut lanes = self.lanes.lock();
        if let Some(Lane::Running) = lanes.get(&self.ticket.lane) {
            lanes.remove(&self.ticket.lane);
        }
        drop(lanes);
        self.lanes.finished.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    fn ticket(lane: u32, call: u64) -> Ticket {
        Ticket { lane, call }
    }

    fn turn(begun: Begun<'_>) -> Turn<'_> {
        match begun {
            Begun::Turn(turn) => turn,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_same_ticket_gets_the_same_answer_until_the_next() {
        let lanes = Lanes::default();
        turn(lanes.begin(ticket(1, 7))).finish(&Arc::from(&b"first"[..]));
        let Begun::Answered(answer) = lanes.begin(ticket(1, 7)) else {
            panic!("made twice")
        };
        assert_eq!(&*answer, b"first");
        turn(lanes.begin(ticket(2, 7))).finish(&Arc::from(&b"another lane"[..]));
        turn(lanes.begin(ticket(1, 8))).finish(&Arc::from(&b"second"[..]));
        assert!(matches!(lanes.begin(ticket(1, 7)), Begun::Past));
    }

    #[test]
    fn what_is_not_to_be_remembered_is_made_every_time() {
        let lanes = Lanes::default();
        for _ in 0..2 {
            turn(lanes.begin(Ticket::UNREMEMBERED)).finish(&Arc::from(&b""[..]));
        }
    }

    #[test]
    fn a_turn_that_made_nothing_leaves_the_lane_free() {
        let lanes = Lanes::default();
        drop(turn(lanes.begin(ticket(1, 7))));
        turn(lanes.begin(ticket(1, 7))).finish(&Arc::from(&b""[..]));
    }

    #[test]
    fn a_call_under_way_is_waited_for_and_made_once() {
        let lanes = Lanes::default();
        let made = AtomicU32::new(0);
        let first = turn(lanes.begin(ticket(3, 9)));
        std::thread::scope(|scope| {
            let (begins, begun) = mpsc::channel();
            let again: Vec<_> = (0..4)
                .map(|_| {
                    let begins = begins.clone();
                    let (lanes, made) = (&lanes, &made);
                    scope.spawn(move || {
                        begins.send(()).unwrap();
                        match lanes.begin(ticket(3, 9)) {
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
    fn lanes_are_bounded() {
        let lanes = Lanes::default();
        for lane in 0..u32::try_from(MOST_LANES).unwrap() {
            turn(lanes.begin(ticket(lane, 1))).finish(&Arc::from(&b""[..]));
        }
        assert!(matches!(lanes.begin(ticket(u32::MAX, 1)), Begun::TooMany));
        turn(lanes.begin(ticket(0, 2))).finish(&Arc::from(&b""[..]));
    }
}
