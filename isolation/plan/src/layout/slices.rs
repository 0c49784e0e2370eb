//! How long each one's slices are.

use crate::policy::Policy;
use crate::rules::{CardRules, Costs};
use crate::slice;

use super::Promise;
use super::plan::{Member, Part, Plan};

/// The round of those that share by slices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    pub(super) round_us: u64,
    /// [`Costs::switch_us`].
    switch_us: u64,
}

/// What a container with several groups switches among them: it pays for that out of its own turn, or a flood of groups would
/// cost its neighbours time.
fn own_switches_us(costs: &Costs, groups: u64) -> u64 {
    u64::from(costs.switch_us) * groups.saturating_sub(1)
}

impl Plan<'_> {
    /// The round of those who share by slices. `pool_ns` is what they share of a window.
    pub(super) fn round(&self, costs: &Costs, pool_ns: u64) -> Round {
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
            let turn_us = slice_us * groups + own_switches_us(costs, groups);
            (turn_us * sum).div_ceil(u64::from(member.segment_ppm).max(1))
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
        let switches_us = u64::from(costs.switch_us) * count;
        let pool_us = (pool_ns / 1_000).saturating_sub(u64::from(costs.switch_us));
        if pool_us > 0 {
            // Whole rounds: whoever's slice is cut by the end of the segment loses the rest of it, and that would be the same one each time.
            let rounds = (pool_us / (round_us + switches_us)).max(1);
            round_us = (pool_us / rounds).saturating_sub(switches_us).min(most);
        }
        // Rather a long round than a wrong share.
        Round {
            round_us: round_us.max(longest(slice::FLOOR_US).min(250_000)),
            switch_us: u64::from(costs.switch_us),
        }
    }

    fn shares_slices(&self, member: &Member<'_>) -> bool {
        !self.online
            && match member.part {
                Part::Open | Part::Pool => true,
                // A gang apart: where one of them uses the other's segment, both may run at once until it is given back.
                Part::Own => member.lends,
                Part::Waiting => false,
            }
    }

    /// A member's slice per group, and whether a bound bent it.
    pub(super) fn slice_us(
        &self,
        member: &Member<'_>,
        rules: &CardRules,
        round: Round,
        open_ns: u64,
    ) -> (u64, bool) {
        let groups = u64::from(member.tenant.groups.max(1));
        if member.promise == Promise::UpTo {
            let slice_us = self.online_us(member, &rules.costs);
            return (slice::quantise_us(slice_us), false);
        }
        if !self.shares_slices(member) {
            let slice_us = match (groups, self.online) {
                (_, true) => self.offline_us(groups, rules),
                (1, _) => slice::SEGMENT_US,
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
        let turn_us = round.round_us * u64::from(member.segment_ppm) / sum.max(1);
        let own_us = round.switch_us * (groups - 1);
        let exact = turn_us.saturating_sub(own_us) / groups;
        let slice_us = exact.max(slice::FLOOR_US);
        (
            slice::quantise_us(slice_us),
            slice_us > exact.saturating_add(1),
        )
    }

    /// Those of high priority that are there.
    fn highs(&self) -> impl Iterator<Item = &Member<'_>> {
        self.members
            .iter()
            .filter(|member| member.promise == Promise::UpTo && member.tenant.groups > 0)
    }

    /// A container's part of a round of all of high priority.
    fn high_turn_us(&self, member: &Member<'_>, round_us: u64) -> u64 {
        let sum: u64 = self
            .highs()
            .map(|member| u64::from(member.segment_ppm))
            .sum();
        round_us * u64::from(member.segment_ppm) / sum.max(1)
    }

    /// The shortest round of all of high priority in which each of their groups has a slice of this length, and each container its part.
    fn high_round_us(&self, costs: &Costs, slice_us: u64) -> u64 {
        let sum: u64 = self
            .highs()
            .map(|member| u64::from(member.segment_ppm))
            .sum();
        let round_us = |member: &Member<'_>| {
            let groups = u64::from(member.tenant.groups);
            let turn_us = slice_us * groups + own_switches_us(costs, groups);
            (turn_us * sum).div_ceil(u64::from(member.segment_ppm).max(1))
        };
        self.highs().map(round_us).max().unwrap_or(slice_us)
    }

    /// The slice of a container of high priority: a second for a lone group; several take turns among themselves, and containers have
    /// their parts whatever groups they make.
    fn online_us(&self, member: &Member<'_>, costs: &Costs) -> u64 {
        let groups = u64::from(member.tenant.groups.max(1));
        if self.highs().count() <= 1 {
            return match groups {
                1 => slice::ONLINE_US,
                _ => (20_000 / groups).max(2_000),
            };
        }
        let round_us = self.high_round_us(costs, slice::FLOOR_US).max(20_000);
        let turn_us = self.high_turn_us(member, round_us);
        (turn_us.saturating_sub(own_switches_us(costs, groups)) / groups).max(slice::FLOOR_US)
    }

    /// The slice of containers beside those of high priority, which wait for one of them at most: short, but long enough that the
    /// shortest slice beside it is the card's ratio. Of several groups of high priority, the switches count as well: a flood of groups
    /// would cost the others time. Groups of one container alternate, which should not cost it too much.
    fn offline_us(&self, groups: u64, rules: &CardRules) -> u64 {
        let ratio = u64::from(rules.prio_ratio_percent.clamp(1, 99));
        let high_groups: u32 = self.highs().map(|member| member.tenant.groups).sum();
        let containers = u64::try_from(self.highs().count()).unwrap_or(u64::MAX);
        let switches = match high_groups {
            0 | 1 => 0,
            _ => containers + 1,
        };
        let shortest_us = self.high_round_us(&rules.costs, slice::HARDWARE_LEAST_US)
            + switches * u64::from(rules.costs.switch_us);
        let for_ratio = (shortest_us * (100 - ratio)).div_ceil(ratio);
        for_ratio.max(match groups {
            // What a request waits for at most, before the switch: as short as the hardware has it.
            0 | 1 => slice::HARDWARE_LEAST_US,
            _ => slice::BORROWED_US,
        })
    }

    /// What holds a container of high priority to the ratio beside one other that is always busy.
    pub(super) fn capped_us(&self, member: &Member<'_>, rules: &CardRules) -> Option<u64> {
        if member.promise != Promise::UpTo {
            return None;
        }
        let ratio = u64::from(rules.prio_ratio_percent.clamp(1, 99));
        let others = self
            .members
            .iter()
            .filter(|member| member.promise == Promise::Leftover && member.tenant.groups > 0)
            .map(|member| {
                let groups = u64::from(member.tenant.groups);
                groups * self.offline_us(groups, rules)
            })
            .min()
            .unwrap_or(slice::SEGMENT_US);
        let turn_us = self.high_turn_us(member, others * ratio / (100 - ratio));
        let groups = u64::from(member.tenant.groups.max(1));
        Some(slice::quantise_us(turn_us / groups))
    }
}
