//! Answers of a driver, rewritten to a slice.

use arbitrary::Unstructured;
use nvabi::bytes::{u32_at, u64_at};
use nvabi::capability::Capabilities;
use nvabi::class::{self, Kind};
use nvabi::control as ctl;
use nvabi::layout::{
    boost_groups, engine_type, export_info, fb_regions, nvos32, perfmon, pid_info, pid_memory, pids,
};
use nvabi::{PerRelease, Release};
use verdict::effect::{Engines, List, View};
use verdict::policy::Policy;
use verdict::view::{self, Holder, Slice};

/// Rewrites what is in the blocks, as if a driver had answered so.
pub(super) fn check(
    shown: View,
    segments: &[Vec<u8>],
    release: Release,
    input: &mut Unstructured<'_>,
) -> arbitrary::Result<()> {
    let slice = Slice {
        quota_bytes: input.arbitrary()?,
        used_bytes: input.arbitrary()?,
    };
    let granted: u32 = input.arbitrary()?;
    let is_granted = |id: u32| id & granted == id;
    let mut answer = segments.to_vec();
    let entries = u32_at(block(&mut answer, 1), 0).unwrap_or(0);
    match shown {
        View::FbInfo { list, .. } => fb_info(listed(&mut answer, list), entries, slice),
        View::GpuInfo(list) => gpu_info(listed(&mut answer, list), entries),
        View::Classes { list, policy } => {
            classes(listed(&mut answer, list), entries, release, &policy);
        }
        View::Engines { list, capabilities } => engines(&mut answer, list, capabilities),
        View::FbRegions { .. } => {
            let regions = block(&mut answer, 1);
            view::fb_regions(regions, release, slice);
            assert_eq!(u32_at(regions, fb_regions::COUNT), Some(1));
        }
        View::NothingThere(byte) => view::nothing_there(block(&mut answer, 1), byte),
        View::FabricProbe => view::no_multicast(block(&mut answer, 1)),
        View::HeapInfo { .. } => {
            let argument = block(&mut answer, 0);
            view::heap_info(argument, slice);
            assert_eq!(u64_at(argument, nvos32::TOTAL), Some(slice.quota_bytes));
            assert_eq!(u64_at(argument, nvos32::FREE), Some(free_bytes(slice)));
        }
        View::Cards => cards(block(&mut answer, 0), is_granted),
        View::GpuIds => gpu_ids(block(&mut answer, 1), is_granted),
        View::ActiveDevices => active_devices(block(&mut answer, 1), is_granted),
        View::Pids { .. } => {
            let holders = holders(input)?;
            let list = block(&mut answer, 1);
            view::own_pids(list, &holders, input.arbitrary()?);
            let count = u32_at(list, pids::COUNT).unwrap_or(0) as usize;
            for at in (pids::TABLE..).step_by(4).take(count) {
                let pid = u32_at(list, at);
                assert!(holders.iter().any(|holder| Some(holder.known_as) == pid));
            }
        }
        View::PidInfo { .. } => pid_info(block(&mut answer, 1), &holders(input)?),
        View::Samples { .. } => {
            let holders = holders(input)?;
            samples(block(&mut answer, 1), release, &holders, input.arbitrary()?);
        }
        View::DeviceMask => {
            let mask = block(&mut answer, 1);
            view::device_mask(mask, is_granted);
            let mask = u32_at(mask, 0).unwrap_or(0);
            assert!((0..32).all(|instance| mask & 1 << instance == 0 || is_granted(instance)));
        }
        View::BoostGroups => boost_groups(block(&mut answer, 1), is_granted),
        View::NvLinks => {
            let status = block(&mut answer, 1);
            view::links(status, release, is_granted);
            let once = status.to_vec();
            view::links(status, release, is_granted);
            assert_eq!(once, status, "shown links change when they are shown again");
        }
        View::ExportedDevice => {
            let params = block(&mut answer, 1);
            view::exported_device(params, is_granted);
            let instance = u32_at(params, export_info::DEVICE_INSTANCE);
            assert!(instance.is_none_or(|it| it == export_info::NO_DEVICE || is_granted(it)));
        }
    }
    for (before, after) in segments.iter().zip(&answer) {
        assert_eq!(before.len(), after.len(), "a block changed its length");
    }
    Ok(())
}

/// Sizes in a list are those of the slice.
fn fb_info(list: &mut [u8], entries: u32, slice: Slice) {
    let free_bytes = free_bytes(slice);
    let kib = |bytes: u64| u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
    view::fb_info_list(list, entries, slice);
    for entry in list
        .chunks_exact(8)
        .take(usize::try_from(entries).unwrap_or(usize::MAX))
    {
        let (Some(index), Some(value)) = (u32_at(entry, 0), u32_at(entry, 4)) else {
            continue;
        };
        use ctl::fb_info as fb;
        if [fb::HEAP_FREE, fb::LARGEST_FREE_REGION_SIZE_KB].contains(&index) {
            assert!(value <= kib(free_bytes));
        }
        if [
            fb::RAM_SIZE,
            fb::TOTAL_RAM_SIZE,
            fb::HEAP_SIZE,
            fb::USABLE_RAM_SIZE,
        ]
        .contains(&index)
        {
            assert_eq!(value, kib(slice.quota_bytes));
        }
        if index == fb::MAPPABLE_HEAP_SIZE {
            assert!(value <= kib(slice.quota_bytes));
        }
    }
}

fn gpu_info(list: &mut [u8], entries: u32) {
    view::gpu_info_list(list, entries);
    for entry in list
        .chunks_exact(8)
        .take(usize::try_from(entries).unwrap_or(usize::MAX))
    {
        let dmabuf = ctl::gpu_info::DMABUF_CAPABILITY;
        assert!(u32_at(entry, 0) != Some(dmabuf) || u32_at(entry, 4) == Some(0));
    }
}

/// No class is shown that the slice may not have.
fn classes(list: &mut [u8], entries: u32, release: Release, policy: &Policy) {
    view::class_list(list, entries, release, policy);
    for number in list
        .chunks_exact(4)
        .take(usize::try_from(entries).unwrap_or(usize::MAX))
        .filter_map(|entry| u32_at(entry, 0))
    {
        let row = class::row_of(number, release);
        let is_had =
            |row: &class::Class| row.kind != Kind::Fabric && row.needs.met_by(policy.capabilities);
        assert!(row.is_none_or(is_had), "{number:#x}");
    }
}

/// No engine is shown that the slice may not have.
fn engines(answer: &mut [Vec<u8>], list: Engines, capabilities: Capabilities) {
    let [_, params, blocks @ ..] = answer else {
        return;
    };
    let mut none = Vec::new();
    let block = blocks.first_mut().unwrap_or(&mut none);
    view::engine_list(params, block, list, capabilities);
    let (count_at, shown) = match list {
        Engines::PointedTo => (0, &block[..]),
        Engines::InParameters { count_at, at } => (count_at, params.get(at..).unwrap_or_default()),
    };
    let count = u32_at(params, count_at).unwrap_or(0) as usize;
    let engines = shown.chunks_exact(4).take(count);
    for engine in engines.filter_map(|entry| u32_at(entry, 0)) {
        assert!(capabilities.video || !engine_type::is_video(engine));
    }
}

/// Cards that are not granted are not shown.
fn cards(list: &mut [u8], is_granted: impl Fn(u32) -> bool + Copy) {
    view::card_info(list, is_granted);
    for entry in list.chunks_exact(nvabi::layout::card_info::BYTES) {
        if entry[0] != 0 {
            let minor = u32_at(entry, nvabi::layout::card_info::MINOR).expect("a minor");
            assert!(is_granted(minor));
        }
    }
    let once = list.to_vec();
    view::card_info(list, is_granted);
    assert_eq!(once, list, "shown cards change when they are shown again");
}

/// Cards that may be used, and those that are excluded.
fn gpu_ids(list: &mut [u8], is_granted: impl Fn(u32) -> bool + Copy) {
    view::gpu_ids(list, is_granted);
    for id in (0..64).filter_map(|slot| u32_at(list, slot * 4)) {
        assert!(id == u32::MAX || is_granted(id), "{id:#x}");
    }
}

fn active_devices(list: &mut [u8], is_granted: impl Fn(u32) -> bool + Copy) {
    view::active_devices(list, is_granted);
    let count = u32_at(list, 0).unwrap_or(0) as usize;
    for at in (4..).step_by(12).take(count) {
        assert!(u32_at(list, at).is_some_and(is_granted), "{at}");
    }
}

/// What is shown of processes is what they hold of the slice.
fn pid_info(list: &mut [u8], holders: &[Holder]) {
    view::own_pid_info(list, holders);
    for row in list
        .get(pid_info::LIST..)
        .unwrap_or_default()
        .chunks_exact(pid_memory::BYTES)
    {
        let bytes = u64_at(row, pid_memory::PRIVATE).unwrap_or(0);
        assert!(bytes == 0 || holders.iter().any(|holder| holder.bytes == bytes));
    }
}

/// Samples are of the slice's own processes.
fn samples(
    list: &mut [u8],
    release: Release,
    holders: &[Holder],
    executor: Option<(u32, Option<u32>)>,
) {
    let alone = executor.and_then(|(_pid, alone)| alone);
    view::own_samples(list, release, holders, executor);
    let bytes = |size: PerRelease| size.of(release) as usize;
    for sample in list
        .get(perfmon::SAMPLES..)
        .unwrap_or_default()
        .chunks_exact(bytes(perfmon::SAMPLE_BYTES))
    {
        let pid = u32_at(sample, bytes(perfmon::GR) + perfmon::PROCESS);
        assert!(
            pid == Some(perfmon::NO_PROCESS)
                || alone.is_some() && alone == pid
                || holders.iter().any(|holder| Some(holder.known_as) == pid)
        );
    }
}

/// Groups are of granted cards, and none is empty.
fn boost_groups(groups: &mut [u8], is_granted: impl Fn(u32) -> bool + Copy) {
    view::boost_groups(groups, is_granted);
    let count = u32_at(groups, 0).unwrap_or(0) as usize;
    let list = groups.get(boost_groups::GROUPS..).unwrap_or_default();
    for group in list.chunks_exact(boost_groups::GROUP_BYTES).take(count) {
        let cards = u32_at(group, boost_groups::CARDS).unwrap_or(0) as usize;
        assert!((1..=boost_groups::MOST).contains(&cards));
        let mut ids = (boost_groups::IDS..).step_by(4).take(cards);
        assert!(ids.all(|at| u32_at(group, at).is_some_and(is_granted)));
    }
}

fn free_bytes(slice: Slice) -> u64 {
    slice.quota_bytes.saturating_sub(slice.used_bytes)
}

fn block(answer: &mut [Vec<u8>], at: usize) -> &mut [u8] {
    answer
        .get_mut(at)
        .map(Vec::as_mut_slice)
        .unwrap_or_default()
}

fn holders(input: &mut Unstructured<'_>) -> arbitrary::Result<Vec<Holder>> {
    let count = input.int_in_range(0..=3)?;
    (0..count)
        .map(|_| {
            Ok(Holder {
                host_pid: input.arbitrary()?,
                known_as: input.arbitrary()?,
                bytes: input.arbitrary()?,
            })
        })
        .collect()
}

fn listed(answer: &mut [Vec<u8>], list: List) -> &mut [u8] {
    let block = block(answer, usize::from(list.segment));
    block.get_mut(list.at..).unwrap_or_default()
}
