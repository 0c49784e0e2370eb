//! What clients ask about the machine and its cards. The answers are the card's truth; the broker shows a slice of it.

use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::control::{self as ctl, fb_info, gpu_info};
use nvabi::layout::{
    atomics, boost_groups, fabric_probe, nvlink_device, nvlink_status, p2p_caps, p2p_matrix,
    perfmon,
};
use nvabi::status::{
    NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_DEVICE, NV_ERR_INVALID_PARAM_STRUCT,
    NV_ERR_OBJECT_NOT_FOUND, NV_OK,
};

use super::alloc::context_bytes;
use super::board;
use super::control::{Params, UNSUPPORTED, accepted};
use super::objects::Object;
use super::{Context, Refusal};
use crate::architecture::Engine;
use crate::card::{BAR1_BYTES, Process, SimCard};
use crate::clock::monotonic_ns;
use crate::machine::Hardware;
use crate::profile::uuid_text;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// `NV0000_CTRL_GPU_INVALID_ID`
const NO_ID: u32 = u32::MAX;
/// `NV0000_CTRL_GPU_ATTACH_ALL_PROBED_IDS`
const ALL_IDS: u32 = 0xffff;
const NOT_FOUND: Refusal = Refusal(NV_ERR_OBJECT_NOT_FOUND);
/// A card of the host that is not simulated, and that nobody can use.
const EXCLUDED_ID: u32 = 0xfe00;
/// Entries of a list of GPU ids.
const IDS: usize = 32;
/// PCI vendor in the low half of a device id, device in the high one (ctrl2080bus.h).
const PCI_VENDOR: u32 = 0x10de;
/// `NV0080_CTRL_FB_CAPS_*` (ctrl0080fb.h): rendering to the host's memory and blocks of 512 bytes; memory that was cleared.
const FB_CAPS: [u8; 3] = [0x03, 0x81, 0x02];
/// `NV0080_CTRL_DMA_CAPS_*` (ctrl0080dma.h): several address spaces.
const DMA_CAPS: u64 = 0x10;
/// Made-up topology, small because a client sizes its local memory by it.
pub(super) const GPCS: u32 = 2;
pub(super) const SMS_PER_TPC: u32 = 2;
const MAX_WARPS_PER_SM: u32 = 48;
const THREADS_PER_WARP: u32 = 32;
/// `NV0000_CTRL_GET_SYSTEM_FABRIC_STATUS_SKIP` (ctrl0000system.h).
const FABRIC_STATUS_SKIP: u32 = 1;
/// `NV2080_CTRL_GPU_FABRIC_PROBE_STATE_COMPLETE` (ctrl2080gpu.h).
const FABRIC_PROBE_COMPLETE: u8 = 3;

/// Controls of the client: about the driver, and which cards there are.
pub(super) fn machine(
    context: &Context<'_>,
    cmd: u32,
    params: &mut Params<'_>,
) -> Result<(), Refusal> {
    let hardware = context.hardware;
    let block = &mut *params.bytes;
    let card_of = |at: usize, block: &[u8]| {
        u32_at(block, at)
            .and_then(|id| hardware.card_by_gpu_id(id))
            .ok_or(INVALID)
    };
    // The id of every place in RM's list of 32 cards that no card has taken: some questions are answered of such a place.
    let is_unused = |block: &[u8]| u32_at(block, 0) == Some(NO_ID);
    match cmd {
        ctl::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2 => {
            // Three strings of 256 bytes until 550, four from 570 on; the version is the first, the title the last.
            block.fill(0);
            put(block, 0, hardware.version.as_bytes());
            let title = block.len().saturating_sub(8 + 256);
            put(block, title, b"cgpu-sim: no NVIDIA hardware");
        }
        // SYSTEM_GET_BUILD_VERSION {sizeOfStrings 0, three pointers 8, 16, 24, changelistNumber 32, 36}
        0x101 => {
            for list in params.lists.iter_mut() {
                list.fill(0);
            }
            if let Some(list) = params.lists.first_mut() {
                // A buffer that is too short gets nothing, as RM does.
                put(list, 0, hardware.version.as_bytes());
            }
            put_u64(block, 32, 0);
        }
        // {type 0, …, numLogicalCpus 24, numPhysicalCpus 28, name 32:52, …}: a processor of no known kind
        // (`cliresCtrlCmdSystemGetCpuInfo_IMPL`, client_resource.c).
        ctl::NV0000_CTRL_CMD_SYSTEM_GET_CPU_INFO => {
            let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            block.fill(0);
            put_u32(block, 24, count);
            put_u32(block, 28, count);
        }
        // No fabric that somebody else manages (`cliresCtrlCmdSystemGetFabricStatus_IMPL`, client_resource.c).
        ctl::NV0000_CTRL_CMD_SYSTEM_GET_FABRIC_STATUS => {
            put_u32(block, 0, FABRIC_STATUS_SKIP);
        }
        // SYSTEM_GET_FEATURES, GPU_GET_MEMOP_ENABLE
        0x1f0 | 0x27b => {
            put_u32(block, 0, 0);
        }
        // {gpuId 0, pid 4, state 8}: off.
        ctl::NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_STATE => {
            card_of(0, block)?;
            put_u32(block, 8, 0);
        }
        // There is no sync board (`NV0000_CTRL_GSYNC_INVALID_ID`, ctrl0000gsync.h).
        ctl::NV0000_CTRL_CMD_GSYNC_GET_ATTACHED_IDS => block.fill(0xff),
        ctl::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS => put_ids(context, block, 0),
        ctl::NV0000_CTRL_CMD_GPU_GET_PROBED_IDS => {
            block.fill(0);
            put_ids(context, block, 0);
            // A list of its own, of the cards that the host has the driver leave alone (`gpumgrGetProbedGpuIds`, gpu_mgr.c).
            for at in 0..IDS {
                put_u32(
                    block,
                    128 + 4 * at,
                    if at == 0 { EXCLUDED_ID } else { NO_ID },
                );
            }
        }
        // (`_cliresValidateGpuIdAgainstProbed` and `cliresCtrlCmdGpuDetachIds_IMPL`, client_resource.c)
        ctl::NV0000_CTRL_CMD_GPU_ATTACH_IDS | ctl::NV0000_CTRL_CMD_GPU_DETACH_IDS => {
            for at in 0..IDS {
                match u32_at(block, 4 * at) {
                    Some(NO_ID) | None => break,
                    Some(ALL_IDS) if at == 0 => break,
                    Some(id) if hardware.card_by_gpu_id(id).is_some() => {}
                    Some(_unknown) => return Err(INVALID),
                }
            }
        }
        ctl::NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID => {
            card_of(0, block)?;
        }
        // {gpuId 0, drainState 4, flags 8}: no card is about to go.
        ctl::NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE => {
            if !is_unused(block) {
                card_of(0, block).map_err(|_unknown| NOT_FOUND)?;
            }
            put_u64(block, 4, 0);
        }
        // {groupCount 0, {gpuCount, gpuIds[32], boostGroupId, bBridgeless}[16] 4} (`gpuboostmgrQueryGroups_IMPL`, gpu_boost_mgr.c)
        ctl::NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO => {
            let groups = block
                .get_mut(boost_groups::GROUPS..)
                .ok_or(INVALID)?
                .chunks_exact_mut(boost_groups::GROUP_BYTES);
            for (number, (row, group)) in (0..).zip(groups.zip(&hardware.boost_groups)) {
                let cards = hardware.cards.iter();
                let ids = cards.filter(|card| group.contains(&card.index));
                let mut count = 0;
                for (at, card) in (boost_groups::IDS..).step_by(4).zip(ids) {
                    put_u32(row, at, card.gpu_id());
                    count += 1;
                }
                put_u32(row, boost_groups::CARDS, count);
                put_u32(row, boost_groups::IDS + 4 * boost_groups::MOST, number);
            }
            let count = u32::try_from(hardware.boost_groups.len()).unwrap_or(0);
            put_u32(block, boost_groups::COUNT, count);
        }
        // GPU_GET_DEVICE_IDS: a bit for each device instance.
        ctl::NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS => {
            let mask = hardware.cards.iter().fold(0_u32, |mask, card| {
                mask | 1_u32.checked_shl(card.index).unwrap_or(0)
            });
            put_u32(block, 0, mask);
        }
        // {gpuId 0, flags 4, deviceInstance 8, subDeviceInstance 12, name 16:8, sliStatus 24, boardId 28, gpuInstance 32, numaId 36}
        ctl::NV0000_CTRL_CMD_GPU_GET_ID_INFO => {
            let card = card_of(0, block)?;
            put_u32(block, 4, 0);
            put_u32(block, 8, card.index);
            put_u32(block, 12, 0);
            put_u32(block, 24, 0);
            put_u32(block, 28, card.gpu_id());
            put_u32(block, 32, card.index);
            put_u32(block, 36, NO_ID);
        }
        // {gpuId 0, flags 4, deviceInstance 8, subDeviceInstance 12, sliStatus 16, boardId 20, gpuInstance 24, numaId 28}
        ctl::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 => {
            let card = card_of(0, block)?;
            put_u32(block, 4, 0);
            put_u32(block, 8, card.index);
            put_u32(block, 12, 0);
            put_u32(block, 16, 0);
            put_u32(block, 20, card.gpu_id());
            put_u32(block, 24, card.index);
            put_u32(block, 28, NO_ID);
        }
        // GPU_GET_PCI_INFO {gpuId 0, domain 4, bus 8:2, slot 10:2} (`gpumgrGetProbedGpuDomainBusDevice`, gpu_mgr.c)
        ctl::NV0000_CTRL_CMD_GPU_GET_PCI_INFO if is_unused(block) => {
            put_u64(block, 4, 0);
        }
        ctl::NV0000_CTRL_CMD_GPU_GET_PCI_INFO => {
            let card = card_of(0, block).map_err(|_unknown| NOT_FOUND)?;
            put_u32(block, 4, 0);
            put_u32(block, 8, u32::from(card.pci_bus()));
        }
        // {gpuId 0, flags 4, uuid 8:256, length 264} (`cliresCtrlCmdGpuGetUuidFromGpuId_IMPL`, client_resource.c)
        ctl::NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID => {
            let card = card_of(0, block).map_err(|_unknown| NOT_FOUND)?;
            let format = u32_at(block, 4).ok_or(INVALID)?;
            let length = put_uuid(block, 8, card, format)?;
            put_u32(block, 264, length);
        }
        // No two of these cards reach each other (`CliGetSystemP2pCaps`, client_resource.c).
        ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS | ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2 => {
            has_some(block, p2p_caps::COUNT)?;
            have_cards(context, block, p2p_caps::IDS, p2p_caps::COUNT)?;
            let end = if cmd == ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2 {
                block.len()
            } else {
                p2p_caps::TABLES
            };
            block
                .get_mut(p2p_caps::CAPS..p2p_caps::TABLES)
                .ok_or(INVALID)?
                .fill(0);
            let tables = block.get_mut(p2p_caps::TABLES..end).ok_or(INVALID)?;
            for table in params
                .lists
                .iter_mut()
                .map(Vec::as_mut_slice)
                .chain([tables])
            {
                // `NV0000_CTRL_SYSTEM_GET_P2P_CAPS_INVALID_PEER`
                table.fill(0xff);
            }
        }
        ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX => {
            // The second may have none: the first is compared with itself then.
            if let Some((_ids, count)) = p2p_matrix::GROUPS.first() {
                has_some(block, *count)?;
            }
            for (ids, count) in p2p_matrix::GROUPS {
                have_cards(context, block, ids, count)?;
            }
            block.get_mut(p2p_matrix::TABLES..).ok_or(INVALID)?.fill(0);
        }
        // {numDevices 0, {gpuId, gpuInstanceId, computeInstanceId}[] 4}
        ctl::NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS => {
            let mut count = 0;
            for (card, at) in hardware.cards.iter().zip((4..).step_by(12)) {
                if put_u32(block, at, card.gpu_id()) && put_u64(block, at + 4, u64::MAX) {
                    count += 1;
                }
            }
            put_u32(block, 0, count);
        }
        _known if accepted(cmd) => {}
        _other => return Err(UNSUPPORTED),
    }
    Ok(())
}

/// A list of no cards is not compared (`cliresCtrlCmdSystemGetP2pCaps_IMPL`, client_resource.c).
fn has_some(block: &[u8], count: usize) -> Result<(), Refusal> {
    match u32_at(block, count) {
        Some(0) | None => Err(INVALID),
        Some(_cards) => Ok(()),
    }
}

/// Whether there are all cards of a list of ids.
fn have_cards(
    context: &Context<'_>,
    block: &[u8],
    ids: usize,
    count: usize,
) -> Result<(), Refusal> {
    let count = u32_at(block, count).ok_or(INVALID)? as usize;
    let is_known = |id| context.hardware.card_by_gpu_id(id).is_some();
    let mut ids = (ids..).step_by(4).take(count);
    if count <= IDS && ids.all(|at| u32_at(block, at).is_some_and(is_known)) {
        Ok(())
    } else {
        Err(INVALID)
    }
}

fn put_ids(context: &Context<'_>, block: &mut [u8], from: usize) {
    for at in 0..IDS {
        let id = context
            .hardware
            .cards
            .get(at)
            .map_or(NO_ID, |card| card.gpu_id());
        put_u32(block, from + 4 * at, id);
    }
}

/// Writes a card's UUID as `GPU-…` (format 0, with the end of the string) or as 16 bytes (format 2); its length.
fn put_uuid(block: &mut [u8], at: usize, card: &SimCard, format: u32) -> Result<u32, Refusal> {
    match format & 3 {
        0 => {
            let mut text = uuid_text(&card.profile.uuid).into_bytes();
            text.push(0);
            put(block, at, &text);
            u32::try_from(text.len()).map_err(|_long| INVALID)
        }
        2 => {
            put(block, at, &card.profile.uuid);
            Ok(16)
        }
        _unknown => Err(INVALID),
    }
}

/// Controls of a device.
pub(super) fn device(object: &Object, cmd: u32, params: &mut Params<'_>) -> Result<(), Refusal> {
    let card = object.card.as_ref().ok_or(Refusal(NV_ERR_INVALID_DEVICE))?;
    let classes = card.profile.architecture.classes();
    let count = u32::try_from(classes.len()).map_err(|_many| INVALID)?;
    match cmd {
        // {numClasses 0, classList 8:8}: without a list the count is all of the answer, and a list must have room for every class
        // (`gpuGetClassList_IMPL`, gpu_resource_desc.c).
        ctl::NV0080_CTRL_CMD_GPU_GET_CLASSLIST => {
            if let Some(list) = params.lists.first_mut().filter(|list| !list.is_empty()) {
                put_words(list, 0, &classes)
                    .map_err(|_short| Refusal(NV_ERR_INVALID_PARAM_STRUCT))?;
            }
            put_u32(params.bytes, 0, count);
        }
        // {numClasses 0, classList 4}
        ctl::NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2 => {
            put_words(params.bytes, 4, &classes)?;
            put_u32(params.bytes, 0, count);
        }
        ctl::NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES => {
            put_u32(params.bytes, 0, 1);
        }
        // GPU_GET_VIRTUALIZATION_MODE: none.
        0x80_0289 => params.bytes.fill(0),
        // {capsTblSize 0, capsTbl 4:8}: a caller with a table of another length is refused (`deviceCtrlCmdDmaGetCaps_IMPL`, dma.c).
        ctl::NV0080_CTRL_CMD_DMA_GET_CAPS => {
            if u32_at(params.bytes, 0) != Some(8) {
                return Err(INVALID);
            }
            put_u64(params.bytes, 4, DMA_CAPS);
        }
        // {capsTbl 0:3} (`memmgrGetDeviceCaps`, mem_mgr_ctrl.c)
        ctl::NV0080_CTRL_CMD_FB_GET_CAPS_V2 => {
            put(params.bytes, 0, &FB_CAPS);
        }
        // {capsTbl 0:3}: none of a chipset that is coherent with its cards (`kbusGetDeviceCaps_IMPL`, kern_bus.c).
        ctl::NV0080_CTRL_CMD_HOST_GET_CAPS_V2 => params.bytes.fill(0),
        _other => return Err(UNSUPPORTED),
    }
    Ok(())
}

/// Controls of NV_CONFIDENTIAL_COMPUTE: neither the host nor a card can do it, and what asks for a card is refused
/// (`confComputeApiCtrlCmdSystemGetCapabilities_IMPL`, conf_compute_api.c).
pub(super) fn confidential(cmd: u32, params: &mut Params<'_>) -> Result<(), Refusal> {
    match cmd {
        ctl::NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES => params.bytes.fill(0),
        // `ccCaps.bAcceptClientRequest` (gpu_mgr.c): all requests are taken where there is no confidential computing.
        ctl::NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_GPUS_STATE => params.bytes.fill(1),
        _of_a_card => return Err(UNSUPPORTED),
    }
    Ok(())
}

/// `NV2080_ENGINE_TYPE_*` of the card's engines.
fn engine_types(card: &SimCard) -> Vec<u32> {
    let engines = card.profile.architecture.engines();
    engines.into_iter().filter_map(Engine::number).collect()
}

fn put_words(block: &mut [u8], at: usize, words: &[u32]) -> Result<(), Refusal> {
    for (word, place) in words.iter().zip((at..).step_by(4)) {
        if !put_u32(block, place, *word) {
            return Err(INVALID);
        }
    }
    Ok(())
}

/// Controls of a sub-device: about one card.
pub(super) fn subdevice(
    context: &Context<'_>,
    object: &Object,
    cmd: u32,
    params: &mut Params<'_>,
) -> Result<(), Refusal> {
    let card = object.card.as_ref().ok_or(Refusal(NV_ERR_INVALID_DEVICE))?;
    let block = &mut *params.bytes;
    match cmd {
        // {flags 0, name 4:128}; flags 0: ASCII.
        ctl::NV2080_CTRL_CMD_GPU_GET_NAME_STRING => {
            if u32_at(block, 0) != Some(0) {
                return Err(UNSUPPORTED);
            }
            block.fill(0);
            put(block, 4, card.profile.name.as_bytes());
        }
        // GPU_GET_ID
        0x2080_0142 => {
            put_u32(block, 0, card.gpu_id());
        }
        // {index 0, flags 4, length 8, data 12:256}
        ctl::NV2080_CTRL_CMD_GPU_GET_GID_INFO => {
            let format = u32_at(block, 4).ok_or(INVALID)?;
            let length = put_uuid(block, 12, card, format)?;
            put_u32(block, 8, length);
        }
        // GPU_GET_ENGINES {engineCount 0, list 8:8}, GPU_GET_ENGINES_V2 {engineCount 0, list 4}
        0x2080_0123 => {
            let engines = engine_types(card);
            if let Some(list) = params.lists.first_mut().filter(|list| !list.is_empty()) {
                put_words(list, 0, &engines)?;
            }
            put_u32(block, 0, u32::try_from(engines.len()).unwrap_or(0));
        }
        0x2080_0170 => {
            let engines = engine_types(card);
            put_words(block, 4, &engines)?;
            put_u32(block, 0, u32::try_from(engines.len()).unwrap_or(0));
        }
        // {list count 0, list 8:8}
        ctl::NV2080_CTRL_CMD_GPU_GET_INFO => {
            let count = u32_at(block, 0).ok_or(INVALID)?;
            fill_list(params.lists.first_mut(), count, gpu_info_of)?;
        }
        ctl::NV2080_CTRL_CMD_GPU_GET_INFO_V2 => fill_info(block, 4, gpu_info_of)?,
        // {state 0:1, status 4, clusterUuid 8:16, fabricPartitionId 24:2, fabricCaps 32:8}: registered with a fabric that does
        // multicast (`subdeviceCtrlCmdGetGpuFabricProbeInfo_IMPL`, subdevice_ctrl_gpu_kernel.c).
        ctl::NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO => {
            block.fill(0);
            put(block, 0, &[FABRIC_PROBE_COMPLETE]);
            put_u64(block, fabric_probe::CAPS, fabric_probe::MULTICAST);
        }
        // BUS_GET_INFO_V2 {count 0, {index, data}[] 4}: nothing of it is modelled.
        0x2080_1823 => fill_info(block, 4, |_index| 0)?,
        // GPU_QUERY_COMPUTE_MODE_RULES: none. RC_GET_WATCHDOG_INFO, GPU_GET_COMPUTE_POLICY_CONFIG: nothing set.
        0x2080_0131 | 0x2080_2209 | 0x2080_0195 => block.fill(0),
        ctl::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 => {
            put_samples(context.hardware, card, block)?;
        }
        ctl::NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS => put_links(context.hardware, card, block),
        // {capType 0, dbdf 4, {bSupported, attributes}[13] 8}: no atomic reaches another card. That RM refuses a peer that is not there
        // is a guess: firmware answers.
        ctl::NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS => {
            let kind = u32_at(block, atomics::KIND);
            let peer = u32_at(block, atomics::PEER).unwrap_or(0) >> 8 & 0xff;
            let mut buses = context.hardware.cards.iter().map(|card| card.pci_bus());
            if kind == Some(atomics::BETWEEN_CARDS) && !buses.any(|bus| u32::from(bus) == peer) {
                return Err(INVALID);
            }
            block.get_mut(8..).unwrap_or_default().fill(0);
        }
        ctl::NV2080_CTRL_CMD_GPU_GET_PIDS => put_pids(card, block)?,
        ctl::NV2080_CTRL_CMD_GPU_GET_PID_INFO => put_pid_info(card, block)?,
        // TIMER_GET_TIME {ns 0:8}
        0x2080_0403 => {
            put_u64(block, 0, monotonic_ns());
        }
        // TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO {clock 0:1, sampleCount 1:1, {cpu, gpu}[16] 8}: one clock for both.
        0x2080_0406 => {
            let now = monotonic_ns();
            for at in (8..block.len()).step_by(8) {
                put_u64(block, at, now);
            }
        }
        // {list count 0, list 8:8}
        ctl::NV2080_CTRL_CMD_GR_GET_INFO => {
            let count = u32_at(block, 0).ok_or(INVALID)?;
            fill_list(params.lists.first_mut(), count, |index| {
                gr_info(card, index)
            })?;
        }
        // GR_GET_CTX_BUFFER_SIZE {hChannel 0, bytes 8:8}; FLCN_GET_CTX_BUFFER_SIZE has the same shape.
        ctl::NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE => {
            put_u64(block, 8, context_bytes(context, card));
        }
        0x2080_3125 => {
            put_u64(block, 8, context.hardware.implicit.other_group);
        }
        // GR_GET_GPC_MASK {…, gpcMask 16}, GR_GET_TPC_MASK {…, gpcId 16, tpcMask 20}
        0x2080_122a => {
            put_u32(block, 16, (1 << GPCS) - 1);
        }
        0x2080_122b => {
            let exists = u32_at(block, 16).is_some_and(|gpc| gpc < GPCS);
            put_u32(
                block,
                20,
                if exists {
                    (1 << tpcs_per_gpc(card)) - 1
                } else {
                    0
                },
            );
        }
        ctl::NV2080_CTRL_CMD_FB_GET_INFO => {
            let count = u32_at(block, 0).ok_or(INVALID)?;
            fill_list(params.lists.first_mut(), count, fb_info_of(card))?;
        }
        ctl::NV2080_CTRL_CMD_FB_GET_INFO_V2 => fill_info(block, 4, fb_info_of(card))?,
        // {architecture 0, implementation 4, revision 8, subRevision 12:1}
        ctl::NV2080_CTRL_CMD_MC_GET_ARCH_INFO => {
            block.fill(0);
            put_u32(block, 0, card.profile.architecture.mc_architecture());
            put_u32(block, 4, 2);
            put_u32(block, 8, 0xa1);
        }
        // {deviceId 0, subSystemId 4, revisionId 8, extDeviceId 12}
        ctl::NV2080_CTRL_CMD_BUS_GET_PCI_INFO => {
            let device = u32::from(card.profile.architecture.pci_device_id());
            put_u32(block, 0, device << 16 | PCI_VENDOR);
            put_u32(block, 4, device << 16 | PCI_VENDOR);
            put_u32(block, 8, 0xa1);
            put_u32(block, 12, device);
        }
        // BUS_GET_PCI_BAR_INFO {count 0, {flags 0, barSize MiB 4, barSizeBytes 8:8, barOffset 16:8}[8] 8}
        0x2080_1803 => {
            block.fill(0);
            put_u32(block, 0, 2);
            for (at, bytes) in [(8, 16_u64 << 20), (32, BAR1_BYTES)] {
                put_u32(block, at + 4, u32::try_from(bytes >> 20).unwrap_or(0));
                put_u64(block, at + 8, bytes);
            }
        }
        _known if accepted(cmd) => {}
        _other => return board::answer(context.hardware, card, cmd, params),
    }
    Ok(())
}

/// `{count; {index, data}[]}` in one block.
fn fill_info(block: &mut [u8], at: usize, answer: impl Fn(u32) -> u32) -> Result<(), Refusal> {
    let count = u32_at(block, 0).ok_or(INVALID)?;
    fill_entries(block.get_mut(at..).ok_or(INVALID)?, count, answer)
}

/// The same, with the entries in a block of their own.
pub(super) fn fill_list(
    list: Option<&mut Vec<u8>>,
    count: u32,
    answer: impl Fn(u32) -> u32,
) -> Result<(), Refusal> {
    match list {
        Some(list) => fill_entries(list, count, answer),
        None if count == 0 => Ok(()),
        None => Err(INVALID),
    }
}

fn fill_entries(
    entries: &mut [u8],
    count: u32,
    answer: impl Fn(u32) -> u32,
) -> Result<(), Refusal> {
    const ENTRY_BYTES: usize = 8;
    let bytes = usize::try_from(count)
        .ok()
        .and_then(|count| count.checked_mul(ENTRY_BYTES))
        .ok_or(INVALID)?;
    for entry in entries
        .get_mut(..bytes)
        .ok_or(INVALID)?
        .chunks_exact_mut(ENTRY_BYTES)
    {
        let index = u32_at(entry, 0).unwrap_or(0);
        put_u32(entry, 4, answer(index));
    }
    Ok(())
}

/// Answers of FB_GET_INFO in KiB, from one look at the account (`_kmemsysGetFbInfos`, kern_mem_sys_ctrl.c).
fn fb_info_of(card: &SimCard) -> impl Fn(u32) -> u32 {
    let kib = |bytes: u64| u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
    let (total, free, bar1, bar1_free) = (
        kib(card.profile.memory_bytes),
        kib(card.free_bytes()),
        kib(BAR1_BYTES),
        kib(card.bar1_free_bytes()),
    );
    move |index| match index {
        fb_info::RAM_SIZE
        | fb_info::TOTAL_RAM_SIZE
        | fb_info::HEAP_SIZE
        | fb_info::MAPPABLE_HEAP_SIZE
        | fb_info::USABLE_RAM_SIZE => total,
        fb_info::LARGEST_FREE_REGION_SIZE_KB | fb_info::HEAP_FREE => free,
        fb_info::LARGEST_FREE_REGION_BASE_KB => total - free,
        fb_info::BAR1_SIZE => bar1,
        fb_info::BAR1_AVAIL_SIZE | fb_info::BAR1_MAX_CONTIGUOUS_AVAIL_SIZE => bar1_free,
        // What the driver keeps of the card for itself, and pages that were taken out of use.
        fb_info::FB_TAX_SIZE_KB
        | fb_info::VISTA_RESERVED_HEAP_SIZE
        | fb_info::SMOOTHDISP_RSVD_BAR1_SIZE
        | fb_info::HEAP_OFFLINE_SIZE
        | fb_info::SUSPEND_RESUME_RSVD_SIZE => 64,
        _not_modelled => 0,
    }
}

/// Answers of GPU_GET_INFO (`getGpuInfos`, subdevice_ctrl_gpu_kernel.c): a kernel that has dma-bufs, and a card behind a switch.
fn gpu_info_of(index: u32) -> u32 {
    match index & gpu_info::INDEX_MASK {
        gpu_info::DMABUF_CAPABILITY | gpu_info::GPU_FLA_CAPABILITY => 1,
        _not_modelled => 0,
    }
}

pub(super) fn tpcs_per_gpc(card: &SimCard) -> u32 {
    card.profile.multiprocessors / (GPCS * SMS_PER_TPC)
}

/// Indices of ctrl0080gr.h.
fn gr_info(card: &SimCard, index: u32) -> u32 {
    match index {
        0x07 => GPCS,
        0x08 => GPCS * tpcs_per_gpc(card) * SMS_PER_TPC,
        0x09 => GPCS * tpcs_per_gpc(card),
        0x0c => card.profile.architecture.sm_version(),
        0x0d => MAX_WARPS_PER_SM,
        0x0e => THREADS_PER_WARP,
        0x14 => GPCS,
        0x17 => tpcs_per_gpc(card),
        0x20 => SMS_PER_TPC,
        _not_modelled => 0,
    }
}

/// `{idType 0, id 4, count 8, pids[950] 12}`
fn put_pids(card: &SimCard, block: &mut [u8]) -> Result<(), Refusal> {
    const PIDS: usize = 950;
    let processes = card.processes();
    if processes.len() > PIDS {
        return Err(INVALID);
    }
    for (process, at) in processes.iter().zip((12..).step_by(4)) {
        put(block, at, &process.pid.to_le_bytes());
    }
    put_u32(block, 8, u32::try_from(processes.len()).unwrap_or(0));
    Ok(())
}

/// `{count 0, {pid 0, index 4, result 8, data 16:48, computeInstanceId 64, gpuInstanceId 68}[200] 8}`; index 0: memory,
/// whose first field is what the process alone holds. Of a process that nobody knows RM says that it holds nothing.
fn put_pid_info(card: &SimCard, block: &mut [u8]) -> Result<(), Refusal> {
    const ENTRY_BYTES: usize = 72;
    const ENTRIES: u32 = 200;
    const INDEX_MEMORY: u32 = 0;
    let count = u32_at(block, 0)
        .filter(|count| (1..=ENTRIES).contains(count))
        .ok_or(INVALID)?;
    let processes = card.processes();
    let entries = block
        .get_mut(8..)
        .ok_or(INVALID)?
        .chunks_exact_mut(ENTRY_BYTES);
    for entry in entries.take(usize::try_from(count).unwrap_or(0)) {
        if u32_at(entry, 4) != Some(INDEX_MEMORY) {
            return Err(INVALID);
        }
        let pid = u32_at(entry, 0).unwrap_or(0);
        let found = processes
            .iter()
            .find(|process| u32::try_from(process.pid) == Ok(pid));
        if let Some(data) = entry.get_mut(16..64) {
            data.fill(0);
        }
        put_u64(entry, 16, found.map_or(0, |process| process.bytes));
        put_u32(entry, 8, NV_OK);
        put_u64(entry, 64, u64::MAX);
    }
    Ok(())
}

/// A full ring of samples. In each of them one process has computed, by turns; `pOsPidInfo` is an address in the kernel.
/// (`subdeviceCtrlCmdPerfGetGpumonPerfmonUtilSamplesV2_KERNEL`, kern_perf_ctrl.c)
fn put_samples(hardware: &Hardware, card: &SimCard, block: &mut [u8]) -> Result<(), Refusal> {
    const KERNEL_ADDRESS: u64 = 0xffff_8881_0000_0000;
    let bytes = |size: nvabi::PerRelease| size.of(hardware.release) as usize;
    let (sample_bytes, engine_bytes) = (bytes(perfmon::SAMPLE_BYTES), bytes(perfmon::ENGINE_BYTES));
    if u32_at(block, 4).map(|asked| asked as usize) != Some(perfmon::MOST as usize * sample_bytes) {
        return Err(INVALID);
    }
    let processes = card.processes();
    let busy = bytes(perfmon::GR);
    let samples = block.get_mut(perfmon::SAMPLES..).ok_or(INVALID)?;
    for (number, sample) in samples.chunks_exact_mut(sample_bytes).enumerate() {
        sample.fill(0);
        put_u64(sample, perfmon::TIME, number as u64 + 1);
        for at in (perfmon::ENGINES..sample_bytes).step_by(engine_bytes) {
            put_u32(sample, at + perfmon::PROCESS, perfmon::NO_PROCESS);
        }
        let place = number.checked_rem(processes.len()).unwrap_or(0);
        let Some(Process { pid, .. }) = processes.get(place) else {
            continue;
        };
        for at in [perfmon::ENGINES, busy] {
            put_u32(
                sample,
                at + perfmon::UTIL,
                100 * (u32::try_from(place).unwrap_or(0) + 1),
            );
            put(sample, at + perfmon::PROCESS, &pid.to_le_bytes());
            put(sample, at + 16, b"played");
            if engine_bytes == 128 {
                put_u64(sample, at + 120, KERNEL_ADDRESS);
            }
        }
    }
    put_u32(block, perfmon::COUNT, perfmon::MOST);
    put_u32(block, perfmon::TRACKER, 0);
    Ok(())
}

/// A card's links, with what is at their other ends (`subdeviceCtrlCmdBusGetNvlinkStatus_IMPL`, common_nvlinkapi.c).
fn put_links(hardware: &Hardware, card: &SimCard, block: &mut [u8]) {
    const SWITCH_BUS: u16 = 0xe0;
    let bytes = |size: nvabi::PerRelease| size.of(hardware.release) as usize;
    block.fill(0);
    let ends = hardware.links.iter().filter_map(|link| match link.to {
        _ if link.from == card.index => Some(link.to),
        Some(to) if to == card.index => Some(Some(link.from)),
        Some(_) | None => None,
    });
    let mut enabled = 0;
    for (number, end) in ends.enumerate() {
        let at = bytes(nvlink_status::LINKS) + number * bytes(nvlink_status::LINK_BYTES);
        put(block, at + nvlink_status::CONNECTED, &[1]);
        enabled |= 1_u32 << number;
        let far = end.and_then(|index| hardware.cards.get(index as usize));
        let (bus, kind) = far.map_or((SWITCH_BUS, nvlink_device::SWITCH), |far| {
            (u16::from(far.pci_bus()), nvlink_device::GPU)
        });
        let near = (u16::from(card.pci_bus()), nvlink_device::GPU);
        for (end, (bus, kind)) in [
            (nvlink_status::REMOTE, (bus, kind)),
            (nvlink_status::LOCAL, near),
        ] {
            let end = at + bytes(end);
            put_u32(block, end + nvlink_device::FLAGS, nvlink_device::FLAG_PCI);
            put(block, end + nvlink_device::BUS, &bus.to_le_bytes());
            put_u64(block, end + nvlink_device::TYPE, kind);
        }
    }
    put_u32(block, nvlink_status::ENABLED, enabled);
}
