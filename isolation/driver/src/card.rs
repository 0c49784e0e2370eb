//! What a driver says of a card: its numbers, what it counts for a container, and what has gone wrong.

/// A card of the container, as it is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestedCard<'a> {
    /// `GPU-…`
    pub uuid: &'a str,
    /// N of `/dev/nvidia<N>`
    pub minor: u32,
}

/// What a driver itself counts for this container on one card.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CardSum {
    /// `GPU-…`
    pub uuid: String,
    /// Bytes of memory objects (classes 0x40, 0x82, 0x83), each physical allocation once; no context memory, no page tables.
    pub memory_bytes: u64,
    /// Bytes of the further handles of such objects, and of handles of what another container has allocated; each handle anew.
    pub further_bytes: u64,
}

/// How long a card's compute engine has worked for this container.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CardTime {
    /// `GPU-…`
    pub uuid: String,
    /// Nanoseconds since the container's first call, without what switches between containers cost. It never falls.
    pub used_ns: u64,
    /// When it was read, ns of CLOCK_MONOTONIC.
    pub at_ns: u64,
}

/// Something that went wrong on a card.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Incident {
    /// Rises by one with every incident of a driver's life.
    pub sequence: u64,
    /// `GPU-…`; empty where only the PCI address is known.
    pub uuid: String,
    /// `0000:01:00`-like, where known.
    pub pci: String,
    /// What.
    pub kind: IncidentKind,
    /// Whether this container caused it (the faulting process or channel is its own); `None`: nobody can be named.
    pub own: Option<bool>,
}

/// Kinds of incidents.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum IncidentKind {
    /// The driver reported an Xid; the number says which, the text is the driver's.
    Xid {
        /// For example 13, 31, 43, 79.
        number: u32,
        /// The rest of the driver's line.
        detail: String,
    },
    /// The card has fallen off the bus.
    CardLost,
}

/// One card as its driver numbers it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CardIdentity {
    /// `GPU-…`
    pub uuid: String,
    /// N of `/dev/nvidia<N>`
    pub minor: u32,
    /// RM's GPU id (CARD_INFO, PROBED_IDS)
    pub gpu_id: u32,
    /// RM's device instance (`deviceId` of NV01_DEVICE_0)
    pub device_instance: u32,
    /// Framebuffer in bytes.
    pub memory_bytes: u64,
}

/// Card memory that an object takes without a size field, in bytes: the declared context tax.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ImplicitBytes {
    /// For each channel group (TSG) of the graphics and compute engine: context buffers.
    pub channel_group: u64,
    /// For each channel group of another engine.
    pub other_group: u64,
    /// For each channel: instance memory and method buffers.
    pub channel: u64,
    /// For each GPU virtual address space: page tables.
    pub va_space: u64,
}
