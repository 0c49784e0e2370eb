//! The ioctls of `/dev/nvidiactl` and `/dev/nvidia<N>`.
//!
//! `nvidia.ko` looks only at the number and the size bits of the command; the type byte and the direction are ignored
//! (kernel-open/nvidia/nv.c). So a row is keyed by (number, size): see [`key`].

use crate::call::{Affinity, Descriptor, Params, Production, optional};
use crate::layout::{
    nvos00, nvos02, nvos21, nvos30, nvos32, nvos33, nvos34, nvos46, nvos47, nvos54, nvos55, nvos56,
    nvos57, nvos64, os_event,
};
use crate::{PerRelease, Release, at, per};

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

/// One ioctl of `nvidia.ko`: all that is known of the call, apart from what it means for a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Escape {
    /// Which one it is: every decision about a call is a `match` on it, without a default.
    pub id: Id,
    /// The driver's name.
    pub name: &'static str,
    /// The driver's name of the struct; `None` for one that no header of the drivers in use has.
    pub layout: Option<&'static str>,
    /// The ioctl number.
    pub nr: u8,
    /// Bytes of the struct; 0 where the release does not have the call.
    pub size: PerRelease,
    /// The file that the driver wants it on.
    pub on: On,
    /// What a real card's filter does with it.
    pub production: Production,
    /// The process that the driver binds it to.
    pub affinity: Affinity,
    /// Offset of the struct's status; `None` for calls that answer by errno alone.
    pub status: Option<PerRelease>,
    /// What decides about the parameters that the struct points to; `None`: it points to none.
    pub params: Option<Params>,
    /// Offsets of pointers that the driver follows in whoever makes the call, or writes an address of its own to. A call without
    /// them may hold addresses all the same, which the driver compares and never follows.
    pub pointers: &'static [usize],
    /// Offset of the handle of what the call makes.
    pub makes: Option<usize>,
    /// Where an open file is named by its number (escape.c, osapi.c).
    pub descriptor: Option<Descriptor>,
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
    ($($(#[$doc:meta])* $id:ident $konst:ident = $nr:literal, $($layout:literal)? [$($size:tt)+], $on:ident, $production:ident, $affinity:ident
        $(, status $status:expr)? $(, params $params:ident)? $(, pointers [$($pointer:expr),*])? $(, makes $makes:expr)? $(, descriptor $descriptor:ident($fd:expr))?;)*) => {
        /// An ioctl of `nvidia.ko` with a row of its own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Id {
            $($(#[$doc])* $id,)*
        }
        $($(#[$doc])* pub const $konst: Escape = Escape {
            id: Id::$id,
            name: stringify!($konst),
            layout: optional!($($layout)?),
            nr: $nr,
            size: per!($($size)+),
            on: On::$on,
            production: Production::$production,
            affinity: Affinity::$affinity,
            status: optional!($($status)?),
            params: optional!($(Params::$params)?),
            pointers: &[$($($pointer),*)?],
            makes: optional!($($makes)?),
            descriptor: optional!($(Descriptor::$descriptor($fd))?),
        };)*
        /// Every escape that cgpu decodes. CARD_INFO and ATTACH_GPUS_TO_FD, whose size depends on a count, are not here.
        pub const ALL: &[Escape] = &[$($konst),*];
    };
}

escapes! {
    /// Allocates memory (NVOS02 and an fd).
    AllocMemory NV_ESC_RM_ALLOC_MEMORY = 0x27, "nv_ioctl_nvos02_parameters_with_fd" [56], Card, Notified, CallerInCompat,
        status at(nvos02::STATUS), pointers [nvos02::P_MEMORY], makes nvos02::H_NEW, descriptor Resolved(nvos02::FD);
    /// Old allocation call, without a size.
    AllocObject NV_ESC_RM_ALLOC_OBJECT = 0x28, [20], Ctl, Forbidden, Any;
    /// Frees an object with its children (NVOS00).
    Free NV_ESC_RM_FREE = 0x29, "NVOS00_PARAMETERS" [16], Ctl, Notified, Any, status at(nvos00::STATUS);
    /// A control call (NVOS54).
    Control NV_ESC_RM_CONTROL = 0x2a, "NVOS54_PARAMETERS" [32], Ctl, Notified, Any, status at(nvos54::STATUS), params Control, pointers [nvos54::P_PARAMS];
    /// Allocates an object (NVOS21).
    Alloc NV_ESC_RM_ALLOC = 0x2b, "NVOS21_PARAMETERS" [32], Ctl, Notified, Any, status at(nvos21::STATUS), params Class, pointers [nvos21::P_PARAMS], makes nvos21::H_NEW;
    /// Allocates an object, long form (NVOS64).
    AllocLong NV_ESC_RM_ALLOC_LONG = 0x2b, "NVOS64_PARAMETERS" [48], Ctl, Notified, Any,
        status at(nvos64::STATUS), params Class, pointers [nvos21::P_PARAMS, nvos64::P_RIGHTS], makes nvos21::H_NEW;
    /// Another handle for an object (NVOS55).
    DupObject NV_ESC_RM_DUP_OBJECT = 0x34, "NVOS55_PARAMETERS" [28], Ctl, Notified, Any, status at(nvos55::STATUS), makes nvos55::H_OBJECT;
    /// Sets a share policy (NVOS57).
    Share NV_ESC_RM_SHARE = 0x35, "NVOS57_PARAMETERS" [24], Ctl, Notified, Any, status at(nvos57::STATUS);
    /// Talks to the board's I2C buses.
    I2cAccess NV_ESC_RM_I2C_ACCESS = 0x39, "NVOS_I2C_ACCESS_PARAMS" [32], Card, Forbidden, Any;
    /// Waits for channels (NVOS30): three lists of handles, which are not carried.
    IdleChannels NV_ESC_RM_IDLE_CHANNELS = 0x41, "NVOS30_PARAMETERS" [56], Ctl, Notified, Any, status at(nvos30::STATUS),
        pointers [nvos30::P_CLIENTS, nvos30::P_DEVICES, nvos30::P_CHANNELS];
    /// The deprecated heap call (NVOS32), whose pointers its function decides.
    VidHeapControl NV_ESC_RM_VID_HEAP_CONTROL = 0x4a, "NVOS32_PARAMETERS" [184], Ctl, Notified, Any, status at(nvos32::STATUS), makes nvos32::ALLOC_H_MEMORY;
    /// Registry access.
    AccessRegistry NV_ESC_RM_ACCESS_REGISTRY = 0x4d, "NVOS38_PARAMETERS" [72], Ctl, Forbidden, Any;
    /// Prepares a CPU mapping (NVOS33 and an fd).
    MapMemory NV_ESC_RM_MAP_MEMORY = 0x4e, "nv_ioctl_nvos33_parameters_with_fd" [56], Ctl, Notified, CallerInCompat,
        status at(nvos33::STATUS), pointers [nvos33::P_LINEAR], descriptor Resolved(nvos33::FD);
    /// Ends a CPU mapping (NVOS34), which the driver finds for the process alone that made it.
    UnmapMemory NV_ESC_RM_UNMAP_MEMORY = 0x4f, "NVOS34_PARAMETERS" [32], Ctl, Notified, CallerInCompat, status at(nvos34::STATUS);
    /// Old allocation call of a context DMA (NVOS39): of any class, below whatever its memory is below (`RmDeprecatedAllocContextDma`).
    AllocContextDma2 NV_ESC_RM_ALLOC_CONTEXT_DMA2 = 0x54, [56], Ctl, Forbidden, Any;
    /// Maps memory into a GPU address space (NVOS46).
    MapMemoryDma NV_ESC_RM_MAP_MEMORY_DMA = 0x57, "NVOS46_PARAMETERS" [56, R580 64], Ctl, Notified, Any, status nvos46::STATUS;
    /// Unmaps memory from a GPU address space (NVOS47).
    UnmapMemoryDma NV_ESC_RM_UNMAP_MEMORY_DMA = 0x58, "NVOS47_PARAMETERS" [40, R550 48], Ctl, Notified, Any, status nvos47::STATUS;
    /// Old call that binds a context DMA to a channel (NVOS49).
    BindContextDma NV_ESC_RM_BIND_CONTEXT_DMA = 0x59, [16], Ctl, Forbidden, Any;
    /// Tells the driver that a CPU mapping moved (NVOS56); found as by UNMAP_MEMORY.
    UpdateDeviceMappingInfo NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO = 0x5e, "NVOS56_PARAMETERS" [40], Ctl, Notified, CallerInCompat,
        status at(nvos56::STATUS);
    /// Binds a device file to a control file.
    RegisterFd NV_ESC_REGISTER_FD = 201, "nv_ioctl_register_fd_t" [4], Any, Notified, Any, descriptor Resolved(0);
    /// Registers an event file descriptor, by a global name that the driver asks no owner of.
    AllocOsEvent NV_ESC_ALLOC_OS_EVENT = 206, "nv_ioctl_alloc_os_event_t" [16], Any, Notified, Any,
        status at(os_event::STATUS), descriptor Named(os_event::FD);
    /// Forgets an event file descriptor, by the same name.
    FreeOsEvent NV_ESC_FREE_OS_EVENT = 207, "nv_ioctl_free_os_event_t" [16], Any, Notified, Any, status at(os_event::STATUS);
    /// Compares or asks the version string.
    CheckVersionStr NV_ESC_CHECK_VERSION_STR = 210, "nv_ioctl_rm_api_version_t" [72], Any, Native, Any;
    /// Carries any other command.
    IoctlXferCmd NV_ESC_IOCTL_XFER_CMD = 211, "nv_ioctl_xfer_t" [16], Any, Forbidden, Any;
    /// Page-block size of the host. The driver takes the first caller's, and refuses every other one from then on.
    SysParams NV_ESC_SYS_PARAMS = 214, "nv_ioctl_sys_params_t" [8], Any, Native, Any;
    /// Exports memory as a dma-buf.
    ExportToDmabufFd NV_ESC_EXPORT_TO_DMABUF_FD = 217, "nv_ioctl_export_to_dma_buf_fd_t" [2600, R570 2608], Card, Notified, Any,
        status per!(2592, R570 2600);
    /// Waits until a deferred open has ended.
    WaitOpenComplete NV_ESC_WAIT_OPEN_COMPLETE = 218, "nv_ioctl_wait_open_complete_t" [0, R550 8], Card, Native, Any;
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
