//! From a decoded call to what becomes of it.

mod control;
mod schedule;
mod uvm;

use nvabi::bytes::{u32_at, u64_at};
use nvabi::capability::{Capabilities, Needs};
use nvabi::class::{self, Class, Kind, Plain};
use nvabi::escape::Id;
use nvabi::layout::{
    channel_group_params, channel_params, device_params, engine_type, memory_params, nvos00,
    nvos02, nvos21, nvos32, nvos46, nvos55, nvos57, os_event,
};
use nvabi::{Release, status};

use crate::blocks::Descriptor;
use crate::exports::{Export, Import};
use crate::page_size::{self, Asked, Takes};
use crate::policy::CardFigures;
use crate::{EFAULT, EINVAL, Op, Policy, Refusal, names, share};

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The driver executes it on the broker's copy; the effect is booked when it succeeds.
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
    /// UVM has a range for external mappings.
    Range {
        /// First GPU address.
        base: u64,
        /// Bytes.
        length: u64,
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
    /// The UVM file gets a managed range: charged as if all of it lay on the card. Executed by the caller. Ranges that overlap
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
    /// Memory is mapped into an address space by RM, which takes nothing of the card's. Nothing of the client's may be freed between the look
    /// for what it names and its end.
    MapDma {
        /// Client.
        client: u32,
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
}

/// An allocation of memory. The broker's journal has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Memory {
    /// Client.
    pub client: u32,
    /// Parent: a device or a subdevice.
    pub parent: u32,
    /// Class booked for the object.
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
    const IN_PARAMETERS: Self = Self { segment: 1, at: 4 };
    /// `{u32 count; pointer to the entries}`; without a block where the pointer is NULL.
    const POINTED_TO: Self = Self { segment: 2, at: 0 };
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

impl Effect {
    /// What is rewritten in the answer of a call that has succeeded.
    #[must_use]
    pub fn view(&self) -> Option<View> {
        match self {
            Self::View(view) => Some(*view),
            Self::ExportInfo { .. } => Some(View::ExportedDevice),
            Self::None
            | Self::Client
            | Self::MapDma { .. }
            | Self::Object { .. }
            | Self::Memory(_)
            | Self::Free { .. }
            | Self::Dup { .. }
            | Self::Range { .. }
            | Self::Pool { .. }
            | Self::MapExternal { .. }
            | Self::Unmap { .. }
            | Self::FreeRange { .. }
            | Self::Export(_)
            | Self::Import(_)
            | Self::Managed { .. }
            | Self::ChannelClients { .. }
            | Self::OsEvent { .. }
            | Self::NamesCards { .. }
            | Self::Schedule(_)
            | Self::Answered { .. } => None,
        }
    }
}

/// Decides one call under the default policy. `segments` are the struct, the parameters and their nested blocks, as [`crate::blocks`] named them.
#[must_use]
pub fn decide(op: &Op, segments: &[&[u8]], release: Release) -> Verdict {
    decide_under(op, segments, release, &Policy::default())
}

/// Decides one call under a container's policy.
#[must_use]
pub fn decide_under(op: &Op, segments: &[&[u8]], release: Release, policy: &Policy) -> Verdict {
    match try_decide(op, segments, release, policy) {
        Ok(effect) => Verdict::Execute(effect),
        Err(refusal) => Verdict::Refuse(refusal),
    }
}

fn try_decide(
    op: &Op,
    segments: &[&[u8]],
    release: Release,
    policy: &Policy,
) -> Result<Effect, Refusal> {
    let arg = segments.first().copied().unwrap_or_default();
    let params = segments.get(1).copied();
    match op {
        Op::CardInfo { .. } => Ok(Effect::View(View::Cards)),
        Op::AttachGpus { .. } => Ok(Effect::NamesCards {
            ids: arg
                .chunks_exact(4)
                .filter_map(|id| u32_at(id, 0))
                .filter(|id| *id != 0)
                .collect(),
            absent: status::NV_ERR_INVALID_ARGUMENT,
        }),
        Op::Uvm(row) => uvm::call(row, arg, release, policy.managed),
        Op::Escape(row) => match row.id {
            Id::Alloc | Id::AllocLong => alloc(op, arg, params, release, policy),
            Id::Control => control::decide(op, arg, params, release, policy),
            Id::Share => {
                let policy_block = arg.get(nvos57::POLICY..).unwrap_or_default();
                share::decide(op, policy_block, policy, release)
            }
            Id::Free => Ok(Effect::Free {
                client: word(arg, nvos00::H_ROOT)?,
                object: word(arg, nvos00::H_OLD)?,
            }),
            Id::DupObject => Ok(Effect::Dup {
                client: word(arg, nvos55::H_CLIENT)?,
                parent: word(arg, nvos55::H_PARENT)?,
                source_client: word(arg, nvos55::H_CLIENT_SRC)?,
                source_object: word(arg, nvos55::H_OBJECT_SRC)?,
            }),
            Id::VidHeapControl => heap(op, arg, release),
            Id::AllocMemory => alloc_memory(op, arg, release),
            Id::MapMemoryDma => Ok(Effect::MapDma {
                client: word(arg, nvos46::H_CLIENT)?,
            }),
            Id::MapMemory
            | Id::UnmapMemory
            | Id::UnmapMemoryDma
            | Id::UpdateDeviceMappingInfo
            | Id::RegisterFd
            | Id::CheckVersionStr
            | Id::SysParams
            | Id::WaitOpenComplete => Ok(Effect::None),
            Id::AllocOsEvent => os_event(arg, Switch::On),
            Id::FreeOsEvent => os_event(arg, Switch::Off),
            // Memory exported as a dma-buf leaves the account; channel lists hold pointers that are not carried.
            Id::ExportToDmabufFd | Id::IdleChannels => {
                Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release))
            }
            // [`crate::op()`] names none of these.
            Id::AllocObject | Id::I2cAccess | Id::AccessRegistry | Id::IoctlXferCmd => {
                Err(Refusal::Errno(EINVAL))
            }
        },
    }
}

fn alloc(
    op: &Op,
    arg: &[u8],
    params: Option<&[u8]>,
    release: Release,
    policy: &Policy,
) -> Result<Effect, Refusal> {
    let class = class::row_of(word(arg, nvos21::H_CLASS)?, release)
        .filter(|class| class.needs.met_by(policy.capabilities))
        .ok_or_else(|| op.refuse(status::NV_ERR_INVALID_CLASS, release))?;
    let (client, parent) = (word(arg, nvos21::H_ROOT)?, word(arg, nvos21::H_PARENT)?);
    let object = |device_instance| Effect::Object {
        class,
        client,
        parent,
        device_instance,
    };
    if names_refused_engine(class.kind, params.unwrap_or_default(), policy.capabilities) {
        return Err(op.refuse(status::NV_ERR_INVALID_ARGUMENT, release));
    }
    // A device in its address space (gpu/device_share.c), an event on its objects, a debugger on its contexts: any handle can be guessed,
    // and a neighbour's is refused as one that is not there.
    let mut named = names::clients_of(class, params.unwrap_or_default(), release);
    if named.any(|named| named != 0 && named != client) {
        return Err(op.refuse(status::NV_ERR_INVALID_CLIENT, release));
    }
    if class.kind == Kind::Plain(Plain::SharedData) && policy.card_figures == CardFigures::Refuse {
        return Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release));
    }
    match class.kind {
        Kind::Root => Ok(Effect::Client),
        // OS_DESCRIPTOR pins pages of whoever makes the call (os_desc_mem.c), and here that is not the tenant: only
        // ALLOC_MEMORY, which stays with the caller, may make it.
        Kind::Fabric | Kind::OsDescriptor => Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release)),
        Kind::Device => {
            let instance = params
                .and_then(|params| u32_at(params, device_params::DEVICE_ID))
                .unwrap_or(0);
            Ok(object(Some(instance)))
        }
        Kind::Vidmem => {
            let params =
                params.ok_or_else(|| op.refuse(status::NV_ERR_INVALID_ARGUMENT, release))?;
            let takes = Asked::of_params(params)
                .ok_or(Refusal::Errno(EFAULT))?
                .takes(release);
            Ok(Effect::Memory(Memory {
                client,
                parent,
                class: class.number,
                reserve_bytes: takes.most_bytes,
                whose: Whose::Card,
                size_at: takes.is_told.then_some((1, memory_params::SIZE)),
            }))
        }
        Kind::Sysmem => {
            let asked = params.map(Asked::of_params);
            let asked = asked.ok_or_else(|| op.refuse(status::NV_ERR_INVALID_ARGUMENT, release))?;
            Ok(Effect::Memory(Memory {
                client,
                parent,
                class: class.number,
                reserve_bytes: asked.ok_or(Refusal::Errno(EFAULT))?.takes_of_host(release),
                whose: Whose::Host,
                size_at: Some((1, memory_params::SIZE)),
            }))
        }
        Kind::Subdevice
        | Kind::Virtual
        | Kind::VaSpace
        | Kind::ChannelGroup
        | Kind::Channel
        | Kind::ContextShare
        | Kind::Graphics
        | Kind::Copy
        | Kind::Video
        | Kind::OtherEngine
        | Kind::Usermode
        | Kind::Event
        | Kind::Plain(_) => Ok(object(None)),
    }
}

/// Whether a channel or a group would be one of an engine that the container does not have. Without the engine's classes it could not work
/// there, but hold a place of its runlist and a slice of its time.
fn names_refused_engine(kind: Kind, params: &[u8], capabilities: Capabilities) -> bool {
    let at = match kind {
        Kind::ChannelGroup => channel_group_params::ENGINE_TYPE,
        Kind::Channel => channel_params::ENGINE_TYPE,
        Kind::Root
        | Kind::Device
        | Kind::Subdevice
        | Kind::Vidmem
        | Kind::Sysmem
        | Kind::OsDescriptor
        | Kind::Virtual
        | Kind::VaSpace
        | Kind::ContextShare
        | Kind::Graphics
        | Kind::Copy
        | Kind::Video
        | Kind::OtherEngine
        | Kind::Usermode
        | Kind::Event
        | Kind::Fabric
        | Kind::Plain(_) => return false,
    };
    u32_at(params, at).is_some_and(|engine| is_refused_engine(engine, capabilities))
}

/// Whether an engine is one of a capability that is not there.
pub(crate) fn is_refused_engine(engine: u32, capabilities: Capabilities) -> bool {
    engine_type::is_video(engine) && !Needs::Video.met_by(capabilities)
}

fn heap(op: &Op, arg: &[u8], release: Release) -> Result<Effect, Refusal> {
    /// `attr` bits 26:25: 1 is system memory behind PCI
    const LOCATION_MASK: u32 = 3 << 25;
    const LOCATION_PCI: u32 = 1 << 25;
    let (client, parent) = (word(arg, nvos32::H_ROOT)?, word(arg, nvos32::H_PARENT)?);
    match word(arg, nvos32::FUNCTION)? {
        nvos32::FUNCTION_ALLOC_SIZE => {
            let attr = word(arg, nvos32::ALLOC_ATTR)?;
            if word(arg, nvos32::ALLOC_FLAGS)? & memory_params::FLAG_VIRTUAL != 0 {
                let class = class::row_of(class::NV01_MEMORY_VIRTUAL, release)
                    .ok_or(Refusal::Errno(EINVAL))?;
                return Ok(Effect::Object {
                    class,
                    client,
                    parent,
                    device_instance: None,
                });
            }
            let asked = Asked::of_heap(arg).ok_or(Refusal::Errno(EFAULT))?;
            let (class, whose, reserve_bytes, is_told) = if attr & LOCATION_MASK == LOCATION_PCI {
                let bytes = asked.takes_of_host(release);
                (class::NV01_MEMORY_SYSTEM, Whose::Host, bytes, true)
            } else {
                let Takes {
                    most_bytes,
                    is_told,
                } = asked.takes(release);
                (
                    class::NV01_MEMORY_LOCAL_USER,
                    Whose::Card,
                    most_bytes,
                    is_told,
                )
            };
            Ok(Effect::Memory(Memory {
                client,
                parent,
                class,
                reserve_bytes,
                whose,
                size_at: is_told.then_some((0, nvos32::ALLOC_SIZE)),
            }))
        }
        nvos32::FUNCTION_FREE => Ok(Effect::Free {
            client,
            object: word(arg, nvos32::FREE_H_MEMORY)?,
        }),
        nvos32::FUNCTION_INFO => Ok(Effect::View(View::HeapInfo {
            object: (client, parent),
        })),
        _ => Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release)),
    }
}

/// Only classes that cannot name framebuffer pass: 0x40 here is "all of it" for a privileged caller.
fn alloc_memory(op: &Op, arg: &[u8], release: Release) -> Result<Effect, Refusal> {
    let class = class::row_of(word(arg, nvos02::H_CLASS)?, release)
        .filter(|class| matches!(class.kind, Kind::Sysmem | Kind::OsDescriptor))
        .ok_or_else(|| op.refuse(status::NV_ERR_INVALID_CLASS, release))?;
    let (client, parent) = (word(arg, nvos02::H_ROOT)?, word(arg, nvos02::H_PARENT)?);
    if class.kind == Kind::Sysmem {
        let limit = u64_at(arg, nvos02::LIMIT).ok_or(Refusal::Errno(EFAULT))?;
        return Ok(Effect::Memory(Memory {
            client,
            parent,
            class: class.number,
            reserve_bytes: page_size::taken_of_host(limit.saturating_add(1)),
            whose: Whose::Host,
            size_at: None,
        }));
    }
    // Pages of the caller's own, which its control group counts.
    Ok(Effect::Object {
        class,
        client,
        parent,
        device_instance: None,
    })
}

fn os_event(arg: &[u8], switch: Switch) -> Result<Effect, Refusal> {
    Ok(Effect::OsEvent {
        client: word(arg, os_event::H_CLIENT)?,
        number: word(arg, os_event::FD)?,
        switch,
    })
}

fn word(block: &[u8], at: usize) -> Result<u32, Refusal> {
    u32_at(block, at).ok_or(Refusal::Errno(EFAULT))
}

#[cfg(test)]
mod tests;
