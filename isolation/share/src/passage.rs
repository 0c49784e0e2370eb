//! What a call has passed on its way to the driver, from its judgement until it is executed.

use std::time::{Duration, Instant};

use crate::gates::{Held, Permit};
use crate::pace::Paced;

/// What a call that goes its way has passed.
#[derive(Debug, Default)]
pub struct Passage<'a> {
    /// Gates know of the call for as long as these live.
    pub(crate) gates: Vec<Permit<'a>>,
    /// How long the call may still wait for them.
    pub(crate) left: Duration,
    /// What the call takes is counted when this is dropped.
    pub(crate) paced: Option<Paced<'a>>,
}

impl Passage<'_> {
    /// Whether all of its gates are open still.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.gates.iter().all(Permit::is_valid)
    }

    /// Passes the gates once more, before the call is begun, and waits for those that have closed since.
    ///
    /// # Errors
    /// [`Held`]: the call is not to be begun.
    pub fn again(&mut self, still_waits: &dyn Fn() -> bool) -> Result<(), Held> {
        let until = Instant::now() + self.left;
        for permit in std::mem::take(&mut self.gates) {
            self.gates.push(permit.again(until, still_waits)?);
        }
        self.left = until.saturating_duration_since(Instant::now());
        Ok(())
    }

    /// Its call goes to the driver: what ends after a gate has closed may have set running what is closed.
    #[must_use]
    pub fn begun(self) -> Self {
        let gates = self.gates.into_iter().map(Permit::begun).collect();
        Self { gates, ..self }
    }

    /// What it has waited for until now was none of the driver's time.
    #[must_use]
    pub fn begins_now(self) -> Self {
        Self {
            paced: self.paced.map(Paced::begins_now),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use ledger::CardSlot;

    use super::*;
    use crate::gates::{Gates, LONGEST};

    const CARDS: [CardSlot; 3] = [CardSlot(0), CardSlot(1), CardSlot(2)];

    /// Of a call that sets channels of three cards running.
    fn passed(gates: &Gates) -> Passage<'_> {
        let until = Instant::now() + LONGEST;
        let pass = |card| gates.pass(card, None, until, || true).unwrap();
        Passage {
            gates: CARDS.into_iter().map(pass).collect(),
            left: LONGEST,
            paced: None,
        }
    }

    #[test]
    fn what_a_call_waits_for_its_gates_is_bounded_in_all() {
        let gates = Gates::default();
        let mut passage = passed(&gates);
        for card in CARDS {
            gates.begin_close(card);
            let left = passage.left;
            passage = std::thread::scope(|scope| {
                let passes = scope.spawn(|| {
                    passage.again(&|| true).unwrap();
                    passage
                });
                while gates.waiting() == 0 {
                    std::thread::yield_now();
                }
                gates.opened(card);
                passes.join().unwrap()
            });
            assert!(passage.left < left);
        }
        gates.begin_close(CARDS[1]);
        passage.left = Duration::ZERO;
        assert_eq!(passage.again(&|| true), Err(Held::TooLong));
    }

    #[test]
    fn a_call_that_is_not_begun_disturbs_none_of_its_gates() {
        let gates = Gates::default();
        let disturbed = || CARDS.map(|card| gates.take_disturbed(card));
        // It is denied when it has passed, or waits no more for one of them.
        let denied = passed(&gates);
        let mut given_up = passed(&gates);
        let begun = passed(&gates).begun();
        for card in CARDS {
            gates.begin_close(card);
        }
        gates.opened(CARDS[0]);
        assert_eq!(given_up.again(&|| false), Err(Held::GivenUp));
        gates.begin_close(CARDS[0]);
        drop((denied, given_up));
        assert_eq!(disturbed(), [false; 3]);
        drop(begun);
        assert_eq!(disturbed(), [true; 3]);
    }
}
