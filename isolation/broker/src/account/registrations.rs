//! What nvidia-uvm registers: its references on channels, their groups and address spaces.

use journal::Change;
use journal::reservation::Reservation;
use journal::state::State;
use ledger::{CardSlot, ClientHandle, ObjectHandle, Operation, PinFor, Span};
use nvabi::{status, uvm};
use verdict::{Op, Registered, Unregistered};

use super::{Account, Denied, JudgedCall, Why};

impl Account {
    /// A pin that keeps an object charged, and what the driver holds with it, until the driver has answered.
    pub(super) fn reserve_registration(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        (card, what): (&[u8; 16], Registered),
        object: (ClientHandle, ObjectHandle),
    ) -> Result<Reservation, Denied> {
        let no_device = || self.denied(call, status::NV_ERR_INVALID_DEVICE, Why::NoDevice);
        let card = self.slot_of_uuid(card).ok_or_else(no_device)?;
        let pin = change
            .pin(object, PinFor::Register)
            .map_err(|refusal| self.denied_by_ledger(call, refusal))?;
        Ok(Reservation::Register {
            card,
            registered: registered(what, object),
            pin,
        })
    }

    /// Registrations as the ledger knows them.
    pub(super) fn unregistered(&self, which: Unregistered) -> Option<ledger::Unregistered> {
        match which {
            Unregistered::Channel { client, channel } => Some(ledger::Unregistered::Channel {
                client: ClientHandle(client),
                channel: ObjectHandle(channel),
            }),
            Unregistered::Card { card } => self.slot_of_uuid(&card).map(ledger::Unregistered::Card),
        }
    }
}

/// Records what a call has registered, or unregistered.
pub(super) fn commit(
    reservation: &Reservation,
    change: &mut Change<'_>,
    (uvm_file, op): (ledger::FileId, &Op),
) {
    if let Reservation::Register {
        card,
        registered,
        pin,
    } = reservation
    {
        change.record(Operation::Register {
            pin: *pin,
            uvm_file,
            card: *card,
            registered: *registered,
        });
    }
    let Reservation::Unregister { which: Some(which) } = reservation else {
        return;
    };
    match (which, op) {
        (ledger::Unregistered::Card(card), Op::Uvm(row)) if row.id == uvm::Id::UnregisterGpu => {
            take_out(change, uvm_file, *card);
        }
        (which, _) => {
            let which = *which;
            change.record(Operation::Unregister { uvm_file, which });
        }
    }
}

/// Records that a card is out of an address space: all that was registered or mapped there has ended (`unregister_gpu`, uvm_va_space.c).
pub(crate) fn take_out(change: &mut Change<'_>, uvm_file: ledger::FileId, card: CardSlot) {
    let which = ledger::Unregistered::Card(card);
    change.record(Operation::Unregister { uvm_file, which });
    if let Some(span) = Span::new(0, u64::MAX) {
        let card = Some(card);
        change.record(Operation::UnmapExternal {
            uvm_file,
            span,
            card,
        });
    }
}

/// Whether a file has registered a channel or an address space: a repetition of the call that has done it fails.
pub(super) fn is_registered(
    state: &State,
    uvm_file: ledger::FileId,
    what: Registered,
    (client, object): (u32, u32),
) -> bool {
    let registered = registered(what, (ClientHandle(client), ObjectHandle(object)));
    let mut cards = state.ledger.cards();
    cards.any(|card| state.ledger.has_registration(uvm_file, card, registered))
}

fn registered(
    what: Registered,
    (client, object): (ClientHandle, ObjectHandle),
) -> ledger::Registered {
    match what {
        Registered::Space => ledger::Registered::Space {
            client,
            space: object,
        },
        Registered::Channel => ledger::Registered::Channel {
            client,
            channel: object,
        },
    }
}
