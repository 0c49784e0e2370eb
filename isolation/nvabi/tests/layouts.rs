//! Every offset and size in the tables, against the committed layouts of each release.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use nvabi::layout::{
    api_version, card_info, channel_group_params, channel_params, device_params, memory_params,
    nvos00, nvos02, nvos21, nvos32, nvos33, nvos34, nvos46, nvos47, nvos54, nvos55, nvos57, nvos64,
};
use nvabi::{PerRelease, Release, class, control, escape, uvm};

type Layouts = HashMap<String, (u32, Vec<(String, u32, u32)>)>;

const RELEASES: [(Release, &str); 4] = [
    (
        Release::R535,
        include_str!("../data/structs-535.261.03.json"),
    ),
    (
        Release::R550,
        include_str!("../data/structs-550.163.01.json"),
    ),
    (
        Release::R570,
        include_str!("../data/structs-570.195.03.json"),
    ),
    (
        Release::R580,
        include_str!("../data/structs-580.105.08.json"),
    ),
];

fn layouts() -> Vec<(Release, Layouts)> {
    RELEASES
        .iter()
        .map(|(release, text)| (*release, serde_json::from_str(text).unwrap()))
        .collect()
}

fn all(offset: usize) -> PerRelease {
    PerRelease::all(u32::try_from(offset).unwrap())
}

#[test]
fn offsets_match_the_headers() {
    let fields: &[(&str, &str, PerRelease)] = &[
        ("NVOS00_PARAMETERS", "hRoot", all(nvos00::H_ROOT)),
        ("NVOS00_PARAMETERS", "hObjectParent", all(nvos00::H_PARENT)),
        ("NVOS00_PARAMETERS", "hObjectOld", all(nvos00::H_OLD)),
        ("NVOS00_PARAMETERS", "status", all(nvos00::STATUS)),
        (
            "nv_ioctl_nvos02_parameters_with_fd",
            "params.hRoot",
            all(nvos02::H_ROOT),
        ),
        (
            "nv_ioctl_nvos02_parameters_with_fd",
            "params.hObjectParent",
            all(nvos02::H_PARENT),
        ),
        (
            "nv_ioctl_nvos02_parameters_with_fd",
            "params.hObjectNew",
            all(nvos02::H_NEW),
        ),
        (
            "nv_ioctl_nvos02_parameters_with_fd",
            "params.hClass",
            all(nvos02::H_CLASS),
        ),
        (
            "nv_ioctl_nvos02_parameters_with_fd",
            "params.flags",
            all(nvos02::FLAGS),
        ),
        (
            "nv_ioctl_nvos02_parameters_with_fd",
            "params.pMemory",
            all(nvos02::P_MEMORY),
        ),
        (
            "nv_ioctl_nvos02_parameters_with_fd",
            "params.limit",
            all(nvos02::LIMIT),
        ),
        (
            "nv_ioctl_nvos02_parameters_with_fd",
            "params.status",
            all(nvos02::STATUS),
        ),
        ("nv_ioctl_nvos02_parameters_with_fd", "fd", all(nvos02::FD)),
        ("NVOS21_PARAMETERS", "hRoot", all(nvos21::H_ROOT)),
        ("NVOS21_PARAMETERS", "hObjectParent", all(nvos21::H_PARENT)),
        ("NVOS21_PARAMETERS", "hObjectNew", all(nvos21::H_NEW)),
        ("NVOS21_PARAMETERS", "hClass", all(nvos21::H_CLASS)),
        ("NVOS21_PARAMETERS", "pAllocParms", all(nvos21::P_PARAMS)),
        ("NVOS21_PARAMETERS", "paramsSize", all(nvos21::PARAMS_SIZE)),
        ("NVOS21_PARAMETERS", "status", all(nvos21::STATUS)),
        // The long form begins like the short one.
        ("NVOS64_PARAMETERS", "hRoot", all(nvos21::H_ROOT)),
        ("NVOS64_PARAMETERS", "hObjectParent", all(nvos21::H_PARENT)),
        ("NVOS64_PARAMETERS", "hObjectNew", all(nvos21::H_NEW)),
        ("NVOS64_PARAMETERS", "hClass", all(nvos21::H_CLASS)),
        ("NVOS64_PARAMETERS", "pAllocParms", all(nvos21::P_PARAMS)),
        (
            "NVOS64_PARAMETERS",
            "pRightsRequested",
            all(nvos64::P_RIGHTS),
        ),
        ("NVOS64_PARAMETERS", "paramsSize", all(nvos64::PARAMS_SIZE)),
        ("NVOS64_PARAMETERS", "flags", all(nvos64::FLAGS)),
        ("NVOS64_PARAMETERS", "status", all(nvos64::STATUS)),
        ("NVOS32_PARAMETERS", "hRoot", all(nvos32::H_ROOT)),
        ("NVOS32_PARAMETERS", "hObjectParent", all(nvos32::H_PARENT)),
        ("NVOS32_PARAMETERS", "function", all(nvos32::FUNCTION)),
        ("NVOS32_PARAMETERS", "status", all(nvos32::STATUS)),
        ("NVOS32_PARAMETERS", "total", all(nvos32::TOTAL)),
        ("NVOS32_PARAMETERS", "free", all(nvos32::FREE)),
        (
            "nv_ioctl_nvos33_parameters_with_fd",
            "params.hClient",
            all(nvos33::H_CLIENT),
        ),
        (
            "nv_ioctl_nvos33_parameters_with_fd",
            "params.hDevice",
            all(nvos33::H_DEVICE),
        ),
        (
            "nv_ioctl_nvos33_parameters_with_fd",
            "params.hMemory",
            all(nvos33::H_MEMORY),
        ),
        (
            "nv_ioctl_nvos33_parameters_with_fd",
            "params.offset",
            all(nvos33::OFFSET),
        ),
        (
            "nv_ioctl_nvos33_parameters_with_fd",
            "params.length",
            all(nvos33::LENGTH),
        ),
        (
            "nv_ioctl_nvos33_parameters_with_fd",
            "params.pLinearAddress",
            all(nvos33::P_LINEAR),
        ),
        (
            "nv_ioctl_nvos33_parameters_with_fd",
            "params.status",
            all(nvos33::STATUS),
        ),
        (
            "nv_ioctl_nvos33_parameters_with_fd",
            "params.flags",
            all(nvos33::FLAGS),
        ),
        ("nv_ioctl_nvos33_parameters_with_fd", "fd", all(nvos33::FD)),
        ("NVOS34_PARAMETERS", "status", all(nvos34::STATUS)),
        ("NVOS46_PARAMETERS", "hClient", all(nvos46::H_CLIENT)),
        ("NVOS46_PARAMETERS", "hDevice", all(nvos46::H_DEVICE)),
        ("NVOS46_PARAMETERS", "hDma", all(nvos46::H_DMA)),
        ("NVOS46_PARAMETERS", "hMemory", all(nvos46::H_MEMORY)),
        ("NVOS46_PARAMETERS", "offset", all(nvos46::OFFSET)),
        ("NVOS46_PARAMETERS", "length", all(nvos46::LENGTH)),
        ("NVOS46_PARAMETERS", "flags", all(nvos46::FLAGS)),
        ("NVOS46_PARAMETERS", "dmaOffset", nvos46::DMA_OFFSET),
        ("NVOS46_PARAMETERS", "status", nvos46::STATUS),
        ("NVOS47_PARAMETERS", "hClient", all(nvos47::H_CLIENT)),
        ("NVOS47_PARAMETERS", "hMemory", all(nvos47::H_MEMORY)),
        ("NVOS47_PARAMETERS", "dmaOffset", all(nvos47::DMA_OFFSET)),
        ("NVOS47_PARAMETERS", "status", nvos47::STATUS),
        ("NVOS54_PARAMETERS", "hClient", all(nvos54::H_CLIENT)),
        ("NVOS54_PARAMETERS", "hObject", all(nvos54::H_OBJECT)),
        ("NVOS54_PARAMETERS", "cmd", all(nvos54::CMD)),
        ("NVOS54_PARAMETERS", "flags", all(nvos54::FLAGS)),
        ("NVOS54_PARAMETERS", "params", all(nvos54::P_PARAMS)),
        ("NVOS54_PARAMETERS", "paramsSize", all(nvos54::PARAMS_SIZE)),
        ("NVOS54_PARAMETERS", "status", all(nvos54::STATUS)),
        ("NVOS55_PARAMETERS", "hClient", all(nvos55::H_CLIENT)),
        ("NVOS55_PARAMETERS", "hParent", all(nvos55::H_PARENT)),
        ("NVOS55_PARAMETERS", "hObject", all(nvos55::H_OBJECT)),
        ("NVOS55_PARAMETERS", "hClientSrc", all(nvos55::H_CLIENT_SRC)),
        ("NVOS55_PARAMETERS", "hObjectSrc", all(nvos55::H_OBJECT_SRC)),
        ("NVOS55_PARAMETERS", "status", all(nvos55::STATUS)),
        ("NVOS57_PARAMETERS", "status", all(nvos57::STATUS)),
        (
            "NV_MEMORY_ALLOCATION_PARAMS",
            "flags",
            all(memory_params::FLAGS),
        ),
        (
            "NV_MEMORY_ALLOCATION_PARAMS",
            "attr",
            all(memory_params::ATTR),
        ),
        (
            "NV_MEMORY_ALLOCATION_PARAMS",
            "attr2",
            all(memory_params::ATTR2),
        ),
        (
            "NV_MEMORY_ALLOCATION_PARAMS",
            "size",
            all(memory_params::SIZE),
        ),
        (
            "NV_MEMORY_ALLOCATION_PARAMS",
            "alignment",
            all(memory_params::ALIGNMENT),
        ),
        (
            "NV_MEMORY_ALLOCATION_PARAMS",
            "offset",
            all(memory_params::OFFSET),
        ),
        (
            "NV_MEMORY_ALLOCATION_PARAMS",
            "limit",
            all(memory_params::LIMIT),
        ),
        (
            "NV0080_ALLOC_PARAMETERS",
            "deviceId",
            all(device_params::DEVICE_ID),
        ),
        (
            "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
            "engineType",
            all(channel_group_params::ENGINE_TYPE),
        ),
        (
            "NV_CHANNEL_ALLOC_PARAMS",
            "gpFifoOffset",
            all(channel_params::GP_FIFO_OFFSET),
        ),
        (
            "NV_CHANNEL_ALLOC_PARAMS",
            "gpFifoEntries",
            all(channel_params::GP_FIFO_ENTRIES),
        ),
        (
            "NV_CHANNEL_ALLOC_PARAMS",
            "hContextShare",
            all(channel_params::H_CONTEXT_SHARE),
        ),
        (
            "NV_CHANNEL_ALLOC_PARAMS",
            "hVASpace",
            all(channel_params::H_VA_SPACE),
        ),
        (
            "NV_CHANNEL_ALLOC_PARAMS",
            "hUserdMemory",
            all(channel_params::H_USERD_MEMORY),
        ),
        (
            "NV_CHANNEL_ALLOC_PARAMS",
            "userdOffset",
            all(channel_params::USERD_OFFSET),
        ),
        (
            "NV_CHANNEL_ALLOC_PARAMS",
            "engineType",
            all(channel_params::ENGINE_TYPE),
        ),
        ("NV_CHANNEL_ALLOC_PARAMS", "cid", all(channel_params::CID)),
        ("nv_ioctl_card_info_t", "valid", all(card_info::VALID)),
        (
            "nv_ioctl_card_info_t",
            "pci_info.domain",
            all(card_info::PCI_DOMAIN),
        ),
        (
            "nv_ioctl_card_info_t",
            "pci_info.bus",
            all(card_info::PCI_BUS),
        ),
        (
            "nv_ioctl_card_info_t",
            "pci_info.slot",
            all(card_info::PCI_SLOT),
        ),
        (
            "nv_ioctl_card_info_t",
            "pci_info.vendor_id",
            all(card_info::PCI_VENDOR),
        ),
        (
            "nv_ioctl_card_info_t",
            "pci_info.device_id",
            all(card_info::PCI_DEVICE),
        ),
        ("nv_ioctl_card_info_t", "gpu_id", all(card_info::GPU_ID)),
        ("nv_ioctl_card_info_t", "fb_size", all(card_info::FB_SIZE)),
        (
            "nv_ioctl_card_info_t",
            "minor_number",
            all(card_info::MINOR),
        ),
        ("nv_ioctl_rm_api_version_t", "cmd", all(api_version::CMD)),
        (
            "nv_ioctl_rm_api_version_t",
            "reply",
            all(api_version::REPLY),
        ),
        (
            "nv_ioctl_rm_api_version_t",
            "versionString",
            all(api_version::VERSION),
        ),
        (
            "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
            "base",
            all(uvm::map_external::BASE),
        ),
        (
            "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
            "length",
            all(uvm::map_external::LENGTH),
        ),
        (
            "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
            "offset",
            all(uvm::map_external::OFFSET),
        ),
        (
            "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
            "perGpuAttributes",
            all(uvm::map_external::PER_GPU),
        ),
        (
            "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
            "gpuAttributesCount",
            uvm::map_external::COUNT,
        ),
        (
            "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
            "rmCtrlFd",
            uvm::map_external::RM_CTRL_FD,
        ),
        (
            "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
            "hClient",
            uvm::map_external::H_CLIENT,
        ),
        (
            "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS",
            "hMemory",
            uvm::map_external::H_MEMORY,
        ),
        (
            "UVM_UNMAP_EXTERNAL_PARAMS",
            "gpuUuid.uuid",
            all(uvm::UNMAP_EXTERNAL_UUID),
        ),
    ];
    for (release, layouts) in layouts() {
        for (name, field, offset) in fields {
            let (_, members) = layouts
                .get(*name)
                .unwrap_or_else(|| panic!("{release:?} has no {name}"));
            let member = members
                .iter()
                .find(|(member, ..)| member == field || member == &format!("{field}[8]"));
            let (_, at, _) =
                member.unwrap_or_else(|| panic!("{release:?} {name} has no {field}: {members:?}"));
            assert_eq!(offset.of(release), *at, "{release:?} {name}.{field}");
        }
    }
}

#[test]
fn struct_sizes_match_the_headers() {
    let structs: &[(&str, PerRelease)] = &[
        (
            "nv_ioctl_nvos02_parameters_with_fd",
            escape::NV_ESC_RM_ALLOC_MEMORY.size,
        ),
        ("NVOS00_PARAMETERS", escape::NV_ESC_RM_FREE.size),
        ("NVOS54_PARAMETERS", escape::NV_ESC_RM_CONTROL.size),
        ("NVOS21_PARAMETERS", escape::NV_ESC_RM_ALLOC.size),
        ("NVOS64_PARAMETERS", escape::NV_ESC_RM_ALLOC_LONG.size),
        ("NVOS55_PARAMETERS", escape::NV_ESC_RM_DUP_OBJECT.size),
        ("NVOS57_PARAMETERS", escape::NV_ESC_RM_SHARE.size),
        ("NVOS30_PARAMETERS", escape::NV_ESC_RM_IDLE_CHANNELS.size),
        ("NVOS32_PARAMETERS", escape::NV_ESC_RM_VID_HEAP_CONTROL.size),
        ("NVOS38_PARAMETERS", escape::NV_ESC_RM_ACCESS_REGISTRY.size),
        (
            "nv_ioctl_nvos33_parameters_with_fd",
            escape::NV_ESC_RM_MAP_MEMORY.size,
        ),
        ("NVOS34_PARAMETERS", escape::NV_ESC_RM_UNMAP_MEMORY.size),
        ("NVOS46_PARAMETERS", escape::NV_ESC_RM_MAP_MEMORY_DMA.size),
        ("NVOS47_PARAMETERS", escape::NV_ESC_RM_UNMAP_MEMORY_DMA.size),
        (
            "NVOS56_PARAMETERS",
            escape::NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO.size,
        ),
        ("nv_ioctl_register_fd_t", escape::NV_ESC_REGISTER_FD.size),
        (
            "nv_ioctl_alloc_os_event_t",
            escape::NV_ESC_ALLOC_OS_EVENT.size,
        ),
        (
            "nv_ioctl_free_os_event_t",
            escape::NV_ESC_FREE_OS_EVENT.size,
        ),
        (
            "nv_ioctl_rm_api_version_t",
            escape::NV_ESC_CHECK_VERSION_STR.size,
        ),
        ("nv_ioctl_xfer_t", escape::NV_ESC_IOCTL_XFER_CMD.size),
        ("nv_ioctl_sys_params_t", escape::NV_ESC_SYS_PARAMS.size),
        (
            "nv_ioctl_export_to_dma_buf_fd_t",
            escape::NV_ESC_EXPORT_TO_DMABUF_FD.size,
        ),
        (
            "nv_ioctl_wait_open_complete_t",
            escape::NV_ESC_WAIT_OPEN_COMPLETE.size,
        ),
        (
            "nv_ioctl_card_info_t",
            PerRelease::all(u32::try_from(card_info::BYTES).unwrap()),
        ),
    ];
    for (release, layouts) in layouts() {
        for (name, size) in structs {
            let real = layouts.get(*name).map_or(0, |(bytes, _)| *bytes);
            assert_eq!(size.of(release), real, "{release:?} {name}");
        }
    }
}

#[test]
fn uvm_sizes_and_status_offsets_match_the_headers() {
    for (release, layouts) in layouts() {
        for row in uvm::ALL {
            let layout = layouts.get(&format!("{}_PARAMS", row.name));
            assert_eq!(
                row.size.of(release),
                layout.map_or(0, |(bytes, _)| *bytes),
                "{release:?} {}",
                row.name
            );
            if let Some((_, members)) = layout {
                let status = members
                    .iter()
                    .find(|(member, ..)| member == "rmStatus")
                    .map(|(_, at, _)| *at);
                assert_eq!(
                    Some(row.status.of(release)),
                    status,
                    "{release:?} {}.rmStatus",
                    row.name
                );
            }
        }
    }
}

#[test]
fn class_parameters_match_the_headers() {
    let structs: &[(u32, &str)] = &[
        (0x0, "NV0000_ALLOC_PARAMETERS"),
        (0x41, "NV0000_ALLOC_PARAMETERS"),
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
        (0xc661, "NV_HOPPER_USERMODE_A_PARAMS"),
    ];
    for (release, layouts) in layouts() {
        for (number, name) in structs {
            let class = class::row_of(*number, release).unwrap();
            let (bytes, _) = layouts[*name];
            assert_eq!(
                class.params.of(release),
                bytes,
                "{release:?} {} ({name})",
                class.name
            );
        }
    }
}

#[test]
fn control_sizes_match_the_exported_table() {
    let table = include_str!("../data/rm-controls.tsv");
    let mut checked = 0;
    for line in table.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let cmd = u32::from_str_radix(columns[0].trim_start_matches("0x"), 16).unwrap();
        let sizes: Vec<&str> = columns[4].split('/').collect();
        for (index, release) in Release::ALL.into_iter().enumerate() {
            let size = sizes
                .get(index)
                .or_else(|| sizes.first().filter(|_| sizes.len() == 1))
                .copied()
                .unwrap_or("-");
            let Some(row) = control::row(cmd, release) else {
                continue;
            };
            // The converter answers what RM itself does not export any more.
            if size == "-" && cmd == control::NV2080_CTRL_CMD_FB_GET_INFO {
                continue;
            }
            assert_eq!(
                row.params_bytes.to_string(),
                size,
                "{release:?} {}",
                row.name
            );
            checked += 1;
        }
    }
    assert!(checked > 400, "only {checked} controls were compared");
}
