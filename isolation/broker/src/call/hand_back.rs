//! Calls that the caller executes itself, once they are committed.

use driver::Binding;
use journal::reservation::Reservation;
use nvabi::bytes::u32_at;
use nvabi::call::Affinity;
use nvabi::class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;
use nvabi::escape;
use nvabi::layout::nvos02;
use nvabi::status::NV_ERR_INVALID_OBJECT_HANDLE;
use verdict::Effect;

use super::NotifiedCall;
use super::reply::Reply;
use crate::account::{JudgedCall, Met};
use crate::files::OpenFile;

/// Calls that a real driver binds to the calling process and that the broker therefore hands back, by mode ([`Affinity`]).
/// REGISTER_FD resolves its descriptor in whoever executes it, and the duplicate does as well.
pub(super) fn stays_in_the_caller(binding: Binding, call: &JudgedCall<'_>) -> bool {
    match (binding, call.op.affinity()) {
        (Binding::None, _) => false,
        (Binding::Caller | Binding::Executor, Affinity::Caller) => true,
        (Binding::Caller, Affinity::CallerInCompat) => true,
        // A root client records its process.
        (Binding::Caller, Affinity::Any) => *call.effect == Effect::Client,
        // The executor is the process of every client, so of these only what touches the caller's own pages stays with it. It reaches
        // no card memory, whatever a second read of its struct finds: ALLOC_MEMORY cannot without CAP_SYS_ADMIN.
        (Binding::Executor, Affinity::CallerInCompat) => {
            let class = || u32_at(&call.segments.first()?.bytes, nvos02::H_CLASS);
            call.op.escape() == Some(escape::Id::AllocMemory)
                && class() == Some(NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)
        }
        (Binding::Executor, Affinity::Any) => false,
    }
}

impl NotifiedCall<'_> {
    /// Commits what a handed-back call will do, on the side that charges: a reference is taken, and memory charged, although the call may yet
    /// fail.
    pub(super) fn hand_back(&self, call: &JudgedCall<'_>, file: &OpenFile) -> Reply {
        let container = self.container;
        let (account, binding) = (&container.account, container.driver.binding());
        let argument = call.segments.first().cloned();
        let (_in_order, mut change, reservation) = loop {
            // The end of what has its handle is committed before.
            let in_order = container.orders.take(call.effect, file);
            let mut change = container.journal.change();
            let reserved = account
                .find_named(&change, binding, call)
                .and_then(|()| account.reserve(&mut change, call));
            let denied = match reserved {
                Ok(reservation) => break (in_order, change, reservation),
                Err(denied) => denied,
            };
            drop((change, in_order));
            if !denied.may_be_given_up() || !self.give_up_what_is_gone() {
                return self.deny(call.op, denied, argument);
            }
        };
        if let Err(denied) = account.begin_mapping(&change, call) {
            change.roll_back(&reservation);
            drop(change);
            return self.deny(call.op, denied, argument);
        }
        match &reservation {
            Reservation::MapExternal { .. } => {
                account.commit(&reservation, &mut change, call);
                let made = (call.effect, call.origin.file);
                account.end_mapping(&change, made, &[], container.driver.release);
            }
            // Held although the call may yet fail: nobody sees its end. Unregistering it fails then as well, and it is held until its file is closed.
            Reservation::Register { .. } => account.commit(&reservation, &mut change, call),
            Reservation::Memory { .. } => match call.meets(&change, &reservation) {
                Met::Nothing => account.commit(&reservation, &mut change, call),
                // A program whose registration has failed tries again, and its allocator of handles gives the same one. Either may be there,
                // and the other's end may come before: what the second takes stays reserved to the container's end.
                Met::Unseen => {}
                Met::Another => {
                    change.roll_back(&reservation);
                    let status = NV_ERR_INVALID_OBJECT_HANDLE;
                    let refusal = call.op.refuse(status, container.driver.release);
                    return Reply::refused(refusal, argument);
                }
            },
            Reservation::Object { .. } => call.leave_unconfirmed(&mut change, &reservation),
            Reservation::Nothing
            | Reservation::Client { .. }
            | Reservation::Duplicate { .. }
            | Reservation::Exports { .. }
            | Reservation::Imports { .. }
            | Reservation::Pool { .. }
            | Reservation::OsEvent { .. }
            | Reservation::FreeOsEvent { .. }
            | Reservation::Free { .. }
            | Reservation::Range { .. }
            | Reservation::Unmap { .. }
            | Reservation::Unregister { .. }
            | Reservation::FreeRange { .. } => change.roll_back(&reservation),
        }
        Reply::Proceed
    }
}
