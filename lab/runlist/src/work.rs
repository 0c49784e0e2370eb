//! What a channel is given to do, and what became of it.

use serde::{Deserialize, Serialize};

/// A channel group (TSG) of one runlist. Never used again for another group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A channel of one runlist. Never used again for another channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChannelId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// One entry of a channel's queue: a launch, or a graph of equal launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Of one kernel, alone on the card; at least 1 ns is taken.
    pub duration_ns: u64,
    /// Of one thread block; 0 means as long as the kernel. What a group in [`Mode::Cta`] waits for.
    pub block_ns: u64,
    /// Kernels in this entry, one after the other with the launch gap between; at least 1 is taken.
    pub kernels: u32,
    /// What is special about it.
    pub kind: Kind,
    /// The caller's own; comes back in [`Finished`].
    pub tag: u64,
}

impl Work {
    /// One kernel of this length whose blocks are as long as itself.
    #[must_use]
    pub const fn kernel(duration_ns: u64) -> Self {
        Self {
            duration_ns,
            block_ns: 0,
            kernels: 1,
            kind: Kind::Plain,
            tag: 0,
        }
    }

    /// As a graph of `kernels` kernels.
    #[must_use]
    pub const fn times(self, kernels: u32) -> Self {
        Self { kernels, ..self }
    }

    /// With thread blocks of this length.
    #[must_use]
    pub const fn blocks(self, block_ns: u64) -> Self {
        Self { block_ns, ..self }
    }

    /// Of another kind.
    #[must_use]
    pub const fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// With the caller's own number.
    #[must_use]
    pub const fn tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }
}

/// What is special about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Runs for its time and is done.
    Plain,
    /// Runs until [`Runlist::signal`](crate::Runlist::signal).
    Persistent,
    /// Runs for its time and then takes its whole group down, as an illegal address does.
    Fault,
    /// Communicates with kernels of other cards: runs, but gets on only while
    /// [`Runlist::set_progress`](crate::Runlist::set_progress) says that its peers run too.
    CoResident {
        /// The caller's name of the kernels that wait for each other.
        set: u64,
    },
}

/// Where a running kernel can be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Between any two instructions.
    Cilp,
    /// At the end of a thread block.
    Cta,
    /// At the end of the kernel.
    Wfi,
}

/// How often a group is on the runlist (NVA06C SET_INTERLEAVE_LEVEL).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interleave {
    /// Once.
    Low,
    /// Once for each low one.
    Medium,
    /// Before each of the others.
    High,
}

/// What is done to a channel's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enable {
    /// FIFO_DISABLE_CHANNELS with bDisable 0.
    On,
    /// bDisable 1: off the card as soon as the group's mode allows.
    OffNow,
    /// bDisable 1 with bOnlyDisableScheduling: what runs keeps the card until its slice ends.
    OffAfterSlice,
}

/// How an entry ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran to its end.
    Done,
    /// It ran to its end and took its group down.
    Faulted,
    /// Its channel, group or card went before it was done.
    Dropped,
}

/// An entry that will not run any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// When, in the card's time: exact, however late it is asked for.
    pub at_ns: u64,
    /// When it was submitted.
    pub submitted_ns: u64,
    /// When its first kernel began, if one did.
    pub started_ns: Option<u64>,
    /// Whose.
    pub group: GroupId,
    /// Whose.
    pub channel: ChannelId,
    /// As submitted.
    pub tag: u64,
    /// Kernels of the entry, as submitted.
    pub kernels: u32,
    /// How it ended.
    pub outcome: Outcome,
}

/// A co-resident kernel came onto the card or left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at_ns: u64,
    /// Whose.
    pub channel: ChannelId,
    /// Of which set.
    pub set: u64,
    /// Which of the two.
    pub what: Presence,
}

/// Whether a co-resident kernel holds the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It runs from now on.
    Arrived,
    /// It does not run any more: stopped, or done.
    Left,
}

/// One stay of a group on the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stay {
    /// Whose.
    pub group: GroupId,
    /// From.
    pub start_ns: u64,
    /// To.
    pub end_ns: u64,
}

/// What a channel's USERD page shows: indices into its ring of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Userd {
    /// Next entry that the card takes.
    pub gp_get: u32,
    /// Next entry that the program fills.
    pub gp_put: u32,
}

/// Where the card's time has gone since the beginning; the three add up to [`Time::total_ns`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    /// Groups had the engine.
    pub resident_ns: u64,
    /// Switching and waking.
    pub overhead_ns: u64,
    /// Nothing to do.
    pub idle_ns: u64,
}

impl Time {
    /// All of it.
    #[must_use]
    pub const fn total_ns(&self) -> u64 {
        self.resident_ns + self.overhead_ns + self.idle_ns
    }
}

/// Why the runlist refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It was removed, or is another runlist's.
    #[error("no group {0:?} on this runlist")]
    NoGroup(GroupId),
    /// It was removed, or is another runlist's.
    #[error("no channel {0:?} on this runlist")]
    NoChannel(ChannelId),
    /// The ring of the channel has no free entry.
    #[error("the queue of channel {channel:?} is full with {entries} entries")]
    Full {
        /// Whose.
        channel: ChannelId,
        /// How many it holds.
        entries: u32,
    },
    /// The group went down with an earlier fault.
    #[error("group {0:?} went down with a fault")]
    Faulted(GroupId),
    /// A slice of nothing would hand the engine on without end.
    #[error("a slice of 0 ns for group {0:?}: at least 1 ns")]
    NoSlice(GroupId),
    /// The work that the call speaks of is not at the head of the channel.
    #[error("channel {0:?} has no such work at its head")]
    NotThere(ChannelId),
}
