//! What the driver has done since it began, for the node's metrics.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sys::sync::lock;
use view::metrics::{ClaimCounts, Histogram};

/// Ends of the buckets, seconds: preparing takes milliseconds, and a slow API server takes seconds.
const BOUNDS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// Counts that the driver keeps and the metrics read.
#[derive(Debug)]
pub struct Counts {
    prepares: Mutex<Histogram>,
    refused: AtomicU64,
    events_lost: AtomicU64,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            prepares: Mutex::new(Histogram::empty(&BOUNDS)),
            refused: AtomicU64::new(0),
            events_lost: AtomicU64::new(0),
        }
    }
}

impl Counts {
    /// As of now.
    #[must_use]
    pub fn now(&self) -> ClaimCounts {
        ClaimCounts {
            prepare_durations: lock(&self.prepares).clone(),
            prepares_refused: self.refused.load(Ordering::Relaxed),
            events_lost: self.events_lost.load(Ordering::Relaxed),
        }
    }

    /// A claim is prepared, or was already.
    pub(crate) fn prepared(&self, took: Duration) {
        lock(&self.prepares).record(took);
    }

    /// A claim is not prepared.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// So many happenings are in no event.
    pub(crate) fn lost(&self, happenings: u64) {
        self.events_lost.fetch_add(happenings, Ordering::Relaxed);
    }
}
