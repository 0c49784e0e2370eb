//! The rows. Offsets are those of nvos.h, the class and control headers and uvm_ioctl.h.

use nvabi::PerRelease;
use nvabi::class::{self, Class, Kind, Plain};
use nvabi::control as ctl;
use nvabi::escape as esc;
use nvabi::uvm as u;

use super::{By, Handle, Row, What};

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

/// An object that nobody but the driver looks at.
const fn for_driver(field: &'static str, segment: u8, at: u32, why: &'static str) -> Handle {
    handle(field, segment, at, What::Object(FIRST), By::Driver(why))
}

const FIRST: PerRelease = PerRelease::all(0);
const OF_20: PerRelease = PerRelease::all(20);
const OF_28: PerRelease = PerRelease::all(28);
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
pub(super) const fn of_escape(id: esc::Id) -> &'static [Handle] {
    match id {
        esc::Id::AllocMemory | esc::Id::Alloc | esc::Id::AllocLong => handles![client(0), PARENT],
        esc::Id::Free => handles![client(0), for_driver("hObjectOld", 0, 8, NEVER_FAILS),],
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
        | esc::Id::AllocContextDma2
        | esc::Id::BindContextDma
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
pub(super) const fn of_uvm(id: u::Id) -> &'static [Handle] {
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
        u::Id::RegisterGpu => handles![
            Handle {
                nothing: &[0],
                ..client(28)
            },
            handle(
                "hSmcPartRef",
                0,
                32,
                What::Object(OF_28),
                By::Driver("it is looked up in that client, and on divided cards alone"),
            ),
        ],
        // Refused as a whole.
        u::Id::AllocDeviceP2p | u::Id::MapExternalSparse | u::Id::ClearAllAccessCounters => &[],
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
const ENCODER_SESSION: &[Handle] = &[for_driver(
    "hMem",
    1,
    16,
    "it is not read: the session is made one of version 0",
)];
const CONFIDENTIAL: &[Handle] = &[Handle {
    what: What::Client,
    ..param("hClient", 0)
}];

const OF_ITS_CLIENT: &str = "a question, whose handle is looked up in the calling client";
const OF_ITS_SESSION: &str = "it is looked up among the channels of the debugger's session";

/// What the parameters of a control name. Which controls have handles in them is data (`nvabi/data/control-references.tsv`), and a test
/// compares: whatever is not here has none.
#[rustfmt::skip] // one control a line
pub const CONTROLS: &[Row<u32>] = &[
    (ctl::NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE, &[param("hObject", 0)]),
    (ctl::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, &[
        param("object.data.rmObject.hDevice", 4),
        for_driver("object.data.rmObject.hParent", 1, 8, "it is not read"),
        in_account("object.data.rmObject.hObject", 1, 12, What::Object(FIRST)),
    ]),
    (ctl::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, &[
        for_driver("object.data.rmObject.hDevice", 1, 8, "it is written"),
        handle("object.data.rmObject.hParent", 1, 12, What::Destination(FIRST), By::Broker),
        for_driver("object.data.rmObject.hObject", 1, 16, "it is made"),
    ]),
    (ctl::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, &[param("hDevice", 4), in_account("objects", 1, 76, What::Object(FIRST))]),
    (ctl::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, &[
        handle("hParent", 1, 4, What::Destination(FIRST), By::Broker),
        for_driver("objects", 1, 8, "they are made"),
    ]),
    (ctl::NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE, &[param("hChannelGroup", 0)]),
    (ctl::NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST, &[
        for_driver("pChannelHandleList", 2, 0, "what is no channel of the client's is answered as none, not refused"),
    ]),
    (ctl::NV0080_CTRL_CMD_DMA_ADV_SCHED_GET_VA_CAPS, &[for_driver("hVASpace", 1, 160, OF_ITS_CLIENT)]),
    (ctl::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &[
        in_account("hClientList", 1, 24, What::Client),
        for_driver("hChannelList", 1, 280, "each is looked up in a client that the account has found"),
    ]),
    (ctl::NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND, &[own_client("hClient", 0), beside("hChannel", 4, 0)]),
    (ctl::NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE, &[param("hChannel", 4)]),
    (ctl::NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE, &[param("hChannel", 0)]),
    (ctl::NV2080_CTRL_CMD_FLCN_GET_CTX_BUFFER_SIZE, &[param("hChannel", 0)]),
    (ctl::NV503C_CTRL_CMD_REGISTER_VA_SPACE, &[param("hVASpace", 0)]),
    (ctl::NV503C_CTRL_CMD_REGISTER_VIDMEM, &[param("hMemory", 0)]),
    (ctl::NV503C_CTRL_CMD_UNREGISTER_VIDMEM, &[param("hMemory", 0)]),
    (ctl::NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES, &[for_driver("hTargetChannel", 1, 0, OF_ITS_SESSION)]),
    (ctl::NV83DE_CTRL_CMD_DEBUG_CLEAR_ALL_SM_ERROR_STATES, &[for_driver("hTargetChannel", 1, 0, OF_ITS_SESSION)]),
    (ctl::NV906F_CTRL_GET_CLASS_ENGINEID, &[param("hObject", 0)]),
    (ctl::NVC36F_CTRL_GET_CLASS_ENGINEID, &[param("hObject", 0)]),
    (ctl::NVC56F_CTRL_CMD_GET_KMB, &[for_driver("hMemory", 1, 0, OF_ITS_CLIENT)]),
    (ctl::NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_NUM_SECURE_CHANNELS, &[param("hSubDevice", 0)]),
    (ctl::NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_KEY_ROTATION_STATE, &[param("hSubDevice", 0)]),
];
