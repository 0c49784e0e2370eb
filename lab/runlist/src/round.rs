//! The order in which groups are served.
//!
//! The runlist that the driver would write for L low, M medium and H high groups is, for each low one `l`:
//!
//! ```text
//!   [all high] m1  [all high] m2 … [all high] mM  [all high] l
//! ```
//!
//! so a low group is on it once, a medium one L times, a high one (M+1)L times, and every other group waits behind each high one
//! that has work. That list is long (L·M·H), so it is never written down: a place on it is three sort keys, and the next group with
//! work is found from there in O(log n). Keys, not indices: a group that comes or goes does not move the pointer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use crate::work::Interleave;

/// No entry of that level: the block ends with the next lower level's.
const END: u64 = u64::MAX;

/// A place on the list: in the block of `low` and `medium`, at `high`; `high == END` is the block's own entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    low: u64,
    medium: u64,
    high: u64,
}

impl Place {
    const START: Self = Self {
        low: END,
        medium: END,
        high: END,
    };
}

/// Groups of one level by their key.
#[derive(Debug, Default)]
struct Level {
    all: BTreeSet<u64>,
    runnable: BTreeMap<u64, usize>,
}

impl Level {
    fn first_runnable(&self) -> Option<(u64, usize)> {
        self.runnable
            .first_key_value()
            .map(|(key, group)| (*key, *group))
    }

    fn runnable_after(&self, key: u64) -> Option<(u64, usize)> {
        let mut rest = self.runnable.range((Excluded(key), Unbounded));
        rest.next().map(|(key, group)| (*key, *group))
    }

    fn after(&self, key: u64) -> Option<u64> {
        self.all.range((Excluded(key), Unbounded)).next().copied()
    }
}

/// The list and the pointer into it.
#[derive(Debug)]
pub(crate) struct Round {
    low: Level,
    medium: Level,
    high: Level,
    last_served: Place,
}

impl Round {
    pub(crate) fn new() -> Self {
        Self {
            low: Level::default(),
            medium: Level::default(),
            high: Level::default(),
            last_served: Place::START,
        }
    }

    fn level(&mut self, interleave: Interleave) -> &mut Level {
        match interleave {
            Interleave::Low => &mut self.low,
            Interleave::Medium => &mut self.medium,
            Interleave::High => &mut self.high,
        }
    }

    pub(crate) fn insert(&mut self, interleave: Interleave, key: u64) {
        self.level(interleave).all.insert(key);
    }

    pub(crate) fn remove(&mut self, interleave: Interleave, key: u64) {
        let level = self.level(interleave);
        level.all.remove(&key);
        level.runnable.remove(&key);
    }

    /// The group has work that may run.
    pub(crate) fn wake(&mut self, interleave: Interleave, key: u64, group: usize) {
        self.level(interleave).runnable.insert(key, group);
    }

    /// The group has none.
    pub(crate) fn rest(&mut self, interleave: Interleave, key: u64) {
        self.level(interleave).runnable.remove(&key);
    }

    pub(crate) fn runnable(&self) -> usize {
        self.low.runnable.len() + self.medium.runnable.len() + self.high.runnable.len()
    }

    /// The next group with work after the one served last.
    pub(crate) fn next(&self) -> Option<(Place, usize)> {
        let Place { low, medium, high } = self.last_served;
        if high != END {
            if let Some((high, group)) = self.high.runnable_after(high) {
                return Some((Place { low, medium, high }, group));
            }
            let own = if medium == END {
                self.low.runnable.get(&low)
            } else {
                self.medium.runnable.get(&medium)
            };
            if let Some(group) = own {
                return Some((
                    Place {
                        low,
                        medium,
                        high: END,
                    },
                    *group,
                ));
            }
        }
        if let Some((high, group)) = self.high.first_runnable() {
            let (low, medium) = self.block_after(low, medium);
            return Some((Place { low, medium, high }, group));
        }
        if medium != END {
            if let Some((medium, group)) = self.medium.runnable_after(medium) {
                return Some((
                    Place {
                        low,
                        medium,
                        high: END,
                    },
                    group,
                ));
            }
            if let Some(group) = self.low.runnable.get(&low) {
                return Some((
                    Place {
                        low,
                        medium: END,
                        high: END,
                    },
                    *group,
                ));
            }
        }
        if let Some((medium, group)) = self.medium.first_runnable() {
            let low = self.low_after(low);
            return Some((
                Place {
                    low,
                    medium,
                    high: END,
                },
                group,
            ));
        }
        let (low, group) = self
            .low
            .runnable_after(low)
            .or_else(|| self.low.first_runnable())?;
        Some((
            Place {
                low,
                medium: END,
                high: END,
            },
            group,
        ))
    }

    /// The group at this place has the engine.
    pub(crate) fn serve(&mut self, place: Place) {
        self.last_served = place;
    }

    fn low_after(&self, low: u64) -> u64 {
        self.low
            .after(low)
            .or_else(|| self.low.all.first().copied())
            .unwrap_or(END)
    }

    fn block_after(&self, low: u64, medium: u64) -> (u64, u64) {
        let first_medium = self.medium.all.first().copied().unwrap_or(END);
        if medium == END {
            return (self.low_after(low), first_medium);
        }
        match self.medium.after(medium) {
            Some(next) => (low, next),
            // Without a low group there is no block of its own: the list begins again.
            None if self.low.all.is_empty() => (END, first_medium),
            None => (low, END),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list written out, as the driver would.
    fn written(low: &[usize], medium: &[usize], high: &[usize]) -> Vec<usize> {
        let mut list = Vec::new();
        for l in low {
            for m in medium {
                list.extend(high);
                list.push(*m);
            }
            list.extend(high);
            list.push(*l);
        }
        if low.is_empty() {
            for m in medium {
                list.extend(high);
                list.push(*m);
            }
            if medium.is_empty() {
                list.extend(high);
            }
        }
        list
    }

    #[test]
    fn all_runnable_groups_are_served_as_the_written_list_reports() {
        for (l, m, h) in [
            (3, 2, 2),
            (1, 0, 3),
            (0, 2, 2),
            (0, 0, 3),
            (4, 0, 0),
            (2, 3, 0),
            (0, 3, 0),
        ] {
            let mut round = Round::new();
            let mut ids: [Vec<usize>; 3] = [vec![], vec![], vec![]];
            let mut id = 0;
            for (which, (count, level)) in [
                (l, Interleave::Low),
                (m, Interleave::Medium),
                (h, Interleave::High),
            ]
            .into_iter()
            .enumerate()
            {
                for _ in 0..count {
                    let key = u64::try_from(id).unwrap();
                    round.insert(level, key);
                    round.wake(level, key, id);
                    ids[which].push(id);
                    id += 1;
                }
            }
            let list = written(&ids[0], &ids[1], &ids[2]);
            let mut served = Vec::new();
            for _ in 0..2 * list.len() {
                let (place, group) = round.next().unwrap();
                round.serve(place);
                served.push(group);
            }
            let twice: Vec<usize> = list.iter().chain(&list).copied().collect();
            assert_eq!(served, twice, "{l} low, {m} medium, {h} high");
        }
    }

    proptest::proptest! {
        #[test]
        fn groups_without_work_are_passed_over(
            levels in proptest::collection::vec(0_usize..3, 1..12),
            work in proptest::collection::vec(proptest::bool::ANY, 12),
        ) {
            let mut round = Round::new();
            let mut ids: [Vec<usize>; 3] = [vec![], vec![], vec![]];
            for (id, level) in levels.iter().enumerate() {
                let interleave = [Interleave::Low, Interleave::Medium, Interleave::High][*level];
                let key = u64::try_from(id).unwrap();
                round.insert(interleave, key);
                if work[id] {
                    round.wake(interleave, key, id);
                }
                ids[*level].push(id);
            }
            let list = written(&ids[0], &ids[1], &ids[2]);
            let expected: Vec<usize> = list.iter().copied().filter(|id| work[*id]).collect();
            if expected.is_empty() {
                proptest::prop_assert!(round.next().is_none());
            } else {
                // Where blocks consist of sleepers alone the pointer may stand one block further: rounds are compared as cycles.
                let mut served = Vec::new();
                for _ in 0..3 * expected.len() {
                    let (place, group) = round.next().unwrap();
                    round.serve(place);
                    served.push(group);
                }
                let cycle: Vec<usize> = expected.iter().cycle().take(served.len()).copied().collect();
                proptest::prop_assert_eq!(served, cycle);
            }
        }
    }
}
