//! What the governor sees of the world, and what it asks for: the seam between it and real or virtual time.

use plan::share_record::RecoveryClient;
use plan::{CardRules, Terms};

use crate::knob::{Answer, Knob, Objects};
use crate::probe::Found;
use crate::table::Table;

/// What happened since the last call of [`crate::Governor::next`]. Events may come early, late, twice, and more of them than happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The first event, and the only first one.
    Started,
    /// The clock has reached what [`Action::SleepUntil`] named, or nothing in particular happened.
    Woke,
    /// The knob of the last [`Action::Pull`] has moved or not.
    Answered(Answer),
    /// Channel groups or channels have come or gone.
    ObjectsChanged,
    /// The container's terms, or the card's rules, are others.
    TermsChanged,
    /// The table of a card says that records have come, gone or changed. Only speeds up what the governor polls for anyway.
    PeersChanged,
    /// Nobody is to hold the share any more: every gate opens, groups are as they would be without a governor, the records go, then [`Action::Done`].
    Stopping,
    /// The container or the broker ends: the same, but for the groups, which end too.
    Ending,
}

/// What is to be done now. One at a time: after an action comes the next event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing, until then or until something else happens. [`u64::MAX`]: only an event ends it.
    SleepUntil {
        /// On the clock of [`Environment::now_ns`].
        at_ns: u64,
    },
    /// This call to the driver; what became of it comes as [`Event::Answered`].
    Pull(Knob),
    /// The governor has ended; every later event is answered in the same way.
    Done,
}

/// The card's account of the container's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Time of the card's compute engine that went to this container since some start, nanoseconds.
    pub used_ns: u64,
    /// When that was counted, on the clock of [`Environment::now_ns`].
    pub at_ns: u64,
}

/// What a governor is told about. `card` counts the container's cards from 0, in the order of [`crate::Setup::cards`].
pub trait Environment {
    /// CLOCK_MONOTONIC or virtual time. It never goes back, and may jump forward.
    fn now_ns(&self) -> u64;

    /// [`Objects::generation`] of what the container has on the card now; asked for often.
    fn generation(&self, card: usize) -> u64;

    /// What the container has on the card now; asked for when [`Environment::generation`] has changed.
    fn objects(&self, card: usize) -> Objects;

    /// The container's terms; asked for at the start and after [`Event::TermsChanged`].
    fn terms(&self, card: usize) -> Terms;

    /// The card's rules; asked for at the start and after [`Event::TermsChanged`].
    fn rules(&self, card: usize) -> CardRules;

    /// The records of the card.
    fn table(&mut self, card: usize) -> &mut dyn Table;

    /// The terms that admission granted to another container of the card, where that can be looked up: they are before what its record says.
    fn admitted(&self, card: usize, key: &str) -> Option<Terms> {
        let _ = (card, key);
        None
    }

    /// How a client of the container on the card is reached by whoever has to open its gate, for the record. Zeros where that is not known.
    fn reach(&self, card: usize, client: u32) -> RecoveryClient {
        let _ = card;
        RecoveryClient {
            client,
            ..RecoveryClient::default()
        }
    }

    /// The card's account, where there is a usage. Asked for a few times a second.
    fn used(&self, card: usize) -> Option<Used> {
        let _ = card;
        None
    }

    /// Whether a call of the container's own that may have set running what the gate had stopped has ended since this was last asked.
    fn disturbed(&mut self, card: usize) -> bool {
        let _ = card;
        false
    }

    /// What the card's driver lets be held, found out on a channel group that nobody but the broker can touch: what a container's own
    /// groups answer, the container may have provoked. It is asked for again until there is an answer; whoever answers may take his time.
    fn confirm(&mut self, card: usize) -> Confirmed {
        let _ = card;
        Confirmed::Impossible
    }

    /// The timeslice that the container believes to have set for a group (client and handle), microseconds.
    fn requested_slice_us(&self, card: usize, group: (u32, u32)) -> Option<u64> {
        let _ = (card, group);
        None
    }

    /// Whether the container has work queued on the card, where that can be told.
    fn busy(&self, card: usize) -> Option<bool> {
        let _ = card;
        None
    }
}

/// What is known of [`Environment::confirm`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmed {
    /// It is being found out.
    Asking,
    /// It was found out.
    Found(Found),
    /// It could not be found out this time: the driver is busy, or something is used up.
    Failed,
    /// It cannot be found out here: no group can be made. What a container's groups answer is all that there is.
    Impossible,
}
