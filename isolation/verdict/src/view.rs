//! Answers rewritten to the slice, always from one snapshot, so that any sum a tool makes agrees.

use std::collections::BTreeSet;

use nvabi::bytes::{put_u32, put_u64, u16_at, u32_at, u64_at};
use nvabi::capability::Capabilities;
use nvabi::class::{self, Kind, Plain};
use nvabi::control::{fb_info, gpu_info};
use nvabi::layout::{
    boost_groups, card_info, engine_type, export_info, fabric_probe, fb_regions, nvlink_device,
    nvlink_status, nvos32, perfmon, pid_info, pid_memory, pids,
};
use nvabi::{Release, status};

use crate::cards;
use crate::decide::is_refused_engine;
use crate::effect::Engines;
use crate::policy::{CardFigures, Policy};

mod narrowed;

pub use narrowed::narrowings;

/// What a tenant has of one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Quota in bytes.
    pub quota_bytes: u64,
    /// Bytes charged.
    pub used_bytes: u64,
}

impl Slice {
    fn free_bytes(self) -> u64 {
        self.quota_bytes.saturating_sub(self.used_bytes)
    }
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes / 1024).unwrap_or(u32::MAX)
}

/// Rewrites entries of `{u32 index; u32 data}` to what `shown` makes of index and data; where it has nothing to say, the driver's
/// answer stays. Entries beyond the list's end are the driver's affair.
fn info_list(list: &mut [u8], entries: u32, shown: impl Fn(u32, u32) -> Option<u32>) {
    for entry in list.chunks_exact_mut(8).take(entries as usize) {
        if let (Some(index), Some(real)) = (u32_at(entry, 0), u32_at(entry, 4))
            && let Some(shown) = shown(index, real)
        {
            put_u32(entry, 4, shown);
        }
    }
}

/// Rewrites FB_GET_INFO's list: total = quota, free = what is left of it (never more than the card has). What the driver keeps of the
/// card is no part of the quota, and where neighbours' memory ends is not shown.
pub fn fb_info_list(list: &mut [u8], entries: u32, slice: Slice) {
    info_list(list, entries, |index, real| match index {
        fb_info::RAM_SIZE
        | fb_info::TOTAL_RAM_SIZE
        | fb_info::HEAP_SIZE
        | fb_info::USABLE_RAM_SIZE => Some(kib(slice.quota_bytes)),
        // Nothing is protected where the card does not compute confidentially.
        fb_info::MAPPABLE_HEAP_SIZE | fb_info::PROTECTED_MEM_SIZE_TOTAL_KB => {
            Some(real.min(kib(slice.quota_bytes)))
        }
        fb_info::HEAP_FREE
        | fb_info::LARGEST_FREE_REGION_SIZE_KB
        | fb_info::PROTECTED_MEM_SIZE_FREE_KB => Some(real.min(kib(slice.free_bytes()))),
        fb_info::FB_TAX_SIZE_KB
        | fb_info::VISTA_RESERVED_HEAP_SIZE
        | fb_info::SMOOTHDISP_RSVD_BAR1_SIZE
        | fb_info::HEAP_OFFLINE_SIZE
        | fb_info::SUSPEND_RESUME_RSVD_SIZE
        | fb_info::LARGEST_FREE_REGION_BASE_KB => Some(0),
        _ => None,
    });
}

/// Rewrites GPU_GET_INFO's list: what a tenant would be refused it has not, so that a library that asks first goes another way.
/// Memory is exported neither as a dma-buf nor on the fabric.
pub fn gpu_info_list(list: &mut [u8], entries: u32) {
    info_list(list, entries, |index, _real| {
        match index & gpu_info::INDEX_MASK {
            gpu_info::DMABUF_CAPABILITY | gpu_info::GPU_FLA_CAPABILITY => Some(0),
            _ => None,
        }
    });
}

/// Rewrites GET_GPU_FABRIC_PROBE_INFO: the fabric as it is, without multicast.
pub fn no_multicast(params: &mut [u8]) {
    if let Some(real) = u64_at(params, fabric_probe::CAPS) {
        put_u64(params, fabric_probe::CAPS, real & !fabric_probe::MULTICAST);
    }
}

/// Replaces the classes that the tenant is refused by another of the list: [`Kind::Fabric`], those of capabilities that it does not
/// have, and the page of figures where it is refused. A class that cgpu does not know stays, since tools tell by it what a card is.
///
/// The list's length stays as well. RM fails a call whose list is shorter than all that it has, and a caller of the older form asks
/// for the length first: a smaller one would make its second call fail.
pub fn class_list(list: &mut [u8], entries: u32, release: Release, policy: &Policy) {
    let is_refused = |number| {
        class::row_of(number, release).is_some_and(|class| {
            class.kind == Kind::Fabric
                || !class.needs.met_by(policy.capabilities)
                || class.kind == Kind::Plain(Plain::SharedData)
                    && policy.card_figures == CardFigures::Refuse
        })
    };
    let listed = list.len().min((entries as usize).saturating_mul(4));
    let list = list.get_mut(..listed).unwrap_or_default();
    let kept = list
        .chunks_exact(4)
        .filter_map(|entry| u32_at(entry, 0))
        .find(|number| !is_refused(*number));
    for entry in list.chunks_exact_mut(4) {
        if u32_at(entry, 0).is_some_and(is_refused) {
            put_u32(entry, 0, kept.unwrap_or(0));
        }
    }
}

/// Leaves the engines out that the tenant is refused. A list in the parameters gets shorter; the length of one with a block of its own stays,
/// for the reason of [`class_list`], and an engine that is left out of it is none (`NV2080_ENGINE_TYPE_NULL`).
pub fn engine_list(params: &mut [u8], block: &mut [u8], list: Engines, capabilities: Capabilities) {
    let is_kept = |engine: &u32| !is_refused_engine(*engine, capabilities);
    match list {
        Engines::PointedTo => {
            let count = u32_at(params, 0).unwrap_or(0) as usize;
            for entry in block.chunks_exact_mut(4).take(count) {
                if u32_at(entry, 0).is_some_and(|engine| !is_kept(&engine)) {
                    put_u32(entry, 0, engine_type::NULL);
                }
            }
        }
        Engines::InParameters { count_at, at } => {
            let count = u32_at(params, count_at).unwrap_or(0) as usize;
            let entries = params.get_mut(at..).unwrap_or_default();
            let listed = entries.len().min(count.saturating_mul(4));
            let entries = entries.get_mut(..listed).unwrap_or_default();
            let words = entries.chunks_exact(4).filter_map(|entry| u32_at(entry, 0));
            let kept: Vec<u32> = words.filter(is_kept).collect();
            entries.fill(0);
            for (place, engine) in (0..).step_by(4).zip(&kept) {
                put_u32(entries, place, *engine);
            }
            put_u32(params, count_at, u32::try_from(kept.len()).unwrap_or(0));
        }
    }
}

/// Rewrites FB_GET_FB_REGION_INFO: one region from 0 to the quota, of the kind of the card's first. Where the card's regions lie and what RM
/// keeps of them is not shown; the other places are filled as RM fills those without a region.
pub fn fb_regions(params: &mut [u8], release: Release, slice: Slice) {
    let entry_bytes = fb_regions::ENTRY_BYTES.of(release) as usize;
    let types = fb_regions::TYPES.of(release) as usize;
    put_u32(params, fb_regions::COUNT, 1);
    let list = params.get_mut(fb_regions::LIST..).unwrap_or_default();
    let mut entries = list.chunks_exact_mut(entry_bytes);
    if let Some(first) = entries.next() {
        put_u64(first, fb_regions::BASE, 0);
        put_u64(
            first,
            fb_regions::LIMIT,
            slice.quota_bytes.saturating_sub(1),
        );
        put_u64(first, fb_regions::RESERVED, 0);
    }
    for entry in entries {
        entry.fill(0);
        let excluded = fb_regions::EXCLUDED..fb_regions::EXCLUDED + types;
        entry.get_mut(excluded).unwrap_or_default().fill(1);
    }
}

/// Answers that nothing of what is asked about is there: every byte is the same.
pub fn nothing_there(params: &mut [u8], byte: u8) {
    params.fill(byte);
}

/// Rewrites NVOS32's INFO answer.
pub fn heap_info(arg: &mut [u8], slice: Slice) {
    put_u64(arg, nvos32::TOTAL, slice.quota_bytes);
    put_u64(arg, nvos32::FREE, slice.free_bytes());
    put_u64(arg, nvos32::INFO_SIZE, slice.free_bytes());
}

/// Keeps the entries of CARD_INFO whose minor is granted, in their order, and blanks the rest.
pub fn card_info(arg: &mut [u8], is_granted: impl Fn(u32) -> bool) {
    let kept: Vec<Vec<u8>> = arg
        .chunks_exact(card_info::BYTES)
        .filter(|entry| entry.first().is_some_and(|valid| *valid != 0))
        .filter(|entry| u32_at(entry, card_info::MINOR).is_some_and(&is_granted))
        .map(<[u8]>::to_vec)
        .collect();
    arg.fill(0);
    for (slot, entry) in arg.chunks_exact_mut(card_info::BYTES).zip(kept) {
        slot.copy_from_slice(&entry);
    }
}

/// `NV0000_CTRL_GPU_INVALID_ID`
const INVALID_ID: u32 = u32::MAX;

/// Keeps the granted ids of a list of 32 `u32` GPU ids at the block's start, in their order; the rest becomes
/// `NV0000_CTRL_GPU_INVALID_ID`. PROBED_IDS has such a list of cards that are excluded behind it, which is rewritten in the same way,
/// and from 580 on the first list's flags, which go with their ids.
pub fn gpu_ids(params: &mut [u8], is_granted: impl Fn(u32) -> bool) {
    const LIST_BYTES: usize = 4 * 32;
    let mut lists = params.chunks_exact_mut(LIST_BYTES);
    let (mut none, mut no_flags) = ([], []);
    let ids = lists.next().unwrap_or(&mut none);
    let excluded = lists.next();
    let flags = lists.next().unwrap_or(&mut no_flags);
    pack_ids(ids, flags, &is_granted);
    if let Some(excluded) = excluded {
        pack_ids(excluded, &mut [], &is_granted);
    }
}

/// Packs the granted ids of a list, and with each the word at its place in another.
fn pack_ids(ids: &mut [u8], flags: &mut [u8], is_granted: impl Fn(u32) -> bool) {
    let kept: Vec<(u32, u32)> = (0..ids.len())
        .step_by(4)
        .filter_map(|at| Some((u32_at(ids, at)?, u32_at(flags, at).unwrap_or(0))))
        .filter(|(id, _)| *id != INVALID_ID && is_granted(*id))
        .collect();
    ids.fill(0xff);
    flags.fill(0);
    for (at, (id, its_flags)) in (0..).step_by(4).zip(kept) {
        put_u32(ids, at, id);
        put_u32(flags, at, its_flags);
    }
}

/// Keeps the granted cards of GET_ACTIVE_DEVICE_IDS: `{u32 count; {u32 gpuId; u32 gpuInstanceId; u32 computeInstanceId}[]}`.
pub fn active_devices(params: &mut [u8], is_granted: impl Fn(u32) -> bool) {
    const ENTRY_BYTES: usize = 12;
    let Some((count, list)) = params.split_at_mut_checked(4) else {
        return;
    };
    let listed = u32_at(count, 0).unwrap_or(0) as usize;
    let kept: Vec<Vec<u8>> = list
        .chunks_exact(ENTRY_BYTES)
        .take(listed)
        .filter(|entry| u32_at(entry, 0).is_some_and(&is_granted))
        .map(<[u8]>::to_vec)
        .collect();
    list.fill(0);
    for (entry, kept) in list.chunks_exact_mut(ENTRY_BYTES).zip(&kept) {
        entry.copy_from_slice(kept);
    }
    put_u32(count, 0, u32::try_from(kept.len()).unwrap_or(0));
}

/// A process of the container's that holds something of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Its number on the host.
    pub host_pid: u32,
    /// The number that whoever asks knows it by.
    pub known_as: u32,
    /// What is charged for it, bytes.
    pub bytes: u64,
}

/// Rewrites GPU_GET_PIDS: of the container's own processes those that the driver lists, by the numbers that the asker knows, as the
/// driver itself gives them (`gpuGetProcWithObject_IMPL`, gpu_rmapi.c). For the driver all of an executor's calls are that one process's:
/// where that is listed, every process is that holds something.
pub fn own_pids(params: &mut [u8], holders: &[Holder], executor: Option<u32>) {
    let count = u32_at(params, pids::COUNT).unwrap_or(0) as usize;
    let at = |index: usize| pids::TABLE + 4 * index;
    let listed: BTreeSet<u32> = (0..count.min(pids::MOST))
        .filter_map(|index| u32_at(params, at(index)))
        .collect();
    let all = executor.is_some_and(|executor| listed.contains(&executor));
    let shown: Vec<u32> = holders
        .iter()
        .filter(|holder| all || listed.contains(&holder.host_pid))
        .map(|holder| holder.known_as)
        .take(pids::MOST)
        .collect();
    if let Some(table) = params.get_mut(pids::TABLE..) {
        table.fill(0);
    }
    for (index, pid) in shown.iter().enumerate() {
        put_u32(params, at(index), *pid);
    }
    put_u32(params, pids::COUNT, u32::try_from(shown.len()).unwrap_or(0));
}

/// Rewrites GPU_GET_PID_INFO: what is charged for the container's own processes; any other holds nothing that this tenant may know of. All rows
/// but the first get what RM writes beside the figures, of a process that no partition is known of: the driver was asked for that one.
pub fn own_pid_info(params: &mut [u8], holders: &[Holder]) {
    /// `smcSubscription`: a compute instance and a GPU instance.
    const PARTITIONS: core::ops::Range<usize> = 64..pid_memory::BYTES;
    /// Where in a row the figures stand.
    const FIGURES: core::ops::Range<usize> = pid_memory::DATA..PARTITIONS.start;
    let count = u32_at(params, pid_info::COUNT).unwrap_or(0) as usize;
    let rows = params.get_mut(pid_info::LIST..).unwrap_or_default();
    for (index, row) in rows.chunks_exact_mut(pid_memory::BYTES).enumerate() {
        if let Some(figures) = row.get_mut(FIGURES) {
            figures.fill(0);
        }
        let requested = u32_at(row, pid_memory::PID).filter(|_| index < count);
        let is_of_memory = u32_at(row, pid_memory::INDEX) == Some(pid_memory::INDEX_VIDEO_MEMORY);
        if let Some(pid) = requested.filter(|_| index > 0) {
            let result = match pid != 0 && is_of_memory {
                true => status::NV_OK,
                false => status::NV_ERR_INVALID_ARGUMENT,
            };
            put_u32(row, pid_memory::RESULT, result);
            if let Some(partitions) = row.get_mut(PARTITIONS) {
                partitions.fill(u8::MAX);
            }
        }
        let holder = holders
            .iter()
            .find(|holder| Some(holder.known_as) == requested);
        if let Some(holder) = holder.filter(|_| is_of_memory) {
            put_u64(row, pid_memory::PRIVATE, holder.bytes);
        }
    }
}

/// Rewrites perfmon samples. What the container's own processes have done stays, by the number that the asker knows a process by;
/// an engine that worked for anybody else is shown as idle. Nothing else of a process stays: the driver gives an address of the kernel's beside it.
///
/// For the driver all of an executor's work is one process's: `executor` is that, and the one of the container's that is alone with the
/// card. Where several hold something of it the work is nobody's by name.
pub fn own_samples(
    params: &mut [u8],
    release: Release,
    holders: &[Holder],
    executor: Option<(u32, Option<u32>)>,
) {
    /// What stays of an engine's row, beside whose it is: `util` and `vgpuScale`.
    const FIGURES: usize = perfmon::PROCESS;
    let of = |size: nvabi::PerRelease| size.of(release) as usize;
    let known_as = |process: u32| {
        let by_name = || holders.iter().find(|holder| holder.host_pid == process);
        match executor {
            Some((executor, alone)) if executor == process => {
                Some(alone.unwrap_or(perfmon::NO_PROCESS))
            }
            Some(_) | None => by_name().map(|holder| holder.known_as),
        }
    };
    let samples = params.get_mut(perfmon::SAMPLES..).unwrap_or_default();
    for sample in samples.chunks_exact_mut(of(perfmon::SAMPLE_BYTES)) {
        let engines = sample.get_mut(perfmon::ENGINES..).unwrap_or_default();
        for engine in engines.chunks_exact_mut(of(perfmon::ENGINE_BYTES)) {
            let process = u32_at(engine, perfmon::PROCESS).and_then(known_as);
            let kept = if process.is_some() { FIGURES } else { 0 };
            engine.get_mut(kept..).unwrap_or_default().fill(0);
            let shown = process.unwrap_or(perfmon::NO_PROCESS);
            put_u32(engine, perfmon::PROCESS, shown);
        }
    }
}

/// Keeps the bits of granted cards in GPU_GET_DEVICE_IDS' mask of device instances.
pub fn device_mask(params: &mut [u8], is_granted: impl Fn(u32) -> bool) {
    let granted = (0..u32::BITS)
        .filter(|instance| is_granted(*instance))
        .fold(0, |mask, instance| mask | 1 << instance);
    if let Some(real) = u32_at(params, 0) {
        put_u32(params, 0, real & granted);
    }
}

/// Keeps the granted cards of each group of SYNC_GPU_BOOST_GROUP_INFO, and the groups that have one.
pub fn boost_groups(params: &mut [u8], is_granted: impl Fn(u32) -> bool) {
    const IDS: core::ops::Range<usize> =
        boost_groups::IDS..boost_groups::IDS + 4 * boost_groups::MOST;
    let count = u32_at(params, boost_groups::COUNT).unwrap_or(0) as usize;
    let list = params.get_mut(boost_groups::GROUPS..).unwrap_or_default();
    let mut kept = Vec::new();
    for group in list
        .chunks_exact(boost_groups::GROUP_BYTES)
        .take(count)
        .map(<[u8]>::to_vec)
    {
        let mut group = group;
        let cards = u32_at(&group, boost_groups::CARDS).unwrap_or(0) as usize;
        let Some(ids) = group.get_mut(IDS) else {
            continue;
        };
        let granted: Vec<u32> = ids
            .chunks_exact(4)
            .take(cards)
            .filter_map(|id| u32_at(id, 0))
            .filter(|id| is_granted(*id))
            .collect();
        ids.fill(0);
        for (at, id) in (0..).step_by(4).zip(&granted) {
            put_u32(ids, at, *id);
        }
        put_u32(
            &mut group,
            boost_groups::CARDS,
            u32::try_from(granted.len()).unwrap_or(0),
        );
        if !granted.is_empty() {
            kept.push(group);
        }
    }
    list.fill(0);
    for (place, group) in list.chunks_exact_mut(boost_groups::GROUP_BYTES).zip(&kept) {
        place.copy_from_slice(group);
    }
    put_u32(
        params,
        boost_groups::COUNT,
        u32::try_from(kept.len()).unwrap_or(0),
    );
}

/// Rewrites NVLINK_GET_NVLINK_STATUS: a link to a card that is not granted is no link. RM does the same for a guest that has been given some of
/// the host's cards: it clears the link's row (`subdeviceCtrlCmdBusGetNvlinkStatus_IMPL`, common_nvlinkapi.c). `is_granted` takes RM's id.
/// Links to switches stay, as all that are not connected do.
pub fn links(params: &mut [u8], release: Release, is_granted: impl Fn(u32) -> bool) {
    let of = |at: nvabi::PerRelease| at.of(release) as usize;
    let mut gone = 0_u64;
    let list = params
        .get_mut(of(nvlink_status::LINKS)..)
        .unwrap_or_default();
    for (number, link) in list
        .chunks_exact_mut(of(nvlink_status::LINK_BYTES))
        .enumerate()
    {
        let end = link.get(of(nvlink_status::REMOTE)..).unwrap_or_default();
        let is_connected = link.get(nvlink_status::CONNECTED) != Some(&0);
        let kind = u64_at(end, nvlink_device::TYPE);
        let is_card = kind.is_none_or(|kind| !nvlink_device::NO_CARDS.contains(&kind));
        if is_card
            && (is_connected || kind == Some(nvlink_device::GPU))
            && !place_at(end).is_some_and(&is_granted)
        {
            link.fill(0);
            gone |= u32::try_from(number)
                .ok()
                .and_then(|number| 1_u64.checked_shl(number))
                .unwrap_or(0);
        }
    }
    if let Some(enabled) = u32_at(params, nvlink_status::ENABLED) {
        let [a, b, c, d, ..] = gone.to_le_bytes();
        let gone = u32::from_le_bytes([a, b, c, d]);
        put_u32(params, nvlink_status::ENABLED, enabled & !gone);
    }
    let at = of(nvlink_status::ENABLED_LINKS);
    if let Some(enabled) = u64_at(params, at).filter(|_| at != 0) {
        put_u64(params, at, enabled & !gone);
    }
}

/// RM's id of the card at an end of a link, where its place on a bus is given.
fn place_at(end: &[u8]) -> Option<u32> {
    let has_place = u32_at(end, nvlink_device::FLAGS)? & nvlink_device::FLAG_PCI != 0;
    let half = |at| u16_at(end, at).map(u32::from);
    let (domain, bus, device) = (
        u32_at(end, nvlink_device::DOMAIN)?,
        half(nvlink_device::BUS)?,
        half(nvlink_device::DEVICE)?,
    );
    cards::gpu_id(domain, bus, device).filter(|_| has_place)
}

/// Rewrites GET_EXPORT_OBJECT_INFO: objects of a card that is not granted are of no device. Another container of the share group can have exported them.
pub fn exported_device(params: &mut [u8], is_granted: impl Fn(u32) -> bool) {
    let instance = u32_at(params, export_info::DEVICE_INSTANCE);
    if instance.is_some_and(|instance| !is_granted(instance)) {
        put_u32(params, export_info::DEVICE_INSTANCE, export_info::NO_DEVICE);
    }
}

#[cfg(test)]
mod tests;
