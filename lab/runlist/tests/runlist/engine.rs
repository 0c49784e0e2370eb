//! One engine, case by case: what a switch costs, who is next, and what a closed gate keeps off.

use runlist::{
    ChannelId, Costs, Enable, Error, GroupId, Interleave, Kind, Mode, Outcome, Presence, Progress,
    Runlist, Slices, Time, Userd, Work,
};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn group(runlist: &mut Runlist) -> (GroupId, ChannelId) {
    let group = runlist.add_group();
    (
        group,
        runlist.add_channel(group).expect("the group is there"),
    )
}

fn two() -> (Runlist, (GroupId, ChannelId), (GroupId, ChannelId)) {
    let mut runlist = Runlist::new(Costs::default());
    runlist.keep_log(1_000_000);
    let one = group(&mut runlist);
    let other = group(&mut runlist);
    (runlist, one, other)
}

/// Keeps every channel busy until `until_ns`, and says which tags ended when.
fn finish(runlist: &mut Runlist, until_ns: u64) -> Vec<(u64, u64)> {
    runlist.advance(until_ns);
    runlist
        .take_finished()
        .iter()
        .map(|finished| (finished.tag, finished.at_ns))
        .collect()
}

#[test]
fn one_kernel_takes_the_wake_its_context_and_its_time() {
    let (mut runlist, (a, channel), _) = two();
    runlist.submit(0, channel, Work::kernel(MS).tag(7)).unwrap();
    assert_eq!(finish(&mut runlist, 10 * MS), [(7, 4 * US + 40 * US + MS)]);
    assert_eq!(
        runlist.time(),
        Time {
            resident_ns: MS + 1_500,
            overhead_ns: 44 * US,
            idle_ns: 10 * MS - MS - 1_500 - 44 * US,
        }
    );
    // Its context is still there: the next one only wakes the engine.
    runlist
        .submit(10 * MS, channel, Work::kernel(MS).tag(8))
        .unwrap();
    assert_eq!(finish(&mut runlist, 20 * MS), [(8, 11 * MS + 4 * US)]);
    assert_eq!(runlist.used_ns(a), Ok(2 * MS + 3 * US));
    assert_eq!(runlist.next_event(), None);
}

#[test]
fn a_graph_is_one_entry_and_its_kernels_have_gaps_between() {
    let (mut runlist, (_, channel), _) = two();
    runlist
        .submit(0, channel, Work::kernel(100 * US).times(40))
        .unwrap();
    let done = finish(&mut runlist, 100 * MS);
    assert_eq!(done, [(0, 44 * US + 40 * 100 * US + 39 * 1_500)]);
    assert_eq!(
        runlist.userd(channel),
        Ok(Userd {
            gp_get: 1,
            gp_put: 1
        })
    );
}

#[test]
fn a_lone_group_is_never_switched_and_costs_no_events() {
    let (mut runlist, (a, channel), _) = two();
    runlist
        .submit(0, channel, Work::kernel(10_000 * MS))
        .unwrap();
    runlist.advance(44 * US);
    assert_eq!(runlist.next_event(), Some(44 * US + 10_000 * MS));
    runlist.advance(5_000 * MS);
    assert_eq!(runlist.used_ns(a), Ok(5_000 * MS - 44 * US));
}

#[test]
fn a_competitor_waits_for_the_end_of_the_slice_that_runs() {
    let (mut runlist, (_, a), (_, b)) = two();
    runlist.submit(0, a, Work::kernel(100 * MS).tag(1)).unwrap();
    // Slices of 1.024 ms from 44 us on: the 10th ends at 10.284 ms.
    runlist.submit(10 * MS, b, Work::kernel(MS).tag(2)).unwrap();
    let start = 44 * US + 10 * 1_024 * US + 100 * US;
    assert_eq!(finish(&mut runlist, 50 * MS), [(2, start + MS)]);
}

#[test]
fn a_group_without_work_loses_its_turn() {
    let (mut runlist, (_, a), (_, b)) = two();
    runlist.submit(0, a, Work::kernel(100 * US).tag(1)).unwrap();
    runlist.submit(0, b, Work::kernel(100 * US).tag(2)).unwrap();
    // No slice ends: the first has nothing left after its kernel and the gap, and nothing has to be saved.
    let first = 44 * US + 100 * US;
    assert_eq!(
        finish(&mut runlist, MS),
        [(1, first), (2, first + 1_500 + 55 * US + 100 * US)]
    );
}

#[test]
fn modes_decide_where_a_kernel_stops() {
    for (mode, expected) in [
        (Mode::Cilp, 44 * US + 1_024 * US + 100 * US),
        // Blocks of 300 us: the fourth ends at 1.2 ms.
        (Mode::Cta, 44 * US + 1_200 * US + 55 * US),
        (Mode::Wfi, 44 * US + 20 * MS + 55 * US),
    ] {
        let (mut runlist, (group, a), (_, b)) = two();
        runlist.set_mode(0, group, mode).unwrap();
        runlist
            .submit(0, a, Work::kernel(20 * MS).blocks(300 * US))
            .unwrap();
        runlist.submit(0, a, Work::kernel(20 * MS)).unwrap();
        runlist.submit(0, b, Work::kernel(10 * US).tag(2)).unwrap();
        runlist.advance(expected + 10 * US - 1);
        assert!(
            runlist.take_finished().iter().all(|one| one.tag != 2),
            "{mode:?} too early"
        );
        runlist.advance(expected + 10 * US);
        assert!(
            runlist.take_finished().iter().any(|one| one.tag == 2),
            "{mode:?} too late"
        );
    }
}

#[test]
fn a_kernel_that_was_stopped_goes_on_where_it_was() {
    let (mut runlist, (_, a), (_, b)) = two();
    runlist.submit(0, a, Work::kernel(3 * MS).tag(1)).unwrap();
    runlist.submit(0, b, Work::kernel(3 * MS).tag(2)).unwrap();
    // Three slices of 1.024 ms each (the last not full), five full switches before the last of each.
    let last_of_a = 44 * US + 4 * 1_124 * US + (3_000 - 2 * 1_024) * US;
    let a_leaves = last_of_a + 1_500 + 55 * US;
    assert_eq!(
        finish(&mut runlist, 100 * MS),
        [(1, last_of_a), (2, a_leaves + (3_000 - 2 * 1_024) * US)]
    );
}

#[test]
fn a_closed_gate_saves_what_runs_and_keeps_it_off() {
    let (mut runlist, (a, channel), _) = two();
    runlist.submit(0, channel, Work::kernel(10 * MS)).unwrap();
    assert_eq!(
        runlist.set_enabled(5 * MS, channel, Enable::OffNow),
        Ok(Some(5 * MS + 60 * US))
    );
    runlist.advance(100 * MS);
    assert_eq!(runlist.used_ns(a), Ok(5 * MS - 44 * US));
    assert!(runlist.is_busy(a).unwrap());
    assert_eq!(runlist.next_event(), None);
    assert_eq!(
        runlist.set_enabled(100 * MS, channel, Enable::On),
        Ok(Some(100 * MS))
    );
    assert_eq!(
        finish(&mut runlist, 200 * MS),
        [(0, 100 * MS + 44 * US + 5 * MS + 44 * US)]
    );
}

#[test]
fn between_two_kernels_of_a_graph_there_is_nothing_to_save() {
    for mode in [Mode::Cilp, Mode::Cta, Mode::Wfi] {
        let (mut runlist, (group, a), _) = two();
        runlist.set_mode(0, group, mode).unwrap();
        runlist
            .submit(0, a, Work::kernel(100 * US).times(2))
            .unwrap();
        let in_gap = 44 * US + 100 * US + 500;
        assert_eq!(
            runlist.set_enabled(in_gap, a, Enable::OffNow),
            Ok(Some(in_gap + 15 * US))
        );
        runlist.advance(MS);
        runlist.set_enabled(MS, a, Enable::On).unwrap();
        assert_eq!(
            finish(&mut runlist, 10 * MS),
            [(0, MS + 44 * US + 1_000 + 100 * US)]
        );
    }
}

#[test]
fn work_of_a_closed_gate_waits_in_the_queue() {
    let (mut runlist, (a, channel), (b, other)) = two();
    runlist.set_enabled(0, channel, Enable::OffNow).unwrap();
    runlist.submit(0, channel, Work::kernel(MS)).unwrap();
    runlist.submit(0, other, Work::kernel(MS)).unwrap();
    runlist.advance(50 * MS);
    assert_eq!(
        (runlist.used_ns(a), runlist.used_ns(b)),
        (Ok(0), Ok(MS + 1_500))
    );
    assert_eq!(
        runlist.userd(channel),
        Ok(Userd {
            gp_get: 0,
            gp_put: 1
        })
    );
}

#[test]
fn without_preemption_the_slice_is_finished_and_then_the_gate_closed() {
    let (mut runlist, (a, channel), _) = two();
    for _ in 0..100 {
        runlist.submit(0, channel, Work::kernel(100 * US)).unwrap();
    }
    runlist
        .set_enabled(1_000 * US, channel, Enable::OffAfterSlice)
        .unwrap();
    runlist.advance(100 * MS);
    assert_eq!(
        runlist.used_ns(a),
        Ok(1_024 * US),
        "kernels go on until the slice is over, although nobody waits"
    );
    // A gate that is closed so while the group is off is closed at once.
    runlist.set_enabled(100 * MS, channel, Enable::On).unwrap();
    runlist
        .set_group_enabled(101 * MS, a, Enable::OffNow)
        .unwrap();
    runlist.advance(102 * MS);
    runlist
        .set_enabled(102 * MS, channel, Enable::OffAfterSlice)
        .unwrap();
    runlist.set_group_enabled(102 * MS, a, Enable::On).unwrap();
    let used = runlist.used_ns(a);
    runlist.advance(200 * MS);
    assert_eq!(runlist.used_ns(a), used);
}

#[test]
fn a_group_off_the_runlist_is_not_served_until_it_is_back() {
    let (mut runlist, (a, channel), (b, other)) = two();
    runlist
        .submit(0, channel, Work::kernel(1_000 * MS))
        .unwrap();
    runlist.submit(0, other, Work::kernel(1_000 * MS)).unwrap();
    runlist.set_group_enabled(0, b, Enable::OffNow).unwrap();
    runlist.advance(100 * MS);
    assert_eq!(runlist.used_ns(b), Ok(0));
    assert_eq!(
        runlist.set_group_enabled(100 * MS, a, Enable::OffNow),
        Ok(Some(100 * MS + 60 * US))
    );
    runlist.set_group_enabled(100 * MS, b, Enable::On).unwrap();
    runlist.advance(200 * MS);
    assert_eq!(runlist.used_ns(b), Ok(100 * MS - 100 * US));
}

#[test]
fn preempt_gives_way_to_the_next_and_costs_a_lone_group_a_switch() {
    let (mut runlist, (group, a), (_, b)) = two();
    runlist.submit(0, a, Work::kernel(10 * MS).tag(1)).unwrap();
    assert_eq!(runlist.preempt(MS, group), Ok(Some(MS + 60 * US)));
    runlist.advance(MS + 60 * US);
    runlist
        .submit(2 * MS, b, Work::kernel(10 * US).tag(2))
        .unwrap();
    assert_eq!(runlist.preempt(2 * MS, group), Ok(Some(2 * MS + 60 * US)));
    let done = finish(&mut runlist, 100 * MS);
    assert_eq!(done[0], (2, 2 * MS + 100 * US + 10 * US));
    // Once saved and loaded for nothing, once around the other one.
    assert_eq!(
        done[1],
        (
            1,
            44 * US + 10 * MS + 100 * US + 100 * US + 10 * US + 1_500 + 55 * US
        )
    );
}

#[test]
fn a_slice_that_is_set_takes_the_engine_from_its_group_and_counts_from_then() {
    let (mut runlist, (group, a), (other, b)) = two();
    runlist.submit(0, a, Work::kernel(10_000 * MS)).unwrap();
    runlist.submit(0, b, Work::kernel(10_000 * MS)).unwrap();
    runlist.set_timeslice(500 * US, group, 3 * MS).unwrap();
    runlist.set_timeslice(500 * US, other, MS).unwrap();
    // The first had 456 us and let go: from then on it is 3 ms, 100 us, 1 ms, 100 us.
    let turn_of_b = 560 * US + 40 * US;
    runlist.advance(turn_of_b + 1_000 * 4_200 * US);
    assert_eq!(runlist.used_ns(group), Ok(456 * US + 3_000 * MS));
    assert_eq!(runlist.used_ns(other), Ok(1_000 * MS));
    assert_eq!(runlist.timeslice_ns(group), Ok(3 * MS));
    assert_eq!(
        runlist.set_timeslice(0, group, 0),
        Err(Error::NoSlice(group))
    );
}

#[test]
fn slices_are_quantised_where_the_card_does_so() {
    let mut runlist = Runlist::new(Costs {
        slices: Slices::Quantised,
        ..Costs::default()
    });
    let (group, _) = group(&mut runlist);
    runlist.set_timeslice(0, group, 1_031 * US).unwrap();
    assert_eq!(runlist.timeslice_ns(group), Ok(1_024 * US));
}

#[test]
fn a_high_group_waits_for_one_low_slice_only() {
    let mut runlist = Runlist::new(Costs::default());
    let lows: Vec<_> = (0..10).map(|_| group(&mut runlist)).collect();
    let (high, channel) = group(&mut runlist);
    for (_, low) in &lows {
        runlist.submit(0, *low, Work::kernel(10_000 * MS)).unwrap();
    }
    runlist.set_interleave(0, high, Interleave::High).unwrap();
    runlist
        .submit(100 * MS, channel, Work::kernel(10 * US))
        .unwrap();
    runlist.advance(200 * MS);
    let finished = runlist.take_finished();
    let waited = finished[0].started_ns.unwrap() - finished[0].submitted_ns;
    assert!(waited <= 1_124 * US, "{waited}");
}

#[test]
fn a_full_ring_takes_no_more() {
    let (mut runlist, (_, channel), _) = two();
    for _ in 0..1024 {
        runlist.submit(0, channel, Work::kernel(MS)).unwrap();
    }
    let full = Error::Full {
        channel,
        entries: 1024,
    };
    assert_eq!(runlist.submit(0, channel, Work::kernel(MS)), Err(full));
    runlist.advance(2 * MS);
    runlist.submit(2 * MS, channel, Work::kernel(MS)).unwrap();
}

#[test]
fn a_persistent_kernel_ends_by_its_signal_even_if_it_does_not_run() {
    let (mut runlist, (_, a), (_, b)) = two();
    runlist
        .submit(0, a, Work::kernel(1).kind(Kind::Persistent).tag(1))
        .unwrap();
    runlist.advance(50 * MS);
    runlist
        .submit(50 * MS, b, Work::kernel(MS / 2).tag(2))
        .unwrap();
    runlist.advance(60 * MS);
    runlist.signal(60 * MS, a).unwrap();
    assert_eq!(runlist.signal(60 * MS, b), Err(Error::NotThere(b)));
    runlist.set_enabled(60 * MS, a, Enable::OffNow).unwrap();
    let ended = finish(&mut runlist, 200 * MS);
    assert_eq!(
        ended.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(),
        [2, 1]
    );
    assert_eq!(ended[1].1, 60 * MS);
    // Stopped, told, and let go on: it ends as soon as it has the engine.
    runlist.set_enabled(200 * MS, a, Enable::On).unwrap();
    runlist
        .submit(200 * MS, a, Work::kernel(1).kind(Kind::Persistent).tag(3))
        .unwrap();
    runlist.set_enabled(210 * MS, a, Enable::OffNow).unwrap();
    runlist.signal(220 * MS, a).unwrap();
    assert_eq!(finish(&mut runlist, 300 * MS), []);
    runlist.set_enabled(300 * MS, a, Enable::On).unwrap();
    assert_eq!(finish(&mut runlist, 400 * MS), [(3, 300 * MS + 44 * US)]);
}

#[test]
fn nobody_knows_when_a_persistent_kernel_leaves_that_runs_to_its_end() {
    let (mut runlist, (group, a), (_, b)) = two();
    runlist.set_mode(0, group, Mode::Wfi).unwrap();
    runlist
        .submit(0, a, Work::kernel(1).kind(Kind::Persistent))
        .unwrap();
    runlist.submit(0, b, Work::kernel(MS).tag(2)).unwrap();
    assert_eq!(runlist.set_enabled(10 * MS, a, Enable::OffNow), Ok(None));
    assert_eq!(finish(&mut runlist, 100 * MS), []);
    runlist.signal(100 * MS, a).unwrap();
    assert_eq!(
        finish(&mut runlist, 200 * MS),
        [(0, 100 * MS), (2, 100 * MS + 55 * US + MS)]
    );
}

#[test]
fn a_fault_takes_its_group_down_and_nobody_else() {
    let (mut runlist, (group, a), (_, b)) = two();
    runlist
        .submit(0, a, Work::kernel(MS).kind(Kind::Fault).tag(1))
        .unwrap();
    runlist.submit(0, a, Work::kernel(MS).tag(2)).unwrap();
    runlist.submit(0, b, Work::kernel(MS).tag(3)).unwrap();
    runlist.advance(100 * MS);
    let ended: Vec<_> = runlist
        .take_finished()
        .iter()
        .map(|one| (one.tag, one.outcome))
        .collect();
    assert_eq!(
        ended,
        [
            (1, Outcome::Faulted),
            (2, Outcome::Dropped),
            (3, Outcome::Done)
        ]
    );
    assert_eq!(
        runlist.submit(100 * MS, a, Work::kernel(MS)),
        Err(Error::Faulted(group))
    );
    assert_eq!(runlist.add_channel(group), Err(Error::Faulted(group)));
    assert_eq!(
        runlist.set_group_enabled(100 * MS, group, Enable::On),
        Err(Error::Faulted(group))
    );
    runlist.remove_group(100 * MS, group).unwrap();
    assert_eq!(
        runlist.remove_group(100 * MS, group),
        Err(Error::NoGroup(group))
    );
}

#[test]
fn what_is_removed_while_it_runs_is_dropped_and_the_next_one_runs() {
    let (mut runlist, (group, a), (_, b)) = two();
    runlist.submit(0, a, Work::kernel(100 * MS).tag(1)).unwrap();
    runlist.submit(0, b, Work::kernel(MS).tag(2)).unwrap();
    runlist.remove_group(500 * US, group).unwrap();
    assert_eq!(
        finish(&mut runlist, 100 * MS),
        [(1, 500 * US), (2, 555 * US + MS)]
    );
    assert_eq!(
        runlist.submit(100 * MS, a, Work::kernel(1)),
        Err(Error::NoChannel(a))
    );
    // Its number is used again, its name is not.
    let again = runlist.add_group();
    assert_ne!(again, group);
    assert_eq!(runlist.used_ns(group), Err(Error::NoGroup(group)));
    assert_eq!(runlist.used_ns(again), Ok(0));
}

#[test]
fn a_co_resident_kernel_gets_on_only_while_its_peers_run() {
    let (mut runlist, (_, a), _) = two();
    runlist
        .submit(
            0,
            a,
            Work::kernel(MS).kind(Kind::CoResident { set: 9 }).tag(1),
        )
        .unwrap();
    runlist.advance(10 * MS);
    let changes = runlist.take_changes();
    assert_eq!(
        (changes[0].set, changes[0].what, changes[0].at_ns),
        (9, Presence::Arrived, 44 * US)
    );
    assert_eq!(finish(&mut runlist, 20 * MS), []);
    runlist.set_progress(20 * MS, a, Progress::On).unwrap();
    runlist
        .set_progress(20 * MS + 400 * US, a, Progress::Off)
        .unwrap();
    runlist.set_progress(30 * MS, a, Progress::On).unwrap();
    assert_eq!(finish(&mut runlist, 40 * MS), [(1, 30 * MS + 600 * US)]);
    assert_eq!(runlist.take_changes()[0].what, Presence::Left);
    assert_eq!(
        runlist.set_progress(40 * MS, a, Progress::On),
        Err(Error::NotThere(a))
    );
}

#[test]
fn a_co_resident_kernel_that_comes_back_waits_to_be_reported_again() {
    let (mut runlist, (group, a), _) = two();
    runlist
        .submit(
            0,
            a,
            Work::kernel(MS).kind(Kind::CoResident { set: 9 }).tag(1),
        )
        .unwrap();
    runlist.advance(44 * US);
    runlist.set_progress(44 * US, a, Progress::On).unwrap();
    runlist.preempt(44 * US + 400 * US, group).unwrap();
    assert_eq!(finish(&mut runlist, 10 * MS), []);
    let came_and_went: Vec<Presence> = runlist
        .take_changes()
        .iter()
        .map(|change| change.what)
        .collect();
    assert_eq!(
        came_and_went,
        [Presence::Arrived, Presence::Left, Presence::Arrived]
    );
    runlist.set_progress(10 * MS, a, Progress::On).unwrap();
    assert_eq!(finish(&mut runlist, 20 * MS), [(1, 10 * MS + 600 * US)]);
}

#[test]
fn channels_of_one_group_are_served_in_the_order_of_submission() {
    let mut runlist = Runlist::new(Costs::default());
    let (group, a) = group(&mut runlist);
    let b = runlist.add_channel(group).unwrap();
    for (channel, tag) in [(a, 1), (b, 2), (a, 3), (b, 4)] {
        runlist
            .submit(0, channel, Work::kernel(MS).tag(tag))
            .unwrap();
    }
    // The one that waits behind a closed gate is passed, and goes first when it is open again.
    runlist.set_enabled(0, b, Enable::OffNow).unwrap();
    runlist.set_enabled(MS, b, Enable::On).unwrap();
    let order: Vec<u64> = finish(&mut runlist, 100 * MS)
        .iter()
        .map(|(tag, _)| *tag)
        .collect();
    assert_eq!(order, [1, 2, 3, 4]);
}

#[test]
fn time_that_goes_back_is_taken_as_now() {
    let (mut runlist, (_, a), _) = two();
    runlist.advance(100 * MS);
    runlist.submit(50 * MS, a, Work::kernel(MS)).unwrap();
    assert_eq!(finish(&mut runlist, 0), []);
    assert_eq!(finish(&mut runlist, 200 * MS), [(0, 101 * MS + 44 * US)]);
}

#[test]
fn the_log_keeps_the_last_stays_and_counts_the_others() {
    let (mut runlist, (_, a), (_, b)) = two();
    runlist.keep_log(3);
    runlist.submit(0, a, Work::kernel(5 * MS)).unwrap();
    runlist.submit(0, b, Work::kernel(5 * MS)).unwrap();
    runlist.advance(100 * MS);
    let (stays, lost) = runlist.take_log();
    assert_eq!((stays.len(), lost), (3, 7));
}
