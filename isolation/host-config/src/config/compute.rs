//! Table `[compute]`: how cards' time is divided where nothing else is said.

use cards::grant::ComputePolicy;
use cards::{CardRules, ComputeMode, OnShareLost};
use plan::{Costs, Idle};
use serde::{Deserialize, Deserializer, de};

/// Table `[compute]`. The first four are a card's rules from its first container with compute terms on; `cgpu set --card`
/// changes them for one card.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeConfig {
    /// Of containers that name none.
    #[serde(deserialize_with = "policy")]
    pub policy: ComputePolicy,
    /// The most containers with terms on a card, and the divisor of fair-share.
    pub max_tenants: u32,
    /// What becomes of the time of a container that has nothing to do.
    pub idle: Idle,
    /// The most that containers of high priority get of a second in which others wait, percent.
    pub prio_ratio: u32,
    /// Whether a container starts where its terms cannot be held in full.
    pub mode: ComputeMode,
    /// What becomes of a container's work when nobody holds its share any more.
    pub fail: OnShareLost,
}

impl Default for ComputeConfig {
    fn default() -> Self {
        let rules = CardRules::default();
        Self {
            policy: rules.policy,
            max_tenants: rules.max_tenants,
            idle: rules.idle,
            prio_ratio: rules.prio_ratio_percent,
            mode: ComputeMode::default(),
            fail: OnShareLost::default(),
        }
    }
}

impl ComputeConfig {
    /// The rules of a card that has none yet, on a host with so many.
    #[must_use]
    pub fn rules(&self, cards: usize) -> CardRules {
        CardRules {
            version: CardRules::VERSION,
            policy: self.policy,
            max_tenants: self.max_tenants,
            idle: self.idle,
            prio_ratio_percent: self.prio_ratio,
            costs: Costs::of_node(u32::try_from(cards).unwrap_or(u32::MAX)),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NameOrNumber {
    Name(String),
    Number(i64),
}

/// As annotations write it: a name or cGPU's number.
fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ComputePolicy, D::Error> {
    let text = match NameOrNumber::deserialize(deserializer)? {
        NameOrNumber::Name(name) => name,
        NameOrNumber::Number(number) => number.to_string(),
    };
    crate::terms::compute_policy("compute.policy", &text).map_err(de::Error::custom)
}
