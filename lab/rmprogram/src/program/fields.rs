//! Fields of the structs of calls, by the driver's names.

use nvabi::layout::{
    api_version, nvos00, nvos02, nvos33, nvos34, nvos46, nvos47, nvos55, nvos56, os_event,
};
use nvabi::uvm::map_external;
use nvabi::{PerRelease, Release};

use super::table::Width;

#[derive(Clone, Copy)]
enum Offset {
    Same(usize),
    By(PerRelease),
}

/// A field that is 4 bytes wide.
const fn word(name: &'static str, at: usize) -> (&'static str, Offset, Width) {
    (name, Offset::Same(at), Width::Four)
}

/// One of 8 bytes.
const fn wide(name: &'static str, at: usize) -> (&'static str, Offset, Width) {
    (name, Offset::Same(at), Width::Eight)
}

/// A card's UUID.
const fn uuid(at: usize) -> (&'static str, Offset, Width) {
    ("gpuUuid", Offset::Same(at), Width::Sixteen)
}

type Fields = &'static [(&'static str, Offset, Width)];

/// `base` and `length` begin the structs of calls on ranges.
const RANGE: Fields = &[wide("base", 0), wide("length", 8)];

/// The fields of a call that a table may name (nvos.h, nv-unix-nvos-params-wrappers.h, nv-ioctl.h, uvm_ioctl.h).
#[expect(clippy::too_many_lines, reason = "a table: one row for each call")]
fn fields(call: &str) -> Fields {
    match call {
        "NV_ESC_CHECK_VERSION_STR" => const { &[word("cmd", api_version::CMD)] },
        "NV_ESC_REGISTER_FD" => const { &[word("ctlFd", 0)] },
        "NV_ESC_ALLOC_OS_EVENT" | "NV_ESC_FREE_OS_EVENT" => {
            const {
                &[
                    word("hClient", os_event::H_CLIENT),
                    word("hDevice", os_event::H_DEVICE),
                    word("fd", os_event::FD),
                ]
            }
        }
        "NV_ESC_RM_FREE" => {
            const {
                &[
                    word("hRoot", nvos00::H_ROOT),
                    word("hObjectParent", nvos00::H_PARENT),
                    word("hObjectOld", nvos00::H_OLD),
                ]
            }
        }
        "NV_ESC_RM_ALLOC_MEMORY" => {
            const {
                &[
                    word("hRoot", nvos02::H_ROOT),
                    word("hObjectParent", nvos02::H_PARENT),
                    word("hObjectNew", nvos02::H_NEW),
                    word("hClass", nvos02::H_CLASS),
                    word("flags", nvos02::FLAGS),
                    wide("pMemory", nvos02::P_MEMORY),
                    wide("limit", nvos02::LIMIT),
                    word("fd", nvos02::FD),
                ]
            }
        }
        "NV_ESC_RM_MAP_MEMORY" => {
            const {
                &[
                    word("hClient", nvos33::H_CLIENT),
                    word("hDevice", nvos33::H_DEVICE),
                    word("hMemory", nvos33::H_MEMORY),
                    wide("offset", nvos33::OFFSET),
                    wide("length", nvos33::LENGTH),
                    wide("pLinearAddress", nvos33::P_LINEAR),
                    word("flags", nvos33::FLAGS),
                    word("fd", nvos33::FD),
                ]
            }
        }
        "NV_ESC_RM_UNMAP_MEMORY" => {
            const {
                &[
                    word("hClient", nvos34::H_CLIENT),
                    word("hDevice", nvos34::H_DEVICE),
                    word("hMemory", nvos34::H_MEMORY),
                    wide("pLinearAddress", nvos34::P_LINEAR),
                ]
            }
        }
        "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO" => {
            const {
                &[
                    word("hClient", nvos56::H_CLIENT),
                    word("hDevice", nvos56::H_DEVICE),
                    word("hMemory", nvos56::H_MEMORY),
                    wide("pOldCpuAddress", nvos56::P_OLD),
                    wide("pNewCpuAddress", nvos56::P_NEW),
                ]
            }
        }
        "NV_ESC_RM_MAP_MEMORY_DMA" => {
            const {
                &[
                    word("hClient", nvos46::H_CLIENT),
                    word("hDevice", nvos46::H_DEVICE),
                    word("hDma", nvos46::H_DMA),
                    word("hMemory", nvos46::H_MEMORY),
                    wide("offset", nvos46::OFFSET),
                    wide("length", nvos46::LENGTH),
                    word("flags", nvos46::FLAGS),
                    ("dmaOffset", Offset::By(nvos46::DMA_OFFSET), Width::Eight),
                ]
            }
        }
        "NV_ESC_RM_UNMAP_MEMORY_DMA" => {
            const {
                &[
                    word("hClient", nvos47::H_CLIENT),
                    word("hDevice", 4),
                    word("hDma", 8),
                    word("hMemory", nvos47::H_MEMORY),
                    wide("dmaOffset", nvos47::DMA_OFFSET),
                ]
            }
        }
        "NV_ESC_RM_DUP_OBJECT" => {
            const {
                &[
                    word("hClient", nvos55::H_CLIENT),
                    word("hParent", nvos55::H_PARENT),
                    word("hObject", nvos55::H_OBJECT),
                    word("hClientSrc", nvos55::H_CLIENT_SRC),
                    word("hObjectSrc", nvos55::H_OBJECT_SRC),
                ]
            }
        }
        "UVM_INITIALIZE" => const { &[wide("flags", 0)] },
        "UVM_MM_INITIALIZE" => const { &[word("uvmFd", 0)] },
        "UVM_REGISTER_GPU" => const { &[uuid(0), word("rmCtrlFd", 24), word("hClient", 28)] },
        "UVM_UNREGISTER_GPU" | "UVM_UNREGISTER_GPU_VASPACE" => const { &[uuid(0)] },
        "UVM_REGISTER_GPU_VASPACE" => {
            const {
                &[
                    uuid(0),
                    word("rmCtrlFd", 16),
                    word("hClient", 20),
                    word("hVaSpace", 24),
                ]
            }
        }
        "UVM_REGISTER_CHANNEL" => {
            const {
                &[
                    uuid(0),
                    word("rmCtrlFd", 16),
                    word("hClient", 20),
                    word("hChannel", 24),
                    wide("base", 32),
                    wide("length", 40),
                ]
            }
        }
        "UVM_MAP_EXTERNAL_ALLOCATION" => {
            const {
                &[
                    wide("base", map_external::BASE),
                    wide("length", map_external::LENGTH),
                    wide("offset", map_external::OFFSET),
                    uuid(map_external::PER_GPU),
                    (
                        "gpuAttributesCount",
                        Offset::By(map_external::COUNT),
                        Width::Eight,
                    ),
                    (
                        "rmCtrlFd",
                        Offset::By(map_external::RM_CTRL_FD),
                        Width::Four,
                    ),
                    ("hClient", Offset::By(map_external::H_CLIENT), Width::Four),
                    ("hMemory", Offset::By(map_external::H_MEMORY), Width::Four),
                ]
            }
        }
        "UVM_UNMAP_EXTERNAL" => {
            const {
                &[
                    wide("base", 0),
                    wide("length", 8),
                    uuid(nvabi::uvm::UNMAP_EXTERNAL_UUID),
                ]
            }
        }
        "UVM_ENABLE_PEER_ACCESS" | "UVM_DISABLE_PEER_ACCESS" => {
            const {
                &[
                    ("gpuUuidA", Offset::Same(0), Width::Sixteen),
                    ("gpuUuidB", Offset::Same(16), Width::Sixteen),
                ]
            }
        }
        "UVM_CREATE_EXTERNAL_RANGE"
        | "UVM_FREE"
        | "UVM_VALIDATE_VA_RANGE"
        | "UVM_ALLOC_SEMAPHORE_POOL"
        | "UVM_MIGRATE" => RANGE,
        // What a table names of another call's by a field is answered as absent.
        _has_none_here => &[],
    }
}

/// Offset and width of a field; `None`: the call has no such field that a table may name.
pub(super) fn place(call: &str, field: &str, release: Release) -> Option<(usize, Width)> {
    let (_, offset, width) = fields(call).iter().find(|(name, ..)| *name == field)?;
    let at = match offset {
        Offset::Same(at) => *at,
        Offset::By(at) => usize::try_from(at.of(release)).ok()?,
    };
    Some((at, *width))
}
