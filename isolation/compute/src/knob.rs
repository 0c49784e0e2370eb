//! What can be done to a container's channels on a card, and what there is to do it to.

use serde::{Deserialize, Serialize};

/// A channel, as its card's driver names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Channel {
    /// Handle of the RM client that it belongs to.
    pub client: u32,
    /// Handle of the channel.
    pub handle: u32,
}

/// Which engine a group's work runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    /// Graphics and compute: what shares and gates are about.
    Graphics,
    /// Copies, video and whatever else has a runlist of its own: never gated.
    Other,
}

/// A channel group (TSG): what the hardware gives slices to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Handle of the RM client that it belongs to.
    pub client: u32,
    /// Handle of the group.
    pub handle: u32,
    /// Where it runs.
    pub engine: Engine,
    /// Its channels.
    pub channels: Vec<Channel>,
}

impl Group {
    /// Whether it is a channel that was made without a group: the driver has wrapped it in one that nobody can name, whose slice nobody can set.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        let mut channels = self.channels.iter();
        channels.any(|channel| channel.handle == self.handle)
    }
}

/// What a container has on one card at this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objects {
    /// Rises with every change of the rest.
    pub generation: u64,
    /// Its live channel groups.
    pub groups: Vec<Group>,
}

/// One call to the scheduler of a card. `card` counts the container's cards from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Knob {
    /// FIFO_DISABLE_CHANNELS, bDisable 0: at most 64 channels.
    Open {
        /// On which card.
        card: usize,
        /// Which.
        channels: Vec<Channel>,
    },
    /// FIFO_DISABLE_CHANNELS, bDisable 1: preempted now, and kept off until opened. At most 64 channels.
    Close {
        /// On which card.
        card: usize,
        /// Which.
        channels: Vec<Channel>,
        /// bOnlyDisableScheduling: what runs finishes its slice.
        after_slice: bool,
    },
    /// NVA06C SET_TIMESLICE.
    SetTimeslice {
        /// On which card.
        card: usize,
        /// RM client of the group.
        client: u32,
        /// The group.
        group: u32,
        /// Microseconds.
        slice_us: u64,
    },
    /// NVA06C GET_TIMESLICE; the answer is microseconds.
    GetTimeslice {
        /// On which card.
        card: usize,
        /// RM client of the group.
        client: u32,
        /// The group.
        group: u32,
    },
    /// NVA06C GPFIFO_SCHEDULE: the weaker gate.
    Schedule {
        /// On which card.
        card: usize,
        /// RM client of the group.
        client: u32,
        /// The group.
        group: u32,
        /// Onto the runlist, or off it.
        on: bool,
    },
    /// NVA06C SET_INTERLEAVE_LEVEL: 0 low, 1 medium, 2 high.
    Interleave {
        /// On which card.
        card: usize,
        /// RM client of the group.
        client: u32,
        /// The group.
        group: u32,
        /// 0, 1 or 2.
        level: u32,
    },
    /// NVA06C PREEMPT with bWait.
    Preempt {
        /// On which card.
        card: usize,
        /// RM client of the group.
        client: u32,
        /// The group.
        group: u32,
    },
}

/// Why a knob did not move.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KnobError {
    /// The driver refused it with this status (nvstatuscodes.h).
    #[error("the driver refused it with status {0:#x}")]
    Status(u32),
    /// What it was to act on has gone.
    #[error("the object has gone")]
    Gone,
    /// It did not reach the driver.
    #[error("it did not reach the driver: {0}")]
    Lost(String),
}

/// What became of a knob, and what the driver's part in it was.
///
/// A knob may make several calls, and wait in between for what the container itself has under way. Only the driver's own time says
/// something of the driver: what a tenant makes its broker wait for must not look like a slow card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whether it moved; some knobs answer a number.
    pub result: Result<Option<u64>, KnobError>,
    /// Of the calls that reached the driver; `None`: the knob was one call, made at once, and its time is the driver's.
    pub spent: Option<Spent>,
    /// A call of the container's own was in the driver at the same time: a long wait may be for locks that this call held.
    pub beside_own: bool,
}

/// The driver's part in one knob.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// How many calls.
    pub calls: u64,
    /// How long all of them took together.
    pub total_ns: u64,
    /// How long the first took.
    pub first_ns: u64,
    /// How long the longest took.
    pub longest_ns: u64,
}

impl Spent {
    /// One call.
    #[must_use]
    pub fn one(took_ns: u64) -> Self {
        let mut spent = Self::default();
        spent.add(took_ns);
        spent
    }

    /// And a further one.
    pub fn add(&mut self, took_ns: u64) {
        if self.calls == 0 {
            self.first_ns = took_ns;
        }
        self.calls = self.calls.saturating_add(1);
        self.total_ns = self.total_ns.saturating_add(took_ns);
        self.longest_ns = self.longest_ns.max(took_ns);
    }

    /// How long all but the first took together.
    #[must_use]
    pub fn after_first_ns(&self) -> u64 {
        self.total_ns.saturating_sub(self.first_ns)
    }

    /// How long a call took on average; `None`: there was none.
    #[must_use]
    pub fn each_ns(&self) -> Option<u64> {
        self.total_ns.checked_div(self.calls)
    }
}

impl From<Result<Option<u64>, KnobError>> for Answer {
    fn from(result: Result<Option<u64>, KnobError>) -> Self {
        Self {
            result,
            spent: None,
            beside_own: false,
        }
    }
}
