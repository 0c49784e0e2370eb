//! What one container was promised.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::policy::Policy;
use crate::rules::CardRules;
use crate::{PERCENT_PPM, WHOLE_PPM};

/// Before the others, among them, or after them.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[derive(IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Priority {
    /// Offline: what others leave, by weight.
    Low = 0,
    /// Among the others; beside a container of high priority it is served like an offline one.
    #[default]
    Normal = 1,
    /// Online: before the others, up to the card's [`crate::CardRules::prio_ratio_percent`].
    High = 2,
}

impl Priority {
    /// All of them, last served first.
    pub const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// The word that annotations and tables use.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The largest weight.
pub const WEIGHT_MAX: u32 = 1_000;

/// A container's terms on one card, with the card's rules already filled in where it asked for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

/// What a container asked for. What is absent follows the card's rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedTerms {
    /// A policy by name.
    pub policy: Option<Policy>,
    /// Cap or floor, percent of a card.
    pub percent: Option<u32>,
    /// Relative weight.
    pub weight: Option<u32>,
    /// Online, normal or offline.
    pub priority: Priority,
}

impl RequestedTerms {
    /// The terms that follow from these wishes on a card with these rules.
    ///
    /// Without a policy of its own: a percentage is a floor where the card's policy is soft, else a cap (fixed); a weight above
    /// 1 means weighted, unless the card's policy is soft; else the card's policy. Where that one cannot hold what was asked
    /// for (fixed without a percentage; priority other than normal under fair-share, fixed or native) it is preemptive: the
    /// container shares what the others leave unreserved.
    ///
    /// # Errors
    /// A value out of range, or wishes that contradict each other.
    pub fn resolve(&self, rules: &CardRules) -> Result<Terms, TermsError> {
        if let Some(percent) = self.percent
            && !(1..=100).contains(&percent)
        {
            return Err(TermsError::Percent { percent });
        }
        if let Some(weight) = self.weight
            && !(1..=WEIGHT_MAX).contains(&weight)
        {
            return Err(TermsError::Weight { weight });
        }
        let heavy = self.weight.is_some_and(|weight| weight > 1);
        let policy = match self.policy {
            Some(policy) => policy,
            None if self.percent.is_some() && rules.policy == Policy::Soft => Policy::Soft,
            None if self.percent.is_some() => Policy::Fixed,
            None if heavy && rules.policy == Policy::Soft => Policy::Soft,
            None if heavy => Policy::Weighted,
            None if rules.policy == Policy::Fixed => Policy::Preemptive,
            None if self.priority != Priority::Normal
                && matches!(rules.policy, Policy::FairShare | Policy::Native) =>
            {
                Policy::Preemptive
            }
            None => rules.policy,
        };
        let terms = Terms {
            policy,
            percent: self.percent,
            weight: self.weight.unwrap_or(1),
            priority: self.priority,
        };
        terms.validate()?;
        Ok(terms)
    }
}

impl Terms {
    /// Those of a container that no one said anything about on a card that no one said anything about.
    pub const NATIVE: Self = Self {
        policy: Policy::Native,
        percent: None,
        weight: 1,
        priority: Priority::Normal,
    };

    /// Whether these terms mean something.
    ///
    /// # Errors
    /// A value out of range, or values that contradict each other.
    pub fn validate(&self) -> Result<(), TermsError> {
        let Self {
            policy,
            percent,
            weight,
            priority,
        } = *self;
        if let Some(percent) = percent
            && !(1..=100).contains(&percent)
        {
            return Err(TermsError::Percent { percent });
        }
        if !(1..=WEIGHT_MAX).contains(&weight) {
            return Err(TermsError::Weight { weight });
        }
        if priority != Priority::Normal {
            if let Some(percent) = percent {
                return Err(TermsError::PriorityPercent { priority, percent });
            }
            if matches!(policy, Policy::FairShare | Policy::Fixed | Policy::Native) {
                return Err(TermsError::PriorityPolicy { priority, policy });
            }
        }
        match policy {
            Policy::Fixed if percent.is_none() => return Err(TermsError::PercentMissing),
            Policy::Fixed | Policy::Soft => {}
            Policy::FairShare | Policy::Preemptive | Policy::Weighted | Policy::Native => {
                if let Some(percent) = percent {
                    return Err(TermsError::PercentUnused { percent, policy });
                }
            }
        }
        if weight > 1 && !matches!(policy, Policy::Weighted | Policy::Soft) {
            return Err(TermsError::WeightUnused { weight, policy });
        }
        Ok(())
    }

    /// What they take from the card whether the container works or not: a cap's or a fair share's segment, a soft floor.
    #[must_use]
    pub fn reserved_ppm(&self, rules: &CardRules) -> u32 {
        match self.policy {
            Policy::FairShare => WHOLE_PPM / rules.max_tenants.max(1),
            Policy::Fixed | Policy::Soft => self.percent.unwrap_or(0) * PERCENT_PPM,
            Policy::Preemptive | Policy::Weighted | Policy::Native => 0,
        }
    }

    /// Whether a segment of the cyclic schedule is theirs however many others there are.
    #[must_use]
    pub fn owns_segment(&self) -> bool {
        matches!(self.policy, Policy::FairShare | Policy::Fixed)
    }
}

/// Terms that mean nothing, with what would.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// Out of range.
    #[error("compute percentage {percent} is out of range: 1 to 100")]
    Percent {
        /// What was asked for.
        percent: u32,
    },
    /// Out of range.
    #[error("compute weight {weight} is out of range: 1 to {WEIGHT_MAX}")]
    Weight {
        /// What was asked for.
        weight: u32,
    },
    /// Fixed, but at what.
    #[error("policy fixed needs a compute percentage, 1 to 100")]
    PercentMissing,
    /// The policy has shares of its own.
    #[error(
        "compute percentage {percent} has no effect under policy {}: use it with policy fixed or soft",
        policy.name()
    )]
    PercentUnused {
        /// What was asked for.
        percent: u32,
        /// Under which.
        policy: Policy,
    },
    /// The policy has shares of its own.
    #[error(
        "compute weight {weight} has no effect under policy {}: use it with policy weighted or soft",
        policy.name()
    )]
    WeightUnused {
        /// What was asked for.
        weight: u32,
        /// Under which.
        policy: Policy,
    },
    /// Reserved time and priority exclude each other.
    #[error(
        "priority {} is not possible under policy {}: use it with policy preemptive, weighted or soft",
        priority.name(), policy.name()
    )]
    PriorityPolicy {
        /// What was asked for.
        priority: Priority,
        /// Under which.
        policy: Policy,
    },
    /// Reserved time and priority exclude each other.
    #[error(
        "priority {} is not possible together with a compute percentage ({percent}): high priority takes what it needs, low priority what is left",
        priority.name()
    )]
    PriorityPercent {
        /// What was asked for.
        priority: Priority,
        /// What else was asked for.
        percent: u32,
    },
}
