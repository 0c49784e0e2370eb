//! How well a card's driver lets itself be steered.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::policy::Policy;
use crate::terms::{Priority, Terms};

/// Which knobs work, weakest first; published by each broker, and what `strict` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(VariantArray)]
pub enum EnforcementLevel {
    /// 0: the container's processes are frozen for part of the time: best effort.
    Freezer = 0,
    /// 0.5: doorbells are held back: soft caps at submission.
    Doorbell = 5,
    /// 1: timeslices alone: weights and priority.
    Slices = 10,
    /// 2: timeslices, and GPFIFO_SCHEDULE as the gate.
    Schedule = 20,
    /// 3: timeslices, and FIFO_DISABLE_CHANNELS as the gate: everything.
    Gate = 30,
}

impl EnforcementLevel {
    /// All of them, weakest first.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The number that people read: `3`, `2`, `1`, `0.5`, `0`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Freezer => "0",
            Self::Doorbell => "0.5",
            Self::Slices => "1",
            Self::Schedule => "2",
            Self::Gate => "3",
        }
    }

    /// The weakest enforcement level that holds these terms for certain.
    #[must_use]
    pub fn needed(terms: &Terms) -> Self {
        match (terms.policy, terms.priority) {
            (Policy::Native, Priority::Normal) => Self::Freezer,
            (Policy::FairShare | Policy::Fixed, _) => Self::Schedule,
            _ => Self::Slices,
        }
    }

    /// As share records have it.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|enforcement_level| enforcement_level.code() == code)
    }
}
