//! Who and what the ledger speaks of.

use std::fmt;
use std::num::NonZeroU64;

/// The place of a card in the container's own list: 0 is what it sees as `/dev/nvidia0`'s card.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct CardSlot(pub u8);

impl CardSlot {
    /// No card: the host's own memory, as far as a driver allocates it for the container. Its pages are in no control group.
    pub const HOST: Self = Self(127);
}

/// Some of a container's cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct CardSet([u64; 4]);

impl CardSet {
    pub(crate) fn iter(self) -> impl Iterator<Item = CardSlot> {
        (0..=u8::MAX)
            .zip(self.bits())
            .filter(|(_, bit)| *bit)
            .map(|(card, _)| CardSlot(card))
    }

    fn bits(self) -> impl Iterator<Item = bool> {
        let of_word = |word: u64| (0..u64::BITS).map(move |bit| word >> bit & 1 == 1);
        self.0.into_iter().flat_map(of_word)
    }
}

impl<'a> FromIterator<&'a CardSlot> for CardSet {
    fn from_iter<I: IntoIterator<Item = &'a CardSlot>>(cards: I) -> Self {
        let mut set = Self::default();
        for CardSlot(card) in cards {
            if let Some(word) = set.0.get_mut(usize::from(card / 64)) {
                *word |= 1 << (card % 64);
            }
        }
        set
    }
}

/// One open file of the tenant (a struct file, not a descriptor), named by the broker and never used again
/// for another file.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct FileId(pub u64);

/// A client of the resource manager (`hClient`, `hRoot`); the driver keeps these unique on a host.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct ClientHandle(pub u32);

impl ClientHandle {
    /// The handle by which the client names itself as an object (parent of its devices, `hObjectOld` of a
    /// free of the whole client).
    #[must_use]
    pub fn as_object(self) -> ObjectHandle {
        ObjectHandle(self.0)
    }
}

/// An object's handle, unique within its client.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct ObjectHandle(pub u32);

/// The process that made an object, by the pid the broker reports with.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct ProcessId(pub i32);

/// One allocation of device memory, whatever refers to it. Never used twice in a ledger's life.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct AllocationId(pub(crate) NonZeroU64);

impl AllocationId {
    /// For others to know it by.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for CardSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::HOST => f.write_str("host memory"),
            Self(number) => write!(f, "card {number}"),
        }
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}", self.0)
    }
}

impl fmt::Display for ClientHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {:#x}", self.0)
    }
}

impl fmt::Display for ObjectHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object {:#x}", self.0)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.0)
    }
}

impl fmt::Display for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allocation {}", self.0)
    }
}
