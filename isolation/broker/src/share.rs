//! The container's share of its cards' time: what its tenants may do to their scheduler, and the governor that holds it.
//!
//! ```text
//! serve ──▶ tenant ──▶ gates ◀── levers ◀── governor ◀── terms (grant, journal, cards/<uuid>/rules.json)
//!             │                     │          └──▶ slots (compute::table)
//!             └──▶ objects (State) ◀┘
//! ```
//!
//! A container whose terms are the driver's own (native, normal priority) has no governor: no thread, no slot, no call of the
//! broker's own.

pub mod gates;
pub mod levers;
pub mod objects;
mod preempts;
pub(crate) mod tenant;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ledger::CardSlot;
use plan::{Policy, Priority, Terms};

use gates::Gates;
use preempts::Preempts;

/// The share of one container.
#[derive(Debug, Default)]
pub struct Share {
    /// See [`Gates`].
    pub gates: Gates,
    preempts: Preempts,
    held: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By card, in the grant's order.
    terms: Vec<Terms>,
    /// [`objects::Scheduling::generation`], as it was last seen.
    generation: u64,
}

/// Whether terms leave everything to the driver.
#[must_use]
pub fn is_native(terms: &Terms) -> bool {
    terms.policy == Policy::Native && terms.priority == Priority::Normal
}

/// A call that waits for its time.
struct Held<'a>(&'a AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Share {
    /// Whether a governor holds the container's share of the card.
    #[must_use]
    pub fn is_governed(&self, card: CardSlot) -> bool {
        let inner = self.lock();
        let terms = inner.terms.get(usize::from(card.0));
        terms.is_some_and(|terms| !is_native(terms))
    }

    /// How many calls wait for a gate or for their turn to preempt: their threads do nothing.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.held.load(Ordering::SeqCst) + self.gates.waiting()
    }

    fn hold(&self) -> Held<'_> {
        self.held.fetch_add(1, Ordering::SeqCst);
        Held(&self.held)
    }

    /// The container's channel groups and channels are of this generation.
    pub(crate) fn objects_are(&self, generation: u64) {
        let mut inner = self.lock();
        if inner.generation != generation {
            inner.generation = generation;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
