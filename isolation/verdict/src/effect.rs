//! What becomes of a call, as one value.

mod exports;
mod registrations;

use nvabi::capability::Capabilities;
use nvabi::class::Class;

use crate::Refusal;
use crate::blocks::Descriptor;
use crate::policy::Policy;

pub use exports::{Export, Import, Onto};
pub use registrations::{Registered, Unregistered};

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The driver executes it on the broker's copy; the effect is committed when it succeeds.
    Execute(Effect),
    /// It is answered so, and no driver hears of it.
    Refuse(Refusal),
}

/// What a successful call changes in the account, or how its answer is rewritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// A new client; its handle is an output of the call.
    Client,
    /// A new object without card memory of a declared size.
    Object {
        /// Its class.
        class: &'static Class,
        /// Client.
        client: u32,
        /// Parent's handle.
        parent: u32,
        /// For a device: RM's device instance.
        device_instance: Option<u32>,
    },
    /// A new piece of card memory.
    Memory(Memory),
    /// Frees an object, its children and dependants.
    Free {
        /// Client.
        client: u32,
        /// The object; the client's own handle frees the client.
        object: u32,
    },
    /// Another handle for an object.
    Dup {
        /// Client of the new handle.
        client: u32,
        /// Parent of the new handle.
        parent: u32,
        /// Client of the source: must be the container's own.
        source_client: u32,
        /// The source.
        source_object: u32,
    },
    /// The UVM file has a group of managed ranges more, or one less, whose number is in the struct: an object of the kernel's that no control
    /// group counts.
    RangeGroup(Switch),
    /// Managed pages, which are charged already, are somewhere else then, or treated otherwise.
    Pages(Pages),
    /// UVM has a range for external mappings.
    Range {
        /// First GPU address.
        base: u64,
        /// Bytes.
        length: u64,
        /// The UUID of the card of which it takes page tables at once; `None`: of none.
        card: Option<[u8; 16]>,
    },
    /// UVM gets a pool of semaphores in the host's memory: charged until it is freed or its file closed.
    Pool {
        /// First address.
        base: u64,
        /// Bytes.
        length: u64,
    },
    /// UVM takes a reference on a physical allocation for each card.
    MapExternal {
        /// First GPU address of the range.
        base: u64,
        /// Bytes.
        length: u64,
        /// Client of the allocation.
        client: u32,
        /// The allocation.
        memory: u32,
        /// The cards that map it, by UUID.
        cards: Vec<[u8; 16]>,
    },
    /// UVM gives up what one card has mapped there.
    Unmap {
        /// First GPU address.
        base: u64,
        /// Bytes.
        length: u64,
        /// The card, by UUID.
        card: [u8; 16],
    },
    /// UVM keeps a card initialised for the file, and managed memory of the file may lie there: the card must be a granted one.
    RegisterCard {
        /// The card, by UUID.
        card: [u8; 16],
        /// The client whose part of a divided card is meant; 0: none.
        client: u32,
    },
    /// UVM takes references on what it registers, until that is unregistered or the file closed.
    Register {
        /// The card, by UUID.
        card: [u8; 16],
        /// Client.
        client: u32,
        /// The object.
        object: u32,
        /// As what it is registered.
        what: Registered,
    },
    /// UVM lets go what it has registered.
    Unregister(Unregistered),
    /// UVM frees the range that begins there, with all mappings in it.
    FreeRange {
        /// First GPU address.
        base: u64,
    },
    /// Objects are put into a control file: each holds one more reference on its allocation until the file is closed or the slot
    /// replaced. The file must be a control file of the container's own.
    Export(Export),
    /// Objects come out of a control file as new handles. In the container that exported them they are counted once; a file
    /// whose exports belong to another container is refused (`NV_ERR_INSUFFICIENT_PERMISSIONS`) unless both name one share group.
    Import(Import),
    /// Asks what a file holds: it must be one that an import would be allowed from.
    ExportInfo {
        /// Where the number of the file stands.
        file: Descriptor,
    },
    /// The UVM file gets a managed range: charged as if all of it was on the card. Executed by the caller. Ranges that overlap
    /// or are mapped again are charged once: the unmapping is no call, so the broker looks at what is mapped.
    Managed {
        /// First address.
        base: u64,
        /// Bytes, whole pages.
        length: u64,
    },
    /// Names clients (a share policy's target, a channel's client): every client named must be the container's own.
    ChannelClients {
        /// The clients.
        clients: Vec<u32>,
    },
    /// A descriptor's number is made an event's, or is one no longer. The driver asks nobody whose the client is, so it must be the
    /// container's own (osapi.c, `allocate_os_event` and `free_os_event`).
    OsEvent {
        /// Client.
        client: u32,
        /// The number, as the caller knows it.
        number: u32,
        /// Made one, or one no longer.
        switch: Switch,
    },
    /// Names cards, each of which must be granted: to keep it initialised (nv.c opens whichever is named), or to ask about it.
    NamesCards {
        /// Their ids, without the empty ones.
        ids: Vec<u32>,
        /// How the driver answers where one of them is not there.
        absent: u32,
    },
    /// Memory is mapped into an address space by RM, which takes page tables of the card's. Nothing of the client's may be freed between the
    /// look for what it names and its end.
    MapDma {
        /// Client.
        client: u32,
        /// The device whose card it is on.
        device: u32,
        /// What takes the mapping.
        dma: u32,
        /// What is mapped.
        memory: u32,
        /// From where in it on.
        offset: u64,
        /// How much of it.
        bytes: u64,
    },
    /// Such a mapping ends.
    UnmapDma {
        /// Client.
        client: u32,
        /// What has the mapping.
        dma: u32,
        /// The GPU's address.
        address: u64,
        /// How much of it; 0: all. Up to 545 it is always all.
        bytes: u64,
    },
    /// RM maps an object for the CPU, or ends such a mapping.
    CpuMapping {
        /// Client.
        client: u32,
        /// The object.
        memory: u32,
        /// How much of it is mapped; 0 at the end of a mapping.
        bytes: u64,
        /// Made, or ended.
        switch: Switch,
    },
    /// Something about when the container's work runs.
    Schedule(Schedule),
    /// The answer is rewritten.
    View(View),
    /// It is answered with success where the object is there, and no driver hears of it: it would act on the whole card.
    Answered {
        /// Client and object.
        object: (u32, u32),
        /// The class that the object must be of.
        class: u32,
    },
}

/// A call of the tenant's to the card's scheduler. Where the container's share is held by a governor, what the tenant asks for is
/// remembered and not done, or done when its time has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// SET_TIMESLICE: executed, no longer than [`crate::schedule::LONGEST_SLICE_US`]; under a governor remembered and answered.
    SetTimeslice {
        /// Client.
        client: u32,
        /// The channel group.
        group: u32,
        /// What is asked for, microseconds.
        micros: u64,
    },
    /// GET_TIMESLICE: under a governor the answer is what the tenant has set.
    GetTimeslice {
        /// Client.
        client: u32,
        /// The channel group.
        group: u32,
    },
    /// GPFIFO_SCHEDULE of a channel or a channel group; putting it onto the runlist waits while the container's gate is closed.
    Runlist {
        /// Client.
        client: u32,
        /// The channel or channel group.
        object: u32,
        /// Onto it, or off it.
        switch: Switch,
    },
    /// FIFO_DISABLE_CHANNELS: every client must be the container's own; enabling waits while the container's gate is closed.
    Channels {
        /// Client and channel.
        channels: Vec<(u32, u32)>,
        /// Enabled, or disabled.
        switch: Switch,
    },
    /// PREEMPT: so many in a second and no more; further ones wait.
    Preempt,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// May run.
    On,
    /// May not.
    Off,
}

/// Where memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Whose {
    /// On the card of the parent.
    Card,
    /// In the host's memory, where the driver takes pages that no control group counts.
    Host,
    /// The same, and physically contiguous, for which the kernel gives a power of two of pages.
    HostInOnePiece,
}

/// An allocation of memory. The broker's journal has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Memory {
    /// Client.
    pub client: u32,
    /// Parent: a device or a subdevice.
    pub parent: u32,
    /// Class kept for the object.
    pub class: u32,
    /// The most that the driver may round the request up to, bytes.
    pub reserve_bytes: u64,
    /// Where it lies.
    pub whose: Whose,
    /// Segment and offset of the size that the driver writes back, bytes; `None` where it takes what is reserved.
    pub size_at: Option<(u8, usize)>,
}

/// A list whose number of entries is the first word of the parameters: it follows there, or has a block of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    /// Segment.
    pub segment: u8,
    /// Offset of the first entry.
    pub at: usize,
}

impl List {
    /// `{u32 count; entries}`
    pub(crate) const IN_PARAMETERS: Self = Self { segment: 1, at: 4 };
    /// `{u32 count; pointer to the entries}`; without a block where the pointer is NULL.
    pub(crate) const POINTED_TO: Self = Self { segment: 2, at: 0 };
}

/// A list of engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engines {
    /// In a block of its own, whose length a caller has asked for first.
    PointedTo,
    /// In the parameters.
    InParameters {
        /// Offset of their number.
        count_at: usize,
        /// Offset of the first.
        at: usize,
    },
}

/// An answer to rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Facts of the framebuffer.
    FbInfo {
        /// Client and object that the question is about.
        object: (u32, u32),
        /// The questions and answers.
        list: List,
    },
    /// Facts of the card.
    GpuInfo(List),
    /// The card's classes.
    Classes {
        /// The classes.
        list: List,
        /// The container's choices.
        policy: Policy,
    },
    /// The card's engines, or an engine's partners.
    Engines {
        /// Where they stand.
        list: Engines,
        /// What the container has of them.
        capabilities: Capabilities,
    },
    /// Regions of the framebuffer.
    FbRegions {
        /// Client and object that the question is about.
        object: (u32, u32),
    },
    /// Parameters of which every byte is this: nothing of what is asked about is there.
    NothingThere(u8),
    /// GET_GPU_FABRIC_PROBE_INFO.
    FabricProbe,
    /// NVOS32 INFO.
    HeapInfo {
        /// Client and object that the question is about.
        object: (u32, u32),
    },
    /// CARD_INFO.
    Cards,
    /// Lists of GPU ids at the start of the parameters.
    GpuIds,
    /// GET_ACTIVE_DEVICE_IDS.
    ActiveDevices,
    /// GPU_GET_PIDS.
    Pids {
        /// Client and object that the question is about.
        object: (u32, u32),
    },
    /// GPU_GET_PID_INFO.
    PidInfo {
        /// Client and object that the question is about.
        object: (u32, u32),
    },
    /// Perfmon samples.
    Samples {
        /// Client and object that the question is about.
        object: (u32, u32),
    },
    /// GPU_GET_DEVICE_IDS.
    DeviceMask,
    /// SYNC_GPU_BOOST_GROUP_INFO.
    BoostGroups,
    /// NVLINK_GET_NVLINK_STATUS.
    NvLinks,
    /// GET_EXPORT_OBJECT_INFO.
    ExportedDevice,
}

/// What a call does with managed pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// It moves them: those that come to the host are charged to the control group of the process that the file is of.
    Moved,
    /// It gives them a policy, or a group. Where they begin or end within a piece of the kernel's the piece is split: some KiB of its memory
    /// more, which no control group counts (`uvm_va_range_split`, uvm_va_range.c; `uvm_range_group_assign_range`, uvm_range_group.c).
    Advised {
        /// First address.
        base: u64,
        /// Bytes.
        length: u64,
    },
}

/// What a call takes out of a file that holds exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakenOut {
    /// The objects in these slots.
    Slots(std::ops::Range<u32>),
    /// What the file says of its exports, and no object.
    Figures,
}

impl Effect {
    /// What it takes out of a file, or asks about one; `None` where it does neither.
    #[must_use]
    pub fn taken_out(&self) -> Option<TakenOut> {
        self.shown().0
    }

    /// What is rewritten in the answer of a call that has succeeded.
    #[must_use]
    pub fn view(&self) -> Option<View> {
        self.shown().1
    }

    fn shown(&self) -> (Option<TakenOut>, Option<View>) {
        match self {
            Self::Import(import) => {
                let first = u32::from(import.first);
                let slots = first..first.saturating_add(u32::from(import.count));
                (Some(TakenOut::Slots(slots)), None)
            }
            Self::ExportInfo { .. } => (Some(TakenOut::Figures), Some(View::ExportedDevice)),
            Self::View(view) => (None, Some(*view)),
            Self::None
            | Self::Client
            | Self::MapDma { .. }
            | Self::UnmapDma { .. }
            | Self::CpuMapping { .. }
            | Self::Object { .. }
            | Self::Memory(_)
            | Self::Free { .. }
            | Self::Dup { .. }
            | Self::Range { .. }
            | Self::RangeGroup(_)
            | Self::Pages(_)
            | Self::Pool { .. }
            | Self::MapExternal { .. }
            | Self::Unmap { .. }
            | Self::RegisterCard { .. }
            | Self::Register { .. }
            | Self::Unregister(_)
            | Self::FreeRange { .. }
            | Self::Export(_)
            | Self::Managed { .. }
            | Self::ChannelClients { .. }
            | Self::OsEvent { .. }
            | Self::NamesCards { .. }
            | Self::Schedule(_)
            | Self::Answered { .. } => (None, None),
        }
    }
}
