//! Kinds of objects, and what can be limited.

use std::fmt;

/// What an object is to the ledger; the caller knows which driver class is which.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum ObjectKind {
    /// A client itself (the root of a tree).
    Client,
    /// A device: it carries the card that everything below it inherits.
    Device,
    /// A subdevice.
    Subdevice,
    /// Memory, on the card or not.
    Memory,
    /// An address space.
    VaSpace,
    /// A channel group (TSG).
    ChannelGroup,
    /// A channel.
    Channel,
    /// A context share: an address space within a channel group.
    ContextShare,
    /// The name of an object that went with what it depended on. The driver has freed the object and keeps the name until that is
    /// freed too, or its parent.
    Invalidated,
    /// Anything else.
    Other,
    /// A session of third-party peer-to-peer. The driver keeps something for each piece of memory that is registered with each.
    PeerSession,
    /// An event. The driver walks those of a kind whenever it is reported, and may keep a record for each.
    Event,
    /// The page of a card's figures. The driver may walk all objects of the host when one is freed.
    SharedData,
    /// A debugger's session. The driver makes a client of its own for each, with a device and a subdevice.
    Debugger,
}

/// What can be limited.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum Counted {
    /// Objects of one kind.
    Kind(ObjectKind),
    /// Objects of all kinds, clients among them.
    Objects,
    /// External mappings: pieces, per card that maps them.
    Mappings,
    /// External ranges of address space.
    Ranges,
    /// What files have exported: places, and memory that is held for them, one each.
    Exports,
    /// Registrations with nvidia-uvm: of channels and address spaces.
    Registrations,
    /// Files of nvidia-uvm that were initialised.
    UvmFiles,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kind(ObjectKind::Client) => "clients",
            Self::Kind(ObjectKind::Device) => "devices",
            Self::Kind(ObjectKind::Subdevice) => "subdevices",
            Self::Kind(ObjectKind::Memory) => "memory objects",
            Self::Kind(ObjectKind::VaSpace) => "address spaces",
            Self::Kind(ObjectKind::ChannelGroup) => "channel groups",
            Self::Kind(ObjectKind::Channel) => "channels",
            Self::Kind(ObjectKind::ContextShare) => "context shares",
            Self::Kind(ObjectKind::Invalidated) => "invalidated objects",
            Self::Kind(ObjectKind::Other) => "other objects",
            Self::Kind(ObjectKind::PeerSession) => "peer-to-peer sessions",
            Self::Kind(ObjectKind::Event) => "events",
            Self::Kind(ObjectKind::SharedData) => "pages of figures",
            Self::Kind(ObjectKind::Debugger) => "debuggers' sessions",
            Self::Objects => "objects",
            Self::Mappings => "external mappings",
            Self::Ranges => "external ranges",
            Self::Exports => "exports",
            Self::Registrations => "registrations",
            Self::UvmFiles => "initialised files of nvidia-uvm",
        })
    }
}
