use plan::{Demand, DriftCorrection, Least};

const SECOND: u64 = 1_000_000_000;
const WINDOW: u64 = 125_000_000;

/// A container that is always busy and whose segments come out longer by this much. Returns its share of the last 10 s, ppm.
fn share_after(seconds: u64, percent: u32, late_ns: i64, demand: Demand) -> u64 {
    let mut drift = DriftCorrection::default();
    let segment = WINDOW * u64::from(percent) / 100;
    let mut last = Vec::new();
    for _ in 0..seconds {
        let mut used = 0;
        for _ in 0..SECOND / WINDOW {
            let length = drift.next(segment, Least::Nothing).0;
            if length > 0 {
                used += length.saturating_add_signed(late_ns);
            }
        }
        drift.measure(used, SECOND, percent * 10_000, WINDOW, demand);
        last.push(used);
    }
    let last = &last[last.len() - 10..];
    last.iter().sum::<u64>() / 10 / 1000
}

#[test]
fn what_late_closes_add_and_late_opens_take_is_taken_off_again() {
    for late_ns in [-300_000, -50_000, 0, 200_000, 600_000] {
        for percent in [5, 10, 50, 90] {
            let got = share_after(80, percent, late_ns, Demand::Backlogged);
            let needed = u64::from(percent) * 10_000;
            assert!(
                got.abs_diff(needed) * 100 <= needed,
                "{percent} {late_ns}: {got}"
            );
        }
    }
}

#[test]
fn one_that_runs_on_after_every_close_is_left_out_of_windows() {
    // 20 ms that nothing can stop, of a share of 5 %.
    let got = share_after(120, 5, 20_000_000, Demand::Backlogged);
    assert!(got <= 60_000, "{got}");
}

#[test]
fn idleness_is_not_made_up_for() {
    let mut drift = DriftCorrection::default();
    for _ in 0..100 {
        drift.measure(0, SECOND, 500_000, WINDOW, Demand::Idle);
    }
    assert_eq!(drift.bias_ns(), 0);
    for _ in 0..1000 {
        drift.measure(0, SECOND, 500_000, WINDOW, Demand::Unknown);
    }
    // Two percent of what it has, at most.
    assert_eq!(drift.next(62_500_000, Least::Nothing).0, 63_750_000);
    drift.reset();
    assert_eq!(drift.next(62_500_000, Least::Nothing).0, 62_500_000);
}

#[test]
fn measurements_over_odd_times_report_nothing() {
    let mut drift = DriftCorrection::default();
    drift.measure(
        SECOND / 10,
        SECOND / 10,
        100_000,
        WINDOW,
        Demand::Backlogged,
    );
    drift.measure(
        10 * SECOND,
        10 * SECOND,
        100_000,
        WINDOW,
        Demand::Backlogged,
    );
    drift.measure(0, 0, 100_000, WINDOW, Demand::Backlogged);
    drift.measure(SECOND, SECOND, 100_000, 0, Demand::Backlogged);
    assert_eq!(drift, DriftCorrection::default());
}

#[test]
fn what_a_dead_brokers_container_takes_is_not_made_up_for() {
    let mut drift = DriftCorrection::default();
    for _ in 0..10 {
        // Half of what was promised: another one runs in its segments.
        drift.measure(SECOND / 10, SECOND, 200_000, WINDOW, Demand::Backlogged);
    }
    assert_eq!(drift.bias_ns(), 0);
    // What late calls take is, and never on a full schedule.
    drift.measure(
        SECOND * 19 / 100,
        SECOND,
        200_000,
        WINDOW,
        Demand::Backlogged,
    );
    assert!(drift.bias_ns() < 0);
    drift.add_nothing();
    assert_eq!(drift.bias_ns(), 0);
}

#[test]
fn what_was_too_much_is_given_back_at_once_and_what_was_missed_is_given_in_parts() {
    const SEGMENT: u64 = 37_500_000;
    let mut drift = DriftCorrection::resumed(500_000, SEGMENT);
    let usual = SEGMENT - 500_000;
    assert_eq!(drift.next(SEGMENT, Least::Nothing).0, usual);
    drift.carry(40_000_000, 0);
    // One segment is left out, and the next is shorter by what it did not cover.
    assert_eq!(drift.next(SEGMENT, Least::Nothing).0, 0);
    assert_eq!(drift.carried_ns(), 3_000_000);
    assert_eq!(drift.next(SEGMENT, Least::Nothing).0, usual - 3_000_000);
    assert_eq!(drift.next(SEGMENT, Least::Nothing).0, usual);
    // What is left of a segment is worth its calls.
    let mut short = DriftCorrection::default();
    short.carry(5_000_000, 0);
    let lengths: Vec<u64> = (0..4)
        .map(|_| short.next(4_000_000, Least::Nothing).0)
        .collect();
    assert_eq!(lengths, [0, 3_000_000, 4_000_000, 4_000_000]);
    short.carry(3_000_000, 0);
    let lengths: Vec<u64> = (0..3)
        .map(|_| short.next(4_000_000, Least::Nothing).0)
        .collect();
    assert_eq!(lengths, [2_000_000, 3_000_000, 4_000_000]);
    drift.carry(-5_000_000, 2_000_000);
    let lengths: Vec<u64> = (0..4)
        .map(|_| drift.next(SEGMENT, Least::Nothing).0)
        .collect();
    let longer = |ns: u64| usual + ns;
    assert_eq!(
        lengths,
        [
            longer(2_000_000),
            longer(2_000_000),
            longer(1_000_000),
            usual
        ]
    );
    assert_eq!(drift.carried_ns(), 0);
}

#[test]
fn a_bias_that_cannot_be_is_not_resumed() {
    const SEGMENT: u64 = 20_000_000;
    let worst = DriftCorrection::resumed(i64::MIN, SEGMENT)
        .next(SEGMENT, Least::Nothing)
        .0;
    assert_eq!(worst, SEGMENT + SEGMENT / 50 + 300_000);
    let most = DriftCorrection::resumed(i64::MAX, SEGMENT)
        .next(SEGMENT, Least::Nothing)
        .0;
    assert_eq!(most, SEGMENT / 2);
}

#[test]
fn what_is_owed_is_paid_with_short_segments_where_none_may_be_left_out() {
    let mut drift = DriftCorrection::default();
    drift.carry(15_000_000, 0);
    let lengths = (0..4).map(|_| drift.next(10_000_000, Least::Opened).0);
    // 8 ms, and 7.
    assert!(lengths.eq([2_000_000, 3_000_000, 10_000_000, 10_000_000]));
    // One that is held by nothing but being left out is opened as briefly as can be.
    let mut worst = DriftCorrection::resumed(i64::MAX, 3_000_000);
    assert_eq!(worst.next(3_000_000, Least::Opened).0, 2_000_000);
    assert_eq!(worst.next(3_000_000, Least::Nothing).0, 0);
}
