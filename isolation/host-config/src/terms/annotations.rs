//! Our own dialect: annotations.

use cards::grant::{ComputePolicy, Priority};
use cards::placement::{Choice, Policy};
use cards::reserved_time::{TimeRefusal, resolve};
use cards::{CardRules, ComputeTerms, ManagedMemory, OnViolation};

use super::error::Error;
use super::isolation::{self, MANAGED_KEY, ON_VIOLATION_KEY, SHARE_GROUP_KEY};
use super::memory::{self, Memory};
use super::values::{bad_value, card_list, compute_policy, percent, priority, weight, word};

/// All of our annotations begin so; one that is not in [`ALLOWED_KEYS`] is refused.
pub const PREFIX: &str = "cgpu.io/";

/// The mark that we leave in an edited spec.
pub const APPLIED_KEY: &str = "cgpu.io/applied";

/// What we leave in an edited spec of a container that is not held: `off`, and why.
pub const ISOLATION_KEY: &str = "cgpu.io/isolation";

/// What a cluster reads of its pods at admission: it chooses among nodes, and means nothing on one.
pub const NODES_KEY: &str = "cgpu.io/nodes";

/// Without which there is no request.
pub const MEMORY_KEY: &str = "cgpu.io/memory";

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
pub struct Annotated {
    /// How much memory, without which nothing is requested.
    pub memory: Option<Memory>,
    /// How many cards, or which.
    pub cards: Option<Choice>,
    /// The part of a card's time.
    pub percent: Option<u32>,
    /// The weight among a card's containers.
    pub weight: Option<u32>,
    /// How the card's time is divided.
    pub policy: Option<ComputePolicy>,
    /// Who goes first.
    pub priority: Option<Priority>,
    /// How cards are chosen.
    pub placement: Option<Policy>,
    /// What managed memory counts.
    pub managed: Option<ManagedMemory>,
    /// What happens when the driver counts more than the ledger.
    pub on_violation: Option<OnViolation>,
    /// Whose exports it may import.
    pub share_group: Option<String>,
}

impl Annotated {
    /// `None`: not one of our keys is there.
    ///
    /// # Errors
    /// An unknown key of ours, or a value that is not allowed.
    pub fn read<'a>(
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
                "cgpu.io/placement" => terms.placement = Some(word(key, text)?),
                MANAGED_KEY => terms.managed = Some(word(key, text)?),
                ON_VIOLATION_KEY => terms.on_violation = Some(word(key, text)?),
                SHARE_GROUP_KEY => {
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

/// The keys of `request.default`, without the annotations' prefix. How containers are held, `[isolation]` says; a share group
/// is for whoever starts a container to name.
pub fn default_keys() -> impl Iterator<Item = &'static str> {
    ALLOWED_KEYS
        .into_iter()
        .filter(|key| ![MANAGED_KEY, ON_VIOLATION_KEY, SHARE_GROUP_KEY].contains(key))
        .filter_map(|key| key.strip_prefix(PREFIX))
}

/// The annotation of a key of `request.default`.
#[must_use]
pub fn default_key(key: &str) -> Option<&'static str> {
    default_keys().find(|known| *known == key)?;
    let is_named = |known: &&str| known.strip_prefix(PREFIX) == Some(key);
    ALLOWED_KEYS.into_iter().find(is_named)
}

/// Whether the terms of a `request.default` make a request.
///
/// # Errors
/// As [`Annotated::read`]; no amount of memory is among them; no card's policy gives them a meaning together.
pub fn check_default<'a>(terms: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), Error> {
    let annotated = Annotated::read(terms)?.unwrap_or_default();
    if annotated.memory.is_none() {
        return Err(Error::NoMemoryTerm);
    }
    let compute = ComputeTerms {
        policy: annotated.policy,
        percent: annotated.percent,
        weight: annotated.weight,
        priority: annotated.priority.unwrap_or_default(),
        ..ComputeTerms::default()
    };
    let mut wrong = None;
    for &policy in ComputePolicy::ALL {
        let rules = CardRules {
            policy,
            ..CardRules::default()
        };
        match resolve(&compute, &rules) {
            Err(TimeRefusal::Terms(error)) => wrong = wrong.or(Some(error)),
            // Rules and what else is on a card are that card's.
            Ok(_)
            | Err(
                TimeRefusal::Rules(_) | TimeRefusal::Full { .. } | TimeRefusal::Unresolved { .. },
            ) => return Ok(()),
        }
    }
    wrong.map_or(Ok(()), |error| Err(Error::Together(error)))
}
