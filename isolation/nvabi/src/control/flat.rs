//! Parameter sizes of the controls that compute and utility clients use.
//!
//! Sources: command numbers and parameter sizes, `NVxxxx_CTRL_..._PARAMS` of open-gpu-kernel-modules 535.261.03, 550.163.01,
//! 570.195.03 and 580.105.08; the selection follows the compute and utility rows of gVisor's nvproxy. Size 0: the release
//! does not have the control (a control without parameters is marked [`EMPTY`]).

use super::EMPTY;

/// `(command, name, [size in R535, R550, R570, R580])`, ordered by command.
pub(super) const FLAT: &[(u32, &str, [u32; 4])] = &[
    (
        0x00000102,
        "NV0000_CTRL_CMD_SYSTEM_GET_CPU_INFO",
        [104, 104, 108, 108],
    ),
    (
        0x00000127,
        "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS",
        [168, 176, 176, 176],
    ),
    (
        0x0000012b,
        "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2",
        [4252, 8348, 8348, 8348],
    ),
    (
        0x00000136,
        "NV0000_CTRL_CMD_SYSTEM_GET_FABRIC_STATUS",
        [4, 4, 4, 4],
    ),
    (
        0x0000013a,
        "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX",
        [1352, 1352, 1352, 1352],
    ),
    (
        0x0000013e,
        "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2",
        [776, 776, 1032, 1032],
    ),
    (
        0x000001f0,
        "NV0000_CTRL_CMD_SYSTEM_GET_FEATURES",
        [4, 4, 4, 4],
    ),
    (
        0x00000201,
        "NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS",
        [128, 128, 128, 128],
    ),
    (
        0x00000202,
        "NV0000_CTRL_CMD_GPU_GET_ID_INFO",
        [40, 40, 40, 40],
    ),
    (
        0x00000204,
        "NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS",
        [4, 4, 4, 4],
    ),
    (
        0x00000205,
        "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2",
        [32, 32, 32, 32],
    ),
    (
        0x00000214,
        "NV0000_CTRL_CMD_GPU_GET_PROBED_IDS",
        [256, 256, 256, 384],
    ),
    (
        0x00000215,
        "NV0000_CTRL_CMD_GPU_ATTACH_IDS",
        [132, 132, 132, 132],
    ),
    (
        0x00000216,
        "NV0000_CTRL_CMD_GPU_DETACH_IDS",
        [128, 128, 128, 128],
    ),
    (
        0x0000021b,
        "NV0000_CTRL_CMD_GPU_GET_PCI_INFO",
        [12, 12, 12, 12],
    ),
    (
        0x00000275,
        "NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID",
        [268, 268, 268, 268],
    ),
    (
        0x00000279,
        "NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE",
        [12, 12, 12, 12],
    ),
    (
        0x0000027b,
        "NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE",
        [4, 4, 4, 4],
    ),
    (
        0x00000288,
        "NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS",
        [0, 3076, 3076, 3076],
    ),
    (
        0x00000289,
        "NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID",
        [0, 4, 4, 4],
    ),
    (
        0x00000290,
        "NV0000_CTRL_CMD_GPU_WAIT_ATTACH_ID",
        [0, 4, 4, 4],
    ),
    (
        0x00000901,
        "NV0000_CTRL_CMD_SET_SUB_PROCESS_ID",
        [104, 104, 104, 104],
    ),
    (
        0x00000a04,
        "NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO",
        [2244, 2244, 2244, 2244],
    ),
    (
        0x00000d01,
        "NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE",
        [12, 12, 12, 12],
    ),
    (
        0x00000d04,
        "NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY",
        [12, 12, 12, 12],
    ),
    (
        0x00003d05,
        "NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD",
        [24, 24, 24, 24],
    ),
    (
        0x00003d06,
        "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD",
        [20, 20, 20, 20],
    ),
    (
        0x00003d08,
        "NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO",
        [76, 80, 80, 80],
    ),
    (
        0x00003d0b,
        "NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD",
        [2128, 2128, 2128, 2128],
    ),
    (
        0x00003d0c,
        "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD",
        [652, 652, 652, 652],
    ),
    (
        0x00410110,
        "NV0041_CTRL_CMD_GET_SURFACE_INFO",
        [16, 16, 16, 16],
    ),
    (
        0x00800201,
        "NV0080_CTRL_CMD_GPU_GET_CLASSLIST",
        [16, 16, 16, 16],
    ),
    (
        0x00800280,
        "NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES",
        [4, 4, 4, 4],
    ),
    (
        0x00800288,
        "NV0080_CTRL_CMD_GPU_QUERY_SW_STATE_PERSISTENCE",
        [4, 4, 4, 4],
    ),
    (
        0x00800289,
        "NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE",
        [4, 4, 8, 8],
    ),
    (
        0x00800292,
        "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2",
        [644, 700, 404, 804],
    ),
    (
        0x00801108,
        "NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE",
        [32, 32, 32, 32],
    ),
    (0x00801307, "NV0080_CTRL_CMD_FB_GET_CAPS_V2", [3, 3, 3, 3]),
    (0x00801402, "NV0080_CTRL_CMD_HOST_GET_CAPS_V2", [3, 3, 3, 3]),
    (
        0x0080170d,
        "NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST",
        [24, 24, 24, 24],
    ),
    (
        0x00801806,
        "NV0080_CTRL_CMD_DMA_ADV_SCHED_GET_VA_CAPS",
        [192, 192, 192, 192],
    ),
    (0x0080180d, "NV0080_CTRL_CMD_DMA_GET_CAPS", [12, 12, 12, 12]),
    (
        0x00801909,
        "NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL",
        [0, 1, 1, 1],
    ),
    (
        0x00de0001,
        "NV00DE_CTRL_CMD_REQUEST_DATA_POLL",
        [0, 8, 8, 8],
    ),
    (
        0x00f80103,
        "NV00F8_CTRL_CMD_ATTACH_MEM",
        [2064, 2064, 2064, 2064],
    ),
    (0x00fd0101, "NV00FD_CTRL_CMD_GET_INFO", [32, 32, 32, 32]),
    (0x00fd0102, "NV00FD_CTRL_CMD_ATTACH_MEM", [40, 40, 40, 40]),
    (0x00fd0104, "NV00FD_CTRL_CMD_ATTACH_GPU", [16, 16, 16, 16]),
    (0x00fd0105, "NV00FD_CTRL_CMD_DETACH_MEM", [24, 24, 24, 24]),
    (
        0x20800102,
        "NV2080_CTRL_CMD_GPU_GET_INFO_V2",
        [516, 524, 524, 564],
    ),
    (
        0x20800110,
        "NV2080_CTRL_CMD_GPU_GET_NAME_STRING",
        [132, 132, 132, 132],
    ),
    (
        0x20800111,
        "NV2080_CTRL_CMD_GPU_GET_SHORT_NAME_STRING",
        [64, 64, 64, 64],
    ),
    (
        0x20800119,
        "NV2080_CTRL_CMD_GPU_GET_SIMULATION_INFO",
        [4, 4, 4, 4],
    ),
    (
        0x20800123,
        "NV2080_CTRL_CMD_GPU_GET_ENGINES",
        [16, 16, 16, 16],
    ),
    (
        0x2080012f,
        "NV2080_CTRL_CMD_GPU_QUERY_ECC_STATUS",
        [984, 1024, 1464, 1464],
    ),
    (
        0x20800131,
        "NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES",
        [4, 4, 4, 4],
    ),
    (
        0x20800133,
        "NV2080_CTRL_CMD_GPU_QUERY_ECC_CONFIGURATION",
        [8, 8, 8, 8],
    ),
    (
        0x2080013f,
        "NV2080_CTRL_CMD_GPU_GET_OEM_BOARD_INFO",
        [136, 136, 136, 136],
    ),
    (0x20800142, "NV2080_CTRL_CMD_GPU_GET_ID", [4, 4, 4, 4]),
    (
        0x20800145,
        "NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION",
        [EMPTY, EMPTY, EMPTY, EMPTY],
    ),
    (
        0x20800146,
        "NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION",
        [EMPTY, EMPTY, EMPTY, EMPTY],
    ),
    (
        0x2080014a,
        "NV2080_CTRL_CMD_GPU_GET_GID_INFO",
        [268, 268, 268, 268],
    ),
    (
        0x2080014b,
        "NV2080_CTRL_CMD_GPU_GET_INFOROM_OBJECT_VERSION",
        [5, 5, 5, 5],
    ),
    (
        0x20800156,
        "NV2080_CTRL_CMD_GPU_GET_INFOROM_IMAGE_VERSION",
        [16, 16, 16, 16],
    ),
    (
        0x20800157,
        "NV2080_CTRL_CMD_GPU_QUERY_INFOROM_ECC_SUPPORT",
        [EMPTY, EMPTY, EMPTY, EMPTY],
    ),
    (
        0x20800170,
        "NV2080_CTRL_CMD_GPU_GET_ENGINES_V2",
        [252, 260, 340, 340],
    ),
    (
        0x2080018b,
        "NV2080_CTRL_CMD_GPU_GET_ACTIVE_PARTITION_IDS",
        [40, 40, 40, 40],
    ),
    (
        0x2080018d,
        "NV2080_CTRL_CMD_GPU_GET_PIDS",
        [3812, 3812, 3812, 3812],
    ),
    (
        0x2080018e,
        "NV2080_CTRL_CMD_GPU_GET_PID_INFO",
        [14408, 14408, 14408, 14408],
    ),
    (
        0x20800195,
        "NV2080_CTRL_CMD_GPU_GET_COMPUTE_POLICY_CONFIG",
        [260, 260, 260, 260],
    ),
    (
        0x2080019f,
        "NV2080_CTRL_CMD_GPU_GET_SKYLINE_INFO",
        [0, 0, 0, 220],
    ),
    (
        0x208001a3,
        "NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO",
        [40, 48, 48, 56],
    ),
    (
        0x20800301,
        "NV2080_CTRL_CMD_EVENT_SET_NOTIFICATION",
        [20, 20, 20, 20],
    ),
    (0x20800403, "NV2080_CTRL_CMD_TIMER_GET_TIME", [8, 8, 8, 8]),
    (
        0x20800406,
        "NV2080_CTRL_CMD_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO",
        [264, 264, 264, 264],
    ),
    (
        0x20800407,
        "NV2080_CTRL_CMD_TIMER_SET_GR_TICK_FREQ",
        [1, 1, 1, 1],
    ),
    (
        0x20800513,
        "NV2080_CTRL_CMD_THERMAL_SYSTEM_EXECUTE_V2",
        [0, 0, 0, 1432],
    ),
    (
        0x2080110b,
        "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS",
        [536, 536, 536, 536],
    ),
    (0x20801201, "NV2080_CTRL_CMD_GR_GET_INFO", [32, 32, 32, 32]),
    (
        0x20801210,
        "NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE",
        [32, 32, 32, 32],
    ),
    (
        0x20801218,
        "NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE",
        [16, 16, 16, 16],
    ),
    (
        0x2080121b,
        "NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER",
        [6168, 6168, 6168, 9240],
    ),
    (
        0x20801227,
        "NV2080_CTRL_CMD_GR_GET_CAPS_V2",
        [48, 48, 48, 48],
    ),
    (
        0x2080122a,
        "NV2080_CTRL_CMD_GR_GET_GPC_MASK",
        [24, 24, 24, 24],
    ),
    (
        0x2080122b,
        "NV2080_CTRL_CMD_GR_GET_TPC_MASK",
        [24, 24, 24, 24],
    ),
    (
        0x20801230,
        "NV2080_CTRL_CMD_GR_GET_SM_ISSUE_RATE_MODIFIER",
        [32, 32, 32, 32],
    ),
    (
        0x2080123c,
        "NV2080_CTRL_CMD_GR_GET_SM_ISSUE_RATE_MODIFIER_V2",
        [0, 0, 0, 2044],
    ),
    (0x20801301, "NV2080_CTRL_CMD_FB_GET_INFO", [16, 16, 16, 16]),
    (
        0x20801303,
        "NV2080_CTRL_CMD_FB_GET_INFO_V2",
        [436, 444, 460, 1028],
    ),
    (
        0x20801357,
        "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT_V575",
        [0, 0, 4, 4],
    ),
    (
        0x20801358,
        "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT",
        [0, 0, 4, 0],
    ),
    (
        0x20801359,
        "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS",
        [0, 0, 4, 0],
    ),
    (
        0x20801701,
        "NV2080_CTRL_CMD_MC_GET_ARCH_INFO",
        [16, 16, 16, 16],
    ),
    (
        0x20801702,
        "NV2080_CTRL_CMD_MC_SERVICE_INTERRUPTS",
        [4, 4, 4, 4],
    ),
    (
        0x20801801,
        "NV2080_CTRL_CMD_BUS_GET_PCI_INFO",
        [16, 16, 16, 16],
    ),
    (0x20801802, "NV2080_CTRL_CMD_BUS_GET_INFO", [16, 16, 0, 0]),
    (
        0x20801803,
        "NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO",
        [200, 200, 200, 200],
    ),
    (
        0x20801823,
        "NV2080_CTRL_CMD_BUS_GET_INFO_V2",
        [420, 420, 420, 420],
    ),
    (
        0x2080182a,
        "NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS",
        [104, 104, 112, 112],
    ),
    (
        0x2080182b,
        "NV2080_CTRL_CMD_BUS_GET_C2C_INFO",
        [28, 28, 28, 28],
    ),
    (0x2080200a, "NV2080_CTRL_CMD_PERF_BOOST", [8, 8, 8, 8]),
    (
        0x20802068,
        "NV2080_CTRL_CMD_PERF_GET_CURRENT_PSTATE",
        [0, 4, 4, 4],
    ),
    (
        0x20802096,
        "NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2",
        [34000, 50704, 55888, 55888],
    ),
    (
        0x20802209,
        "NV2080_CTRL_CMD_RC_GET_WATCHDOG_INFO",
        [4, 4, 4, 4],
    ),
    (
        0x2080220c,
        "NV2080_CTRL_CMD_RC_RELEASE_WATCHDOG_REQUESTS",
        [EMPTY, EMPTY, EMPTY, EMPTY],
    ),
    (
        0x20802210,
        "NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG",
        [EMPTY, EMPTY, EMPTY, EMPTY],
    ),
    (0x20802a03, "NV2080_CTRL_CMD_CE_GET_CAPS_V2", [8, 8, 8, 8]),
    (
        0x20802a0a,
        "NV2080_CTRL_CMD_CE_GET_ALL_CAPS",
        [68, 136, 136, 136],
    ),
    (
        0x20803001,
        "NV2080_CTRL_CMD_NVLINK_GET_NVLINK_CAPS",
        [16, 16, 32, 48],
    ),
    (
        0x20803002,
        "NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS",
        [5896, 5896, 13320, 13344],
    ),
    (
        0x20803125,
        "NV2080_CTRL_CMD_FLCN_GET_CTX_BUFFER_SIZE",
        [16, 16, 16, 16],
    ),
    (
        0x20803601,
        "NV2080_CTRL_CMD_GSP_GET_FEATURES",
        [72, 72, 72, 72],
    ),
    (
        0x20803801,
        "NV2080_CTRL_CMD_GRMGR_GET_GR_FS_INFO",
        [1928, 1928, 1928, 1928],
    ),
    (
        0x208f1105,
        "NV208F_CTRL_CMD_GPU_VERIFY_INFOROM",
        [8, 8, 8, 8],
    ),
    (
        0x503c0102,
        "NV503C_CTRL_CMD_REGISTER_VA_SPACE",
        [16, 16, 16, 16],
    ),
    (
        0x503c0104,
        "NV503C_CTRL_CMD_REGISTER_VIDMEM",
        [32, 32, 32, 32],
    ),
    (
        0x503c0105,
        "NV503C_CTRL_CMD_UNREGISTER_VIDMEM",
        [4, 4, 4, 4],
    ),
    (
        0x83de0307,
        "NV83DE_CTRL_CMD_DEBUG_SET_MODE_MMU_DEBUG",
        [4, 4, 4, 4],
    ),
    (
        0x83de0309,
        "NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK",
        [4, 4, 4, 4],
    ),
    (
        0x83de030c,
        "NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES",
        [4824, 4824, 4824, 4824],
    ),
    (
        0x83de0310,
        "NV83DE_CTRL_CMD_DEBUG_CLEAR_ALL_SM_ERROR_STATES",
        [8, 8, 8, 8],
    ),
    (
        0x83de0315,
        "NV83DE_CTRL_CMD_DEBUG_READ_MEMORY",
        [24, 24, 24, 24],
    ),
    (
        0x83de0317,
        "NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT",
        [8, 8, 8, 8],
    ),
    (
        0x83de0318,
        "NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT",
        [EMPTY, EMPTY, EMPTY, EMPTY],
    ),
    (
        0x83de031f,
        "NV83DE_CTRL_CMD_DEBUG_SET_MODE_ERRBAR_DEBUG",
        [4, 4, 4, 4],
    ),
    (
        0x83de0328,
        "NV83DE_CTRL_CMD_DEBUG_READ_MMU_FAULT_INFO",
        [72, 72, 72, 72],
    ),
    (
        0x906f0101,
        "NV906F_CTRL_GET_CLASS_ENGINEID",
        [16, 16, 16, 16],
    ),
    (
        0x906f0102,
        "NV906F_CTRL_CMD_RESET_CHANNEL",
        [12, 16, 16, 16],
    ),
    (
        0x90e60102,
        "NV90E6_CTRL_CMD_MASTER_GET_VIRTUAL_FUNCTION_ERROR_CONT_INTR_MASK",
        [8, 8, 8, 8],
    ),
    (0xa06c0101, "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE", [2, 2, 2, 3]),
    (0xa06c0103, "NVA06C_CTRL_CMD_SET_TIMESLICE", [8, 8, 8, 8]),
    (0xa06c0104, "NVA06C_CTRL_CMD_GET_TIMESLICE", [8, 8, 8, 8]),
    (0xa06c0105, "NVA06C_CTRL_CMD_PREEMPT", [8, 8, 8, 8]),
    (0xa06f0103, "NVA06F_CTRL_CMD_GPFIFO_SCHEDULE", [2, 2, 2, 3]),
    (0xc36f0101, "NVC36F_CTRL_GET_CLASS_ENGINEID", [16, 16, 0, 0]),
    (
        0xc36f0108,
        "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN",
        [4, 4, 4, 4],
    ),
    (0xc56f010b, "NVC56F_CTRL_CMD_GET_KMB", [124, 128, 128, 144]),
    (
        0xcb330101,
        "NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES",
        [5, 6, 6, 6],
    ),
    (
        0xcb330104,
        "NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_GPUS_STATE",
        [1, 1, 1, 1],
    ),
    (
        0xcb33010b,
        "NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_NUM_SECURE_CHANNELS",
        [12, 12, 12, 12],
    ),
    (
        0xcb33010c,
        "NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_KEY_ROTATION_STATE",
        [0, 8, 8, 8],
    ),
];
