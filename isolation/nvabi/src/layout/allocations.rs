//! Parameters of allocations, by class, and the numbers of engines in them.

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
    /// `NVOS32_ALLOC_FLAGS_LAZY`: of address space, page tables are made when something is mapped into it
    pub const FLAG_LAZY: u32 = 0x0000_0400;
    /// `NVOS32_ALLOC_FLAGS_SPARSE`: of address space, what is not mapped reads as zeros; it takes page tables at once
    pub const FLAG_SPARSE: u32 = 0x0400_0000;
    /// `NVOS32_ALLOC_FLAGS_EXTERNALLY_MANAGED`: of address space, whose page tables are not RM's
    pub const FLAG_EXTERNALLY_MANAGED: u32 = 0x0040_0000;
    /// `NVOS32_ALLOC_FLAGS_USE_BEGIN_END`: `rangeLo` and `rangeHi` say where
    pub const FLAG_USE_BEGIN_END: u32 = 0x0002_0000;
    /// `NVOS32_ALLOC_FLAGS_FIXED_ADDRESS_ALLOCATE`: the caller chooses the address
    pub const FLAG_FIXED_ADDRESS: u32 = 0x10;
    /// `NVOS32_ALLOC_FLAGS_ALIGNMENT_HINT`: `alignment` counts
    pub const FLAG_ALIGNMENT_HINT: u32 = 0x80;
    /// `NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE`: `alignment` counts, and the call fails without it
    pub const FLAG_ALIGNMENT_FORCE: u32 = 0x100;
    /// `attr` bits 26:25, location: 0 is the card's memory, and all else is system memory (rmapi_deprecated_vidheapctrl.c, 535 to 595)
    pub const ATTR_LOCATION_MASK: u32 = 3 << 25;
    /// `attr` bits 28:27, physicality: value 0 is the driver's default
    pub const ATTR_PHYSICALITY_MASK: u32 = 3 << 27;
    /// `attr` bits 28:27: value 2 is contiguous
    pub const ATTR_PHYSICALITY_CONTIGUOUS: u32 = 2 << 27;
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
    /// `attr2` bit 24, memory of other hosts' (`NVOS32_ATTR2_USE_EGM`): the heap call makes `NV_MEMORY_EXTENDED_USER` of it
    pub const ATTR2_USE_EGM: u32 = 1 << 24;
    /// `attr2` bits 30:29, memory beside one half of the GPU, on GB100 (`NVOS32_ATTR2_ENABLE_LOCALIZED_MEMORY`, 580 and later)
    pub const ATTR2_LOCALIZED_MASK: u32 = 3 << 29;
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

/// `NV_VASPACE_ALLOCATION_PARAMETERS`: an address space.
pub mod va_space_params {
    /// `index`
    pub const INDEX: usize = 0;
    /// `flags`
    pub const FLAGS: usize = 4;
    /// `NV_VASPACE_ALLOCATION_INDEX_GPU_NEW`: one that is made
    pub const INDEX_NEW: u32 = 0;
    /// `NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE`: the device's default one
    pub const INDEX_DEVICE: u32 = 3;
    /// `NV_VASPACE_ALLOCATION_FLAGS_MINIMIZE_PTETABLE_SIZE`: a hint
    pub const FLAG_MINIMIZE_PTETABLE_SIZE: u32 = 1 << 0;
    /// `NV_VASPACE_ALLOCATION_FLAGS_RETRY_PTE_ALLOC_IN_SYS`: page tables may be in the host's memory, which is the default
    pub const FLAG_RETRY_PTE_ALLOC_IN_SYS: u32 = 1 << 1;
    /// `NV_VASPACE_ALLOCATION_FLAGS_SHARED_MANAGEMENT`: a part of it is nvidia-uvm's
    pub const FLAG_SHARED_MANAGEMENT: u32 = 1 << 2;
    /// `NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED`: nvidia-uvm owns its page tables
    pub const FLAG_IS_EXTERNALLY_OWNED: u32 = 1 << 3;
    /// `NV_VASPACE_ALLOCATION_FLAGS_ENABLE_NVLINK_ATS`: the process's own page tables count too, where the machine has that
    pub const FLAG_ENABLE_NVLINK_ATS: u32 = 1 << 4;
    /// `NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING`
    pub const FLAG_ENABLE_PAGE_FAULTING: u32 = 1 << 6;
    /// `NV_VASPACE_ALLOCATION_FLAGS_OPTIMIZE_PTETABLE_MEMPOOL_USAGE`: less is kept for page tables in advance
    pub const FLAG_OPTIMIZE_PTETABLE_MEMPOOL_USAGE: u32 = 1 << 11;
    /// `NV_VASPACE_ALLOCATION_FLAGS_REQUIRE_FIXED_OFFSET`: every allocation in it names its address
    pub const FLAG_REQUIRE_FIXED_OFFSET: u32 = 1 << 12;
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
    /// Places in `hUserdMemory` (`NV_MAX_SUBDEVICES`)
    pub const USERD_MEMORIES: usize = 8;
    /// `userdOffset[0]`, bytes
    pub const USERD_OFFSET: usize = 64;
    /// `engineType`
    pub const ENGINE_TYPE: usize = 128;
    /// `cid`, out
    pub const CID: usize = 132;
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

/// `NV_CONTEXT_DMA_ALLOCATION_PARAMS`: a context DMA.
pub mod context_dma {
    use crate::bytes::u32_at;

    /// `flags`, of `NVOS03_FLAGS`
    pub const FLAGS: usize = 4;
    /// `hMemory`
    pub const H_MEMORY: usize = 8;
    /// `limit`: the last byte, counted from `offset`
    pub const LIMIT: usize = 24;
    /// The lowest bit of `NVOS03_FLAGS_TYPE`, which is `NVOS03_FLAGS_MAPPING` too.
    const MAPPED_FOR_THE_KERNEL: u32 = 1 << 20;
    /// A notifier is 16 bytes, and nobody has more than a page of them.
    pub const MOST_NOTIFIER_BYTES: u64 = 4096;

    /// Whether RM maps the memory for the kernel: a notifier.
    #[must_use]
    pub fn is_mapped_for_the_kernel(params: &[u8]) -> bool {
        u32_at(params, FLAGS).is_some_and(|flags| flags & MAPPED_FOR_THE_KERNEL != 0)
    }
}

/// `NV503B_ALLOC_PARAMETERS`: a peer-to-peer connection of two cards.
pub mod peer_to_peer {
    /// What RM chooses where it is 0: `subDevicePeerIdMask`, `peerSubDevicePeerIdMask`, `mailboxBar1Addr` and `mailboxTotalSize` word by word,
    /// `subDeviceEgmPeerIdMask`, `peerSubDeviceEgmPeerIdMask`.
    pub const CHOSEN_BY_RM: [usize; 7] = [8, 12, 16, 20, 24, 32, 36];
}
