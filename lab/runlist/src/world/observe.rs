//! What can be seen of a card from outside, after the fact.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::work::{GroupId, Stay};

/// How often the driver hands out the FECS context-switch records.
pub const FECS_PERIOD_NS: u64 = 33_000_000;
/// Length of one GPUMON sample: 72 of them are 10 s.
pub const GPUMON_BUCKET_NS: u64 = 10_000_000_000 / 72;
/// How many of them the driver keeps.
pub const GPUMON_BUCKETS: u64 = 72;

/// One record of the context-switch buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The card's time.
    pub at_ns: u64,
    /// Whose context.
    pub group: GroupId,
    /// What happened.
    pub what: Switch,
}

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// It has the engine.
    Start,
    /// It had.
    End,
}

/// What the driver handed out since the last time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// In the order of time.
    pub records: Vec<Record>,
    /// Records that the buffer had no room for.
    pub lost: u64,
}

/// One GPUMON sample: what each group used of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// It begins there and is [`GPUMON_BUCKET_NS`] long.
    pub start_ns: u64,
    /// Groups that used anything.
    pub used_ns: BTreeMap<GroupId, u64>,
}

/// A group's stay with what the group had used before it.
#[derive(Debug, Clone, Copy)]
struct Span {
    start_ns: u64,
    end_ns: u64,
    before_ns: u64,
}

/// All stays of one card.
#[derive(Debug, Default)]
pub struct Residency {
    stays: Vec<Stay>,
    by_group: BTreeMap<GroupId, Vec<Span>>,
    handed_out: usize,
    /// A stay of which the start was handed out, but not the end.
    open: bool,
}

impl Residency {
    pub(crate) fn push(&mut self, stay: Stay) {
        debug_assert!(
            self.stays
                .last()
                .is_none_or(|last| last.end_ns <= stay.start_ns)
                && stay.start_ns <= stay.end_ns,
            "two groups on one engine"
        );
        self.stays.push(stay);
        let spans = self.by_group.entry(stay.group).or_default();
        let before_ns = spans
            .last()
            .map_or(0, |last| last.before_ns + (last.end_ns - last.start_ns));
        spans.push(Span {
            start_ns: stay.start_ns,
            end_ns: stay.end_ns,
            before_ns,
        });
    }

    /// Every stay that has ended, in order.
    #[must_use]
    pub fn stays(&self) -> &[Stay] {
        &self.stays
    }

    /// What the group used of [0, `at_ns`) in stays that have ended.
    fn used_until(&self, group: GroupId, at_ns: u64) -> u64 {
        let Some(spans) = self.by_group.get(&group) else {
            return 0;
        };
        let begun = spans.partition_point(|span| span.start_ns < at_ns);
        let Some(last) = begun.checked_sub(1).and_then(|last| spans.get(last)) else {
            return 0;
        };
        last.before_ns + last.end_ns.min(at_ns) - last.start_ns
    }

    /// What the group used of [`from_ns`, `to_ns`) in stays that have ended, and in `running`, which has not.
    pub(crate) fn used_between(
        &self,
        group: GroupId,
        from_ns: u64,
        to_ns: u64,
        running: Option<Stay>,
    ) -> u64 {
        let ended_ns = self.used_until(group, to_ns) - self.used_until(group, from_ns.min(to_ns));
        let running_ns = running
            .filter(|stay| stay.group == group)
            .map_or(0, |stay| {
                stay.end_ns
                    .min(to_ns)
                    .saturating_sub(stay.start_ns.max(from_ns))
            });
        ended_ns + running_ns
    }

    pub(crate) fn records(
        &mut self,
        now_ns: u64,
        running: Option<Stay>,
        capacity: usize,
    ) -> Records {
        let tick_ns = now_ns - now_ns % FECS_PERIOD_NS;
        let mut all = Vec::new();
        while let Some(stay) = self.stays.get(self.handed_out) {
            if !self.open && stay.start_ns <= tick_ns {
                all.push((stay.start_ns, stay.group, Switch::Start));
                self.open = true;
            }
            if !self.open || stay.end_ns > tick_ns {
                break;
            }
            all.push((stay.end_ns, stay.group, Switch::End));
            self.open = false;
            self.handed_out += 1;
        }
        if self.handed_out == self.stays.len()
            && !self.open
            && let Some(stay) = running
            && stay.start_ns <= tick_ns
        {
            all.push((stay.start_ns, stay.group, Switch::Start));
            self.open = true;
        }
        // The buffer is emptied once in a period: what does not fit into it until then is lost.
        let mut answer = Records::default();
        let (mut period, mut in_period) = (u64::MAX, 0);
        for (at_ns, group, what) in all {
            let this = at_ns.saturating_sub(1) / FECS_PERIOD_NS;
            in_period = if this == period { in_period + 1 } else { 1 };
            period = this;
            if in_period > capacity {
                answer.lost += 1;
            } else {
                answer.records.push(Record { at_ns, group, what });
            }
        }
        answer
    }

    pub(crate) fn buckets(&self, now_ns: u64, running: Option<Stay>) -> Vec<Bucket> {
        let full = now_ns / GPUMON_BUCKET_NS;
        let groups: Vec<GroupId> = {
            let mut groups: Vec<GroupId> = self.by_group.keys().copied().collect();
            groups.extend(
                running
                    .map(|stay| stay.group)
                    .filter(|group| !self.by_group.contains_key(group)),
            );
            groups
        };
        (full.saturating_sub(GPUMON_BUCKETS)..full)
            .map(|index| {
                let start_ns = index * GPUMON_BUCKET_NS;
                let used = groups.iter().map(|group| {
                    (
                        *group,
                        self.used_between(*group, start_ns, start_ns + GPUMON_BUCKET_NS, running),
                    )
                });
                Bucket {
                    start_ns,
                    used_ns: used.filter(|(_, used_ns)| *used_ns > 0).collect(),
                }
            })
            .collect()
    }
}
