//! What the tables of this crate say, by the names of the driver's own headers: struct, field, constant.
//!
//! One list for two checks: `tests/layouts.rs` holds it against the committed layouts of every release, and `cargo xtask headers`
//! against a source tree, so that a new driver version is compared by the same list that the decoder is built from.

use crate::at as all;
use crate::layout::{
    self, attached_ids, boost_groups, card_info, engine_type, fb_regions, nvlink_status, nvos21,
    nvos57, perfmon, pid_memory, share_policy, uuid_of_id, video_params,
};
use crate::{PerRelease, class, control, escape, narrow, status, uvm};

/// `(struct, field, offset in bytes)` of what has no name in [`crate::layout`]: the structs of nvidia-uvm, and structs that look like others.
#[rustfmt::skip] // one field a line
const FIELDS: &[(&str, &str, PerRelease)] = &[
    ("NVOS64_PARAMETERS", "hRoot", all(nvos21::H_ROOT)),
    ("NVOS64_PARAMETERS", "hObjectParent", all(nvos21::H_PARENT)),
    ("NVOS64_PARAMETERS", "hObjectNew", all(nvos21::H_NEW)),
    ("NVOS64_PARAMETERS", "hClass", all(nvos21::H_CLASS)),
    ("NVOS64_PARAMETERS", "pAllocParms", all(nvos21::P_PARAMS)),
    ("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "base", all(uvm::map_external::BASE)),
    ("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "length", all(uvm::map_external::LENGTH)),
    ("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "offset", all(uvm::map_external::OFFSET)),
    ("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "perGpuAttributes", all(uvm::map_external::PER_GPU)),
    ("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "gpuAttributesCount", uvm::map_external::COUNT),
    ("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "rmCtrlFd", uvm::map_external::RM_CTRL_FD),
    ("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "hClient", uvm::map_external::H_CLIENT),
    ("UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", "hMemory", uvm::map_external::H_MEMORY),
    ("UVM_UNMAP_EXTERNAL_PARAMS", "gpuUuid.uuid", all(uvm::UNMAP_EXTERNAL_UUID)),
    ("NVOS57_PARAMETERS", "sharePolicy.target", all(nvos57::POLICY + share_policy::TARGET)),
    ("NVOS57_PARAMETERS", "sharePolicy.type", all(nvos57::POLICY + share_policy::TYPE)),
    ("NVOS57_PARAMETERS", "sharePolicy.action", all(nvos57::POLICY + share_policy::ACTION)),
    ("NV0000_CTRL_CLIENT_SET_INHERITED_SHARE_POLICY_PARAMS", "sharePolicy.target", all(share_policy::TARGET)),
    ("NV0000_CTRL_CLIENT_SET_INHERITED_SHARE_POLICY_PARAMS", "sharePolicy.type", all(share_policy::TYPE)),
    ("NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA", "memPrivate", all(pid_memory::PRIVATE - pid_memory::DATA)),
    ("NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA", "memSharedOwned", all(pid_memory::SHARED_OWNED - pid_memory::DATA)),
    ("NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA", "memSharedDuped", all(pid_memory::SHARED_DUPED - pid_memory::DATA)),
    ("NV_MSENC_ALLOCATION_PARAMETERS", "prohibitMultipleInstances", all(video_params::ALONE)),
    ("NV_NVJPG_ALLOCATION_PARAMETERS", "prohibitMultipleInstances", all(video_params::ALONE)),
    ("NV_OFA_ALLOCATION_PARAMETERS", "prohibitMultipleInstances", all(video_params::ALONE)),
    ("UVM_INITIALIZE_PARAMS", "flags", all(uvm::INITIALIZE_FLAGS)),
    ("UVM_MM_INITIALIZE_PARAMS", "uvmFd", all(uvm::MM_INITIALIZE_FD)),
    ("UVM_MIGRATE_PARAMS", "base", all(uvm::MIGRATE_BASE)),
    ("UVM_MIGRATE_PARAMS", "length", all(uvm::MIGRATE_LENGTH)),
];

/// `(struct, field, offset in bytes)` of every field that is read or written.
pub fn fields() -> impl Iterator<Item = &'static (&'static str, &'static str, PerRelease)> {
    layout::fields().chain(FIELDS)
}

/// `(struct, bytes)` of the elements of lists.
#[rustfmt::skip] // one struct a line
const ELEMENTS: &[(&str, PerRelease)] = &[
    ("nv_ioctl_card_info_t", all(card_info::BYTES)),
    ("NV2080_CTRL_GPU_PID_INFO", all(pid_memory::BYTES)),
    ("NV0000_SYNC_GPU_BOOST_GROUP_CONFIG", all(boost_groups::GROUP_BYTES)),
    ("NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE", perfmon::SAMPLE_BYTES),
    ("NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE", perfmon::ENGINE_BYTES),
    ("NV2080_CTRL_NVLINK_LINK_STATUS_INFO", nvlink_status::LINK_BYTES),
    ("NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO", fb_regions::ENTRY_BYTES),
];

/// `(struct, bytes)` of the escapes' structs, and of the elements of lists; 0: the release does not have it.
pub fn escape_structs() -> impl Iterator<Item = (&'static str, PerRelease)> {
    let of_rows = escape::ALL
        .iter()
        .filter_map(|row| Some((row.layout?, row.size)));
    of_rows.chain(ELEMENTS.iter().copied())
}

/// `(class, struct)`: the allocation parameters whose size [`class::row_of`] gives exactly. A client's are no struct: its handle.
pub const CLASS_STRUCTS: &[(u32, &str)] = &[
    (0x3e, "NV_MEMORY_ALLOCATION_PARAMS"),
    (0x40, "NV_MEMORY_ALLOCATION_PARAMS"),
    (0x50a0, "NV_MEMORY_ALLOCATION_PARAMS"),
    (0x70, "NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS"),
    (0x79, "NV0005_ALLOC_PARAMETERS"),
    (0x80, "NV0080_ALLOC_PARAMETERS"),
    (0xf8, "NV00F8_ALLOCATION_PARAMETERS"),
    (0xfd, "NV00FD_ALLOCATION_PARAMETERS"),
    (0x2080, "NV2080_ALLOC_PARAMETERS"),
    (0x83de, "NV83DE_ALLOC_PARAMETERS"),
    (0x9067, "NV_CTXSHARE_ALLOCATION_PARAMETERS"),
    (0x90f1, "NV_VASPACE_ALLOCATION_PARAMETERS"),
    (0xa06c, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS"),
    (0xc46f, "NV_CHANNEL_ALLOC_PARAMS"),
    (0xc56f, "NV_CHANNEL_ALLOC_PARAMS"),
    (0xc86f, "NV_CHANNEL_ALLOC_PARAMS"),
    (0xc9c0, "NV_GR_ALLOCATION_PARAMETERS"),
    (0xa0bc, "NVA0BC_ALLOC_PARAMETERS"),
    (0xb8b0, "NV_BSP_ALLOCATION_PARAMETERS"),
    (0xb8d1, "NV_NVJPG_ALLOCATION_PARAMETERS"),
    (0xb8fa, "NV_OFA_ALLOCATION_PARAMETERS"),
    (0xc4b7, "NV_MSENC_ALLOCATION_PARAMETERS"),
    (0xc5b5, "NVB0B5_ALLOCATION_PARAMETERS"),
    (0xc661, "NV_HOPPER_USERMODE_A_PARAMS"),
];

/// `(constant, value)` of the others that the decoder compares with, equal in all releases.
#[rustfmt::skip] // one constant a line
const CONSTANTS: &[(&str, u32)] = &[
    ("UVM_INIT_FLAGS_DISABLE_HMM", uvm::INIT_FLAG_DISABLE_HMM),
    ("UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE", uvm::INIT_FLAG_MULTI_PROCESS),
    ("UVM_DEINITIALIZE", uvm::UVM_DEINITIALIZE),
    ("NV_ESC_CARD_INFO", escape::NV_ESC_CARD_INFO as u32),
    ("NV_ESC_ATTACH_GPUS_TO_FD", escape::NV_ESC_ATTACH_GPUS_TO_FD as u32),
    ("NV2080_CTRL_GPU_INFO_INDEX_GPU_FLA_CAPABILITY", control::gpu_info::GPU_FLA_CAPABILITY),
    ("NV2080_CTRL_GPU_INFO_INDEX_DMABUF_CAPABILITY", control::gpu_info::DMABUF_CAPABILITY),
    ("NV0000_CTRL_GPU_MAX_ATTACHED_GPUS", narrow(attached_ids::MOST)),
    ("NV0000_GPU_MAX_GID_LENGTH", narrow(uuid_of_id::UUID_BYTES)),
    ("NV2080_ENGINE_TYPE_NVDEC0", engine_type::NVDEC0),
    ("NV2080_ENGINE_TYPE_NVENC0", engine_type::NVENC0),
    ("NV2080_ENGINE_TYPE_NVENC2", engine_type::NVENC2),
    ("NV2080_ENGINE_TYPE_NVJPEG0", engine_type::NVJPEG0),
    ("NV2080_ENGINE_TYPE_OFA", engine_type::OFA),
];

/// Every number with a name. Controls carry theirs in [`control::rows`].
pub fn numbers() -> impl Iterator<Item = (&'static str, u32)> {
    let escapes = escape::ALL.iter().map(|row| (row.name, u32::from(row.nr)));
    let calls = uvm::ALL.iter().map(|row| (row.name, row.cmd));
    let classes = class::ALL.iter().map(|row| (row.name, row.number));
    let named = [status::COMPARED, control::fb_info::ALL, CONSTANTS];
    escapes
        .chain(calls)
        .chain(classes)
        .chain(named.into_iter().flatten().copied())
        .chain(layout::numbers().copied())
}
