//! Bytes: what each card's share holds, and the allocations that hold it.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use crate::charge::{Charge, Demand, Purpose, narrow};
use crate::counts::wide;
use crate::identity::{AllocationId, CardSlot, ProcessId};
use crate::refusal::Refusal;
use crate::usage::Usages;

/// One allocation of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Allocation {
    /// The card it is on.
    pub card: CardSlot,
    /// Its exact size.
    pub bytes: u64,
    /// What it is for.
    pub purpose: Purpose,
    /// The process that allocated it.
    pub process: ProcessId,
    /// Handles, mapping pieces, exports and pins that refer to it; never 0.
    pub references: u32,
    /// Handles alone.
    pub handles: u32,
}

impl Allocation {
    fn charge(&self) -> Charge {
        Charge {
            card: self.card,
            bytes: self.bytes,
            purpose: self.purpose,
            process: self.process,
        }
    }
}

/// One card's share. Sums are wider than what they add, so that no sequence of records can wrap them.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Share {
    pub(crate) quota_bytes: u64,
    pub(crate) held_bytes: u128,
    pub(crate) reserved_bytes: u128,
    pub(crate) peak_bytes: u128,
    /// Of the bytes held, those of [`Purpose::Memory`] that have a handle.
    pub(crate) named_bytes: u128,
}

impl Share {
    fn new(quota_bytes: u64) -> Self {
        Self {
            quota_bytes,
            ..Self::default()
        }
    }

    pub(crate) fn used_bytes(&self) -> u128 {
        self.held_bytes.saturating_add(self.reserved_bytes)
    }
}

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Accounts {
    shares: BTreeMap<CardSlot, Share>,
    allocations: BTreeMap<AllocationId, Allocation>,
    /// The number of the last allocation.
    last: u64,
    usages: Usages,
    /// See [`crate::Ledger::inconsistencies`].
    inconsistencies: u64,
}

impl Accounts {
    pub(crate) fn new(quotas: &[(CardSlot, u64)]) -> Self {
        let mut accounts = Self::default();
        for (card, quota_bytes) in quotas {
            accounts.set_quota(*card, *quota_bytes);
        }
        accounts
    }

    pub(crate) fn set_quota(&mut self, card: CardSlot, quota_bytes: u64) {
        self.shares
            .entry(card)
            .and_modify(|share| share.quota_bytes = quota_bytes)
            .or_insert_with(|| Share::new(quota_bytes));
    }

    pub(crate) fn share(&self, card: CardSlot) -> Option<&Share> {
        self.shares.get(&card)
    }

    pub(crate) fn shares(&self) -> impl Iterator<Item = (CardSlot, &Share)> {
        self.shares.iter().map(|(card, share)| (*card, share))
    }

    pub(crate) fn allocation(&self, id: AllocationId) -> Option<&Allocation> {
        self.allocations.get(&id)
    }

    pub(crate) fn usages(&self) -> &Usages {
        &self.usages
    }

    pub(crate) fn allocation_count(&self) -> u64 {
        wide(self.allocations.len())
    }

    pub(crate) fn allocations(&self) -> impl Iterator<Item = (AllocationId, &Allocation)> {
        self.allocations.iter().map(|(id, it)| (*id, it))
    }

    /// Whether so many bytes more fit. None always do, also above a quota that was lowered.
    pub(crate) fn check(&self, card: CardSlot, bytes: u64) -> Result<(), Refusal> {
        let Some(share) = self.shares.get(&card) else {
            return Err(Refusal::NoShare { card });
        };
        let sum = share.used_bytes().saturating_add(u128::from(bytes));
        if bytes > 0 && sum > u128::from(share.quota_bytes) {
            return Err(Refusal::OverQuota {
                card,
                requested_bytes: bytes,
                used_bytes: narrow(share.used_bytes()),
                quota_bytes: share.quota_bytes,
            });
        }
        Ok(())
    }

    /// Sets bytes aside if they fit.
    pub(crate) fn reserve(&mut self, demand: Demand) -> Result<(), Refusal> {
        self.check(demand.card, demand.bytes)?;
        if let Some(share) = self.shares.get_mut(&demand.card) {
            let requested = u128::from(demand.bytes);
            share.reserved_bytes = share.reserved_bytes.saturating_add(requested);
        }
        Ok(())
    }

    /// Gives reserved bytes back.
    pub(crate) fn unreserve(&mut self, demand: Demand) {
        if let Some(share) = self.shares.get_mut(&demand.card) {
            let bytes = u128::from(demand.bytes);
            debug_assert!(share.reserved_bytes >= bytes);
            share.reserved_bytes = share.reserved_bytes.saturating_sub(bytes);
        }
    }

    /// Charges an allocation that the driver has made, with one reference; it is not refused here.
    pub(crate) fn charge(
        &mut self,
        card: CardSlot,
        bytes: u64,
        purpose: Purpose,
        process: ProcessId,
    ) -> AllocationId {
        let allocation = Allocation {
            card,
            bytes,
            purpose,
            process,
            references: 1,
            handles: 0,
        };
        self.hold(allocation.charge());
        self.last = self.last.saturating_add(1);
        let id = AllocationId(NonZeroU64::new(self.last).unwrap_or(NonZeroU64::MAX));
        self.allocations.insert(id, allocation);
        id
    }

    /// Charges what no handle refers to.
    pub(crate) fn hold(&mut self, charge: Charge) {
        self.hold_for_none(charge.card, charge.bytes);
        self.usages.add(charge);
    }

    /// Charges what is of no process.
    pub(crate) fn hold_for_none(&mut self, card: CardSlot, bytes: u64) {
        let share = self.shares.entry(card).or_insert_with(|| Share::new(0));
        share.held_bytes = share.held_bytes.saturating_add(u128::from(bytes));
        share.peak_bytes = share.peak_bytes.max(share.held_bytes);
    }

    /// Ends a charge.
    pub(crate) fn let_go(&mut self, charge: Charge) {
        self.usages.remove(charge);
        self.let_go_for_none(charge.card, charge.bytes);
    }

    /// Ends what [`Accounts::hold_for_none`] has charged.
    pub(crate) fn let_go_for_none(&mut self, card: CardSlot, bytes: u64) {
        if let Some(share) = self.shares.get_mut(&card) {
            let bytes = u128::from(bytes);
            debug_assert!(share.held_bytes >= bytes);
            share.held_bytes = share.held_bytes.saturating_sub(bytes);
        }
    }

    /// Sets the size of what the driver takes by itself.
    pub(crate) fn recharge(&mut self, id: AllocationId, bytes: u64) {
        let Some(allocation) = self.allocations.get_mut(&id) else {
            return;
        };
        if allocation.purpose != Purpose::Context || allocation.bytes == bytes {
            return;
        }
        let before = allocation.charge();
        allocation.bytes = bytes;
        let after = allocation.charge();
        self.let_go(before);
        self.hold(after);
    }

    /// Something that cannot be was asked for, and was left out.
    pub(crate) fn record_inconsistency(&mut self) {
        self.inconsistencies = self.inconsistencies.saturating_add(1);
    }

    pub(crate) fn inconsistencies(&self) -> u64 {
        self.inconsistencies
    }

    /// One more handle is a reference to it.
    pub(crate) fn name(&mut self, id: AllocationId) {
        let Some(allocation) = self.allocations.get_mut(&id) else {
            self.record_inconsistency();
            return;
        };
        allocation.handles = allocation.handles.saturating_add(1);
        if allocation.handles == 1
            && let Some(bytes) = named_bytes(&mut self.shares, allocation)
        {
            *bytes = bytes.saturating_add(u128::from(allocation.bytes));
        }
    }

    /// One of its handles is gone; the reference is not.
    pub(crate) fn unname(&mut self, id: AllocationId) {
        let Some(allocation) = self.allocations.get_mut(&id) else {
            self.record_inconsistency();
            return;
        };
        debug_assert!(allocation.handles > 0);
        allocation.handles = allocation.handles.saturating_sub(1);
        if allocation.handles == 0
            && let Some(bytes) = named_bytes(&mut self.shares, allocation)
        {
            *bytes = bytes.saturating_sub(u128::from(allocation.bytes));
        }
    }

    pub(crate) fn retain(&mut self, id: AllocationId) {
        if let Some(allocation) = self.allocations.get_mut(&id) {
            allocation.references = allocation.references.saturating_add(1);
        } else {
            self.record_inconsistency();
        }
    }

    /// Drops one reference; the allocation, if that was the last one.
    pub(crate) fn release(&mut self, id: AllocationId) -> Option<Allocation> {
        let Some(allocation) = self.allocations.get_mut(&id) else {
            self.record_inconsistency();
            return None;
        };
        allocation.references = allocation.references.saturating_sub(1);
        if allocation.references > 0 {
            return None;
        }
        let gone = self.allocations.remove(&id)?;
        self.let_go(gone.charge());
        Some(gone)
    }
}

/// Where memory that has a handle is summed up; `None` for what the driver takes by itself.
fn named_bytes<'a>(
    shares: &'a mut BTreeMap<CardSlot, Share>,
    allocation: &Allocation,
) -> Option<&'a mut u128> {
    let share = shares.get_mut(&allocation.card)?;
    (allocation.purpose == Purpose::Memory).then_some(&mut share.named_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_requested_of_an_allocation_that_is_gone_is_counted_and_changes_nothing() {
        let mut accounts = Accounts::new(&[(CardSlot(0), 1 << 20)]);
        let gone = AllocationId(NonZeroU64::MIN);
        accounts.name(gone);
        accounts.unname(gone);
        accounts.retain(gone);
        assert_eq!(accounts.release(gone), None);
        assert_eq!(accounts.inconsistencies(), 4);
        assert_eq!(accounts.share(CardSlot(0)).unwrap().held_bytes, 0);
    }
}
