//! Files and folders, and their numbers.
//!
//! A number says all of it, so that nobody has to remember what the kernel knows:
//!
//! ```text
//!   63 .. 32: container   31 .. 8: card + 1   7 .. 0: file, or FOLDER
//! ```
//!
//! A container's part is a serial number that is never given again: the number of a file of an ended container is no other one's.

use strum::{Display, EnumString, FromRepr, VariantArray};

/// The last part of a folder's number.
const FOLDER: u8 = 1;

/// The largest index of a card.
pub(crate) const CARD_MOST: u32 = (1 << 24) - 2;

/// A number of the root. FUSE has it so (`FUSE_ROOT_ID`).
pub(crate) const ROOT: u64 = FOLDER as u64;

/// What is in the root beside cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, FromRepr, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub(crate) enum RootFile {
    Version = 16,
    Major = 17,
}

/// What is in a card's folder beside containers: its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, FromRepr, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub(crate) enum CardFile {
    MaxInst = 16,
    Policy = 17,
    PrioRatio = 18,
}

/// What is in a container's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, FromRepr, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub(crate) enum ContainerFile {
    Id = 16,
    Memsize = 17,
    Meminfo = 18,
    Weight = 19,
    Highprio = 20,
}

impl ContainerFile {
    fn is_writable(self) -> bool {
        match self {
            Self::Memsize | Self::Weight | Self::Highprio => true,
            Self::Id | Self::Meminfo => false,
        }
    }
}

/// A file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    Root,
    RootFile(RootFile),
    /// The folder of the card of this index.
    Card(u32),
    CardFile(u32, CardFile),
    /// The folder of a container, by its card's index and its serial number.
    Container(u32, u32),
    ContainerFile(u32, u32, ContainerFile),
}

impl Node {
    /// Its number; two of them never have the same.
    pub(crate) fn number(self) -> u64 {
        let of = |serial: u32, card: u32, last: u8| {
            u64::from(serial) << 32 | u64::from(card) << 8 | u64::from(last)
        };
        match self {
            Self::Root => ROOT,
            Self::RootFile(file) => of(0, 0, file as u8),
            Self::Card(index) => of(0, index + 1, FOLDER),
            Self::CardFile(index, file) => of(0, index + 1, file as u8),
            Self::Container(index, serial) => of(serial, index + 1, FOLDER),
            Self::ContainerFile(index, serial, file) => of(serial, index + 1, file as u8),
        }
    }

    /// What has this number; `None`: nothing ever has.
    pub(crate) fn of_number(number: u64) -> Option<Self> {
        let [a, b, c, d, e, f, g, last] = number.to_be_bytes();
        let serial = u32::from_be_bytes([a, b, c, d]);
        let index = u32::from_be_bytes([0, e, f, g]).checked_sub(1);
        match (serial, index) {
            (0, None) if last == FOLDER => Some(Self::Root),
            (0, None) => RootFile::from_repr(last).map(Self::RootFile),
            (_, None) => None,
            (0, Some(index)) if last == FOLDER => Some(Self::Card(index)),
            (0, Some(index)) => Some(Self::CardFile(index, CardFile::from_repr(last)?)),
            (serial, Some(index)) if last == FOLDER => Some(Self::Container(index, serial)),
            (serial, Some(index)) => {
                let file = ContainerFile::from_repr(last)?;
                Some(Self::ContainerFile(index, serial, file))
            }
        }
    }

    /// The folder that it is in; the root is in itself.
    pub(crate) fn parent(self) -> Self {
        match self {
            Self::Root | Self::RootFile(_) | Self::Card(_) => Self::Root,
            Self::CardFile(index, _) | Self::Container(index, _) => Self::Card(index),
            Self::ContainerFile(index, serial, _) => Self::Container(index, serial),
        }
    }

    pub(crate) fn is_folder(self) -> bool {
        matches!(self, Self::Root | Self::Card(_) | Self::Container(..))
    }

    /// Whether it is there, and what is in it, whatever the host has. What is in the root beside files is not.
    pub(crate) fn is_fixed(self) -> bool {
        matches!(self, Self::Root | Self::RootFile(_))
    }

    /// Whether a write changes something.
    pub(crate) fn is_writable(self) -> bool {
        match self {
            Self::Root | Self::RootFile(_) | Self::Card(_) | Self::Container(..) => false,
            Self::CardFile(..) => true,
            Self::ContainerFile(_, _, file) => file.is_writable(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_of_one_node_alone(number in any::<u64>()) {
            if let Some(node) = Node::of_number(number) {
                prop_assert_eq!(node.number(), number);
            }
        }

        #[test]
        fn every_node_is_found_by_its_number(index in 0..=CARD_MOST, serial in 1..u32::MAX) {
            let files = ContainerFile::VARIANTS.iter().map(|file| Node::ContainerFile(index, serial, *file));
            let rules = CardFile::VARIANTS.iter().map(|file| Node::CardFile(index, *file));
            let root = RootFile::VARIANTS.iter().map(|file| Node::RootFile(*file));
            let folders = [Node::Root, Node::Card(index), Node::Container(index, serial)];
            for node in files.chain(rules).chain(root).chain(folders) {
                prop_assert_eq!(Node::of_number(node.number()), Some(node));
                prop_assert!(node.parent().is_folder());
                prop_assert!(!(node.is_folder() && node.is_writable()));
            }
        }
    }
}
