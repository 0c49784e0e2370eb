//! What holds for all containers of one card.

use serde::{Deserialize, Serialize};

use crate::terms::Policy;

/// What becomes of the time of a container that is there and has nothing to do, under the policies preemptive and weighted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// Others borrow it: slices of the hardware's own round.
    #[default]
    Borrow,
    /// It stays unused: a wheel over those that are there.
    Waste,
}

/// The rules of one card: constants of a node's configuration, and what `cgpu set --card` changes while containers run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardRules {
    /// Version of this form.
    pub version: u32,
    /// Of containers that name none.
    pub policy: Policy,
    /// The most containers with terms that the card takes: the divisor of fair-share. 1 to 25, on a simulated card to 100.
    pub max_tenants: u32,
    /// See [`Idle`].
    pub idle: Idle,
    /// The most of any second that containers of high priority get while others wait, percent, 20 to 99.
    pub prio_ratio_percent: u32,
}

impl CardRules {
    /// [`CardRules::version`] of this cgpu.
    pub const VERSION: u32 = 1;
}

impl Default for CardRules {
    fn default() -> Self {
        Self {
            version: Self::VERSION,
            policy: Policy::Native,
            max_tenants: 25,
            idle: Idle::Borrow,
            prio_ratio_percent: 80,
        }
    }
}
