//! Whether a card can keep its promises to one more container.

use crate::policy::Policy;
use crate::rules::{CardKind, CardRules, RulesError};
use crate::terms::{Priority, Terms, TermsError};
use crate::{PERCENT_PPM, WHOLE_PPM};

/// Whether `newcomer` fits beside `live`, the terms of all other containers that were granted a slice of the card, working or
/// not. For a change of terms, `live` leaves out the old ones.
///
/// What is checked: each one's values; the number of containers with a policy other than native; that reserved shares (fixed,
/// fair-share, soft floors) leave one percent to each container that shares the rest; and that native and high priority do
/// not stand beside segments that they would take.
///
/// # Errors
/// What cannot be kept, and what is left.
pub fn admit(
    rules: &CardRules,
    live: &[Terms],
    newcomer: &Terms,
    kind: CardKind,
) -> Result<(), Refusal> {
    newcomer.validate().map_err(Refusal::Terms)?;
    let mut all = live.to_vec();
    all.push(*newcomer);
    check(rules, &all, newcomer, kind)
}

/// Whether a card can keep all these promises at once: before its rules change.
///
/// # Errors
/// As [`admit`].
pub fn admit_all(rules: &CardRules, all: &[Terms], kind: CardKind) -> Result<(), Refusal> {
    rules.validate(kind).map_err(Refusal::Rules)?;
    for terms in all {
        terms.validate().map_err(Refusal::Terms)?;
    }
    // The one that needs most speaks for all: the others' sum is what is left beside it.
    let Some(largest) = all.iter().max_by_key(|terms| needed_ppm(terms, rules)) else {
        return Ok(());
    };
    check(rules, all, largest, kind)
}

/// Free time of a card that can still be reserved, parts of a million.
#[must_use]
pub fn left_ppm(rules: &CardRules, live: &[Terms]) -> u32 {
    let needed: u64 = live
        .iter()
        .map(|terms| u64::from(needed_ppm(terms, rules)))
        .sum();
    WHOLE_PPM.saturating_sub(u32::try_from(needed).unwrap_or(WHOLE_PPM))
}

/// What must stay free for these terms: what they reserve, and one percent for those that reserve nothing.
fn needed_ppm(terms: &Terms, rules: &CardRules) -> u32 {
    match terms.reserved_ppm(rules) {
        0 => PERCENT_PPM,
        reserved => reserved,
    }
}

fn check(rules: &CardRules, all: &[Terms], asking: &Terms, kind: CardKind) -> Result<(), Refusal> {
    rules.validate(kind).map_err(Refusal::Rules)?;
    let has_owner = all.iter().any(Terms::owns_segment);
    if has_owner && all.iter().any(|terms| terms.policy == Policy::Native) {
        return Err(Refusal::NativeBesideSegments);
    }
    let has_high = all.iter().any(|terms| terms.priority == Priority::High);
    if has_high && all.iter().any(|terms| terms.reserved_ppm(rules) > 0) {
        return Err(Refusal::HighBesideReserved);
    }
    let tenants = all
        .iter()
        .filter(|terms| terms.policy != Policy::Native)
        .count();
    if tenants > usize::try_from(rules.max_tenants).unwrap_or(usize::MAX) {
        return Err(Refusal::Full {
            max_tenants: rules.max_tenants,
        });
    }
    // Where nothing is reserved the rest is everything, and its parts follow from how many there are.
    if all.iter().all(|terms| terms.reserved_ppm(rules) == 0) {
        return Ok(());
    }
    let needed: u64 = all
        .iter()
        .map(|terms| u64::from(needed_ppm(terms, rules)))
        .sum();
    if needed > u64::from(WHOLE_PPM) {
        let requested = needed_ppm(asking, rules);
        let others = u32::try_from(needed - u64::from(requested)).unwrap_or(WHOLE_PPM);
        return Err(Refusal::Reserved {
            policy: asking.policy,
            requested_ppm: requested,
            left_ppm: WHOLE_PPM.saturating_sub(others),
        });
    }
    Ok(())
}

/// Why a card does not take a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The card's rules are none.
    #[error("the card's rules: {0}")]
    Rules(RulesError),
    /// The terms are none.
    #[error("{0}")]
    Terms(TermsError),
    /// As many as it takes are there.
    #[error(
        "the card has {max_tenants} containers with compute terms already, and takes no more (max_tenants)"
    )]
    Full {
        /// How many.
        max_tenants: u32,
    },
    /// Reserved shares would exceed the card.
    #[error(
        "policy {} needs {} % of the card's compute time, {} % left to reserve",
        policy.name(), Percent(*requested_ppm), Percent(*left_ppm)
    )]
    Reserved {
        /// Whose terms could not be had.
        policy: Policy,
        /// What they reserve; one percent where they reserve nothing.
        requested_ppm: u32,
        /// What is left beside all others.
        left_ppm: u32,
    },
    /// Native containers follow no gate.
    #[error(
        "a native container cannot share a card with fixed or fair-share containers, since nothing would keep it out of their reserved time"
    )]
    NativeBesideSegments,
    /// High priority goes before everything.
    #[error(
        "a container of high priority cannot share a card with reserved shares (fixed, fair-share, or soft with a percentage), since it would take their time"
    )]
    HighBesideReserved,
}

/// Parts of a million as percent with as many places as needed.
struct Percent(u32);

impl std::fmt::Display for Percent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(ppm) = *self;
        write!(formatter, "{}", ppm / PERCENT_PPM)?;
        let places = format!("{:04}", ppm % PERCENT_PPM);
        match places.trim_end_matches('0') {
            "" => Ok(()),
            places => write!(formatter, ".{places}"),
        }
    }
}
