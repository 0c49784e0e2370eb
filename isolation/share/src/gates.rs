//! The gates of a container's cards, as its tenants meet them: a call that would set a channel running waits while its card's gate is
//! closed. So does the making of a channel in a group that is on its runlist.
//!
//! ```text
//!          begin_close          closed
//!   open ─────────────▶ closing ───────▶ closed      a passing call has a moment to end before the gate's own call is made,
//!    ▲                                      │        a later one waits, and one that ends after the close is made good:
//!    └──────────────────────────────────────┘        the governor closes again what it may have set running
//!              opened
//! ```
//!
//! A gate that could not be closed lets no call through either: what a tenant causes is answered at its own cost. Nobody waits longer
//! than [`LONGEST`], for which no gate stays closed: a call that has waited for gates for so long, in all, is refused. One that has passed
//! and then waits for something else passes once more before it is begun. The waiting call is in no journal yet: if the broker is killed, its successor
//! serves it afresh.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ledger::CardSlot;
use sys::sync;

/// As long as a gate may be closed.
pub(crate) const LONGEST: Duration = Duration::from_nanos(compute::CLOSED_MAX_NS);
/// Between two looks whether the caller still waits.
const LOOK: Duration = Duration::from_millis(50);
/// A passing call has this long to come back from the driver before a gate closes regardless: as long as most take. More would let a
/// tenant keep its gate open by calls that are slow.
const PERMIT_FOR: Duration = Duration::from_millis(1);
/// A call that frees has this long to wait for a gate that is turning.
const TURNING: Duration = Duration::from_millis(100);

/// The gates of one container.
#[derive(Debug, Default)]
pub struct Gates {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    closed: Vec<CardSlot>,
    permit: BTreeMap<CardSlot, usize>,
    /// Cards on which a call has ended, after the gate had closed, that had passed it before.
    disturbed: Vec<CardSlot>,
    /// A knob of the gate is being pulled.
    turning: bool,
    waiting: usize,
}

/// Why a call was not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Nobody waits for it any more.
    GivenUp,
    /// The gate did not open in time.
    TooLong,
}

/// Whoever is told that a call has disturbed a closed gate.
pub trait Reported: std::fmt::Debug + Sync {
    /// It has.
    fn disturbed(&self);
}

/// A call that sets a channel running, from when it was let through until it is executed.
#[derive(Debug)]
#[must_use]
pub struct Permit<'a> {
    gates: &'a Gates,
    card: CardSlot,
    reported: Option<&'a dyn Reported>,
    /// Its call goes to the driver: before that it disturbs nothing.
    is_begun: bool,
}

impl Permit<'_> {
    pub(crate) fn is_valid(&self) -> bool {
        !self.gates.is_closed(self.card)
    }

    /// Its call goes to the driver.
    pub(crate) fn begun(self) -> Self {
        let mut permit = self;
        permit.is_begun = true;
        permit
    }

    /// Gives it back, before its call is begun, for another one: waits for the gate where that has closed since.
    pub(crate) fn again(
        self,
        until: Instant,
        still_waits: impl Fn() -> bool,
    ) -> Result<Self, Held> {
        let (gates, card, reported) = (self.gates, self.card, self.reported);
        drop(self);
        gates.pass(card, reported, until, still_waits)
    }
}

impl Gates {
    /// Lets a call through, waiting for the gate until then.
    ///
    /// # Errors
    /// [`Held`]
    pub fn pass<'a>(
        &'a self,
        card: CardSlot,
        reported: Option<&'a dyn Reported>,
        until: Instant,
        still_waits: impl Fn() -> bool,
    ) -> Result<Permit<'a>, Held> {
        let mut inner = sync::lock(&self.inner);
        if inner.closed.contains(&card) {
            inner.waiting = inner.waiting.saturating_add(1);
            while inner.closed.contains(&card) {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    inner.waiting = inner.waiting.saturating_sub(1);
                    return Err(Held::TooLong);
                }
                inner = self.wait(inner, left.min(LOOK));
                drop(inner);
                let waits = still_waits();
                inner = sync::lock(&self.inner);
                if !waits {
                    inner.waiting = inner.waiting.saturating_sub(1);
                    return Err(Held::GivenUp);
                }
            }
            inner.waiting = inner.waiting.saturating_sub(1);
        }
        let permits = inner.permits_of(card);
        *permits = permits.saturating_add(1);
        Ok(Permit {
            gates: self,
            card,
            reported,
            is_begun: false,
        })
    }

    /// Whether a call that may have set running what is closed has ended since this was last asked.
    pub fn take_disturbed(&self, card: CardSlot) -> bool {
        let mut inner = sync::lock(&self.inner);
        let before = inner.disturbed.len();
        inner.disturbed.retain(|disturbed| *disturbed != card);
        inner.disturbed.len() != before
    }

    /// A knob of the gate is pulled for as long as this lives: what frees channels waits meanwhile, since a channel that ends under
    /// the knob fails it for all that it lists.
    pub fn turn(&self) -> Turning<'_> {
        sync::lock(&self.inner).turning = true;
        Turning(self)
    }

    /// Waits while a knob of the gate is pulled.
    pub fn let_turn(&self) {
        let until = Instant::now() + TURNING;
        let mut inner = sync::lock(&self.inner);
        while inner.turning {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            inner = self.wait(inner, left);
        }
    }

    /// The gate is about to close: from now on calls wait, and those that passed are let end.
    pub fn begin_close(&self, card: CardSlot) {
        let until = Instant::now() + PERMIT_FOR;
        let mut inner = sync::lock(&self.inner);
        if !inner.closed.contains(&card) {
            inner.closed.push(card);
        }
        while *inner.permits_of(card) > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            inner = self.wait(inner, left);
        }
    }

    /// The gate is open.
    pub fn opened(&self, card: CardSlot) {
        sync::lock(&self.inner)
            .closed
            .retain(|closed| *closed != card);
        self.changed.notify_all();
    }

    /// Whether it is closed, or about to be.
    #[must_use]
    pub fn is_closed(&self, card: CardSlot) -> bool {
        sync::lock(&self.inner).closed.contains(&card)
    }

    /// How many calls wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        sync::lock(&self.inner).waiting
    }

    fn wait<'a>(
        &'a self,
        inner: MutexGuard<'a, Inner>,
        longest: Duration,
    ) -> MutexGuard<'a, Inner> {
        sync::wait_for(&self.changed, inner, longest)
    }
}

impl Inner {
    fn permits_of(&mut self, card: CardSlot) -> &mut usize {
        self.permit.entry(card).or_default()
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut inner = sync::lock(&self.gates.inner);
        let permits = inner.permits_of(self.card);
        *permits = permits.saturating_sub(1);
        let disturbs = self.is_begun && inner.closed.contains(&self.card);
        if disturbs && !inner.disturbed.contains(&self.card) {
            inner.disturbed.push(self.card);
        }
        drop(inner);
        self.gates.changed.notify_all();
        if let Some(reported) = self.reported.filter(|_| disturbs) {
            reported.disturbed();
        }
    }
}

/// See [`Gates::turn`].
#[derive(Debug)]
#[must_use]
pub struct Turning<'a>(&'a Gates);

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        sync::lock(&self.0.inner).turning = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    const CARD: CardSlot = CardSlot(0);
    const OTHER: CardSlot = CardSlot(1);

    fn pass(gates: &Gates, card: CardSlot) -> Result<Permit<'_>, Held> {
        gates.pass(card, None, Instant::now() + LONGEST, || true)
    }

    fn reporting<'a>(gates: &'a Gates, count: &'a Count) -> Permit<'a> {
        let until = Instant::now() + LONGEST;
        gates.pass(CARD, Some(count), until, || true).unwrap()
    }

    #[test]
    fn calls_wait_for_their_cards_gate_and_no_other() {
        let gates = Gates::default();
        gates.begin_close(CARD);
        drop(pass(&gates, OTHER).unwrap());
        std::thread::scope(|scope| {
            let (reply, heard) = mpsc::channel();
            let gates = &gates;
            scope.spawn(move || {
                let permit = pass(gates, CARD).unwrap();
                reply.send(()).unwrap();
                drop(permit);
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
        let passed = gates.pass(CARD, None, Instant::now() + LONGEST, || false);
        assert_eq!(passed.err(), Some(Held::GivenUp));
        assert_eq!(gates.waiting(), 0);
    }

    #[derive(Debug, Default)]
    struct Count(AtomicUsize);

    impl Reported for Count {
        fn disturbed(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_call_that_passed_and_ends_after_the_close_is_reported_once() {
        let (gates, count) = (Gates::default(), Count::default());
        let permit = reporting(&gates, &count).begun();
        // It does not wait for it: that would be the tenant's to draw out.
        gates.begin_close(CARD);
        assert!(gates.is_closed(CARD) && !gates.take_disturbed(CARD));
        drop(permit);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(gates.take_disturbed(CARD) && !gates.take_disturbed(CARD));
        // One that ends while the gate is open disturbs nothing.
        gates.opened(CARD);
        drop(reporting(&gates, &count).begun());
        assert!(!gates.take_disturbed(CARD));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_permit_that_is_given_back_disturbs_nothing_and_waits_for_the_gate() {
        let (gates, count) = (Gates::default(), Count::default());
        let until = Instant::now() + LONGEST;
        let permit = reporting(&gates, &count).again(until, || true).unwrap();
        assert!(permit.is_valid());
        gates.begin_close(CARD);
        assert!(!permit.is_valid());
        std::thread::scope(|scope| {
            let passes = scope.spawn(|| permit.again(until, || true).unwrap());
            while gates.waiting() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(*sync::lock(&gates.inner).permits_of(CARD), 0);
            gates.opened(CARD);
            let permit = passes.join().unwrap();
            assert!(permit.is_valid());
            // Its call is refused, or given up, after the gate has closed once more.
            gates.begin_close(CARD);
            drop(permit);
        });
        assert_eq!(*sync::lock(&gates.inner).permits_of(CARD), 0);
        assert!(!gates.take_disturbed(CARD));
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn nobody_waits_longer_than_a_gate_may_be_closed_and_nobody_passes_a_closed_one() {
        let gates = Gates::default();
        gates.begin_close(CARD);
        let began = Instant::now();
        assert_eq!(pass(&gates, CARD).err(), Some(Held::TooLong));
        assert!(began.elapsed() >= LONGEST);
        assert_eq!(gates.waiting(), 0);
    }

    #[test]
    fn what_frees_waits_for_a_gate_that_turns_but_not_for_ever() {
        let gates = Gates::default();
        gates.let_turn();
        let turning = gates.turn();
        std::thread::scope(|scope| {
            let freed = scope.spawn(|| gates.let_turn());
            drop(turning);
            freed.join().unwrap();
        });
        let _never_ends = gates.turn();
        gates.let_turn();
    }
}
