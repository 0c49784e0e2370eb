//! The ioctls of `/dev/nvidia-uvm`: raw numbers without type, size or direction bits (`uvm_ioctl.h`).

use crate::call::{Affinity, Descriptor, Production, optional};
use crate::{PerRelease, Release, per};

/// One ioctl of `nvidia-uvm.ko`: all that is known of the call, apart from what it means for a quota. The driver compares all 32
/// bits of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uvm {
    /// Which one it is: every decision about a call is a `match` on it, without a default.
    pub id: Id,
    /// The driver's name.
    pub name: &'static str,
    /// The whole command.
    pub cmd: u32,
    /// Bytes of the struct; 0 where the release does not have the call.
    pub size: PerRelease,
    /// What a real card's filter does with it.
    pub production: Production,
    /// The process that the driver binds it to.
    pub affinity: Affinity,
    /// Offset of `rmStatus`, the call's result.
    pub status: PerRelease,
    /// Where an open file is named by its number. `rmCtrlFd` is none: it is not read.
    pub descriptor: Option<Descriptor>,
}

macro_rules! uvms {
    ($($(#[$doc:meta])* $id:ident $konst:ident = $cmd:literal, [$($size:tt)+], $production:ident, $affinity:ident,
        status [$($status:tt)+] $(, descriptor $descriptor:ident($fd:expr))?;)*) => {
        /// An ioctl of `nvidia-uvm.ko`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Id {
            $($(#[$doc])* $id,)*
        }
        $($(#[$doc])* pub const $konst: Uvm = Uvm {
            id: Id::$id,
            name: stringify!($konst),
            cmd: $cmd,
            size: per!($($size)+),
            production: Production::$production,
            affinity: Affinity::$affinity,
            status: per!($($status)+),
            descriptor: optional!($(Descriptor::$descriptor($fd))?),
        };)*
        /// Every UVM call that cgpu decodes.
        pub const ALL: &[Uvm] = &[$($konst),*];
    };
}

uvms! {
    /// Binds the file to the caller's address space.
    Initialize UVM_INITIALIZE = 0x3000_0001, [16], Notified, Caller, status [8];
    /// A group of managed ranges that move together.
    CreateRangeGroup UVM_CREATE_RANGE_GROUP = 23, [16], Notified, Any, status [8];
    /// Forgets a group.
    DestroyRangeGroup UVM_DESTROY_RANGE_GROUP = 24, [16], Notified, Any, status [8];
    /// Registers a VA space of RM: takes a reference on it.
    RegisterGpuVaspace UVM_REGISTER_GPU_VASPACE = 25, [32], Notified, CallerInCompat, status [28];
    /// Forgets a VA space.
    UnregisterGpuVaspace UVM_UNREGISTER_GPU_VASPACE = 26, [20], Notified, Any, status [16];
    /// Registers a channel: takes a reference on its group, its number and its instance memory.
    RegisterChannel UVM_REGISTER_CHANNEL = 27, [56], Notified, CallerInCompat, status [48];
    /// Forgets a channel.
    UnregisterChannel UVM_UNREGISTER_CHANNEL = 28, [28, R590 12], Notified, Any, status [24, R590 8];
    /// Peer access between two cards.
    EnablePeerAccess UVM_ENABLE_PEER_ACCESS = 29, [36], Notified, Any, status [32];
    /// Ends peer access.
    DisablePeerAccess UVM_DISABLE_PEER_ACCESS = 30, [36], Notified, Any, status [32];
    /// Puts managed ranges into a group.
    SetRangeGroup UVM_SET_RANGE_GROUP = 31, [32], Notified, Any, status [24];
    /// Maps an RM allocation: takes a reference on the physical memory.
    MapExternalAllocation UVM_MAP_EXTERNAL_ALLOCATION = 33, [1200, R550 9264], Notified, CallerInCompat, status [1196, R550 9260];
    /// Frees a range.
    Free UVM_FREE = 34, [24, R590 16], Notified, Any, status [16, R590 8];
    /// Registers a card.
    RegisterGpu UVM_REGISTER_GPU = 37, [40], Notified, Any, status [36];
    /// Forgets a card.
    UnregisterGpu UVM_UNREGISTER_GPU = 38, [20], Notified, Any, status [16];
    /// Asks whether the cards can reach pageable memory.
    PageableMemAccess UVM_PAGEABLE_MEM_ACCESS = 39, [8], Native, Any, status [4];
    /// Where managed pages should stay.
    SetPreferredLocation UVM_SET_PREFERRED_LOCATION = 42, [40], Notified, Any, status [32, R550 36];
    /// Takes that back.
    UnsetPreferredLocation UVM_UNSET_PREFERRED_LOCATION = 43, [24], Notified, Any, status [16];
    /// Managed pages may have copies on several processors.
    EnableReadDuplication UVM_ENABLE_READ_DUPLICATION = 44, [24], Notified, Any, status [16];
    /// Takes that back.
    DisableReadDuplication UVM_DISABLE_READ_DUPLICATION = 45, [24], Notified, Any, status [16];
    /// Keeps managed pages mapped on a processor.
    SetAccessedBy UVM_SET_ACCESSED_BY = 46, [40], Notified, Any, status [32];
    /// Takes that back.
    UnsetAccessedBy UVM_UNSET_ACCESSED_BY = 47, [40], Notified, Any, status [32];
    /// Moves managed pages.
    Migrate UVM_MIGRATE = 51, [80], Notified, Any, status [72];
    /// Moves the managed pages of a group.
    MigrateRangeGroup UVM_MIGRATE_RANGE_GROUP = 53, [32], Notified, Any, status [24];
    /// Reserves a range for the launch queue of a running kernel; no memory.
    MapDynamicParallelismRegion UVM_MAP_DYNAMIC_PARALLELISM_REGION = 65, [40], Notified, Any, status [32];
    /// Unmaps part of an external range.
    UnmapExternal UVM_UNMAP_EXTERNAL = 66, [40], Notified, Any, status [32];
    /// A pool of semaphores in system memory.
    AllocSemaphorePool UVM_ALLOC_SEMAPHORE_POOL = 68, [1184, R550 9248], Notified, CallerInCompat, status [1176, R550 9240];
    /// Asks whether one card can reach pageable memory.
    PageableMemAccessOnGpu UVM_PAGEABLE_MEM_ACCESS_ON_GPU = 70, [24], Native, Any, status [20];
    /// Asks whether a range is valid.
    ValidateVaRange UVM_VALIDATE_VA_RANGE = 72, [24], Native, Any, status [16];
    /// Reserves a range for external mappings. It holds no memory; its end ends every mapping that is in it.
    CreateExternalRange UVM_CREATE_EXTERNAL_RANGE = 73, [24], Notified, Any, status [16];
    /// Maps nothing over a range: reads are zeros. It takes page tables of the card for all of the range.
    MapExternalSparse UVM_MAP_EXTERNAL_SPARSE = 74, [40], Notified, Any, status [32];
    /// Binds a second file to the caller's address space.
    MmInitialize UVM_MM_INITIALIZE = 75, [8], Native, Caller, status [4], descriptor Resolved(MM_INITIALIZE_FD);
    /// Memory for peer-to-peer with another device.
    AllocDeviceP2p UVM_ALLOC_DEVICE_P2P = 78, [0, R565 56], Notified, Any, status [0, R565 52];
    /// Sets a card's counters of accesses to zero, everybody's.
    ClearAllAccessCounters UVM_CLEAR_ALL_ACCESS_COUNTERS = 79, [0, R565 4], Notified, Any, status [0];
}

/// `UVM_DEINITIALIZE`: no parameters; nothing to decode.
pub const UVM_DEINITIALIZE: u32 = 0x3000_0002;

/// Calls without a row that no tenant may make, by name and command (535 to 595):
/// - queues of events in the caller's memory, of `/dev/nvidia-uvm-tools`, pin its pages, and take memory of the kernel's for each, in no control
///   group (`map_user_pages`, uvm_tools.c). Without a queue that file's other calls do nothing;
/// - populating pageable memory holds the lock of the caller's memory for as long as a large region takes, and the card's faults wait for it
///   (`uvm_api_populate_pageable`, `service_fault_batch`). It is for cards that reach pageable memory, which have no shares;
/// - keeping the pages of a range group where they are brings them to their preferred place first, those never touched as well, for no process:
///   to the host, in no control group (`uvm_range_group_va_range_migrate`, uvm_range_group.c). Without it every group is one that migrates, and
///   SET_RANGE_GROUP and policies bring nothing;
/// - atomics for the whole system in software, on cards that have none in hardware (before Volta): enabling takes every block of managed memory the
///   card's right to atomics, with the lock of the address space held for writing, for which the card's faults wait
///   (`system_wide_atomics_set`, uvm_policy.c). Up to 590.
pub const FORBIDDEN: [(&str, u32); 6] = [
    ("UVM_PREVENT_MIGRATION_RANGE_GROUPS", 40),
    ("UVM_ENABLE_SYSTEM_WIDE_ATOMICS", 54),
    ("UVM_DISABLE_SYSTEM_WIDE_ATOMICS", 55),
    ("UVM_TOOLS_INIT_EVENT_TRACKER", 56),
    ("UVM_POPULATE_PAGEABLE", 71),
    ("UVM_TOOLS_INIT_EVENT_TRACKER_V2", 76),
];

/// The row for a command; `None` where the release lacks the call.
#[must_use]
pub fn row(cmd: u32, release: Release) -> Option<&'static Uvm> {
    ALL.iter()
        .find(|row| row.cmd == cmd && row.size.of(release) != 0)
}

/// Offsets in `UVM_MAP_EXTERNAL_ALLOCATION_PARAMS`.
pub mod map_external {
    use crate::{PerRelease, per};

    /// `base`: GPU virtual address, bytes.
    pub const BASE: usize = 0;
    /// `length` in bytes.
    pub const LENGTH: usize = 8;
    /// `offset` into the allocation, bytes.
    pub const OFFSET: usize = 16;
    /// `perGpuAttributes`: entries of 36 bytes that begin with the card's 16-byte UUID.
    pub const PER_GPU: usize = 24;
    /// Bytes of an entry.
    pub const PER_GPU_BYTES: usize = 36;
    /// `gpuFormatType` of an entry; 0: the memory's own.
    pub const FORMAT: usize = 24;
    /// `gpuCompressionType` of an entry; 0: the memory's own.
    pub const COMPRESSION: usize = 32;
    /// `gpuAttributesCount`
    pub const COUNT: PerRelease = per!(1176, R550 9240);
    /// `rmCtrlFd`
    pub const RM_CTRL_FD: PerRelease = per!(1184, R550 9248);
    /// `hClient`
    pub const H_CLIENT: PerRelease = per!(1188, R550 9252);
    /// `hMemory`
    pub const H_MEMORY: PerRelease = per!(1192, R550 9256);
}

/// Offset of `gpuUuid` in `UVM_UNMAP_EXTERNAL_PARAMS`.
pub const UNMAP_EXTERNAL_UUID: usize = 16;

/// Offset of `gpuUuid` in `UVM_REGISTER_CHANNEL_PARAMS`, `UVM_REGISTER_GPU_VASPACE_PARAMS`, `UVM_UNREGISTER_GPU_VASPACE_PARAMS` and
/// `UVM_UNREGISTER_GPU_PARAMS`, and of `gpu_uuid` in `UVM_REGISTER_GPU_PARAMS`.
pub const REGISTERED_UUID: usize = 0;
/// Offset of `hClient` in `UVM_REGISTER_CHANNEL_PARAMS` and `UVM_REGISTER_GPU_VASPACE_PARAMS`.
pub const REGISTERED_CLIENT: usize = 20;
/// Offset of `hClient` in `UVM_REGISTER_GPU_PARAMS`.
pub const REGISTERED_CARD_CLIENT: usize = 28;
/// Offset of `hChannel` in `UVM_REGISTER_CHANNEL_PARAMS`, of `hVaSpace` in `UVM_REGISTER_GPU_VASPACE_PARAMS`.
pub const REGISTERED_OBJECT: usize = 24;
/// Offset of `hClient` in `UVM_UNREGISTER_CHANNEL_PARAMS`, which names no card since 590.
pub const UNREGISTERED_CLIENT: PerRelease = per!(16, R590 0);
/// Offset of `hChannel` in `UVM_UNREGISTER_CHANNEL_PARAMS`.
pub const UNREGISTERED_CHANNEL: PerRelease = per!(20, R590 4);

/// Bytes of the host's memory that the driver takes for a range of [`UVM_CREATE_EXTERNAL_RANGE`], which no control group counts: a lock and a
/// tree for each of 32 cards, and since 550 of 256 (`UVM_ID_MAX_GPUS`, uvm_processors.h; `uvm_ext_gpu_range_tree_t`, uvm_va_range.h). They are 1.8
/// KiB, then 14.3 KiB, of which the kernel has two in 32 KiB.
pub const EXTERNAL_RANGE_BYTES: PerRelease = per!(4096, R550 16384);

/// Bytes of the host's memory that the driver takes for a file that is initialised, which no control group counts: six masks for each of 33
/// processors, since 550 of 257, and since 570 a table for each NUMA node, of which distributions' kernels may have 1024 (`uvm_va_space_t`,
/// uvm_va_space.h). A second file
/// ([`UVM_MM_INITIALIZE`]) keeps the first one's, also when that is closed.
pub const FILE_BYTES: PerRelease = per!(16384, R550 98304, R570 360448);

/// Offset of `gpuUuid` in `UVM_MAP_DYNAMIC_PARALLELISM_REGION_PARAMS`.
pub const MAP_REGION_UUID: usize = 16;
/// Offset of `rangeGroupId` in `UVM_CREATE_RANGE_GROUP_PARAMS`, out, and in `UVM_DESTROY_RANGE_GROUP_PARAMS`.
pub const RANGE_GROUP_ID: usize = 0;
/// Offset of `flags` in `UVM_INITIALIZE_PARAMS`.
pub const INITIALIZE_FLAGS: usize = 0;
/// `UVM_INIT_FLAGS_DISABLE_HMM`: pageable memory never moves to a card.
pub const INIT_FLAG_DISABLE_HMM: u32 = 0x1;
/// `UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE`
pub const INIT_FLAG_MULTI_PROCESS: u32 = 0x2;
/// Offset of `uvmFd` in `UVM_MM_INITIALIZE_PARAMS`.
pub const MM_INITIALIZE_FD: usize = 0;
/// Offset of `requestedBase` in `UVM_SET_RANGE_GROUP_PARAMS`; the structs of policies begin with it. `length` is behind it.
pub const SET_RANGE_GROUP_BASE: usize = 8;
/// Offset of `base` in `UVM_MIGRATE_PARAMS`.
pub const MIGRATE_BASE: usize = 0;
/// Offset of `length` in `UVM_MIGRATE_PARAMS`.
pub const MIGRATE_LENGTH: usize = 8;
