//! Field offsets of the structs that cgpu reads or writes, in bytes. Equal in all releases unless a [`PerRelease`] says otherwise.

/// `NVOS00_PARAMETERS`: free an object.
pub mod nvos00 {
    /// `hRoot`
    pub const H_ROOT: usize = 0;
    /// `hObjectParent`
    pub const H_PARENT: usize = 4;
    /// `hObjectOld`
    pub const H_OLD: usize = 8;
    /// `status`
    pub const STATUS: usize = 12;
}

/// `NVOS02_PARAMETERS` with the file descriptor that follows it.
pub mod nvos02 {
    /// `hRoot`
    pub const H_ROOT: usize = 0;
    /// `hObjectParent`
    pub const H_PARENT: usize = 4;
    /// `hObjectNew`
    pub const H_NEW: usize = 8;
    /// `hClass`
    pub const H_CLASS: usize = 12;
    /// `flags`
    pub const FLAGS: usize = 16;
    /// `pMemory`
    pub const P_MEMORY: usize = 24;
    /// `limit`: size - 1
    pub const LIMIT: usize = 32;
    /// `status`
    pub const STATUS: usize = 40;
    /// `fd`
    pub const FD: usize = 48;
}

/// `NVOS21_PARAMETERS`: allocate an object.
pub mod nvos21 {
    /// `hRoot`
    pub const H_ROOT: usize = 0;
    /// `hObjectParent`
    pub const H_PARENT: usize = 4;
    /// `hObjectNew`
    pub const H_NEW: usize = 8;
    /// `hClass`
    pub const H_CLASS: usize = 12;
    /// `pAllocParms`
    pub const P_PARAMS: usize = 16;
    /// `paramsSize`, ignored by the driver
    pub const PARAMS_SIZE: usize = 24;
    /// `status`
    pub const STATUS: usize = 28;
}

/// `NVOS64_PARAMETERS`: allocate an object, long form. The first 24 bytes are those of [`nvos21`](super::nvos21).
pub mod nvos64 {
    /// `pRightsRequested`: a 4-byte access mask, may be NULL
    pub const P_RIGHTS: usize = 24;
    /// `paramsSize`, ignored by the driver
    pub const PARAMS_SIZE: usize = 32;
    /// `flags`; bit 0: serialised parameters
    pub const FLAGS: usize = 36;
    /// `status`
    pub const STATUS: usize = 40;
    /// Serialised parameters (FINN).
    pub const FLAG_SERIALISED: u32 = 0x1;
}

/// `NVOS30_PARAMETERS`: wait for channels.
pub mod nvos30 {
    /// `phClients`
    pub const P_CLIENTS: usize = 16;
    /// `phDevices`
    pub const P_DEVICES: usize = 24;
    /// `phChannels`
    pub const P_CHANNELS: usize = 32;
    /// `status`
    pub const STATUS: usize = 48;
}

/// `NVOS32_PARAMETERS`: the deprecated heap call.
pub mod nvos32 {
    /// `hRoot`
    pub const H_ROOT: usize = 0;
    /// `hObjectParent`
    pub const H_PARENT: usize = 4;
    /// `function`
    pub const FUNCTION: usize = 8;
    /// `hVASpace`
    pub const H_VA_SPACE: usize = 12;
    /// `status`
    pub const STATUS: usize = 20;
    /// `total`, bytes
    pub const TOTAL: usize = 24;
    /// `free`, bytes
    pub const FREE: usize = 32;
    /// `NVOS32_FUNCTION_ALLOC_SIZE`
    pub const FUNCTION_ALLOC_SIZE: u32 = 2;
    /// `NVOS32_FUNCTION_FREE`
    pub const FUNCTION_FREE: u32 = 3;
    /// `NVOS32_FUNCTION_INFO`
    pub const FUNCTION_INFO: u32 = 5;
    /// ALLOC_SIZE: `hMemory`
    pub const ALLOC_H_MEMORY: usize = 44;
    /// ALLOC_SIZE: `type`
    pub const ALLOC_TYPE: usize = 48;
    /// ALLOC_SIZE: `flags`
    pub const ALLOC_FLAGS: usize = 52;
    /// ALLOC_SIZE: `attr`
    pub const ALLOC_ATTR: usize = 56;
    /// ALLOC_SIZE: `size`, bytes, in and out
    pub const ALLOC_SIZE: usize = 88;
    /// ALLOC_SIZE: `alignment`, bytes
    pub const ALLOC_ALIGNMENT: usize = 96;
    /// ALLOC_SIZE: `attr2`
    pub const ALLOC_ATTR2: usize = 144;
    /// FREE: `hMemory`
    pub const FREE_H_MEMORY: usize = 44;
    /// `NVOS32_FUNCTION_ALLOC_OS_DESCRIPTOR`: pins pages of whoever executes it
    pub const FUNCTION_ALLOC_OS_DESCRIPTOR: u32 = 27;
    /// INFO: `size`, bytes of the largest free block
    pub const INFO_SIZE: usize = 56;
}

/// `NVOS33_PARAMETERS` with the file descriptor that follows it: prepare a CPU mapping.
pub mod nvos33 {
    /// `hClient`
    pub const H_CLIENT: usize = 0;
    /// `hDevice`
    pub const H_DEVICE: usize = 4;
    /// `hMemory`
    pub const H_MEMORY: usize = 8;
    /// `offset`, bytes
    pub const OFFSET: usize = 16;
    /// `length`, bytes
    pub const LENGTH: usize = 24;
    /// `pLinearAddress`
    pub const P_LINEAR: usize = 32;
    /// `status`
    pub const STATUS: usize = 40;
    /// `flags`
    pub const FLAGS: usize = 44;
    /// `fd`: the file that the caller will mmap
    pub const FD: usize = 48;
}

/// `NVOS34_PARAMETERS`: end a CPU mapping.
pub mod nvos34 {
    /// `hClient`
    pub const H_CLIENT: usize = 0;
    /// `hDevice`
    pub const H_DEVICE: usize = 4;
    /// `hMemory`
    pub const H_MEMORY: usize = 8;
    /// `pLinearAddress`: what the driver knows the mapping by
    pub const P_LINEAR: usize = 16;
    /// `status`
    pub const STATUS: usize = 24;
}

/// `NVOS56_PARAMETERS`: give a CPU mapping another address to be known by.
pub mod nvos56 {
    /// `hClient`
    pub const H_CLIENT: usize = 0;
    /// `hDevice`
    pub const H_DEVICE: usize = 4;
    /// `hMemory`
    pub const H_MEMORY: usize = 8;
    /// `pOldCpuAddress`
    pub const P_OLD: usize = 16;
    /// `pNewCpuAddress`
    pub const P_NEW: usize = 24;
    /// `status`
    pub const STATUS: usize = 32;
}

/// `NVOS46_PARAMETERS`: map into a GPU address space.
pub mod nvos46 {
    use crate::{PerRelease, per};
    /// `hClient`
    pub const H_CLIENT: usize = 0;
    /// `hDevice`
    pub const H_DEVICE: usize = 4;
    /// `hDma`
    pub const H_DMA: usize = 8;
    /// `hMemory`
    pub const H_MEMORY: usize = 12;
    /// `offset`, bytes
    pub const OFFSET: usize = 16;
    /// `length`, bytes
    pub const LENGTH: usize = 24;
    /// `flags`
    pub const FLAGS: usize = 32;
    /// `dmaOffset`: GPU virtual address
    pub const DMA_OFFSET: PerRelease = per!(40, R580 48);
    /// `status`
    pub const STATUS: PerRelease = per!(48, R580 56);
}

/// `NVOS47_PARAMETERS`: unmap from a GPU address space.
pub mod nvos47 {
    use crate::{PerRelease, per};
    /// `hClient`
    pub const H_CLIENT: usize = 0;
    /// `hMemory`
    pub const H_MEMORY: usize = 12;
    /// `dmaOffset`: GPU virtual address
    pub const DMA_OFFSET: usize = 24;
    /// `status`
    pub const STATUS: PerRelease = per!(32, R550 40);
}

/// `NVOS54_PARAMETERS`: a control call.
pub mod nvos54 {
    /// `hClient`
    pub const H_CLIENT: usize = 0;
    /// `hObject`
    pub const H_OBJECT: usize = 4;
    /// `cmd`
    pub const CMD: usize = 8;
    /// `flags`; bits 0 and 1: raised IRQL and lock bypass, bit 2: serialised parameters
    pub const FLAGS: usize = 12;
    /// `params`
    pub const P_PARAMS: usize = 16;
    /// `paramsSize`, bytes, checked by the driver
    pub const PARAMS_SIZE: usize = 24;
    /// `status`
    pub const STATUS: usize = 28;
    /// The flags that no tenant may use.
    pub const FORBIDDEN_FLAGS: u32 = 0x7;
}

/// `NVOS55_PARAMETERS`: another handle for an object.
pub mod nvos55 {
    /// `hClient`
    pub const H_CLIENT: usize = 0;
    /// `hParent`
    pub const H_PARENT: usize = 4;
    /// `hObject`
    pub const H_OBJECT: usize = 8;
    /// `hClientSrc`
    pub const H_CLIENT_SRC: usize = 12;
    /// `hObjectSrc`
    pub const H_OBJECT_SRC: usize = 16;
    /// `status`
    pub const STATUS: usize = 24;
}

/// `NVOS57_PARAMETERS`: set a share policy.
pub mod nvos57 {
    /// `hClient`
    pub const H_CLIENT: usize = 0;
    /// `hObject`
    pub const H_OBJECT: usize = 4;
    /// `sharePolicy`, a [`share_policy`](super::share_policy)
    pub const POLICY: usize = 8;
    /// `status`
    pub const STATUS: usize = 20;
}

/// NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS, of NV01_MEMORY_VIRTUAL.
pub mod virtual_params {
    /// `hVASpace`
    pub const H_VA_SPACE: usize = 16;
}

/// `NV_MEMORY_ALLOCATION_PARAMS`, the parameters of the memory classes.
pub mod memory_params {
    /// `flags`
    pub const FLAGS: usize = 8;
    /// `attr`
    pub const ATTR: usize = 24;
    /// `attr2`
    pub const ATTR2: usize = 28;
    /// `size`: bytes asked, then bytes got
    pub const SIZE: usize = 64;
    /// `alignment`, bytes
    pub const ALIGNMENT: usize = 72;
    /// `offset`: physical address, out
    pub const OFFSET: usize = 80;
    /// `limit`: size - 1, out
    pub const LIMIT: usize = 88;
    /// `hVASpace`
    pub const H_VA_SPACE: usize = 108;
    /// `NVOS32_ALLOC_FLAGS_VIRTUAL`: address space, not memory
    pub const FLAG_VIRTUAL: u32 = 0x0008_0000;
    /// `NVOS32_ALLOC_FLAGS_FIXED_ADDRESS_ALLOCATE`: the caller chooses the address
    pub const FLAG_FIXED_ADDRESS: u32 = 0x10;
    /// `NVOS32_ALLOC_FLAGS_ALIGNMENT_HINT`: `alignment` counts
    pub const FLAG_ALIGNMENT_HINT: u32 = 0x80;
    /// `NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE`: `alignment` counts, and the call fails without it
    pub const FLAG_ALIGNMENT_FORCE: u32 = 0x100;
    /// `attr` bits 13:12, compression: 0 is none
    pub const ATTR_COMPRESSION_MASK: u32 = 3 << 12;
    /// `attr` bits 24:23, page size: value 1 is 4 KiB
    pub const ATTR_PAGE_SIZE_4K: u32 = 1 << 23;
    /// `attr` bits 24:23: value 2 is big, 64 KiB
    pub const ATTR_PAGE_SIZE_BIG: u32 = 2 << 23;
    /// `attr` bits 24:23: value 3 is huge, of the size that `attr2` says
    pub const ATTR_PAGE_SIZE_HUGE: u32 = 3 << 23;
    /// Bits of the page size.
    pub const ATTR_PAGE_SIZE_MASK: u32 = 3 << 23;
    /// `attr2` bits 21:20, size of huge pages: values 0 and 1 are 2 MiB
    pub const ATTR2_HUGE_2M: u32 = 1 << 20;
    /// `attr2` bits 21:20: value 2 is 512 MiB
    pub const ATTR2_HUGE_512M: u32 = 2 << 20;
    /// `attr2` bits 21:20: value 3 is 256 GiB, since 570
    pub const ATTR2_HUGE_256G: u32 = 3 << 20;
    /// Bits of the size of huge pages.
    pub const ATTR2_HUGE_MASK: u32 = 3 << 20;
}

/// `NV0080_ALLOC_PARAMETERS`: a device.
pub mod device_params {
    /// `deviceId`: the driver's device instance
    pub const DEVICE_ID: usize = 0;
    /// `hClientShare`: the client whose default address space the device uses
    pub const H_CLIENT_SHARE: usize = 4;
    /// `hTargetClient`
    pub const H_TARGET_CLIENT: usize = 8;
    /// `vaMode`
    pub const VA_MODE: usize = 48;
    /// `NV_DEVICE_ALLOCATION_VAMODE_MULTIPLE_VASPACES`: address spaces are objects of their own
    pub const VA_MODE_MULTIPLE: u32 = 2;
}

/// `NV0005_ALLOC_PARAMETERS`: an event.
pub mod event_params {
    /// `hParentClient`: the client whose object is watched; 0: the allocating one
    pub const H_PARENT_CLIENT: usize = 0;
}

/// `NV83DE_ALLOC_PARAMETERS`: a debugger session.
pub mod debugger_params {
    /// `hAppClient`: the client that is debugged; 0: the allocating one
    pub const H_APP_CLIENT: usize = 4;
}

/// `RS_SHARE_POLICY`: to whom an object may be handed.
pub mod share_policy {
    /// `target`: a client for [`CLIENT`]
    pub const TARGET: usize = 0;
    /// `type`, two bytes
    pub const TYPE: usize = 8;
    /// `action`, one byte
    pub const ACTION: usize = 10;
    /// `RS_SHARE_TYPE_NONE`
    pub const NONE: u16 = 0;
    /// `RS_SHARE_TYPE_ALL`: every client of the driver
    pub const ALL: u16 = 1;
    /// `RS_SHARE_TYPE_OS_SECURITY_TOKEN`: clients of the same effective user or process
    pub const OS_SECURITY_TOKEN: u16 = 2;
    /// `RS_SHARE_TYPE_CLIENT`: one client
    pub const CLIENT: u16 = 3;
    /// `RS_SHARE_TYPE_PID`: clients of the same process
    pub const PID: u16 = 4;
    /// `RS_SHARE_ACTION_FLAG_REVOKE`: takes rights away
    pub const ACTION_REVOKE: u8 = 1;
    /// `RS_SHARE_ACTION_FLAG_REQUIRE`: the policy must hold besides another that grants
    pub const ACTION_REQUIRE: u8 = 2;
}

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

/// `NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS`: a TSG.
pub mod channel_group_params {
    /// `engineType`
    pub const ENGINE_TYPE: usize = 12;
}

/// `NV_CHANNEL_ALLOC_PARAMS`
pub mod channel_params {
    /// `gpFifoOffset`: GPU virtual address of the ring
    pub const GP_FIFO_OFFSET: usize = 8;
    /// `gpFifoEntries`
    pub const GP_FIFO_ENTRIES: usize = 16;
    /// `hContextShare`
    pub const H_CONTEXT_SHARE: usize = 24;
    /// `hVASpace`
    pub const H_VA_SPACE: usize = 28;
    /// `hUserdMemory[0]`
    pub const H_USERD_MEMORY: usize = 32;
    /// `userdOffset[0]`, bytes
    pub const USERD_OFFSET: usize = 64;
    /// `engineType`
    pub const ENGINE_TYPE: usize = 128;
    /// `cid`, out
    pub const CID: usize = 132;
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

/// Engine types of channel groups and channels (`cl2080_notification.h`).
pub mod engine_type {
    /// `NV2080_ENGINE_TYPE_NULL`: not said
    pub const NULL: u32 = 0;
    /// `NV2080_ENGINE_TYPE_GR0`
    pub const GR0: u32 = 1;
    /// `NV2080_ENGINE_TYPE_GR7`
    pub const GR7: u32 = 8;
    /// `NV2080_ENGINE_TYPE_COPY0`
    pub const COPY0: u32 = 9;
    /// `NV2080_ENGINE_TYPE_NVDEC0`
    pub const NVDEC0: u32 = 0x13;
    /// `NV2080_ENGINE_TYPE_NVENC0`
    pub const NVENC0: u32 = 0x1b;
    /// `NV2080_ENGINE_TYPE_NVENC2`
    pub const NVENC2: u32 = 0x1d;
    /// `NV2080_ENGINE_TYPE_NVJPEG0`
    pub const NVJPEG0: u32 = 0x2b;
    /// `NV2080_ENGINE_TYPE_OFA`
    pub const OFA: u32 = 0x33;
    /// `NV2080_ENGINE_TYPE_OFA1`, which no engine of a release before it has as its number.
    pub const OFA1: u32 = 0x3e;
    /// `NV2080_ENGINE_TYPE_NVENC3`: as [`OFA1`].
    pub const NVENC3: u32 = 0x3f;

    /// Whether it is one of the video engines: NVDEC, NVENC, NVJPG or OFA.
    #[must_use]
    pub const fn is_video(engine: u32) -> bool {
        matches!(engine, NVDEC0..=NVENC2 | NVJPEG0..=OFA | OFA1 | NVENC3)
    }
}

/// `NV2080_CTRL_GPU_GET_ENGINE_PARTNERLIST_PARAMS`
pub mod partners {
    /// `numPartners`
    pub const COUNT: usize = 12;
    /// `partnerList`
    pub const LIST: usize = 16;
}

/// `NV_BSP_ALLOCATION_PARAMETERS`, and those of encoders, NVJPG and OFA.
pub mod video_params {
    /// `prohibitMultipleInstances`
    pub const ALONE: usize = 4;
}

/// `NVA0BC_ALLOC_PARAMETERS`: a session of an encoder.
pub mod encoder_session {
    /// `version`: 1 names memory that RM maps into the kernel
    pub const VERSION: usize = 12;
    /// `hMem`
    pub const H_MEM: usize = 16;
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

/// `nv_ioctl_card_info_t`: one entry of CARD_INFO.
pub mod card_info {
    /// Bytes of an entry.
    pub const BYTES: usize = 72;
    /// `valid`, one byte
    pub const VALID: usize = 0;
    /// `pci_info.domain`
    pub const PCI_DOMAIN: usize = 4;
    /// `pci_info.bus`, one byte
    pub const PCI_BUS: usize = 8;
    /// `pci_info.slot`, one byte
    pub const PCI_SLOT: usize = 9;
    /// `pci_info.vendor_id`, two bytes
    pub const PCI_VENDOR: usize = 12;
    /// `pci_info.device_id`, two bytes
    pub const PCI_DEVICE: usize = 14;
    /// `gpu_id`
    pub const GPU_ID: usize = 16;
    /// `fb_size`: length of BAR1, bytes
    pub const FB_SIZE: usize = 48;
    /// `minor_number`: N of `/dev/nvidia<N>`
    pub const MINOR: usize = 56;
}

/// `nv_ioctl_alloc_os_event_t` and `nv_ioctl_free_os_event_t`
pub mod os_event {
    /// `hClient`: half of the event's name; the driver asks nobody whose it is
    pub const H_CLIENT: usize = 0;
    /// `hDevice`
    pub const H_DEVICE: usize = 4;
    /// `fd`: the other half, a number that is never looked up
    pub const FD: usize = 8;
    /// `Status`
    pub const STATUS: usize = 12;
}

/// `nv_ioctl_rm_api_version_t`
pub mod api_version {
    /// `cmd`: 0 strict, `'1'` relaxed, `'2'` query
    pub const CMD: usize = 0;
    /// `reply`: 1 recognised
    pub const REPLY: usize = 4;
    /// `versionString`, 64 bytes
    pub const VERSION: usize = 8;
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
