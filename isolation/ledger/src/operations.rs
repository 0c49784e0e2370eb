//! The ledger's changes as values: what a journal writes down, and replays.

use serde::{Deserialize, Serialize};

use crate::charge::Demand;
use crate::held::{Registered, Unregistered};
use crate::identity::{CardSlot, ClientHandle, FileId, ObjectHandle, ProcessId};
use crate::kinds::ObjectKind;
use crate::ledger::{Freed, Ledger, Pin, PinFor, Reservation};
use crate::mappings::Span;
use crate::objects::{Actual, NewObject, Place, Recorded};
use crate::references::Adopted;
use crate::refusal::Refusal;

/// A [`Reservation`] by its number. Unlike it, it can be written down; like it, it is handed back exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationToken(u64);

/// A [`Pin`] by its number, as [`ReservationToken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PinToken(u64);

/// One change of a ledger; each variant is the method of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the fields are the arguments of the method that a variant names"
)]
pub enum Operation {
    /// [`Ledger::set_quota`]
    SetQuota { card: CardSlot, quota_bytes: u64 },
    /// [`Ledger::reserve`]
    Reserve {
        kind: ObjectKind,
        demand: Option<Demand>,
    },
    /// [`Ledger::roll_back`]
    RollBack { reservation: ReservationToken },
    /// [`Ledger::pin`]
    Pin {
        client: ClientHandle,
        object: ObjectHandle,
        purpose: PinFor,
    },
    /// [`Ledger::pin_export`]
    PinExport {
        file: FileId,
        index: u32,
        purpose: PinFor,
    },
    /// [`Ledger::unpin`]
    Unpin { pin: PinToken },
    /// [`Ledger::open_client`]
    OpenClient {
        file: FileId,
        client: ClientHandle,
        process: ProcessId,
        reservation: ReservationToken,
    },
    /// [`Ledger::see_client`]
    SeeClient {
        file: FileId,
        client: ClientHandle,
        process: ProcessId,
    },
    /// [`Ledger::add_object`]
    AddObject {
        place: Place,
        class: u32,
        kind: ObjectKind,
        card: Option<CardSlot>,
        depends_on: Vec<ObjectHandle>,
        reservation: ReservationToken,
        actual: Actual,
    },
    /// [`Ledger::add_unconfirmed`]
    AddUnconfirmed {
        place: Place,
        class: u32,
        kind: ObjectKind,
    },
    /// [`Ledger::recharge`]
    Recharge {
        client: ClientHandle,
        object: ObjectHandle,
        bytes: u64,
    },
    /// [`Ledger::free`]
    Free {
        client: ClientHandle,
        object: ObjectHandle,
    },
    /// [`Ledger::close_file`]
    CloseFile { file: FileId },
    /// [`Ledger::duplicate`]
    Duplicate { pin: PinToken, place: Place },
    /// [`Ledger::open_uvm_file`]
    OpenUvmFile { uvm_file: FileId },
    /// [`Ledger::uvm_file_stays`]
    UvmFileStays { uvm_file: FileId },
    /// [`Ledger::add_range`]
    AddRange { uvm_file: FileId, span: Span },
    /// [`Ledger::range_stays`]
    RangeStays { uvm_file: FileId, base: u64 },
    /// [`Ledger::map_external`]
    MapExternal {
        pin: PinToken,
        uvm_file: FileId,
        span: Span,
        cards: Vec<CardSlot>,
    },
    /// [`Ledger::unmap_external`]
    UnmapExternal {
        uvm_file: FileId,
        span: Span,
        card: Option<CardSlot>,
    },
    /// [`Ledger::free_range`]
    FreeRange { uvm_file: FileId, base: u64 },
    /// [`Ledger::drop_address_space`]
    DropAddressSpace { uvm_file: FileId },
    /// [`Ledger::map_managed`]
    MapManaged {
        uvm_file: FileId,
        span: Span,
        process: ProcessId,
        cards: Vec<CardSlot>,
    },
    /// [`Ledger::found_managed`]
    FoundManaged {
        uvm_file: FileId,
        span: Span,
        process: ProcessId,
        cards: Vec<CardSlot>,
    },
    /// [`Ledger::unmap_managed`]
    UnmapManaged { uvm_file: FileId, span: Span },
    /// [`Ledger::adopt_export`]
    AdoptExport {
        file: FileId,
        index: u32,
        adopted: Adopted,
    },
    /// [`Ledger::export`]
    Export {
        pin: PinToken,
        file: FileId,
        index: u32,
    },
    /// [`Ledger::register`]
    Register {
        pin: PinToken,
        uvm_file: FileId,
        card: CardSlot,
        registered: Registered,
    },
    /// [`Ledger::unregister`]
    Unregister {
        uvm_file: FileId,
        which: Unregistered,
    },
}

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// Nothing to tell.
    Done,
    /// Bytes and a slot are reserved.
    Reserved(ReservationToken),
    /// A reference is held.
    Pinned(PinToken),
    /// An object or a client was recorded.
    Recorded(Recorded),
    /// Something was taken out.
    Freed(Freed),
}

impl Reservation {
    /// Its number, which can be written down; the reservation is what [`Operation`]s with that number make of it.
    #[must_use = "bytes stay reserved until it is recorded or rolled back"]
    pub fn into_token(self) -> ReservationToken {
        ReservationToken(self.0)
    }
}

impl Pin {
    /// As [`Reservation::into_token`].
    #[must_use = "memory stays charged until it is recorded or unpinned"]
    pub fn into_token(self) -> PinToken {
        PinToken(self.0)
    }
}

impl Ledger {
    /// The references that calls under way have, and what else holds one.
    pub fn pins(&self) -> impl Iterator<Item = PinToken> + '_ {
        self.pins.keys().copied().map(PinToken)
    }

    /// Makes a change.
    ///
    /// # Errors
    /// A refusal of [`Operation::Reserve`], [`Operation::Pin`] or [`Operation::PinExport`]; nothing is changed then.
    #[expect(
        clippy::too_many_lines,
        reason = "a table: one arm for each operation, which calls the method of its name"
    )]
    pub fn apply(&mut self, operation: Operation) -> Result<Applied, Refusal> {
        let reserved = |reservation: Reservation| Applied::Reserved(reservation.into_token());
        let pinned = |pin: Pin| Applied::Pinned(pin.into_token());
        Ok(match operation {
            Operation::SetQuota { card, quota_bytes } => {
                self.set_quota(card, quota_bytes);
                Applied::Done
            }
            Operation::Reserve { kind, demand } => reserved(self.reserve(kind, demand)?),
            Operation::RollBack { reservation } => {
                self.roll_back(Reservation(reservation.0));
                Applied::Done
            }
            Operation::Pin {
                client,
                object,
                purpose,
            } => pinned(self.pin(client, object, purpose)?),
            Operation::PinExport {
                file,
                index,
                purpose,
            } => pinned(self.pin_export(file, index, purpose)?),
            Operation::Unpin { pin } => Applied::Freed(self.unpin(Pin(pin.0))),
            Operation::OpenClient {
                file,
                client,
                process,
                reservation,
            } => Applied::Recorded(self.open_client(
                file,
                client,
                process,
                Reservation(reservation.0),
            )),
            Operation::SeeClient {
                file,
                client,
                process,
            } => {
                self.see_client(file, client, process);
                Applied::Done
            }
            Operation::AddObject {
                place,
                class,
                kind,
                card,
                depends_on,
                reservation,
                actual,
            } => {
                let new = NewObject {
                    place,
                    class,
                    kind,
                    card,
                    depends_on: &depends_on,
                };
                Applied::Recorded(self.add_object(new, Reservation(reservation.0), actual))
            }
            Operation::AddUnconfirmed { place, class, kind } => {
                self.add_unconfirmed(NewObject {
                    place,
                    class,
                    kind,
                    card: None,
                    depends_on: &[],
                });
                Applied::Done
            }
            Operation::Recharge {
                client,
                object,
                bytes,
            } => {
                self.recharge(client, object, bytes);
                Applied::Done
            }
            Operation::Free { client, object } => Applied::Freed(self.free(client, object)),
            Operation::CloseFile { file } => Applied::Freed(self.close_file(file)),
            Operation::Duplicate { pin, place } => {
                Applied::Recorded(self.duplicate(Pin(pin.0), place, &[]))
            }
            Operation::OpenUvmFile { uvm_file } => {
                self.open_uvm_file(uvm_file)?;
                Applied::Done
            }
            Operation::UvmFileStays { uvm_file } => {
                self.uvm_file_stays(uvm_file);
                Applied::Done
            }
            Operation::AddRange { uvm_file, span } => {
                self.add_range(uvm_file, span);
                Applied::Done
            }
            Operation::RangeStays { uvm_file, base } => {
                self.range_stays(uvm_file, base);
                Applied::Done
            }
            Operation::MapExternal {
                pin,
                uvm_file,
                span,
                cards,
            } => Applied::Freed(self.map_external(Pin(pin.0), uvm_file, span, &cards)),
            Operation::UnmapExternal {
                uvm_file,
                span,
                card,
            } => Applied::Freed(self.unmap_external(uvm_file, span, card)),
            Operation::FreeRange { uvm_file, base } => {
                Applied::Freed(self.free_range(uvm_file, base))
            }
            Operation::DropAddressSpace { uvm_file } => {
                Applied::Freed(self.drop_address_space(uvm_file))
            }
            Operation::MapManaged {
                uvm_file,
                span,
                process,
                cards,
            } => Applied::Recorded(self.map_managed(uvm_file, span, process, &cards)?),
            Operation::FoundManaged {
                uvm_file,
                span,
                process,
                cards,
            } => Applied::Recorded(self.found_managed(uvm_file, span, process, &cards)),
            Operation::UnmapManaged { uvm_file, span } => {
                Applied::Freed(self.unmap_managed(uvm_file, span))
            }
            Operation::AdoptExport {
                file,
                index,
                adopted,
            } => {
                self.adopt_export(file, index, adopted)?;
                Applied::Done
            }
            Operation::Export { pin, file, index } => {
                Applied::Freed(self.export(Pin(pin.0), file, index))
            }
            Operation::Register {
                pin,
                uvm_file,
                card,
                registered,
            } => Applied::Freed(self.register(Pin(pin.0), uvm_file, card, registered)),
            Operation::Unregister { uvm_file, which } => {
                Applied::Freed(self.unregister(uvm_file, which))
            }
        })
    }
}
