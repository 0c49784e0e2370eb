//! Terms of all live containers of a card → each one's slices and gate.
//!
//! Three shapes:
//! - **slices**: everyone's gate is open, the hardware's round divides the time: preemptive, weighted, soft, native.
//! - **wheel**: fixed and fair-share own a segment each, and so do preemptive and weighted where idle time is wasted; all others
//!   share one more segment, and divide it by slices.
//! - **online**: containers of high priority are never gated and have long slices; the others take turns on a wheel of their own.

use crate::circle::{self, Arc, Circle};
use crate::gate::Gate;
use crate::portions::{self, Claimant};
use crate::rules::{CardRules, Costs, Idle};
use crate::slice;
use crate::terms::{Policy, Priority, Terms};
use crate::{PERCENT_PPM, WHOLE_PPM, window};

/// A container with slices of several cards, which should run on all of them at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gang {
    /// The same on all its cards; of no meaning but order.
    pub id: u64,
    /// How many cards.
    pub size: u32,
}

impl Gang {
    /// The gang of the container with this key on this many cards; `None` for a single card.
    #[must_use]
    pub fn of(key: &str, cards: u32) -> Option<Self> {
        // FNV-1a: only order depends on it, and ties fall to the key.
        let id = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (cards > 1).then_some(Self { id, size: cards })
    }
}

/// A container as its slot shows it at a given time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant {
    /// Which: unique on the card.
    pub key: String,
    /// Since when its broker holds the slot.
    pub join_ns: u64,
    /// Where it has several cards.
    pub gang: Option<Gang>,
    /// What it was promised.
    pub terms: Terms,
    /// Its live channel groups on the graphics engine: 0 where it is not present.
    pub groups: u32,
    /// Where its segment begins, parts of a window, if its broker has published a place: see [`Share::place_ppm`].
    pub place_ppm: Option<u32>,
}

/// What a container can count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// This share, no more and no less: its trim holds it there.
    Exactly,
    /// This share, and more while others are idle.
    AtLeast,
    /// Up to this share before all others: high priority.
    UpTo,
    /// This share of the card if those of high priority take all they may; otherwise its part of what they leave.
    Leftover,
    /// Nothing: native.
    Nothing,
}

/// One container's part of a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Whose.
    pub key: String,
    /// What the number means.
    pub promise: Promise,
    /// Part of the card's time; 0 for one that is not present and reserves nothing.
    pub entitlement_ppm: u32,
    /// The slice of each of its channel groups, as the hardware holds it.
    pub slice_us: u64,
    /// High priority: the slice of each of its groups while it has used more of the last second than the card's prio_ratio.
    pub capped_slice_us: Option<u64>,
    /// When its channels are enabled.
    pub gate: Gate,
    /// Whether others may use its segment while it has nothing to do, and it theirs.
    pub lends: bool,
    /// Where its segment begins, parts of a window, if it must not move while the container lives (fair-share): its broker
    /// publishes this as [`crate::Claim::place_ppm`]. A gang's broker publishes [`gang_place`] instead.
    pub place_ppm: Option<u32>,
    /// Whether a bound of slices moved the share away from its entitlement.
    pub bent: bool,
}

/// How a card's time is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Windows start at the multiples of this on the clock.
    pub window_ns: u64,
    /// The longest that one who comes out of idleness waits for those whose slices it shares with.
    pub round_us: u64,
    /// Lever calls per second that the gates need.
    pub calls_per_s: u64,
    /// Whether that is more than the card's [`Costs::calls_per_s`], even with the longest window.
    pub over_budget: bool,
    /// Whether more was reserved than there is, so that all got less: admission lets this not happen.
    pub oversubscribed: bool,
    /// In the order of their keys.
    pub shares: Vec<Share>,
}

impl Layout {
    /// One container's share.
    #[must_use]
    pub fn share(&self, key: &str) -> Option<&Share> {
        self.shares
            .binary_search_by(|share| share.key.as_str().cmp(key))
            .ok()
            .and_then(|at| self.shares.get(at))
    }

    /// Whether a container may use the time of another's segment: its owner is idle and lends it, and this one is the first
    /// after the owner, in the order of the wheel, that lends and is not idle.
    pub fn borrows(&self, key: &str, at_ns: u64, idle: impl Fn(&str) -> bool) -> bool {
        let mut lenders = self
            .shares
            .iter()
            .filter(|share| share.lends)
            .filter_map(|share| Some((share.gate.segments().first()?.offset_ns, share)))
            .collect::<Vec<_>>();
        lenders.sort_by_key(|(offset_ns, _)| *offset_ns);
        let Some(owner) = lenders
            .iter()
            .position(|(_, share)| share.gate.is_open(self.window_ns, at_ns))
        else {
            return false;
        };
        if !lenders
            .get(owner)
            .is_some_and(|(_, share)| idle(&share.key))
        {
            return false;
        }
        lenders
            .iter()
            .cycle()
            .skip(owner + 1)
            .take(lenders.len().saturating_sub(1))
            .find(|(_, share)| !idle(&share.key))
            .is_some_and(|(_, share)| share.key == key)
    }
}

/// How the card's time is divided among these containers. The order of `tenants` does not matter; the same containers give
/// the same layout everywhere.
#[must_use]
pub fn layout(rules: &CardRules, costs: &Costs, tenants: &[Tenant]) -> Layout {
    let plan = Plan::of(rules, tenants);
    let placed = plan.place(rules);
    let window_ns = plan.window_ns(costs);
    let calling = plan.calling();
    let pool_gate = circle::gate(window_ns, &placed.pool);
    let round = plan.round(costs, pool_gate.open_ns(window_ns));
    let mut shares = plan
        .members
        .iter()
        .zip(&placed.own)
        .map(|(member, arcs)| {
            let gate = match member.part {
                Part::Open => Gate::Open,
                Part::Own => circle::gate(window_ns, arcs),
                Part::Pool => pool_gate.clone(),
                Part::Waiting => Gate::Closed,
            };
            let (slice_us, bent) = plan.slice_us(member, round, gate.open_ns(window_ns));
            Share {
                key: member.tenant.key.clone(),
                promise: member.promise,
                entitlement_ppm: member.entitlement_ppm,
                slice_us,
                capped_slice_us: plan.capped_us(member, rules),
                lends: member.lends && gate.is_gated(),
                place_ppm: arcs
                    .first()
                    .filter(|_| member.tenant.terms.policy == Policy::FairShare)
                    .map(|_| start_of(arcs)),
                gate,
                bent,
            }
        })
        .collect::<Vec<_>>();
    shares.sort_by(|one, other| one.key.cmp(&other.key));
    Layout {
        window_ns,
        round_us: round.round_us,
        calls_per_s: window::calls_per_s(calling, window_ns),
        over_budget: !window::fits_budget(calling, window_ns, costs),
        oversubscribed: plan.oversubscribed,
        shares,
    }
}

/// Where the gang `key` should begin on all its cards, parts of a window: its broker alone can read them all, publishes this in
/// all its slots, and every other broker takes it from there. `cards` are its cards, with all tenants of each, itself included.
///
/// The place that it has is kept while it is free on all of them; else it is the first that is, else `None`: each card then
/// finds room for it on its own, and its parts run at different times.
#[must_use]
pub fn gang_place(cards: &[(&CardRules, &[Tenant])], key: &str) -> Option<u32> {
    // What is free beside those that keep their places, and how much it needs there.
    let mut rooms = Vec::new();
    let mut wishes = Vec::new();
    for (rules, tenants) in cards {
        let plan = Plan::of(rules, tenants);
        let Some(member) = plan
            .members
            .iter()
            .find(|member| member.tenant.key == key && member.part == Part::Own)
        else {
            continue;
        };
        let mut circle = Circle::new();
        for (other, place) in plan.keeping() {
            if other.tenant.key != key {
                // A place that is taken twice is the earlier one's; the later one will move.
                circle.take_at(place, other.segment_ppm);
            }
        }
        wishes.extend(member.tenant.place_ppm);
        if member.tenant.terms.policy == Policy::FairShare {
            wishes.extend((0..rules.max_tenants).map(|index| grid_ppm(index, rules)));
        } else {
            wishes.push(0);
            wishes.extend(circle.room_starts());
        }
        rooms.push((circle, member.segment_ppm));
    }
    let fits = |place: &u32| {
        rooms
            .iter()
            .all(|(circle, length)| circle.has_at(*place, *length))
    };
    let kept = wishes.first().copied().filter(|_| {
        cards.iter().all(|(_, tenants)| {
            tenants
                .iter()
                .filter(|tenant| tenant.key == key)
                .all(|tenant| tenant.place_ppm.is_some())
        })
    });
    kept.filter(fits).or_else(|| {
        wishes.sort_unstable();
        wishes.into_iter().find(fits)
    })
}

/// How a container takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Never gated.
    Open,
    /// In a segment of its own.
    Own,
    /// In the segment that all who own none share.
    Pool,
    /// On the wheel once it is counted as present.
    Waiting,
}

/// A tenant with what it gets.
struct Member<'t> {
    tenant: &'t Tenant,
    part: Part,
    promise: Promise,
    entitlement_ppm: u32,
    /// Its segment, or its part of the slices of those it shares with.
    segment_ppm: u32,
    lends: bool,
}

/// Everything but places and times.
struct Plan<'t> {
    /// In the order of placement.
    members: Vec<Member<'t>>,
    oversubscribed: bool,
    online: bool,
}

/// Places, by member.
struct Placed {
    own: Vec<Vec<Arc>>,
    pool: Vec<Arc>,
}

/// The round of those that share by slices.
#[derive(Debug, Clone, Copy)]
struct Round {
    round_us: u64,
}

impl<'t> Plan<'t> {
    fn of(rules: &CardRules, tenants: &'t [Tenant]) -> Self {
        let mut sorted = tenants.iter().collect::<Vec<_>>();
        sorted.sort_by_key(|tenant| {
            let gang = tenant.gang.filter(|gang| gang.size > 1);
            (
                std::cmp::Reverse(gang.map_or(1, |gang| gang.size)),
                gang.map(|gang| gang.id),
                *tenant,
            )
        });
        // Two of one key cannot be: the first stands.
        let mut seen = std::collections::BTreeSet::new();
        sorted.retain(|tenant| seen.insert(tenant.key.as_str()));
        let online = sorted
            .iter()
            .any(|tenant| tenant.terms.priority == Priority::High);
        if online {
            Self::online(rules, &sorted)
        } else {
            Self::even(rules, &sorted)
        }
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
                    lends: part == Part::Own && rules.idle == Idle::Borrow,
                }
            })
            .collect();
        Self {
            members,
            oversubscribed: false,
            online: true,
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
        let sharing = sorted.iter().filter(|tenant| present(tenant));
        let only_low = sharing
            .clone()
            .all(|tenant| tenant.terms.priority == Priority::Low);
        let shared = sharing
            .map(|tenant| {
                let floor = tenant.terms.reserved_ppm(rules).max(PERCENT_PPM);
                let low = tenant.terms.priority == Priority::Low && !only_low;
                Claimant {
                    floor_ppm: floor,
                    weight: if low { 0 } else { weight(&tenant.terms) },
                }
            })
            .collect::<Vec<_>>();
        let mut shared_ppm = portions::divide(WHOLE_PPM - reserved_ppm, &shared).into_iter();
        let strict = |tenant: &Tenant| {
            rules.idle == Idle::Waste
                && matches!(tenant.terms.policy, Policy::Preemptive | Policy::Weighted)
        };
        let wheel = !owned.is_empty()
            || sorted
                .iter()
                .any(|tenant| present(tenant) && strict(tenant));
        let room = WHOLE_PPM > reserved_ppm;
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
                    () if !wheel => Part::Open,
                    () if tenant.groups == 0 && strict(tenant) => Part::Waiting,
                    () if strict(tenant) => Part::Own,
                    () if room => Part::Pool,
                    () => Part::Waiting,
                };
                let promise = match part {
                    _ if tenant.terms.policy == Policy::Native => Promise::Nothing,
                    Part::Own => Promise::Exactly,
                    _ if strict(tenant) => Promise::Exactly,
                    _ => Promise::AtLeast,
                };
                Member {
                    tenant,
                    part,
                    promise,
                    entitlement_ppm: segment_ppm,
                    segment_ppm,
                    lends: false,
                }
            })
            .collect();
        Self {
            members,
            oversubscribed,
            online: false,
        }
    }

    /// Those with a published place of their own, in the order of placement.
    fn keeping(&self) -> impl Iterator<Item = (&Member<'t>, u32)> {
        self.members
            .iter()
            .filter(|member| member.part == Part::Own && keeps_place(member.tenant))
            .filter_map(|member| Some((member, member.tenant.place_ppm?)))
    }

    /// Everyone's place: first those that have one, by rank; then gangs; then fair-share on its grid; then the others in the
    /// order in which they came; the common segment last, where the wheel has room left.
    fn place(&self, rules: &CardRules) -> Placed {
        let mut circle = Circle::new();
        let mut own = vec![Vec::new(); self.members.len()];
        let pass =
            |circle: &mut Circle,
             own: &mut Vec<Vec<Arc>>,
             wanted: &dyn Fn(&mut Circle, &Member<'t>) -> Option<Vec<Arc>>| {
                for (member, arcs) in self.members.iter().zip(own) {
                    if member.part == Part::Own
                        && arcs.is_empty()
                        && let Some(found) = wanted(circle, member)
                    {
                        *arcs = found;
                    }
                }
            };
        pass(&mut circle, &mut own, &|circle, member| {
            let place = member.tenant.place_ppm?;
            let fair = member.tenant.terms.policy == Policy::FairShare;
            let on_grid = || (0..rules.max_tenants).any(|index| grid_ppm(index, rules) == place);
            if !keeps_place(member.tenant) || (fair && !on_grid()) {
                return None;
            }
            circle.take_at(place, member.segment_ppm)
        });
        pass(&mut circle, &mut own, &|circle, member| {
            is_gang(member.tenant).then(|| circle.place(member.segment_ppm))
        });
        pass(&mut circle, &mut own, &|circle, member| {
            (member.tenant.terms.policy == Policy::FairShare)
                .then(|| {
                    (0..rules.max_tenants).find_map(|index| {
                        circle.take_at(grid_ppm(index, rules), member.segment_ppm)
                    })
                })
                .flatten()
        });
        pass(&mut circle, &mut own, &|circle, member| {
            Some(circle.place(member.segment_ppm))
        });
        let pool = self
            .members
            .iter()
            .filter(|member| member.part == Part::Pool)
            .map(|member| member.segment_ppm)
            .sum::<u32>();
        let has_pool = self.members.iter().any(|member| member.part == Part::Pool);
        // With no one present in it the common segment is all that is left, for whoever comes.
        let pool = if has_pool && pool == 0 {
            circle.free_ppm()
        } else {
            pool
        };
        let pool = circle.place(pool);
        Placed { own, pool }
    }

    fn window_ns(&self, costs: &Costs) -> u64 {
        let gated = self.gated().count();
        let each_ns = if self.online { 20_000_000 } else { 10_000_000 };
        let own = self
            .members
            .iter()
            .filter(|member| member.part == Part::Own);
        window::choose(
            &window::Need {
                gated: u32::try_from(gated).unwrap_or(u32::MAX),
                calling: self.calling(),
                least_ppm: own
                    .clone()
                    .map(|member| member.segment_ppm)
                    .filter(|ppm| *ppm > 0)
                    .min()
                    .unwrap_or(0),
                each_ns,
                gang: self.gated().any(|member| is_gang(member.tenant)),
            },
            costs,
        )
    }

    /// Those whose gate will not always be open.
    fn gated(&self) -> impl Iterator<Item = &Member<'t>> {
        let whole = |member: &&Member<'t>| {
            matches!(member.part, Part::Own | Part::Pool) && member.segment_ppm < WHOLE_PPM
        };
        self.members.iter().filter(whole)
    }

    /// How many gates cost calls.
    fn calling(&self) -> u32 {
        let calling = self
            .gated()
            .filter(|member| member.tenant.groups > 0)
            .count();
        u32::try_from(calling).unwrap_or(u32::MAX)
    }

    /// The round of those who share by slices. `pool_ns` is what they share of a window.
    fn round(&self, costs: &Costs, pool_ns: u64) -> Round {
        let sharing = || {
            self.members
                .iter()
                .filter(|member| self.shares_slices(member) && member.tenant.groups > 0)
        };
        let count = u64::try_from(sharing().count()).unwrap_or(u64::MAX);
        // 2 % of a round at most is switches.
        let base = (50 * u64::from(costs.switch_us) * count).max(8_000);
        let sum: u64 = sharing().map(|member| u64::from(member.segment_ppm)).sum();
        // The round in which each group of this member has a slice of this length.
        let with_slice = |member: &Member<'_>, slice_us: u64| {
            let groups = u64::from(member.tenant.groups);
            (slice_us * groups * sum).div_ceil(u64::from(member.segment_ppm).max(1))
        };
        let longest = |slice_us: u64| {
            sharing()
                .map(|member| with_slice(member, slice_us))
                .max()
                .unwrap_or(0)
        };
        let most = sharing()
            .map(|member| with_slice(member, slice::MOST_US))
            .min()
            .unwrap_or(u64::MAX)
            .min(base.max(100_000));
        let mut round_us = base.max(longest(slice::LEAST_US)).min(most);
        if pool_ns > 0 {
            // Everyone should have its turn within a segment.
            round_us = round_us.min((pool_ns / 2_000).max(longest(slice::LEAST_US).min(most)));
        }
        // Rather a long round than a wrong share.
        Round {
            round_us: round_us.max(longest(slice::FLOOR_US).min(250_000)),
        }
    }

    fn shares_slices(&self, member: &Member<'_>) -> bool {
        !self.online && matches!(member.part, Part::Open | Part::Pool)
    }

    /// A member's slice per group, and whether a bound bent it.
    fn slice_us(&self, member: &Member<'_>, round: Round, open_ns: u64) -> (u64, bool) {
        let groups = u64::from(member.tenant.groups.max(1));
        if member.promise == Promise::UpTo {
            return (slice::quantise_us(self.online_us()), false);
        }
        if self.online || member.part == Part::Own || member.part == Part::Waiting {
            let slice_us = match (groups, self.online) {
                (1, _) => slice::SEGMENT_US,
                (_, true) => slice::BORROWED_US,
                // Its own groups alternate within its segment: each at least twice, with few switches.
                (_, false) => (open_ns / 2_000 / groups).clamp(slice::LEAST_US, 5_000),
            };
            return (slice::quantise_us(slice_us), false);
        }
        let sharing = || {
            self.members
                .iter()
                .filter(|other| self.shares_slices(other) && other.tenant.groups > 0)
        };
        if sharing().all(|other| other.tenant.terms.policy == Policy::Native) {
            return (slice::quantise_us(slice::DEFAULT_US), false);
        }
        if member.tenant.groups == 0 {
            return (slice::quantise_us(slice::LEAST_US), false);
        }
        let sum: u64 = sharing().map(|other| u64::from(other.segment_ppm)).sum();
        let exact = round.round_us * u64::from(member.segment_ppm) / sum.max(1) / groups;
        let slice_us = exact.max(slice::FLOOR_US);
        (
            slice::quantise_us(slice_us),
            slice_us > exact.saturating_add(1),
        )
    }

    /// The slice of containers of high priority: a second for a lone group; several take turns among themselves.
    fn online_us(&self) -> u64 {
        let groups: u64 = self
            .members
            .iter()
            .filter(|member| member.promise == Promise::UpTo)
            .map(|member| u64::from(member.tenant.groups))
            .sum();
        match groups {
            0 | 1 => slice::ONLINE_US,
            _ => (20_000 / groups).max(2_000),
        }
    }

    /// What holds a container of high priority to the ratio beside one other that is always busy.
    fn capped_us(&self, member: &Member<'_>, rules: &CardRules) -> Option<u64> {
        if member.promise != Promise::UpTo {
            return None;
        }
        let ratio = u64::from(rules.prio_ratio_percent.clamp(1, 99));
        let others = self
            .members
            .iter()
            .filter(|member| member.promise == Promise::Leftover && member.tenant.groups > 0)
            .map(|member| match member.tenant.groups {
                1 => slice::SEGMENT_US,
                groups => slice::BORROWED_US * u64::from(groups),
            })
            .min()
            .unwrap_or(slice::SEGMENT_US);
        let highs = self
            .members
            .iter()
            .filter(|member| member.promise == Promise::UpTo)
            .map(|member| u64::from(member.tenant.groups))
            .sum::<u64>()
            .max(1);
        Some(slice::quantise_us(others * ratio / (100 - ratio) / highs))
    }
}

fn weight(terms: &Terms) -> u32 {
    match terms.policy {
        Policy::Weighted | Policy::Soft => terms.weight.max(1),
        _ => 1,
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

fn is_gang(tenant: &Tenant) -> bool {
    tenant.gang.is_some_and(|gang| gang.size > 1)
}

fn keeps_place(tenant: &Tenant) -> bool {
    is_gang(tenant) || tenant.terms.policy == Policy::FairShare
}

/// Where fair-share's segment of this number begins.
fn grid_ppm(index: u32, rules: &CardRules) -> u32 {
    let at = u64::from(WHOLE_PPM) * u64::from(index) / u64::from(rules.max_tenants.max(1));
    u32::try_from(at).unwrap_or(WHOLE_PPM)
}

/// Where a segment begins whose arcs may reach over the end.
fn start_of(arcs: &[Arc]) -> u32 {
    match arcs {
        [first, .., last]
            if first.start_ppm == 0 && last.start_ppm + last.length_ppm == WHOLE_PPM =>
        {
            last.start_ppm
        }
        [first, ..] => first.start_ppm,
        [] => 0,
    }
}
