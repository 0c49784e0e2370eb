//! Calls to the driver: what they do, which locks they take, what they cost, and how they can fail.

use serde::{Deserialize, Serialize};

use super::locks::{Api, Class, Gpus};
use crate::work::{ChannelId, Enable, GroupId, Interleave, Mode};

/// A call, by the order in which they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(crate) u64);

/// What is asked of a card's driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// NV2080 FIFO_DISABLE_CHANNELS, in both directions. [`Enable::OffNow`] is answered when what ran is saved.
    Channels {
        /// At most 64.
        channels: Vec<ChannelId>,
        /// On or off.
        enable: Enable,
    },
    /// NVA06C GPFIFO_SCHEDULE. Off is answered when what ran is saved.
    Schedule {
        /// Which.
        group: GroupId,
        /// On or off.
        enable: Enable,
    },
    /// NVA06C SET_TIMESLICE.
    SetTimeslice {
        /// Which.
        group: GroupId,
        /// In nanoseconds.
        slice_ns: u64,
    },
    /// NVA06C GET_TIMESLICE.
    GetTimeslice {
        /// Which.
        group: GroupId,
    },
    /// NVA06C PREEMPT.
    Preempt {
        /// Which.
        group: GroupId,
        /// Whether it is answered at once or when the group is saved.
        wait: Wait,
    },
    /// NVA06C SET_INTERLEAVE_LEVEL.
    Interleave {
        /// Which.
        group: GroupId,
        /// How often.
        level: Interleave,
    },
    /// NV2080 GR_SET_CTXSW_PREEMPTION_MODE.
    PreemptionMode {
        /// Which.
        group: GroupId,
        /// How it can be stopped.
        mode: Mode,
    },
    /// NV2080 GR_GET_CURRENT_RESIDENT_CHANNEL.
    Resident,
    /// Something that takes locks and time, and does nothing to the runlist: a tenant's allocation, say.
    Other {
        /// Its locks.
        class: Class,
        /// How long the card's firmware works on it; nothing is added.
        service_ns: u64,
    },
}

impl Control {
    /// A tenant's allocation: 0.3 ms.
    pub const ALLOCATION: Self = Self::Other {
        class: Class {
            api: Api::Write,
            gpus: Gpus::This,
        },
        service_ns: 300_000,
    };

    /// A tenant's context creation: 150 ms.
    pub const CONTEXT: Self = Self::Other {
        class: Class {
            api: Api::Write,
            gpus: Gpus::This,
        },
        service_ns: 150_000_000,
    };

    /// The locks that it takes (RM's control export flags, R515 to R595, on a node of which all GPUs run GSP firmware).
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::Channels { .. } => Class {
                api: Api::Read,
                gpus: Gpus::All,
            },
            Self::Schedule { .. } | Self::SetTimeslice { .. } | Self::Interleave { .. } => Class {
                api: Api::Write,
                gpus: Gpus::All,
            },
            Self::GetTimeslice { .. }
            | Self::Preempt { .. }
            | Self::PreemptionMode { .. }
            | Self::Resident => Class {
                api: Api::Read,
                gpus: Gpus::This,
            },
            Self::Other { class, .. } => *class,
        }
    }
}

/// Whether a call waits for what it has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Answered when the group is saved, or after [`RpcCosts::preempt_timeout_ns`].
    Saved,
    /// Answered at once.
    No,
}

/// What a call that worked says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing but that.
    Done,
    /// [`Control::GetTimeslice`]: nanoseconds.
    Slice(u64),
    /// [`Control::Resident`].
    Resident(Option<GroupId>),
}

/// Why a call did not work. What it was to do may have been done: see each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The firmware did not answer in time; nothing was done.
    #[error("the card's firmware did not answer")]
    NoAnswer,
    /// The group did not leave in time; its gate is set all the same.
    #[error("the group did not let go of the engine in time")]
    NotSaved,
    /// There is no such card any more; nothing was done.
    #[error("the card is lost")]
    Lost,
    /// There is no such object any more; a list was carried out up to it.
    #[error("the object has gone")]
    Gone,
    /// A value or state that the driver refuses; nothing was done.
    #[error("refused by the driver")]
    Refused,
}

impl CallError {
    /// As nvstatuscodes.h has it.
    #[must_use]
    pub const fn status(self) -> u32 {
        match self {
            Self::NoAnswer | Self::NotSaved => 0x65,
            Self::Lost => 0x0f,
            Self::Gone => 0x57,
            Self::Refused => 0x1f,
        }
    }
}

/// What a call to a card costs, and how often it goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcCosts {
    /// At least.
    pub base_ns: u64,
    /// Mean of what is added, exponentially distributed.
    pub jitter_ns: u64,
    /// How often a call stalls.
    pub stall_ppm: u32,
    /// Mean of what a stall adds, exponentially distributed.
    pub stall_ns: u64,
    /// How often a call is lost: it is answered after the time-out, and not carried out.
    pub lost_ppm: u32,
    /// After how long the driver gives up on the firmware.
    pub timeout_ns: u64,
    /// After how long it gives up on a group that does not leave.
    pub preempt_timeout_ns: u64,
}

impl Default for RpcCosts {
    fn default() -> Self {
        Self {
            base_ns: 120_000,
            jitter_ns: 40_000,
            stall_ppm: 0,
            stall_ns: 5_000_000,
            lost_ppm: 0,
            timeout_ns: 6_000_000_000,
            preempt_timeout_ns: 1_000_000_000,
        }
    }
}
