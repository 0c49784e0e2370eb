//! Who takes part in which way, and what each gets.

use crate::policy::Policy;
use crate::portions::{self, Claimant};
use crate::rules::{CardRules, Costs, Idle};
use crate::terms::{Priority, Terms};
use crate::{PERCENT_PPM, WHOLE_PPM, window};

use super::{Promise, Tenant};

/// What is lost where one segment follows another, beyond the switch itself: the calls of two brokers do not meet to the
/// microsecond (measured in virtual time with timers that are 50 us late and calls that vary by 40 us).
const EDGE_US: u32 = 80;

/// How a container takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Never gated.
    Open,
    /// In a segment of its own.
    Own,
    /// In the segment that all who own none share.
    Pool,
    /// On the cyclic schedule once it is counted as present.
    Waiting,
}

/// A tenant with what it gets.
pub(super) struct Member<'t> {
    pub(super) tenant: &'t Tenant,
    pub(super) part: Part,
    pub(super) promise: Promise,
    pub(super) entitlement_ppm: u32,
    /// Its segment, or its part of the slices of those it shares with.
    pub(super) segment_ppm: u32,
    /// Its segment with the switch that it begins with, of which its owner gets nothing: see [`Plan::widen`].
    pub(super) length_ppm: u32,
    pub(super) lends: bool,
}

/// Everything but places and times.
pub(super) struct Plan<'t> {
    /// In the order of placement.
    pub(super) members: Vec<Member<'t>>,
    pub(super) oversubscribed: bool,
    pub(super) online: bool,
    /// The segment that those who own none share, with its switch.
    pub(super) pool_length_ppm: u32,
}

impl<'t> Plan<'t> {
    pub(super) fn of(rules: &CardRules, tenants: &'t [Tenant]) -> Self {
        let mut sorted = tenants.iter().collect::<Vec<_>>();
        sorted.sort_by_key(|tenant| {
            let gang = tenant.gang.filter(|gang| gang.size > 1);
            (
                std::cmp::Reverse(gang.map_or(1, |gang| gang.size)),
                gang.map(|gang| gang.id),
                tenant.join_ns,
                *tenant,
            )
        });
        // Two of one key cannot be: the first stands.
        let mut seen = std::collections::BTreeSet::new();
        sorted.retain(|tenant| seen.insert(tenant.key.as_str()));
        let online = sorted
            .iter()
            .any(|tenant| tenant.terms.priority == Priority::High);
        let mut plan = if online {
            Self::online(rules, &sorted)
        } else {
            Self::even(rules, &sorted)
        };
        plan.widen(&rules.costs);
        plan
    }

    /// With containers of high priority: the others take turns.
    fn online(rules: &CardRules, sorted: &[&'t Tenant]) -> Self {
        let high = |tenant: &Tenant| tenant.terms.priority == Priority::High;
        let prio_ppm = rules.prio_ratio_percent.min(99) * PERCENT_PPM;
        let highs = weights(sorted.iter().filter(|tenant| high(tenant)));
        let turns = weights(
            sorted
                .iter()
                .filter(|tenant| !high(tenant) && tenant.groups > 0),
        );
        let mut high_ppm = portions::divide(prio_ppm, &highs).into_iter();
        let mut left_ppm = portions::divide(WHOLE_PPM - prio_ppm, &turns).into_iter();
        let mut turn_ppm = portions::divide(WHOLE_PPM, &turns).into_iter();
        let crowded = !turns.is_empty();
        let members = sorted
            .iter()
            .map(|tenant| {
                let (part, promise, entitlement_ppm, segment_ppm) = if high(tenant) {
                    let ppm = high_ppm.next().unwrap_or(0);
                    (Part::Open, Promise::UpTo, ppm, ppm)
                } else if tenant.groups > 0 {
                    let entitlement = left_ppm.next().unwrap_or(0);
                    let segment = turn_ppm.next().unwrap_or(0);
                    (Part::Own, Promise::Leftover, entitlement, segment)
                } else if crowded {
                    (Part::Waiting, Promise::Leftover, 0, 0)
                } else {
                    (Part::Open, Promise::Leftover, 0, 0)
                };
                Member {
                    tenant,
                    part,
                    promise,
                    entitlement_ppm,
                    segment_ppm,
                    length_ppm: segment_ppm,
                    lends: part == Part::Own && rules.idle == Idle::Borrow,
                }
            })
            .collect();
        Self {
            members,
            oversubscribed: false,
            online: true,
            pool_length_ppm: 0,
        }
    }

    /// Without: policies alone.
    fn even(rules: &CardRules, sorted: &[&'t Tenant]) -> Self {
        let present = |tenant: &Tenant| tenant.groups > 0 && !tenant.terms.owns_segment();
        let owned = sorted
            .iter()
            .filter(|tenant| tenant.terms.owns_segment())
            .map(|tenant| Claimant {
                floor_ppm: tenant.terms.reserved_ppm(rules),
                weight: 0,
            })
            .collect::<Vec<_>>();
        let reserved: u64 = owned.iter().map(|claim| u64::from(claim.floor_ppm)).sum();
        let oversubscribed = reserved > u64::from(WHOLE_PPM);
        let reserved_ppm = u32::try_from(reserved).unwrap_or(WHOLE_PPM).min(WHOLE_PPM);
        let mut owned_ppm = if oversubscribed {
            portions::divide(WHOLE_PPM, &owned)
        } else {
            owned.iter().map(|claim| claim.floor_ppm).collect()
        }
        .into_iter();
        let sharing: Vec<_> = sorted.iter().copied().filter(|it| present(it)).collect();
        let shared = claims(rules, &sharing);
        let mut shared_ppm = portions::divide(WHOLE_PPM - reserved_ppm, &shared).into_iter();
        let strict = |tenant: &Tenant| wastes(rules, tenant);
        let turns = has_turns(rules, sorted);
        // One that shares with others, and whose broker has found a place for it on all its cards.
        let apart =
            |tenant: &Tenant| present(tenant) && shares_apart(tenant) && tenant.place_ppm.is_some();
        let any_apart = sorted.iter().any(|tenant| apart(tenant)) && (turns || sharing.len() > 1);
        let is_cyclic = turns || any_apart;
        let free = WHOLE_PPM > reserved_ppm;
        let members = sorted
            .iter()
            .map(|tenant| {
                let segment_ppm = if tenant.terms.owns_segment() {
                    owned_ppm.next().unwrap_or(0)
                } else if tenant.groups > 0 {
                    shared_ppm.next().unwrap_or(0)
                } else {
                    0
                };
                let part = match () {
                    () if tenant.terms.owns_segment() => Part::Own,
                    () if !is_cyclic => Part::Open,
                    () if tenant.groups == 0 && strict(tenant) => Part::Waiting,
                    () if strict(tenant) => Part::Own,
                    () if free && apart(tenant) => Part::Own,
                    () if free => Part::Pool,
                    () => Part::Waiting,
                };
                let exact = tenant.terms.owns_segment() || strict(tenant);
                let promise = if tenant.terms.policy == Policy::Native {
                    Promise::Nothing
                } else if exact {
                    Promise::Exactly
                } else {
                    Promise::AtLeast
                };
                Member {
                    tenant,
                    part,
                    promise,
                    entitlement_ppm: segment_ppm,
                    segment_ppm,
                    length_ppm: segment_ppm,
                    // In one segment or in two: what one of those who share has no use for is the others'.
                    lends: any_apart && tenant.groups > 0 && promise == Promise::AtLeast,
                }
            })
            .collect();
        Self {
            members,
            oversubscribed,
            online: false,
            pool_length_ppm: 0,
        }
    }

    /// Each segment begins with a switch: without a time for it, a short segment would lose more of its share to it than a long
    /// one. Where the cyclic schedule has room the segments are longer by it; where it has none, all shares pay for all switches alike.
    /// Fair-share stays on its grid: its segments are equal anyway.
    fn widen(&mut self, costs: &Costs) {
        let window_ns = self.window_ns(costs).max(1);
        let whole = u64::from(WHOLE_PPM);
        let ppm_of = |us: u32| u64::from(us) * 1_000 * whole / window_ns;
        let (switch_ppm, edge_ppm) = (ppm_of(costs.switch_us), ppm_of(costs.switch_us + EDGE_US));
        let widened = |member: &Member<'_>| {
            member.part == Part::Own
                && member.tenant.terms.policy != Policy::FairShare
                && (1..WHOLE_PPM).contains(&member.segment_ppm)
        };
        let own = self
            .members
            .iter()
            .filter(|member| member.part == Part::Own);
        let kept: u64 = own
            .clone()
            .filter(|member| !widened(member))
            .map(|member| u64::from(member.segment_ppm))
            .sum();
        let pool = u64::from(self.pool_ppm());
        let (mut count, mut sum) = (u64::from(pool > 0 && pool < whole), pool);
        for member in own.filter(|member| widened(member)) {
            count += 1;
            sum += u64::from(member.segment_ppm);
        }
        let switches = count * switch_ppm;
        let edges = count * edge_ppm;
        let free = whole.saturating_sub(kept);
        // Where switches would take most of the card, shares stay as they are.
        let length = |segment: u32| {
            let segment = u64::from(segment);
            let length = if sum + switches <= free {
                segment + switch_ppm
            } else if edges < free / 2 && sum > 0 {
                edge_ppm + segment * (free - edges) / sum
            } else {
                segment
            };
            u32::try_from(length).unwrap_or(WHOLE_PPM)
        };
        for member in &mut self.members {
            if widened(member) {
                member.length_ppm = length(member.segment_ppm);
            }
        }
        self.pool_length_ppm = match pool {
            0 => 0,
            pool if pool >= whole => WHOLE_PPM,
            _ => length(u32::try_from(pool).unwrap_or(WHOLE_PPM)),
        };
    }

    /// What those who own no segment have together.
    pub(super) fn pool_ppm(&self) -> u32 {
        self.members
            .iter()
            .filter(|member| member.part == Part::Pool)
            .map(|member| member.segment_ppm)
            .sum()
    }

    /// Segments are counted of all who are listed, and not of those alone that have channels now: else a container that makes and frees
    /// them over and over would change the windows of all. Only where the budget of calls is short does it matter who calls.
    pub(super) fn window_ns(&self, costs: &Costs) -> u64 {
        let gated = u32::try_from(self.gated().count()).unwrap_or(u32::MAX);
        let each_ns = if self.online { 20_000_000 } else { 10_000_000 };
        let own = self
            .members
            .iter()
            .filter(|member| member.part == Part::Own)
            .map(|member| member.segment_ppm);
        let pool = self.pool_free_ppm();
        window::choose(
            &window::Need {
                gated,
                calling: self.calling(),
                least_ppm: own.chain([pool]).filter(|ppm| *ppm > 0).min().unwrap_or(0),
                each_ns,
                gang: self.gated().any(|member| is_gang(member.tenant)),
            },
            costs,
        )
    }

    /// What those who own no segment have together as soon as one of them has channels.
    fn pool_free_ppm(&self) -> u32 {
        let pool = self.members.iter().any(|member| member.part == Part::Pool);
        let own = self.members.iter().filter(|it| it.part == Part::Own);
        let owned = own
            .map(|member| member.segment_ppm)
            .fold(0, u32::saturating_add);
        match pool {
            true => WHOLE_PPM.saturating_sub(owned),
            false => 0,
        }
    }

    /// Those whose gate will not always be open.
    fn gated(&self) -> impl Iterator<Item = &Member<'t>> {
        let whole = |member: &&Member<'t>| {
            matches!(member.part, Part::Own | Part::Pool) && member.segment_ppm < WHOLE_PPM
        };
        self.members.iter().filter(whole)
    }

    /// How many gates cost calls.
    pub(super) fn calling(&self) -> u32 {
        let calling = self
            .gated()
            .filter(|member| member.tenant.groups > 0)
            .count();
        u32::try_from(calling).unwrap_or(u32::MAX)
    }
}

fn weight(terms: &Terms) -> u32 {
    match terms.policy {
        Policy::Weighted | Policy::Soft => terms.weight.max(1),
        Policy::FairShare | Policy::Preemptive | Policy::Fixed | Policy::Native => 1,
    }
}

fn weights<'a, 't: 'a>(tenants: impl Iterator<Item = &'a &'t Tenant>) -> Vec<Claimant> {
    tenants
        .map(|tenant| Claimant {
            floor_ppm: PERCENT_PPM,
            weight: weight(&tenant.terms),
        })
        .collect()
}

/// What those who own no segment claim of what is left. Beside others, one of low priority has its floor alone.
fn claims(rules: &CardRules, sharing: &[&Tenant]) -> Vec<Claimant> {
    let low = |tenant: &&Tenant| tenant.terms.priority == Priority::Low;
    let only_low = sharing.iter().all(low);
    sharing
        .iter()
        .map(|tenant| Claimant {
            floor_ppm: tenant.terms.reserved_ppm(rules).max(PERCENT_PPM),
            weight: match low(tenant) && !only_low {
                true => 0,
                false => weight(&tenant.terms),
            },
        })
        .collect()
}

/// Whether the card has segments whatever gangs there are: those of fixed, of fair-share, of whoever is not to lend, and of all beside
/// high priority.
pub(super) fn has_turns(rules: &CardRules, tenants: &[&Tenant]) -> bool {
    tenants
        .iter()
        .any(|tenant| tenant.terms.owns_segment() || (tenant.groups > 0 && wastes(rules, tenant)))
}

/// Whether it has a segment for itself, and nobody else has the use of it.
fn wastes(rules: &CardRules, tenant: &Tenant) -> bool {
    rules.idle == Idle::Waste
        && matches!(tenant.terms.policy, Policy::Preemptive | Policy::Weighted)
}

/// Whether it is a gang of those that share a segment: it can have its part of that at a time of its own.
pub(super) fn shares_apart(tenant: &Tenant) -> bool {
    is_gang(tenant)
        && matches!(
            tenant.terms.policy,
            Policy::Preemptive | Policy::Weighted | Policy::Soft
        )
}

pub(super) fn is_gang(tenant: &Tenant) -> bool {
    tenant.gang.is_some_and(|gang| gang.size > 1)
}
