//! What registrations hold, and how they are found.

use std::collections::BTreeMap;

use crate::counts::wide;
use crate::identity::{AllocationId, CardSlot, ClientHandle, FileId, ObjectHandle};
use crate::kinds::ObjectKind;

/// The number of an object that a registration holds, never given again.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct HeldId(pub(crate) u64);

/// What is registered, as the driver finds it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum Registered {
    /// The address space of a card.
    Space {
        /// Its client.
        client: ClientHandle,
        /// Its handle when it was registered.
        space: ObjectHandle,
    },
    /// A channel.
    Channel {
        /// Its client.
        client: ClientHandle,
        /// Its handle when it was registered.
        channel: ObjectHandle,
    },
}

impl Registered {
    /// Client and handle.
    #[must_use]
    pub fn name(self) -> (ClientHandle, ObjectHandle) {
        match self {
            Self::Space { client, space } => (client, space),
            Self::Channel { client, channel } => (client, channel),
        }
    }
}

/// Which registrations of a uvm file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Unregistered {
    /// A channel's, on whichever card.
    Channel {
        /// The client that it was registered with.
        client: ClientHandle,
        /// The handle that it was registered with.
        channel: ObjectHandle,
    },
    /// A card's: its address space and every channel in it.
    Card(CardSlot),
}

/// An object that registrations hold.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Held {
    pub(crate) kind: ObjectKind,
    /// Where the object is, as long as it has its name. After that it is counted here.
    pub(crate) name: Option<(ClientHandle, ObjectHandle)>,
    /// What it is charged.
    pub(crate) allocation: Option<AllocationId>,
    /// What a graphics object below it was charged for the context, which is the group's and ends with it.
    pub(crate) context: Option<AllocationId>,
    /// Registrations, and calls under way, that hold it.
    pub(crate) references: u64,
}

/// All objects that each registration of one key holds, oldest first. There is one at a time where the broker sees the driver's answers.
pub(crate) type OfKey = Vec<Vec<HeldId>>;

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Registrations {
    pub(crate) held: BTreeMap<HeldId, Held>,
    /// Of those that still have a name.
    pub(crate) by_name: BTreeMap<(ClientHandle, ObjectHandle), HeldId>,
    pub(crate) by_file: BTreeMap<(FileId, CardSlot), BTreeMap<Registered, OfKey>>,
    pub(crate) last: u64,
}

impl Registrations {
    pub(crate) fn count(&self) -> u64 {
        let keys = self.by_file.values().flat_map(BTreeMap::values);
        keys.map(|of_key| wide(of_key.len())).sum()
    }

    /// The allocations that are held, one for each reference.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = AllocationId> + '_ {
        let held = self.held.values();
        held.flat_map(|held| held.allocation.into_iter().chain(held.context))
    }

    /// How often each object is held.
    pub(crate) fn references<'a>(
        &'a self,
        by_pins: impl Iterator<Item = &'a HeldId>,
    ) -> BTreeMap<HeldId, u64> {
        let mut found: BTreeMap<HeldId, u64> = BTreeMap::new();
        let keys = self.by_file.values().flat_map(BTreeMap::values);
        for id in keys.flatten().flatten().chain(by_pins) {
            let count = found.entry(*id).or_default();
            *count = count.saturating_add(1);
        }
        found
    }

    /// Whether a name leads to what has it, and nothing else does.
    pub(crate) fn is_named(&self, object: impl Fn((ClientHandle, ObjectHandle)) -> bool) -> bool {
        let names = self.by_name.iter();
        let named = self.held.values().filter(|it| it.name.is_some()).count();
        named == self.by_name.len()
            && names.into_iter().all(|(name, id)| {
                let held = self.held.get(id);
                held.is_some_and(|held| held.name == Some(*name)) && object(*name)
            })
    }
}
