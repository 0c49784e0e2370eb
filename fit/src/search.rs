//! Whether claims fit a node's cards: what the scheduler would answer, and what each card lacks. Pure.
//!
//! As the scheduler's allocator does it: first fit in the order of the cards, each card of one request another one, all claims of a pod on one
//! node, with every way back.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use dra::quantity;
use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceCapacity, DeviceConstraint};

use crate::cards::{Card, taint};
use crate::lack::Lack;
use crate::needs::{Need, Needs};
use crate::toleration::tolerates;

use self::effort::Chosen;
pub(crate) use self::effort::Effort;

mod effort;

/// Whether a need fits a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// It does.
    Fits {
        /// What it takes, by capacity.
        takes: BTreeMap<String, u64>,
        /// Expressions that were not evaluated.
        unknown: BTreeSet<String>,
    },
    /// All of its reasons.
    Lacks(Vec<Lack>),
}

/// Whether all needs fit a node's cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There is a way.
    Fits {
        /// Request and number of the card, as the scheduler would take them.
        given: Vec<(String, usize)>,
        /// There is if these expressions choose them, which were not evaluated.
        unknown: BTreeSet<String>,
    },
    /// No way.
    Not,
    /// More ways than are looked at.
    TooMany,
}

/// Steps of a search, and of all searches for a pod on one node: 0.9 s in a development build.
pub(crate) const STEPS_MAX: usize = 50_000;

/// Pairs of cards that are compared for one step more.
const COMPARED_IN_A_STEP: usize = 64;

/// What a search has given of a card.
type Extra = BTreeMap<usize, Vec<BTreeMap<String, u64>>>;

/// Looks at one card for one need. `extra`: what the same search has given of it.
pub fn fit(need: &Need, card: &Card, extra: &[BTreeMap<String, u64>]) -> Fit {
    let Chosen { mut lacks, unknown } = Chosen::of(need, card);
    let takes = match takes(need, card, extra) {
        Ok(takes) if lacks.is_empty() => return Fit::Fits { takes, unknown },
        other => other,
    };
    lacks.extend(takes.err().into_iter().flatten());
    lacks.sort();
    Fit::Lacks(lacks)
}

/// What a need takes of a card, whatever its selectors say of it.
///
/// # Errors
/// All that the card lacks.
fn takes(
    need: &Need,
    card: &Card,
    extra: &[BTreeMap<String, u64>],
) -> Result<BTreeMap<String, u64>, Vec<Lack>> {
    let mut lacks = Vec::new();
    for one in card.taints() {
        let is_kept_away = matches!(one.effect.as_str(), "NoSchedule" | "NoExecute");
        if is_kept_away
            && !need
                .tolerations
                .iter()
                .any(|tolerated| tolerates(tolerated, one))
        {
            lacks.push(Lack::Tainted(taint(one)));
        }
    }
    let mut takes = BTreeMap::new();
    for name in need.capacities.keys() {
        if card.capacity(name).is_none() {
            lacks.push(Lack::Absent(name.clone()));
        }
    }
    if !card.is_shared() && (!card.shares.is_empty() || !extra.is_empty()) {
        lacks.push(Lack::Taken);
    }
    for (name, capacity) in card.device.capacity.iter().flatten() {
        let total = card.total(name);
        let named = need.capacities.get(name).copied();
        if !card.is_shared() {
            // It is taken as a whole, if it has as much as is named.
            if named.is_some_and(|needed| needed > total) {
                lacks.push(small(name, named.unwrap_or(0), total));
            }
            continue;
        }
        let Some(taken) = taken(capacity, named, total) else {
            lacks.push(small(name, named.unwrap_or(0), total));
            continue;
        };
        let of_extra = extra.iter().filter_map(|one| one.get(name).copied());
        let used = of_extra.fold(card.given(name), u64::saturating_add);
        let left = total.saturating_sub(used);
        if taken > left {
            lacks.push(Lack::Left {
                capacity: name.clone(),
                needed: taken,
                left,
                total,
            });
        }
        takes.insert(name.clone(), taken);
    }
    if lacks.is_empty() {
        Ok(takes)
    } else {
        Err(lacks)
    }
}

/// Another claim has it, or a taint keeps from it.
fn is_kept_away(lack: &Lack) -> bool {
    matches!(lack, Lack::Taken | Lack::Tainted(_))
}

fn small(name: &str, needed: u64, total: u64) -> Lack {
    Lack::Small {
        capacity: name.to_owned(),
        needed,
        total,
    }
}

/// What a request takes of a capacity, by its policy. `None`: the policy has no such amount.
fn taken(capacity: &DeviceCapacity, named: Option<u64>, total: u64) -> Option<u64> {
    let Some(policy) = &capacity.request_policy else {
        return named.map_or(Some(total), |named| (named <= total).then_some(named));
    };
    let default = policy
        .default
        .as_ref()
        .and_then(|amount| quantity::whole(&amount.0));
    let needed = named.or(default).unwrap_or(total);
    if let Some(values) = &policy.valid_values {
        let mut values: Vec<u64> = values
            .iter()
            .filter_map(|value| quantity::whole(&value.0))
            .collect();
        values.sort_unstable();
        return values.into_iter().find(|value| *value >= needed);
    }
    let Some(range) = &policy.valid_range else {
        return (needed <= total).then_some(needed);
    };
    let min = quantity::whole(&range.min.0)?;
    let max = range
        .max
        .as_ref()
        .and_then(|max| quantity::whole(&max.0))
        .unwrap_or(total);
    let step = range
        .step
        .as_ref()
        .and_then(|step| quantity::whole(&step.0));
    let above = needed.saturating_sub(min);
    let above = match step {
        Some(step) if step > 0 => above.div_ceil(step).checked_mul(step)?,
        _ => above,
    };
    let taken = min.checked_add(above)?;
    (taken <= max).then_some(taken)
}

/// Looks for cards of one node for all claims of a pod.
pub fn search(claims: &[&Needs], cards: &[Card]) -> Outcome {
    search_within(claims, cards, &mut Effort::of(STEPS_MAX))
}

/// The same, with what is left of an effort: for the same claims and devices, of which other claims may have more or less each time.
pub(crate) fn search_within(claims: &[&Needs], cards: &[Card], effort: &mut Effort) -> Outcome {
    let mut steps = Vec::new();
    for (claim, needs) in claims.iter().enumerate() {
        steps.extend((0..needs.requests.len()).map(|request| (claim, request)));
    }
    let mut search = Search {
        claims,
        cards,
        order: steps,
        given: Vec::new(),
        extra: Extra::new(),
        effort,
        is_over: false,
    };
    if search.requests(0) {
        let unknown = search
            .given
            .iter()
            .filter_map(|one| one.chosen.as_ref())
            .flat_map(|chosen| chosen.unknown.clone())
            .collect();
        let given = search.given.iter();
        return Outcome::Fits {
            given: given.map(|one| (one.request.clone(), one.card)).collect(),
            unknown,
        };
    }
    if search.effort.left() == 0 {
        Outcome::TooMany
    } else {
        Outcome::Not
    }
}

/// A card of a request.
struct Given {
    claim: usize,
    request: String,
    card: usize,
    chosen: Option<Rc<Chosen>>,
}

struct Search<'a> {
    claims: &'a [&'a Needs],
    cards: &'a [Card],
    /// Claim and request, in turn.
    order: Vec<(usize, usize)>,
    given: Vec<Given>,
    extra: Extra,
    effort: &'a mut Effort,
    /// No other way is looked for.
    is_over: bool,
}

impl<'a> Search<'a> {
    /// Serves the requests from this one on.
    fn requests(&mut self, at: usize) -> bool {
        let Some((claim, request)) = self.order.get(at).copied() else {
            return true;
        };
        let claims: &'a [&'a Needs] = self.claims;
        let ways = claims
            .get(claim)
            .and_then(|needs| needs.requests.get(request));
        ways.into_iter().flatten().any(|need| {
            !self.is_over
                && match need.cards() {
                    Some(count) => self.cards_of(at, claim, need, count, 0),
                    None => self.all_of(at, claim, need),
                }
        })
    }

    /// Takes `count` cards from this one on, then serves the rest.
    fn cards_of(
        &mut self,
        at: usize,
        claim: usize,
        need: &Need,
        count: usize,
        from: usize,
    ) -> bool {
        if count == 0 {
            return self.requests(at + 1);
        }
        for index in from..self.cards.len() {
            if self.is_over || !self.effort.spend(1) {
                return false;
            }
            if !self.give(claim, need, index) {
                continue;
            }
            if self.cards_of(at, claim, need, count - 1, index + 1) {
                return true;
            }
            self.take_back();
        }
        false
    }

    /// Every card that is chosen and has, before this search, enough left: one at least. Each of them has to be had, also one with a taint.
    fn all_of(&mut self, at: usize, claim: usize, need: &Need) -> bool {
        let before = self.given.len();
        let cards: &'a [Card] = self.cards;
        if !self.effort.spend(cards.len()) {
            return false;
        }
        let has_all = cards.iter().enumerate().all(|(index, card)| {
            !self.is_meant(need, index, card) || self.give_in_any_case(claim, need, index)
        });
        if has_all && self.given.len() > before && self.requests(at + 1) {
            return true;
        }
        while self.given.len() > before {
            self.take_back();
        }
        false
    }

    fn is_meant(&mut self, need: &Need, index: usize, card: &Card) -> bool {
        let is_chosen = self.effort.chosen(need, index, card).lacks.is_empty();
        is_chosen
            && takes(need, card, &[]).map_or_else(|lacks| lacks.iter().all(is_kept_away), |_| true)
    }

    /// A card of those that a request needs all of. One that a constraint keeps from it is an error to the allocator, which ends the
    /// search: no other way would make the claim sensible.
    fn give_in_any_case(&mut self, claim: usize, need: &Need, index: usize) -> bool {
        if self.give(claim, need, index) {
            return true;
        }
        let cards: &'a [Card] = self.cards;
        let is_free = cards.get(index).is_some_and(|card| {
            let lacks = takes(need, card, self.extra_of(index)).err();
            !lacks.iter().flatten().any(is_kept_away)
        });
        if is_free {
            self.given.push(Given {
                claim,
                request: need.request.clone(),
                card: index,
                chosen: None,
            });
            self.is_over = !self.keeps_constraints(claim);
            self.given.pop();
        }
        false
    }

    fn extra_of(&self, index: usize) -> &[BTreeMap<String, u64>] {
        self.extra
            .get(&index)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    fn give(&mut self, claim: usize, need: &Need, index: usize) -> bool {
        let cards: &'a [Card] = self.cards;
        let Some(card) = cards.get(index) else {
            return false;
        };
        let chosen = self.effort.chosen(need, index, card);
        if !chosen.lacks.is_empty() {
            return false;
        }
        let Ok(takes) = takes(need, card, self.extra_of(index)) else {
            return false;
        };
        // Constraints compare each card with each: many of these count for more than one step.
        let constraints = self.claims.get(claim).map_or(0, |of| of.constraints.len());
        let given = self.given.len();
        let compared = constraints.saturating_mul(given).saturating_mul(given);
        if !self.effort.spend(compared / COMPARED_IN_A_STEP) {
            return false;
        }
        self.given.push(Given {
            claim,
            request: need.request.clone(),
            card: index,
            chosen: Some(chosen),
        });
        if !self.keeps_constraints(claim) {
            self.given.pop();
            return false;
        }
        self.extra.entry(index).or_default().push(takes);
        true
    }

    fn take_back(&mut self) {
        if let Some(given) = self.given.pop()
            && let Some(extra) = self.extra.get_mut(&given.card)
        {
            extra.pop();
            if extra.is_empty() {
                self.extra.remove(&given.card);
            }
        }
    }

    /// What a claim says of several of its cards.
    fn keeps_constraints(&self, claim: usize) -> bool {
        let Some(needs) = self.claims.get(claim) else {
            return true;
        };
        needs.constraints.iter().all(|constraint| {
            let cards = self
                .given
                .iter()
                .filter(|given| given.claim == claim && is_named(constraint, &given.request));
            let cards = cards.filter_map(|given| self.cards.get(given.card));
            let name = constraint
                .match_attribute
                .as_ref()
                .or(constraint.distinct_attribute.as_ref());
            let Some(name) = name else { return true };
            let values: Vec<Option<&DeviceAttribute>> =
                cards.map(|card| value(card, name)).collect();
            let is_known = values.iter().all(Option::is_some);
            let differ = |a: &Option<&DeviceAttribute>, b: &Option<&DeviceAttribute>| a != b;
            let mut pairs = values.iter().enumerate();
            is_known
                && pairs.all(|(at, a)| {
                    let mut others = values.iter().skip(at + 1);
                    others.all(|b| differ(a, b) == constraint.match_attribute.is_none())
                })
        })
    }
}

/// A constraint without requests is of all of the claim's; one that names a request is of its alternatives too.
fn is_named(constraint: &DeviceConstraint, request: &str) -> bool {
    let base = request.split('/').next().unwrap_or(request);
    let Some(names) = constraint
        .requests
        .as_ref()
        .filter(|names| !names.is_empty())
    else {
        return true;
    };
    names.iter().any(|name| name == request || name == base)
}

/// An attribute by its qualified name: ours are published without their domain.
fn value<'a>(card: &'a Card, name: &str) -> Option<&'a DeviceAttribute> {
    let own = name
        .strip_prefix(dra::DRIVER)
        .and_then(|rest| rest.strip_prefix('/'));
    let attributes = card.device.attributes.as_ref()?;
    attributes.get(name).or_else(|| attributes.get(own?))
}

#[cfg(test)]
#[path = "search/tests/allocator.rs"]
mod allocator;
#[cfg(test)]
pub(crate) mod tests;
