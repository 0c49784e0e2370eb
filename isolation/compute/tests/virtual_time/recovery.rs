//! Brokers that are killed: what their containers got while nobody turned the gate is made even by those that follow.

use compute::{Event, GateStatus};
use plan::{Policy, Priority};

use crate::fixture::{Fixture, MS, S, fixed, terms};

const SETTLED_MS: u64 = 4_000;

/// When a broker is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    WhileOpen,
    WhileClosed,
    Anywhere,
}

/// What a container gets of a card over `kills` kills, nanoseconds more than it was promised; the length of a segment; and
/// the time without a broker.
fn ahead_ns(seed: u64, percent: u32, killed: Killed, kills: u64) -> (i64, i64, i64) {
    let mut fixture = Fixture::new(seed, 1);
    let one = fixture.join("one", fixed(percent), 1);
    fixture.tenants[one].metered = true;
    fixture.join("other", fixed(20), 1);
    fixture.run_ms(SETTLED_MS);
    let from_ns = fixture.now_ns;
    let mut outages_ns = 0;
    for _ in 0..kills {
        let pause_ms = 200 + fixture.random.below(500);
        fixture.run_ms(pause_ms);
        for _ in 0..500 {
            let open = matches!(fixture.gate(one, 0), GateStatus::Open);
            if killed == Killed::Anywhere || open == (killed == Killed::WhileOpen) {
                break;
            }
            fixture.run_ms(1);
        }
        fixture.kill(one);
        // Not more than may be made even.
        let outage_ms = 5 + fixture.random.below(3 * u64::from(percent).min(40));
        fixture.run_ms(outage_ms);
        outages_ns += outage_ms * MS;
        fixture.start(one);
    }
    fixture.run_ms(1_000);
    let window_ns = fixture.status(one, 0).window_ns;
    // Whole windows, so that all of what is missing is for the kills.
    let until_ns = from_ns + (fixture.now_ns - from_ns) / window_ns * window_ns;
    let got = fixture.open_ns(one, 0, from_ns, until_ns);
    let entitled = (until_ns - from_ns) * u64::from(percent) / 100;
    let segment = window_ns * u64::from(percent) / 100;
    (
        got.cast_signed() - entitled.cast_signed(),
        segment.cast_signed(),
        outages_ns.cast_signed(),
    )
}

#[test]
fn a_container_gains_no_segment_by_its_brokers_deaths_however_many() {
    for killed in [Killed::WhileOpen, Killed::Anywhere, Killed::WhileClosed] {
        for percent in [10, 30, 60] {
            for seed in 0..8 {
                let (ahead, segment, outages) = ahead_ns(seed, percent, killed, 16);
                // What it was kept from it gets as far as there is room beside the other, and soon: the rest is lost. Never more than that.
                let least = -outages - segment;
                assert!(
                    (least..=segment).contains(&ahead),
                    "{killed:?} {percent} % {seed}: ahead {} of {} us",
                    ahead / 1_000,
                    segment / 1_000
                );
            }
        }
    }
}

#[test]
fn one_that_had_the_card_for_long_has_its_share_again_within_a_second() {
    for seed in 0..8 {
        let mut fixture = Fixture::new(seed, 1);
        let one = fixture.join("one", fixed(5), 1);
        fixture.tenants[one].metered = true;
        fixture.run_ms(SETTLED_MS);
        while matches!(fixture.gate(one, 0), GateStatus::Closed { .. }) {
            fixture.run_ms(1);
        }
        fixture.kill(one);
        // A hundred segments' worth.
        fixture.run_ms(1_500);
        fixture.start(one);
        let from_ns = fixture.now_ns;
        fixture.run_ms(3_000);
        let closed_ns = fixture.longest_closed_ns(one, 0, from_ns);
        assert!(closed_ns < 800 * MS, "{seed}: {closed_ns}");
        let settled_ns = from_ns + 1_000 * MS;
        let permille = fixture.permille(one, 0, settled_ns, settled_ns + 2 * S);
        assert!(permille.abs_diff(50) <= 5, "{seed}: {permille}");
    }
}

#[test]
fn shares_that_nothing_is_trimmed_for_are_as_they_were() {
    let mut fixture = Fixture::new(3, 1);
    let even = terms(Policy::Preemptive, None, 1, Priority::Normal);
    let one = fixture.join("one", even, 1);
    fixture.tenants[one].metered = true;
    fixture.join("fixed", fixed(40), 1);
    fixture.run_ms(SETTLED_MS);
    fixture.kill(one);
    fixture.run_ms(100);
    fixture.start(one);
    fixture.run_ms(1_000);
    let from_ns = fixture.now_ns;
    fixture.run_ms(2_000);
    let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
    assert!(permille.abs_diff(600) <= 6, "{permille}");
}

#[test]
fn a_governor_that_ends_leaves_groups_as_they_would_be_without_one() {
    let high = terms(Policy::Weighted, None, 2, Priority::High);
    for refused in [&[][..], &["set"], &["interleave"]] {
        let mut fixture = Fixture::new(4, 1);
        let one = fixture.join("one", high, 3);
        let other = fixture.join("other", weighted(2), 1);
        fixture.run_ms(1_500);
        let levels = |fixture: &Fixture| -> Vec<u32> {
            fixture.tenants[one].levels.values().copied().collect()
        };
        let slices = |fixture: &Fixture, at: usize| -> Vec<u64> {
            fixture.tenants[at].slices.values().copied().collect()
        };
        assert_eq!(levels(&fixture), [2; 3]);
        assert!(slices(&fixture, one).iter().all(|us| *us > 1_024));
        for name in refused {
            fixture.faults.refused.insert(name, 0x56);
        }
        for at in [one, other] {
            fixture.tell(at, Event::Stopping);
        }
        fixture.run_ms(1_900);
        assert!(fixture.tenants[one].done && fixture.tenants[other].done);
        if refused.is_empty() {
            assert_eq!(levels(&fixture), [1; 3]);
            assert_eq!(slices(&fixture, one), [1_024; 3]);
            assert_eq!(slices(&fixture, other), [1_024; 1]);
        }
    }
}

#[test]
fn a_priority_that_is_lowered_while_no_broker_was_there_lowers_the_level_too() {
    let mut fixture = Fixture::new(4, 1);
    let one = fixture.join("one", terms(Policy::Weighted, None, 2, Priority::High), 2);
    fixture.run_ms(1_500);
    fixture.kill(one);
    fixture.tenants[one].terms = weighted(2);
    fixture.start(one);
    fixture.run_ms(1_500);
    let levels: Vec<u32> = fixture.tenants[one].levels.values().copied().collect();
    assert_eq!(levels, [1; 2]);
}

fn weighted(weight: u32) -> plan::Terms {
    terms(Policy::Weighted, None, weight, Priority::Normal)
}
