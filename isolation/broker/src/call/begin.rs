//! What an admitted call needs is reserved, and the journal learns that the call goes to the driver.

use std::os::fd::AsFd;
use std::sync::Arc;

use driver::{Attempt, Binding, FdSlot, FileKind, Segment, Ticket};
use journal::Change;
use journal::counters::Counter;
use journal::reservation::Reservation;
use journal::state::{self, Begun, Finished, NamedFd, State};
use nvabi::errno::EMFILE;
use nvabi::{Release, escape, status};
use share::{Passage, gates};
use verdict::{Refusal, TakenOut};

use super::admit::{AdmittedCall, Request};
use super::device::DeviceCard;
use super::lookup::descriptors;
use super::reply::{Reply, record};
use super::{NotifiedCall, ReceivedCall};
use crate::account::{Account, Denied, InDriver, JudgedCall, TransferFile, Why};
use crate::files::InUse;
use crate::order::InOrder;

/// A call that the journal knows.
pub(crate) struct BegunCall<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) ticket: Ticket,
    pub(crate) attempt: Attempt,
    pub(crate) before: Arc<Vec<Segment>>,
    pub(crate) fds: Vec<FdSlot>,
    pub(crate) reservation: Reservation,
    pub(crate) held: Held<'a>,
}

/// What a call holds from before its execution until it is committed.
pub(crate) struct Held<'a> {
    /// Its place among the calls that change the same objects.
    pub(crate) _in_order: InOrder<'a>,
    /// See [`super::lookup::card_file`].
    pub(crate) _card_file: Option<InUse>,
    /// The gates that it has passed.
    pub(crate) _passage: Passage<'a>,
    /// What the driver makes for it beside the ledger's objects.
    pub(crate) in_driver: InDriver<'a>,
}

/// The file that exports go into or come from.
pub(super) fn transfer_file_of(fds: &[FdSlot]) -> TransferFile {
    fds.iter().find(|slot| slot.segment == 1)?.file
}

impl<'c> ReceivedCall<'c> {
    /// Reserves what the call needs and notes that it goes to the driver, in one frame.
    ///
    /// # Errors
    /// The reply of a call that is refused; that of its first try, where what that has made is in the way.
    pub(super) fn begin<'a>(&self, admitted: AdmittedCall<'a>) -> Result<BegunCall<'a>, Reply>
    where
        'c: 'a,
    {
        let AdmittedCall {
            request,
            segments,
            mut passage,
        } = admitted;
        let before = Arc::new(segments);
        let reserved = self.call.reserve(&request, &before, &mut passage);
        // It may have looked for what is given up.
        let passage = passage.begins_now();
        match reserved {
            Ok(reserved) => {
                let Reserved {
                    number,
                    fds,
                    reservation,
                    in_order,
                    card_file,
                    in_driver,
                } = reserved;
                Ok(BegunCall {
                    request,
                    ticket: Ticket {
                        call_slot: self.call.call_slot.number(),
                        call: number,
                    },
                    attempt: Attempt::First,
                    before,
                    fds,
                    reservation,
                    held: Held {
                        _in_order: in_order,
                        _card_file: card_file,
                        _passage: passage.begun(),
                        in_driver,
                    },
                })
            }
            Err(NotBegun::GivenUp) => Err(Reply::GivenUp),
            Err(NotBegun::Refused(refusal)) => Err(match self.first_answer(&request, &before) {
                Some(first) => Reply::Finished(first),
                None => Reply::refused(refusal, before.first().cloned()),
            }),
        }
    }

    /// The first try may be in its own way: what it took is charged.
    fn first_answer(&self, request: &Request<'_>, before: &[Segment]) -> Option<Finished> {
        let container = self.call.container;
        let state = container.journal.change();
        // An import of what is imported already takes nothing that could be lacking.
        let call = request.judged(before, None);
        let first = self
            .turn
            .answered(|first| call.with(&first.after).is_current(&state))?;
        container.counters.count(Counter::Replayed);
        Some(first)
    }
}

/// Why a call does not go to the driver.
enum NotBegun {
    /// It is refused.
    Refused(Refusal),
    /// The caller waits no more.
    GivenUp,
}

impl From<Refusal> for NotBegun {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What a call has been given, and the journal knows.
struct Reserved<'a> {
    number: u64,
    fds: Vec<FdSlot>,
    reservation: Reservation,
    in_order: InOrder<'a>,
    card_file: Option<InUse>,
    in_driver: InDriver<'a>,
}

/// What a call has of the account.
struct Taken<'a> {
    reservation: Reservation,
    in_driver: InDriver<'a>,
}

impl<'c> NotifiedCall<'c> {
    fn reserve<'a>(
        &self,
        request: &Request<'a>,
        before: &Arc<Vec<Segment>>,
        passage: &mut Passage<'a>,
    ) -> Result<Reserved<'a>, NotBegun>
    where
        'c: 'a,
    {
        let container = self.container;
        let deny = |denied| record(&container.health, request.op.name(), denied);
        let (caller, binding) = (request.caller, container.driver.binding());
        let named = || descriptors(&container.files, binding, caller, &request.op, before);
        let mut fds = match named() {
            Err(Refusal::Errno(EMFILE)) if self.give_up_what_is_gone() => named()?,
            found => found?,
        };
        let device = self.device_card(request, &mut fds)?;
        let call = request.judged(before, transfer_file_of(&fds));
        self.check_mm(&call, request.file).map_err(deny)?;
        self.check_imports(&call, &fds).map_err(deny)?;
        let (in_order, mut change, taken) = loop {
            let in_order = self.in_order(request, passage)?;
            let mut change = container.last_calls.begin(&container.journal);
            let denied = match self.take(&mut change, &call, &fds, &device) {
                Ok(taken) => break (in_order, change, taken),
                Err(denied) => denied,
            };
            // Nobody waits for the look but this call: the one that gives up what is lacking may be of the same client.
            drop((change, in_order));
            if !denied.may_be_given_up() || !self.give_up_what_is_gone() {
                return Err(deny(denied).into());
            }
        };
        let Taken {
            reservation,
            in_driver,
        } = taken;
        let number = change.next_call();
        let begun = Begun {
            number,
            key: self.key(),
            caller: request.caller,
            file: request.file.id,
            kind: request.file.kind,
            cmd: request.cmd,
            before: Arc::clone(before),
            fds: fds.iter().map(named_fd).collect(),
            reservation: reservation.clone(),
        };
        change.record_op(state::Op::Begin(self.call_slot.number(), Box::new(begun)));
        Ok(Reserved {
            number,
            fds,
            reservation,
            in_order,
            card_file: device.into_file(),
            in_driver,
        })
    }

    /// A place in the order, with the call's gates open. While it waits for these it has no place: others of its client would wait with it.
    fn in_order<'a>(
        &self,
        request: &Request<'a>,
        passage: &mut Passage<'a>,
    ) -> Result<InOrder<'a>, NotBegun>
    where
        'c: 'a,
    {
        let container = self.container;
        loop {
            let in_order = container.orders.take(&request.effect, request.file);
            if passage.is_valid() {
                return Ok(in_order);
            }
            drop(in_order);
            match passage.again(&|| self.still_waits()) {
                Ok(()) => {}
                Err(gates::Held::GivenUp) => return Err(NotBegun::GivenUp),
                Err(gates::Held::TooLong) => {
                    let refusal = request
                        .op
                        .refuse(status::NV_ERR_TIMEOUT, container.driver.release);
                    return Err(refusal.into());
                }
            }
        }
    }

    /// What a call needs, if all of it is there.
    fn take<'a>(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        fds: &[FdSlot],
        device: &DeviceCard,
    ) -> Result<Taken<'a>, Denied>
    where
        'c: 'a,
    {
        let account = &self.container.account;
        self.check(change, call)?;
        match device {
            DeviceCard::AsLearnt(_) => {}
            DeviceCard::Found(instance, slot, _) => change.learn_instance(*instance, *slot),
            DeviceCard::NotFound { status, why } => {
                return Err(Denied {
                    refusal: call.op.refuse(*status, self.container.driver.release),
                    why: why.clone(),
                });
            }
        }
        let reservation = account.reserve(change, call)?;
        match account.begin_in_driver(change, call, fds) {
            Ok(in_driver) => Ok(Taken {
                reservation,
                in_driver,
            }),
            Err(denied) => {
                change.roll_back(&reservation);
                Err(denied)
            }
        }
    }

    /// Whether all that a call names is there, and whether the share's limits let it be made.
    fn check(&self, state: &State, call: &JudgedCall<'_>) -> Result<(), Denied> {
        let container = self.container;
        let (binding, release) = (container.driver.binding(), container.driver.release);
        if binding == Binding::Caller && meets_a_registration(state, call, release) {
            return Err(Denied {
                refusal: call.op.refuse(status::NV_ERR_IN_USE, release),
                why: Why::BeingRegistered,
            });
        }
        container.account.find_named(state, binding, call)?;
        let admitted = container.share.admit(state, call.effect, call.segments);
        admitted.map_err(|(status, why)| Denied {
            refusal: call.op.refuse(status, release),
            why: Why::Share(why),
        })
    }

    /// Whether what a call takes out of a file may be taken: it was put there by this container, or by one of its share group,
    /// and is charged then.
    fn check_imports(&self, call: &JudgedCall<'_>, fds: &[FdSlot]) -> Result<(), Denied> {
        let (account, journal) = (&self.container.account, &self.container.journal);
        let transfer_file = call.origin.transfer_file;
        let Some(taken) = call.effect.taken_out() else {
            return Ok(());
        };
        if Account::has_exported(&journal.change(), &taken, transfer_file) {
            return Ok(());
        }
        let slot = fds.iter().find(|slot| slot.segment == 1);
        let peers = self.container.call_rules.peers.as_ref();
        let (Some(peers), Some(slot), Some((file, FileKind::Ctl))) = (peers, slot, transfer_file)
        else {
            return Err(account.foreign(call.op));
        };
        let known = peers.exports_of(slot.fd.as_fd());
        if known.is_empty() {
            return Err(account.foreign(call.op));
        }
        let TakenOut::Slots(slots) = taken else {
            return Ok(());
        };
        let mut change = journal.change();
        for index in slots {
            let id = ledger::FileId(file.0);
            if change.ledger.has_export(id, index) && !change.ledger.is_adopted(id, index) {
                continue;
            }
            let export = known.get(&index).ok_or_else(|| account.foreign(call.op))?;
            account.adopt(&mut change, call, file, export)?;
        }
        Ok(())
    }
}

/// Whether a file is being registered while another call is made on it. Which file the driver has bound the other call's client to nobody could
/// tell, where the client is known by that call.
fn meets_a_registration(state: &State, call: &JudgedCall<'_>, release: Release) -> bool {
    let is_one = call.op.escape() == Some(escape::Id::RegisterFd);
    let cmd = escape::NV_ESC_REGISTER_FD.cmd(release);
    state.open().any(|(_, other)| {
        let begun = &other.begun;
        let is_under_way = other.finished.is_none() && begun.file == call.origin.file;
        is_under_way && (is_one || begun.cmd == cmd)
    })
}

/// A descriptor as the journal has it.
fn named_fd(slot: &FdSlot) -> NamedFd {
    NamedFd {
        segment: slot.segment,
        at: slot.at,
        number: slot.number,
        file: slot.file,
    }
}
