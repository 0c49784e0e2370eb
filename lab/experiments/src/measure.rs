//! From samples to numbers: errors of shares in sliding windows, percentiles, fairness.

/// Cumulative engine time of one tenant, sampled at a fixed step.
#[derive(Debug, Clone, Default)]
pub struct Curve {
    /// Time between two samples, nanoseconds.
    pub step_ns: u64,
    /// Used nanoseconds at 0, step, 2 × step …
    pub used_ns: Vec<u64>,
}

/// How far a share strays from what was promised, over all windows of one length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowError {
    /// The largest deviation of any window, relative to the promised share, percent.
    pub worst_percent: f64,
    /// Root of the mean square of the deviations, relative, percent.
    pub rms_percent: f64,
    /// The smallest share of any window, percent of the card.
    pub least_percent: f64,
    /// The largest share of any window, percent of the card.
    pub most_percent: f64,
}

impl Curve {
    /// Share of the card in every window of this length between two times, percent; windows begin at every sample.
    #[must_use]
    pub fn shares(&self, window_ns: u64, from_ns: u64, until_ns: u64) -> Vec<f64> {
        let index = |at_ns: u64| usize::try_from(at_ns / self.step_ns.max(1)).unwrap_or(usize::MAX);
        let width = index(window_ns);
        let end = index(until_ns).min(self.used_ns.len().saturating_sub(1));
        (index(from_ns)..)
            .take_while(|first| first + width <= end)
            .map(|first| {
                let used = self.used_ns[first + width] - self.used_ns[first];
                used as f64 / window_ns as f64 * 100.0
            })
            .collect()
    }

    /// Share of the card between two times, percent.
    #[must_use]
    pub fn share(&self, from_ns: u64, until_ns: u64) -> f64 {
        self.shares(until_ns - from_ns, from_ns, until_ns)
            .first()
            .copied()
            .unwrap_or(0.0)
    }

    /// Deviations from a promised share of every window of this length between two times, relative, percent.
    #[must_use]
    pub fn deviations(
        &self,
        entitled_percent: f64,
        window_ns: u64,
        from_ns: u64,
        until_ns: u64,
    ) -> Vec<f64> {
        self.shares(window_ns, from_ns, until_ns)
            .iter()
            .map(|share| ((share - entitled_percent) / entitled_percent * 100.0).abs())
            .collect()
    }

    /// Deviation from a promised share in all windows of this length between two times; `None` where none fits.
    #[must_use]
    pub fn error(
        &self,
        entitled_percent: f64,
        window_ns: u64,
        from_ns: u64,
        until_ns: u64,
    ) -> Option<WindowError> {
        let shares = self.shares(window_ns, from_ns, until_ns);
        if shares.is_empty() {
            return None;
        }
        let relative = |share: f64| (share - entitled_percent) / entitled_percent * 100.0;
        let squares: f64 = shares.iter().map(|&share| relative(share).powi(2)).sum();
        Some(WindowError {
            worst_percent: shares
                .iter()
                .map(|&share| relative(share).abs())
                .fold(0.0, f64::max),
            rms_percent: (squares / shares.len() as f64).sqrt(),
            least_percent: shares.iter().copied().fold(f64::INFINITY, f64::min),
            most_percent: shares.iter().copied().fold(0.0, f64::max),
        })
    }
}

/// The value below which this part (0 to 1) of the values lies; nearest rank, 0 where there are none.
#[must_use]
pub fn percentile(values: &[u64], part: f64) -> u64 {
    if values.is_empty() {
        return 0;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let below = sorted
        .iter()
        .enumerate()
        .filter(|(index, _)| ((*index + 1) as f64) < part * sorted.len() as f64)
        .count();
    sorted[below.min(sorted.len() - 1)]
}

/// The value that this part (0 to 1) of the values does not exceed; nearest rank, 0 where there are none.
#[must_use]
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let below = (1..=sorted.len())
        .take_while(|rank| (*rank as f64) < part * count)
        .count();
    sorted
        .get(below.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

/// Jain's index of fairness: 1 where all are equal, 1/n where one has everything.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares == 0.0 {
        return 0.0;
    }
    sum * sum / (values.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_card_in_turns_is_exact_over_whole_turns_and_off_by_a_turn_in_short_windows() {
        let mut used_ns = vec![0];
        for sample in 0..1_000_u64 {
            let last = used_ns[used_ns.len() - 1];
            used_ns.push(last + if (sample / 5) % 2 == 0 { 10 } else { 0 });
        }
        let curve = Curve {
            step_ns: 10,
            used_ns,
        };
        let exact = curve.error(50.0, 100, 0, 10_000).unwrap();
        assert!(exact.worst_percent < 1e-9);
        let short = curve.error(50.0, 50, 0, 10_000).unwrap();
        assert!((short.worst_percent - 100.0).abs() < 1e-9);
        assert!((short.least_percent - 0.0).abs() < 1e-9);
        assert!((short.most_percent - 100.0).abs() < 1e-9);
        assert!((curve.share(0, 10_000) - 50.0).abs() < 1e-9);
        assert!(curve.error(50.0, 20_000, 0, 10_000).is_none());
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let values: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&values, 0.5), 50);
        assert_eq!(percentile(&values, 0.99), 99);
        assert_eq!(percentile(&values, 1.0), 100);
        assert_eq!(percentile(&[7], 0.999), 7);
        assert_eq!(percentile(&[], 0.5), 0);
    }

    #[test]
    fn fairness_of_equals_is_one_and_of_one_winner_the_share_of_one() {
        assert!((jain(&[2.0, 2.0, 2.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }
}
