//! Parameters of controls.

use super::{Field, structs};

structs! {
    mod export_object "NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS" {
        TYPE "object.type" = 0;
        /// `{hDevice, hParent, hObject}`
        DATA "object.data" = 4;
        /// `object.data.rmObject.hDevice`
        H_DEVICE = 4;
        /// `object.data.rmObject.hObject`
        H_OBJECT = 12;
        /// a control file, which holds the export until it is closed
        FD "fd" = 16;
        FLAGS "flags" = 20;
    } and {
        /// The type of an RM object.
        TYPE_RM "NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE_RM": u32 = 1;
        /// `flags`: the file is made one for exports, nothing is exported yet
        FLAG_EMPTY "NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_FLAGS_EMPTY_FD_TRUE": u32 = 1;
    }
    mod import_object "NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS" {
        /// the file that holds the export
        FD "fd" = 0;
        TYPE "object.type" = 4;
        /// `{hDevice, hParent, hObject}`
        DATA "object.data" = 8;
        /// `object.data.rmObject.hParent`: parent of the new handle
        H_PARENT = 12;
        /// `object.data.rmObject.hObject`: the new handle
        H_OBJECT = 16;
    }
    mod export_objects "NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS" {
        /// -1: the driver makes one
        FD "fd" = 0;
        H_DEVICE "hDevice" = 4;
        /// two bytes
        MAX_OBJECTS "maxObjects" = 8;
        /// handles; 0 takes an export back
        OBJECTS "objects" = 76;
        /// two bytes
        COUNT "numObjects" = 2124;
        /// of the first object in the file, two bytes
        INDEX "index" = 2126;
    } and {
        /// Entries of `objects`.
        MOST "NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_MAX_OBJECTS": u32 = 512;
    }
    mod export_file "NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS" {
        /// `hDevice`
        H_DEVICE = 0;
        /// `maxObjects`, two bytes; `metadata` is behind it, as in [`export_objects`]
        MAX_OBJECTS = 4;
        /// `fd`
        FD = 72;
    }
    mod import_objects "NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS" {
        /// the file that holds the exports
        FD "fd" = 0;
        H_PARENT "hParent" = 4;
        /// the new handles
        OBJECTS "objects" = 8;
        /// out: 0 where nothing was imported
        TYPES "objectTypes" = 520;
        /// two bytes
        COUNT "numObjects" = 648;
        /// of the first object in the file, two bytes
        INDEX "index" = 650;
    } and {
        /// Entries of `objects`.
        MOST "NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_TO_FD_MAX_OBJECTS": u32 = 128;
    }
    mod export_info "NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS" {
        /// the file that holds the exports
        FD "fd" = 0;
        DEVICE_INSTANCE "deviceInstance" = 4;
    } and {
        /// `NV_MAX_DEVICES`: no device (`RmExportObject`, rmobjexportimport.c)
        NO_DEVICE: u32 = 32;
    }
    /// Of SET_TIMESLICE and GET_TIMESLICE.
    mod timeslice "NVA06C_CTRL_TIMESLICE_PARAMS" {
        /// 8 bytes
        MICROS "timesliceUs" = 0;
    } and {
        /// What a channel group has that nobody has set one for, microseconds (kernel_fifo_gv100.c).
        DEFAULT_US: u64 = 1024;
    }
    /// The channel group's control has the same.
    mod schedule "NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS" {
        /// one byte: onto the runlist, or off it
        ENABLE "bEnable" = 0;
    }
    mod preempt "NVA06C_CTRL_PREEMPT_PARAMS" {
        /// one byte: the call returns when it has happened
        WAIT "bWait" = 0;
        /// one byte
        MANUAL_TIMEOUT "bManualTimeout" = 1;
        TIMEOUT_US "timeoutUs" = 4;
    }
    mod disable_channels "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS" {
        /// one byte
        DISABLE "bDisable" = 0;
        COUNT "numChannels" = 4;
        /// one byte: what runs finishes its slice
        ONLY_SCHEDULING "bOnlyDisableScheduling" = 8;
        /// 8 bytes: NULL from user space
        EVENT "pRunlistPreemptEvent" = 16;
        CLIENTS "hClientList" = 24;
        CHANNELS "hChannelList" = 280;
    } and {
        /// Entries of the lists.
        MOST: u32 = 64;
    }
    mod preemption_mode "NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS" {
        FLAGS "flags" = 0;
        H_CHANNEL "hChannel" = 4;
        COMPUTE "cilpPreemptMode" = 12;
    } and {
        /// `flags` bit 0: the compute mode is to be set
        FLAG_COMPUTE: u32 = 1;
        /// `NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_CILP`: in the middle of an instruction
        COMPUTE_CILP: u32 = 2;
    }
    mod partners "NV2080_CTRL_GPU_GET_ENGINE_PARTNERLIST_PARAMS" {
        COUNT "numPartners" = 12;
        LIST "partnerList" = 16;
    }
    mod zcull_bind "NV2080_CTRL_GR_CTXSW_ZCULL_BIND_PARAMS" {
        H_CLIENT "hClient" = 0;
        H_CHANNEL "hChannel" = 4;
    }
    mod bind "NVA06F_CTRL_BIND_PARAMS" {
        ENGINE_TYPE "engineType" = 0;
    }
    /// Regions of the framebuffer.
    mod fb_regions "NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO_PARAMS" {
        COUNT "numFBRegions" = 0;
        LIST "fbRegion" = 8;
    } also "NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO" {
        /// Bytes of an entry.
        ENTRY_BYTES = [48, R580 56];
        BASE "base" = 0;
        /// its last byte
        LIMIT "limit" = 8;
        /// what RM keeps of it
        RESERVED "reserved" = 16;
        /// the types of surfaces that may not lie there, a byte each
        EXCLUDED "blackList" = 31;
        /// How many types there are.
        TYPES = [17, R580 18];
    }
    /// The cards that the driver has initialised.
    mod attached_ids "NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS" {
        IDS "gpuIds" = 0;
    } and {
        /// `NV0000_CTRL_GPU_MAX_ATTACHED_GPUS`
        MOST: usize = 32;
        /// the list ends here
        NONE "NV0000_CTRL_GPU_INVALID_ID": u32 = 0xffff_ffff;
    }
    mod id_info "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS" {
        GPU_ID "gpuId" = 0;
        DEVICE_INSTANCE "deviceInstance" = 8;
        SUBDEVICE_INSTANCE "subDeviceInstance" = 12;
    }
    mod gid_info "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS" {
        /// `flags`
        FLAGS = 4;
        /// `length`
        LENGTH = 8;
        /// `data`
        DATA = 12;
    } and {
        /// `NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY`
        FORMAT_BINARY: u32 = 2;
    }
    /// Without flags the answer is `GPU-…` and a zero.
    mod uuid_of_id "NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS" {
        GPU_ID "gpuId" = 0;
        UUID "gpuUuid" = 8;
    } and {
        /// `NV0000_GPU_MAX_GID_LENGTH`
        UUID_BYTES: usize = 256;
    }
    /// Processes that have an object of a class on the card.
    mod pids "NV2080_CTRL_GPU_GET_PIDS_PARAMS" {
        ID_TYPE "idType" = 0;
        /// the class
        ID "id" = 4;
        COUNT "pidTblCount" = 8;
        TABLE "pidTbl" = 12;
    } and {
        /// Entries of the table.
        MOST: usize = 950;
    }
    /// What RM counts for processes.
    mod pid_info "NV2080_CTRL_GPU_GET_PID_INFO_PARAMS" {
        COUNT "pidInfoListCount" = 0;
        LIST "pidInfoList" = 8;
    } and {
        MOST "NV2080_CTRL_GPU_GET_PID_INFO_MAX_COUNT": u32 = 200;
    }
    /// Cards whose clocks the host's administrator has tied together.
    mod boost_groups "NV0000_SYNC_GPU_BOOST_GROUP_INFO_PARAMS" {
        COUNT "groupCount" = 0;
        /// as many as the parameters have room for, of which the first count
        GROUPS "pBoostGroups" = 4;
    } also "NV0000_SYNC_GPU_BOOST_GROUP_CONFIG" {
        CARDS "gpuCount" = 0;
        IDS "gpuIds" = 4;
    } and {
        /// Bytes of a group.
        GROUP_BYTES: usize = 140;
        /// `NV_MAX_DEVICES`: entries of that list.
        MOST: usize = 32;
    }
    /// How busy the card's engines were, and with whose work.
    mod perfmon "NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS" {
        COUNT "count" = 8;
        /// where the ring of samples is written next
        TRACKER "tracker" = 12;
        /// a ring of [`MOST`]
        SAMPLES "samples" = 16;
    } also "NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE" {
        /// Bytes of a sample: a time, and an engine after the other.
        SAMPLE_BYTES = [472, R550 704, R570 776];
        /// u64
        TIME "base.timeStamp" = 0;
        /// `fb`: the first engine of a sample
        ENGINES "fb.util" = 8;
        /// `gr`: the second one, which computes
        GR "gr.util" = [124, R570 136];
    } also "NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE" {
        /// Bytes of an engine.
        ENGINE_BYTES = [116, R570 128];
        /// hundredths of a per cent
        UTIL "util" = 0;
        PROCESS "procId" = 8;
    } and {
        /// `NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL`
        MOST: u32 = 72;
        /// `NV2080_GPUMON_PID_INVALID`
        NO_PROCESS: u32 = u32::MAX;
    }
    /// A card's links, by number.
    mod nvlink_status "NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS_PARAMS" {
        /// a bit for each of the first 32 links
        ENABLED "enabledLinkMask" = 0;
        /// `enabledLinks.masks[0]`, u64: a bit for each link; 0: the release has no such field
        ENABLED_LINKS = [0, R580 16];
        LINKS "linkInfo" = [8, R580 32];
    } also "NV2080_CTRL_NVLINK_LINK_STATUS_INFO" {
        /// Bytes of a link.
        LINK_BYTES = [184, R555 192, R570 208, R590 216];
        /// one byte
        CONNECTED "connected" = 56;
        REMOTE "remoteDeviceInfo" = [88, R555 96];
        LOCAL "localDeviceInfo" = [136, R555 144, R570 152];
    }
    /// What is at an end of a link.
    mod nvlink_device "NV2080_CTRL_NVLINK_DEVICE_INFO" {
        FLAGS "deviceIdFlags" = 0;
        DOMAIN "domain" = 4;
        /// two bytes
        BUS "bus" = 8;
        /// two bytes
        DEVICE "device" = 10;
        /// u64
        TYPE "deviceType" = 24;
    } and {
        /// `NV2080_CTRL_NVLINK_DEVICE_INFO_DEVICE_ID_FLAGS_PCI`: the address is filled in
        FLAG_PCI: u32 = 1;
        /// `NV2080_CTRL_NVLINK_DEVICE_INFO_DEVICE_TYPE_GPU`
        GPU: u64 = 2;
        /// `NV2080_CTRL_NVLINK_DEVICE_INFO_DEVICE_TYPE_SWITCH`
        SWITCH: u64 = 3;
        /// `…_EBRIDGE`, `…_NPU`, `…_SWITCH`, `…_TEGRA` and `…_NONE`: what is no card
        NO_CARDS: [u64; 5] = [0, 1, SWITCH, 4, 0xff];
    }
    /// One entry of [`pid_info::LIST`], with its `data` as video memory.
    mod pid_memory "NV2080_CTRL_GPU_PID_INFO" {
        PID "pid" = 0;
        INDEX "index" = 4;
        /// a status
        RESULT "result" = 8;
        DATA "data" = 16;
    } and {
        /// Bytes of an entry.
        BYTES: usize = 72;
        INDEX_VIDEO_MEMORY "NV2080_CTRL_GPU_PID_INFO_INDEX_VIDEO_MEMORY_USAGE": u32 = 0;
        /// `data.vidMemUsage.memPrivate`: memory that has one handle, bytes
        PRIVATE: usize = DATA;
        /// `data.vidMemUsage.memSharedOwned`: memory that has several, under that of them which owns it, bytes
        SHARED_OWNED: usize = DATA + 8;
        /// `data.vidMemUsage.memSharedDuped`: the other handles, each anew, bytes
        SHARED_DUPED: usize = DATA + 16;
    }
}

/// `NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS`, and its V2, whose tables are in it.
pub mod p2p_caps {
    /// `gpuIds`
    pub const IDS: usize = 0;
    /// `gpuCount`
    pub const COUNT: usize = 128;
    /// `p2pCaps`, and what else is said of all of them; it ends where the tables or their pointers begin
    pub const CAPS: usize = 132;
    /// `busPeerIds`
    pub const TABLES: usize = 156;
}

/// `NV0000_CTRL_SYSTEM_GET_P2P_CAPS_MATRIX_PARAMS`
pub mod p2p_matrix {
    /// `gpuIdGrpA` with `grpACount`, `gpuIdGrpB` with `grpBCount`
    pub const GROUPS: [(usize, usize); 2] = [(8, 0), (40, 4)];
    /// `p2pCaps`, and the other tables
    pub const TABLES: usize = 72;
}

/// `NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO_PARAMS`
pub mod fabric_probe {
    /// `fabricCaps`: u64, at the same place in every release
    pub const CAPS: usize = 32;
    /// `NV2080_CTRL_GPU_FABRIC_PROBE_CAP_MC_SUPPORTED` and `…_MC_MUTLINODE_SUPPORTED`: multicast
    pub const MULTICAST: u64 = 3;
}

/// `NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS_PARAMS`, since 560; before, it names nothing.
pub mod atomics {
    /// `capType`
    pub const KIND: usize = 0;
    /// `NV2080_CTRL_CMD_BUS_PCIE_ATOMICS_CAPTYPE_P2P`: with the card at [`PEER`]
    pub const BETWEEN_CARDS: u32 = 2;
    /// `dbdf`: domain in the high half, bus in bits 8 to 15, device in bits 3 to 7
    pub const PEER: usize = 4;
}
