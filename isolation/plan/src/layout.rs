//! Terms of all live containers of a card → each one's slices and gate.
//!
//! Three shapes:
//! - **slices**: everyone's gate is open, the hardware's round divides the time: preemptive, weighted, soft, native.
//! - **cyclic schedule**: fixed and fair-share own a segment each, and so do preemptive and weighted where idle time is wasted; all others
//!   share one more segment, and divide it by slices.
//! - **online**: containers of high priority are never gated and have long slices; the others take turns on a cyclic schedule of their own.

use crate::gate::GateSchedule;
use crate::policy::Policy;
use crate::rules::{CardRules, Costs};
use crate::terms::Terms;
use crate::{circle, window};

mod places;
mod plan;
mod slices;

pub use places::gang_place;

use plan::{Part, Plan};

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
        // Only order depends on it, and ties fall to the key.
        let id = fnv1a(key.as_bytes());
        (cards > 1).then_some(Self { id, size: cards })
    }
}

/// FNV-1a of some bytes, which nothing is kept secret or safe by.
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A container as its record shows it at a given time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant {
    /// Which: unique on the card.
    pub key: String,
    /// Since when its broker holds the record.
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
    /// This share, no more and no less: its drift correction holds it there.
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
    /// High priority: the slice of each of its groups while it is held to its part of the card's prio_ratio.
    pub capped_slice_us: Option<u64>,
    /// When its channels are enabled.
    pub gate: GateSchedule,
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
    /// Knob calls per second that the gates need.
    pub calls_per_s: u64,
    /// Whether that is more than the card's [`Costs::calls_per_s`], even with the longest window.
    pub over_budget: bool,
    /// Whether more was reserved than there is, so that all got less: admission lets this not happen.
    pub oversubscribed: bool,
    /// What is in nobody's segment, parts of a window.
    pub free_ppm: u32,
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

    /// Whether a container may use the time of another's segment: its owners are idle and lend it, and this one is of the first
    /// after them, in the order of the cyclic schedule, that lend and are not idle.
    pub fn borrows(&self, key: &str, at_ns: u64, idle: impl Fn(&str) -> bool) -> bool {
        // Those whose gates turn together are one: idle when all of them are.
        let mut lenders: Vec<(u64, Vec<&Share>)> = Vec::new();
        for share in self.shares.iter().filter(|share| share.lends) {
            let Some(first) = share.gate.segments().first() else {
                continue;
            };
            let alike = |(_, others): &&mut (u64, Vec<&Share>)| {
                others.first().is_some_and(|other| other.gate == share.gate)
            };
            match lenders.iter_mut().find(alike) {
                Some((_, others)) => others.push(share),
                None => lenders.push((first.offset_ns, vec![share])),
            }
        }
        lenders.sort_by_key(|(offset_ns, _)| *offset_ns);
        let all_idle = |shares: &[&Share]| shares.iter().all(|share| idle(&share.key));
        let Some(owner) = lenders.iter().position(|(_, shares)| {
            let first = shares.first();
            first.is_some_and(|share| share.gate.is_open(self.window_ns, at_ns))
        }) else {
            return false;
        };
        if !lenders
            .get(owner)
            .is_some_and(|(_, shares)| all_idle(shares))
        {
            return false;
        }
        lenders
            .iter()
            .cycle()
            .skip(owner + 1)
            .take(lenders.len().saturating_sub(1))
            .find(|(_, shares)| !all_idle(shares))
            .is_some_and(|(_, shares)| {
                shares
                    .iter()
                    .any(|share| share.key == key && !idle(&share.key))
            })
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
                Part::Open => GateSchedule::Open,
                Part::Own => circle::gate(window_ns, arcs),
                Part::Pool => pool_gate.clone(),
                Part::Waiting => GateSchedule::Closed,
            };
            let (slice_us, bent) = plan.slice_us(member, rules, round, gate.open_ns(window_ns));
            Share {
                key: member.tenant.key.clone(),
                promise: member.promise,
                entitlement_ppm: member.entitlement_ppm,
                slice_us,
                capped_slice_us: plan.capped_us(member, rules),
                lends: member.lends && gate.is_gated(),
                place_ppm: places::start_of(arcs)
                    .filter(|_| member.tenant.terms.policy == Policy::FairShare)
                    .filter(|place| places::on_grid(*place, rules)),
                gate,
                bent,
            }
        })
        .collect::<Vec<_>>();
    shares.sort_by(|one, other| one.key.cmp(&other.key));
    Layout {
        window_ns,
        free_ppm: placed.free_ppm,
        round_us: round.round_us,
        calls_per_s: window::calls_per_s(calling, window_ns),
        over_budget: !window::fits_budget(calling, window_ns, costs),
        oversubscribed: plan.oversubscribed,
        shares,
    }
}
