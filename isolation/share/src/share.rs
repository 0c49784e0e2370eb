//! The container's share as far as it is known: terms, gates, and who waits. Who holds it is [`crate::govern`].

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cards::{ComputeMode, GpuUuid, OnShareLost};
use compute::{Fail, Status};
use control::{ComputeStatus, EventKind};
use driver::{CardTime, Driver, FileId, FileRef};
use journal::Journal;
use journal::state::Op;
use journal::state::scheduling::Change;
use ledger::CardSlot;
use nvabi::Release;
use nvabi::capability::Capabilities;
use plan::{CardRules, Terms};
use sys::sync;

use crate::bucket::Bucket;
use crate::engines::CopyEngines;
use crate::gates::{Gates, Reported};
use crate::mailbox::{Mailbox, Tell};
use crate::node::Node;
use crate::pace::Pace;
use crate::shown::Shown;
use crate::terms::{OnCard, Sources, formatted, is_native};

/// How long the end of a broker waits for its gates to open: a knob takes a fraction of a millisecond, or the driver hangs.
const STOP: Duration = Duration::from_millis(500);
/// How long a hand-over does, within the time that its supervisor gives it.
const HAND_OVER: Duration = Duration::from_millis(10);

/// What a share needs of its broker beside journal and driver.
pub trait Broker: Send + Sync {
    /// Lends a file of the tenant's for a call, and keeps it open for as long. There is no call where nobody has the file any more.
    fn lend(&self, file: FileId, call: &mut dyn FnMut(FileRef<'_>));

    /// Reports that something has become of the share.
    fn report(&self, kind: EventKind, text: String);
}

/// A card of the grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its UUID.
    pub uuid: String,
    /// The number of its node.
    pub minor: u32,
}

/// The container that a share is of.
pub struct Context {
    /// `namespace/container`
    pub name: String,
    /// Its cards, in the grant's order.
    pub cards: Vec<Card>,
    /// The driver's layouts.
    pub release: Release,
    /// What its libraries are for, beside computing.
    pub capabilities: Capabilities,
    /// Who executes the knobs' calls.
    pub driver: Arc<dyn Driver>,
    /// What the container has that is scheduled, and terms that it was given since its grant.
    pub journal: Arc<Journal>,
    /// Its broker.
    pub broker: Box<dyn Broker>,
    /// What its cards have answered of their copy engines.
    pub copies: Arc<CopyEngines>,
}

/// In which a tenant may have the driver preempt once more.
const PREEMPT: Duration = Duration::from_millis(50);

/// The share of one container.
pub struct Share {
    /// See [`Gates`].
    pub gates: Gates,
    pub(crate) context: Context,
    /// Each call takes the driver's locks of all cards for a quarter of a millisecond and more, and its neighbours' calls wait for them.
    pub(crate) preempts: Bucket,
    pub(crate) pace: Pace,
    held: AtomicUsize,
    pub(crate) sources: Sources,
    /// All cards' reservations.
    pub(crate) node: Mutex<Node>,
    inner: Mutex<Inner>,
    shown: Mutex<Shown>,
    /// One change of terms at a time.
    changing: Mutex<()>,
    /// A card's knobs are being tried: one trial at a time, also where a driver does not answer any more.
    pub(crate) trying: Arc<AtomicBool>,
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut share = f.debug_struct("Share");
        share.field("container", &self.context.name);
        share.finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    /// By card, in the grant's order.
    pub(crate) cards: Vec<OnCard>,
    /// [`journal::state::Scheduling::generation`], as it was last seen.
    pub(crate) generation: u64,
    pub(crate) mailbox: Option<Arc<Mailbox>>,
}

/// A call that waits for its time.
pub(crate) struct Held<'a>(&'a AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Reported for Share {
    fn disturbed(&self) {
        if let Some(mailbox) = &self.lock().mailbox {
            mailbox.tell(Tell::Objects);
        }
    }
}

impl Share {
    /// The share of a container whose terms come from there. Nothing is held before a governor is started.
    #[must_use]
    pub fn new(sources: Sources, context: Context) -> Self {
        Self {
            gates: Gates::default(),
            context,
            preempts: Bucket::new(PREEMPT),
            pace: Pace::default(),
            held: AtomicUsize::new(0),
            sources,
            node: Mutex::default(),
            inner: Mutex::default(),
            shown: Mutex::default(),
            changing: Mutex::default(),
            trying: Arc::default(),
        }
    }

    /// Gives up the share: every gate opens, and the share records go. Groups are as they would be without a governor.
    pub(crate) fn stop(&self) {
        self.leave(Tell::Stop);
    }

    /// The same at the container's end, whose groups end with it.
    pub fn end(&self) {
        self.leave(Tell::End);
    }

    fn leave(&self, how: Tell) {
        if let Some(mailbox) = self.take_mailbox() {
            mailbox.tell(how);
            if !mailbox.wait_for_end(STOP) {
                tracing::error!("the governor does not end: gates may be closed");
            }
        }
    }

    /// Leaves the share to a successor: every gate opens, for as long as the successor takes to begin.
    pub fn hand_over(&self) {
        let _its_successor_opens = self.hand_over_within(HAND_OVER);
    }

    /// Says whether the governor has ended.
    pub(crate) fn hand_over_within(&self, longest: Duration) -> bool {
        self.take_mailbox().is_none_or(|mailbox| {
            mailbox.tell(Tell::HandOver);
            mailbox.wait_for_end(longest)
        })
    }

    /// Whether a governor holds the container's share of the card.
    #[must_use]
    pub fn is_governed(&self, card: CardSlot) -> bool {
        let inner = self.lock();
        let on = inner.cards.get(usize::from(card.0));
        on.is_some_and(OnCard::is_governed)
    }

    /// Whether the container has terms of its own on any card.
    pub(crate) fn has_terms(&self) -> bool {
        let inner = self.lock();
        inner.cards.iter().any(|on| !is_native(&on.terms))
    }

    /// Whether any container of the node has terms, on whichever card; also where that cannot be read. Nobody has any without a state folder.
    pub(crate) fn node_has_terms(&self) -> bool {
        let state_dir = self.sources.state_dir.as_deref();
        self.wants_governor()
            || state_dir.is_some_and(|state_dir| sync::lock(&self.node).has_terms(state_dir))
    }

    /// The same as far as it was read last: what frees waits for no look.
    pub(crate) fn node_had_terms(&self) -> bool {
        self.wants_governor()
            || self.sources.state_dir.is_some() && sync::lock(&self.node).had_terms()
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

    /// All cards of the grant, as the ledger knows them.
    pub(crate) fn card_slots(&self) -> impl Iterator<Item = CardSlot> {
        (0..=u8::MAX).take(self.context.cards.len()).map(CardSlot)
    }

    /// Reads rules and terms anew, and reports which terms are others than before.
    ///
    /// # Errors
    /// The first that cannot be read. It is as it was, to a successor as its predecessor held it, and is tried again.
    pub fn read_terms(&self) -> Result<(), cards::Error> {
        let _alone = sync::lock(&self.changing);
        let seen = self.sources.seen();
        let before = self.lock().cards.clone();
        let (mut now, mut unread) = (Vec::new(), None);
        for (index, uuid) in self.sources.cards.iter().enumerate() {
            let slot = u8::try_from(index).ok().map(CardSlot);
            let journal = &self.context.journal;
            let reported = slot.and_then(|slot| journal.change().scheduling().terms(slot));
            let on = match self.sources.on(uuid, &self.context.name, reported) {
                Ok(on) => on,
                Err(error) => {
                    unread.get_or_insert((uuid, error));
                    self.as_known(uuid, before.get(index), reported)
                }
            };
            // Whoever cannot read the reservation later goes by the journal.
            if let (Some(slot), Some(reported)) = (slot, reported)
                && reported != on.terms
            {
                let op = Op::Schedule(Change::Terms(slot, on.terms));
                journal.change().record_op(op);
            }
            now.push(on);
        }
        self.lock().cards.clone_from(&now);
        self.report_changed(&before, &now);
        let Some((uuid, error)) = unread else {
            self.sources.followed().were_read(seen);
            return Ok(());
        };
        if self.sources.followed().were_not_read(seen) {
            let text = format!(
                "card {uuid}: its rules or the terms by them cannot be read, the former hold: {error}"
            );
            self.context.broker.report(EventKind::Share, text);
        }
        Err(error)
    }

    /// What holds where nothing can be read.
    fn as_known(&self, uuid: &GpuUuid, before: Option<&OnCard>, reported: Option<Terms>) -> OnCard {
        let left = || self.sources.left(uuid, &self.context.name);
        let mut on = before.cloned().unwrap_or_else(left);
        on.terms = reported.unwrap_or(on.terms);
        on
    }

    fn report_changed(&self, before: &[OnCard], now: &[OnCard]) {
        let changed = before.iter().zip(now).zip(&self.sources.cards);
        let changed = changed.filter(|((before, now), _)| before.terms != now.terms);
        let texts: Vec<String> = changed
            .map(|((before, now), uuid)| {
                let [before, now] = [before, now].map(|on| formatted(&on.terms));
                format!("card {uuid}: {before} -> {now}")
            })
            .collect();
        if !texts.is_empty() {
            let text = texts.join("; ");
            self.context.broker.report(EventKind::ShareChanged, text);
        }
    }

    pub(crate) fn publish(&self, statuses: Vec<Option<Status>>, times: Vec<CardTime>) {
        self.shown().publish(statuses, times);
    }

    /// What is to be said of each card; `None` for one whose share nobody holds.
    #[must_use]
    pub fn status(&self) -> Vec<Option<ComputeStatus>> {
        let cards = &self.context.cards;
        if self.shown().is_empty() {
            return vec![None; cards.len()];
        }
        // Not under the lock: a driver may take its time, and the governor must not wait for it.
        let times = self.context.driver.engine_times().ok().flatten();
        let mut shown = self.shown();
        shown.read(times.unwrap_or_default());
        let cards = cards.iter().enumerate();
        cards
            .map(|(card, of)| shown.status(card, &of.uuid))
            .collect()
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
        inner.cards.iter().any(OnCard::is_governed)
    }

    pub(crate) fn is_wanting(&self) -> bool {
        self.wants_governor() && self.lock().mailbox.is_none()
    }

    pub(crate) fn take_mailbox(&self) -> Option<Arc<Mailbox>> {
        self.lock().mailbox.take()
    }

    pub(crate) fn shown(&self) -> MutexGuard<'_, Shown> {
        sync::lock(&self.shown)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        sync::lock(&self.inner)
    }
}
