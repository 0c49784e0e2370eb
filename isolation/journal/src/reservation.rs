//! What the account holds ready for one call while the driver executes it.
//!
//! One value says both what is held and what the call's success makes of it, so that neither can be taken for another call's. It is
//! part of the journal's record of the call: a successor commits it, or rolls it back, as its predecessor would have done.
//! The broker's account makes and commits reservations.

use ledger::{CardSlot, ObjectKind, PinToken, Registered, ReservationToken, Unregistered};
use serde::{Deserialize, Serialize};
use verdict::Memory;

/// What is held, and what success makes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reservation {
    /// Nothing is held, and success changes nothing.
    Nothing,
    /// A root client.
    Client {
        /// Its place among the container's clients.
        token: ReservationToken,
    },
    /// An object.
    Object {
        /// Its client.
        client: u32,
        /// Its parent.
        parent: u32,
        /// Number of its class.
        class: u32,
        /// What the ledger calls it.
        kind: ObjectKind,
        /// The card, for a device.
        device: Option<CardSlot>,
        /// Its place, and what the driver takes of a card for it.
        token: ReservationToken,
    },
    /// Memory.
    Memory {
        /// What was asked for.
        memory: Memory,
        /// Its place and its bytes.
        token: ReservationToken,
    },
    /// A second handle for what there is.
    Duplicate {
        /// Client of the new handle.
        client: u32,
        /// Parent of the new handle.
        parent: u32,
        /// The reference.
        pin: PinToken,
    },
    /// A mapping of memory in an address space of UVM's.
    MapExternal {
        /// First address.
        base: u64,
        /// Bytes.
        length: u64,
        /// The cards that see it.
        cards: Vec<CardSlot>,
        /// The reference.
        pin: PinToken,
    },
    /// A registration with UVM.
    Register {
        /// On which card.
        card: CardSlot,
        /// What is registered.
        registered: Registered,
        /// The references.
        pin: PinToken,
    },
    /// Registrations end.
    Unregister {
        /// Which; `None` for those on a card that is not the container's.
        which: Option<Unregistered>,
    },
    /// Objects on their way into a file.
    Exports {
        /// Slot of the first in the file.
        first: u16,
        /// References by their place in the call; `None` where it names nothing.
        pins: Vec<Option<PinToken>>,
    },
    /// Objects on their way out of a file.
    Imports {
        /// Client of the new handles.
        client: u32,
        /// Parent of the new handles.
        parent: u32,
        /// Offset of the first new handle in the parameters.
        handles_at: usize,
        /// Offset of the first object's type in the parameters.
        types_at: Option<usize>,
        /// References by their place in the call.
        pins: Vec<Option<PinToken>>,
    },
    /// A semaphore pool of UVM's.
    Pool {
        /// First address.
        base: u64,
        /// Bytes.
        length: u64,
        /// Its bytes of the host's memory.
        token: ReservationToken,
    },
    /// An event of the operating system's is made.
    OsEvent {
        /// Client.
        client: u32,
        /// Its number.
        number: u32,
    },
    /// An event is freed.
    FreeOsEvent {
        /// Client.
        client: u32,
        /// Its number.
        number: u32,
    },
    /// An object is freed.
    Free {
        /// Client.
        client: u32,
        /// The object; the client's own handle for the client itself.
        object: u32,
    },
    /// An external range is made.
    Range {
        /// First address.
        base: u64,
        /// Bytes.
        length: u64,
        /// What the driver takes of the host's memory for it.
        token: ReservationToken,
    },
    /// A mapping is undone on one card.
    Unmap {
        /// First address.
        base: u64,
        /// Bytes.
        length: u64,
        /// The card; `None` for one that is not the container's.
        card: Option<CardSlot>,
    },
    /// A range is freed with all its mappings.
    FreeRange {
        /// First address.
        base: u64,
    },
}

impl Reservation {
    /// The references that it holds.
    #[must_use]
    pub fn pins(&self) -> Vec<PinToken> {
        match self {
            Self::Duplicate { pin, .. }
            | Self::MapExternal { pin, .. }
            | Self::Register { pin, .. } => vec![*pin],
            Self::Exports { pins, .. } | Self::Imports { pins, .. } => {
                pins.iter().flatten().copied().collect()
            }
            Self::Nothing
            | Self::Client { .. }
            | Self::Object { .. }
            | Self::Memory { .. }
            | Self::Pool { .. }
            | Self::OsEvent { .. }
            | Self::FreeOsEvent { .. }
            | Self::Free { .. }
            | Self::Range { .. }
            | Self::Unmap { .. }
            | Self::Unregister { .. }
            | Self::FreeRange { .. } => Vec::new(),
        }
    }
}
