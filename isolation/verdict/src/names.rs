//! Every handle that a forwarded call names: where it stands, whose it is, who checks it.
//!
//! A driver looks handles up under its locks, and what a driver does where one is missing is not the same in all its versions. So what a call
//! names is looked up in the broker's own table first, and a call that names what is not there is answered as RM answers it and reaches no
//! driver. One row a call, in [`of_escape`], [`of_uvm`], [`of_class`] and [`CONTROLS`]: an ioctl or a kind of class without one does not compile, a control
//! without one fails a test.
//!
//! Handles that a call *makes* (`hObjectNew`) are not named by it. Offsets are those of nvos.h, the class and control headers and uvm_ioctl.h.

use nvabi::bytes::u32_at;
use nvabi::call::Params;
use nvabi::class::{self, Class, Kind, Plain};
use nvabi::escape as esc;
use nvabi::layout::{nvos21, nvos32};
use nvabi::status::{NV_ERR_INVALID_CLIENT, NV_ERR_OBJECT_NOT_FOUND};
use nvabi::uvm as u;
use nvabi::{PerRelease, Release};

use crate::Op;

/// What a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A client.
    Client,
    /// An object of the client whose handle is at this offset of the struct.
    Object(PerRelease),
    /// The parent of an object that the call makes: 0 is the client itself.
    Parent(PerRelease),
    /// The parent of another handle for an object that there is: a device, a subdevice or the client itself. What ends with another object
    /// ([`What::Object`] may) is none: nothing but its own end, or the client's, ends one of these.
    Destination(PerRelease),
    /// Of MAP_MEMORY_DMA: what memory is mapped by, virtual memory.
    Mapper(PerRelease),
    /// Of MAP_MEMORY_DMA: what is mapped, memory or a card's doorbell.
    Mappable(PerRelease),
    /// An object of the client at this offset of the parameters, or of the calling one where that is 0.
    ObjectBeside(usize),
}

/// Who checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The broker, against its table, before the call is begun.
    Broker,
    /// The broker's account, which takes a reference or looks for each of a list: `Effect` says which.
    Account,
    /// The driver alone, for this reason.
    Driver(&'static str),
}

/// One handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// The driver's name of the field.
    pub field: &'static str,
    /// 0: the struct; 1: the parameters; 2: the first list that they point to.
    pub segment: u8,
    /// Offset.
    pub at: PerRelease,
    /// What it stands for.
    pub what: What,
    /// Values that name nothing.
    pub nothing: &'static [u32],
    /// Who checks it.
    pub by: By,
}

/// One call and the handles that it names.
pub type Row<C> = (C, &'static [Handle]);

const fn handle(field: &'static str, segment: u8, at: u32, what: What, by: By) -> Handle {
    Handle {
        field,
        segment,
        at: PerRelease::all(at),
        what,
        nothing: &[],
        by,
    }
}

const fn client(at: u32) -> Handle {
    handle("hClient", 0, at, What::Client, By::Broker)
}

/// Of the client at the struct's start.
const fn object(field: &'static str, at: u32) -> Handle {
    handle(field, 0, at, What::Object(FIRST), By::Broker)
}

/// The same in the parameters, where 0 names nothing.
const fn param(field: &'static str, at: u32) -> Handle {
    Handle {
        nothing: &[0],
        ..handle(field, 1, at, What::Object(FIRST), By::Broker)
    }
}

/// An object of the client that the parameters name, or of the calling one.
const fn beside(field: &'static str, at: u32, client_at: usize) -> Handle {
    Handle {
        what: What::ObjectBeside(client_at),
        ..param(field, at)
    }
}

const fn in_account(field: &'static str, segment: u8, at: u32, what: What) -> Handle {
    handle(field, segment, at, what, By::Account)
}

const FIRST: PerRelease = PerRelease::all(0);
const OF_20: PerRelease = PerRelease::all(20);
const PARENT: Handle = handle("hObjectParent", 0, 4, What::Parent(FIRST), By::Broker);
const NEVER_FAILS: &str = "what is not there is freed already: RM answers success";

/// A constant list, which the handles of a `const fn` are not by themselves.
macro_rules! handles {
    ($($handle:expr),* $(,)?) => {
        const { &[$($handle),*] }
    };
}

/// Of the calls of `/dev/nvidiactl` and `/dev/nvidia<N>`. What an allocation's or a control's parameters name is in [`of_class`] and
/// [`CONTROLS`].
const fn of_escape(id: esc::Id) -> &'static [Handle] {
    match id {
        esc::Id::AllocMemory | esc::Id::Alloc | esc::Id::AllocLong => handles![client(0), PARENT],
        esc::Id::Free => handles![
            client(0),
            handle(
                "hObjectOld",
                0,
                8,
                What::Object(FIRST),
                By::Driver(NEVER_FAILS),
            ),
        ],
        esc::Id::Control => handles![client(0), object("hObject", 4)],
        esc::Id::DupObject => handles![
            client(0),
            handle("hParent", 0, 4, What::Destination(FIRST), By::Broker),
            in_account("hClientSrc", 0, 12, What::Client),
            in_account("hObjectSrc", 0, 16, What::Object(PerRelease::all(12))),
        ],
        esc::Id::Share => handles![
            client(0),
            object("hObject", 4),
            in_account("sharePolicy.target", 0, 8, What::Client),
        ],
        esc::Id::VidHeapControl => handles![
            client(0),
            PARENT,
            Handle {
                nothing: &[0],
                ..object("hVASpace", 12)
            },
        ],
        esc::Id::MapMemory | esc::Id::UnmapMemory | esc::Id::UpdateDeviceMappingInfo => {
            handles![client(0), object("hDevice", 4), object("hMemory", 8)]
        }
        esc::Id::MapMemoryDma => handles![
            client(0),
            object("hDevice", 4),
            handle("hDma", 0, 8, What::Mapper(FIRST), By::Broker),
            handle("hMemory", 0, 12, What::Mappable(FIRST), By::Broker),
        ],
        esc::Id::UnmapMemoryDma => handles![client(0), object("hDevice", 4), object("hDma", 8)],
        esc::Id::AllocOsEvent | esc::Id::FreeOsEvent => {
            handles![in_account("hClient", 0, 0, What::Client)]
        }
        // Refused as a whole.
        esc::Id::IdleChannels
        | esc::Id::ExportToDmabufFd
        | esc::Id::AllocObject
        | esc::Id::I2cAccess
        | esc::Id::AccessRegistry
        | esc::Id::IoctlXferCmd => &[],
        esc::Id::RegisterFd
        | esc::Id::CheckVersionStr
        | esc::Id::SysParams
        | esc::Id::WaitOpenComplete => &[],
    }
}

/// Of the calls of `/dev/nvidia-uvm`.
const fn of_uvm(id: u::Id) -> &'static [Handle] {
    match id {
        u::Id::RegisterGpuVaspace => handles![
            client(20),
            handle("hVaSpace", 0, 24, What::Object(OF_20), By::Broker),
        ],
        u::Id::RegisterChannel => handles![
            client(20),
            handle("hChannel", 0, 24, What::Object(OF_20), By::Broker),
        ],
        u::Id::UnregisterChannel => handles![handle(
            "hChannel",
            0,
            20,
            What::Client,
            By::Driver("it is looked up among what the file has registered"),
        )],
        u::Id::MapExternalAllocation => handles![
            Handle {
                at: u::map_external::H_CLIENT,
                ..in_account("hClient", 0, 0, What::Client)
            },
            Handle {
                at: u::map_external::H_MEMORY,
                ..in_account("hMemory", 0, 0, What::Object(u::map_external::H_CLIENT))
            },
        ],
        u::Id::RegisterGpu => handles![handle(
            "hSmcPartRef",
            0,
            32,
            What::Client,
            By::Driver("it is the caller's own, and read on divided cards alone"),
        )],
        // Refused as a whole.
        u::Id::AllocDeviceP2p => &[],
        // No object of RM's is named.
        u::Id::Initialize
        | u::Id::CreateRangeGroup
        | u::Id::DestroyRangeGroup
        | u::Id::UnregisterGpuVaspace
        | u::Id::EnablePeerAccess
        | u::Id::DisablePeerAccess
        | u::Id::SetRangeGroup
        | u::Id::Free
        | u::Id::UnregisterGpu
        | u::Id::PageableMemAccess
        | u::Id::PageableMemAccessOnGpu
        | u::Id::SetPreferredLocation
        | u::Id::UnsetPreferredLocation
        | u::Id::EnableReadDuplication
        | u::Id::DisableReadDuplication
        | u::Id::SetAccessedBy
        | u::Id::UnsetAccessedBy
        | u::Id::Migrate
        | u::Id::MigrateRangeGroup
        | u::Id::MapDynamicParallelismRegion
        | u::Id::UnmapExternal
        | u::Id::AllocSemaphorePool
        | u::Id::ValidateVaRange
        | u::Id::CreateExternalRange
        | u::Id::MmInitialize => &[],
    }
}

const fn own_client(field: &'static str, at: u32) -> Handle {
    handle(field, 1, at, What::Client, By::Account)
}

/// An address space; all ones is RM's own for system memory.
const fn space(at: u32) -> Handle {
    Handle {
        nothing: &[0, u32::MAX],
        ..param("hVASpace", at)
    }
}

const CHANNEL: &[Handle] = &[
    param("hObjectError", 0),
    param("hObjectBuffer", 4),
    param("hContextShare", 24),
    param("hVASpace", 28),
    param("hUserdMemory[0]", 32),
    param("hUserdMemory[1]", 36),
    param("hUserdMemory[2]", 40),
    param("hUserdMemory[3]", 44),
    param("hUserdMemory[4]", 48),
    param("hUserdMemory[5]", 52),
    param("hUserdMemory[6]", 56),
    param("hUserdMemory[7]", 60),
    param("hObjectEccError", 140),
    param("hPhysChannelGroup", 240),
];

const MEMORY: &[Handle] = &[space(108)];
const VIRTUAL: &[Handle] = &[space(16)];
const DEVICE: &[Handle] = &[
    own_client("hClientShare", 4),
    own_client("hTargetClient", 8),
    beside("hTargetDevice", 12, 8),
];
const CHANNEL_GROUP: &[Handle] = &[
    param("hObjectError", 0),
    param("hObjectEccError", 4),
    param("hVASpace", 8),
];
const CONTEXT_SHARE: &[Handle] = &[param("hVASpace", 0)];
const EVENT: &[Handle] = &[own_client("hParentClient", 0), beside("hSrcResource", 4, 0)];

/// What the parameters of an allocation name.
#[must_use]
pub fn of_class(class: &Class) -> &'static [Handle] {
    match class.kind {
        Kind::Root
        | Kind::Subdevice
        | Kind::VaSpace
        | Kind::Graphics
        | Kind::Copy
        | Kind::Video
        | Kind::OtherEngine
        | Kind::Usermode => &[],
        // Refused as a whole.
        Kind::OsDescriptor | Kind::Fabric => &[],
        Kind::Virtual if class.number == class::NV01_MEMORY_VIRTUAL => VIRTUAL,
        Kind::Vidmem | Kind::Sysmem | Kind::Virtual => MEMORY,
        Kind::Device => DEVICE,
        Kind::ChannelGroup => CHANNEL_GROUP,
        Kind::Channel => CHANNEL,
        Kind::ContextShare => CONTEXT_SHARE,
        Kind::Event => EVENT,
        Kind::Plain(plain) => match plain {
            Plain::ContextDma => CONTEXT_DMA,
            Plain::PeerToPeer => PEERS,
            Plain::Debugger => DEBUGGER,
            Plain::EncoderSession => ENCODER_SESSION,
            Plain::Confidential => CONFIDENTIAL,
            Plain::SharedData
            | Plain::BinaryApi
            | Plain::Diagnostics
            | Plain::ThirdParty
            | Plain::Mps
            | Plain::ZbcClear
            | Plain::SubdeviceMaster => &[],
        },
    }
}

const CONTEXT_DMA: &[Handle] = &[param("hSubDevice", 0), param("hMemory", 8)];
const PEERS: &[Handle] = &[param("hSubDevice", 0), param("hPeerSubDevice", 4)];
const DEBUGGER: &[Handle] = &[own_client("hAppClient", 4), beside("hClass3dObject", 8, 4)];
const ENCODER_SESSION: &[Handle] = &[handle(
    "hMem",
    1,
    16,
    What::Object(FIRST),
    By::Driver("it is not read: the session is made one of version 0"),
)];
const CONFIDENTIAL: &[Handle] = &[Handle {
    what: What::Client,
    ..param("hClient", 0)
}];

fn of(table: &'static [Row<u32>], number: Option<u32>) -> &'static [Handle] {
    let row = table.iter().find(|(of, _)| Some(*of) == number);
    row.map_or(&[][..], |(_, handles)| *handles)
}

const OF_ITS_CLIENT: By = By::Driver("a question, whose handle is looked up in the calling client");
const OF_ITS_SESSION: By =
    By::Driver("it is looked up among the channels of the debugger's session");

/// What the parameters of a control name. Which controls have handles in them is data (`nvabi/data/control-references.tsv`), and a test
/// compares: whatever is not here has none.
pub const CONTROLS: &[Row<u32>] = &[
    (0x0000_0d01, &[param("hObject", 0)]),
    (
        0x0000_3d05,
        &[
            param("object.data.rmObject.hDevice", 4),
            // Not read for an export.
            handle(
                "object.data.rmObject.hParent",
                1,
                8,
                What::Object(FIRST),
                By::Driver("it is not read"),
            ),
            in_account("object.data.rmObject.hObject", 1, 12, What::Object(FIRST)),
        ],
    ),
    (
        0x0000_3d06,
        &[
            handle(
                "object.data.rmObject.hDevice",
                1,
                8,
                What::Object(FIRST),
                By::Driver("it is written"),
            ),
            handle(
                "object.data.rmObject.hParent",
                1,
                12,
                What::Destination(FIRST),
                By::Broker,
            ),
            handle(
                "object.data.rmObject.hObject",
                1,
                16,
                What::Object(FIRST),
                By::Driver("it is made"),
            ),
        ],
    ),
    (
        0x0000_3d0b,
        &[
            param("hDevice", 4),
            in_account("objects", 1, 76, What::Object(FIRST)),
        ],
    ),
    (
        0x0000_3d0c,
        &[
            handle("hParent", 1, 4, What::Destination(FIRST), By::Broker),
            handle(
                "objects",
                1,
                8,
                What::Object(FIRST),
                By::Driver("they are made"),
            ),
        ],
    ),
    (0x0080_1108, &[param("hChannelGroup", 0)]),
    (
        0x0080_170d,
        &[handle(
            "pChannelHandleList",
            2,
            0,
            What::Object(FIRST),
            By::Driver("what is no channel of the client's is answered as none, not refused"),
        )],
    ),
    (
        0x0080_1806,
        &[handle(
            "hVASpace",
            1,
            160,
            What::Object(FIRST),
            OF_ITS_CLIENT,
        )],
    ),
    (
        0x2080_110b,
        &[
            in_account("hClientList", 1, 24, What::Client),
            handle(
                "hChannelList",
                1,
                280,
                What::Object(FIRST),
                By::Driver("each is looked up in a client that the account has found"),
            ),
        ],
    ),
    (
        0x2080_1208,
        &[own_client("hClient", 0), beside("hChannel", 4, 0)],
    ),
    (0x2080_1210, &[param("hChannel", 4)]),
    (0x2080_1218, &[param("hChannel", 0)]),
    (0x2080_3125, &[param("hChannel", 0)]),
    (0x503c_0102, &[param("hVASpace", 0)]),
    (0x503c_0104, &[param("hMemory", 0)]),
    (0x503c_0105, &[param("hMemory", 0)]),
    (
        0x83de_030c,
        &[handle(
            "hTargetChannel",
            1,
            0,
            What::Object(FIRST),
            OF_ITS_SESSION,
        )],
    ),
    (
        0x83de_0310,
        &[handle(
            "hTargetChannel",
            1,
            0,
            What::Object(FIRST),
            OF_ITS_SESSION,
        )],
    ),
    (
        0x83de_0317,
        &[handle(
            "hResidentChannel",
            1,
            4,
            What::Object(FIRST),
            By::Driver("it is written"),
        )],
    ),
    (0x906f_0101, &[param("hObject", 0)]),
    (0xc36f_0101, &[param("hObject", 0)]),
    (
        0xc56f_010b,
        &[handle("hMemory", 1, 0, What::Object(FIRST), OF_ITS_CLIENT)],
    ),
    (0xcb33_010b, &[param("hSubDevice", 0)]),
    (0xcb33_010c, &[param("hSubDevice", 0)]),
];

/// A handle that the broker has to find before a call is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// The field.
    pub field: &'static str,
    /// The client.
    pub client: u32,
    /// The object; `None` for the client itself.
    pub object: Option<u32>,
    /// What else must hold of it.
    pub must: Must,
    /// What RM answers where it is missing.
    pub if_missing: u32,
}

/// What an object must be, where a driver does not look into what a call names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Must {
    /// Nothing but there.
    BeThere,
    /// A device, a subdevice or the client itself.
    BeDestination,
    /// Virtual memory ([`What::Mapper`]).
    Map,
    /// Memory, or a card's doorbell ([`What::Mappable`]).
    BeMapped,
}

/// What a call names and the broker checks.
#[must_use]
pub fn named(op: &Op, segments: &[&[u8]], release: Release) -> Vec<Named> {
    let (own, more) = rows(op, segments, release);
    let checked = own
        .iter()
        .chain(more)
        .filter(|handle| handle.by == By::Broker);
    checked
        .filter_map(|handle| resolve(handle, segments, release))
        .collect()
}

/// The clients that an allocation's parameters name; 0 names none.
pub(crate) fn clients_of(
    class: &Class,
    params: &[u8],
    release: Release,
) -> impl Iterator<Item = u32> {
    of_class(class)
        .iter()
        .filter(|handle| handle.segment == 1 && handle.what == What::Client)
        .filter_map(move |handle| u32_at(params, usize::try_from(handle.at.of(release)).ok()?))
}

/// The handles of the struct, and those of the parameters.
fn rows(op: &Op, segments: &[&[u8]], release: Release) -> (&'static [Handle], &'static [Handle]) {
    let word = |at| u32_at(segments.first()?, at);
    match op {
        Op::CardInfo { .. } | Op::AttachGpus { .. } => (&[], &[]),
        Op::Uvm(row) => (of_uvm(row.id), &[]),
        Op::Escape(row) => {
            let own = of_escape(row.id);
            let arg = segments.first().copied().unwrap_or_default();
            match op.params() {
                Some(Params::Class) if matches!(word(nvos21::H_CLASS), Some(0 | 1 | 0x41)) => {
                    (&[], &[])
                }
                Some(Params::Class) => {
                    let class = op.class(arg).and_then(|of| class::row_of(of, release));
                    (own, class.map_or(&[][..], of_class))
                }
                Some(Params::Control) => (own, of(CONTROLS, op.command(arg))),
                // A question's or a free's other fields are what is left of earlier calls.
                None if row.id == esc::Id::VidHeapControl
                    && word(nvos32::FUNCTION) != Some(nvos32::FUNCTION_ALLOC_SIZE) =>
                {
                    (own.get(..1).unwrap_or_default(), &[])
                }
                None => (own, &[]),
            }
        }
    }
}

fn resolve(handle: &Handle, segments: &[&[u8]], release: Release) -> Option<Named> {
    let word = |segment: u8, at: usize| u32_at(segments.get(usize::from(segment))?, at);
    let offset = |at: PerRelease| usize::try_from(at.of(release)).unwrap_or(usize::MAX);
    let value = word(handle.segment, offset(handle.at))?;
    if handle.nothing.contains(&value) {
        return None;
    }
    let (client, object, if_missing) = match handle.what {
        What::Client => (value, None, NV_ERR_INVALID_CLIENT),
        What::Object(of) | What::Destination(of) | What::Mapper(of) | What::Mappable(of) => {
            let client = word(0, offset(of))?;
            (client, Some(value), NV_ERR_OBJECT_NOT_FOUND)
        }
        What::Parent(of) => {
            let client = word(0, offset(of))?;
            let parent = if value == 0 { client } else { value };
            (client, Some(parent), NV_ERR_OBJECT_NOT_FOUND)
        }
        What::ObjectBeside(at) => {
            let beside = word(1, at).filter(|client| *client != 0);
            let client = beside.or_else(|| word(0, 0))?;
            (client, Some(value), NV_ERR_OBJECT_NOT_FOUND)
        }
    };
    Some(Named {
        field: handle.field,
        client,
        object,
        must: match handle.what {
            What::Client | What::Object(_) | What::Parent(_) | What::ObjectBeside(_) => {
                Must::BeThere
            }
            What::Destination(_) => Must::BeDestination,
            What::Mapper(_) => Must::Map,
            What::Mappable(_) => Must::BeMapped,
        },
        if_missing,
    })
}

#[cfg(test)]
mod tests;
