//! How many calls took which way. The figures lie on the board, so that they outlive a broker.

use std::sync::Arc;

use ledger::CardSlot;

use crate::board::Board;

/// What is counted; the numbers are places on the board.
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
            Self::OverQuota(CardSlot(card)) => BY_CARD + usize::from(card),
        }
    }
}

/// Counters of one container; they only grow.
#[derive(Debug)]
pub struct Counters(Arc<Board>);

impl Counters {
    /// Those on a board.
    #[must_use]
    pub fn on(board: Arc<Board>) -> Self {
        Self(board)
    }

    /// Adds one.
    pub fn count(&self, counter: Counter) {
        self.0.count(counter.place(), 1);
    }

    /// Reads one.
    #[must_use]
    pub fn value(&self, counter: Counter) -> u64 {
        self.0.counted(counter.place())
    }
}
