//! The gates of a container's cards, as its tenants meet them: a call that would set a channel running waits while its card's gate is
//! closed. So does the making of a channel in a group that is on its runlist.
//!
//! ```text
//!          begin_close          closed
//!   open ─────────────▶ closing ───────▶ closed      a passing call is let end before the gate's own call is made,
//!    ▲                     │                │        and a later one waits
//!    └─────────────────────┴────────────────┘
//!              opened, or the driver refused
//! ```
//!
//! Nobody waits longer than [`LONGEST`]: no gate stays closed for so long, and a tenant must not pay for a governor that does not
//! come. The waiting call is in no journal yet: if the broker is killed, its successor serves it afresh.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledger::CardSlot;

/// As long as a gate may be closed.
const LONGEST: Duration = Duration::from_nanos(compute::CLOSED_MAX_NS);
/// Between two looks whether the caller still waits.
const LOOK: Duration = Duration::from_millis(50);
/// A passing call has this long to come back from the driver before a gate closes regardless.
const PASSING: Duration = Duration::from_millis(20);

/// The gates of one container.
#[derive(Debug, Default)]
pub struct Gates {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    closed: Vec<CardSlot>,
    passing: BTreeMap<CardSlot, usize>,
    waiting: usize,
}

/// A call that sets a channel running, from when it was let through until it is executed.
#[derive(Debug)]
#[must_use]
pub struct Passing<'a> {
    gates: &'a Gates,
    card: CardSlot,
}

impl Gates {
    /// Lets a call through, waiting for the gate; `None`: nobody waits for the call any more.
    pub fn pass(&self, card: CardSlot, still_waits: impl Fn() -> bool) -> Option<Passing<'_>> {
        let until = Instant::now() + LONGEST;
        let mut inner = self.lock();
        if inner.closed.contains(&card) {
            inner.waiting += 1;
            while inner.closed.contains(&card) {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    tracing::warn!(card = card.0, "a gate stays closed: a call passes it");
                    break;
                }
                inner = self.wait(inner, left.min(LOOK));
                drop(inner);
                let waits = still_waits();
                inner = self.lock();
                if !waits {
                    inner.waiting -= 1;
                    return None;
                }
            }
            inner.waiting -= 1;
        }
        *inner.passing_on(card) += 1;
        Some(Passing { gates: self, card })
    }

    /// The gate is about to close: from now on calls wait, and those that passed are let end.
    pub fn begin_close(&self, card: CardSlot) {
        let until = Instant::now() + PASSING;
        let mut inner = self.lock();
        if !inner.closed.contains(&card) {
            inner.closed.push(card);
        }
        while *inner.passing_on(card) > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            inner = self.wait(inner, left);
        }
    }

    /// The gate is open.
    pub fn opened(&self, card: CardSlot) {
        self.lock().closed.retain(|closed| *closed != card);
        self.changed.notify_all();
    }

    /// Whether it is closed, or about to be.
    #[must_use]
    pub fn is_closed(&self, card: CardSlot) -> bool {
        self.lock().closed.contains(&card)
    }

    /// How many calls wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().waiting
    }

    fn wait<'a>(
        &'a self,
        inner: MutexGuard<'a, Inner>,
        longest: Duration,
    ) -> MutexGuard<'a, Inner> {
        let waited = self.changed.wait_timeout(inner, longest);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn passing_on(&mut self, card: CardSlot) -> &mut usize {
        self.passing.entry(card).or_default()
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        *self.gates.lock().passing_on(self.card) -= 1;
        self.gates.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const CARD: CardSlot = CardSlot(0);
    const OTHER: CardSlot = CardSlot(1);

    #[test]
    fn calls_wait_for_their_cards_gate_and_no_other() {
        let gates = Gates::default();
        gates.begin_close(CARD);
        drop(gates.pass(OTHER, || true).unwrap());
        std::thread::scope(|scope| {
            let (said, heard) = mpsc::channel();
            let gates = &gates;
            scope.spawn(move || {
                let passing = gates.pass(CARD, || true).unwrap();
                said.send(()).unwrap();
                drop(passing);
            });
            while gates.waiting() == 0 {
                std::thread::yield_now();
            }
            heard.try_recv().unwrap_err();
            gates.opened(CARD);
            heard.recv().unwrap();
        });
        assert_eq!(gates.waiting(), 0);
    }

    #[test]
    fn a_caller_that_gave_up_is_not_let_through() {
        let gates = Gates::default();
        gates.begin_close(CARD);
        assert!(gates.pass(CARD, || false).is_none());
        assert_eq!(gates.waiting(), 0);
    }

    #[test]
    fn a_gate_waits_for_the_call_that_passes_it_but_not_for_ever() {
        let gates = Gates::default();
        let passing = gates.pass(CARD, || true).unwrap();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| gates.begin_close(CARD));
            while !gates.is_closed(CARD) {
                std::thread::yield_now();
            }
            drop(passing);
            closing.join().unwrap();
        });
        let stuck = gates.pass(OTHER, || true).unwrap();
        gates.begin_close(OTHER);
        assert!(began.elapsed() >= PASSING);
        drop(stuck);
    }

    #[test]
    fn nobody_waits_longer_than_a_gate_may_be_closed() {
        let gates = Gates::default();
        gates.begin_close(CARD);
        let began = Instant::now();
        let passing = gates.pass(CARD, || true).unwrap();
        assert!(began.elapsed() >= LONGEST);
        drop(passing);
    }
}
