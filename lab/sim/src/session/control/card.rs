//! What clients ask of a sub-device: which card it is, what is left of its memory, who uses it.

use std::sync::Arc;

use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::control::{fb_info, gpu_info};
use nvabi::layout::{atomics, fabric_probe, nvlink_device, nvlink_status, perfmon};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_OK};

use super::lists::{fill_info, fill_list, put_words};
use super::{Requested, UNSUPPORTED};
use crate::architecture::Engine;
use crate::card::{BAR1_BYTES, Process, SimCard};
use crate::clock::monotonic_ns;
use crate::hardware::Hardware;
use crate::profile::uuid_text;
use crate::refusal::Refusal;

const INVALID: Refusal = Refusal(NV_ERR_INVALID_ARGUMENT);
/// PCI vendor in the low half of a device id, device in the high one (ctrl2080bus.h).
const PCI_VENDOR: u32 = 0x10de;
/// Made-up topology, small because a client sizes its local memory by it.
pub(super) const GPCS: u32 = 2;
pub(super) const SMS_PER_TPC: u32 = 2;
const MAX_WARPS_PER_SM: u32 = 48;
const THREADS_PER_WARP: u32 = 32;
/// `NV2080_CTRL_GPU_FABRIC_PROBE_STATE_COMPLETE` (ctrl2080gpu.h).
const FABRIC_PROBE_COMPLETE: u8 = 3;

/// `{flags 0, name 4:128}`; flags 0: ASCII.
pub(super) fn name(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    if u32_at(requested.params, 0) != Some(0) {
        return Err(UNSUPPORTED);
    }
    requested.params.fill(0);
    put(requested.params, 4, card.profile.name.as_bytes());
    Ok(())
}

pub(super) fn id(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_u32(requested.params, 0, card.gpu_id());
    Ok(())
}

/// `{index 0, flags 4, length 8, data 12:256}`
pub(super) fn uuid(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let format = u32_at(requested.params, 4).ok_or(INVALID)?;
    let length = put_uuid(requested.params, 12, card, format)?;
    put_u32(requested.params, 8, length);
    Ok(())
}

/// `{engineCount 0, list 8:8}`
pub(super) fn engines(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let engines = engine_types(card);
    if let Some(list) = requested.lists.first_mut().filter(|list| !list.is_empty()) {
        put_words(list, 0, &engines)?;
    }
    put_u32(
        requested.params,
        0,
        u32::try_from(engines.len()).unwrap_or(0),
    );
    Ok(())
}

/// `{engineCount 0, list 4}`
pub(super) fn engines_v2(
    card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let engines = engine_types(card);
    put_words(requested.params, 4, &engines)?;
    put_u32(
        requested.params,
        0,
        u32::try_from(engines.len()).unwrap_or(0),
    );
    Ok(())
}

/// `{list count 0, list 8:8}`
pub(super) fn gpu_info(_card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let count = u32_at(requested.params, 0).ok_or(INVALID)?;
    fill_list(requested.lists.first_mut(), count, gpu_info_of)
}

pub(super) fn gpu_info_v2(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    fill_info(requested.params, 4, gpu_info_of)
}

/// `{state 0:1, status 4, clusterUuid 8:16, fabricPartitionId 24:2, fabricCaps 32:8}`: registered with a fabric that does
/// multicast (`subdeviceCtrlCmdGetGpuFabricProbeInfo_IMPL`, subdevice_ctrl_gpu_kernel.c).
pub(super) fn fabric_probe(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    requested.params.fill(0);
    put(requested.params, 0, &[FABRIC_PROBE_COMPLETE]);
    put_u64(
        requested.params,
        fabric_probe::CAPS,
        fabric_probe::MULTICAST,
    );
    Ok(())
}

/// `{count 0, {index, data}[] 4}`: nothing of it is modelled.
pub(super) fn bus_info_v2(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    fill_info(requested.params, 4, |_index| 0)
}

/// GPU_QUERY_COMPUTE_MODE_RULES: none. RC_GET_WATCHDOG_INFO, GPU_GET_COMPUTE_POLICY_CONFIG: nothing set. GPU_QUERY_ECC_STATUS
/// `{units[] 0, …}`: none has ECC; a firmware answers, of which the headers alone are known. BUS_GET_C2C_INFO `{bIsLinkUp 0:1, …}`: none.
pub(super) fn nothing(_card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.params.fill(0);
    Ok(())
}

pub(super) fn samples(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_samples(requested.context.hardware, card, requested.params)
}

pub(super) fn links(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_links(requested.context.hardware, card, requested.params);
    Ok(())
}

/// `{capType 0, dbdf 4, {bSupported, attributes}[13] 8}`: no atomic reaches another card. That RM refuses a peer that is not there
/// is a guess: firmware answers.
pub(super) fn atomics(_card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let kind = u32_at(requested.params, atomics::KIND);
    let peer = u32_at(requested.params, atomics::PEER).unwrap_or(0) >> 8 & 0xff;
    let cards = requested.context.hardware.cards.iter();
    let mut buses = cards.map(|card| card.pci_bus());
    if kind == Some(atomics::BETWEEN_CARDS) && !buses.any(|bus| u32::from(bus) == peer) {
        return Err(INVALID);
    }
    requested.params.get_mut(8..).unwrap_or_default().fill(0);
    Ok(())
}

pub(super) fn pids(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_pids(card, requested.params)
}

pub(super) fn pid_info(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_pid_info(card, requested.params)
}

/// `{ns 0:8}`
pub(super) fn time(_card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_u64(requested.params, 0, monotonic_ns());
    Ok(())
}

/// `{clock 0:1, sampleCount 1:1, {cpu, gpu}[16] 8}`: one clock for both.
pub(super) fn time_correlation(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    let now = monotonic_ns();
    for at in (8..requested.params.len()).step_by(8) {
        put_u64(requested.params, at, now);
    }
    Ok(())
}

/// `{list count 0, list 8:8}`
pub(super) fn gr_info(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let count = u32_at(requested.params, 0).ok_or(INVALID)?;
    fill_list(requested.lists.first_mut(), count, |index| {
        gr_info_of(card, index)
    })
}

/// `{hChannel 0, bytes 8:8}`
pub(super) fn falcon_context_bytes(
    _card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    put_u64(
        requested.params,
        8,
        requested.context.hardware.implicit.other_group,
    );
    Ok(())
}

/// `{…, gpcMask 16}`
pub(super) fn gpc_mask(_card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    put_u32(requested.params, 16, (1 << GPCS) - 1);
    Ok(())
}

/// `{…, gpcId 16, tpcMask 20}`
pub(super) fn tpc_mask(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let exists = u32_at(requested.params, 16).is_some_and(|gpc| gpc < GPCS);
    let mask = match exists {
        true => (1 << tpcs_per_gpc(card)) - 1,
        false => 0,
    };
    put_u32(requested.params, 20, mask);
    Ok(())
}

/// `{list count 0, list 8:8}`
pub(super) fn fb_info(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let count = u32_at(requested.params, 0).ok_or(INVALID)?;
    fill_list(requested.lists.first_mut(), count, fb_info_of(card))
}

pub(super) fn fb_info_v2(
    card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    fill_info(requested.params, 4, fb_info_of(card))
}

/// `{architecture 0, implementation 4, revision 8, subRevision 12:1}`
pub(super) fn architecture(
    card: &Arc<SimCard>,
    requested: &mut Requested<'_>,
) -> Result<(), Refusal> {
    requested.params.fill(0);
    put_u32(
        requested.params,
        0,
        card.profile.architecture.mc_architecture(),
    );
    put_u32(requested.params, 4, 2);
    put_u32(requested.params, 8, 0xa1);
    Ok(())
}

/// `{deviceId 0, subSystemId 4, revisionId 8, extDeviceId 12}`
pub(super) fn pci_info(card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    let device = u32::from(card.profile.architecture.pci_device_id());
    put_u32(requested.params, 0, device << 16 | PCI_VENDOR);
    put_u32(requested.params, 4, device << 16 | PCI_VENDOR);
    put_u32(requested.params, 8, 0xa1);
    put_u32(requested.params, 12, device);
    Ok(())
}

/// `{count 0, {flags 0, barSize MiB 4, barSizeBytes 8:8, barOffset 16:8}[8] 8}`
pub(super) fn bars(_card: &Arc<SimCard>, requested: &mut Requested<'_>) -> Result<(), Refusal> {
    requested.params.fill(0);
    put_u32(requested.params, 0, 2);
    for (at, bytes) in [(8, 16_u64 << 20), (32, BAR1_BYTES)] {
        let mib = u32::try_from(bytes >> 20).unwrap_or(0);
        put_u32(requested.params, at + 4, mib);
        put_u64(requested.params, at + 8, bytes);
    }
    Ok(())
}

/// Writes a card's UUID as `GPU-…` (format 0, with the end of the string) or as 16 bytes (format 2); its length.
pub(super) fn put_uuid(
    block: &mut [u8],
    at: usize,
    card: &SimCard,
    format: u32,
) -> Result<u32, Refusal> {
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

/// `NV2080_ENGINE_TYPE_*` of the card's engines.
fn engine_types(card: &SimCard) -> Vec<u32> {
    let engines = card.profile.architecture.engines();
    engines.into_iter().filter_map(Engine::number).collect()
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
fn gr_info_of(card: &SimCard, index: u32) -> u32 {
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
    if u32_at(block, 4).map(|requested| requested as usize)
        != Some(perfmon::MOST as usize * sample_bytes)
    {
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
            put(sample, at + 16, b"faked");
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
