//! The container's share of its cards' time, as far as it is known: terms, gates, and who waits. Who holds it is above the container:
//! [`crate::govern`].
//!
//! ```text
//! call ───▶ tenant ──▶ gates ◀── knobs ◀── governor ◀── terms (grant, journal, cards/<uuid>/rules.json)
//!             │                     │          └──▶ records (compute::table)
//!             └─▶ scheduling (State) ◀┘
//! ```
//!
//! A container whose terms are the driver's own (native, normal priority) has no governor: no thread, no share record, no call of the
//! broker's own.

pub(crate) mod admission;
pub(crate) mod counted;
pub mod gates;
pub(crate) mod mailbox;
pub(crate) mod pace;
mod preempts;
mod status;
mod terms;
pub(crate) mod touched;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cards::{ComputeMode, OnShareLost};
use compute::Fail;
use ledger::CardSlot;
use plan::{CardRules, Policy, Priority, Terms};

use gates::Gates;
use mailbox::{Mailbox, Tell};
use pace::Pace;
use preempts::Preempts;
use status::Shown;
pub use terms::{Sources, TermsRefused};

/// How long the end of a broker waits for its gates to open: a knob takes a fraction of a millisecond, or the driver hangs.
const STOP: Duration = Duration::from_millis(500);
/// How long a hand-over does, within the time that its supervisor gives it.
const HAND_OVER: Duration = Duration::from_millis(10);

/// The share of one container.
#[derive(Debug, Default)]
pub struct Share {
    /// See [`Gates`].
    pub gates: Gates,
    pub(crate) preempts: Preempts,
    pub(crate) pace: Pace,
    pub(crate) held: AtomicUsize,
    pub(crate) sources: Sources,
    pub(crate) inner: Mutex<Inner>,
    pub(crate) shown: Mutex<Shown>,
    /// One change of terms at a time.
    pub(crate) changing: Mutex<()>,
    /// A card's knobs are being tried: one trial at a time, also where a driver does not answer any more.
    pub(crate) trying: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    /// By card, in the grant's order.
    pub(crate) cards: Vec<OnCard>,
    /// [`journal::state::Scheduling::generation`], as it was last seen.
    pub(crate) generation: u64,
    pub(crate) mailbox: Option<Arc<Mailbox>>,
}

/// What holds on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OnCard {
    pub(crate) terms: Terms,
    pub(crate) rules: CardRules,
}

/// Whether terms leave everything to the driver.
#[must_use]
pub fn is_native(terms: &Terms) -> bool {
    terms.policy == Policy::Native && terms.priority == Priority::Normal
}

/// A call that waits for its time.
pub(crate) struct Held<'a>(&'a AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl gates::Reported for Share {
    fn disturbed(&self) {
        if let Some(mailbox) = &self.lock().mailbox {
            mailbox.tell(Tell::Objects);
        }
    }
}

impl Share {
    /// The share of a container whose terms come from there. Nothing is held before a governor is started.
    #[must_use]
    pub fn new(sources: Sources) -> Self {
        Self {
            sources,
            ..Self::default()
        }
    }

    /// Gives up the share: every gate opens, and the share records go.
    pub fn stop(&self) {
        if let Some(mailbox) = self.take_mailbox() {
            mailbox.tell(Tell::Stop);
            if !mailbox.wait_for_end(STOP) {
                tracing::error!("the governor does not end: gates may be closed");
            }
        }
    }

    /// Leaves the share to a successor: every gate opens, for as long as the successor takes to begin.
    pub fn hand_over(&self) {
        if let Some(mailbox) = self.take_mailbox() {
            mailbox.tell(Tell::HandOver);
            let _its_successor_opens = mailbox.wait_for_end(HAND_OVER);
        }
    }

    /// Whether a governor holds the container's share of the card.
    #[must_use]
    pub fn is_governed(&self, card: CardSlot) -> bool {
        let inner = self.lock();
        let on = inner.cards.get(usize::from(card.0));
        on.is_some_and(|on| !is_native(&on.terms))
    }

    /// How many calls wait for a gate or for their turn to preempt: their threads do nothing.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let held = self.held.load(Ordering::SeqCst);
        held.saturating_add(self.gates.waiting())
    }

    /// The terms on a card.
    #[must_use]
    pub fn terms(&self, card: usize) -> Terms {
        let inner = self.lock();
        inner.cards.get(card).map_or(Terms::NATIVE, |on| on.terms)
    }

    /// The rules of a card.
    #[must_use]
    pub fn rules(&self, card: usize) -> CardRules {
        let inner = self.lock();
        inner
            .cards
            .get(card)
            .map(|on| on.rules.clone())
            .unwrap_or_default()
    }

    pub(crate) fn fail(&self) -> Fail {
        match self.sources.requests.fail {
            OnShareLost::Open => Fail::Open,
            OnShareLost::Closed => Fail::Closed,
        }
    }

    /// Whether the grant wants its terms held in full, and they are known not to be.
    pub(crate) fn is_broken(&self, card: CardSlot) -> bool {
        self.sources.requests.mode == ComputeMode::Strict
            && self.shown().holds(usize::from(card.0)) == Some(false)
    }

    pub(crate) fn wait_in_line(&self) -> Held<'_> {
        self.held.fetch_add(1, Ordering::SeqCst);
        Held(&self.held)
    }

    /// The container's channel groups and channels are of this generation.
    pub(crate) fn objects_are(&self, generation: u64) {
        let mut inner = self.lock();
        if inner.generation != generation {
            inner.generation = generation;
            if let Some(mailbox) = &inner.mailbox {
                mailbox.tell(Tell::Objects);
            }
        }
    }

    pub(crate) fn wants_governor(&self) -> bool {
        let inner = self.lock();
        inner.cards.iter().any(|on| !is_native(&on.terms))
    }

    pub(crate) fn is_wanting(&self) -> bool {
        self.wants_governor() && self.lock().mailbox.is_none()
    }

    pub(crate) fn take_mailbox(&self) -> Option<Arc<Mailbox>> {
        self.lock().mailbox.take()
    }

    pub(crate) fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
