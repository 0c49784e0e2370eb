//! Field offsets of the structs that cgpu reads or writes, in bytes. Equal in all releases unless a [`PerRelease`] says otherwise.
//!
//! Here are the structs of ioctls, beside them in the same namespace the parameters of allocations and those of controls.

use crate::PerRelease;

mod allocations;
mod controls;

pub use allocations::*;
pub use controls::*;

/// Struct, field and offset in bytes, by the driver's names.
pub(crate) type Field = (&'static str, &'static str, PerRelease);

/// Structs as tables, a module each: a constant a line, the driver's name of the field, and its offset in bytes, by release where it is in
/// brackets. What has no name is not compared with the headers. Behind `also` stand structs that are part of the first, behind `and`
/// numbers that belong to them, with the driver's name where that is compared.
macro_rules! structs {
    ($($(#$doc:tt)* mod $module:ident $($struct:literal {
        $($(#$field_doc:tt)* $konst:ident $($field:literal)? = $at:tt;)*
    })also+ $(and {
        $($(#$number_doc:tt)* $number:ident $($name:literal)?: $type:ty = $value:expr;)*
    })?)*) => {
        $($(#[doc = concat!("`", $struct, "`")])+
        #[doc = ""]
        $(#$doc)*
        pub mod $module {
            $($($crate::layout::structs!(@field $(#[doc = concat!("`", $field, "`")] #[doc = ""])? $(#$field_doc)* $konst = $at);)*)+
            $($(
                $(#[doc = concat!("`", $name, "`")] #[doc = ""])?
                $(#$number_doc)*
                pub const $number: $type = $value;
            )*)?
        })*

        /// Every field with a name.
        pub(super) const FIELDS: &[Field] = &[$($($($(($struct, $field, structs!(@offset $at)),)?)*)+)*];
        /// Every number with a name.
        pub(super) const NUMBERS: &[(&str, u32)] = &[$($($($(($name, $module::$number as u32),)?)*)?)*];
    };
    (@field $(#$doc:tt)* $konst:ident = [$($at:tt)+]) => {
        $(#$doc)* pub const $konst: $crate::PerRelease = $crate::per!($($at)+);
    };
    (@field $(#$doc:tt)* $konst:ident = $at:literal) => {
        $(#$doc)* pub const $konst: usize = $at;
    };
    (@offset [$($at:tt)+]) => { $crate::per!($($at)+) };
    (@offset $at:literal) => { $crate::at($at) };
}
use structs;

/// Every field that has its name here.
pub(crate) fn fields() -> impl Iterator<Item = &'static Field> {
    [FIELDS, allocations::FIELDS, controls::FIELDS]
        .into_iter()
        .flatten()
}

/// Every number that has its name here.
pub(crate) fn numbers() -> impl Iterator<Item = &'static (&'static str, u32)> {
    [NUMBERS, allocations::NUMBERS, controls::NUMBERS]
        .into_iter()
        .flatten()
}

structs! {
    /// Free an object.
    mod nvos00 "NVOS00_PARAMETERS" {
        H_ROOT "hRoot" = 0;
        H_PARENT "hObjectParent" = 4;
        H_OLD "hObjectOld" = 8;
        STATUS "status" = 12;
    }
    /// Allocate memory; with the file descriptor that follows the struct.
    mod nvos02 "nv_ioctl_nvos02_parameters_with_fd" {
        H_ROOT "params.hRoot" = 0;
        H_PARENT "params.hObjectParent" = 4;
        H_NEW "params.hObjectNew" = 8;
        H_CLASS "params.hClass" = 12;
        FLAGS "params.flags" = 16;
        P_MEMORY "params.pMemory" = 24;
        /// size - 1
        LIMIT "params.limit" = 32;
        STATUS "params.status" = 40;
        FD "fd" = 48;
    } and {
        /// `flags` bits 7:4, physicality: 0 is contiguous (`RmDeprecatedConvertOs02ToOs32Flags`, rmapi_deprecated_utils.c, 535 to 595)
        FLAGS_PHYSICALITY_MASK: u32 = 0xf << 4;
        /// `flags` bit 27, `NVOS02_FLAGS_REGISTER_MEMDESC_TO_PHYS_RM`, since 550: the firmware keeps a list of the pages
        FLAG_REGISTERED: u32 = 1 << 27;
    }
    /// Allocate an object.
    mod nvos21 "NVOS21_PARAMETERS" {
        H_ROOT "hRoot" = 0;
        H_PARENT "hObjectParent" = 4;
        H_NEW "hObjectNew" = 8;
        H_CLASS "hClass" = 12;
        P_PARAMS "pAllocParms" = 16;
        /// ignored by the driver
        PARAMS_SIZE "paramsSize" = 24;
        STATUS "status" = 28;
    }
    /// Allocate an object, long form. The first 24 bytes are those of [`nvos21`].
    mod nvos64 "NVOS64_PARAMETERS" {
        /// a 4-byte access mask, may be NULL
        P_RIGHTS "pRightsRequested" = 24;
        /// ignored by the driver
        PARAMS_SIZE "paramsSize" = 32;
        /// bit 0: serialised parameters
        FLAGS "flags" = 36;
        STATUS "status" = 40;
    } and {
        /// Serialised parameters (FINN).
        FLAG_SERIALISED: u32 = 0x1;
    }
    /// The deprecated heap call.
    mod nvos32 "NVOS32_PARAMETERS" {
        H_ROOT "hRoot" = 0;
        H_PARENT "hObjectParent" = 4;
        FUNCTION "function" = 8;
        H_VA_SPACE "hVASpace" = 12;
        STATUS "status" = 20;
        /// bytes
        TOTAL "total" = 24;
        /// bytes
        FREE "free" = 32;
        ALLOC_H_MEMORY "data.AllocSize.hMemory" = 44;
        ALLOC_TYPE "data.AllocSize.type" = 48;
        ALLOC_FLAGS "data.AllocSize.flags" = 52;
        ALLOC_ATTR "data.AllocSize.attr" = 56;
        /// bytes, in and out
        ALLOC_SIZE "data.AllocSize.size" = 88;
        /// ALLOC_SIZE: `alignment`, bytes
        ALLOC_ALIGNMENT = 96;
        ALLOC_ATTR2 "data.AllocSize.attr2" = 144;
        FREE_H_MEMORY "data.Free.hMemory" = 44;
        /// bytes of the largest free block
        INFO_SIZE "data.Info.size" = 56;
    } and {
        FUNCTION_ALLOC_SIZE "NVOS32_FUNCTION_ALLOC_SIZE": u32 = 2;
        FUNCTION_FREE "NVOS32_FUNCTION_FREE": u32 = 3;
        FUNCTION_INFO "NVOS32_FUNCTION_INFO": u32 = 5;
        /// pins pages of whoever executes it
        FUNCTION_ALLOC_OS_DESCRIPTOR "NVOS32_FUNCTION_ALLOC_OS_DESCRIPTOR": u32 = 27;
    }
    /// Prepare a CPU mapping; with the file descriptor that follows the struct.
    mod nvos33 "nv_ioctl_nvos33_parameters_with_fd" {
        H_CLIENT "params.hClient" = 0;
        H_DEVICE "params.hDevice" = 4;
        H_MEMORY "params.hMemory" = 8;
        /// bytes
        OFFSET "params.offset" = 16;
        /// bytes
        LENGTH "params.length" = 24;
        P_LINEAR "params.pLinearAddress" = 32;
        STATUS "params.status" = 40;
        FLAGS "params.flags" = 44;
        /// the file that the caller will mmap
        FD "fd" = 48;
    }
    /// End a CPU mapping.
    mod nvos34 "NVOS34_PARAMETERS" {
        H_CLIENT "hClient" = 0;
        H_DEVICE "hDevice" = 4;
        H_MEMORY "hMemory" = 8;
        /// what the driver knows the mapping by
        P_LINEAR "pLinearAddress" = 16;
        STATUS "status" = 24;
    }
    /// Give a CPU mapping another address to be known by.
    mod nvos56 "NVOS56_PARAMETERS" {
        H_CLIENT "hClient" = 0;
        H_DEVICE "hDevice" = 4;
        H_MEMORY "hMemory" = 8;
        P_OLD "pOldCpuAddress" = 16;
        P_NEW "pNewCpuAddress" = 24;
        STATUS "status" = 32;
    }
    /// Map into a GPU address space.
    mod nvos46 "NVOS46_PARAMETERS" {
        H_CLIENT "hClient" = 0;
        H_DEVICE "hDevice" = 4;
        H_DMA "hDma" = 8;
        H_MEMORY "hMemory" = 12;
        /// bytes
        OFFSET "offset" = 16;
        /// bytes
        LENGTH "length" = 24;
        FLAGS "flags" = 32;
        /// `kindOverride`, since 580
        KIND_OVERRIDE = 40;
        /// GPU virtual address
        DMA_OFFSET "dmaOffset" = [40, R580 48];
        STATUS "status" = [48, R580 56];
    } and {
        /// `NVOS46_FLAGS_ACCESS`
        ACCESS_MASK: u32 = 3;
        /// `NVOS46_FLAGS_ACCESS_READ_ONLY`, and a value that is none
        ACCESS_READ_ONLY: u32 = 1;
        /// `NVOS46_FLAGS_P2P_ENABLE`
        P2P_MASK: u32 = 3 << 20;
        /// `NVOS46_FLAGS_P2P_ENABLE_NOSLI`: another card's memory
        P2P_NOSLI: u32 = 2 << 20;
        /// PAGE_KIND_VIRTUAL, and since 580 PAGE_KIND_OVERRIDE: another kind of page than what is mapped has.
        OTHER_PAGE_KIND: u32 = 1 << 3 | 1 << 19;
        /// `NV_MMU_PTE_KIND_SMSKED_MESSAGE` of every card since Turing: registers, not memory
        KIND_OF_REGISTERS: u32 = 0xf;
        /// Of `NVOS46_FLAGS`: KERNEL_MAPPING, TLB_LOCK, DMA_UNICAST_REUSE_ALLOC, DEFER_TLB_INVALIDATION.
        NOT_A_TENANTS: u32 = 1 << 5 | 1 << 28 | 1 << 29 | 1 << 31;
    }
    /// Unmap from a GPU address space.
    mod nvos47 "NVOS47_PARAMETERS" {
        H_CLIENT "hClient" = 0;
        /// `hDma`
        H_DMA = 8;
        H_MEMORY "hMemory" = 12;
        /// `flags`
        FLAGS = 16;
        /// GPU virtual address
        DMA_OFFSET "dmaOffset" = 24;
        /// `size` in bytes, since 550: 0 is all
        SIZE = 32;
        STATUS "status" = [32, R550 40];
    }
    /// A control call.
    mod nvos54 "NVOS54_PARAMETERS" {
        H_CLIENT "hClient" = 0;
        H_OBJECT "hObject" = 4;
        CMD "cmd" = 8;
        /// bits 0 and 1: raised IRQL and lock bypass, bit 2: serialised parameters
        FLAGS "flags" = 12;
        P_PARAMS "params" = 16;
        /// bytes, checked by the driver
        PARAMS_SIZE "paramsSize" = 24;
        STATUS "status" = 28;
    } and {
        /// The flags that no tenant may use.
        FORBIDDEN_FLAGS: u32 = 0x7;
    }
    /// Another handle for an object.
    mod nvos55 "NVOS55_PARAMETERS" {
        H_CLIENT "hClient" = 0;
        H_PARENT "hParent" = 4;
        H_OBJECT "hObject" = 8;
        H_CLIENT_SRC "hClientSrc" = 12;
        H_OBJECT_SRC "hObjectSrc" = 16;
        STATUS "status" = 24;
    }
    /// Set a share policy.
    mod nvos57 "NVOS57_PARAMETERS" {
        H_CLIENT "hClient" = 0;
        H_OBJECT "hObject" = 4;
        /// `sharePolicy`, a [`share_policy`](super::share_policy)
        POLICY = 8;
        STATUS "status" = 20;
    }
    /// To whom an object may be handed.
    mod share_policy "RS_SHARE_POLICY" {
        /// a client for [`CLIENT`]
        TARGET "target" = 0;
        /// two bytes
        TYPE "type" = 8;
        /// one byte
        ACTION "action" = 10;
    } and {
        NONE "RS_SHARE_TYPE_NONE": u16 = 0;
        /// every client of the driver
        ALL "RS_SHARE_TYPE_ALL": u16 = 1;
        /// clients of the same effective user or process
        OS_SECURITY_TOKEN "RS_SHARE_TYPE_OS_SECURITY_TOKEN": u16 = 2;
        /// one client
        CLIENT "RS_SHARE_TYPE_CLIENT": u16 = 3;
        /// clients of the same process
        PID "RS_SHARE_TYPE_PID": u16 = 4;
        /// takes rights away
        ACTION_REVOKE "RS_SHARE_ACTION_FLAG_REVOKE": u8 = 1;
        /// the policy must hold besides another that grants
        ACTION_REQUIRE "RS_SHARE_ACTION_FLAG_REQUIRE": u8 = 2;
    }
    /// One entry of CARD_INFO.
    mod card_info "nv_ioctl_card_info_t" {
        /// one byte
        VALID "valid" = 0;
        PCI_DOMAIN "pci_info.domain" = 4;
        /// one byte
        PCI_BUS "pci_info.bus" = 8;
        /// one byte
        PCI_SLOT "pci_info.slot" = 9;
        /// two bytes
        PCI_VENDOR "pci_info.vendor_id" = 12;
        /// two bytes
        PCI_DEVICE "pci_info.device_id" = 14;
        GPU_ID "gpu_id" = 16;
        /// length of BAR1, bytes
        FB_SIZE "fb_size" = 48;
        /// N of `/dev/nvidia<N>`
        MINOR "minor_number" = 56;
    } and {
        /// Bytes of an entry.
        BYTES: usize = 72;
    }
    mod api_version "nv_ioctl_rm_api_version_t" {
        /// 0 strict, `'1'` relaxed, `'2'` query
        CMD "cmd" = 0;
        /// 1 recognised
        REPLY "reply" = 4;
        /// 64 bytes
        VERSION "versionString" = 8;
    }
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
