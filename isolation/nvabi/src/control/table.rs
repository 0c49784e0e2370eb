//! The controls that cgpu knows, one row each.
//!
//! Sources: command numbers and parameter sizes, `NVxxxx_CTRL_..._PARAMS` of open-gpu-kernel-modules at the versions of
//! [`Release::headers`](crate::Release::headers); the selection follows the compute, utility, graphics and video rows of gVisor's nvproxy. Size 0: the
//! release does not have the control (a control without parameters is marked [`EMPTY`]). Pointers: rmapi/embedded_param_copy.c and
//! rmapi_deprecated_control.c. Descriptors: rmobjexportimport.c, mem_multicast_fabric.c. Where the headers list a control and the
//! driver's deprecated converter answers it (0x101, GPU_GET_INFO, BIOS_GET_INFO), the size is that of the converter.

use super::{Answer, Decision, EMPTY, Length, Nested, Spec, counted};
use crate::call::optional;
use crate::capability::Needs;
use crate::layout::{
    export_file, export_info, export_object, export_objects, import_object, import_objects,
};
use crate::per;
use crate::status::{NV_ERR_INSUFFICIENT_PERMISSIONS, NV_ERR_NOT_SUPPORTED};

/// `{u32 count@0; u64 list@8}` of `{u32 index; u32 data}`.
const INFO_LIST: &[Nested] = &[counted(8, 0, 8)];
/// `{u32 count@0; u64 list@8}` of `u32`.
const U32_LIST: &[Nested] = &[counted(8, 0, 4)];
/// `{u32 count@0; u64 table@8}` of bytes: what an engine can do.
const CAPS: &[Nested] = &[counted(8, 0, 1)];
/// Three strings, each `sizeOfStrings` long.
const BUILD_VERSION: &[Nested] = &[counted(8, 0, 1), counted(16, 0, 1), counted(24, 0, 1)];
/// Handles, and the number of each; cuCtxCreate asks for it.
const CHANNEL_LISTS: &[Nested] = &[counted(8, 0, 4), counted(16, 0, 4)];
/// `szName`; the driver wants NULL or a buffer that it never fills on Linux. `pRunlistPreemptEvent`: a kernel's own.
const NOTHING_AT_16: &[Nested] = &[Nested {
    pointer_at: 16,
    length: Length::Fixed(0),
}];

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

macro_rules! controls {
    ($($cmd:literal $konst:ident, [$($size:tt)+], $decision:ident $(($status:ident))? $(, for $needs:ident)?
        $(, pointers $nested:ident)? $(, descriptor $descriptor:expr)? $(, answer $answer:ident)?;)*) => {
        $(#[doc = concat!("`", stringify!($konst), "`")] pub const $konst: u32 = $cmd;)*
        /// A control with a row of its own. Who answers each of them by itself is a `match` on it, without a default.
        #[expect(non_camel_case_types, reason = "the driver's own spelling")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Id {
            $(#[doc = concat!("`", stringify!($konst), "`")] $konst,)*
        }
        /// Every control that cgpu knows, ordered by command.
        pub const ALL: &[Spec] = &[$(Spec {
            id: Id::$konst,
            cmd: $cmd,
            name: stringify!($konst),
            size: per!($($size)+),
            decision: Decision::$decision $(($status))?,
            needs: controls!(@needs $($needs)?),
            nested: controls!(@nested $($nested)?),
            descriptor: optional!($($descriptor)?),
            answer: controls!(@answer $($answer)?),
        }),*];
    };
    (@answer) => { Answer::Fresh };
    (@answer $answer:ident) => { Answer::$answer };
    (@needs) => { Needs::Nothing };
    (@needs $needs:ident) => { Needs::$needs };
    (@nested) => { &[] };
    (@nested $nested:ident) => { $nested };
}

controls! {
    0x0000_0101 NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION, [40], Passed, pointers BUILD_VERSION, answer Kept;
    0x0000_0102 NV0000_CTRL_CMD_SYSTEM_GET_CPU_INFO, [104, R565 108], Passed;
    0x0000_0127 NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS, [168, R550 176], NamesCards, pointers P2P_CAPS;
    0x0000_012b NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2, [4252, R550 8348], NamesCards;
    0x0000_0136 NV0000_CTRL_CMD_SYSTEM_GET_FABRIC_STATUS, [4], Passed;
    0x0000_013a NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX, [1352], NamesCards;
    0x0000_013e NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2, [776, R560 1032], Passed, answer Kept;
    0x0000_01f0 NV0000_CTRL_CMD_SYSTEM_GET_FEATURES, [4], Passed;
    0x0000_0201 NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, [128], GpuIds;
    0x0000_0202 NV0000_CTRL_CMD_GPU_GET_ID_INFO, [40], IdInfo, pointers NOTHING_AT_16;
    0x0000_0204 NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS, [4], DeviceMask;
    0x0000_0205 NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, [32], IdInfo;
    0x0000_0214 NV0000_CTRL_CMD_GPU_GET_PROBED_IDS, [256, R580 384], GpuIds;
    0x0000_0215 NV0000_CTRL_CMD_GPU_ATTACH_IDS, [132], NamesCards;
    0x0000_0216 NV0000_CTRL_CMD_GPU_DETACH_IDS, [128], NamesCards;
    0x0000_021b NV0000_CTRL_CMD_GPU_GET_PCI_INFO, [12], NamesCards;
    0x0000_0275 NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID, [268], NamesCards;
    0x0000_0279 NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE, [12], NamesCards;
    0x0000_027b NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE, [4], Passed, answer Kept;
    0x0000_0288 NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS, [0, R545 3076], ActiveDevices;
    0x0000_0289 NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID, [0, R550 4], NamesCards;
    0x0000_0290 NV0000_CTRL_CMD_GPU_WAIT_ATTACH_ID, [0, R550 4], NamesCards;
    0x0000_0301 NV0000_CTRL_CMD_GSYNC_GET_ATTACHED_IDS, [16], NoSyncBoards, for Graphics;
    0x0000_0901 NV0000_CTRL_CMD_SET_SUB_PROCESS_ID, [104], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x0000_0a04 NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO, [2244], BoostGroups;
    0x0000_0b02 NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_STATE, [12], NamesCards, for Graphics;
    0x0000_0d01 NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE, [12], Passed;
    0x0000_0d04 NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY, [12], SharePolicy;
    0x0000_3d05 NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, [24], ExportObject, descriptor export_object::FD;
    0x0000_3d06 NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, [20], ImportObject, descriptor import_object::FD;
    0x0000_3d08 NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO, [76, R545 80], ExportInfo, descriptor export_info::FD;
    0x0000_3d0a NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD, [76], NotATenants(NV_ERR_NOT_SUPPORTED), descriptor export_file::FD;
    0x0000_3d0b NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, [2128], ExportObjects, descriptor export_objects::FD;
    0x0000_3d0c NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, [652], ImportObjects, descriptor import_objects::FD;
    0x0041_0110 NV0041_CTRL_CMD_GET_SURFACE_INFO, [16], Passed, pointers INFO_LIST;
    0x0080_0201 NV0080_CTRL_CMD_GPU_GET_CLASSLIST, [16], ClassList, pointers U32_LIST;
    0x0080_0280 NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES, [4], Passed, answer Kept;
    0x0080_0288 NV0080_CTRL_CMD_GPU_QUERY_SW_STATE_PERSISTENCE, [4], Passed;
    0x0080_0289 NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE, [4, R555 8], Passed;
    0x0080_028c NV0080_CTRL_CMD_GPU_GET_SPARSE_TEXTURE_COMPUTE_MODE, [12], Passed;
    0x0080_0292 NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2, [644, R550 700, R555 404, R580 804], ClassListV2;
    0x0080_1102 NV0080_CTRL_CMD_GR_GET_CAPS, [16], Passed, for Graphics, pointers CAPS;
    0x0080_1104 NV0080_CTRL_CMD_GR_GET_INFO, [16], Passed, for Graphics, pointers INFO_LIST;
    0x0080_1108 NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE, [32], Passed;
    0x0080_1109 NV0080_CTRL_CMD_GR_GET_CAPS_V2, [48], Passed, for GraphicsOrVideo;
    0x0080_1301 NV0080_CTRL_CMD_FB_GET_CAPS, [16], Passed, for Graphics, pointers CAPS;
    0x0080_1307 NV0080_CTRL_CMD_FB_GET_CAPS_V2, [3], Passed, answer Kept;
    0x0080_1402 NV0080_CTRL_CMD_HOST_GET_CAPS_V2, [3], Passed, answer Kept;
    0x0080_1701 NV0080_CTRL_CMD_FIFO_GET_CAPS, [16], Passed, for Graphics, pointers CAPS;
    0x0080_1707 NV0080_CTRL_CMD_FIFO_GET_ENGINE_CONTEXT_PROPERTIES, [12], Passed, for Graphics;
    0x0080_170d NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST, [24], Passed, pointers CHANNEL_LISTS;
    0x0080_170f NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES, [16], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x0080_1711 NV0080_CTRL_CMD_FIFO_STOP_RUNLIST, [4], NotATenants(NV_ERR_INSUFFICIENT_PERMISSIONS);
    0x0080_1712 NV0080_CTRL_CMD_FIFO_START_RUNLIST, [4], NotATenants(NV_ERR_INSUFFICIENT_PERMISSIONS);
    0x0080_1713 NV0080_CTRL_CMD_FIFO_GET_CAPS_V2, [2], Passed, for Video;
    0x0080_1806 NV0080_CTRL_CMD_DMA_ADV_SCHED_GET_VA_CAPS, [192], Passed;
    0x0080_180d NV0080_CTRL_CMD_DMA_GET_CAPS, [12], Passed;
    0x0080_1909 NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL, [0, R550 1], CardWide;
    0x0080_1b01 NV0080_CTRL_CMD_MSENC_GET_CAPS, [16, R550 0], Passed, for GraphicsOrVideo, pointers CAPS;
    0x0080_1c02 NV0080_CTRL_CMD_BSP_GET_CAPS_V2, [12], Passed, for GraphicsOrVideo;
    0x0080_1f02 NV0080_CTRL_CMD_NVJPG_GET_CAPS_V2, [16], Passed, for Video;
    0x00de_0001 NV00DE_CTRL_CMD_REQUEST_DATA_POLL, [0, R545 8], CardWide;
    0x00fd_0104 NV00FD_CTRL_CMD_ATTACH_GPU, [16], NotATenants(NV_ERR_NOT_SUPPORTED), descriptor 8;
    0x2080_0101 NV2080_CTRL_CMD_GPU_GET_INFO, [16], GpuInfo, pointers INFO_LIST, answer Kept;
    0x2080_0102 NV2080_CTRL_CMD_GPU_GET_INFO_V2, [516, R545 524, R575 532, R580 564], GpuInfoV2, answer Kept;
    0x2080_0110 NV2080_CTRL_CMD_GPU_GET_NAME_STRING, [132, R595 68], Passed, answer Kept;
    0x2080_0111 NV2080_CTRL_CMD_GPU_GET_SHORT_NAME_STRING, [64], Passed, answer Kept;
    0x2080_0119 NV2080_CTRL_CMD_GPU_GET_SIMULATION_INFO, [4], Passed, answer Kept;
    0x2080_0122 NV2080_CTRL_CMD_GPU_EXEC_REG_OPS, [48], Uncarried;
    0x2080_0123 NV2080_CTRL_CMD_GPU_GET_ENGINES, [16], Engines, pointers U32_LIST;
    0x2080_012f NV2080_CTRL_CMD_GPU_QUERY_ECC_STATUS, [984, R545 1024, R555 1224, R560 1264, R565 1464, R590 1664], Passed;
    0x2080_0131 NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES, [4], Passed;
    0x2080_0133 NV2080_CTRL_CMD_GPU_QUERY_ECC_CONFIGURATION, [8], Passed;
    0x2080_013f NV2080_CTRL_CMD_GPU_GET_OEM_BOARD_INFO, [136], NamesCards, answer Kept;
    0x2080_0142 NV2080_CTRL_CMD_GPU_GET_ID, [4], NamesCards;
    0x2080_0145 NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION, [EMPTY], CardWide;
    0x2080_0146 NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION, [EMPTY], CardWide;
    0x2080_0147 NV2080_CTRL_CMD_GPU_GET_ENGINE_PARTNERLIST, [144], Partners, for Graphics;
    0x2080_014a NV2080_CTRL_CMD_GPU_GET_GID_INFO, [268], NamesCards;
    0x2080_014b NV2080_CTRL_CMD_GPU_GET_INFOROM_OBJECT_VERSION, [5], Passed;
    0x2080_0156 NV2080_CTRL_CMD_GPU_GET_INFOROM_IMAGE_VERSION, [16], Passed, answer Kept;
    0x2080_0157 NV2080_CTRL_CMD_GPU_QUERY_INFOROM_ECC_SUPPORT, [EMPTY], Passed;
    0x2080_016c NV2080_CTRL_CMD_GPU_GET_ENCODER_CAPACITY, [8], Passed, for Video;
    0x2080_016d NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_STATS, [12], NoSessions, for Graphics;
    0x2080_0170 NV2080_CTRL_CMD_GPU_GET_ENGINES_V2, [252, R545 256, R550 260, R560 340], EnginesV2;
    0x2080_017b NV2080_CTRL_GPU_GET_NVFBC_SW_SESSION_STATS, [12], NoSessions, for Graphics;
    0x2080_018b NV2080_CTRL_CMD_GPU_GET_ACTIVE_PARTITION_IDS, [40], Passed;
    0x2080_018d NV2080_CTRL_CMD_GPU_GET_PIDS, [3812], Pids;
    0x2080_018e NV2080_CTRL_CMD_GPU_GET_PID_INFO, [14408], PidInfo;
    0x2080_0194 NV2080_CTRL_CMD_GPU_SET_COMPUTE_POLICY_CONFIG, [8], NotATenants(NV_ERR_INSUFFICIENT_PERMISSIONS);
    0x2080_0195 NV2080_CTRL_CMD_GPU_GET_COMPUTE_POLICY_CONFIG, [260], Passed;
    0x2080_019f NV2080_CTRL_CMD_GPU_GET_SKYLINE_INFO, [0, R580 220, R590 400], Passed;
    0x2080_01a3 NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO, [40, R545 48, R580 56], FabricProbe;
    0x2080_01a4 NV2080_CTRL_CMD_GPU_GET_CHIP_DETAILS, [16], NamesCards, for Graphics, answer Kept;
    0x2080_01b2 NV2080_CTRL_CMD_GPU_GET_RECOVERY_ACTION, [0, R565 4], Passed, for Graphics;
    0x2080_0301 NV2080_CTRL_CMD_EVENT_SET_NOTIFICATION, [20], Passed;
    0x2080_0403 NV2080_CTRL_CMD_TIMER_GET_TIME, [8], Passed;
    0x2080_0406 NV2080_CTRL_CMD_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO, [264], Passed;
    0x2080_0407 NV2080_CTRL_CMD_TIMER_SET_GR_TICK_FREQ, [1], CardWide;
    0x2080_0513 NV2080_CTRL_CMD_THERMAL_SYSTEM_EXECUTE_V2, [0, R575 1432], Passed;
    0x2080_0802 NV2080_CTRL_CMD_BIOS_GET_INFO, [16], Passed, pointers INFO_LIST, answer Kept;
    0x2080_110b NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, [536], DisableChannels, pointers NOTHING_AT_16;
    0x2080_110e NV2080_CTRL_CMD_FIFO_OBJSCHED_SW_GET_LOG, [0, R550 20824, R580 22424, R595 24024], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x2080_1115 NV2080_CTRL_CMD_FIFO_RUNLIST_SET_SCHED_POLICY, [8], NotATenants(NV_ERR_INSUFFICIENT_PERMISSIONS);
    0x2080_1120 NV2080_CTRL_CMD_FIFO_OBJSCHED_GET_STATE, [0, R550 20], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x2080_1121 NV2080_CTRL_CMD_FIFO_OBJSCHED_SET_STATE, [0, R550 24], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x2080_1122 NV2080_CTRL_CMD_FIFO_OBJSCHED_GET_CAPS, [0, R550 44], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x2080_1201 NV2080_CTRL_CMD_GR_GET_INFO, [32], Passed, pointers INFO_LIST;
    0x2080_1206 NV2080_CTRL_CMD_GR_GET_ZCULL_INFO, [40], Passed, for Graphics;
    0x2080_1208 NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND, [24], ZcullBind, for Graphics;
    0x2080_1210 NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE, [32], PreemptionMode;
    0x2080_1211 NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND, [104, R565 112], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x2080_1218 NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE, [16], ContextBytes;
    0x2080_121b NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER, [6168, R575 7192, R580 9240], Passed;
    0x2080_1227 NV2080_CTRL_CMD_GR_GET_CAPS_V2, [48], Passed;
    0x2080_122a NV2080_CTRL_CMD_GR_GET_GPC_MASK, [24], Passed;
    0x2080_122b NV2080_CTRL_CMD_GR_GET_TPC_MASK, [24], Passed;
    0x2080_1230 NV2080_CTRL_CMD_GR_GET_SM_ISSUE_RATE_MODIFIER, [32], Passed;
    0x2080_123c NV2080_CTRL_CMD_GR_GET_SM_ISSUE_RATE_MODIFIER_V2, [0, R575 2044], Passed;
    0x2080_1301 NV2080_CTRL_CMD_FB_GET_INFO, [16], FbInfo, pointers INFO_LIST;
    0x2080_1303 NV2080_CTRL_CMD_FB_GET_INFO_V2, [436, R545 444, R560 460, R580 1028], FbInfoV2;
    0x2080_1315 NV2080_CTRL_CMD_FB_GET_GPU_CACHE_INFO, [16], Passed, for Graphics;
    0x2080_1320 NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO, [776, R580 904], FbRegions, for Graphics;
    0x2080_1355 NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_PENDING_CONFIGURATION, [0, R570 4], Passed, for Graphics;
    0x2080_1357 NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT_V575, [0, R570 4], Passed;
    0x2080_1358 NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS_V575, [0, R570 4], Passed;
    0x2080_1359 NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS, [0, R570 4, R575 0], Passed;
    0x2080_1701 NV2080_CTRL_CMD_MC_GET_ARCH_INFO, [16], Passed, answer Kept;
    0x2080_1702 NV2080_CTRL_CMD_MC_SERVICE_INTERRUPTS, [4], Passed;
    0x2080_1801 NV2080_CTRL_CMD_BUS_GET_PCI_INFO, [16], NamesCards, answer Kept;
    0x2080_1802 NV2080_CTRL_CMD_BUS_GET_INFO, [16], NamesCards, pointers INFO_LIST;
    0x2080_1803 NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO, [200], Passed, answer Kept;
    0x2080_1823 NV2080_CTRL_CMD_BUS_GET_INFO_V2, [420], NamesCards, answer Kept;
    0x2080_1829 NV2080_CTRL_CMD_BUS_GET_PCIE_REQ_ATOMICS_CAPS, [4, R560 12], NamesCards, for Graphics, answer Kept;
    0x2080_182a NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS, [104, R560 112], NamesCards, answer Kept;
    0x2080_182b NV2080_CTRL_CMD_BUS_GET_C2C_INFO, [28], Passed;
    0x2080_1830 NV2080_CTRL_CMD_BUS_GET_PCIE_CPL_ATOMICS_CAPS, [0, R560 4], Passed, for Graphics, answer Kept;
    0x2080_200a NV2080_CTRL_CMD_PERF_BOOST, [8], CardWide;
    0x2080_2068 NV2080_CTRL_CMD_PERF_GET_CURRENT_PSTATE, [0, R550 4], Passed;
    0x2080_2096 NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2, [34000, R550 50704, R570 55888], UtilSamples;
    0x2080_2209 NV2080_CTRL_CMD_RC_GET_WATCHDOG_INFO, [4], Passed;
    0x2080_220c NV2080_CTRL_CMD_RC_RELEASE_WATCHDOG_REQUESTS, [EMPTY], CardWide;
    0x2080_2210 NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG, [EMPTY], CardWide;
    0x2080_2a02 NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK, [8], Passed, for Graphics, answer Kept;
    0x2080_2a03 NV2080_CTRL_CMD_CE_GET_CAPS_V2, [8], Passed;
    0x2080_2a0a NV2080_CTRL_CMD_CE_GET_ALL_CAPS, [68, R545 136], Passed;
    0x2080_3001 NV2080_CTRL_CMD_NVLINK_GET_NVLINK_CAPS, [16, R570 32, R580 48], Passed;
    0x2080_3002 NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS, [5896, R555 6152, R570 13320, R580 13344, R590 13864], NvLinks;
    0x2080_3125 NV2080_CTRL_CMD_FLCN_GET_CTX_BUFFER_SIZE, [16], Passed;
    0x2080_3404 NV2080_CTRL_CMD_ECC_GET_REPAIR_STATUS, [0, R580 2], Passed, for Graphics;
    0x2080_3601 NV2080_CTRL_CMD_GSP_GET_FEATURES, [72], Passed, answer Kept;
    0x2080_3801 NV2080_CTRL_CMD_GRMGR_GET_GR_FS_INFO, [1928], Passed;
    0x2080_3d07 NV2080_CTRL_CMD_OS_UNIX_VIDMEM_PERSISTENCE_STATUS, [1], Passed, for Graphics;
    0x208f_1105 NV208F_CTRL_CMD_GPU_VERIFY_INFOROM, [8], Passed;
    0x503c_0102 NV503C_CTRL_CMD_REGISTER_VA_SPACE, [16], Passed;
    0x503c_0104 NV503C_CTRL_CMD_REGISTER_VIDMEM, [32], Passed;
    0x503c_0105 NV503C_CTRL_CMD_UNREGISTER_VIDMEM, [4], Passed;
    0x83de_0307 NV83DE_CTRL_CMD_DEBUG_SET_MODE_MMU_DEBUG, [4], CardWide;
    0x83de_0309 NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK, [4], Passed;
    0x83de_030c NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES, [4824], Passed;
    0x83de_0310 NV83DE_CTRL_CMD_DEBUG_CLEAR_ALL_SM_ERROR_STATES, [8], Passed;
    0x83de_0315 NV83DE_CTRL_CMD_DEBUG_READ_MEMORY, [24], Uncarried;
    0x83de_0316 NV83DE_CTRL_CMD_DEBUG_WRITE_MEMORY, [24], Uncarried;
    0x83de_0317 NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT, [8], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x83de_0318 NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT, [EMPTY], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x83de_031f NV83DE_CTRL_CMD_DEBUG_SET_MODE_ERRBAR_DEBUG, [4], CardWide;
    0x83de_0328 NV83DE_CTRL_CMD_DEBUG_READ_MMU_FAULT_INFO, [72], Passed;
    0x906f_0101 NV906F_CTRL_GET_CLASS_ENGINEID, [16], Passed;
    0x906f_0102 NV906F_CTRL_CMD_RESET_CHANNEL, [12, R550 16], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x9096_0101 NV9096_CTRL_CMD_SET_ZBC_COLOR_CLEAR, [40], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x9096_0106 NV9096_CTRL_CMD_GET_ZBC_CLEAR_TABLE_SIZE, [12], Passed, for Graphics;
    0x9096_0107 NV9096_CTRL_CMD_GET_ZBC_CLEAR_TABLE_ENTRY, [56], NotATenants(NV_ERR_NOT_SUPPORTED);
    0x90e6_0102 NV90E6_CTRL_CMD_MASTER_GET_VIRTUAL_FUNCTION_ERROR_CONT_INTR_MASK, [8], Passed;
    0xa06c_0101 NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, [2, R575 3], Runlist;
    0xa06c_0103 NVA06C_CTRL_CMD_SET_TIMESLICE, [8], SetTimeslice;
    0xa06c_0104 NVA06C_CTRL_CMD_GET_TIMESLICE, [8], GetTimeslice;
    0xa06c_0105 NVA06C_CTRL_CMD_PREEMPT, [8], Preempt;
    0xa06c_0107 NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL, [4], NotATenants(NV_ERR_INSUFFICIENT_PERMISSIONS);
    0xa06c_0110 NVA06C_CTRL_CMD_MAKE_REALTIME, [1], NotATenants(NV_ERR_INSUFFICIENT_PERMISSIONS);
    0xa06f_0103 NVA06F_CTRL_CMD_GPFIFO_SCHEDULE, [2, R575 3], Runlist;
    0xa06f_0104 NVA06F_CTRL_CMD_BIND, [4], BindEngine, for GraphicsOrVideo;
    0xa06f_0111 NVA06F_CTRL_CMD_RESTART_RUNLIST, [2], NotATenants(NV_ERR_INSUFFICIENT_PERMISSIONS);
    0xa06f_0112 NVA06F_CTRL_CMD_STOP_CHANNEL, [1], NotATenants(NV_ERR_NOT_SUPPORTED);
    0xc36f_0101 NVC36F_CTRL_GET_CLASS_ENGINEID, [16, R555 0], Passed;
    0xc36f_0108 NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, [4], Passed;
    0xc36f_010a NVC36F_CTRL_CMD_GPFIFO_SET_WORK_SUBMIT_TOKEN_NOTIF_INDEX, [4], Passed, for GraphicsOrVideo;
    0xc56f_010b NVC56F_CTRL_CMD_GET_KMB, [124, R550 128, R575 144], Passed;
    0xcb33_0101 NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES, [5, R550 6], Passed;
    0xcb33_0104 NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_GPUS_STATE, [1], Passed;
    0xcb33_010b NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_NUM_SECURE_CHANNELS, [12], Passed;
    0xcb33_010c NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_KEY_ROTATION_STATE, [0, R550 8, R555 0, R560 8], Passed;
}
