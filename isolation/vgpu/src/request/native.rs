//! Our own dialect: annotations.

use cards::grant::{ComputePolicy, Priority};
use cards::placement::{Choice, Policy};
use cards::{ManagedMemory, OnViolation};
use plan::terms::WEIGHT_MAX;

use super::memory::{self, Memory};
use super::{bad_value, card_list, isolation};
use crate::Error;

/// All of our annotations begin so; one that is not in [`ALLOWED_KEYS`] is refused.
pub const PREFIX: &str = "cgpu.io/";

/// The mark that we leave in an edited spec.
pub const APPLIED_KEY: &str = "cgpu.io/applied";

/// What we leave in an edited spec of a container that is not held: `off`, and why.
pub const ISOLATION_KEY: &str = "cgpu.io/isolation";

/// Without which there is no request.
pub(crate) const MEMORY_KEY: &str = "cgpu.io/memory";

/// What people may write.
pub const ALLOWED_KEYS: [&str; 10] = [
    MEMORY_KEY,
    "cgpu.io/cards",
    "cgpu.io/compute",
    "cgpu.io/weight",
    "cgpu.io/policy",
    "cgpu.io/priority",
    "cgpu.io/placement",
    "cgpu.io/managed",
    "cgpu.io/on-violation",
    "cgpu.io/share-group",
];

const CARDS_ALLOWED: &str = "how many cards, at least 1 (`1` is any one card), or which: a list of card UUIDs or indices with a comma in it (`0,` is card 0)";

/// What the annotations say; what they leave out is absent.
#[derive(Debug, Default)]
pub(super) struct NativeTerms {
    pub(super) memory: Option<Memory>,
    pub(super) cards: Option<Choice>,
    pub(super) percent: Option<u32>,
    pub(super) weight: Option<u32>,
    pub(super) policy: Option<ComputePolicy>,
    pub(super) priority: Option<Priority>,
    pub(super) placement: Option<Policy>,
    pub(super) managed: Option<ManagedMemory>,
    pub(super) on_violation: Option<OnViolation>,
    pub(super) share_group: Option<String>,
}

impl NativeTerms {
    /// `None`: not one of our keys is there.
    pub(super) fn read<'a>(
        annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Option<Self>, Error> {
        let mut terms = Self::default();
        let mut any = false;
        for (key, value) in annotations {
            if !key.starts_with(PREFIX) || key == APPLIED_KEY {
                continue;
            }
            any = true;
            let text = value.trim();
            match key {
                MEMORY_KEY => terms.memory = Some(memory::parse(key, value)?),
                "cgpu.io/cards" => terms.cards = Some(cards(key, text)?),
                "cgpu.io/compute" => {
                    terms.percent = Some(percent(key, text)?);
                }
                "cgpu.io/weight" => {
                    terms.weight = Some(weight(key, text)?);
                }
                "cgpu.io/policy" => terms.policy = Some(compute_policy(key, text)?),
                "cgpu.io/priority" => {
                    terms.priority = Some(priority(key, text)?);
                }
                "cgpu.io/placement" => {
                    terms.placement = Some(match text {
                        "binpack" => Policy::Binpack,
                        "spread" => Policy::Spread,
                        _ => return Err(bad_value(key, value, "binpack, spread")),
                    });
                }
                isolation::MANAGED_KEY => terms.managed = Some(isolation::managed(key, text)?),
                isolation::ON_VIOLATION_KEY => {
                    terms.on_violation = Some(isolation::on_violation(key, text)?);
                }
                isolation::SHARE_GROUP_KEY => {
                    terms.share_group = Some(isolation::share_group(key, text)?);
                }
                _ => {
                    return Err(Error::UnknownKey {
                        key: key.chars().take(128).collect(),
                        allowed: ALLOWED_KEYS.join(", "),
                    });
                }
            }
        }
        if terms.policy == Some(ComputePolicy::Fixed) && terms.percent.is_none() {
            return Err(bad_value(
                "cgpu.io/policy",
                "fixed",
                "policy fixed needs cgpu.io/compute, 1 to 100, the percent of a card's time",
            ));
        }
        Ok(any.then_some(terms))
    }
}

fn cards(key: &str, text: &str) -> Result<Choice, Error> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u32>() {
        Ok(count) if is_number && count > 0 => Ok(Choice::Count(count)),
        _ if is_number || text.starts_with('-') || text.starts_with('+') => {
            Err(bad_value(key, text, CARDS_ALLOWED))
        }
        _ => card_list(key, text, CARDS_ALLOWED).map(Choice::Named),
    }
}

/// Reads a compute policy, by name or by cGPU's number; `key` is for the error.
pub(crate) fn compute_policy(key: &str, text: &str) -> Result<ComputePolicy, Error> {
    ComputePolicy::ALL
        .into_iter()
        .find(|policy| policy.name() == text || policy.number().to_string() == text)
        .ok_or_else(|| {
            let allowed = ComputePolicy::ALL
                .map(|policy| format!("{} or {}", policy.number(), policy.name()))
                .join(", ");
            bad_value(key, text, allowed)
        })
}

/// Reads a part of a card's time, `30` or `30%`; `key` is for the error.
pub(crate) fn percent(key: &str, text: &str) -> Result<u32, Error> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    whole(key, digits, 1..=100, "1 to 100, in percent of a card")
        .map_err(|_in_part| bad_value(key, text, "1 to 100, in percent of a card"))
}

/// Reads a weight; `key` is for the error.
pub(crate) fn weight(key: &str, text: &str) -> Result<u32, Error> {
    // cGPU documents no bound.
    whole(key, text, 1..=WEIGHT_MAX, "1 to 1000")
}

/// Reads a priority; `key` is for the error.
pub(crate) fn priority(key: &str, text: &str) -> Result<Priority, Error> {
    match text {
        "high" => Ok(Priority::High),
        "normal" => Ok(Priority::Normal),
        "low" => Ok(Priority::Low),
        _ => Err(bad_value(key, text, "high, normal, low")),
    }
}

/// A whole number in a range, digits only.
pub(crate) fn whole(
    key: &str,
    text: &str,
    range: std::ops::RangeInclusive<u32>,
    allowed: &str,
) -> Result<u32, Error> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u32>() {
        Ok(number) if digits && range.contains(&number) => Ok(number),
        _ => Err(bad_value(key, text, allowed)),
    }
}
