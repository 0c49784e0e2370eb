//! Containers that attack shares with what is left to them. The plan and the governor are the real ones; nobody's share moves by more
//! than two percent over 10 s, or five in any second, but where an attack's rows promise less.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use experiments::ATTACKS;
use experiments::report::{Effort, cells};
use experiments::scene::{Load, MS, S, Scene, Steering, Tenant};
use experiments::stage::Stage;
use experiments::terms::{BUSY, offline, online};

const SETTLED_NS: u64 = 4 * S;
const UNTIL_NS: u64 = SETTLED_NS + 14 * S;
const LONG_NS: u64 = 10 * S;

/// All that is promised under an attack holds; at least what is had in the end.
fn holds(what: &str) {
    let attack = ATTACKS.iter().find(|attack| attack.what == what).unwrap();
    let rows = attack.rows(Effort::Short).unwrap();
    for row in &rows {
        println!("{}", cells("attacks", row).join(" | "));
        assert_ne!(row.holds(), Some(false), "{row:?}");
    }
    assert!(rows.iter().any(|row| row.holds() == Some(true)), "{rows:?}");
}

#[test]
fn idling_and_bursting_moves_no_cap() {
    holds("idling and bursting under a cap");
}

#[test]
fn idling_and_bursting_takes_nothing_from_those_who_share_by_weight() {
    holds("idling and bursting by weight");
}

#[test]
fn containers_that_come_and_go_move_no_cap_over_ten_seconds() {
    holds("containers that come and go");
}

#[test]
fn a_gang_moves_no_cap_on_any_of_its_cards() {
    holds("a gang on two cards");
}

/// High priority has up to four fifths of any second (`prio_ratio`), whatever it has left unused before.
#[test]
fn idling_and_bursting_gains_high_priority_no_second_beyond_its_ratio() {
    for (seed, (on_ms, off_ms)) in [
        (2_318, 475),
        (1_945, 834),
        (2_427, 240),
        (362, 1_145),
        (800, 400),
        (1_000, 1_000),
    ]
    .into_iter()
    .enumerate()
    {
        let scene = Scene::new(480 + seed as u64, UNTIL_NS)
            .with(Tenant::new(online(), bursts(on_ms, off_ms)))
            .with(Tenant::new(offline(), BUSY))
            .with(Tenant::new(offline(), BUSY));
        let what = format!("{on_ms} of {} ms", on_ms + off_ms);
        is_bounded(&what, &play(&scene), 0, 80.0);
    }
}

/// The least that those of low priority have together beside one of high priority with so many groups, over 10 s and over any second,
/// percent of the card.
fn left_beside(groups: u32, load: Load) -> [f64; 2] {
    let mut high = Tenant::new(online(), load);
    high.groups = groups;
    let scene = Scene::new(470, UNTIL_NS)
        .with(high)
        .with(Tenant::new(offline(), BUSY))
        .with(Tenant::new(offline(), BUSY));
    let record = Stage::default().play(&scene, Steering::Governed).unwrap();
    let least = [LONG_NS, S].map(|window_ns| {
        let [one, other] =
            [1, 2].map(|low| record.used[low][0].shares(window_ns, SETTLED_NS, UNTIL_NS));
        let sums = one.iter().zip(&other).map(|(one, other)| one + other);
        sums.fold(f64::INFINITY, f64::min)
    });
    println!(
        "{groups} groups of high priority leave {:.2} % over 10 s, {:.2} % over 1 s",
        least[0], least[1]
    );
    least
}

/// What they switch among themselves is no time of the others'.
#[test]
fn many_groups_of_high_priority_leave_the_others_what_one_leaves() {
    let bursts = Load::Bursts {
        depth: 64,
        kernel_ns: 5 * MS,
        on_ns: 30 * MS,
        off_ns: 25 * MS,
    };
    for load in [BUSY, bursts] {
        let one = left_beside(1, load);
        for groups in [4, 16, 64] {
            let many = left_beside(groups, load);
            for ((many, one), part) in many.into_iter().zip(one).zip([0.8, 0.7]) {
                assert!(many >= one * part, "{groups} groups: {many} of {one}");
            }
        }
    }
}

#[test]
fn contexts_in_a_loop_at_a_brokers_pace_move_no_share_in_the_end() {
    holds("contexts in a loop, at a broker's pace");
}

#[test]
fn churned_channels_move_no_share() {
    holds("channels churned");
}

#[test]
fn channels_that_end_under_the_lever_move_no_share() {
    holds("channels that end under the lever");
}

#[test]
fn channels_that_refuse_the_lever_move_no_share() {
    holds("channels that refuse the lever");
}

#[test]
fn allocations_without_pause_move_no_share() {
    holds("allocations without pause");
}
