//! What one container was promised.

use serde::{Deserialize, Serialize};

/// How a card's time is divided; numbers and meanings are cGPU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// 0: a fixed share of 1 / the most containers a card takes.
    FairShare,
    /// 1: 1 / the containers that are there.
    Preemptive,
    /// 2: by weight among the containers that are there.
    Weighted,
    /// 3: exactly the percentage; the rest stays idle.
    Fixed,
    /// 4: the percentage or weight, and what others leave.
    Soft,
    /// 5: the driver decides.
    Native,
}

impl Policy {
    /// All of them, by number.
    pub const ALL: [Self; 6] = [
        Self::FairShare,
        Self::Preemptive,
        Self::Weighted,
        Self::Fixed,
        Self::Soft,
        Self::Native,
    ];

    /// cGPU's number.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::FairShare => 0,
            Self::Preemptive => 1,
            Self::Weighted => 2,
            Self::Fixed => 3,
            Self::Soft => 4,
            Self::Native => 5,
        }
    }

    /// The policy of this number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.number() == number)
    }

    /// The word that annotations and tables use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FairShare => "fair-share",
            Self::Preemptive => "preemptive",
            Self::Weighted => "weighted",
            Self::Fixed => "fixed",
            Self::Soft => "soft",
            Self::Native => "native",
        }
    }
}

/// Before the others, among them, or after them.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Offline: what others leave, by weight.
    Low,
    /// Among the others; beside a container of high priority it is served like an offline one.
    #[default]
    Normal,
    /// Online: before the others, up to the card's [`crate::CardRules::prio_ratio_percent`].
    High,
}

/// The largest weight.
pub const WEIGHT_MAX: u32 = 1_000;

/// A container's terms on one card, with the card's rules already filled in where it asked for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// How its share comes about.
    pub policy: Policy,
    /// Cap (fixed) or floor (soft), percent of a card, 1 to 100; `None`: the policy's own share.
    pub percent: Option<u32>,
    /// Relative weight, 1 to [`WEIGHT_MAX`].
    pub weight: u32,
    /// Online, normal or offline.
    pub priority: Priority,
}
