//! A verdict's effect on the container's account: what is set aside before the driver executes, and what is booked after.

use driver::{CardIdentity, FileId, ImplicitBytes, Segment};
use ledger::{
    Actual, Applied, CardSlot, ClientHandle, Counted, Demand, Ledger, Limits, ObjectHandle,
    ObjectKind, Operation, PinFor, Place, ProcessId, Purpose, Span,
};
use nvabi::bytes::u64_at;
use nvabi::{Release, status};
use verdict::{Effect, Memory, Op, Refusal, Schedule, Switch, Whose, page_size};

use crate::journal::Change;
use crate::state::{self, Numbering, SetAside, State};

mod answers;
mod context;
mod exports;
mod names;
mod translation;

pub use answers::Numbers;
pub use exports::Carrier;
pub use translation::{books, uuid_bytes};
use translation::{card_slot, dependencies, object_kind, status_of};

/// One card of the grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// `GPU-…`
    pub uuid: String,
    /// The UUID's 16 bytes, as UVM writes it.
    pub uuid_bytes: [u8; 16],
    /// N of `/dev/nvidia<N>`
    pub minor: u32,
    /// Quota in bytes.
    pub quota_bytes: u64,
}

/// Counts that no honest container comes near; they bound memory that no size declares, and what a broker keeps: the state at all of
/// these limits fits into the journal. Beyond them a call gets `NV_ERR_INSUFFICIENT_RESOURCES`, and `mmap` `ENOMEM`.
pub(crate) const LIMITS: [(Counted, u64); 8] = [
    (Counted::Kind(ObjectKind::Client), 4096),
    (Counted::Kind(ObjectKind::ChannelGroup), 1024),
    (Counted::Kind(ObjectKind::Channel), 8192),
    (Counted::Kind(ObjectKind::VaSpace), 1024),
    (Counted::Objects, 1 << 18),
    // External ones and pieces of managed memory.
    (Counted::Mappings, 1 << 18),
    (Counted::Ranges, 1 << 16),
    // A place and the memory for it count one each.
    (Counted::Exports, 1 << 17),
];

/// Events of a container. The driver keeps each in the kernel's memory, in one list for the whole host that every call walks, and their
/// numbers are looked up nowhere: nothing but this bounds them.
pub(crate) const MOST_OS_EVENTS: usize = 4096;

/// Semaphore pools of a container.
pub(crate) const MOST_POOLS: usize = 4096;

/// What the broker knows of the container's cards, besides the ledger and what it has learnt, which are [`State`].
#[derive(Debug)]
pub struct Account {
    release: Release,
    slots: Vec<Slot>,
    implicit: ImplicitBytes,
    numbering: Numbering,
    /// What the driver may take of the host's memory for the container, bytes.
    host_memory_bytes: u64,
}

/// Who made the call, on which file.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// The file.
    pub file: FileId,
    /// The process.
    pub process: i32,
    /// The file that its parameters name.
    pub carrier: Carrier,
}

impl Account {
    /// The account of these cards of the grant, as the driver numbers them.
    #[must_use]
    pub fn new(
        release: Release,
        slots: Vec<Slot>,
        cards: &[CardIdentity],
        implicit: ImplicitBytes,
    ) -> Self {
        let mut numbering = Numbering::default();
        for card in cards {
            if let Some(slot) = slots
                .iter()
                .position(|slot| slot.uuid == card.uuid)
                .and_then(card_slot)
            {
                numbering.slot_of_gpu_id.insert(card.gpu_id, slot);
                numbering
                    .slot_of_instance
                    .insert(card.device_instance, slot);
            }
        }
        Self {
            release,
            slots,
            implicit,
            numbering,
            host_memory_bytes: u64::MAX,
        }
    }

    /// The same with RM's ids of cards by their UUIDs, where the driver does not say them beforehand.
    #[must_use]
    pub fn with_gpu_ids(mut self, ids: &[(String, u32)]) -> Self {
        for (uuid, gpu_id) in ids {
            let slot = self.slots.iter().position(|slot| slot.uuid == *uuid);
            if let Some(slot) = slot.and_then(card_slot) {
                self.numbering.slot_of_gpu_id.insert(*gpu_id, slot);
            }
        }
        self
    }

    /// The same with a limit on what the driver may take of the host's memory for the container.
    #[must_use]
    pub fn with_host_memory(self, bytes: Option<u64>) -> Self {
        Self {
            host_memory_bytes: bytes.unwrap_or(u64::MAX),
            ..self
        }
    }

    /// What the driver may take of the host's memory for the container, if that is limited.
    #[must_use]
    pub fn host_memory_bytes(&self) -> Option<u64> {
        Some(self.host_memory_bytes).filter(|bytes| *bytes != u64::MAX)
    }

    /// The state of a container that holds nothing yet.
    #[must_use]
    pub fn fresh_state(&self) -> State {
        let quotas: Vec<(CardSlot, u64)> = (0u8..)
            .zip(&self.slots)
            .map(|(slot, card)| (CardSlot(slot), card.quota_bytes))
            .chain([(CardSlot::HOST, self.host_memory_bytes)])
            .collect();
        let limits = LIMITS
            .iter()
            .fold(Limits::none(), |limits, (counted, most)| {
                limits.with(*counted, *most)
            });
        State::new(Ledger::with_limits(&quotas, limits), self.numbering.clone())
    }

    /// The cards of the grant.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// All cards of the grant, as the ledger knows them.
    #[must_use]
    pub fn card_slots(&self) -> Vec<CardSlot> {
        (0..self.slots.len()).filter_map(card_slot).collect()
    }

    /// Sets aside what a call needs.
    ///
    /// # Errors
    /// The driver's own refusal: no memory for what is over quota, an invalid client for another tenant's.
    pub fn set_aside(
        &self,
        change: &mut Change<'_>,
        effect: &Effect,
        op: &Op,
        segments: &[Segment],
        carrier: Carrier,
    ) -> Result<SetAside, (Refusal, Why)> {
        let refuse = |status, why| (op.refuse(status, self.release), why);
        let refused = |refusal: ledger::Refusal| {
            let status = status_of(&refusal);
            refuse(status, Why::Ledger(refusal))
        };
        match effect {
            Effect::None
            | Effect::MapDma { .. }
            | Effect::View(_)
            | Effect::Schedule(
                Schedule::SetTimeslice { .. }
                | Schedule::GetTimeslice { .. }
                | Schedule::Runlist { .. }
                | Schedule::Preempt,
            )
            | Effect::Free { .. }
            | Effect::Unmap { .. }
            | Effect::ExportInfo { .. }
            // Never comes to a driver.
            | Effect::Answered { .. }
            | Effect::FreeRange { .. } => Ok(SetAside::Nothing),
            Effect::Client => reserve(change, ObjectKind::Client, None, None).map_err(refused),
            Effect::Object {
                class,
                client,
                parent,
                device_instance,
            } => {
                let card = match device_instance {
                    Some(instance) => {
                        let slot = change.numbering.slot_of_instance.get(instance).copied();
                        Some(slot.ok_or_else(|| {
                            refuse(status::NV_ERR_INVALID_CLASS, Why::ForeignDevice(*instance))
                        })?)
                    }
                    None => change
                        .ledger
                        .card_of(ClientHandle(*client), ObjectHandle(*parent)),
                };
                let place = (*client, *parent);
                let demand = card.and_then(|card| {
                    let bytes = self.implicit_bytes(change, card, class, place, segments);
                    (bytes > 0).then_some(Demand {
                        card,
                        bytes,
                        purpose: Purpose::Context,
                    })
                });
                let device = card.filter(|_| device_instance.is_some());
                reserve(change, object_kind(class.kind), demand, device).map_err(refused)
            }
            Effect::Memory(memory) => {
                let card = card_of(change, memory)
                    .ok_or_else(|| refuse(status::NV_ERR_INVALID_OBJECT_PARENT, Why::NoDevice))?;
                let demand = Demand {
                    card,
                    bytes: memory.reserve_bytes,
                    purpose: Purpose::Memory,
                };
                reserve(change, ObjectKind::Memory, Some(demand), None).map_err(refused)
            }
            Effect::Dup {
                source_client,
                source_object,
                ..
            } => {
                let source = (*source_client, *source_object);
                pin(change, source, PinFor::Duplicate, Vec::new()).map_err(refused)
            }
            Effect::Range { .. } => {
                change.ledger.check_range().map_err(refused)?;
                Ok(SetAside::Nothing)
            }
            Effect::MapExternal {
                client,
                memory,
                cards,
                ..
            } => {
                let slots: Option<Vec<CardSlot>> =
                    cards.iter().map(|uuid| self.slot_of_uuid(uuid)).collect();
                let slots =
                    slots.ok_or_else(|| refuse(status::NV_ERR_INVALID_DEVICE, Why::NoDevice))?;
                let purpose = PinFor::Map {
                    cards: u32::try_from(slots.len()).unwrap_or(u32::MAX),
                };
                pin(change, (*client, *memory), purpose, slots).map_err(refused)
            }
            Effect::ChannelClients { clients } => {
                let foreign = |client: &u32| is_foreign(change, *client);
                match clients.iter().any(foreign) {
                    false => Ok(SetAside::Nothing),
                    true => Err(refuse(status::NV_ERR_INVALID_CLIENT, Why::ForeignChannels)),
                }
            }
            Effect::Schedule(Schedule::Channels { channels, .. }) => {
                let foreign = |(client, _): &(u32, u32)| is_foreign(change, *client);
                match channels.iter().any(foreign) {
                    false => Ok(SetAside::Nothing),
                    true => Err(refuse(status::NV_ERR_INVALID_CLIENT, Why::ForeignChannels)),
                }
            }
            Effect::OsEvent {
                client,
                number,
                switch,
            } => {
                if is_foreign(change, *client) {
                    return Err(refuse(status::NV_ERR_INVALID_CLIENT, Why::ForeignEvent));
                }
                let is_new = !change.has_os_event(*client, *number);
                if *switch == Switch::On && is_new && change.os_event_count() >= MOST_OS_EVENTS {
                    let status = status::NV_ERR_INSUFFICIENT_RESOURCES;
                    return Err(refuse(status, Why::TooManyEvents));
                }
                Ok(SetAside::Nothing)
            }
            Effect::Pool { length, .. } => {
                if change.pool_count() >= MOST_POOLS {
                    let status = status::NV_ERR_INSUFFICIENT_RESOURCES;
                    return Err(refuse(status, Why::TooManyPools));
                }
                let demand = Demand {
                    card: CardSlot::HOST,
                    bytes: page_size::taken_of_host(*length),
                    purpose: Purpose::Memory,
                };
                reserve(change, ObjectKind::Other, Some(demand), None).map_err(refused)
            }
            Effect::NamesCards { ids, absent } => {
                let known = &change.numbering.slot_of_gpu_id;
                match ids.iter().find(|id| !known.contains_key(id)) {
                    None => Ok(SetAside::Nothing),
                    // As the driver answers where there is no such card: by errno where the struct has no status.
                    Some(id) => Err(refuse(*absent, Why::ForeignCard(*id))),
                }
            }
            Effect::Export(export) => self.pin_exports(change, export, carrier, op),
            Effect::Import(import) => self.pin_imports(change, import, carrier, op),
            // Not an ioctl's: see `managed`.
            Effect::Managed { .. } => Err(refuse(status::NV_ERR_NOT_SUPPORTED, Why::NotAnIoctl)),
        }
    }

    /// Gives back what was set aside: the driver did not do it.
    pub fn give_back(&self, change: &mut Change<'_>, set_aside: &SetAside) {
        match set_aside {
            SetAside::Nothing => {}
            SetAside::Object(reservation, _) => {
                change.record(Operation::RollBack {
                    reservation: *reservation,
                });
            }
            SetAside::Pinned(pin, _) => {
                change.record(Operation::Unpin { pin: *pin });
            }
            SetAside::Pins(pins) => {
                for pin in pins.iter().flatten() {
                    change.record(Operation::Unpin { pin: *pin });
                }
            }
        }
    }

    /// The client and handle of memory of which the driver has taken more than was set aside, and more than the quota has room for.
    #[must_use]
    pub fn outgrown(
        &self,
        state: &State,
        effect: &Effect,
        op: &Op,
        segments: &[Segment],
    ) -> Option<(u32, u32)> {
        let Effect::Memory(memory) = effect else {
            return None;
        };
        let taken = taken_bytes(memory, segments);
        let more = taken.checked_sub(memory.reserve_bytes)?;
        let card = card_of(state, memory)?;
        let handle = op.new_handle(&segments.first()?.bytes)?;
        (more > state.ledger.available(card)).then_some((memory.client, handle))
    }

    /// Books a call that the driver has executed with success.
    pub fn book(
        &self,
        change: &mut Change<'_>,
        effect: &Effect,
        set_aside: &SetAside,
        origin: Origin,
        op: &Op,
        segments: &[Segment],
    ) {
        let file = ledger::FileId(origin.file.0);
        let process = ProcessId(origin.process);
        let made = segments
            .first()
            .and_then(|first| op.new_handle(&first.bytes))
            .unwrap_or_default();
        // A client stays with the control file that made it, though a call on a registered device file reaches it too.
        let place = |state: &State, client: u32, parent: u32, handle: u32| Place {
            file: state
                .ledger
                .owner_file(ClientHandle(client))
                .unwrap_or(file),
            client: ClientHandle(client),
            parent: ObjectHandle(parent),
            handle: ObjectHandle(handle),
            process,
        };
        match (effect, set_aside) {
            (Effect::Client, SetAside::Object(reservation, _)) => {
                change.record(Operation::OpenClient {
                    file,
                    client: ClientHandle(made),
                    process,
                    reservation: *reservation,
                });
            }
            (
                Effect::Object {
                    class,
                    client,
                    parent,
                    ..
                },
                SetAside::Object(reservation, card),
            ) => {
                let on = change
                    .ledger
                    .card_of(ClientHandle(*client), ObjectHandle(*parent));
                // The driver's figure may have been learnt since it was set aside.
                let actual = on.map_or(Actual::AsReserved, |on| {
                    let place = (*client, *parent);
                    Actual::Bytes(self.implicit_bytes(change, on, class, place, segments))
                });
                let place = place(change, *client, *parent, made);
                change.record(Operation::AddObject {
                    place,
                    class: class.number,
                    kind: object_kind(class.kind),
                    card: *card,
                    depends_on: dependencies(op, class, segments),
                    reservation: *reservation,
                    actual,
                });
            }
            (Effect::Memory(memory), SetAside::Object(reservation, _)) => {
                let actual = Actual::Bytes(taken_bytes(memory, segments));
                let place = place(change, memory.client, memory.parent, made);
                let applied = change.record(Operation::AddObject {
                    place,
                    class: memory.class,
                    kind: ObjectKind::Memory,
                    card: None,
                    depends_on: Vec::new(),
                    reservation: *reservation,
                    actual,
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
            (Effect::Dup { client, parent, .. }, SetAside::Pinned(pin, _)) => {
                let place = place(change, *client, *parent, made);
                change.record(Operation::Duplicate { pin: *pin, place });
            }
            (Effect::MapExternal { base, length, .. }, SetAside::Pinned(pin, cards)) => {
                let pin = *pin;
                change.record(match Span::new(*base, *length) {
                    Some(span) => Operation::MapExternal {
                        pin,
                        uvm_file: file,
                        span,
                        cards: cards.clone(),
                    },
                    None => Operation::Unpin { pin },
                });
            }
            (Effect::Export(export), SetAside::Pins(pins)) => {
                self.book_exports(change, export, pins, origin.carrier);
            }
            (Effect::Import(import), SetAside::Pins(pins)) => {
                let params = segments.get(1).map(|params| params.bytes.as_slice());
                let place =
                    |state: &State, handle| place(state, import.client, import.parent, handle);
                Self::book_imports(change, import, pins, params.unwrap_or_default(), place);
            }
            (Effect::Pool { base, length }, SetAside::Object(reservation, _)) => {
                change.note(state::Op::Pool(origin.file, (*base, *length), *reservation));
            }
            (
                Effect::OsEvent {
                    client,
                    number,
                    switch,
                },
                _,
            ) => {
                let event = (*client, *number);
                change.note(match switch {
                    Switch::On => state::Op::OsEvent(origin.file, event),
                    Switch::Off => state::Op::OsEventGone(event),
                });
            }
            (Effect::Free { client, object }, _) => {
                change.record(Operation::Free {
                    client: ClientHandle(*client),
                    object: ObjectHandle(*object),
                });
            }
            (Effect::Range { base, length }, _) => {
                if let Some(span) = Span::new(*base, *length) {
                    change.record(Operation::AddRange {
                        uvm_file: file,
                        span,
                    });
                }
            }
            (Effect::Unmap { base, length, card }, _) => {
                if let (Some(span), Some(slot)) =
                    (Span::new(*base, *length), self.slot_of_uuid(card))
                {
                    change.record(Operation::UnmapExternal {
                        uvm_file: file,
                        span,
                        card: Some(slot),
                    });
                }
            }
            (Effect::FreeRange { base }, _) => {
                change.record(Operation::FreeRange {
                    uvm_file: file,
                    base: *base,
                });
            }
            (_, set_aside) => self.give_back(change, set_aside),
        }
    }

    /// Whether memory whose call the kernel will execute after our answer can be booked before: its client is the container's, and its
    /// handle is the caller's choice and free, so that nothing that is held gives way to it.
    #[must_use]
    pub fn can_be_charged_unseen(&self, state: &State, memory: &Memory, handle: u32) -> bool {
        let client = ClientHandle(memory.client);
        handle != 0
            && handle != memory.client
            && state.ledger.owner_file(client).is_some()
            && state.ledger.object(client, ObjectHandle(handle)).is_none()
    }

    /// Notes an object whose call the kernel will execute after our answer: uncharged, and never in another's place.
    pub fn note_unconfirmed(
        &self,
        change: &mut Change<'_>,
        effect: &Effect,
        origin: Origin,
        op: &Op,
        segments: &[Segment],
    ) {
        let Effect::Object {
            class,
            client,
            parent,
            ..
        } = effect
        else {
            return;
        };
        let handle = segments
            .first()
            .and_then(|first| op.new_handle(&first.bytes))
            .unwrap_or_default();
        let file = change
            .ledger
            .owner_file(ClientHandle(*client))
            .unwrap_or(ledger::FileId(origin.file.0));
        change.record(Operation::AddUnconfirmed {
            place: Place {
                file,
                client: ClientHandle(*client),
                parent: ObjectHandle(*parent),
                handle: ObjectHandle(handle),
                process: ProcessId(origin.process),
            },
            class: class.number,
            kind: object_kind(class.kind),
        });
    }

    /// Whether what a call made, or undid, is still so: its repetition fails *because* the first try succeeded.
    #[must_use]
    pub fn stands(
        &self,
        state: &State,
        effect: &Effect,
        origin: Origin,
        op: &Op,
        answer: &[Segment],
    ) -> bool {
        let file = origin.file;
        let made = answer.first().and_then(|first| op.new_handle(&first.bytes));
        let ledger = &state.ledger;
        let has = |client: u32, object: Option<u32>| {
            object.is_some_and(|object| {
                ledger
                    .object(ClientHandle(client), ObjectHandle(object))
                    .is_some()
            })
        };
        match effect {
            Effect::Client => made.is_some_and(|client| {
                ledger.owner_file(ClientHandle(client)) == Some(ledger::FileId(file.0))
            }),
            Effect::Object { client, .. } | Effect::Dup { client, .. } => has(*client, made),
            Effect::Memory(memory) => has(memory.client, made),
            Effect::Free { client, object } if client == object => {
                ledger.owner_file(ClientHandle(*client)).is_none()
            }
            Effect::Free { client, object } => !has(*client, Some(*object)),
            Effect::Range { base, .. } => ledger.has_range(ledger::FileId(file.0), *base),
            Effect::FreeRange { base } => !ledger.has_range(ledger::FileId(file.0), *base),
            Effect::Pool { base, length } => state.has_pool(file, (*base, *length)),
            Effect::OsEvent {
                client,
                number,
                switch,
            } => state.has_os_event(*client, *number) == (*switch == Switch::On),
            // Mapping and unmapping again come to the same end, and so are not refused.
            Effect::None
            | Effect::View(_)
            | Effect::MapDma { .. }
            | Effect::MapExternal { .. }
            | Effect::Unmap { .. }
            | Effect::ExportInfo { .. }
            | Effect::Managed { .. }
            | Effect::Schedule(_)
            | Effect::NamesCards { .. }
            | Effect::Answered { .. }
            | Effect::ChannelClients { .. } => false,
            Effect::Export(_) | Effect::Import(_) => {
                exports::stands(state, effect, origin.carrier, answer)
            }
        }
    }

    /// The last reference to a file is gone.
    pub fn close_file(&self, change: &mut Change<'_>, file: FileId) {
        change.record(Operation::CloseFile {
            file: ledger::FileId(file.0),
        });
        change.note(state::Op::FileGone(file));
    }

    fn slot_of_uuid(&self, uuid: &[u8; 16]) -> Option<CardSlot> {
        self.slots
            .iter()
            .position(|slot| slot.uuid_bytes == *uuid)
            .and_then(card_slot)
    }
}

/// What the driver has taken for an allocation, by what it writes back.
fn taken_bytes(memory: &Memory, segments: &[Segment]) -> u64 {
    let written_back = memory.size_at.and_then(|(segment, at)| {
        let segment = segments.get(usize::from(segment))?;
        u64_at(&segment.bytes, at)
    });
    written_back.map_or(memory.reserve_bytes, |bytes| match memory.whose {
        Whose::Card => page_size::taken(bytes),
        Whose::Host => page_size::taken_of_host(bytes),
    })
}

/// What an allocation is charged to.
fn card_of(state: &State, memory: &Memory) -> Option<CardSlot> {
    match memory.whose {
        Whose::Host => Some(CardSlot::HOST),
        Whose::Card => {
            let parent = ObjectHandle(memory.parent);
            state.ledger.card_of(ClientHandle(memory.client), parent)
        }
    }
}

fn is_foreign(state: &State, client: u32) -> bool {
    state.ledger.owner_file(ClientHandle(client)).is_none()
}

fn reserve(
    change: &mut Change<'_>,
    kind: ObjectKind,
    demand: Option<Demand>,
    card: Option<CardSlot>,
) -> Result<SetAside, ledger::Refusal> {
    Ok(match change.ledger(Operation::Reserve { kind, demand })? {
        Applied::Reserved(reservation) => SetAside::Object(reservation, card),
        Applied::Done | Applied::Pinned(_) | Applied::Recorded(_) | Applied::Freed(_) => {
            SetAside::Nothing
        }
    })
}

fn pin(
    change: &mut Change<'_>,
    (client, object): (u32, u32),
    purpose: PinFor,
    cards: Vec<CardSlot>,
) -> Result<SetAside, ledger::Refusal> {
    let operation = Operation::Pin {
        client: ClientHandle(client),
        object: ObjectHandle(object),
        purpose,
    };
    Ok(match change.ledger(operation)? {
        Applied::Pinned(pin) => SetAside::Pinned(pin, cards),
        Applied::Done | Applied::Reserved(_) | Applied::Recorded(_) | Applied::Freed(_) => {
            SetAside::Nothing
        }
    })
}

/// Why a call was refused, for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The account has no room.
    #[error(transparent)]
    Ledger(ledger::Refusal),
    /// A device that is not part of the grant.
    #[error("device instance {0} is not granted")]
    ForeignDevice(u32),
    /// Memory whose card cannot be told.
    #[error("no granted card")]
    NoDevice,
    /// Channels of another container.
    #[error("a channel that is not the container's")]
    ForeignChannels,
    /// A file by which neither this container nor one of its share group has exported.
    #[error("the file's exports are not the container's")]
    ForeignExport,
    /// Exports go into a control file.
    #[error("the file that is to hold the exports is no control file")]
    NoControlFile,
    /// A handle that names nothing of the container's.
    #[error("{field}: client {client:#x} has no {object:#x}")]
    NotThere {
        /// The field of the call.
        field: &'static str,
        /// The client.
        client: u32,
        /// The object; the client's own handle for the client itself.
        object: u32,
    },
    /// An export of what is no memory.
    #[error("{object:#x} of client {client:#x} is no memory")]
    NoMemory {
        /// The client.
        client: u32,
        /// The object.
        object: u32,
    },
    /// A duplicate of an address space below what is no card's.
    #[error("hParent: {object:#x} of client {client:#x} is no card's")]
    NoCardAbove {
        /// The client.
        client: u32,
        /// The parent.
        object: u32,
    },
    /// A mapping whose device is the object itself.
    #[error("hDevice: client {client:#x} maps {object:#x} by itself")]
    MapsItself {
        /// The client.
        client: u32,
        /// The object.
        object: u32,
    },
    /// An event of another tenant's client.
    #[error("the event's client is not the container's")]
    ForeignEvent,
    /// See [`MOST_OS_EVENTS`].
    #[error("more than {MOST_OS_EVENTS} events")]
    TooManyEvents,
    /// See [`MOST_POOLS`].
    #[error("more than {MOST_POOLS} semaphore pools")]
    TooManyPools,
    /// A card that is not part of the grant, by RM's id.
    #[error("card {0:#x} is not granted")]
    ForeignCard(u32),
    /// See [`verdict::schedule::MOST_GROUPS`].
    #[error(
        "more than {} channel groups of the compute engine",
        verdict::schedule::MOST_GROUPS
    )]
    TooManyGroups,
    /// More channels of the compute engine than a gate can turn in time.
    #[error(
        "more than {} channels of the compute engine",
        verdict::schedule::MOST_CHANNELS
    )]
    TooManyChannels,
    /// More clients with channel groups than a gate can turn in time.
    #[error(
        "more than {} clients with channel groups of the compute engine",
        verdict::schedule::MOST_CLIENTS
    )]
    TooManyClients,
    /// More of them than are looked after.
    #[error(
        "more than {} channel groups and channels",
        verdict::schedule::MOST_SCHEDULED
    )]
    TooManyScheduled,
    /// The grant says that the share must be held in full, and the driver does not let it be.
    #[error(
        "the container's share of the card's time cannot be held, and its grant says that it must be"
    )]
    NotHeld,
    /// A channel of the compute engine whose timeslice nobody could set.
    #[error("a compute channel without a channel group, where a share is held")]
    NoGroup,
    /// The driver took more than was reserved, and more than the quota has room for.
    #[error("the driver took more than the quota for it, and has freed it again")]
    Outgrown,
    /// A mapping is no ioctl.
    #[error("managed memory is mapped, not allocated")]
    NotAnIoctl,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_has_no_size_is_counted() {
        for counted in [
            Counted::Objects,
            Counted::Mappings,
            Counted::Ranges,
            Counted::Exports,
        ] {
            let most = LIMITS.iter().find(|(limited, _)| *limited == counted);
            assert!(
                most.is_some_and(|(_, most)| *most <= 1 << 20),
                "{counted} has no limit"
            );
        }
    }
}
