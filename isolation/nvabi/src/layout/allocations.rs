//! Parameters of allocations, by class, and the numbers of engines in them.

use super::{Field, structs};

structs! {
    /// Of NV01_MEMORY_VIRTUAL.
    mod virtual_params "NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS" {
        H_VA_SPACE "hVASpace" = 16;
    }
    /// The parameters of the memory classes.
    mod memory_params "NV_MEMORY_ALLOCATION_PARAMS" {
        FLAGS "flags" = 8;
        ATTR "attr" = 24;
        ATTR2 "attr2" = 28;
        /// bytes asked, then bytes got
        SIZE "size" = 64;
        /// bytes
        ALIGNMENT "alignment" = 72;
        /// physical address, out
        OFFSET "offset" = 80;
        /// size - 1, out
        LIMIT "limit" = 88;
        H_VA_SPACE "hVASpace" = 108;
    } and {
        /// address space, not memory
        FLAG_VIRTUAL "NVOS32_ALLOC_FLAGS_VIRTUAL": u32 = 0x0008_0000;
        /// `NVOS32_ALLOC_FLAGS_LAZY`: of address space, page tables are made when something is mapped into it
        FLAG_LAZY: u32 = 0x0000_0400;
        /// `NVOS32_ALLOC_FLAGS_SPARSE`: of address space, what is not mapped reads as zeros; it takes page tables at once
        FLAG_SPARSE: u32 = 0x0400_0000;
        /// `NVOS32_ALLOC_FLAGS_EXTERNALLY_MANAGED`: of address space, whose page tables are not RM's
        FLAG_EXTERNALLY_MANAGED: u32 = 0x0040_0000;
        /// `NVOS32_ALLOC_FLAGS_USE_BEGIN_END`: `rangeLo` and `rangeHi` say where
        FLAG_USE_BEGIN_END: u32 = 0x0002_0000;
        /// `NVOS32_ALLOC_FLAGS_FIXED_ADDRESS_ALLOCATE`: the caller chooses the address
        FLAG_FIXED_ADDRESS: u32 = 0x10;
        /// `NVOS32_ALLOC_FLAGS_ALIGNMENT_HINT`: `alignment` counts
        FLAG_ALIGNMENT_HINT: u32 = 0x80;
        /// `NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE`: `alignment` counts, and the call fails without it
        FLAG_ALIGNMENT_FORCE: u32 = 0x100;
        /// `attr` bits 26:25, location: 0 is the card's memory, and all else is system memory (rmapi_deprecated_vidheapctrl.c, 535 to 595)
        ATTR_LOCATION_MASK: u32 = 3 << 25;
        /// `attr` bits 28:27, physicality: value 0 is the driver's default
        ATTR_PHYSICALITY_MASK: u32 = 3 << 27;
        /// `attr` bits 28:27: value 2 is contiguous
        ATTR_PHYSICALITY_CONTIGUOUS: u32 = 2 << 27;
        /// `attr` bits 13:12, compression: 0 is none
        ATTR_COMPRESSION_MASK: u32 = 3 << 12;
        /// `attr` bits 24:23, page size: value 1 is 4 KiB
        ATTR_PAGE_SIZE_4K: u32 = 1 << 23;
        /// `attr` bits 24:23: value 2 is big, 64 KiB
        ATTR_PAGE_SIZE_BIG: u32 = 2 << 23;
        /// `attr` bits 24:23: value 3 is huge, of the size that `attr2` says
        ATTR_PAGE_SIZE_HUGE: u32 = 3 << 23;
        /// Bits of the page size.
        ATTR_PAGE_SIZE_MASK: u32 = 3 << 23;
        /// `attr2` bit 7, `NVOS32_ATTR2_FIXED_NUMA_NODE_ID`: `numaNode` says of which node; up to 535 of a tile, which is no card's any more
        ATTR2_FIXED_NUMA_NODE: u32 = 1 << 7;
        /// `attr2` bit 31, `NVOS32_ATTR2_REGISTER_MEMDESC_TO_PHYS_RM`, since 550
        ATTR2_REGISTERED: u32 = 1 << 31;
        /// `attr2` bits 21:20, size of huge pages: values 0 and 1 are 2 MiB
        ATTR2_HUGE_2M: u32 = 1 << 20;
        /// `attr2` bits 21:20: value 2 is 512 MiB
        ATTR2_HUGE_512M: u32 = 2 << 20;
        /// `attr2` bits 21:20: value 3 is 256 GiB, since 570
        ATTR2_HUGE_256G: u32 = 3 << 20;
        /// `attr2` bit 24, memory of other hosts' (`NVOS32_ATTR2_USE_EGM`): the heap call makes `NV_MEMORY_EXTENDED_USER` of it
        ATTR2_USE_EGM: u32 = 1 << 24;
        /// `attr2` bits 30:29, memory beside one half of the GPU, on GB100 (`NVOS32_ATTR2_ENABLE_LOCALIZED_MEMORY`, 580 and later)
        ATTR2_LOCALIZED_MASK: u32 = 3 << 29;
        /// Bits of the size of huge pages.
        ATTR2_HUGE_MASK: u32 = 3 << 20;
    }
    /// A device.
    mod device_params "NV0080_ALLOC_PARAMETERS" {
        /// the driver's device instance
        DEVICE_ID "deviceId" = 0;
        /// the client whose default address space the device uses
        H_CLIENT_SHARE "hClientShare" = 4;
        H_TARGET_CLIENT "hTargetClient" = 8;
        VA_MODE "vaMode" = 48;
    } and {
        /// address spaces are objects of their own
        VA_MODE_MULTIPLE "NV_DEVICE_ALLOCATION_VAMODE_MULTIPLE_VASPACES": u32 = 2;
    }
    /// An address space.
    mod va_space_params "NV_VASPACE_ALLOCATION_PARAMETERS" {
        INDEX "index" = 0;
        FLAGS "flags" = 4;
    } and {
        /// one that is made
        INDEX_NEW "NV_VASPACE_ALLOCATION_INDEX_GPU_NEW": u32 = 0;
        /// the device's default one
        INDEX_DEVICE "NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE": u32 = 3;
        /// a hint
        FLAG_MINIMIZE_PTETABLE_SIZE "NV_VASPACE_ALLOCATION_FLAGS_MINIMIZE_PTETABLE_SIZE": u32 = 1 << 0;
        /// page tables may be in the host's memory, which is the default
        FLAG_RETRY_PTE_ALLOC_IN_SYS "NV_VASPACE_ALLOCATION_FLAGS_RETRY_PTE_ALLOC_IN_SYS": u32 = 1 << 1;
        /// a part of it is nvidia-uvm's
        FLAG_SHARED_MANAGEMENT "NV_VASPACE_ALLOCATION_FLAGS_SHARED_MANAGEMENT": u32 = 1 << 2;
        /// nvidia-uvm owns its page tables
        FLAG_IS_EXTERNALLY_OWNED "NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED": u32 = 1 << 3;
        /// the process's own page tables count too, where the machine has that
        FLAG_ENABLE_NVLINK_ATS "NV_VASPACE_ALLOCATION_FLAGS_ENABLE_NVLINK_ATS": u32 = 1 << 4;
        FLAG_ENABLE_PAGE_FAULTING "NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING": u32 = 1 << 6;
        /// less is kept for page tables in advance
        FLAG_OPTIMIZE_PTETABLE_MEMPOOL_USAGE "NV_VASPACE_ALLOCATION_FLAGS_OPTIMIZE_PTETABLE_MEMPOOL_USAGE": u32 = 1 << 11;
        /// every allocation in it names its address
        FLAG_REQUIRE_FIXED_OFFSET "NV_VASPACE_ALLOCATION_FLAGS_REQUIRE_FIXED_OFFSET": u32 = 1 << 12;
    }
    /// An event.
    mod event_params "NV0005_ALLOC_PARAMETERS" {
        /// the client whose object is watched; 0: the allocating one
        H_PARENT_CLIENT "hParentClient" = 0;
        /// the object that is watched
        H_SRC_RESOURCE "hSrcResource" = 4;
        /// what of it is reported, with flags
        NOTIFY_INDEX "notifyIndex" = 12;
        /// the number of an OS event
        DATA "data" = 16;
    } and {
        /// of `notifyIndex`: of an engine's interrupts that stop nothing, of whichever channel
        NONSTALL_INTR "NV01_EVENT_NONSTALL_INTR": u32 = 0x0800_0000;
        /// of `notifyIndex`: who waits is woken, and no record is kept for GET_EVENT_DATA
        WITHOUT_EVENT_DATA "NV01_EVENT_WITHOUT_EVENT_DATA": u32 = 0x1000_0000;
    }
    /// A debugger session.
    mod debugger_params "NV83DE_ALLOC_PARAMETERS" {
        /// the client that is debugged; 0: the allocating one
        H_APP_CLIENT "hAppClient" = 4;
    }
    /// A TSG.
    mod channel_group_params "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS" {
        ENGINE_TYPE "engineType" = 12;
        /// `bIsCallingContextVgpuPlugin`, one byte
        OF_A_PLUGIN = 16;
    }
    mod channel_params "NV_CHANNEL_ALLOC_PARAMS" {
        /// `hObjectError`
        H_OBJECT_ERROR = 0;
        /// GPU virtual address of the ring
        GP_FIFO_OFFSET "gpFifoOffset" = 8;
        GP_FIFO_ENTRIES "gpFifoEntries" = 16;
        /// `flags`, of `NVOS04_FLAGS`
        FLAGS = 20;
        H_CONTEXT_SHARE "hContextShare" = 24;
        H_VA_SPACE "hVASpace" = 28;
        /// the first of [`USERD_MEMORIES`]
        H_USERD_MEMORY "hUserdMemory" = 32;
        /// the first of as many, bytes
        USERD_OFFSET "userdOffset" = 64;
        ENGINE_TYPE "engineType" = 128;
        /// out
        CID "cid" = 132;
        /// `hObjectEccError`
        H_OBJECT_ECC_ERROR = 140;
    } and {
        /// Of `NVOS04_FLAGS`: CC_SECURE, PRIVILEGED_CHANNEL, USERD_INDEX_VALUE to USERD_INDEX_PAGE_FIXED, VGPU_PLUGIN_CONTEXT.
        NOT_A_TENANTS: u32 = 1 << 2 | 1 << 5 | 0x3fff << 8 | 1 << 26;
        /// Bytes of one channel's USERD (`NV_RAMUSERD_CHAN_SIZE`).
        USERD_BYTES: u64 = 512;
        /// Places in `hUserdMemory` (`NV_MAX_SUBDEVICES`)
        USERD_MEMORIES: usize = 8;
    }
    /// Of decoders; those of encoders, NVJPG and OFA have the field at the same place.
    mod video_params "NV_BSP_ALLOCATION_PARAMETERS" {
        ALONE "prohibitMultipleInstances" = 4;
    }
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
    /// `NV2080_ENGINE_TYPE_COPY9`
    pub const COPY9: u32 = 0x12;
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
    /// `NV2080_ENGINE_TYPE_COMP_DECOMP_COPY0`: another name of [`COPY0`] (gpu_engine_type.c), and so on.
    pub const DECOMPRESSING_COPY0: u32 = 0x40;
    /// `NV2080_ENGINE_TYPE_COMP_DECOMP_COPY9`
    pub const DECOMPRESSING_COPY9: u32 = 0x49;

    /// Which of the first ten copy engines it is.
    #[must_use]
    pub const fn copy_of(engine: u32) -> Option<u32> {
        match engine {
            COPY0..=COPY9 => Some(engine - COPY0),
            DECOMPRESSING_COPY0..=DECOMPRESSING_COPY9 => Some(engine - DECOMPRESSING_COPY0),
            _ => None,
        }
    }

    /// Whether it is one of the video engines: NVDEC, NVENC, NVJPG or OFA.
    #[must_use]
    pub const fn is_video(engine: u32) -> bool {
        matches!(engine, NVDEC0..=NVENC2 | NVJPEG0..=OFA | OFA1 | NVENC3)
    }
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
