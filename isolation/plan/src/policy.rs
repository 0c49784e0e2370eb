//! How a card's time is divided.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// How a card's time is divided; numbers and meanings are cGPU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Policy {
    /// 0: a fixed share of 1 / the most containers a card takes.
    FairShare = 0,
    /// 1: 1 / the containers that are there.
    Preemptive = 1,
    /// 2: by weight among the containers that are there.
    Weighted = 2,
    /// 3: exactly the percentage; the rest stays idle.
    Fixed = 3,
    /// 4: the percentage or weight, and what others leave.
    Soft = 4,
    /// 5: the driver decides.
    Native = 5,
}

impl Policy {
    /// All of them, by number.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// cGPU's number.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The policy of this number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|policy| policy.number() == number)
    }

    /// The word that annotations and tables use.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}
