//! How many calls took which way. The figures are in the shared state, so that they outlive a broker.

use std::sync::Arc;
use std::time::Duration;

use ledger::CardSlot;

use crate::shared_state::SharedState;

/// What is counted; the numbers are places in the shared state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Notified calls.
    Total,
    /// Executed by the driver on a copy.
    Executed,
    /// Handed back to the kernel.
    Continued,
    /// Refused.
    Refused,
    /// Answered from the record of a call whose first answer was not delivered.
    Replayed,
    /// Failed with EIO: whoever makes the calls did not answer.
    Unreached,
    /// Answered with success, without the driver.
    Answered,
    /// Comparisons of the ledger with the driver's sums.
    Reconciled,
    /// Times that memory was found beyond the ledger.
    Violations,
    /// Xids of the container's own.
    Xid,
    /// Cards lost under it.
    CardLost,
    /// Calls that did not come back in time.
    HungCall,
    /// Log lines and events left out for their number.
    SuppressedLogs,
    /// Refused calls that had to wait.
    Throttled,
    /// Refused calls that no row knows.
    UnknownCalls,
    /// No count: the number of the driver's last incident that was looked at.
    LastIncident,
    /// No count: when the kernel's log begins to concern the container, microseconds of the machine's running time.
    LogSince,
    /// No count: the number of the record of the kernel's log behind the last one that concerned the container.
    NextRecord,
    /// Calls that took as long as one of [`DURATIONS_US`] at most, and longer than the one before; the last takes the rest.
    Took(u8),
    /// How long all calls took together, microseconds.
    TookUs,
    /// Allocations that did not fit on a card.
    OverQuota(CardSlot),
}

/// Bounds of the counters of calls by their duration, microseconds.
pub const DURATIONS_US: [u64; 7] = [50, 100, 500, 1_000, 10_000, 100_000, 1_000_000];

impl Counter {
    fn place(self) -> usize {
        /// `CardSlot` is a byte, of which half have room.
        const BY_CARD: usize = 128;
        /// One for each of [`DURATIONS_US`], and one.
        const BY_DURATION: usize = 48;
        match self {
            Self::Total => 0,
            Self::Executed => 1,
            Self::Continued => 2,
            Self::Refused => 3,
            Self::Replayed => 4,
            Self::Unreached => 5,
            Self::Answered => 6,
            Self::Reconciled => 32,
            Self::Violations => 33,
            Self::Xid => 34,
            Self::CardLost => 35,
            Self::HungCall => 36,
            Self::SuppressedLogs => 37,
            Self::Throttled => 38,
            Self::LastIncident => 39,
            Self::UnknownCalls => 40,
            Self::LogSince => 41,
            Self::NextRecord => 42,
            Self::Took(bucket) => BY_DURATION + usize::from(bucket),
            Self::TookUs => 56,
            Self::OverQuota(CardSlot(card)) => BY_CARD + usize::from(card),
        }
    }
}

/// Counters of one container; they only grow.
#[derive(Debug, Clone)]
pub struct Counters(Arc<SharedState>);

impl Counters {
    /// Those in a shared state.
    #[must_use]
    pub fn on(shared_state: Arc<SharedState>) -> Self {
        Self(shared_state)
    }

    /// Adds one.
    pub fn count(&self, counter: Counter) {
        self.0.count(counter.place(), 1);
    }

    /// Adds several.
    pub fn add(&self, counter: Counter, more: u64) {
        self.0.count(counter.place(), more);
    }

    /// What is no count rises to a value.
    pub fn raise(&self, counter: Counter, value: u64) {
        self.add(counter, value.saturating_sub(self.value(counter)));
    }

    /// Counts a call by its duration.
    pub fn took(&self, duration: Duration) {
        let took_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let shorter = DURATIONS_US
            .iter()
            .take_while(|bound_us| **bound_us < took_us);
        let bucket = u8::try_from(shorter.count()).unwrap_or(u8::MAX);
        self.count(Counter::Took(bucket));
        self.add(Counter::TookUs, took_us);
    }

    /// Reads one.
    #[must_use]
    pub fn value(&self, counter: Counter) -> u64 {
        self.0.counted(counter.place())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_by_its_duration() {
        let file = SharedState::memfd().unwrap();
        let counters = Counters::on(SharedState::open(file).unwrap());
        for (us, times) in [(0, 1), (50, 1), (51, 1), (1_000_000, 2), (5_000_000, 3)] {
            for _ in 0..times {
                counters.took(Duration::from_micros(us));
            }
        }
        let taken: Vec<u64> = (0..8)
            .map(|bucket| counters.value(Counter::Took(bucket)))
            .collect();
        assert_eq!(taken, [2, 1, 0, 0, 0, 0, 2, 3]);
        assert_eq!(counters.value(Counter::TookUs), 17_000_101);
        assert_eq!(counters.value(Counter::UnknownCalls), 0);
    }
}
