//! What is counted is within its limit, and what the driver takes of the host's memory for it is charged.

use crate::identity::CardSlot;
use crate::kinds::{Counted, ObjectKind};
use crate::ledger::Ledger;
use crate::refusal::Refusal;

impl Ledger {
    /// Whether `more` of `counted` would still be within the limit, and the host's memory for them.
    pub(crate) fn check_count(&self, counted: Counted, more: u64) -> Result<(), Refusal> {
        self.counts.check(counted, more)?;
        self.check_host(self.counts.host_bytes(counted, more))
    }

    /// [`Ledger::check_count`] for one object of a kind: the kind's own limit and that of all objects.
    pub(crate) fn check_object(&self, kind: ObjectKind) -> Result<(), Refusal> {
        let counted = [Counted::Kind(kind), Counted::Objects];
        for counted in counted {
            self.counts.check(counted, 1)?;
        }
        let bytes = counted.map(|counted| self.counts.host_bytes(counted, 1));
        self.check_host(bytes.into_iter().fold(0, u64::saturating_add))
    }

    fn check_host(&self, bytes: u64) -> Result<(), Refusal> {
        match bytes {
            0 => Ok(()),
            bytes => self.accounts.check(CardSlot::HOST, bytes),
        }
    }

    pub(crate) fn count_more(&mut self, counted: Counted, more: u64) {
        self.counts.add(counted, more);
        let bytes = self.counts.host_bytes(counted, more);
        if bytes > 0 {
            self.accounts.hold_for_none(CardSlot::HOST, bytes);
        }
    }

    pub(crate) fn count_fewer(&mut self, counted: Counted, fewer: u64) {
        self.counts.subtract(counted, fewer);
        let bytes = self.counts.host_bytes(counted, fewer);
        self.accounts.let_go_for_none(CardSlot::HOST, bytes);
    }

    pub(crate) fn count_object(&mut self, kind: ObjectKind) {
        self.count_more(Counted::Kind(kind), 1);
        self.count_more(Counted::Objects, 1);
    }

    pub(crate) fn uncount_object(&mut self, kind: ObjectKind) {
        self.count_fewer(Counted::Kind(kind), 1);
        self.count_fewer(Counted::Objects, 1);
    }
}
