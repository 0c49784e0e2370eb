//! What the card's account says of a container, over the last second.

use std::collections::VecDeque;

use plan::Demand;

use crate::world::Used;

/// Over how long priority's upper bound is meant.
const SECOND_NS: u64 = 1_000_000_000;

/// Samples are taken about every 50 ms.
const SAMPLES_MAX: usize = 64;

/// After its last use of the card a container counts as busy for this long, where only the account tells: it may have waited for its segment.
const IDLE_AFTER_NS: u64 = 600_000_000;

/// Samples of the account.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    samples: VecDeque<Used>,
    last_rise_ns: Option<u64>,
    /// Since the last measurement for the drift correction.
    corrected: Option<Used>,
    /// What was counted before belongs to other terms.
    not_before_ns: u64,
    demand: Option<Demand>,
    capped: Capped,
}

/// Whether a container of high priority has had more than its bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Capped {
    /// It has.
    Yes,
    /// It has not.
    #[default]
    No,
}

/// A second of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measured {
    pub(crate) used_ns: u64,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    pub(crate) demand: Demand,
}

impl Usage {
    /// Takes in a sample, and whether the container had work when it was taken.
    pub(crate) fn sample(&mut self, used: Used, busy: Option<bool>) {
        if let Some(last) = self.samples.back() {
            if used.at_ns <= last.at_ns {
                return;
            }
            if used.used_ns < last.used_ns {
                // The account began anew.
                *self = Self::default();
            } else if used.used_ns > last.used_ns {
                self.last_rise_ns = Some(used.at_ns);
            }
        }
        self.demand = match (self.demand, busy) {
            (_, None) => Some(Demand::Unknown),
            (None | Some(Demand::Backlogged), Some(true)) => Some(Demand::Backlogged),
            (Some(before), Some(true)) => Some(before),
            (Some(Demand::Unknown), Some(false)) => Some(Demand::Unknown),
            (_, Some(false)) => Some(Demand::Idle),
        };
        self.samples.push_back(used);
        while self.samples.len() > SAMPLES_MAX
            || self
                .samples
                .get(1)
                .is_some_and(|second| used.at_ns.saturating_sub(second.at_ns) >= SECOND_NS)
        {
            self.samples.pop_front();
        }
    }

    /// The last sample.
    pub(crate) fn last(&self) -> Option<Used> {
        self.samples.back().copied()
    }

    /// Whether the container had work lately, by its use alone; `None` before it could be told.
    pub(crate) fn seems_busy(&self, now_ns: u64) -> Option<bool> {
        self.samples.back()?;
        Some(
            self.last_rise_ns
                .is_some_and(|rise_ns| now_ns.saturating_sub(rise_ns) < IDLE_AFTER_NS),
        )
    }

    /// Use since the last call of this, when a second has passed; asked for when the gate has just closed. The account may be some milliseconds old.
    pub(crate) fn measured(&mut self) -> Option<Measured> {
        let last = self.last()?;
        let Some(from) = self.corrected else {
            if last.at_ns < self.not_before_ns {
                return None;
            }
            self.corrected = Some(last);
            self.demand = None;
            return None;
        };
        let elapsed_ns = last.at_ns.saturating_sub(from.at_ns);
        if elapsed_ns < SECOND_NS - SECOND_NS / 32 {
            return None;
        }
        let demand = self.demand.take().unwrap_or(Demand::Unknown);
        self.corrected = Some(last);
        Some(Measured {
            used_ns: last.used_ns.saturating_sub(from.used_ns),
            from_ns: from.at_ns,
            to_ns: last.at_ns,
            demand,
        })
    }

    /// What is measured next belongs to other terms, which hold from now on.
    pub(crate) fn restart(&mut self, now_ns: u64) {
        self.corrected = None;
        self.not_before_ns = now_ns;
        self.demand = None;
    }

    /// Whether any second, the last one or one under way, comes to more than this part of it, parts of a million, if no more is used of its rest than
    /// what slices leave to one that is capped. Once so, it must fall below fifteen sixteenths of the bound.
    pub(crate) fn capped(&mut self, bound_ppm: u32) -> Capped {
        let Some(last) = self.last() else {
            return self.capped;
        };
        let bound_ns = SECOND_NS / 1_000_000 * u64::from(bound_ppm);
        // Beside others that are busy, slices in the proportion of the bound and the switches among them leave a little less.
        let held_ns = bound_ns - bound_ns / 32 * 5;
        let in_part = |ns: u64, part_ns: u64, of_ns: u64| {
            let part = u128::from(ns) * u128::from(part_ns) / u128::from(of_ns.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let second_from = |sample: &Used| {
            let elapsed_ns = last.at_ns.saturating_sub(sample.at_ns);
            let used_ns = last.used_ns.saturating_sub(sample.used_ns);
            match SECOND_NS.checked_sub(elapsed_ns) {
                Some(rest_ns) => used_ns.saturating_add(in_part(held_ns, rest_ns, SECOND_NS)),
                // What is older than a second counts in part.
                None => in_part(used_ns, SECOND_NS, elapsed_ns),
            }
        };
        let used_ns = self.samples.iter().map(second_from).max().unwrap_or(0);
        // The account is some time old when it is seen, and the slice some more until it is set: stopped a little before the bound.
        self.capped = match self.capped {
            Capped::No if used_ns >= bound_ns - bound_ns / 32 => Capped::Yes,
            Capped::Yes if used_ns < bound_ns - bound_ns / 16 => Capped::No,
            same @ (Capped::Yes | Capped::No) => same,
        };
        self.capped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn run(usage: &mut Usage, from_ms: u64, to_ms: u64, percent: u64, used: &mut u64) {
        for at_ms in (from_ms..to_ms).step_by(50) {
            *used += 50 * MS * percent / 100;
            usage.sample(
                Used {
                    used_ns: *used,
                    at_ns: (at_ms + 50) * MS,
                },
                None,
            );
        }
    }

    #[test]
    fn priority_is_bounded_over_the_last_second_and_freed_again() {
        let (mut usage, mut used) = (Usage::default(), 0);
        run(&mut usage, 0, 250, 100, &mut used);
        assert_eq!(usage.capped(800_000), Capped::No);
        run(&mut usage, 250, 400, 100, &mut used);
        assert_eq!(
            usage.capped(800_000),
            Capped::Yes,
            "the rest of the second has 67 %"
        );
        run(&mut usage, 400, 900, 67, &mut used);
        assert_eq!(usage.capped(800_000), Capped::Yes);
        run(&mut usage, 900, 1_400, 67, &mut used);
        assert_eq!(usage.capped(800_000), Capped::No);
    }

    /// However it divides its work: none of the seconds has more than the bound.
    #[test]
    fn what_was_left_unused_is_no_credit() {
        for idle_ms in [100, 300, 500, 700, 900, 2_000] {
            let (mut usage, mut used) = (Usage::default(), 0);
            let mut of_each = Vec::new();
            let mut busy_ms = 0;
            for at_ms in (0..20_000).step_by(50) {
                let percent = match usage.capped(800_000) {
                    _ if busy_ms >= 2_000 => 0,
                    Capped::No => 100,
                    Capped::Yes => 66,
                };
                busy_ms = (busy_ms + 50) % (2_000 + idle_ms);
                run(&mut usage, at_ms, at_ms + 50, percent, &mut used);
                of_each.push(percent);
            }
            let most = of_each.windows(20).map(|second| second.iter().sum::<u64>());
            assert!(most.max() <= Some(80 * 20), "{idle_ms}");
        }
    }

    #[test]
    fn a_second_is_measured_once_and_idleness_is_remembered() {
        let mut usage = Usage::default();
        let mut measured = Vec::new();
        for tick in 0..=41_u64 {
            let used = Used {
                used_ns: tick * 10 * MS,
                at_ns: tick * 50 * MS,
            };
            usage.sample(used, Some(tick != 30));
            measured.extend(usage.measured());
        }
        assert_eq!(
            measured,
            [
                Measured {
                    used_ns: 200 * MS,
                    from_ns: 0,
                    to_ns: 1_000 * MS,
                    demand: Demand::Backlogged
                },
                Measured {
                    used_ns: 200 * MS,
                    from_ns: 1_000 * MS,
                    to_ns: 2_000 * MS,
                    demand: Demand::Idle
                }
            ]
        );
    }

    #[test]
    fn an_account_that_begins_anew_or_stands_still_harms_nobody() {
        let mut usage = Usage::default();
        let used = |used_ns, at_ns| Used { used_ns, at_ns };
        usage.sample(used(5, 10), None);
        usage.sample(used(6, 10), None);
        assert_eq!(usage.last(), Some(used(5, 10)));
        usage.sample(used(u64::MAX, 20), None);
        usage.sample(used(0, 30), None);
        usage.sample(used(0, u64::MAX), None);
        assert_eq!(usage.seems_busy(u64::MAX), Some(false));
        assert_eq!(usage.capped(800_000), Capped::No);
    }
}
