//! What holds for all containers of one card.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::policy::Policy;

/// What becomes of the time of a container that is there and has nothing to do, under the policies preemptive and weighted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Idle {
    /// Others borrow it: slices of the hardware's own round.
    #[default]
    Borrow,
    /// It stays unused: a cyclic schedule over those that are there.
    Waste,
}

/// What scheduling costs on a card. Part of the rules, because brokers that reckoned with costs of their own would disagree
/// about the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// Of one switch between two channel groups, save and restore, microseconds.
    pub switch_us: u32,
    /// Knob calls per second that the gates of this card may need: the card's part of the node's [`Costs::NODE_CALLS_PER_S`].
    pub calls_per_s: u32,
}

impl Costs {
    /// Knob calls per second on a whole node: 5 % of the time under the driver's locks of all cards, at 0.25 ms a call.
    pub const NODE_CALLS_PER_S: u32 = 200;

    /// The costs on a node with this many cards: the node's calls are divided evenly, so that a card's window depends on
    /// nothing that brokers of the card cannot read.
    #[must_use]
    pub fn of_node(cards: u32) -> Self {
        Self {
            calls_per_s: (Self::NODE_CALLS_PER_S / cards.max(1)).max(1),
            ..Self::default()
        }
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            switch_us: 100,
            calls_per_s: Self::NODE_CALLS_PER_S,
        }
    }
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
    /// See [`Costs`].
    #[serde(default)]
    pub costs: Costs,
}

/// Whether a card is real: a simulated one takes more containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardKind {
    /// NVIDIA's.
    Real,
    /// `cgpu-sim`'s.
    Simulated,
}

impl CardRules {
    /// [`CardRules::version`] of this cgpu.
    pub const VERSION: u32 = 1;
    /// The most containers with terms on a real card.
    pub const MAX_TENANTS: u32 = 25;
    /// The most containers with terms on a simulated card.
    pub const MAX_TENANTS_SIMULATED: u32 = 100;

    /// Whether a card can be run by these rules.
    ///
    /// # Errors
    /// The first value that is out of its range.
    pub fn validate(&self, kind: CardKind) -> Result<(), RulesError> {
        if self.version != Self::VERSION {
            return Err(RulesError::Version {
                found: self.version,
            });
        }
        let most = match kind {
            CardKind::Real => Self::MAX_TENANTS,
            CardKind::Simulated => Self::MAX_TENANTS_SIMULATED,
        };
        for (key, value, least, most) in [
            ("max_tenants", self.max_tenants, 1, most),
            ("prio_ratio", self.prio_ratio_percent, 20, 99),
            ("costs.switch_us", self.costs.switch_us, 1, 2_000),
            ("costs.calls_per_s", self.costs.calls_per_s, 1, 10_000),
        ] {
            if !(least..=most).contains(&value) {
                return Err(RulesError::Range {
                    key,
                    value,
                    least,
                    most,
                });
            }
        }
        Ok(())
    }
}

impl Default for CardRules {
    fn default() -> Self {
        Self {
            version: Self::VERSION,
            policy: Policy::Native,
            max_tenants: Self::MAX_TENANTS,
            idle: Idle::Borrow,
            prio_ratio_percent: 80,
            costs: Costs::default(),
        }
    }
}

/// Rules that no card can be run by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// Written by another cgpu.
    #[error(
        "rules of version {found}; this cgpu knows version {}",
        CardRules::VERSION
    )]
    Version {
        /// Theirs.
        found: u32,
    },
    /// A value out of its range.
    #[error("{key} = {value} is out of range: {least} to {most}")]
    Range {
        /// As the configuration spells it.
        key: &'static str,
        /// What was given.
        value: u32,
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
}
