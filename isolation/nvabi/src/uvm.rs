//! The ioctls of `/dev/nvidia-uvm`: raw numbers without type, size or direction bits (`uvm_ioctl.h`).

use crate::{PerRelease, Release, per};

/// One ioctl of `nvidia-uvm.ko`. The driver compares all 32 bits of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uvm {
    /// The driver's name.
    pub name: &'static str,
    /// The whole command.
    pub cmd: u32,
    /// Bytes of the struct; 0 where the release does not have the call.
    pub size: PerRelease,
    /// Offset of `rmStatus`, the call's result.
    pub status: PerRelease,
}

macro_rules! uvms {
    ($($(#[$doc:meta])* $konst:ident = $cmd:literal, [$($size:tt)+], status [$($status:tt)+];)*) => {
        $($(#[$doc])* pub const $konst: Uvm = Uvm {
            name: stringify!($konst), cmd: $cmd, size: per!($($size)+), status: per!($($status)+),
        };)*
        /// Every UVM call that cgpu decodes.
        pub const ALL: &[Uvm] = &[$($konst),*];
    };
}

uvms! {
    /// Binds the file to the caller's address space.
    UVM_INITIALIZE = 0x3000_0001, [16], status [8];
    /// A group of managed ranges that move together.
    UVM_CREATE_RANGE_GROUP = 23, [16], status [8];
    /// Forgets a group.
    UVM_DESTROY_RANGE_GROUP = 24, [16], status [8];
    /// Registers a VA space of RM.
    UVM_REGISTER_GPU_VASPACE = 25, [32], status [28];
    /// Forgets a VA space.
    UVM_UNREGISTER_GPU_VASPACE = 26, [20], status [16];
    /// Registers a channel.
    UVM_REGISTER_CHANNEL = 27, [56], status [48];
    /// Forgets a channel.
    UVM_UNREGISTER_CHANNEL = 28, [28, R590 12], status [24, R590 8];
    /// Peer access between two cards.
    UVM_ENABLE_PEER_ACCESS = 29, [36], status [32];
    /// Ends peer access.
    UVM_DISABLE_PEER_ACCESS = 30, [36], status [32];
    /// Puts managed ranges into a group.
    UVM_SET_RANGE_GROUP = 31, [32], status [24];
    /// Maps an RM allocation: takes a reference on the physical memory.
    UVM_MAP_EXTERNAL_ALLOCATION = 33, [1200, R550 9264], status [1196, R550 9260];
    /// Frees a range.
    UVM_FREE = 34, [24, R590 16], status [16, R590 8];
    /// Registers a card.
    UVM_REGISTER_GPU = 37, [40], status [36];
    /// Forgets a card.
    UVM_UNREGISTER_GPU = 38, [20], status [16];
    /// Asks whether the cards can reach pageable memory.
    UVM_PAGEABLE_MEM_ACCESS = 39, [8], status [4];
    /// Where managed pages should stay.
    UVM_SET_PREFERRED_LOCATION = 42, [40], status [32, R550 36];
    /// Takes that back.
    UVM_UNSET_PREFERRED_LOCATION = 43, [24], status [16];
    /// Managed pages may have copies on several processors.
    UVM_ENABLE_READ_DUPLICATION = 44, [24], status [16];
    /// Takes that back.
    UVM_DISABLE_READ_DUPLICATION = 45, [24], status [16];
    /// Keeps managed pages mapped on a processor.
    UVM_SET_ACCESSED_BY = 46, [40], status [32];
    /// Takes that back.
    UVM_UNSET_ACCESSED_BY = 47, [40], status [32];
    /// Moves managed pages.
    UVM_MIGRATE = 51, [80], status [72];
    /// Moves the managed pages of a group.
    UVM_MIGRATE_RANGE_GROUP = 53, [32], status [24];
    /// Reserves a range for the launch queue of a running kernel; no memory.
    UVM_MAP_DYNAMIC_PARALLELISM_REGION = 65, [40], status [32];
    /// Unmaps part of an external range.
    UVM_UNMAP_EXTERNAL = 66, [40], status [32];
    /// A pool of semaphores in system memory.
    UVM_ALLOC_SEMAPHORE_POOL = 68, [1184, R550 9248], status [1176, R550 9240];
    /// Asks whether a range is valid.
    UVM_VALIDATE_VA_RANGE = 72, [24], status [16];
    /// Reserves a range for external mappings.
    UVM_CREATE_EXTERNAL_RANGE = 73, [24], status [16];
    /// Binds a second file to the caller's address space.
    UVM_MM_INITIALIZE = 75, [8], status [4];
    /// Memory for peer-to-peer with another device.
    UVM_ALLOC_DEVICE_P2P = 78, [0, R565 56], status [0, R565 52];
}

/// `UVM_DEINITIALIZE`: no parameters; nothing to decode.
pub const UVM_DEINITIALIZE: u32 = 0x3000_0002;

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

/// Offset of `flags` in `UVM_INITIALIZE_PARAMS`.
pub const INITIALIZE_FLAGS: usize = 0;
/// `UVM_INIT_FLAGS_DISABLE_HMM`: pageable memory never moves to a card.
pub const INIT_FLAG_DISABLE_HMM: u32 = 0x1;
/// `UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE`
pub const INIT_FLAG_MULTI_PROCESS: u32 = 0x2;
/// Offset of `uvmFd` in `UVM_MM_INITIALIZE_PARAMS`.
pub const MM_INITIALIZE_FD: usize = 0;
/// Offset of `base` in `UVM_MIGRATE_PARAMS`.
pub const MIGRATE_BASE: usize = 0;
/// Offset of `length` in `UVM_MIGRATE_PARAMS`.
pub const MIGRATE_LENGTH: usize = 8;
