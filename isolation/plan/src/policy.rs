//! How a card's time is divided.

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
