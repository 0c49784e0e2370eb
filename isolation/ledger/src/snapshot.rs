//! The whole account as plain values, for reports.

use crate::charge::narrow;
use crate::counts::wide;
use crate::identity::CardSlot;
use crate::kinds::Counted;
use crate::ledger::Ledger;
use crate::usage::ProcessUsage;

/// The account at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Every card, by slot.
    pub cards: Vec<CardUsage>,
    /// How many there are of each that there is at least one of, with those of calls under way.
    pub counts: Vec<(Counted, u64)>,
    /// Allocations held by at least one reference.
    pub allocations: u64,
    /// Files that hold exports.
    pub exporting_files: u64,
    /// Allocation calls under way.
    pub reservations: u64,
    /// Referring calls under way.
    pub pins: u64,
}

/// One card's share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardUsage {
    /// The card.
    pub card: CardSlot,
    /// The share.
    pub quota_bytes: u64,
    /// Held by allocations.
    pub held_bytes: u64,
    /// Reserved for calls under way.
    pub reserved_bytes: u64,
    /// The most ever held at once.
    pub peak_bytes: u64,
    /// Held, by the process that allocated.
    pub processes: Vec<ProcessUsage>,
}

impl Ledger {
    /// The account as it stands.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            cards: self
                .accounts
                .shares()
                .map(|(card, share)| CardUsage {
                    card,
                    quota_bytes: share.quota_bytes,
                    held_bytes: narrow(share.held_bytes),
                    reserved_bytes: narrow(share.reserved_bytes),
                    peak_bytes: narrow(share.peak_bytes),
                    processes: self.usage_by_process(card),
                })
                .collect(),
            counts: self.counts.all().collect(),
            allocations: self.accounts.allocation_count(),
            exporting_files: wide(self.exports.len()),
            reservations: wide(self.reservations.len()),
            pins: wide(self.pins.len()),
        }
    }
}
