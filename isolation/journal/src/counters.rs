//! How many calls took which way. The figures are in the shared state, so that they outlive a broker.

use std::sync::Arc;

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
    /// Those in which the driver counted more.
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
    /// Allocations that did not fit on a card.
    OverQuota(CardSlot),
}

impl Counter {
    fn place(self) -> usize {
        /// `CardSlot` is a byte, of which half have room.
        const BY_CARD: usize = 128;
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

    /// Reads one.
    #[must_use]
    pub fn value(&self, counter: Counter) -> u64 {
        self.0.counted(counter.place())
    }
}
