//! How many calls took which way.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one broker; they only grow.
#[derive(Debug, Default)]
pub struct Counters {
    /// Notified calls.
    pub total: AtomicU64,
    /// Executed by the driver on a copy.
    pub executed: AtomicU64,
    /// Handed back to the kernel.
    pub continued: AtomicU64,
    /// Refused.
    pub refused: AtomicU64,
    /// Answered from the record of a call whose first answer was not delivered.
    pub replayed: AtomicU64,
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Reads one.
#[must_use]
pub fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
