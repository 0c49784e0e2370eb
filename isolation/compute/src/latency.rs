//! How long calls take: an average that leads gates, and percentiles for people.

use crate::status::Latency;

/// Buckets: four to an octave of nanoseconds, from 1 us on.
const BUCKETS: usize = 96;

/// The first bucket ends here, as a power of two.
const FIRST_LOG2: u32 = 10;

/// Past this many calls all counts are halved, so that percentiles are of recent calls.
const RECENT: u32 = 4_096;

/// So many calls lead the next one.
const LATELY: usize = 8;

/// One kind of call.
#[derive(Debug, Clone)]
pub struct Timing {
    mean_ns: u64,
    /// The last calls, in any order.
    recent_ns: [u64; LATELY],
    next: usize,
    max_ns: u64,
    total: u32,
    counts: [u32; BUCKETS],
}

impl Timing {
    /// Before the first call an estimate leads: section 2.3 of the design measured 93 to 138 us for the round trip, and a save comes on top.
    #[must_use]
    pub fn new(estimate_ns: u64) -> Self {
        Self {
            mean_ns: estimate_ns,
            recent_ns: [estimate_ns; LATELY],
            next: 0,
            max_ns: 0,
            total: 0,
            counts: [0; BUCKETS],
        }
    }

    /// Takes in a call. The average moves by an eighth; one that is far above it counts as four times the average, so that a rare stall does not open
    /// and close gates early for a second afterwards.
    pub fn record(&mut self, took_ns: u64) {
        let capped = if self.total == 0 {
            took_ns
        } else {
            took_ns.min(self.mean_ns.saturating_mul(4).max(1_000))
        };
        self.mean_ns = if self.total == 0 {
            capped
        } else {
            (self.mean_ns.saturating_mul(7).saturating_add(capped)) / 8
        };
        if self.total == 0 {
            self.recent_ns = [took_ns; LATELY];
        } else if let Some(place) = self.recent_ns.get_mut(self.next) {
            *place = took_ns;
        }
        self.next = (self.next + 1) % LATELY;
        self.max_ns = self.max_ns.max(took_ns);
        if self.total >= RECENT {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
        if let Some(count) = self.counts.get_mut(bucket(took_ns)) {
            *count += 1;
            self.total += 1;
        }
    }

    /// By how much a call must start early: the mean of the last ones without the shortest and longest quarter, since one call behind a dozen
    /// others' must not move a gate for seconds. At most 5 ms: a lead of a whole segment would be worse than a late call.
    #[must_use]
    pub fn lead_ns(&self) -> u64 {
        let mut sorted = self.recent_ns;
        sorted.sort_unstable();
        let middle = &sorted[LATELY / 4..LATELY - LATELY / 4];
        let sum = middle
            .iter()
            .fold(0_u64, |sum, took_ns| sum.saturating_add(*took_ns));
        (sum / (LATELY as u64 / 2)).min(5_000_000)
    }

    /// The summary of this kind alone.
    #[must_use]
    pub fn summary(&self) -> Latency {
        Latency {
            mean_ns: if self.total == 0 { 0 } else { self.mean_ns },
            p50_ns: self.percentile(50).min(self.max_ns),
            p99_ns: self.percentile(99).min(self.max_ns),
            max_ns: self.max_ns,
        }
    }

    fn percentile(&self, percent: u64) -> u64 {
        let rank = (u64::from(self.total) * percent).div_ceil(100);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank && seen > 0 {
                return upper_ns(at);
            }
        }
        0
    }
}

fn bucket(took_ns: u64) -> usize {
    let took_ns = took_ns.max(1 << FIRST_LOG2);
    let log2 = took_ns.ilog2();
    let quarter = (took_ns >> (log2 - 2)) & 3;
    let at = u64::from(log2 - FIRST_LOG2) * 4 + quarter;
    usize::try_from(at).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

fn upper_ns(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).unwrap_or(0);
    let (octave, quarter) = (bucket / 4, bucket % 4);
    (5 + quarter) << (octave + u64::from(FIRST_LOG2) - 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_call_replaces_the_estimate_and_a_stall_does_not_rule() {
        let mut timing = Timing::new(200_000);
        assert_eq!(timing.lead_ns(), 200_000);
        timing.record(100_000);
        assert_eq!(timing.lead_ns(), 100_000);
        timing.record(900_000_000);
        assert!(timing.lead_ns() < 140_000, "{}", timing.lead_ns());
        assert_eq!(timing.summary().max_ns, 900_000_000);
    }

    #[test]
    fn a_real_change_is_followed_within_a_few_dozen_calls() {
        let mut timing = Timing::new(200_000);
        (0..50).for_each(|_| timing.record(100_000));
        (0..50).for_each(|_| timing.record(3_000_000));
        assert!(timing.lead_ns() > 2_500_000);
        (0..50).for_each(|_| timing.record(100_000));
        assert!(timing.lead_ns() < 150_000);
    }

    proptest! {
        #[test]
        fn a_call_falls_below_its_buckets_end_and_within_a_quarter_octave(took_ns in 1_024_u64..10_000_000_000) {
            let upper = upper_ns(bucket(took_ns));
            prop_assert!(took_ns < upper && upper <= took_ns + took_ns / 4 + 4);
        }

        #[test]
        fn percentiles_bound_the_calls(calls in prop::collection::vec(any::<u64>(), 1..300)) {
            let mut timing = Timing::new(1);
            calls.iter().for_each(|call| timing.record(*call));
            let summary = timing.summary();
            prop_assert!(summary.p50_ns <= summary.p99_ns && summary.p99_ns <= summary.max_ns);
        }
    }
}
