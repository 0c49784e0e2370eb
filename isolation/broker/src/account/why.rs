//! Why a call was refused.

use journal::limits::{MOST_HOST_MAPPINGS, MOST_OS_EVENTS, MOST_POOLS};

use super::advised::MOST_ADVISED;
use super::cpu_mappings::MOST_CPU_MAPPINGS;
use super::page_tables::MOST_DMA_MAPPINGS;
use super::range_groups::MOST_RANGE_GROUPS;

/// Why a call was refused, for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The account has no room.
    #[error(transparent)]
    Ledger(ledger::Refusal),
    /// A device that is not part of the grant.
    #[error("device instance {0} is not granted")]
    ForeignDevice(u32),
    /// A device of a card whose node the caller has not open.
    #[error("device instance {0}: the caller has not its card's node open")]
    NodeNotOpen(u32),
    /// Memory whose card cannot be told.
    #[error("no granted card")]
    NoDevice,
    /// Channels of another container.
    #[error("a channel that is not the container's")]
    ForeignChannels,
    /// A file by which neither this container nor one of its share group has exported.
    #[error("the file's exports are not the container's")]
    ForeignExport,
    /// An export in the place of one that another container of the share group has been told of.
    #[error("another container may import what is in the place already")]
    ReportedExport,
    /// Exports go into a control file.
    #[error("the file that is to hold the exports is no control file")]
    NoControlFile,
    /// A call on a file while another one registers it with a control file.
    #[error("the file is being registered with a control file")]
    BeingRegistered,
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
    /// An export, a context DMA or a mapping for a card of what is no memory.
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
    /// A mapping by MAP_MEMORY_DMA of more than the object has.
    #[error(
        "offset {offset:#x} and length {bytes:#x}: object {object:#x} of client {client:#x} has {most_bytes:#x} bytes"
    )]
    MapsBeyond {
        /// The client.
        client: u32,
        /// The object.
        object: u32,
        /// Where in the object it begins.
        offset: u64,
        /// How much is mapped.
        bytes: u64,
        /// What there is.
        most_bytes: u64,
    },
    /// A mapping whose device is the object itself.
    #[error("hDevice: client {client:#x} maps {object:#x} by itself")]
    MapsItself {
        /// The client.
        client: u32,
        /// The object.
        object: u32,
    },
    /// A free that would take from a channel or a group what the driver uses for it.
    #[error(
        "{object:#x} of client {client:#x}: what {channel:#x}, which is there yet, needs goes with it"
    )]
    NeededByChannel {
        /// The client.
        client: u32,
        /// What is to be freed.
        object: u32,
        /// The channel, or the group.
        channel: u32,
    },
    /// Memory of another card than the one that it is for.
    #[error("{object:#x} of client {client:#x} is not on the card that the call is for")]
    OtherCard {
        /// The client.
        client: u32,
        /// What is elsewhere.
        object: u32,
    },
    /// A channel's USERD beyond its memory, or in what is no memory.
    #[error(
        "userdOffset {offset:#x} in {memory:#x} of client {client:#x}, which has not so much memory"
    )]
    UserdBeyond {
        /// The client.
        client: u32,
        /// What is named.
        memory: u32,
        /// Where in it.
        offset: u64,
    },
    /// Errors of a channel written into what is nobody's.
    #[error("{notifier:#x} of client {client:#x} is no memory for errors")]
    NotANotifier {
        /// The client.
        client: u32,
        /// What is named.
        notifier: u32,
    },
    /// An unmapping by UNMAP_MEMORY_DMA that leaves a part of a mapping, or of what is not known.
    #[error("size {bytes:#x} at {address:#x} is not all of what is mapped there")]
    UnmapsAPart {
        /// From where on.
        address: u64,
        /// How much.
        bytes: u64,
    },
    /// A context DMA that RM would map for the kernel, over a card's memory.
    #[error("hMemory: a notifier in {memory:#x} of client {client:#x}, which is on a card")]
    NotifierOnCard {
        /// The client.
        client: u32,
        /// The memory.
        memory: u32,
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
    /// See [`MOST_RANGE_GROUPS`].
    #[error("more than {MOST_RANGE_GROUPS} range groups")]
    TooManyRangeGroups,
    /// See [`MOST_ADVISED`].
    #[error("policies of managed memory begin or end at more than {MOST_ADVISED} addresses")]
    TooManyPolicies,
    /// A policy of memory that is not managed.
    #[error("{0:#x} is in no managed memory")]
    NotManaged(u64),
    /// Pages of the host's that would be charged to no process of the container's.
    #[error("the host's pages would be charged to no process of the container's: {0}")]
    ChargedElsewhere(String),
    /// See [`MOST_DMA_MAPPINGS`].
    #[error("more than {MOST_DMA_MAPPINGS} mappings by MAP_MEMORY_DMA")]
    TooManyMappings,
    /// See [`MOST_CPU_MAPPINGS`].
    #[error("more than {MOST_CPU_MAPPINGS} mappings for the CPU")]
    TooManyCpuMappings,
    /// See [`MOST_HOST_MAPPINGS`].
    #[error("more than {MOST_HOST_MAPPINGS} files with mappings of the host's memory")]
    TooManyHostMappings,
    /// What is mapped for the CPU of a card is bounded by the quota.
    #[error(
        "{bytes} bytes more of the card would be mapped for the CPU than the {most_bytes} that the quota allows"
    )]
    WindowIsFull {
        /// Of this mapping, in whole pages.
        bytes: u64,
        /// Of all together.
        most_bytes: u64,
    },
    /// A card that is not part of the grant, by RM's id.
    #[error("card {0:#x} is not granted")]
    ForeignCard(u32),
    /// What is scheduled may not be made.
    #[error(transparent)]
    Share(share::Why),
    /// The driver took more than was reserved, and more than the quota has room for.
    #[error("the driver took more than the quota for it, and has freed it again")]
    Outgrown,
    /// A mapping is no ioctl.
    #[error("managed memory is mapped, not allocated")]
    NotAnIoctl,
}
