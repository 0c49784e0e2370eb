//! What a load has got: kernels, the card's time in them by second, latencies.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::calls;

/// Length of a window, ns.
const WINDOW_NS: u64 = 1_000_000_000;

/// Counting.
#[derive(Debug)]
pub(super) struct Tally {
    start_ns: u64,
    kernels: u64,
    busy_ns: u64,
    /// Card time by second of the load: a kernel's is in the seconds that it would have run in without a break until its end.
    windows: Vec<u64>,
    latency: Histogram<u64>,
}

/// Counted to an end.
#[derive(Debug)]
pub(super) struct Counted {
    start_ns: u64,
    end_ns: u64,
    pub(super) kernels: u64,
    pub(super) requests: u64,
    pub(super) busy_ns: u64,
    windows: Vec<u64>,
    pub(super) latency: Histogram<u64>,
}

impl Tally {
    pub(super) fn new(start_ns: u64) -> anyhow::Result<Self> {
        Ok(Self {
            start_ns,
            kernels: 0,
            busy_ns: 0,
            windows: Vec::new(),
            latency: calls::histogram()?,
        })
    }

    /// A kernel of this length has ended.
    pub(super) fn kernel(&mut self, ended_ns: u64, ns: u64) {
        self.kernels += 1;
        self.busy_ns = self.busy_ns.saturating_add(ns);
        let end = ended_ns.saturating_sub(self.start_ns);
        let mut begin = end.saturating_sub(ns);
        while begin < end {
            let window = begin / WINDOW_NS;
            let until = end.min((window + 1) * WINDOW_NS);
            let at = usize::try_from(window).unwrap_or(usize::MAX);
            if at >= self.windows.len() {
                self.windows.resize(at + 1, 0);
            }
            if let Some(sum) = self.windows.get_mut(at) {
                *sum += until - begin;
            }
            begin = until;
        }
    }

    /// A request has been answered.
    pub(super) fn request(&mut self, latency_ns: u64) {
        self.latency.saturating_record(latency_ns.max(1));
    }

    pub(super) fn finish(mut self, end_ns: u64) -> Counted {
        // Seconds in which nothing ended are there too.
        let seconds = end_ns.saturating_sub(self.start_ns) / WINDOW_NS;
        self.windows
            .resize(usize::try_from(seconds).unwrap_or(0), 0);
        Counted {
            start_ns: self.start_ns,
            end_ns,
            kernels: self.kernels,
            requests: self.latency.len(),
            busy_ns: self.busy_ns,
            windows: self.windows,
            latency: self.latency,
        }
    }
}

impl Counted {
    /// Part of the time of so many cards that was this load's.
    pub(super) fn share(&self, cards: usize) -> f64 {
        ratio(
            self.busy_ns,
            self.end_ns.saturating_sub(self.start_ns),
            cards,
        )
    }

    /// By whole second.
    pub(super) fn windows_json(&self, cards: usize) -> Vec<Value> {
        self.windows
            .iter()
            .map(|busy_ns| json!({"busy_ns": busy_ns, "share": ratio(*busy_ns, WINDOW_NS, cards)}))
            .collect()
    }

    /// From a request's coming to the end of its last kernel.
    pub(super) fn latency_json(&self) -> Value {
        let at = |quantile| self.latency.value_at_quantile(quantile);
        json!({
            "p50_ns": at(0.5), "p99_ns": at(0.99), "p99_9_ns": at(0.999), "max_ns": self.latency.max(),
            "count": self.latency.len(),
        })
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a share for people and plots: 53 bits of nanoseconds are a hundred days"
)]
fn ratio(part: u64, whole: u64, cards: usize) -> f64 {
    if whole == 0 || cards == 0 {
        return 0.0;
    }
    part as f64 / (whole as f64 * cards as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_in_the_seconds_that_it_ran_in() {
        let mut tally = Tally::new(1_000).unwrap();
        tally.kernel(1_000 + WINDOW_NS + 3, 10);
        tally.kernel(1_000 + 3 * WINDOW_NS + 5, 5);
        let counted = tally.finish(1_000 + 4 * WINDOW_NS + 7);
        assert_eq!(counted.windows, [7, 3, 0, 5]);
        assert_eq!((counted.kernels, counted.busy_ns), (2, 15));
    }

    #[test]
    fn a_share_is_of_all_cards() {
        let mut tally = Tally::new(0).unwrap();
        tally.kernel(WINDOW_NS, WINDOW_NS / 2);
        let counted = tally.finish(WINDOW_NS);
        assert!((counted.share(1) - 0.5).abs() < 1e-9);
        assert!((counted.share(2) - 0.25).abs() < 1e-9);
    }
}
