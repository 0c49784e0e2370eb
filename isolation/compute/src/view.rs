//! What a layout means for one container on one card.

use plan::GateSchedule;
use plan::Policy;
use plan::share_record::Next;
use plan::terms::{Priority, WEIGHT_MAX};
use plan::{CardRules, Layout, Promise, Share, ShareRecord, Tenant, Terms, epochs, layout};

use crate::cycle::{Cycle, LAP_NS, Span};

/// A schedule with less than this in nobody's segment is full.
const FULL_PPM: u32 = 5_000;

/// Of a segment that must be exact, this part at most is added to each end: if the neighbours are idle, it is what the container gains.
const LAP_PART: u64 = 200;

/// A gang opens on its first cards so much early at most, as a part of the shortest segment of another.
const EARLY_PART: u64 = 100;

/// What a share is held by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// Gate and slices.
    Gate,
    /// Slices stand in for the gate.
    Slices,
}

/// A layout, from when it was reckoned until it has to be reckoned again.
#[derive(Debug)]
pub(crate) struct View {
    /// Of everyone that counts.
    pub(crate) layout: Layout,
    /// The container's own; `None` while it does not count yet.
    pub(crate) share: Option<Share>,
    /// When its gate is open; `None`: always.
    pub(crate) cycle: Option<Cycle>,
    /// Timeslice of its groups.
    pub(crate) slice_us: u64,
    /// How many groups the container counts with.
    pub(crate) groups: u32,
    /// When somebody counts as something else.
    pub(crate) until_ns: u64,
}

impl View {
    /// The view at a time. `records` are those of all who live, the container's own among them.
    pub(crate) fn at(
        rules: &CardRules,
        records: &[ShareRecord],
        key: &str,
        at_ns: u64,
        means: Means,
    ) -> Self {
        let tenants = epochs::tenants(records, at_ns);
        let reckoned = layout(rules, &rules.costs, &tenants);
        let share = reckoned.share(key).cloned();
        let own = records.iter().find(|record| record.key == key);
        let (cycle, slice_us) = match &share {
            Some(share) => (cycle(share, &reckoned, &tenants), share.slice_us),
            None => (
                early(rules, records, key, own.and_then(|record| record.next)),
                plan::slice::quantise_us(plan::slice::LEAST_US),
            ),
        };
        let (cycle, slice_us) = match (means, cycle) {
            (Means::Gate, cycle) => (cycle, slice_us),
            (Means::Slices, None) => (None, slice_us),
            (Means::Slices, Some(_)) => {
                let soft = soft_slice_us(rules, &tenants, &reckoned, key);
                (None, soft.unwrap_or(slice_us))
            }
        };
        let own = tenants.iter().find(|tenant| tenant.key == key);
        Self {
            groups: own.map_or(0, |own| own.groups),
            share,
            cycle,
            slice_us,
            until_ns: epochs::next_after(records, at_ns).unwrap_or(u64::MAX),
            layout: reckoned,
        }
    }

    /// The slice of each of so many groups. Those that do not count yet take no more than what those that do had: else a container would have
    /// many times its part from when it makes them until all know of them.
    pub(crate) fn slice_us(&self, groups: u32) -> u64 {
        if groups <= self.groups || self.share.is_none() {
            return self.slice_us;
        }
        let part = self.slice_us * u64::from(self.groups.max(1)) / u64::from(groups);
        plan::slice::quantise_us(part.max(plan::slice::HARDWARE_LEAST_US))
    }

    /// Whether the usage may correct its segments. What it has had because its gate closed late comes off those of any promise.
    pub(crate) fn is_corrected(&self) -> bool {
        self.cycle.is_some()
            && self
                .share
                .as_ref()
                .is_some_and(|share| share.promise == Promise::Exactly)
    }

    /// Whether one account may go on over a change from this layout to that one: the container's segments are the same, whatever its neighbours add to their ends.
    pub(crate) fn measures_as(&self, other: &Self) -> bool {
        let gate = |view: &Self| view.share.as_ref().map(|share| share.gate.clone());
        self.layout.window_ns == other.layout.window_ns
            && self.cycle.is_some() == other.cycle.is_some()
            && self.is_full() == other.is_full()
            && gate(self) == gate(other)
    }

    /// How long the container's segments of a window are; 0 where it has none.
    pub(crate) fn segment_ns(&self) -> u64 {
        let window_ns = self.layout.window_ns;
        match &self.share {
            Some(share) if share.gate.is_gated() => share.gate.open_ns(window_ns),
            _ => 0,
        }
    }

    /// By how much longer one segment may be, for what its container was kept from: its part of what is nobody's.
    pub(crate) fn free_ns(&self) -> u64 {
        let sharers = u64::try_from(self.layout.shares.len()).unwrap_or(1).max(1);
        let free_ns = self.layout.window_ns / 1_000 * u64::from(self.layout.free_ppm) / 1_000;
        (free_ns / sharers).min(self.segment_ns() / 4)
    }

    /// By how much a gate may open before its segment because calls for the container's other cards follow: none loses a hundredth of its own by that.
    pub(crate) fn early_ns(&self) -> u64 {
        let own = self.share.as_ref().map(|share| &share.gate);
        let shares = self.layout.shares.iter();
        let others = shares.filter(|other| Some(&other.gate) != own);
        let segments = others.flat_map(|other| other.gate.segments());
        let shortest_ns = segments.map(|segment| segment.length_ns).min();
        shortest_ns.map_or(u64::MAX, |length_ns| length_ns / EARLY_PART)
    }

    /// Between two times: how long the windows were that the container's gate was meant to be open in, and what it was promised of them.
    pub(crate) fn entitled_ns(&self, rules: &CardRules, from_ns: u64, to_ns: u64) -> (u64, u64) {
        let Some(share) = &self.share else {
            return (0, 0);
        };
        let window_ns = self.layout.window_ns;
        let open_ns = share.gate.open_between_ns(window_ns, from_ns, to_ns);
        let of_each = u128::from(share.gate.open_ns(window_ns).max(1));
        let windows_ns = u128::from(open_ns) * u128::from(window_ns) / of_each;
        let target_ppm = self.target_ppm(share, rules);
        let entitled_ns = windows_ns * u128::from(target_ppm) / 1_000_000;
        let narrow = |ns: u128| u64::try_from(ns).unwrap_or(u64::MAX);
        (narrow(windows_ns), narrow(entitled_ns))
    }

    /// Whether there is no room on the cyclic schedule to make up for anything.
    pub(crate) fn is_full(&self) -> bool {
        self.layout.free_ppm < FULL_PPM
    }

    /// What the container's use is corrected to. On a full schedule someone has to pay for the switches: each pays for the one that its segment begins
    /// with. If all made up for it, the long segments would push the short ones aside.
    pub(crate) fn target_ppm(&self, share: &Share, rules: &CardRules) -> u32 {
        if !self.is_full() {
            return share.entitlement_ppm;
        }
        let window_ns = self.layout.window_ns.max(1);
        let segments = u64::try_from(share.gate.segments().len()).unwrap_or(1);
        let switches_ns = segments * u64::from(rules.costs.switch_us) * 1_000;
        let net_ns = share.gate.open_ns(window_ns).saturating_sub(switches_ns);
        let net_ppm = u128::from(net_ns) * 1_000_000 / u128::from(window_ns);
        u32::try_from(net_ppm).map_or(share.entitlement_ppm, |net| net.min(share.entitlement_ppm))
    }

    /// The end of the segment that is open at this time and that others may use while its owner is idle.
    pub(crate) fn lent_until_ns(&self, at_ns: u64) -> Option<u64> {
        let window_ns = self.layout.window_ns;
        self.layout
            .shares
            .iter()
            .filter(|share| share.lends)
            .find_map(|share| share.gate.segment_at(window_ns, at_ns))
            .map(|(_, end_ns)| end_ns)
    }

    /// When one of the segments that are lent next begins or ends.
    pub(crate) fn next_lender_ns(&self, after_ns: u64) -> Option<u64> {
        let window_ns = self.layout.window_ns;
        self.layout
            .shares
            .iter()
            .filter(|share| share.lends)
            .filter_map(|share| share.gate.next_edge(window_ns, after_ns))
            .map(|edge| edge.at_ns)
            .min()
    }
}

/// A container that does not count yet is kept out of others' segments, if it will be gated at all.
fn early(
    rules: &CardRules,
    records: &[ShareRecord],
    key: &str,
    next: Option<Next>,
) -> Option<Cycle> {
    let at_ns = next?.at_ns;
    let then = layout(rules, &rules.costs, &epochs::tenants(records, at_ns));
    then.share(key)
        .is_some_and(|share| share.gate.is_gated())
        .then(|| Cycle {
            window_ns: then.window_ns,
            spans: Vec::new(),
        })
}

fn cycle(share: &Share, layout: &Layout, tenants: &[Tenant]) -> Option<Cycle> {
    let segments = match &share.gate {
        GateSchedule::Open => return None,
        gate @ (GateSchedule::Closed | GateSchedule::Cyclic(_)) => gate.segments(),
    };
    let window_ns = layout.window_ns.max(1);
    // Only who may have work now shares a lap.
    let present = |other: &&Share| {
        other.gate != share.gate
            && tenants
                .iter()
                .any(|tenant| tenant.key == other.key && tenant.groups > 0)
    };
    let lap_of = |share: &Share, length_ns: u64| match share.promise {
        Promise::Exactly => (LAP_NS / 2).min(length_ns / LAP_PART),
        Promise::AtLeast | Promise::UpTo | Promise::Leftover | Promise::Nothing => LAP_NS / 2,
    };
    let others = || {
        layout.shares.iter().filter(present).flat_map(|other| {
            let segments = other.gate.segments().iter();
            segments.map(move |segment| (segment, lap_of(other, segment.length_ns)))
        })
    };
    let spans = segments
        .iter()
        .map(|segment| {
            // Both sides of an edge add as much as the smaller one may: else the long segment takes from the short one.
            let own_ns = lap_of(share, segment.length_ns);
            let lap_ns = |other: Option<u64>| other.map_or(0, |other_ns| own_ns.min(other_ns));
            let begins = segment.offset_ns % window_ns;
            let ends = (segment.offset_ns + segment.length_ns) % window_ns;
            let before = others()
                .filter(|(other, _)| (other.offset_ns + other.length_ns) % window_ns == begins)
                .map(|(_, lap_ns)| lap_ns);
            let after = others()
                .filter(|(other, _)| other.offset_ns % window_ns == ends)
                .map(|(_, lap_ns)| lap_ns);
            Span {
                offset_ns: segment.offset_ns,
                length_ns: segment.length_ns,
                before_ns: lap_ns(before.min()),
                after_ns: lap_ns(after.min()),
            }
        })
        .collect();
    Some(Cycle { window_ns, spans })
}

/// The slice that a gated container has where it cannot be gated: its entitlement as a weight.
fn soft_slice_us(rules: &CardRules, tenants: &[Tenant], gated: &Layout, key: &str) -> Option<u64> {
    let softened: Vec<Tenant> = tenants
        .iter()
        .map(|tenant| {
            let entitlement_ppm = gated
                .share(&tenant.key)
                .map_or(0, |share| share.entitlement_ppm);
            Tenant {
                terms: Terms {
                    policy: Policy::Weighted,
                    percent: None,
                    weight: (entitlement_ppm / 1_000).clamp(1, WEIGHT_MAX),
                    priority: Priority::Normal,
                },
                ..tenant.clone()
            }
        })
        .collect();
    let soft = layout(rules, &rules.costs, &softened);
    soft.share(key).map(|share| share.slice_us)
}
