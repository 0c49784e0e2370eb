//! Control calls: exact parameter sizes, and where the parameters hold pointers.

use crate::bytes::u32_at;
use crate::layout::{export_info, export_object, export_objects, import_object, import_objects};
use crate::status::{NV_ERR_INSUFFICIENT_PERMISSIONS, NV_ERR_NOT_SUPPORTED};
use crate::{PerRelease, Release, per};

mod flat;

/// The size of a control without parameters, apart from 0, which says that the release lacks it.
pub(crate) const EMPTY: u32 = u32::MAX;

/// How long a nested block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// `u32` count at this offset of the parameters, times this many bytes.
    Counted {
        /// Offset of the count.
        at: u16,
        /// Bytes of an entry.
        entry_bytes: u16,
    },
    /// A `u32` for each pair of those that the `u32` count at this offset counts.
    Square {
        /// Offset of the count.
        at: u16,
    },
    /// Always this many bytes.
    Fixed(u32),
}

impl Length {
    /// Bytes of the block of these parameters, at most [`usize::MAX`]; `None`: the parameters end before the count.
    #[must_use]
    pub fn bytes(self, params: &[u8]) -> Option<usize> {
        let count = |at: u16| u32_at(params, usize::from(at)).map(|count| count as usize);
        Some(match self {
            Self::Fixed(bytes) => bytes as usize,
            Self::Counted { at, entry_bytes } => {
                count(at)?.saturating_mul(usize::from(entry_bytes))
            }
            Self::Square { at } => {
                let count = count(at)?;
                count.saturating_mul(count).saturating_mul(4)
            }
        })
    }
}

/// A pointer inside the parameters. A NULL pointer names no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nested {
    /// Offset of the 8-byte pointer.
    pub pointer_at: u16,
    /// Bytes of the block.
    pub length: Length,
}

/// One control as a release has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// The command.
    pub cmd: u32,
    /// The driver's name.
    pub name: &'static str,
    /// Exact `paramsSize` in bytes.
    pub params_bytes: u32,
    /// The pointers, in the order of the segments that follow the parameters.
    pub nested: &'static [Nested],
}

/// Controls that the headers list but the driver's deprecated converter answers, with their sizes (rmapi_deprecated_control.c).
const CONVERTED: &[(u32, &str, PerRelease)] = &[
    (
        0x101,
        "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION",
        PerRelease::all(40),
    ),
    (
        NV2080_CTRL_CMD_GPU_GET_INFO,
        "NV2080_CTRL_CMD_GPU_GET_INFO",
        PerRelease::all(16),
    ),
    (
        0x2080_0802,
        "NV2080_CTRL_CMD_BIOS_GET_INFO",
        PerRelease::all(16),
    ),
];

const fn counted(pointer_at: u16, at: u16, entry_bytes: u16) -> Nested {
    Nested {
        pointer_at,
        length: Length::Counted { at, entry_bytes },
    }
}

/// `{u32 count@0; u64 list@8}` of `{u32 index; u32 data}`.
const INFO_LIST: &[Nested] = &[counted(8, 0, 8)];
/// `{u32 count@0; u64 list@8}` of `u32`.
const U32_LIST: &[Nested] = &[counted(8, 0, 4)];
/// `{u32 bytes@0; u64 table@8}`.
const CAPS: &[Nested] = &[counted(8, 0, 1)];

/// `{…; u32 count@128; …; u64 table@160}`, and from 550 on another table behind it.
const P2P_CAPS: &[Nested] = &[
    Nested {
        pointer_at: 160,
        length: Length::Square { at: 128 },
    },
    Nested {
        pointer_at: 168,
        length: Length::Square { at: 128 },
    },
];

/// Where parameters hold pointers, in their order; a release whose parameters are shorter has those alone that are in them (rmapi/embedded_param_copy.c and rmapi_deprecated_control.c of 580.105.08).
const NESTED: &[(u32, &[Nested])] = &[
    // Three strings, each `sizeOfStrings` long.
    (
        0x101,
        &[counted(8, 0, 1), counted(16, 0, 1), counted(24, 0, 1)],
    ),
    (NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS, P2P_CAPS),
    // szName; the driver wants NULL or a buffer it never fills on Linux.
    (
        0x202,
        &[Nested {
            pointer_at: 16,
            length: Length::Fixed(0),
        }],
    ),
    (0x41_0110, INFO_LIST),
    (0x80_0201, U32_LIST),
    (NV2080_CTRL_CMD_GPU_GET_INFO, INFO_LIST),
    (0x2080_0123, U32_LIST),
    // pRunlistPreemptEvent: a kernel's.
    (
        NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
        &[Nested {
            pointer_at: 16,
            length: Length::Fixed(0),
        }],
    ),
    (0x80_1701, CAPS),
    // Handles, and the number of each; cuCtxCreate asks for it.
    (0x80_170d, &[counted(8, 0, 4), counted(16, 0, 4)]),
    (0x2080_0802, INFO_LIST),
    (0x2080_1201, INFO_LIST),
    (0x2080_1301, INFO_LIST),
    (0x2080_1802, INFO_LIST),
];

/// Controls with pointers whose blocks cgpu does not carry: refused rather than executed with a tenant's pointer in them.
const UNCARRIED: &[u32] = &[
    0x80_1102,
    0x80_1104,
    0x80_1301,
    0x80_1b01,
    0x2080_0122,
    0x83de_0315,
    0x83de_0316,
];

/// Where parameters hold the number of an open file, which the driver looks up in whoever makes the call (rmobjexportimport.c,
/// mem_multicast_fabric.c). Whether a tenant may make the control is another matter.
const DESCRIPTORS: &[(u32, usize)] = &[
    (
        NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD,
        export_object::FD,
    ),
    (
        NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD,
        import_object::FD,
    ),
    (
        NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO,
        export_info::FD,
    ),
    (
        NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD,
        export_objects::FD,
    ),
    (
        NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD,
        import_objects::FD,
    ),
    // NV00FD_CTRL_CMD_ATTACH_GPU: devDescriptor
    (0xfd_0104, 8),
];

/// The offset of the number of an open file in a control's parameters.
#[must_use]
pub fn descriptor(cmd: u32) -> Option<usize> {
    let found = DESCRIPTORS.iter().find(|(of, _)| *of == cmd);
    found.map(|(_, at)| *at)
}

/// Controls of a card's scheduler that are not a tenant's, and the status that the driver gives to one without the right:
/// `(command, name, status, parameter bytes)`. The ones marked NICE in the drivers' tables answer
/// INSUFFICIENT_PERMISSIONS to a caller without CAP_SYS_NICE, those of administrators to all but them; the rest has no right and is
/// answered as a control that the driver does not have. All but SET_INTERLEAVE_LEVEL are for looking at: nobody here makes them.
#[rustfmt::skip] // one control a line
pub const NOT_A_TENANTS: &[(u32, &str, u32, PerRelease)] = &[
    // Timeslices of single channels, and timeslicing switched off.
    (0x80_170f, "NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES", NV_ERR_NOT_SUPPORTED, PerRelease::all(16)),
    // All channels of a runlist, whosever they are.
    (0x80_1711, "NV0080_CTRL_CMD_FIFO_STOP_RUNLIST", NV_ERR_INSUFFICIENT_PERMISSIONS, PerRelease::all(4)),
    (0x80_1712, "NV0080_CTRL_CMD_FIFO_START_RUNLIST", NV_ERR_INSUFFICIENT_PERMISSIONS, PerRelease::all(4)),
    (0x2080_0194, "NV2080_CTRL_CMD_GPU_SET_COMPUTE_POLICY_CONFIG", NV_ERR_INSUFFICIENT_PERMISSIONS, PerRelease::all(8)),
    // The card's own software scheduler (vGPU).
    (0x2080_110e, "NV2080_CTRL_CMD_FIFO_OBJSCHED_SW_GET_LOG", NV_ERR_NOT_SUPPORTED, per!(0, R550 20824, R580 22424, R595 24024)),
    (0x2080_1115, "NV2080_CTRL_CMD_FIFO_RUNLIST_SET_SCHED_POLICY", NV_ERR_INSUFFICIENT_PERMISSIONS, PerRelease::all(8)),
    (0x2080_1120, "NV2080_CTRL_CMD_FIFO_OBJSCHED_GET_STATE", NV_ERR_NOT_SUPPORTED, per!(0, R550 20)),
    (0x2080_1121, "NV2080_CTRL_CMD_FIFO_OBJSCHED_SET_STATE", NV_ERR_NOT_SUPPORTED, per!(0, R550 24)),
    (0x2080_1122, "NV2080_CTRL_CMD_FIFO_OBJSCHED_GET_CAPS", NV_ERR_NOT_SUPPORTED, per!(0, R550 44)),
    // Names a preemption mode beside buffers of graphics: compute has SET_CTXSW_PREEMPTION_MODE, which is forced.
    (0x2080_1211, "NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND", NV_ERR_NOT_SUPPORTED, per!(104, R565 112)),
    (0xa06c_0107, "NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL", NV_ERR_INSUFFICIENT_PERMISSIONS, PerRelease::all(4)),
    (0xa06c_0110, "NVA06C_CTRL_CMD_MAKE_REALTIME", NV_ERR_INSUFFICIENT_PERMISSIONS, PerRelease::all(1)),
    (0xa06f_0111, "NVA06F_CTRL_CMD_RESTART_RUNLIST", NV_ERR_INSUFFICIENT_PERMISSIONS, PerRelease::all(2)),
    (0xa06f_0112, "NVA06F_CTRL_CMD_STOP_CHANNEL", NV_ERR_NOT_SUPPORTED, PerRelease::all(1)),
];

/// As [`row`], and the controls in [`NOT_A_TENANTS`]: what a driver knows, whoever asks.
#[must_use]
pub fn known(cmd: u32, release: Release) -> Option<Control> {
    row(cmd, release).or_else(|| {
        let (cmd, name, _, size) = NOT_A_TENANTS.iter().find(|(of, ..)| *of == cmd)?;
        let params_bytes = Some(size.of(release)).filter(|bytes| *bytes != 0)?;
        Some(Control {
            cmd: *cmd,
            name,
            params_bytes,
            nested: &[],
        })
    })
}

/// What a control without a [`row`] is answered with.
#[must_use]
pub fn refusal_of(cmd: u32) -> u32 {
    NOT_A_TENANTS
        .iter()
        .find(|(of, ..)| *of == cmd)
        .map_or(NV_ERR_NOT_SUPPORTED, |(_, _, status, _)| *status)
}

/// The control of a command; `None`: unknown, absent in the release, or with pointers that cgpu does not carry.
#[must_use]
pub fn row(cmd: u32, release: Release) -> Option<Control> {
    if UNCARRIED.contains(&cmd) {
        return None;
    }
    let nested = NESTED
        .iter()
        .find(|(of, _)| *of == cmd)
        .map_or(&[][..], |(_, nested)| *nested);
    let (name, size) = match flat::FLAT.binary_search_by_key(&cmd, |(of, _, _)| *of) {
        Ok(at) => flat::FLAT.get(at).map(|(_, name, sizes)| (*name, *sizes))?,
        Err(_absent) => CONVERTED
            .iter()
            .find(|(of, _, _)| *of == cmd)
            .map(|(_, name, size)| (*name, *size))?,
    };
    let params_bytes = match release.change_of(cmd) {
        Some(changed) => changed?,
        None => match size.of(release) {
            0 => return None,
            EMPTY => 0,
            bytes => bytes,
        },
    };
    let (nested, _later) = nested
        .split_at(nested.partition_point(|nested| u32::from(nested.pointer_at) < params_bytes));
    Some(Control {
        cmd,
        name,
        params_bytes,
        nested,
    })
}

/// Every control that some release admits: command and name.
pub fn rows() -> impl Iterator<Item = (u32, &'static str)> {
    let flat = flat::FLAT.iter().map(|(cmd, name, _)| (*cmd, *name));
    let converted = CONVERTED.iter().map(|(cmd, name, _)| (*cmd, *name));
    flat.chain(converted)
        .filter(|(cmd, _)| !UNCARRIED.contains(cmd))
}

macro_rules! commands {
    ($($konst:ident = $cmd:literal;)*) => { $(#[doc = concat!("`", stringify!($konst), "`")] pub const $konst: u32 = $cmd;)* };
}

/// Controls that any user may make and that act on the whole card, and so on every tenant of it: reservations of its compute mode,
/// its clocks, the frequency of its engine's timer, its watchdog. Their counterparts, which take back what was asked for, are among them.
pub const CARD_WIDE: [u32; 7] = [
    NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL,
    NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION,
    NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION,
    NV2080_CTRL_CMD_TIMER_SET_GR_TICK_FREQ,
    NV2080_CTRL_CMD_PERF_BOOST,
    NV2080_CTRL_CMD_RC_RELEASE_WATCHDOG_REQUESTS,
    NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG,
];

commands! {
    NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL = 0x80_1909;
    NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION = 0x2080_0145;
    NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION = 0x2080_0146;
    NV2080_CTRL_CMD_TIMER_SET_GR_TICK_FREQ = 0x2080_0407;
    NV2080_CTRL_CMD_RC_RELEASE_WATCHDOG_REQUESTS = 0x2080_220c;
    NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG = 0x2080_2210;
    NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS = 0x127;
    NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2 = 0x12b;
    NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX = 0x13a;
    NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2 = 0x13e;
    NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS = 0x201;
    NV0000_CTRL_CMD_GPU_GET_ID_INFO = 0x202;
    NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 = 0x205;
    NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS = 0x204;
    NV0000_CTRL_CMD_GPU_GET_PROBED_IDS = 0x214;
    NV0000_CTRL_CMD_GPU_ATTACH_IDS = 0x215;
    NV0000_CTRL_CMD_GPU_DETACH_IDS = 0x216;
    NV0000_CTRL_CMD_GPU_GET_PCI_INFO = 0x21b;
    NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID = 0x275;
    NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE = 0x279;
    NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS = 0x288;
    NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID = 0x289;
    NV0000_CTRL_CMD_GPU_WAIT_ATTACH_ID = 0x290;
    NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO = 0xa04;
    NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY = 0xd04;
    NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD = 0x3d05;
    NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD = 0x3d06;
    NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO = 0x3d08;
    NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD = 0x3d0b;
    NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD = 0x3d0c;
    NV0080_CTRL_CMD_GPU_GET_CLASSLIST = 0x80_0201;
    NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2 = 0x80_0292;
    NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES = 0x80_0280;
    NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST = 0x80_170d;
    NV2080_CTRL_CMD_GPU_GET_INFO = 0x2080_0101;
    NV2080_CTRL_CMD_GPU_GET_INFO_V2 = 0x2080_0102;
    NV2080_CTRL_CMD_GPU_GET_NAME_STRING = 0x2080_0110;
    NV2080_CTRL_CMD_GPU_GET_GID_INFO = 0x2080_014a;
    NV2080_CTRL_CMD_GPU_GET_PIDS = 0x2080_018d;
    NV2080_CTRL_CMD_GPU_GET_PID_INFO = 0x2080_018e;
    NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO = 0x2080_01a3;
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS = 0x2080_110b;
    NV2080_CTRL_CMD_GR_GET_INFO = 0x2080_1201;
    NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE = 0x2080_1210;
    NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE = 0x2080_1218;
    NV2080_CTRL_CMD_FB_GET_INFO = 0x2080_1301;
    NV2080_CTRL_CMD_FB_GET_INFO_V2 = 0x2080_1303;
    NV2080_CTRL_CMD_FB_FLUSH_GPU_CACHE = 0x2080_130e;
    NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO = 0x2080_1320;
    NV2080_CTRL_CMD_MC_GET_ARCH_INFO = 0x2080_1701;
    NV2080_CTRL_CMD_BUS_GET_PCI_INFO = 0x2080_1801;
    NV2080_CTRL_CMD_BUS_GET_INFO = 0x2080_1802;
    NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS = 0x2080_182a;
    NV2080_CTRL_CMD_PERF_BOOST = 0x2080_200a;
    NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 = 0x2080_2096;
    NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS = 0x2080_3002;
    NVA06C_CTRL_CMD_GPFIFO_SCHEDULE = 0xa06c_0101;
    NVA06C_CTRL_CMD_SET_TIMESLICE = 0xa06c_0103;
    NVA06C_CTRL_CMD_GET_TIMESLICE = 0xa06c_0104;
    NVA06C_CTRL_CMD_PREEMPT = 0xa06c_0105;
    NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL = 0xa06c_0107;
    NVA06F_CTRL_CMD_GPFIFO_SCHEDULE = 0xa06f_0103;
    NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN = 0xc36f_0108;
}

/// Indices of the FB information list (`ctrl2080fb.h`); the values are KiB where nothing else is said.
pub mod fb_info {
    /// BAR1, all of it.
    pub const BAR1_SIZE: u32 = 0x05;
    /// Whole framebuffer.
    pub const RAM_SIZE: u32 = 0x07;
    /// Whole framebuffer, with what is hidden.
    pub const TOTAL_RAM_SIZE: u32 = 0x08;
    /// Heap.
    pub const HEAP_SIZE: u32 = 0x09;
    /// Heap that the CPU can map.
    pub const MAPPABLE_HEAP_SIZE: u32 = 0x0a;
    /// What an older card loses to its own tables.
    pub const FB_TAX_SIZE_KB: u32 = 0x10;
    /// Largest free block.
    pub const LARGEST_FREE_REGION_SIZE_KB: u32 = 0x12;
    /// Where the largest free block begins.
    pub const LARGEST_FREE_REGION_BASE_KB: u32 = 0x13;
    /// Heap that RM keeps for itself and for UVM.
    pub const VISTA_RESERVED_HEAP_SIZE: u32 = 0x15;
    /// Free heap.
    pub const HEAP_FREE: u32 = 0x16;
    /// What nobody has mapped of BAR1.
    pub const BAR1_AVAIL_SIZE: u32 = 0x1d;
    /// Its largest piece.
    pub const BAR1_MAX_CONTIGUOUS_AVAIL_SIZE: u32 = 0x1f;
    /// Framebuffer less carve-outs.
    pub const USABLE_RAM_SIZE: u32 = 0x20;
    /// What the display keeps of BAR1, MiB.
    pub const SMOOTHDISP_RSVD_BAR1_SIZE: u32 = 0x26;
    /// Pages that were taken out of use while the driver ran.
    pub const HEAP_OFFLINE_SIZE: u32 = 0x27;
    /// What is kept for suspending the machine, bytes.
    pub const SUSPEND_RESUME_RSVD_SIZE: u32 = 0x29;
    /// Confidential computing: protected memory.
    pub const PROTECTED_MEM_SIZE_TOTAL_KB: u32 = 0x33;
    /// Confidential computing: free protected memory.
    pub const PROTECTED_MEM_SIZE_FREE_KB: u32 = 0x34;
}

/// Indices of the GPU information list (`ctrl2080gpu.h`); the capabilities are 1 or 0.
pub mod gpu_info {
    /// The part of an entry's index that says what is asked for (`NV2080_CTRL_GPU_INFO_INDEX_INDEX`); above it is a group's number.
    pub const INDEX_MASK: u32 = 0x00ff_ffff;
    /// Memory has addresses on the fabric.
    pub const GPU_FLA_CAPABILITY: u32 = 0x2d;
    /// EXPORT_TO_DMABUF_FD works.
    pub const DMABUF_CAPABILITY: u32 = 0x3d;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_table_ascends() {
        assert!(
            flat::FLAT
                .windows(2)
                .all(|pair| matches!(pair, [(a, ..), (b, ..)] if a < b))
        );
    }

    #[test]
    fn sizes_follow_the_release() {
        let size = |release| {
            row(NV2080_CTRL_CMD_FB_GET_INFO_V2, release).map(|control| control.params_bytes)
        };
        let sizes = [436, 444, 444, 444, 460, 460, 460, 460, 1028, 1028, 1028];
        assert_eq!(Release::ALL.map(size), sizes.map(Some));
    }

    #[test]
    fn peers_have_a_table_for_all_pairs_and_since_550_another() {
        let row = |release| row(NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS, release).unwrap();
        let tables = Release::ALL.map(|release| row(release).nested.len());
        assert_eq!(tables, [1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
        let mut params = [0; 176];
        let length = row(Release::R570).nested[1].length;
        params[128] = 3;
        assert_eq!(length.bytes(&params), Some(36));
        params[128..132].fill(0xff);
        assert_eq!(length.bytes(&params), Some(usize::MAX));
        assert_eq!(length.bytes(&params[..130]), None);
    }

    #[test]
    fn what_is_not_a_tenants_has_no_row_of_a_tenants() {
        for release in Release::ALL {
            for (cmd, name, ..) in NOT_A_TENANTS {
                assert_eq!(row(*cmd, release), None, "{name}");
                assert_ne!(refusal_of(*cmd), 0, "{name}");
            }
            assert!(known(NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL, release).is_some());
        }
        assert_eq!(known(0x2080_1121, Release::R535), None);
    }

    #[test]
    fn a_control_with_pointers_that_are_not_carried_has_no_row() {
        assert_eq!(row(0x80_1102, Release::R570), None);
    }
}
