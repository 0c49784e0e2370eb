//! A call that was executed is committed, or rolled back, and the journal learns its answer, in one frame.

use std::sync::Arc;

use driver::{Binding, FileKind, Segment, Ticket};
use journal::Change;
use journal::counters::{Counter, Counters};
use journal::state::ChangesAccount;
use journal::state::{self, Answer, Finished};
use nvabi::bytes::{u32_at, u64_at};
use nvabi::layout::nvos54;
use nvabi::status::NV_ERR_NO_MEMORY;
use nvabi::{control, escape, uvm};
use verdict::{Effect, Op};

use super::begin::transfer_file_of;
use super::execute::{CallResult, ExecutedCall};
use super::reply::record;
use crate::account::{self, Account, Denied, Numbers, Why};
use crate::close_files;
use crate::container::Container;
use crate::driver_side::DriverSide;
use crate::health::Health;
use crate::numbering::{self, Asker};
use crate::replay::ThreadTurn;

impl ExecutedCall<'_> {
    /// Commits the call's reservation if it has succeeded, else rolls it back, and notes what the caller gets.
    pub(crate) fn commit(mut self, container: &Container, turn: &ThreadTurn<'_>) -> Finished {
        let release = container.driver.release;
        let transfer_file = transfer_file_of(&self.fds);
        let (executor, asker) = (container.driver.process(), self.request.caller.tgid);
        let effect = &self.request.effect;
        let numbers = Numbers::of(&container.journal, executor, effect, asker);
        if self.has_succeeded(release)
            && let Some(arg) = self.result.after.first()
            && let Some(client) = numbering::client_shown_instances(effect, &arg.bytes)
        {
            let asker = Asker {
                file: self.request.file.for_driver(),
                caller: self.request.caller,
                client,
            };
            numbering::learn_instances(&container.driver, &container.journal, &asker);
        }
        let mut change = container.journal.change();
        // Looked at under the lock that it is committed under: two that fit one by one may not fit together.
        if self.has_succeeded(release)
            && let Some(object) = {
                let call = self.request.judged(&self.result.after, transfer_file);
                call.outgrown(&change, &self.reservation)
            }
        {
            drop(change);
            self.free_outgrown(&container.driver, &container.health, object);
            change = container.journal.change();
        }
        let changes_account = if self.has_succeeded(release) {
            self.succeed(container, &mut change, &numbers)
        } else {
            self.fail(&container.counters, &mut change, turn)
        };
        let answer = Answer {
            ret: self.result.ret,
            after: Arc::new(self.result.after),
            replaces: self.replaces,
            changes_account,
        };
        let finished = end(&mut change, self.ticket, self.before, answer);
        drop(change);
        drop(self.held);
        finished
    }

    /// Has the driver free what took more than its quota has room for. What cannot be freed stays, and is charged.
    fn free_outgrown(&mut self, driver: &DriverSide, health: &Health, object: (u32, u32)) {
        let request = &self.request;
        if close_files::free_object(driver, request.file, request.caller, object) {
            let denied = Denied {
                refusal: request.op.refuse(NV_ERR_NO_MEMORY, driver.release),
                why: Why::Outgrown,
            };
            let refusal = record(health, request.op.name(), denied);
            self.result = CallResult::refused(refusal, &self.before);
        }
    }

    fn succeed(
        &mut self,
        container: &Container,
        change: &mut Change<'_>,
        numbers: &Numbers,
    ) -> ChangesAccount {
        let request = &self.request;
        let (op, effect) = (&request.op, &request.effect);
        let after = &mut self.result.after;
        let call = request.judged(after, transfer_file_of(&self.fds));
        let account = &container.account;
        account.commit(&self.reservation, change, &call);
        if let (Effect::Object { client, .. }, Some(made)) = (effect, call.new_handle()) {
            account.hold_named(change, &call.with(&self.before), (*client, made));
        }
        account.end_in_driver(change, &call, (&mut self.held.in_driver, &self.fds));
        container.share.learn(change, effect, after);
        container.share.rewrite(change, effect, after);
        self.learn(account, container.driver.binding(), change);
        let changes_account = account::changes_account(effect);
        let after = &mut self.result.after;
        if let Some(view) = effect.view()
            && let Err(status) = account.rewrite(change, &view, numbers, after)
        {
            let refusal = op.refuse(status, container.driver.release);
            container.counters.count(Counter::Refused);
            self.result = CallResult::refused(refusal, &self.before);
        }
        changes_account
    }

    fn fail(
        &mut self,
        counters: &Counters,
        change: &mut Change<'_>,
        turn: &ThreadTurn<'_>,
    ) -> ChangesAccount {
        let call = self
            .request
            .judged(&self.before, transfer_file_of(&self.fds));
        let first = turn.answered(|first| {
            is_same(call.effect, &self.before, first) && call.with(&first.after).is_current(change)
        });
        // What the kernel may have given for all that stays reserved as long as the container lives: nobody can name it to have it freed. A
        // repetition of what has been answered got nothing.
        if self.is_in_doubt && first.is_none() {
            change.leave_in_doubt(&self.reservation);
        } else {
            change.roll_back(&self.reservation);
        }
        let Some(first) = first else {
            return ChangesAccount::No;
        };
        counters.count(Counter::Replayed);
        self.result = CallResult {
            ret: first.ret,
            after: first.after.as_ref().clone(),
        };
        first.changes_account
    }

    /// Takes from a successful call what later ones are understood by.
    fn learn(&self, account: &Account, binding: Binding, change: &mut Change<'_>) {
        let (op, file, after) = (&self.request.op, self.request.file, &self.result.after);
        account.learn_instance(change, op, after);
        account.learn_context_bytes(change, op, after);
        self.see_client(binding, change);
        if let Some(slot) = self.fds.first()
            && op.escape() == Some(escape::Id::RegisterFd)
            && let Some((control, FileKind::Ctl)) = slot.file
        {
            change.record_op(state::Op::FileRegistered(file.id, control));
        }
        if let (Op::Uvm(row), Some(first)) = (op, after.first())
            && row.id == uvm::Id::Free
            && let Some(base) = u64_at(&first.bytes, uvm::map_external::BASE)
        {
            change.record_op(state::Op::PoolGone(file.id, base));
        }
    }

    /// In compat mode the kernel makes root clients in the caller, and no answer comes by: that one is the container's is known by
    /// the success of a control on it, which the driver lets only the client's own file make. A kept answer is given to anybody.
    fn see_client(&self, binding: Binding, change: &mut Change<'_>) {
        let is_control = self.request.op.escape() == Some(escape::Id::Control);
        if binding != Binding::Caller || !is_control {
            return;
        }
        let argument = self.result.after.first();
        let Some(client) = argument.and_then(|arg| client_of_the_callers(&arg.bytes)) else {
            return;
        };
        if change.ledger.owner_file(client).is_none() {
            let file = change.bound_file(self.request.file.id);
            change.record(ledger::Operation::SeeClient {
                file: ledger::FileId(file.0),
                client,
                process: ledger::ProcessId(0),
            });
        }
    }
}

/// Notes what the caller of a begun call gets.
pub(crate) fn end(
    change: &mut Change<'_>,
    ticket: Ticket,
    before: Arc<Vec<Segment>>,
    answer: Answer,
) -> Finished {
    change.record_op(state::Op::End(ticket.call_slot, answer.clone()));
    Finished {
        number: ticket.call,
        ret: answer.ret,
        before,
        after: answer.after,
        replaces: answer.replaces,
        changes_account: answer.changes_account,
    }
}

/// Of exports and imports the struct does not tell one call from another: their parameters do.
fn is_same(effect: &Effect, now: &[Segment], first: &Finished) -> bool {
    let params = |segments: &[Segment]| segments.get(1).map(|params| params.bytes.clone());
    !matches!(effect, Effect::Export(_) | Effect::Import(_))
        || [&first.before, &first.after]
            .map(|of| params(of))
            .contains(&params(now))
}

/// The client of a control, if its success says that the client is the caller's.
fn client_of_the_callers(arg: &[u8]) -> Option<ledger::ClientHandle> {
    let spec = control::spec(u32_at(arg, nvos54::CMD)?)?;
    let client = u32_at(arg, nvos54::H_CLIENT)?;
    (spec.answer == control::Answer::Fresh).then_some(ledger::ClientHandle(client))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvabi::bytes::put_u32;

    #[test]
    fn an_answer_that_anybody_gets_reports_of_no_client_whose_it_is() {
        let client = |cmd| {
            let mut arg = [0; 32];
            put_u32(&mut arg, nvos54::H_CLIENT, 0xc1d0_0007);
            put_u32(&mut arg, nvos54::CMD, cmd);
            client_of_the_callers(&arg)
        };
        let fresh = control::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS;
        assert_eq!(client(fresh), Some(ledger::ClientHandle(0xc1d0_0007)));
        for kept in [
            control::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION,
            control::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2,
            control::NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE,
        ] {
            assert_eq!(client(kept), None, "{kept:#x}");
        }
        // The command of number 0 is always answered, and has no row.
        assert_eq!((client(0), client(0x2080_0000)), (None, None));
    }
}
