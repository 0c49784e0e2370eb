//! The ioctls of `/dev/nvidiactl` and `/dev/nvidia<N>`.
//!
//! `nvidia.ko` looks only at the number and the size bits of the command; the type byte and the direction are ignored
//! (kernel-open/nvidia/nv.c). So a row is keyed by (number, size): see [`key`].

use crate::{PerRelease, Release, per};

/// The bits of an ioctl command that the driver looks at: number (7:0) and size (29:16).
pub const KEY_MASK: u32 = 0x3fff_00ff;

/// `IOC_TYPE` of the driver's own headers, `'F'`.
pub const NV_IOCTL_MAGIC: u8 = b'F';

/// What the driver sees of a command.
#[must_use]
pub const fn key(cmd: u32) -> u32 {
    cmd & KEY_MASK
}

/// Which of the driver's files an escape belongs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// `/dev/nvidiactl`
    Ctl,
    /// `/dev/nvidia<N>`
    Card,
    /// either
    Any,
}

/// One ioctl of `nvidia.ko`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Escape {
    /// The driver's name.
    pub name: &'static str,
    /// The ioctl number.
    pub nr: u8,
    /// Bytes of the struct; 0 where the release does not have the call.
    pub size: PerRelease,
    /// The file that the driver wants it on.
    pub on: On,
}

impl Escape {
    /// The key (number and size) in a release; `None` where the release lacks the call.
    #[must_use]
    pub const fn key(&self, release: Release) -> Option<u32> {
        let size = self.size.of(release);
        if size == 0 {
            None
        } else {
            Some((size << 16) | self.nr as u32)
        }
    }

    /// The command as the driver's headers spell it: read and write, type `'F'`.
    #[must_use]
    pub const fn cmd(&self, release: Release) -> u32 {
        0xc000_0000
            | (self.size.of(release) << 16)
            | ((NV_IOCTL_MAGIC as u32) << 8)
            | self.nr as u32
    }
}

macro_rules! escapes {
    ($($(#[$doc:meta])* $konst:ident = $nr:literal, [$($size:tt)+], $on:ident;)*) => {
        $($(#[$doc])* pub const $konst: Escape = Escape {
            name: stringify!($konst), nr: $nr, size: per!($($size)+), on: On::$on,
        };)*
        /// Every escape that cgpu decodes. CARD_INFO and ATTACH_GPUS_TO_FD, whose size depends on a count, are not here.
        pub const ALL: &[Escape] = &[$($konst),*];
    };
}

escapes! {
    /// Allocates memory (NVOS02 and an fd).
    NV_ESC_RM_ALLOC_MEMORY = 0x27, [56], Card;
    /// Old allocation call; refused.
    NV_ESC_RM_ALLOC_OBJECT = 0x28, [20], Ctl;
    /// Frees an object with its children (NVOS00).
    NV_ESC_RM_FREE = 0x29, [16], Ctl;
    /// A control call (NVOS54).
    NV_ESC_RM_CONTROL = 0x2a, [32], Ctl;
    /// Allocates an object (NVOS21).
    NV_ESC_RM_ALLOC = 0x2b, [32], Ctl;
    /// Allocates an object, long form (NVOS64).
    NV_ESC_RM_ALLOC_LONG = 0x2b, [48], Ctl;
    /// Another handle for an object (NVOS55).
    NV_ESC_RM_DUP_OBJECT = 0x34, [28], Ctl;
    /// Sets a share policy (NVOS57).
    NV_ESC_RM_SHARE = 0x35, [24], Ctl;
    /// Talks to the board's I2C buses; refused.
    NV_ESC_RM_I2C_ACCESS = 0x39, [32], Card;
    /// Waits for channels (NVOS30).
    NV_ESC_RM_IDLE_CHANNELS = 0x41, [56], Ctl;
    /// The deprecated heap call (NVOS32).
    NV_ESC_RM_VID_HEAP_CONTROL = 0x4a, [184], Ctl;
    /// Registry access; refused.
    NV_ESC_RM_ACCESS_REGISTRY = 0x4d, [72], Ctl;
    /// Prepares a CPU mapping (NVOS33 and an fd).
    NV_ESC_RM_MAP_MEMORY = 0x4e, [56], Ctl;
    /// Ends a CPU mapping (NVOS34).
    NV_ESC_RM_UNMAP_MEMORY = 0x4f, [32], Ctl;
    /// Maps memory into a GPU address space (NVOS46).
    NV_ESC_RM_MAP_MEMORY_DMA = 0x57, [56, R580 64], Ctl;
    /// Unmaps memory from a GPU address space (NVOS47).
    NV_ESC_RM_UNMAP_MEMORY_DMA = 0x58, [40, R550 48], Ctl;
    /// Tells the driver that a CPU mapping moved (NVOS56).
    NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO = 0x5e, [40], Ctl;
    /// Binds a device file to a control file.
    NV_ESC_REGISTER_FD = 201, [4], Any;
    /// Registers an event file descriptor.
    NV_ESC_ALLOC_OS_EVENT = 206, [16], Any;
    /// Forgets an event file descriptor.
    NV_ESC_FREE_OS_EVENT = 207, [16], Any;
    /// Compares or asks the version string.
    NV_ESC_CHECK_VERSION_STR = 210, [72], Any;
    /// Carries any other command; refused.
    NV_ESC_IOCTL_XFER_CMD = 211, [16], Any;
    /// Page-block size of the host.
    NV_ESC_SYS_PARAMS = 214, [8], Any;
    /// Exports memory as a dma-buf.
    NV_ESC_EXPORT_TO_DMABUF_FD = 217, [2600, R570 2608], Card;
    /// Waits until a deferred open has ended.
    NV_ESC_WAIT_OPEN_COMPLETE = 218, [0, R550 8], Card;
}

/// `NV_ESC_CARD_INFO`: an array of 72-byte entries; any count the caller likes.
pub const NV_ESC_CARD_INFO: u8 = 200;
/// `NV_ESC_ATTACH_GPUS_TO_FD`: an array of `u32` GPU ids.
pub const NV_ESC_ATTACH_GPUS_TO_FD: u8 = 212;

/// The row for a command, by number and size as the driver looks it up.
#[must_use]
pub fn row(cmd: u32, release: Release) -> Option<&'static Escape> {
    ALL.iter().find(|row| row.key(release) == Some(key(cmd)))
}
