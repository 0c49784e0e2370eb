use nvabi::bytes::put;

use super::card_info as show_cards;
use super::*;
use crate::effect::View;

const GIB: u64 = 1 << 30;

fn list(entries: &[(u32, u32)]) -> Vec<u8> {
    entries
        .iter()
        .flat_map(|(index, data)| [index.to_le_bytes(), data.to_le_bytes()].concat())
        .collect()
}

#[test]
fn totals_are_the_quota_and_any_difference_is_what_is_used() {
    let card_kib = 24 << 20;
    let mut answer = list(&[
        (0x07, card_kib),
        (0x08, card_kib),
        (0x09, card_kib),
        (0x16, card_kib),
        (0x20, card_kib),
    ]);
    fb_info_list(
        &mut answer,
        5,
        Slice {
            quota_bytes: 4 * GIB,
            used_bytes: GIB,
        },
    );
    let shown: Vec<u32> = answer
        .chunks_exact(8)
        .map(|entry| u32_at(entry, 4).unwrap())
        .collect();
    assert_eq!(shown, [4 << 20, 4 << 20, 4 << 20, 3 << 20, 4 << 20]);
}

#[test]
fn free_is_never_more_than_the_card_has() {
    let mut answer = list(&[(0x16, 100), (0x12, 7)]);
    fb_info_list(
        &mut answer,
        2,
        Slice {
            quota_bytes: 4 * GIB,
            used_bytes: 0,
        },
    );
    assert_eq!(answer, list(&[(0x16, 100), (0x12, 7)]));
}

#[test]
fn a_quota_shrunk_below_what_is_held_shows_no_free_memory() {
    let mut answer = list(&[(0x16, 1 << 20)]);
    fb_info_list(
        &mut answer,
        1,
        Slice {
            quota_bytes: GIB,
            used_bytes: 2 * GIB,
        },
    );
    assert_eq!(answer, list(&[(0x16, 0)]));
}

#[test]
fn engines_of_a_capability_that_is_not_there_are_left_out() {
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let none = Capabilities::default();
    let in_parameters = Engines::InParameters { count_at: 0, at: 4 };
    let all = [1, 9, 0x13, 0x1d, 0x26, 0x2b, 0x33, 0x34, 0x3e, 0x3f];
    let answer = words(&[&[10][..], &all, &[0x13]].concat());
    for (capabilities, kept) in [(none, &[1, 9, 0x26, 0x34][..]), (Capabilities::ALL, &all)] {
        let mut shown = answer.clone();
        engine_list(&mut shown, &mut [], in_parameters, capabilities);
        let mut expected = words(&[&[u32::try_from(kept.len()).unwrap()], kept].concat());
        expected.resize(4 + 4 * all.len(), 0);
        // What is beyond the number stays.
        assert_eq!(shown, [expected, words(&[0x13])].concat());
    }
    // The length of a list that a caller asks for first stays.
    let (mut params, mut block) = (words(&[3]), words(&[1, 0x13, 9, 0x13]));
    engine_list(&mut params, &mut block, Engines::PointedTo, none);
    assert_eq!((params, block), (words(&[3]), words(&[1, 0, 9, 0x13])));
    // A count beyond the list.
    let mut short = words(&[u32::MAX, 0x13, 9]);
    engine_list(&mut short, &mut [], in_parameters, none);
    assert_eq!(short, words(&[1, 9, 0]));
}

#[test]
fn the_slice_is_the_cards_only_region() {
    let cmd = nvabi::control::NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO;
    for release in Release::ALL {
        let row = nvabi::control::row(cmd, release).unwrap();
        let entry_bytes = fb_regions::ENTRY_BYTES.of(release) as usize;
        let types = fb_regions::TYPES.of(release) as usize;
        let mut params = vec![0x77; row.params_bytes as usize];
        let slice = Slice {
            quota_bytes: 4 * GIB,
            used_bytes: GIB,
        };
        fb_regions(&mut params, release, slice);
        assert_eq!(u32_at(&params, 0), Some(1));
        let entries: Vec<&[u8]> = params[8..].chunks(entry_bytes).collect();
        assert_eq!(entries.len(), 16, "{release:?}");
        let first = entries[0];
        let word = |at| u64_at(first, at).unwrap();
        assert_eq!((word(0), word(8), word(16)), (0, 4 * GIB - 1, 0));
        // What kind of memory it is stays.
        assert!(first[24..].iter().all(|byte| *byte == 0x77));
        for entry in &entries[1..] {
            assert!(entry[..31].iter().all(|byte| *byte == 0));
            assert!(entry[31..31 + types].iter().all(|byte| *byte == 1));
        }
    }
}

#[test]
fn entries_beyond_the_count_stay() {
    let mut answer = list(&[(0x07, 1), (0x07, 1)]);
    fb_info_list(
        &mut answer,
        1,
        Slice {
            quota_bytes: GIB,
            used_bytes: 0,
        },
    );
    assert_eq!(answer, list(&[(0x07, 1 << 20), (0x07, 1)]));
}

#[test]
fn classes_of_capabilities_that_a_container_has_not_are_not_in_its_list() {
    let (decoder, three_d, compute) = (0xb8b0_u32, 0xcb97_u32, 0xcbc0_u32);
    let shown = |capabilities| {
        let all = [compute, decoder, three_d];
        let mut list: Vec<u8> = all.iter().flat_map(|word| word.to_le_bytes()).collect();
        let policy = Policy {
            capabilities,
            ..Policy::default()
        };
        class_list(&mut list, 3, Release::R580, &policy);
        [0, 4, 8].map(|at| u32_at(&list, at).unwrap())
    };
    let of = |graphics, video| shown(Capabilities { graphics, video });
    assert_eq!(of(false, false), [compute; 3]);
    assert_eq!(of(true, false), [compute, compute, three_d]);
    assert_eq!(of(false, true), [compute, decoder, compute]);
    assert_eq!(of(true, true), [compute, decoder, three_d]);
}

#[test]
fn a_page_of_figures_that_is_refused_is_in_no_list() {
    let shown = |card_figures| {
        let mut list: Vec<u8> = [0xcbc0_u32, 0xde]
            .iter()
            .flat_map(|it| it.to_le_bytes())
            .collect();
        let policy = Policy {
            card_figures,
            ..Policy::default()
        };
        class_list(&mut list, 2, Release::R580, &policy);
        u32_at(&list, 4)
    };
    assert_eq!(shown(CardFigures::Refuse), Some(0xcbc0));
    assert_eq!(shown(CardFigures::Show), Some(0xde));
}

#[test]
fn a_refused_class_makes_way_for_one_that_is_there() {
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let mut answer = words(&[0xf8, 0xcbc0, 0x9999, 0xfd, 0xf8, 0xfd]);
    class_list(&mut answer, 4, Release::R580, &Policy::default());
    let (unknown, beyond) = (0x9999, [0xf8, 0xfd]);
    assert_eq!(
        answer,
        words(&[0xcbc0, 0xcbc0, unknown, 0xcbc0, beyond[0], beyond[1]])
    );
    let mut nothing_else = words(&[0xfd]);
    class_list(
        &mut nothing_else,
        u32::MAX,
        Release::R580,
        &Policy::default(),
    );
    assert_eq!(nothing_else, words(&[0]));
}

#[test]
fn only_granted_cards_are_listed() {
    let mut cards = vec![0u8; 4 * card_info::BYTES];
    for (slot, minor) in [0u32, 1, 2].into_iter().enumerate() {
        put(&mut cards, slot * card_info::BYTES, &[1]);
        put_u32(
            &mut cards,
            slot * card_info::BYTES + card_info::MINOR,
            minor,
        );
    }
    show_cards(&mut cards, |minor| minor != 1);
    let minors: Vec<(u8, u32)> = cards
        .chunks_exact(card_info::BYTES)
        .map(|entry| (entry[0], u32_at(entry, card_info::MINOR).unwrap()))
        .collect();
    assert_eq!(minors, [(1, 0), (1, 2), (0, 0), (0, 0)]);
}

#[test]
fn a_probed_cards_flags_go_with_its_id_and_excluded_cards_are_filtered_too() {
    let mut params = vec![0xff; 384];
    params[256..].fill(0);
    for (slot, id) in [0x100_u32, 0x200, 0x300].into_iter().enumerate() {
        put_u32(&mut params, slot * 4, id);
        put_u32(&mut params, 256 + slot * 4, id + 1);
        put_u32(&mut params, 128 + slot * 4, id + 2);
    }
    gpu_ids(&mut params, |id| id == 0x300 || id == 0x202);
    let word = |at| u32_at(&params, at).unwrap();
    assert_eq!([word(0), word(4), word(8)], [0x300, INVALID_ID, INVALID_ID]);
    assert_eq!([word(128), word(132)], [0x202, INVALID_ID]);
    assert_eq!([word(256), word(260), word(264)], [0x301, 0, 0]);
}

#[test]
fn only_granted_ids_are_listed() {
    let mut params = vec![0xff; 256];
    for (slot, id) in [0x100_u32, 0x200, 0x300].into_iter().enumerate() {
        put_u32(&mut params, slot * 4, id);
    }
    gpu_ids(&mut params, |id| id == 0x300);
    assert_eq!(u32_at(&params, 0), Some(0x300));
    assert_eq!(u32_at(&params, 4), Some(u32::MAX));
}

/// Samples of one engine each: `(process, util)`; what else is in them is not zero.
fn samples(release: Release, rows: &[(u32, u32)]) -> Vec<u8> {
    let of = |size: nvabi::PerRelease| size.of(release) as usize;
    let mut params =
        vec![0x77; perfmon::SAMPLES + perfmon::MOST as usize * of(perfmon::SAMPLE_BYTES)];
    for (number, (process, util)) in rows.iter().enumerate() {
        let at = perfmon::SAMPLES + number * of(perfmon::SAMPLE_BYTES) + of(perfmon::GR);
        put_u32(&mut params, at + perfmon::PROCESS, *process);
        put_u32(&mut params, at + perfmon::UTIL, *util);
    }
    params
}

fn shown_samples(params: &[u8], release: Release, count: usize) -> Vec<(u32, u32)> {
    let of = |size: nvabi::PerRelease| size.of(release) as usize;
    let at = |number| perfmon::SAMPLES + number * of(perfmon::SAMPLE_BYTES) + of(perfmon::GR);
    let word = |at| u32_at(params, at).unwrap();
    (0..count)
        .map(at)
        .map(|at| (word(at + perfmon::PROCESS), word(at + perfmon::UTIL)))
        .collect()
}

#[test]
fn a_neighbours_samples_are_idle_in_every_release() {
    const NONE: u32 = perfmon::NO_PROCESS;
    let holder = |host_pid, known_as| Holder {
        host_pid,
        known_as,
        bytes: 1,
    };
    for release in Release::ALL {
        let rows = [(50, 7), (60, 8), (4001, 9), (NONE, 3)];
        let row = nvabi::control::row(
            nvabi::control::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2,
            release,
        );
        let shown = |holders: &[Holder], executor| {
            let mut params = samples(release, &rows);
            assert_eq!(row.unwrap().params_bytes as usize, params.len());
            own_samples(&mut params, release, holders, executor);
            let engines = params[perfmon::SAMPLES..]
                .chunks_exact(perfmon::SAMPLE_BYTES.of(release) as usize)
                .flat_map(|sample| {
                    sample[perfmon::ENGINES..]
                        .chunks_exact(perfmon::ENGINE_BYTES.of(release) as usize)
                });
            for engine in engines {
                assert!(engine[perfmon::PROCESS + 4..].iter().all(|byte| *byte == 0));
            }
            shown_samples(&params, release, rows.len())
        };
        let two = [holder(4001, 1), holder(4002, 2)];
        let by_name = shown(&two, None);
        assert_eq!(by_name, [(NONE, 0), (NONE, 0), (1, 9), (NONE, 0)]);
        let of_several = shown(&two[1..], Some((50, None)));
        assert_eq!(of_several, [(NONE, 7), (NONE, 0), (NONE, 0), (NONE, 0)]);
        let of_one = shown(&two[1..], Some((50, Some(2))));
        assert_eq!(of_one, [(2, 7), (NONE, 0), (NONE, 0), (NONE, 0)]);
    }
}

#[test]
fn links_between_granted_cards_stay_in_every_release() {
    let cmd = nvabi::control::NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS;
    for release in Release::ALL {
        let of = |at: nvabi::PerRelease| at.of(release) as usize;
        let row = nvabi::control::row(cmd, release).unwrap();
        let mut params = vec![0; row.params_bytes as usize];
        let links_at = of(nvlink_status::LINKS);
        let capacity = (params.len() - links_at) / of(nvlink_status::LINK_BYTES);
        assert!([32, 64].contains(&capacity), "{release:?}");
        // A granted card, another, one whose place is not said, a switch, and a link without an end.
        let ends = [
            (nvlink_device::GPU, 1, 0x41, 1),
            (nvlink_device::GPU, 1, 0x42, 1),
            (nvlink_device::GPU, 0, 0x41, 1),
            (nvlink_device::SWITCH, 1, 0x43, 1),
            (0xff, 0, 0, 0),
            // No type that is known.
            (9, 1, 0x44, 1),
        ];
        for (number, (kind, flags, bus, connected)) in ends.into_iter().enumerate() {
            let at = links_at + number * of(nvlink_status::LINK_BYTES);
            params[at] = 0x77;
            params[at + nvlink_status::CONNECTED] = connected;
            let end = at + of(nvlink_status::REMOTE);
            put_u32(&mut params, end + nvlink_device::FLAGS, flags);
            params[end + nvlink_device::BUS] = bus;
            put_u64(&mut params, end + nvlink_device::TYPE, kind);
        }
        put_u32(&mut params, nvlink_status::ENABLED, 0b11_1111);
        let masks = of(nvlink_status::ENABLED_LINKS);
        if masks != 0 {
            put_u64(&mut params, masks, 0b11_1111);
        }
        links(&mut params, release, |id| id == 0x4100);
        let kept = params[links_at..].chunks_exact(of(nvlink_status::LINK_BYTES));
        let kept: Vec<bool> = kept
            .map(|link| link.iter().any(|byte| *byte != 0))
            .collect();
        assert_eq!(kept[..6], [true, false, false, true, true, false]);
        assert_eq!(u32_at(&params, nvlink_status::ENABLED), Some(0b01_1001));
        if masks != 0 {
            assert_eq!(u64_at(&params, masks), Some(0b01_1001));
        }
    }
}

#[test]
fn exports_of_a_card_that_is_not_granted_are_of_no_device() {
    for (instance, shown) in [(0, 0), (3, 32), (32, 32)] {
        let mut params = vec![0; 80];
        put_u32(&mut params, 4, instance);
        exported_device(&mut params, |instance| instance == 0);
        assert_eq!(u32_at(&params, 4), Some(shown));
    }
}

#[test]
fn a_mask_of_devices_has_the_granted_ones() {
    let mut params = 0b1110_u32.to_le_bytes();
    device_mask(&mut params, |instance| [0, 2].contains(&instance));
    assert_eq!(params, 0b100_u32.to_le_bytes());
}

#[test]
fn the_driver_looks_for_one_process_and_every_row_is_answered() {
    const OWN: u32 = 7;
    const NO_PARTITION: Option<u64> = Some(u64::MAX);
    let row = |index: usize| pid_info::LIST + pid_memory::BYTES * index;
    let mut params = vec![0x55; row(pid_info::MOST as usize)];
    let counted = |params: &mut [u8], count| {
        put_u32(params, pid_info::COUNT, count);
        narrowings(&View::PidInfo { object: (1, 2) }, &[&[], params])
    };
    for count in [0, 1, pid_info::MOST + 1, u32::MAX] {
        assert_eq!(counted(&mut params, count), [], "{count}");
    }
    for count in [2, pid_info::MOST] {
        let narrowed = counted(&mut params, count);
        assert_eq!(narrowed.len(), 1, "{count}");
        let mut copy = params.clone();
        let before = narrowed[0].apply(&mut copy).unwrap();
        assert_eq!(u32_at(&copy, pid_info::COUNT), Some(1));
        before.apply(&mut copy);
        assert_eq!(copy, params);
    }
    put_u32(&mut params, pid_info::COUNT, 4);
    for (index, (pid, of)) in [(OWN, 0), (OWN, 0), (0, 0), (OWN, 1)]
        .into_iter()
        .enumerate()
    {
        put_u32(&mut params, row(index) + pid_memory::PID, pid);
        put_u32(&mut params, row(index) + pid_memory::INDEX, of);
    }
    let holder = Holder {
        host_pid: 1000,
        known_as: OWN,
        bytes: GIB,
    };
    own_pid_info(&mut params, &[holder]);
    let shown = [0, 1, 2, 3, 4].map(|index| {
        let at = row(index);
        let result = u32_at(&params, at + pid_memory::RESULT).unwrap();
        let bytes = u64_at(&params, at + pid_memory::PRIVATE).unwrap();
        (result, bytes, u64_at(&params, at + 64) == NO_PARTITION)
    });
    // Beside the figures, the first row is the driver's answer, and those beyond the count are the tenant's own.
    let untouched = 0x5555_5555;
    let refused = status::NV_ERR_INVALID_ARGUMENT;
    let expected = [
        (untouched, GIB, false),
        (status::NV_OK, GIB, true),
        (refused, 0, true),
        (refused, 0, true),
        (untouched, 0, false),
    ];
    assert_eq!(shown, expected);
}
