//! The container's share of its cards' time: what its tenants may do to their scheduler, and the governor that holds it.
//!
//! ```text
//! call ───▶ tenant ──▶ gates ◀── knobs ◀── governor ◀── terms (grant, journal, cards/<uuid>/rules.json)
//!             │                     │          └──▶ records (compute::table)
//!             └─▶ scheduling (State) ◀┘
//! ```
//!
//! A container whose terms are the driver's own (native, normal priority) has no governor: no thread, no share record, no call of the
//! broker's own.

mod admission;
mod counted;
pub mod gates;
mod governor;
pub mod knobs;
mod pace;
mod preempts;
mod probe;
mod record;
mod status;
mod tables;
pub(crate) mod tenant;
mod terms;
mod touched;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cards::{ComputeMode, OnShareLost};
use compute::Fail;
use ledger::CardSlot;
use plan::{CardRules, Policy, Priority, Terms};

use crate::container::Container;
use gates::Gates;
use governor::{Mailbox, Tell};
use pace::Pace;
use preempts::Preempts;
pub use probe::ProbeError;
pub use record::{NotStrict, TooLow};
pub use status::ComputeStatus;
use status::Shown;
pub use terms::{NewTerms, Sources, TermsRefused};

/// How long the end of a broker waits for its gates to open: a knob takes a fraction of a millisecond, or the driver hangs.
const STOP: Duration = Duration::from_millis(500);
/// How long a hand-over does, within the time that its supervisor gives it.
const HAND_OVER: Duration = Duration::from_millis(10);

/// The share of one container.
#[derive(Debug, Default)]
pub struct Share {
    /// See [`Gates`].
    pub gates: Gates,
    preempts: Preempts,
    pace: Pace,
    held: AtomicUsize,
    sources: Sources,
    inner: Mutex<Inner>,
    shown: Mutex<Shown>,
    /// One change of terms at a time.
    changing: Mutex<()>,
    /// A card's knobs are being tried: one trial at a time, also where a driver does not answer any more.
    trying: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By card, in the grant's order.
    cards: Vec<OnCard>,
    /// [`crate::state::Scheduling::generation`], as it was last seen.
    generation: u64,
    mailbox: Option<Arc<Mailbox>>,
}

/// What holds on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OnCard {
    terms: Terms,
    rules: CardRules,
}

/// Why a container's share cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its share record, or the thread.
    #[error("the container's share of its cards' time cannot be held")]
    Start(#[source] std::io::Error),
    /// The grant says that the terms must be held, and that is not so, or not known to be.
    #[error(transparent)]
    NotStrict(#[from] NotStrict),
}

/// When a broker begins to hold a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// Before the container starts: there is time to find out what the card's knobs can hold.
    First,
    /// After another broker, while the container runs.
    TakenOver,
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

impl gates::Reported for Share {
    fn disturbed(&self) {
        if let Some(mailbox) = &self.lock().mailbox {
            mailbox.tell(Tell::Objects);
        }
    }
}

impl Share {
    /// The share of a container whose terms come from there. Nothing is held before [`Share::start`].
    #[must_use]
    pub fn new(sources: Sources) -> Self {
        Self {
            sources,
            ..Self::default()
        }
    }

    /// Begins to hold the share.
    ///
    /// # Errors
    /// [`Error`]; nothing holds it then.
    pub fn start(&self, container: &Arc<Container>, beginning: Beginning) -> Result<(), Error> {
        self.read_terms(container);
        if self.sources.requests.mode == ComputeMode::Strict {
            // Not with the state at hand: what is not known yet takes calls of the driver.
            let cards = self.lock().cards.clone();
            for (card, on) in cards.iter().enumerate() {
                record::check(container, card, &on.terms, beginning)?;
            }
        }
        self.govern(container).map_err(Error::Start)
    }

    /// Looks whether the cards' rules are others than before, and whether a governor is wanted that is not there. Called
    /// every second.
    pub fn reconcile(&self, container: &Arc<Container>) {
        if self.sources.have_changed() || self.is_wanting() {
            self.read_terms(container);
            self.hold(container);
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
        self.held.load(Ordering::SeqCst) + self.gates.waiting()
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

    fn fail(&self) -> Fail {
        match self.sources.requests.fail {
            OnShareLost::Open => Fail::Open,
            OnShareLost::Closed => Fail::Closed,
        }
    }

    /// Whether the grant wants its terms held in full, and they are known not to be.
    fn is_broken(&self, card: CardSlot) -> bool {
        self.sources.requests.mode == ComputeMode::Strict
            && self.shown().holds(usize::from(card.0)) == Some(false)
    }

    fn wait_in_line(&self) -> Held<'_> {
        self.held.fetch_add(1, Ordering::SeqCst);
        Held(&self.held)
    }

    /// The container's channel groups and channels are of this generation.
    fn objects_are(&self, generation: u64) {
        let mut inner = self.lock();
        if inner.generation != generation {
            inner.generation = generation;
            if let Some(mailbox) = &inner.mailbox {
                mailbox.tell(Tell::Objects);
            }
        }
    }

    /// As [`Share::govern`], while the container runs: what fails is tried again a second later.
    fn hold(&self, container: &Arc<Container>) {
        if let Err(error) = self.govern(container) {
            tracing::error!(
                container = container.name,
                %error,
                "nobody holds the container's share"
            );
        }
    }

    /// Has a governor where the terms want one, and none where they do not.
    fn govern(&self, container: &Arc<Container>) -> std::io::Result<()> {
        let mailbox = self.lock().mailbox.clone();
        match (mailbox, self.wants_governor()) {
            (Some(mailbox), true) => mailbox.tell(Tell::Terms),
            (None, true) => {
                let mailbox = governor::start(container)?;
                self.lock().mailbox = Some(mailbox);
            }
            (Some(_), false) => {
                self.stop();
                self.shown().clear();
            }
            (None, false) => {}
        }
        Ok(())
    }

    fn wants_governor(&self) -> bool {
        let inner = self.lock();
        inner.cards.iter().any(|on| !is_native(&on.terms))
    }

    fn is_wanting(&self) -> bool {
        self.wants_governor() && self.lock().mailbox.is_none()
    }

    fn take_mailbox(&self) -> Option<Arc<Mailbox>> {
        self.lock().mailbox.take()
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
