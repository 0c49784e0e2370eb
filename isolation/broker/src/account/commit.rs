//! What becomes of a reservation whose call the driver has executed, or will without the broker.

use journal::Change;
use journal::reservation::Reservation;
use journal::state::{self, State};
use ledger::{
    Actual, Applied, CardSlot, ClientHandle, ObjectHandle, ObjectKind, Operation, PinToken, Place,
    ProcessId, ReservationToken, Span,
};
use nvabi::bytes::{u32_at, u64_at};
use nvabi::class;
use verdict::{Memory, Whose, page_size};

use super::registrations;
use super::reserve::{card_of, card_of_object};
use super::translation::dependencies;
use super::{Account, JudgedCall};

impl Account {
    /// Records what a call has done that the driver has executed with success; the call has its answer's blocks.
    pub fn commit(
        &self,
        reservation: &Reservation,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
    ) {
        let file = ledger::FileId(call.origin.file.0);
        let made = call.new_handle().unwrap_or_default();
        match reservation {
            Reservation::Nothing => {}
            Reservation::Client { token } => {
                change.record(Operation::OpenClient {
                    file: ledger::FileId(change.bound_file(call.origin.file).0),
                    client: ClientHandle(made),
                    process: ProcessId(call.origin.process),
                    reservation: *token,
                });
            }
            Reservation::Object { .. } => self.commit_object(reservation, change, call),
            Reservation::Memory { memory, token } => commit_memory(change, call, memory, *token),
            Reservation::Duplicate {
                client,
                parent,
                pin,
            } => {
                let place = place(change, call, (*client, *parent), made);
                change.record(Operation::Duplicate { pin: *pin, place });
            }
            Reservation::MapExternal {
                base,
                length,
                cards,
                pin,
            } => commit_mapping(change, file, (*base, *length), cards, *pin),
            Reservation::Exports { first, pins } => match call.origin.transfer_file {
                Some((file, _)) => commit_exports(change, ledger::FileId(file.0), *first, pins),
                None => change.roll_back(reservation),
            },
            Reservation::Imports { .. } => commit_imports(reservation, change, call),
            Reservation::Pool {
                base,
                length,
                token,
            } => {
                let pool = state::Op::Pool(call.origin.file, (*base, *length), *token);
                change.record_op(pool);
            }
            Reservation::OsEvent { client, number } => {
                change.record_op(state::Op::OsEvent(call.origin.file, (*client, *number)));
            }
            Reservation::FreeOsEvent { client, number } => {
                change.record_op(state::Op::OsEventGone((*client, *number)));
            }
            Reservation::Free { client, object } => {
                change.record(Operation::Free {
                    client: ClientHandle(*client),
                    object: ObjectHandle(*object),
                });
                if client == object {
                    change.forget_os_events_of(*client);
                }
            }
            Reservation::Range {
                base,
                length,
                token,
            } => commit_range(change, file, (*base, *length), *token),
            Reservation::Unmap { base, length, card } => {
                if let (Some(span), Some(_)) = (Span::new(*base, *length), card) {
                    change.record(Operation::UnmapExternal {
                        uvm_file: file,
                        span,
                        card: *card,
                    });
                }
            }
            Reservation::Register { .. } | Reservation::Unregister { .. } => {
                registrations::commit(reservation, change, (file, call.op));
            }
            Reservation::FreeRange { base } => {
                let (uvm_file, base) = (file, *base);
                change.record(Operation::FreeRange { uvm_file, base });
            }
        }
        self.remember(change, call);
    }

    fn commit_object(
        &self,
        reservation: &Reservation,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
    ) {
        let Reservation::Object {
            client,
            parent,
            class,
            kind,
            device,
            token,
        } = reservation
        else {
            return;
        };
        let row = class::of(*class);
        // The driver's figure may have been learnt since it was reserved.
        let on = row.zip(card_of_object(change, (*client, *parent)));
        let actual = on.map_or(Actual::AsReserved, |(row, on)| {
            let place = (*client, *parent);
            Actual::Bytes(self.implicit_bytes(change, on, (row, place), call.segments))
        });
        let depends_on = row.map(|row| dependencies(call.op, row, call.segments));
        let made = call.new_handle().unwrap_or_default();
        let place = place(change, call, (*client, *parent), made);
        change.record(Operation::AddObject {
            place,
            class: *class,
            kind: *kind,
            card: *device,
            depends_on: depends_on.unwrap_or_default(),
            reservation: *token,
            actual,
        });
    }
}

/// What has the handle of memory that the kernel is about to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// Nothing has it.
    Nothing,
    /// Memory whose call the kernel has executed, and may have refused: it is charged, and may not be there.
    Unseen,
    /// Something that is there; or no client of the container's was named, or no handle.
    Another,
}

impl JudgedCall<'_> {
    /// The client and handle of memory of which the driver has taken more than was reserved, and more than the quota has room for.
    #[must_use]
    pub fn outgrown(&self, state: &State, reservation: &Reservation) -> Option<(u32, u32)> {
        let Reservation::Memory { memory, .. } = reservation else {
            return None;
        };
        let taken = taken_bytes(memory, self);
        let more = taken.checked_sub(memory.reserve_bytes)?;
        let card = card_of(state, memory)?;
        let handle = self.new_handle()?;
        (more > state.ledger.available(card)).then_some((memory.client, handle))
    }

    /// What memory whose call the kernel will execute after our answer meets in the account: its client is the container's, and
    /// its handle is the caller's choice and free, so that nothing that is held gives way to it.
    #[must_use]
    pub fn meets(&self, state: &State, reservation: &Reservation) -> Met {
        let Reservation::Memory { memory, .. } = reservation else {
            return Met::Another;
        };
        let client = ClientHandle(memory.client);
        let handle = self.new_handle().unwrap_or_default();
        if handle == 0 || handle == memory.client || state.ledger.owner_file(client).is_none() {
            return Met::Another;
        }
        let Some(there) = state.ledger.object(client, ObjectHandle(handle)) else {
            return Met::Nothing;
        };
        let registered = class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;
        match there.allocation {
            Some(_) if [there.class, memory.class] == [registered; 2] => Met::Unseen,
            Some(_) | None => Met::Another,
        }
    }

    /// Gives back what is held for an object whose call the kernel will execute after our answer, and records the object: uncharged,
    /// and never in another's place.
    pub fn leave_unconfirmed(&self, change: &mut Change<'_>, reservation: &Reservation) {
        change.roll_back(reservation);
        let Reservation::Object {
            client,
            parent,
            class,
            kind,
            ..
        } = reservation
        else {
            return;
        };
        let handle = self.new_handle().unwrap_or_default();
        let place = place(change, self, (*client, *parent), handle);
        change.record(Operation::AddUnconfirmed {
            place,
            class: *class,
            kind: *kind,
        });
    }
}

fn commit_imports(reservation: &Reservation, change: &mut Change<'_>, call: &JudgedCall<'_>) {
    let Reservation::Imports {
        client,
        parent,
        handles_at,
        types_at,
        pins,
    } = reservation
    else {
        return;
    };
    let params = call.segments.get(1).map(|params| params.bytes.as_slice());
    let params = params.unwrap_or_default();
    let handles = (*handles_at..).step_by(4);
    for ((slot, handle_at), pin) in handles.enumerate().zip(pins) {
        let Some(pin) = *pin else { continue };
        let handle = u32_at(params, handle_at).unwrap_or_default();
        let kind = types_at.and_then(|at| params.get(at.checked_add(slot)?));
        let is_empty = kind == Some(&0);
        if handle == 0 || is_empty {
            change.record(Operation::Unpin { pin });
        } else {
            let place = place(change, call, (*client, *parent), handle);
            change.record(Operation::Duplicate { pin, place });
        }
    }
}

fn commit_memory(
    change: &mut Change<'_>,
    call: &JudgedCall<'_>,
    memory: &Memory,
    token: ReservationToken,
) {
    let made = call.new_handle().unwrap_or_default();
    let place = place(change, call, (memory.client, memory.parent), made);
    let applied = change.record(Operation::AddObject {
        place,
        class: memory.class,
        kind: ObjectKind::Memory,
        card: None::<CardSlot>,
        depends_on: Vec::new(),
        reservation: token,
        actual: Actual::Bytes(taken_bytes(memory, call)),
    });
    if let Applied::Recorded(recorded) = applied
        && let Some(over_bytes) = recorded.over_quota_bytes
    {
        tracing::error!(
            over_bytes,
            "the driver took more than the quota for an allocation, and did not free it"
        );
    }
}

/// The ledger charges the range itself from here on.
fn commit_range(
    change: &mut Change<'_>,
    uvm_file: ledger::FileId,
    (base, length): (u64, u64),
    reservation: ReservationToken,
) {
    change.record(Operation::RollBack { reservation });
    if let Some(span) = Span::new(base, length) {
        change.record(Operation::AddRange { uvm_file, span });
    }
}

fn commit_mapping(
    change: &mut Change<'_>,
    uvm_file: ledger::FileId,
    (base, length): (u64, u64),
    cards: &[CardSlot],
    pin: PinToken,
) {
    change.record(match Span::new(base, length) {
        Some(span) => Operation::MapExternal {
            pin,
            uvm_file,
            span,
            cards: cards.to_vec(),
        },
        None => Operation::Unpin { pin },
    });
}

fn commit_exports(
    change: &mut Change<'_>,
    file: ledger::FileId,
    first: u16,
    pins: &[Option<PinToken>],
) {
    for (index, pin) in (u32::from(first)..).zip(pins) {
        if let Some(pin) = *pin {
            change.record(Operation::Export { pin, file, index });
        }
    }
}

/// Where a new object is. A client stays with the control file that the driver has bound it to, though calls on all files that are
/// registered with that one reach it too.
fn place(state: &State, call: &JudgedCall<'_>, (client, parent): (u32, u32), handle: u32) -> Place {
    let client = ClientHandle(client);
    let file = ledger::FileId(state.bound_file(call.origin.file).0);
    Place {
        file: state.ledger.owner_file(client).unwrap_or(file),
        client,
        parent: ObjectHandle(parent),
        handle: ObjectHandle(handle),
        process: ProcessId(call.origin.process),
    }
}

/// What the driver has taken for an allocation, by what it writes back.
fn taken_bytes(memory: &Memory, call: &JudgedCall<'_>) -> u64 {
    let written_back = memory.size_at.and_then(|(segment, at)| {
        let segment = call.segments.get(usize::from(segment))?;
        u64_at(&segment.bytes, at)
    });
    written_back.map_or(memory.reserve_bytes, |bytes| match memory.whose {
        Whose::Card => page_size::taken(bytes),
        whose @ (Whose::Host | Whose::HostInOnePiece) => page_size::taken_of_host(bytes, whose),
    })
}
