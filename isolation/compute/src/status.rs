//! What a governor says of itself: for `cgpu ps`, metrics and logs.

use plan::{EnforcementLevel, Terms};
use serde::{Deserialize, Serialize};

use crate::reason::Reason;

/// Whether a container's channels on a card may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum GateStatus {
    /// Nothing closes them.
    Open,
    /// They wait for their segment.
    Closed {
        /// When it begins, on the governor's clock. It may come earlier by the time that a call takes.
        opens_at_ns: u64,
    },
}

impl GateStatus {
    /// As documents have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed { .. } => "closed",
        }
    }
}

/// How long calls to the driver take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Moving average, nanoseconds.
    pub mean_ns: u64,
    /// Half of the recent calls took at most this, to a quarter of an octave.
    pub p50_ns: u64,
    /// 99 of 100 recent calls took at most this, to a quarter of an octave.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// How often something happened since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Knobs pulled.
    pub calls: u64,
    /// Of these, longer than 50 ms.
    pub slow: u64,
    /// Of these, refused by the driver.
    pub refused: u64,
    /// Of these, lost on the way.
    pub lost: u64,
    /// Records of peers that were no records.
    pub bad_records: u64,
    /// Segments that were missed or cut because the governor ran late.
    pub late: u64,
    /// Times that a circuit breaker laid the gate to rest.
    pub alarms: u64,
}

/// One card of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// What was promised.
    pub terms: Terms,
    /// By what it is held; `None`: no channel group has been seen yet, so that nothing could be tried.
    pub enforcement_level: Option<EnforcementLevel>,
    /// Why by no more; `None` at enforcement level 3 and while nothing was tried.
    pub reason: Option<Reason>,
    /// Whether the enforcement level holds what the terms promise. `true` while nothing was tried; slices hold no channel without a group.
    pub holds: bool,
    /// Share of the card in the present layout, parts of a million.
    pub entitlement_ppm: u32,
    /// Now.
    pub gate: GateStatus,
    /// Length of a window; 0 where nothing is gated.
    pub window_ns: u64,
    /// Timeslice of each of the container's groups, microseconds; 0: the driver's own.
    pub slice_us: u64,
    /// Containers in the present layout, this one among them.
    pub tenants: u32,
    /// Whether priority's upper bound holds; `None` where the container is not of high priority.
    pub ratio_enforced: Option<bool>,
    /// How long the gate was closed while the container had work, since this governor began, nanoseconds; `None`: whether it has
    /// cannot be told.
    #[serde(default)]
    pub throttled_ns: Option<u64>,
    /// Calls to this card.
    pub latency: Latency,
    /// Events.
    pub counts: Counts,
}
