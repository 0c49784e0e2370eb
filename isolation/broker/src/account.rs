//! A verdict's effect on the container's account: what is set aside before the driver executes, and what is booked after.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use driver::{CardIdentity, FileId, ImplicitBytes, Segment};
use ledger::{
    Actual, CardSlot, ClientHandle, Counted, Demand, Ledger, Limits, NewObject, ObjectHandle,
    ObjectKind, Pin, PinFor, Place, ProcessId, Purpose, Reservation, Span,
};
use nvabi::bytes::{u32_at, u64_at};
use nvabi::class::Kind;
use nvabi::layout::{nvos21, nvos55};
use nvabi::{Release, status};
use verdict::{Effect, Memory, Op, Refusal};

mod answers;
mod translation;

use answers::Numbering;
pub use translation::{books, uuid_bytes};
use translation::{card_slot, dependencies, new_handle_at, object_kind, status_of};

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

/// Counts that no honest container comes near; they bound memory that no size declares.
const LIMITS: [(Counted, u64); 6] = [
    (Counted::Kind(ObjectKind::Client), 4096),
    (Counted::Kind(ObjectKind::ChannelGroup), 1024),
    (Counted::Kind(ObjectKind::Channel), 8192),
    (Counted::Kind(ObjectKind::VaSpace), 1024),
    (Counted::Objects, 1 << 20),
    (Counted::Mappings, 1 << 20),
];

/// The container's account.
#[derive(Debug)]
pub struct Account {
    release: Release,
    slots: Vec<Slot>,
    implicit: ImplicitBytes,
    ledger: Mutex<Ledger>,
    numbering: Mutex<Numbering>,
    /// Allocations that did not fit, by card.
    refused: Vec<AtomicU64>,
}

/// What is set aside for a call while the driver executes it.
#[must_use = "hand it to `book` or `give_back`"]
#[derive(Debug)]
pub enum SetAside {
    /// Nothing.
    Nothing,
    /// Bytes and a slot for an object.
    Object(Reservation, Option<CardSlot>),
    /// A reference.
    Pinned(Pin, Vec<CardSlot>),
}

/// Who made the call, on which file.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// The file.
    pub file: FileId,
    /// The process.
    pub process: i32,
}

impl Account {
    /// An empty account.
    #[must_use]
    pub fn new(
        release: Release,
        slots: Vec<Slot>,
        cards: &[CardIdentity],
        implicit: ImplicitBytes,
    ) -> Self {
        let quotas: Vec<(CardSlot, u64)> = (0u8..)
            .zip(&slots)
            .map(|(slot, card)| (CardSlot(slot), card.quota_bytes))
            .collect();
        let limits = LIMITS
            .iter()
            .fold(Limits::none(), |limits, (counted, most)| {
                limits.with(*counted, *most)
            });
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
        let ledger = Ledger::with_limits(&quotas, limits);
        Self {
            release,
            refused: slots.iter().map(|_| AtomicU64::new(0)).collect(),
            slots,
            implicit,
            ledger: Mutex::new(ledger),
            numbering: Mutex::new(numbering),
        }
    }

    /// The cards of the grant.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// How many allocations did not fit on a card.
    #[must_use]
    pub fn refused(&self, card: CardSlot) -> u64 {
        self.refused
            .get(usize::from(card.0))
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Counts a refusal that the tenant sees, if it is for want of memory.
    pub fn count_refusal(&self, why: &Why) {
        if let Why::Ledger(ledger::Refusal::OverQuota { card, .. }) = why
            && let Some(count) = self.refused.get(usize::from(card.0))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The ledger, for reports.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn numbering(&self) -> MutexGuard<'_, Numbering> {
        self.numbering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets aside what a call needs.
    ///
    /// # Errors
    /// The driver's own refusal: no memory for what is over quota, an invalid client for another tenant's.
    pub fn set_aside(&self, effect: &Effect, op: &Op) -> Result<SetAside, (Refusal, Why)> {
        let refuse = |status, why| (op.refuse(status, self.release), why);
        let refused = |refusal: ledger::Refusal| {
            let status = status_of(&refusal);
            refuse(status, Why::Ledger(refusal))
        };
        match effect {
            Effect::None
            | Effect::View(_)
            | Effect::Free { .. }
            | Effect::Unmap { .. }
            | Effect::FreeRange { .. } => Ok(SetAside::Nothing),
            Effect::Client => {
                let reservation = self
                    .ledger()
                    .reserve(ObjectKind::Client, None)
                    .map_err(refused)?;
                Ok(SetAside::Object(reservation, None))
            }
            Effect::Object {
                class,
                client,
                parent,
                device_instance,
            } => {
                let card = match device_instance {
                    Some(instance) => {
                        let slot = self.numbering().slot_of_instance.get(instance).copied();
                        Some(slot.ok_or_else(|| {
                            refuse(status::NV_ERR_INVALID_DEVICE, Why::ForeignDevice(*instance))
                        })?)
                    }
                    None => self
                        .ledger()
                        .card_of(ClientHandle(*client), ObjectHandle(*parent)),
                };
                let demand = match (self.implicit_bytes(class.kind), card) {
                    (0, _) | (_, None) => None,
                    (bytes, Some(card)) => Some(Demand {
                        card,
                        bytes,
                        purpose: Purpose::Context,
                    }),
                };
                let reservation = self
                    .ledger()
                    .reserve(object_kind(class.kind), demand)
                    .map_err(refused)?;
                Ok(SetAside::Object(
                    reservation,
                    card.filter(|_| device_instance.is_some()),
                ))
            }
            Effect::Memory(Memory {
                client,
                parent,
                reserve_bytes,
                ..
            }) => {
                let mut ledger = self.ledger();
                let card = ledger
                    .card_of(ClientHandle(*client), ObjectHandle(*parent))
                    .ok_or_else(|| refuse(status::NV_ERR_INVALID_OBJECT_PARENT, Why::NoDevice))?;
                let demand = Demand {
                    card,
                    bytes: *reserve_bytes,
                    purpose: Purpose::Memory,
                };
                let reservation = ledger
                    .reserve(ObjectKind::Memory, Some(demand))
                    .map_err(refused)?;
                Ok(SetAside::Object(reservation, None))
            }
            Effect::Dup {
                source_client,
                source_object,
                ..
            } => {
                let pin = self
                    .ledger()
                    .pin(
                        ClientHandle(*source_client),
                        ObjectHandle(*source_object),
                        PinFor::Duplicate,
                    )
                    .map_err(refused)?;
                Ok(SetAside::Pinned(pin, Vec::new()))
            }
            Effect::Range { .. } => {
                self.ledger().check_range().map_err(refused)?;
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
                let pin = self
                    .ledger()
                    .pin(ClientHandle(*client), ObjectHandle(*memory), purpose)
                    .map_err(refused)?;
                Ok(SetAside::Pinned(pin, slots))
            }
            Effect::ChannelClients { clients } => {
                let ledger = self.ledger();
                let foreign = clients
                    .iter()
                    .find(|client| ledger.owner_file(ClientHandle(**client)).is_none());
                match foreign {
                    None => Ok(SetAside::Nothing),
                    Some(_) => Err(refuse(status::NV_ERR_INVALID_CLIENT, Why::ForeignChannels)),
                }
            }
        }
    }

    /// Gives back what was set aside: the driver did not do it.
    pub fn give_back(&self, set_aside: SetAside) {
        match set_aside {
            SetAside::Nothing => {}
            SetAside::Object(reservation, _) => self.ledger().roll_back(reservation),
            SetAside::Pinned(pin, _) => {
                self.ledger().unpin(pin);
            }
        }
    }

    /// Books a call that the driver has executed with success.
    pub fn book(
        &self,
        effect: &Effect,
        set_aside: SetAside,
        origin: Origin,
        op: &Op,
        segments: &[Segment],
    ) {
        let file = ledger::FileId(origin.file.0);
        let process = ProcessId(origin.process);
        // A client stays with the control file that made it, though a call on a registered device file reaches it too.
        let owner = |client: u32| {
            let owner = self.ledger().owner_file(ClientHandle(client));
            owner.unwrap_or(file)
        };
        let word = |segment: u8, at: usize| {
            segments
                .get(usize::from(segment))
                .and_then(|segment| u32_at(&segment.bytes, at))
                .unwrap_or_default()
        };
        let place = |client: u32, parent: u32, handle: u32| Place {
            file: owner(client),
            client: ClientHandle(client),
            parent: ObjectHandle(parent),
            handle: ObjectHandle(handle),
            process,
        };
        match (effect, set_aside) {
            (Effect::Client, SetAside::Object(reservation, _)) => {
                let client = ClientHandle(word(0, nvos21::H_NEW));
                self.ledger()
                    .open_client(file, client, process, reservation);
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
                let handle = word(0, new_handle_at(op));
                let new = NewObject {
                    place: place(*client, *parent, handle),
                    class: class.number,
                    kind: object_kind(class.kind),
                    card,
                    depends_on: &dependencies(class, segments),
                };
                self.ledger()
                    .add_object(new, reservation, Actual::AsReserved);
            }
            (Effect::Memory(memory), SetAside::Object(reservation, _)) => {
                let (segment, at) = memory.size_at;
                let actual = segments
                    .get(usize::from(segment))
                    .and_then(|segment| u64_at(&segment.bytes, at))
                    .map_or(Actual::AsReserved, Actual::Bytes);
                let new = NewObject {
                    place: place(
                        memory.client,
                        memory.parent,
                        word(memory.handle_at.0, memory.handle_at.1),
                    ),
                    class: memory.class,
                    kind: ObjectKind::Memory,
                    card: None,
                    depends_on: &[],
                };
                let recorded = self.ledger().add_object(new, reservation, actual);
                if let Some(over_bytes) = recorded.over_quota_bytes {
                    tracing::warn!(
                        over_bytes,
                        "the driver rounded an allocation beyond the quota"
                    );
                }
            }
            (Effect::Dup { client, parent, .. }, SetAside::Pinned(pin, _)) => {
                let place = place(*client, *parent, word(0, nvos55::H_OBJECT));
                self.ledger().duplicate(pin, place, &[]);
            }
            (Effect::MapExternal { base, length, .. }, SetAside::Pinned(pin, cards)) => {
                let mut ledger = self.ledger();
                match Span::new(*base, *length) {
                    Some(span) => {
                        ledger.map_external(pin, file, span, &cards);
                    }
                    None => {
                        ledger.unpin(pin);
                    }
                }
            }
            (Effect::Free { client, object }, _) => {
                self.ledger()
                    .free(ClientHandle(*client), ObjectHandle(*object));
            }
            (Effect::Range { base, length }, _) => {
                if let Some(span) = Span::new(*base, *length) {
                    self.ledger().add_range(file, span);
                }
            }
            (Effect::Unmap { base, length, card }, _) => {
                if let (Some(span), Some(slot)) =
                    (Span::new(*base, *length), self.slot_of_uuid(card))
                {
                    self.ledger().unmap_external(file, span, Some(slot));
                }
            }
            (Effect::FreeRange { base }, _) => {
                self.ledger().free_range(file, *base);
            }
            (_, set_aside) => self.give_back(set_aside),
        }
    }

    /// Notes an object whose call the kernel will execute after our answer: uncharged, and never in another's place.
    pub fn note_unconfirmed(&self, effect: &Effect, origin: Origin, op: &Op, segments: &[Segment]) {
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
            .and_then(|first| u32_at(&first.bytes, new_handle_at(op)))
            .unwrap_or_default();
        let mut ledger = self.ledger();
        let file = ledger
            .owner_file(ClientHandle(*client))
            .unwrap_or(ledger::FileId(origin.file.0));
        ledger.add_unconfirmed(NewObject {
            place: Place {
                file,
                client: ClientHandle(*client),
                parent: ObjectHandle(*parent),
                handle: ObjectHandle(handle),
                process: ProcessId(origin.process),
            },
            class: class.number,
            kind: object_kind(class.kind),
            card: None,
            depends_on: &[],
        });
    }

    /// Whether what a call made, or undid, is still so: its repetition fails *because* the first try succeeded.
    #[must_use]
    pub fn stands(&self, effect: &Effect, file: FileId, op: &Op, answer: &[Segment]) -> bool {
        let word = |at: usize| {
            let first = answer.first()?;
            u32_at(&first.bytes, at)
        };
        let ledger = self.ledger();
        let has = |client: u32, object: Option<u32>| {
            object.is_some_and(|object| {
                ledger
                    .object(ClientHandle(client), ObjectHandle(object))
                    .is_some()
            })
        };
        match effect {
            Effect::Client => word(nvos21::H_NEW).is_some_and(|client| {
                ledger.owner_file(ClientHandle(client)) == Some(ledger::FileId(file.0))
            }),
            Effect::Object { client, .. } => has(*client, word(new_handle_at(op))),
            Effect::Memory(memory) => has(memory.client, word(memory.handle_at.1)),
            Effect::Dup { client, .. } => has(*client, word(nvos55::H_OBJECT)),
            Effect::Free { client, object } if client == object => {
                ledger.owner_file(ClientHandle(*client)).is_none()
            }
            Effect::Free { client, object } => !has(*client, Some(*object)),
            Effect::Range { base, .. } => ledger.has_range(ledger::FileId(file.0), *base),
            Effect::FreeRange { base } => !ledger.has_range(ledger::FileId(file.0), *base),
            // Mapping and unmapping again come to the same end, and so are not refused.
            Effect::None
            | Effect::View(_)
            | Effect::MapExternal { .. }
            | Effect::Unmap { .. }
            | Effect::ChannelClients { .. } => false,
        }
    }

    /// The last reference to a file is gone.
    pub fn close_file(&self, file: FileId) {
        self.ledger().close_file(ledger::FileId(file.0));
    }

    fn slot_of_uuid(&self, uuid: &[u8; 16]) -> Option<CardSlot> {
        self.slots
            .iter()
            .position(|slot| slot.uuid_bytes == *uuid)
            .and_then(card_slot)
    }

    fn implicit_bytes(&self, kind: Kind) -> u64 {
        match kind {
            Kind::ChannelGroup => self.implicit.channel_group,
            Kind::Channel => self.implicit.channel,
            Kind::VaSpace => self.implicit.va_space,
            Kind::Root
            | Kind::Device
            | Kind::Subdevice
            | Kind::Vidmem
            | Kind::Sysmem
            | Kind::OsDescriptor
            | Kind::Virtual
            | Kind::ContextShare
            | Kind::Engine
            | Kind::Usermode
            | Kind::Event
            | Kind::Fabric
            | Kind::Plain => 0,
        }
    }
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
}
