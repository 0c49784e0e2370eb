//! Attacks on shares that are no row of the bench: every rhythm of work, very many groups, and high priority used against its bounds.

use experiments::harness::Harness;
use experiments::scenario::{Load, MS, Record, S, Scenario, Steering, Tenant, bursts};
use experiments::terms::{BUSY, fixed, offline, online, weighted};

const SETTLED_NS: u64 = 4 * S;
const UNTIL_NS: u64 = SETTLED_NS + 14 * S;
const LONG_NS: u64 = 10 * S;
/// Relative, percent.
const LONG: f64 = 2.0;
const ANY_SECOND: f64 = 5.0;

fn play(scenario: &Scenario) -> Record {
    Harness::default()
        .play(scenario, Steering::Governed)
        .unwrap()
}

/// One that is always busy has what it was promised.
fn holds(what: &str, record: &Record, tenant: usize, percent: f64) {
    for (window_ns, most) in [(LONG_NS, LONG), (S, ANY_SECOND)] {
        let curve = &record.used[tenant][0];
        let error = curve.error(percent, window_ns, SETTLED_NS, UNTIL_NS);
        let worst = error.unwrap().worst_percent;
        println!("{what}: tenant {tenant}, {} s: {worst:.2} %", window_ns / S);
        assert!(
            worst <= most,
            "{what}: tenant {tenant} is off by {worst} % over {} s",
            window_ns / S
        );
    }
}

/// One that is not always busy has no more than it was promised.
fn is_bounded(what: &str, record: &Record, tenant: usize, percent: f64) {
    for (window_ns, most) in [(LONG_NS, LONG), (S, ANY_SECOND)] {
        let curve = &record.used[tenant][0];
        let error = curve.error(percent, window_ns, SETTLED_NS, UNTIL_NS);
        let found = error.unwrap().most_percent;
        println!(
            "{what}: tenant {tenant}, {} s: at most {found:.2} %",
            window_ns / S
        );
        assert!(
            found <= percent * (1.0 + most / 100.0),
            "{what}: tenant {tenant} has {found} % over {} s",
            window_ns / S
        );
    }
}

/// By chance, near the lengths of windows as well.
#[test]
fn no_rhythm_of_work_moves_a_cap() {
    let mut dice = 12_345_u64;
    let mut next = |sides: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % sides
    };
    for seed in 0..40 {
        let period_us = match next(3) {
            0 => 62_500 * (1 + next(24)) + next(2_000),
            1 => 5_000 + next(100_000),
            _ => 100_000 + next(3_000_000),
        };
        let on_us = period_us * (5 + next(90)) / 100;
        let load = Load::Bursts {
            depth: [1, 8, 64, 1024][usize::try_from(next(4)).unwrap()],
            kernel_ns: [MS / 10, 2 * MS, 5 * MS, 50 * MS][usize::try_from(next(4)).unwrap()],
            on_ns: on_us * 1_000,
            off_ns: (period_us - on_us) * 1_000,
        };
        let (own, other) =
            [(20, 60), (10, 90), (50, 50), (5, 60)][usize::try_from(next(4)).unwrap()];
        let mut attacker = Tenant::new(fixed(own), load);
        attacker.groups = [1, 1, 16][usize::try_from(next(3)).unwrap()];
        let scenario = Scenario::new(500 + seed, UNTIL_NS)
            .with(attacker)
            .with(Tenant::new(fixed(other), BUSY));
        let what = format!("{own} and {other} %, {on_us} of {period_us} us");
        let record = play(&scenario);
        is_bounded(&what, &record, 0, f64::from(own));
        holds(&what, &record, 1, f64::from(other));
    }
}

/// As many as a container may have: its gate takes more calls, and its neighbour's opens as before.
#[test]
fn very_many_groups_move_no_cap() {
    for (own, other) in [(20, 60), (50, 50), (20, 80)] {
        let mut attacker = Tenant::new(fixed(own), BUSY);
        attacker.groups = 64;
        let scenario = Scenario::new(540, UNTIL_NS)
            .with(attacker)
            .with(Tenant::new(fixed(other), BUSY));
        let record = play(&scenario);
        is_bounded("64 groups", &record, 0, f64::from(own));
        holds("beside 64 groups", &record, 1, f64::from(other));
    }
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
        let scenario = Scenario::new(480 + seed as u64, UNTIL_NS)
            .with(Tenant::new(online(), bursts(on_ms, off_ms)))
            .with(Tenant::new(offline(), BUSY))
            .with(Tenant::new(offline(), BUSY));
        let what = format!("{on_ms} of {} ms", on_ms + off_ms);
        is_bounded(&what, &play(&scenario), 0, 80.0);
    }
}

/// Two of high priority are held to the ratio together, and each to its part, however many groups it makes.
#[test]
fn several_of_high_priority_share_the_ratio_whatever_groups_they_make() {
    for (seed, groups) in [1, 4, 16, 64].into_iter().enumerate() {
        let mut attacker = Tenant::new(online(), BUSY);
        attacker.groups = groups;
        let scenario = Scenario::new(490 + seed as u64, UNTIL_NS)
            .with(attacker)
            .with(Tenant::new(online(), BUSY))
            .with(Tenant::new(offline(), BUSY));
        let record = play(&scenario);
        let shares = |tenant: usize, window_ns| {
            record.used[tenant][0].shares(window_ns, SETTLED_NS, UNTIL_NS)
        };
        let both = shares(0, S).into_iter().zip(shares(1, S));
        let both = both.map(|(one, other)| one + other).fold(0.0, f64::max);
        let [other, low] = [1, 2].map(|at| {
            shares(at, LONG_NS)
                .into_iter()
                .fold(f64::INFINITY, f64::min)
        });
        println!("{groups} groups: both {both:.2} %, the other {other:.2} %, low {low:.2} %");
        assert!(both <= 80.0 * (1.0 + ANY_SECOND / 100.0), "{both}");
        assert!(other >= 40.0 * 0.85, "{groups} groups: {other}");
        assert!(low >= 7.0, "{groups} groups: {low}");
    }
}

/// The least that those of low priority have together beside one of high priority with so many groups, over 10 s and over any second,
/// percent of the card.
fn left_beside(groups: u32, load: Load) -> [f64; 2] {
    let mut high = Tenant::new(online(), load);
    high.groups = groups;
    let scenario = Scenario::new(470, UNTIL_NS)
        .with(high)
        .with(Tenant::new(offline(), BUSY))
        .with(Tenant::new(offline(), BUSY));
    let record = play(&scenario);
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
    for load in [BUSY, bursts(30, 25)] {
        let one = left_beside(1, load);
        for groups in [4, 16, 64] {
            let many = left_beside(groups, load);
            for ((many, one), part) in many.into_iter().zip(one).zip([0.8, 0.7]) {
                assert!(many >= one * part, "{groups} groups: {many} of {one}");
            }
        }
    }
}

/// Those who share what a cap leaves do so in whole rounds of its segment: one with a long slice is not cut for one with many short ones.
/// A second is off by a part of a round.
#[test]
fn many_groups_beside_a_cap_take_nothing_from_who_shares_the_rest() {
    for (seed, groups) in [1, 8, 16, 24, 32, 48, 64].into_iter().enumerate() {
        let mut attacker = Tenant::new(weighted(1), BUSY);
        attacker.groups = groups;
        let scenario = Scenario::new(550 + seed as u64, UNTIL_NS)
            .with(attacker)
            .with(Tenant::new(weighted(1), BUSY))
            .with(Tenant::new(fixed(40), BUSY));
        let record = play(&scenario);
        holds("a cap beside them", &record, 2, 40.0);
        for (window_ns, part) in [(LONG_NS, 0.98), (S, 0.92)] {
            let shares = record.used[1][0].shares(window_ns, SETTLED_NS, UNTIL_NS);
            let least = shares.into_iter().fold(f64::INFINITY, f64::min);
            println!("{groups} groups: {least:.2} % over {} s", window_ns / S);
            assert!(least >= 30.0 * part, "{groups} groups: {least}");
        }
    }
}
