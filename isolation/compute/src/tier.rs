//! How much of a policy the levers that a driver accepts can hold.

use std::fmt;

use plan::{Policy, Terms};
use serde::{Deserialize, Serialize};

/// What a driver lets us do; the more, the larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// No channel group has been seen yet, so nothing could be tried.
    Untried,
    /// No lever moves: the driver's own round robin.
    Zero,
    /// Timeslices alone: weights and priorities. Caps are soft.
    One,
    /// Timeslices, and a gate by GPFIFO_SCHEDULE: all policies, with larger windows.
    Two,
    /// Timeslices, and a gate by FIFO_DISABLE_CHANNELS: all policies.
    Three,
}

impl Tier {
    /// As tables and metrics print it: `-`, or a digit.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Untried => "-",
            Self::Zero => "0",
            Self::One => "1",
            Self::Two => "2",
            Self::Three => "3",
        }
    }

    /// The least tier that holds what these terms promise.
    #[must_use]
    pub fn needed(terms: &Terms) -> Self {
        match terms.policy {
            Policy::Native => Self::Zero,
            Policy::FairShare | Policy::Fixed => Self::Two,
            Policy::Preemptive | Policy::Weighted | Policy::Soft => Self::One,
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a container is held by less than tier 3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Reason {
    /// The driver refused this lever.
    Refused {
        /// Name of the driver's call.
        lever: String,
        /// nvstatuscodes.h.
        status: u32,
    },
    /// Calls took so long that the gate rests.
    Slow {
        /// When the gate is tried again.
        until_ns: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { lever, status } => {
                write!(f, "the driver refused {lever} with status {status:#x}")
            }
            Self::Slow { .. } => f.write_str("calls to the driver are slow: the gate rests"),
        }
    }
}
