//! Field offsets of the structs that cgpu reads or writes, in bytes. Equal in all releases unless a [`PerRelease`](crate::PerRelease) says otherwise.
//!
//! Here are the structs of ioctls, beside them in the same namespace the parameters of allocations and those of controls.

mod allocations;
mod controls;

pub use allocations::*;
pub use controls::*;

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
    /// `flags` bits 7:4, physicality: 0 is contiguous (`RmDeprecatedConvertOs02ToOs32Flags`, rmapi_deprecated_utils.c, 535 to 595)
    pub const FLAGS_PHYSICALITY_MASK: u32 = 0xf << 4;
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

/// `NVOS64_PARAMETERS`: allocate an object, long form. The first 24 bytes are those of [`nvos21`].
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
    /// `hDma`
    pub const H_DMA: usize = 8;
    /// `hMemory`
    pub const H_MEMORY: usize = 12;
    /// `dmaOffset`: GPU virtual address
    pub const DMA_OFFSET: usize = 24;
    /// `size` in bytes, since 550: 0 is all
    pub const SIZE: usize = 32;
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
