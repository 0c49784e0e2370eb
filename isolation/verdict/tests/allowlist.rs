//! What is admitted, beside what gVisor's nvproxy forwards for compute and utility clients, by driver version.
//!
//! nvproxy runs the same user space against the same drivers, so its lists are the best public word on what is needed. Every difference
//! is below with its reason; one that does not fails here, whichever side it is on.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use nvabi::capability::Capabilities;
use nvabi::lists::{self, Reference};
use nvabi::{DriverVersion, Release, class, control, escape, uvm};
use verdict::Surface;

const NVPROXY: &str = include_str!("../../nvabi/data/gvisor-allowlists.tsv");

/// A container's capabilities, and the letters of nvproxy's lists for them.
const CONTAINERS: [(Capabilities, &[char]); 4] = [
    (
        Capabilities {
            graphics: false,
            video: false,
        },
        &['c', 'u'],
    ),
    (
        Capabilities {
            graphics: true,
            video: false,
        },
        &['c', 'u', 'g'],
    ),
    (
        Capabilities {
            graphics: false,
            video: true,
        },
        &['c', 'u', 'v'],
    ),
    // Profilers: no container may have what nvproxy forwards for them.
    (
        Capabilities {
            graphics: false,
            video: false,
        },
        &['c', 'u', 'p'],
    ),
];

/// `(kind, number)` to name, as nvproxy has it for clients of these letters at a version.
fn nvproxy(version: &str, letters: &[char]) -> BTreeMap<(&'static str, u32), &'static str> {
    let version: DriverVersion = version.parse().unwrap();
    let mut admitted = BTreeMap::new();
    for line in NVPROXY.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [kind, number, name, handler, _params, caps, since, ..] = columns[..] else {
            panic!("{line}")
        };
        let number = match number.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
            None => number.parse().unwrap(),
        };
        if since.parse::<DriverVersion>().unwrap() > version {
            continue;
        }
        if handler == "DELETED" {
            admitted.remove(&(kind, number));
        } else if caps.contains(letters) {
            admitted.insert((kind, number), name);
        }
    }
    admitted
}

/// The same of ours.
fn ours(
    release: Release,
    capabilities: Capabilities,
) -> BTreeMap<(&'static str, u32), &'static str> {
    let mut admitted = BTreeMap::new();
    for row in escape::ALL.iter().filter(|row| row.size.of(release) != 0) {
        if verdict::op(Surface::Ctl, row.cmd(release), release).is_ok() {
            admitted.insert(("rm_ioctl", u32::from(row.nr)), row.name);
        }
    }
    for (nr, name) in [
        (escape::NV_ESC_CARD_INFO, "NV_ESC_CARD_INFO"),
        (escape::NV_ESC_ATTACH_GPUS_TO_FD, "NV_ESC_ATTACH_GPUS_TO_FD"),
    ] {
        admitted.insert(("rm_ioctl", u32::from(nr)), name);
    }
    for row in uvm::ALL.iter().filter(|row| row.size.of(release) != 0) {
        admitted.insert(("uvm_ioctl", row.cmd), row.name);
    }
    for class in class::ALL {
        let row = class::row_of(class.number, release);
        if row.is_some_and(|row| row.needs.met_by(capabilities)) {
            admitted.insert(("class", class.number), class.name);
        }
    }
    for (cmd, name) in control::rows() {
        let row = control::row(cmd, release);
        if row.is_some_and(|row| row.needs.met_by(capabilities)) {
            admitted.insert(("control", cmd), name);
        }
    }
    admitted
}

const OF_PROFILERS: &str =
    "counters are the card's: they show what neighbours do, and who reserves them keeps others off";

/// `(kind, number, why)`: forwarded by nvproxy, not admitted here.
#[rustfmt::skip] // one difference a line
const LEFT_OUT: &[(&str, u32, &str)] = &[
    ("rm_ioctl", 215, "NUMA_INFO: nvproxy answers it with an error of its own"),
    ("rm_ioctl", 0x54, "ALLOC_CONTEXT_DMA2: the new object's parent is the memory's and its class any that the caller writes (rmapi_deprecated_misc.c, RmDeprecatedAllocContextDma); RM_ALLOC of NV01_CONTEXT_DMA says both"),
    ("uvm_ioctl", 0x3000_0002, "UVM_DEINITIALIZE: no parameters; the filter lets it pass to the driver"),
    ("class", 0x73, "NV04_DISPLAY_COMMON: no container has a display"),
    ("class", 0xda, "NV_SEMAPHORE_SURFACE: RM keeps a reference of its own on the memory it is made over, past the caller's free (sem_surf.c, DupObject), which the ledger does not see"),
    ("class", 0xfe, "NV_MEMORY_MAPPER: maps memory by a list of commands that nobody looks at (mem_mapper.c), and takes semaphore surfaces"),
    ("class", 0x9072, "GF100_DISP_SW: no container has a display"),
    ("class", 0x90e7, "GF100_SUBDEVICE_INFOROM: for the control 0x90e70113 alone"),
    ("control", 0xda_0002, "no semaphore surface is made"),
    ("control", 0xda_0006, "no semaphore surface is made"),
    ("control", 0x80_1b01, "MSENC_GET_CAPS: RM exports it up to 545; nvproxy does not say that it has gone"),
    ("control", 0x2080_1322, "FB_GET_OFFLINED_PAGES: addresses of the card's memory, which no tenant is shown"),
    ("control", 0x2080_1352, "FB_GET_SEMAPHORE_SURFACE_LAYOUT: says that there are semaphore surfaces, and none is made"),
    ("control", 0x2080_1813, "BUS_GET_PEX_COUNTERS: counts what the card's neighbours do on its link"),
    ("control", 0x2080_1819, "BUS_GET_PEX_UTIL_COUNTERS: counts what the card's neighbours do on its link"),
    ("control", 0x906f_0102, "RESET_CHANNEL: resets the engine too (ctrl906f.h), and with it what neighbours have there; no program of docs/internals/programs.md makes it"),
    ("control", 0x9096_0101, "SET_ZBC_COLOR_CLEAR: the table is the card's, and a place that is taken is not given back"),
    ("control", 0x9096_0107, "GET_ZBC_CLEAR_TABLE_ENTRY: the table is the card's, and shows what neighbours clear to"),
    ("control", 0x90e7_0113, "BBX_GET_LAST_FLUSH_TIME: of the card's black box"),
    ("control", 0x80_028b, "no name in any public header: nothing says what its parameters are"),
    ("control", 0x83de_0315, "DEBUG_READ_MEMORY: a pointer that is not carried"),
    ("control", 0x83de_0317, "DEBUG_SUSPEND_CONTEXT: disables and enables channels in the firmware, past the gate of a share"),
    ("control", 0x83de_0318, "DEBUG_RESUME_CONTEXT: as DEBUG_SUSPEND_CONTEXT"),
    ("control", 0xcb33_010c, "GPU_GET_KEY_ROTATION_STATE: 555 does not export it, 550 before and 560 behind it do"),
    ("control", 0xf8_0103, "fabric memory is refused"),
    ("control", 0xfd_0101, "multicast memory is refused"),
    ("control", 0xfd_0102, "multicast memory is refused"),
    ("control", 0xfd_0104, "multicast memory is refused; names a file in its parameters"),
    ("control", 0xfd_0105, "multicast memory is refused"),
    ("class", 0x90cc, OF_PROFILERS),
    ("class", 0xb2cc, OF_PROFILERS),
    ("class", 0xcbca, OF_PROFILERS),
    ("control", 0x2080_0122, "GPU_EXEC_REG_OPS: reads and writes registers of the card, for profilers"),
    ("control", 0x2080_120f, "GR_GET_SM_TO_GPC_TPC_MAPPINGS: which counter is of which part, for profilers alone"),
    ("control", 0x2080_123d, "GR_GET_SM_ISSUE_THROTTLE_CTRL: for profilers alone"),
    ("control", 0x2080_130e, "FB_FLUSH_GPU_CACHE: flushes what neighbours have in the card's cache; for profilers alone"),
    ("control", 0x2080_1346, "FB_GET_FS_INFO: which parts of the card there are, for profilers alone"),
    ("control", 0x90cc_0301, OF_PROFILERS),
    ("control", 0x90cc_0302, OF_PROFILERS),
    ("control", 0xb0cc_0101, OF_PROFILERS),
    ("control", 0xb0cc_0102, OF_PROFILERS),
    ("control", 0xb0cc_0103, OF_PROFILERS),
    ("control", 0xb0cc_0104, OF_PROFILERS),
    ("control", 0xb0cc_0105, OF_PROFILERS),
    ("control", 0xb0cc_0106, OF_PROFILERS),
    ("control", 0xb0cc_0107, OF_PROFILERS),
    ("control", 0xb0cc_0108, OF_PROFILERS),
    ("control", 0xb0cc_0109, OF_PROFILERS),
    ("control", 0xb0cc_010a, OF_PROFILERS),
    ("control", 0xb0cc_010b, OF_PROFILERS),
    ("control", 0xb0cc_010c, OF_PROFILERS),
    ("control", 0xb0cc_010d, OF_PROFILERS),
    ("control", 0xb0cc_010e, OF_PROFILERS),
    ("control", 0xb0cc_0115, OF_PROFILERS),
    ("control", 0xb0cc_0119, OF_PROFILERS),
    ("control", 0xb0cc_0301, OF_PROFILERS),
    ("control", 0xb0cc_0302, OF_PROFILERS),
];

const PASCAL_AND_VOLTA: &str = "nvproxy knows no card before Turing; the proprietary kernel modules drive Pascal and Volta by the same ABI up to 580";

/// `(kind, number, why)`: admitted here, not forwarded by nvproxy for compute or utility.
#[rustfmt::skip] // one difference a line
const ADDED: &[(&str, u32, &str)] = &[
    ("rm_ioctl", 0x41, "IDLE_CHANNELS: has a row so that it is seen, and is refused"),
    ("rm_ioctl", 0xd9, "EXPORT_TO_DMABUF_FD: has a row so that it is seen, and is refused"),
    ("rm_ioctl", 0x57, "MAP_MEMORY_DMA: nvproxy forwards it for graphics; tinygrad maps memory with it"),
    ("rm_ioctl", 0x58, "UNMAP_MEMORY_DMA: as MAP_MEMORY_DMA"),
    ("uvm_ioctl", 70, "PAGEABLE_MEM_ACCESS_ON_GPU: nvproxy forwards it for video; a question, which 39 answers for all cards"),
    ("uvm_ioctl", 74, "MAP_EXTERNAL_SPARSE: has a row so that it is seen, and is refused"),
    ("uvm_ioctl", 78, "ALLOC_DEVICE_P2P: has a row so that it is seen, and is refused"),
    ("uvm_ioctl", 79, "CLEAR_ALL_ACCESS_COUNTERS: has a row so that it is seen, and is refused"),
    ("class", 0x2, "NV01_CONTEXT_DMA: names memory, takes none"),
    ("class", 0x70, "NV01_MEMORY_VIRTUAL: address space"),
    ("class", 0x71, "OS_DESCRIPTOR: nvproxy takes it by ALLOC_MEMORY alone, and so do we"),
    ("class", 0xb4b7, "NVB4B7_VIDEO_ENCODER: TU117's, as the other encoders (g_gpu_class_list.c)"),
    ("class", 0xc06f, PASCAL_AND_VOLTA),
    ("class", 0xc097, PASCAL_AND_VOLTA),
    ("class", 0xc0b5, PASCAL_AND_VOLTA),
    ("class", 0xc0b7, PASCAL_AND_VOLTA),
    ("class", 0xc0c0, PASCAL_AND_VOLTA),
    ("class", 0xc197, PASCAL_AND_VOLTA),
    ("class", 0xc1b0, PASCAL_AND_VOLTA),
    ("class", 0xc1b5, PASCAL_AND_VOLTA),
    ("class", 0xc1b7, PASCAL_AND_VOLTA),
    ("class", 0xc1c0, PASCAL_AND_VOLTA),
    ("class", 0xc361, "VOLTA_USERMODE_A: nvproxy forwards it for graphics and video; a doorbell page as those of later cards"),
    ("class", 0xc36f, PASCAL_AND_VOLTA),
    ("class", 0xc397, PASCAL_AND_VOLTA),
    ("class", 0xc3b0, PASCAL_AND_VOLTA),
    ("class", 0xc3b5, PASCAL_AND_VOLTA),
    ("class", 0xc3b7, PASCAL_AND_VOLTA),
    ("class", 0xc3c0, PASCAL_AND_VOLTA),
    ("class", 0xc797, "AMPERE_B: 3D of GA10x, as AMPERE_A and ADA_A"),
    ("class", 0xced0, "NVCED0_VIDEO_NVJPG: of the same cards as NVCEB0_VIDEO_DECODER"),
    ("control", 0x13e, "SYSTEM_GET_BUILD_VERSION_V2: a flat block of three strings"),
    ("control", 0x80_028c, "GET_SPARSE_TEXTURE_COMPUTE_MODE: a CUDA program was seen to ask it; a question"),
    ("control", 0x2080_0101, "GPU_GET_INFO: its list is carried and rewritten"),
    ("control", 0x2080_0123, "GPU_GET_ENGINES: its list is carried"),
    ("control", 0x2080_1301, "FB_GET_INFO: its list is carried and rewritten"),
    ("control", 0x2080_1357, "nvproxy has it from 575.51.02, 570.195.03 exports it too; a question"),
    ("control", 0x83de_0328, "DEBUG_READ_MMU_FAULT_INFO: nvproxy forwards it for profiling; of the debugger's own session"),
    ("control", 0xa06c_0104, "GET_TIMESLICE: nvproxy forwards it for profiling; a question about one's own channel group"),
];

#[test]
fn every_difference_from_nvproxy_has_its_reason() {
    let mut unexplained = Vec::new();
    let mut stale: Vec<(&str, &str, u32)> = LEFT_OUT
        .iter()
        .map(|(kind, number, _)| ("left out", *kind, *number))
        .chain(
            ADDED
                .iter()
                .map(|(kind, number, _)| ("added", *kind, *number)),
        )
        .collect();
    let cases = CONTAINERS
        .iter()
        .flat_map(|container| Release::ALL.map(|release| (release, container)));
    for (release, (capabilities, letters)) in cases {
        let (theirs, ours) = (
            nvproxy(release.headers(), letters),
            ours(release, *capabilities),
        );
        let mut explain = |side, list: &[(&str, u32, &str)], key: (&str, u32), name: &str| {
            if list.iter().any(|(kind, number, _)| (*kind, *number) == key) {
                stale.retain(|row| *row != (side, key.0, key.1));
            } else {
                unexplained.push(format!(
                    "{release:?} {letters:?} {side} {} {:#x} {name}",
                    key.0, key.1
                ));
            }
        };
        for (key, name) in theirs.iter().filter(|(key, _)| !ours.contains_key(*key)) {
            explain("left out", LEFT_OUT, *key, name);
        }
        for (key, name) in ours.iter().filter(|(key, _)| !theirs.contains_key(*key)) {
            explain("added", ADDED, *key, name);
        }
    }
    unexplained.sort();
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    assert!(stale.is_empty(), "no release differs in {stale:x?}");
}

/// Every pointer, descriptor and client in an admitted control's parameters.
fn references(release: Release) -> Vec<Reference<'static>> {
    lists::references(lists::REFERENCES)
        .filter(|row| row.is_in(release) && control::row(row.cmd, release).is_some())
        .collect()
}

#[test]
fn every_pointer_in_an_admitted_control_is_carried() {
    let mut checked = 0;
    for release in Release::ALL {
        let mut pointers: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for row in references(release) {
            if row.kind == "pointer" {
                pointers.entry(row.cmd).or_default().push(row.field);
            }
        }
        for (cmd, fields) in &pointers {
            if *cmd == control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS {
                // Must be NULL: `decide` looks.
                assert_eq!(fields, &["pRunlistPreemptEvent"]);
                continue;
            }
            let row = control::row(*cmd, release).unwrap();
            assert_eq!(
                row.nested.len(),
                fields.len(),
                "{release:?} {} has {fields:?}",
                row.name
            );
            checked += 1;
        }
        for (cmd, name) in control::rows() {
            if let Some(row) = control::row(cmd, release).filter(|row| !row.nested.is_empty()) {
                assert!(
                    pointers.contains_key(&cmd),
                    "{release:?} {name}: {:?}",
                    row.nested
                );
            }
        }
    }
    assert!(checked >= 40, "only {checked} controls with pointers");
}

#[test]
fn every_descriptor_and_client_in_an_admitted_control_is_looked_at() {
    let op = verdict::Op::Escape(&escape::NV_ESC_RM_CONTROL);
    let mut descriptors = 0;
    for release in Release::ALL {
        for Reference {
            cmd, kind, field, ..
        } in references(release)
        {
            match kind {
                "descriptor" => {
                    let mut arg = vec![0; 32];
                    nvabi::bytes::put_u32(&mut arg, nvabi::layout::nvos54::CMD, cmd);
                    let place = verdict::blocks::descriptor(&op, &[&arg]);
                    assert!(place.is_some(), "{release:?} {cmd:#x} {field}");
                    descriptors += 1;
                }
                "client" => assert!(
                    [
                        control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
                        control::NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND,
                    ]
                    .contains(&cmd),
                    "{release:?} {cmd:#x} {field}: names clients that nobody checks"
                ),
                _ => {}
            }
        }
    }
    assert_eq!(
        descriptors,
        5 * Release::ALL.len(),
        "five controls in every release"
    );
}

/// A control that RM answers for administrators or for itself alone must not depend on who executes it.
#[test]
fn no_admitted_control_needs_privilege() {
    for exported in lists::exported(lists::EXPORTED) {
        for release in Release::ALL {
            if control::row(exported.cmd, release).is_some() {
                let right = exported.right.of(release);
                assert!(
                    right.is_none_or(|right| right == "U"),
                    "{release:?} {} needs {right:?}",
                    exported.name
                );
            }
        }
    }
}
