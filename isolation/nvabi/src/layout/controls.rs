//! Parameters of controls.

/// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS`
pub mod export_object {
    /// `object.type`
    pub const TYPE: usize = 0;
    /// `object.data`: `{hDevice, hParent, hObject}`
    pub const DATA: usize = 4;
    /// `object.data.rmObject.hDevice`
    pub const H_DEVICE: usize = 4;
    /// `object.data.rmObject.hObject`
    pub const H_OBJECT: usize = 12;
    /// `fd`: a control file, which holds the export until it is closed
    pub const FD: usize = 16;
    /// `flags`
    pub const FLAGS: usize = 20;
    /// The type of an RM object.
    pub const TYPE_RM: u32 = 1;
    /// `flags`: the file is made one for exports, nothing is exported yet
    pub const FLAG_EMPTY: u32 = 1;
}

/// `NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS`
pub mod import_object {
    /// `fd`: the file that holds the export
    pub const FD: usize = 0;
    /// `object.type`
    pub const TYPE: usize = 4;
    /// `object.data`: `{hDevice, hParent, hObject}`
    pub const DATA: usize = 8;
    /// `object.data.rmObject.hParent`: parent of the new handle
    pub const H_PARENT: usize = 12;
    /// `object.data.rmObject.hObject`: the new handle
    pub const H_OBJECT: usize = 16;
}

/// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS`
pub mod export_objects {
    /// `fd`; -1: the driver makes one
    pub const FD: usize = 0;
    /// `hDevice`
    pub const H_DEVICE: usize = 4;
    /// `maxObjects`, two bytes
    pub const MAX_OBJECTS: usize = 8;
    /// `objects`: handles; 0 takes an export back
    pub const OBJECTS: usize = 76;
    /// `numObjects`, two bytes
    pub const COUNT: usize = 2124;
    /// `index` of the first object in the file, two bytes
    pub const INDEX: usize = 2126;
    /// Entries of `objects`.
    pub const MOST: u32 = 512;
}

/// `NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS`
pub mod import_objects {
    /// `fd`: the file that holds the exports
    pub const FD: usize = 0;
    /// `hParent`
    pub const H_PARENT: usize = 4;
    /// `objects`: the new handles
    pub const OBJECTS: usize = 8;
    /// `objectTypes`, out: 0 where nothing was imported
    pub const TYPES: usize = 520;
    /// `numObjects`, two bytes
    pub const COUNT: usize = 648;
    /// `index` of the first object in the file, two bytes
    pub const INDEX: usize = 650;
    /// Entries of `objects`.
    pub const MOST: u32 = 128;
}

/// `NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS`
pub mod export_info {
    /// `fd`: the file that holds the exports
    pub const FD: usize = 0;
    /// `deviceInstance`
    pub const DEVICE_INSTANCE: usize = 4;
    /// `NV_MAX_DEVICES`: no device (`RmExportObject`, rmobjexportimport.c)
    pub const NO_DEVICE: u32 = 32;
}

/// `NVA06C_CTRL_TIMESLICE_PARAMS` of SET_TIMESLICE and GET_TIMESLICE
pub mod timeslice {
    /// `timesliceUs`, 8 bytes
    pub const MICROS: usize = 0;
    /// What a channel group has that nobody has set one for, microseconds (kernel_fifo_gv100.c).
    pub const DEFAULT_US: u64 = 1024;
}

/// `NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS`, which the channel group's control has too
pub mod schedule {
    /// `bEnable`, one byte: onto the runlist, or off it
    pub const ENABLE: usize = 0;
}

/// `NVA06C_CTRL_PREEMPT_PARAMS`
pub mod preempt {
    /// `bWait`, one byte: the call returns when it has happened
    pub const WAIT: usize = 0;
    /// `bManualTimeout`, one byte
    pub const MANUAL_TIMEOUT: usize = 1;
    /// `timeoutUs`
    pub const TIMEOUT_US: usize = 4;
}

/// `NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS`
pub mod disable_channels {
    /// `bDisable`, one byte
    pub const DISABLE: usize = 0;
    /// `numChannels`
    pub const COUNT: usize = 4;
    /// `bOnlyDisableScheduling`, one byte: what runs finishes its slice
    pub const ONLY_SCHEDULING: usize = 8;
    /// `pRunlistPreemptEvent`, 8 bytes: NULL from user space
    pub const EVENT: usize = 16;
    /// `hClientList`
    pub const CLIENTS: usize = 24;
    /// `hChannelList`
    pub const CHANNELS: usize = 280;
    /// Entries of the lists.
    pub const MOST: u32 = 64;
}

/// `NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS`
pub mod preemption_mode {
    /// `flags`
    pub const FLAGS: usize = 0;
    /// `hChannel`
    pub const H_CHANNEL: usize = 4;
    /// `cilpPreemptMode`
    pub const COMPUTE: usize = 12;
    /// `flags` bit 0: the compute mode is to be set
    pub const FLAG_COMPUTE: u32 = 1;
    /// `NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_CILP`: in the middle of an instruction
    pub const COMPUTE_CILP: u32 = 2;
}

/// `NV2080_CTRL_GPU_GET_ENGINE_PARTNERLIST_PARAMS`
pub mod partners {
    /// `numPartners`
    pub const COUNT: usize = 12;
    /// `partnerList`
    pub const LIST: usize = 16;
}

/// `NV2080_CTRL_GR_CTXSW_ZCULL_BIND_PARAMS`
pub mod zcull_bind {
    /// `hClient`
    pub const H_CLIENT: usize = 0;
    /// `hChannel`
    pub const H_CHANNEL: usize = 4;
}

/// `NVA06F_CTRL_BIND_PARAMS`
pub mod bind {
    /// `engineType`
    pub const ENGINE_TYPE: usize = 0;
}

/// `NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO_PARAMS`: regions of the framebuffer.
pub mod fb_regions {
    use crate::{PerRelease, per};

    /// `numFBRegions`
    pub const COUNT: usize = 0;
    /// `fbRegion`
    pub const LIST: usize = 8;
    /// Bytes of an entry.
    pub const ENTRY_BYTES: PerRelease = per!(48, R580 56);
    /// `base` of an entry
    pub const BASE: usize = 0;
    /// `limit`: its last byte
    pub const LIMIT: usize = 8;
    /// `reserved`: what RM keeps of it
    pub const RESERVED: usize = 16;
    /// `blackList`: the types of surfaces that may not lie there, a byte each
    pub const EXCLUDED: usize = 31;
    /// How many types there are.
    pub const TYPES: PerRelease = per!(17, R580 18);
}

/// `NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS`: the cards that the driver has initialised.
pub mod attached_ids {
    /// `gpuIds`
    pub const IDS: usize = 0;
    /// `NV0000_CTRL_GPU_MAX_ATTACHED_GPUS`
    pub const MOST: usize = 32;
    /// `NV0000_CTRL_GPU_INVALID_ID`: the list ends here
    pub const NONE: u32 = 0xffff_ffff;
}

/// `NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS`
pub mod id_info {
    /// `gpuId`
    pub const GPU_ID: usize = 0;
    /// `deviceInstance`
    pub const DEVICE_INSTANCE: usize = 8;
    /// `subDeviceInstance`
    pub const SUBDEVICE_INSTANCE: usize = 12;
}

/// `NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS`; without flags the answer is `GPU-…` and a zero.
pub mod uuid_of_id {
    /// `gpuId`
    pub const GPU_ID: usize = 0;
    /// `gpuUuid`
    pub const UUID: usize = 8;
    /// `NV0000_GPU_MAX_GID_LENGTH`
    pub const UUID_BYTES: usize = 256;
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

/// `NV2080_CTRL_GPU_GET_PIDS_PARAMS`: processes that have an object of a class on the card.
pub mod pids {
    /// `idType`
    pub const ID_TYPE: usize = 0;
    /// `id`: the class
    pub const ID: usize = 4;
    /// `pidTblCount`
    pub const COUNT: usize = 8;
    /// `pidTbl`
    pub const TABLE: usize = 12;
    /// Entries of the table.
    pub const MOST: usize = 950;
}

/// `NV2080_CTRL_GPU_GET_PID_INFO_PARAMS`: what RM counts for processes.
pub mod pid_info {
    /// `pidInfoListCount`
    pub const COUNT: usize = 0;
    /// `pidInfoList`
    pub const LIST: usize = 8;
    /// `NV2080_CTRL_GPU_GET_PID_INFO_MAX_COUNT`
    pub const MOST: u32 = 200;
}

/// `NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO_PARAMS`
pub mod fabric_probe {
    /// `fabricCaps`: u64, at the same place in every release
    pub const CAPS: usize = 32;
    /// `NV2080_CTRL_GPU_FABRIC_PROBE_CAP_MC_SUPPORTED` and `…_MC_MUTLINODE_SUPPORTED`: multicast
    pub const MULTICAST: u64 = 3;
}

/// `NV0000_SYNC_GPU_BOOST_GROUP_INFO_PARAMS`: cards whose clocks the host's administrator has tied together.
pub mod boost_groups {
    /// `groupCount`
    pub const COUNT: usize = 0;
    /// `pBoostGroups`: as many as the parameters have room for, of which the first count
    pub const GROUPS: usize = 4;
    /// Bytes of a group.
    pub const GROUP_BYTES: usize = 140;
    /// In a group: `gpuCount`
    pub const CARDS: usize = 0;
    /// In a group: `gpuIds`
    pub const IDS: usize = 4;
    /// `NV_MAX_DEVICES`: entries of that list.
    pub const MOST: usize = 32;
}

/// `NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS`: how busy the card's engines were, and with whose work.
pub mod perfmon {
    use crate::{PerRelease, per};

    /// `count`
    pub const COUNT: usize = 8;
    /// `tracker`: where the ring of samples is written next
    pub const TRACKER: usize = 12;
    /// `samples`: a ring of [`MOST`]
    pub const SAMPLES: usize = 16;
    /// `NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL`
    pub const MOST: u32 = 72;
    /// Bytes of a sample: a time, and an engine after the other.
    pub const SAMPLE_BYTES: PerRelease = per!(472, R550 704, R570 776);
    /// `base.timeStamp`, u64
    pub const TIME: usize = 0;
    /// `fb`: the first engine of a sample
    pub const ENGINES: usize = 8;
    /// `gr`: the second one, which computes
    pub const GR: PerRelease = per!(124, R570 136);
    /// Bytes of an engine.
    pub const ENGINE_BYTES: PerRelease = per!(116, R570 128);
    /// `util`: hundredths of a per cent
    pub const UTIL: usize = 0;
    /// `procId`
    pub const PROCESS: usize = 8;
    /// `NV2080_GPUMON_PID_INVALID`
    pub const NO_PROCESS: u32 = u32::MAX;
}

/// `NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS_PARAMS`: a card's links, by number.
pub mod nvlink_status {
    use crate::{PerRelease, per};

    /// `enabledLinkMask`: a bit for each of the first 32 links
    pub const ENABLED: usize = 0;
    /// `enabledLinks.masks[0]`, u64: a bit for each link; 0: the release has no such field
    pub const ENABLED_LINKS: PerRelease = per!(0, R580 16);
    /// `linkInfo`
    pub const LINKS: PerRelease = per!(8, R580 32);
    /// Bytes of a link.
    pub const LINK_BYTES: PerRelease = per!(184, R555 192, R570 208, R590 216);
    /// In a link: `connected`, one byte
    pub const CONNECTED: usize = 56;
    /// In a link: `remoteDeviceInfo`
    pub const REMOTE: PerRelease = per!(88, R555 96);
    /// In a link: `localDeviceInfo`
    pub const LOCAL: PerRelease = per!(136, R555 144, R570 152);
}

/// `NV2080_CTRL_NVLINK_DEVICE_INFO`: what is at an end of a link.
pub mod nvlink_device {
    /// `deviceIdFlags`
    pub const FLAGS: usize = 0;
    /// `NV2080_CTRL_NVLINK_DEVICE_INFO_DEVICE_ID_FLAGS_PCI`: the address is filled in
    pub const FLAG_PCI: u32 = 1;
    /// `domain`
    pub const DOMAIN: usize = 4;
    /// `bus`, two bytes
    pub const BUS: usize = 8;
    /// `device`, two bytes
    pub const DEVICE: usize = 10;
    /// `deviceType`, u64
    pub const TYPE: usize = 24;
    /// `NV2080_CTRL_NVLINK_DEVICE_INFO_DEVICE_TYPE_GPU`
    pub const GPU: u64 = 2;
    /// `NV2080_CTRL_NVLINK_DEVICE_INFO_DEVICE_TYPE_SWITCH`
    pub const SWITCH: u64 = 3;
    /// `…_EBRIDGE`, `…_NPU`, `…_SWITCH`, `…_TEGRA` and `…_NONE`: what is no card
    pub const NO_CARDS: [u64; 5] = [0, 1, SWITCH, 4, 0xff];
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

/// `NV2080_CTRL_GPU_PID_INFO`: one entry of [`pid_info::LIST`], with its `data` as video memory.
pub mod pid_memory {
    /// Bytes of an entry.
    pub const BYTES: usize = 72;
    /// `pid`
    pub const PID: usize = 0;
    /// `index`
    pub const INDEX: usize = 4;
    /// `NV2080_CTRL_GPU_PID_INFO_INDEX_VIDEO_MEMORY_USAGE`
    pub const INDEX_VIDEO_MEMORY: u32 = 0;
    /// `result`, a status
    pub const RESULT: usize = 8;
    /// `data`
    pub const DATA: usize = 16;
    /// `data.vidMemUsage.memPrivate`: memory that has one handle, bytes
    pub const PRIVATE: usize = DATA;
    /// `data.vidMemUsage.memSharedOwned`: memory that has several, under that of them which owns it, bytes
    pub const SHARED_OWNED: usize = DATA + 8;
    /// `data.vidMemUsage.memSharedDuped`: the other handles, each anew, bytes
    pub const SHARED_DUPED: usize = DATA + 16;
}
