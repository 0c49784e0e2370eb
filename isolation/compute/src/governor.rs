//! The governor of one container, with all its cards.

use crate::status::{Gate, Status};
use crate::world::{Action, Event, Surroundings};

/// What becomes of a share that the levers cannot hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fail {
    /// The container goes on with less isolation.
    #[default]
    Open,
    /// The gate stays closed, as far as [`crate::CLOSED_MAX_NS`] allows.
    Closed,
}

/// Which container a governor is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// `<namespace>/<container>`, the name of its slots.
    pub key: String,
    /// How many cards it has. More than one: a gang, whose segments lie at the same time on all of them.
    pub cards: usize,
    /// When it joined, on the clock of [`Surroundings::now_ns`]; a broker that follows another gives the first one's.
    pub join_ns: u64,
    /// See [`Fail`].
    pub fail: Fail,
    /// First process of the container and its start time (field 22 of `/proc/<pid>/stat`), for whoever has to open its gates.
    pub process: Option<(i32, u64)>,
}

/// Holds one container to its share of each of its cards. It makes no call and reads no clock: see [`Governor::next`].
#[derive(Debug)]
pub struct Governor {
    setup: Setup,
}

impl Governor {
    /// Nothing happens before [`Event::Started`].
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self { setup }
    }

    /// Takes in what happened and says what to do now.
    pub fn next(&mut self, event: Event, world: &mut dyn Surroundings) -> Action {
        let _ = (event, world, &self.setup);
        Action::SleepUntil { at_ns: u64::MAX }
    }

    /// Whether channels may run now. While it is closed, a tenant's own call that would set one running waits.
    #[must_use]
    pub fn gate(&self, card: usize) -> Gate {
        let _ = card;
        Gate::Open
    }

    /// For `cgpu ps`, metrics and logs; `None` for a card that is not there, and before [`Event::Started`].
    #[must_use]
    pub fn status(&self, card: usize) -> Option<Status> {
        let _ = card;
        None
    }
}
