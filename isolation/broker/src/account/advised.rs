//! Where managed pages have been given policies or groups: the driver splits its piece of memory at each end of them, some KiB of the kernel's
//! memory each time, which no control group counts ([`verdict::Pages`]). It joins no piece again; they go with the mapping or the file.
//!
//! The journal does not know them: a successor begins without any.

use std::sync::Mutex;
use std::time::Instant;

use driver::FileId;
use journal::state::State;
use nvabi::status;
use sys::sync::lock;
use verdict::{Effect, Pages};

use super::by_file::ByFile;
use super::{Account, Denied, JudgedCall, Why};
use crate::pace::Pace;

/// Addresses of a container where policies begin or end: 160 MiB of the kernel's memory, as the driver's structs are. A program that gives
/// every allocation a policy has two for each.
pub(crate) const MOST_ADVISED: usize = 1 << 15;

/// The addresses of one container, by file.
#[derive(Debug, Default)]
pub(crate) struct Advised {
    known: Mutex<ByFile>,
    /// Of looks for those that are gone: calls wait for them.
    pace: Pace,
}

/// Forgets addresses in no memory that is charged: with a mapping its pieces go.
fn forget_what_is_gone(known: &mut ByFile, state: &State) {
    known.retain(|file, address| {
        let touches = |at| state.ledger.has_managed(ledger::FileId(file.0), at);
        touches(address) || address.checked_sub(1).is_some_and(touches)
    });
}

impl Account {
    /// Before the driver gives pages a policy: whether its pieces of memory may become more. Nothing for other calls. What the driver refuses then
    /// counts as well, as long as the memory is there, or the file where managed memory is not charged.
    ///
    /// # Errors
    /// [`Why::NotManaged`], answered as the driver does where memory is not its own: of pageable memory it would take policies too, as many as
    /// there are pages (`uvm_hmm_set_accessed_by`, uvm_hmm.c). [`Why::TooManyPolicies`], answered as it does where it has no memory.
    pub(crate) fn begin_advice(&self, state: &State, call: &JudgedCall<'_>) -> Result<(), Denied> {
        let Effect::Pages(Pages::Advised { base, length }) = *call.effect else {
            return Ok(());
        };
        let file = call.origin.file;
        if self.charges_managed && !state.ledger.has_managed(ledger::FileId(file.0), base) {
            return Err(self.denied(call, status::NV_ERR_INVALID_ADDRESS, Why::NotManaged(base)));
        }
        let mut known = lock(&self.advised.known);
        let mut new = vec![base, base.saturating_add(length)];
        new.retain(|address| !known.has(file, *address));
        let is_full = |known: &ByFile| known.count().saturating_add(new.len()) > MOST_ADVISED;
        if is_full(&known) && self.charges_managed && self.advised.pace.wait().is_none() {
            let begun = Instant::now();
            forget_what_is_gone(&mut known, state);
            self.advised.pace.spent(begun.elapsed());
        }
        if is_full(&known) {
            return Err(self.denied(call, status::NV_ERR_NO_MEMORY, Why::TooManyPolicies));
        }
        for address in new {
            known.add(file, address);
        }
        Ok(())
    }

    /// A file is gone, and its pieces with it.
    pub(super) fn forget_advice(&self, file: FileId) {
        lock(&self.advised.known).forget(file);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use driver::ImplicitBytes;
    use ledger::{CardSlot, Operation, ProcessId, Span};
    use nvabi::{Release, uvm};
    use verdict::Op;
    use verdict::policy::Managed;

    use super::*;
    use crate::account::Origin;
    use crate::account::made_up;

    const PAGE: u64 = 4096;
    const UVM: ledger::FileId = ledger::FileId(2);

    fn advise(account: &Account, state: &State, file: u64, base: u64) -> Result<(), Why> {
        let effect = Effect::Pages(Pages::Advised { base, length: PAGE });
        let call = JudgedCall {
            op: &Op::Uvm(&uvm::UVM_SET_ACCESSED_BY),
            effect: &effect,
            segments: &[],
            origin: Origin {
                file: FileId(file),
                process: 7,
                transfer_file: None,
            },
        };
        let begun = account.begin_advice(state, &call);
        begun.map_err(|denied| denied.why)
    }

    /// Where the ledger has no managed memory nobody can say what is gone: addresses count as long as their file is there.
    #[test]
    fn policies_of_memory_that_is_not_charged_are_limited_as_well() {
        let state = made_up::state(&[CardSlot(0)]);
        let implicit = ImplicitBytes::default();
        let account =
            Account::new(Release::R570, Vec::new(), &[], implicit).with_managed(Managed::Allow);
        let most = u64::try_from(MOST_ADVISED).unwrap();
        for number in 1..most {
            assert_eq!(advise(&account, &state, 2, number * PAGE), Ok(()));
        }
        let one_more = advise(&account, &state, 2, most * PAGE);
        assert_eq!(one_more, Err(Why::TooManyPolicies));
    }

    #[test]
    fn policies_are_limited_by_where_they_begin_and_end_in_memory_that_is_there() {
        let card = CardSlot(0);
        let mut state = made_up::state(&[card]);
        let most = u64::try_from(MOST_ADVISED).unwrap();
        let span = Span::new(PAGE, most * PAGE).unwrap();
        let mapped = state
            .ledger
            .map_managed(UVM, span, ProcessId(7), &[card])
            .unwrap();
        assert_eq!(mapped.over_quota_bytes, None);
        let implicit = ImplicitBytes::default();
        let mut account = Account::new(Release::R570, Vec::new(), &[], implicit);
        // The end of one is the beginning of the next.
        for number in 1..most {
            assert_eq!(advise(&account, &state, 2, number * PAGE), Ok(()));
        }
        let one_more = advise(&account, &state, 2, most * PAGE);
        assert_eq!(one_more, Err(Why::TooManyPolicies));
        // What has one already splits nothing more; another file's addresses are others.
        assert_eq!(advise(&account, &state, 2, 5 * PAGE), Ok(()));
        let pageable = advise(&account, &state, 3, PAGE);
        assert_eq!(pageable, Err(Why::NotManaged(PAGE)));
        let unmap = Operation::UnmapManaged {
            uvm_file: UVM,
            span: Span::new(10 * PAGE, 3 * PAGE).unwrap(),
        };
        state.ledger.apply(unmap).unwrap();
        // Looks for what is gone have a pace.
        account.advised.pace.spent(Duration::from_secs(3600));
        let late = advise(&account, &state, 2, most * PAGE);
        assert_eq!(late, Err(Why::TooManyPolicies));
        account.advised.pace = Pace::default();
        let one_more = advise(&account, &state, 2, most * PAGE);
        assert_eq!(one_more, Ok(()));
        account.forget_advice(FileId(2));
        assert_eq!(lock(&account.advised.known).count(), 0);
    }
}
