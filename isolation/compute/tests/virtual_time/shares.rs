//! Governors in virtual time: what each container could use of its cards.

use crate::fixture::{Fixture, MS, S, fixed, name, terms};
use compute::{EnforcementLevel, Event, Fail, GateStatus, Knob};
use plan::{Claim, Idle, Policy, Priority, ShareRecord};

/// Everybody has joined, has been probed, and windows are under way.
const SETTLED_MS: u64 = 2_000;

#[test]
fn caps_are_held_side_by_side_with_two_calls_a_window() {
    let mut fixture = Fixture::new(1, 1);
    let percents = [10, 30, 60];
    for percent in percents {
        fixture.join(&format!("c{percent}"), fixed(percent), 1);
    }
    fixture.run_ms(SETTLED_MS);
    let from_ns = fixture.now_ns;
    fixture.run_ms(10_000);
    for (at, percent) in percents.into_iter().enumerate() {
        let permille = fixture.permille(at, 0, from_ns, fixture.now_ns);
        // A lap's half on each side is shared with a neighbour: what could run is up to 1 % of the segment more.
        assert!(
            permille.abs_diff(u64::from(percent) * 10) <= u64::from(percent) / 10 + 1,
            "{percent} %: {permille}"
        );
        let windows = 10 * S / fixture.status(at, 0).window_ns;
        let calls = fixture.gate_calls(at, from_ns);
        assert!(
            u64::try_from(calls).unwrap() <= 2 * windows + 2,
            "{calls} calls in {windows} windows"
        );
        assert_eq!(
            fixture.status(at, 0).enforcement_level,
            Some(EnforcementLevel::Gate)
        );
        assert!(fixture.status(at, 0).holds);
        for other in at + 1..percents.len() {
            let overlap_ns = fixture.longest_overlap_ns(at, other, 0, from_ns);
            assert!(overlap_ns < 500_000, "{overlap_ns}");
        }
    }
}

#[test]
fn what_a_closed_gate_took_from_a_container_with_work_is_counted() {
    let mut fixture = Fixture::new(1, 1);
    let [busy, idle, unknown] = [
        ("busy", Some(true)),
        ("idle", Some(false)),
        ("unknown", None),
    ]
    .map(|(key, works)| {
        let at = fixture.join(key, fixed(30), 1);
        fixture.tenants[at].busy = works;
        at
    });
    fixture.run_ms(SETTLED_MS);
    let throttled_ms =
        |fixture: &Fixture, at| Some(fixture.status(at, 0).throttled_ns? / 1_000_000);
    let before_ms = throttled_ms(&fixture, busy).unwrap();
    fixture.run_ms(10_000);
    let took_ms = throttled_ms(&fixture, busy).unwrap() - before_ms;
    assert!(took_ms.abs_diff(7_000) < 200, "{took_ms} ms of 10 s");
    assert_eq!(throttled_ms(&fixture, idle), Some(0));
    assert_eq!(throttled_ms(&fixture, unknown), None);
}

#[test]
fn a_live_change_holds_within_two_windows_and_disturbs_nobody() {
    let mut fixture = Fixture::new(2, 1);
    let (one, other) = (
        fixture.join("one", fixed(20), 1),
        fixture.join("other", fixed(30), 1),
    );
    fixture.run_ms(SETTLED_MS);
    let window_ns = fixture.status(one, 0).window_ns;
    let changed_ns = fixture.now_ns;
    fixture.set_terms(one, fixed(60));
    fixture.run_ms(5_000);
    let after_ns = changed_ns + 2 * window_ns + window_ns / 10;
    let permille = fixture.permille(one, 0, after_ns, after_ns + 16 * window_ns);
    assert!(permille.abs_diff(600) <= 8, "{permille}");
    let permille = fixture.permille(other, 0, changed_ns, changed_ns + 16 * window_ns);
    assert!(permille.abs_diff(300) <= 6, "{permille}");
    assert!(fixture.longest_overlap_ns(one, other, 0, changed_ns) < 500_000);
}

#[test]
fn a_container_that_leaves_or_is_killed_frees_its_part_and_one_that_joins_takes_its_place() {
    let mut fixture = Fixture::new(3, 1);
    fixture.rules[0].idle = Idle::Waste;
    let even = terms(Policy::Preemptive, None, 1, Priority::Normal);
    let (one, other) = (fixture.join("one", even, 1), fixture.join("other", even, 1));
    fixture.run_ms(SETTLED_MS);
    let from_ns = fixture.now_ns;
    fixture.run_ms(2_000);
    assert!(
        fixture
            .permille(one, 0, from_ns, fixture.now_ns)
            .abs_diff(500)
            < 10
    );
    fixture.kill(other);
    fixture.remove_groups(other, 0);
    let from_ns = fixture.now_ns + 600 * MS;
    fixture.run_ms(2_600);
    assert_eq!(fixture.permille(one, 0, from_ns, fixture.now_ns), 1_000);
    let third = fixture.join("third", even, 1);
    let joined_ns = fixture.now_ns;
    fixture.run_ms(4_000);
    let overlap_ns = fixture.longest_overlap_ns(one, third, 0, joined_ns + 1_000 * MS);
    assert!(overlap_ns < 500_000, "{overlap_ns}");
    assert!(
        fixture
            .permille(one, 0, joined_ns + S, fixture.now_ns)
            .abs_diff(500)
            < 10
    );
}

#[test]
fn a_successor_finds_what_a_killed_broker_left_closed_and_keeps_its_place() {
    for seed in 0..40 {
        let mut fixture = Fixture::new(seed, 1);
        let (one, other) = (
            fixture.join("one", fixed(25), 2),
            fixture.join("other", fixed(50), 1),
        );
        fixture.run_ms(SETTLED_MS);
        let pause_ms = fixture.random.below(250);
        fixture.run_ms(pause_ms);
        let from_ns = fixture.now_ns;
        fixture.kill(one);
        let pause_ms = fixture.random.below(40);
        fixture.run_ms(pause_ms);
        fixture.start(one);
        fixture.run_ms(4_000);
        let closed_ns = fixture.longest_closed_ns(one, 0, from_ns);
        assert!(closed_ns < compute::CLOSED_MAX_NS, "{seed}: {closed_ns}");
        let settled_ns = from_ns + 1_000 * MS;
        let permille = fixture.permille(one, 0, settled_ns, fixture.now_ns);
        assert!(permille.abs_diff(250) <= 6, "{seed}: {permille}");
        let overlap_ns = fixture.longest_overlap_ns(one, other, 0, settled_ns);
        assert!(overlap_ns < 500_000, "{seed}: {overlap_ns}");
    }
}

#[test]
fn slices_do_not_hold_a_container_that_has_a_channel_without_a_group() {
    let mut fixture = Fixture::new(31, 1);
    let soft = terms(Policy::Weighted, None, 1, Priority::Normal);
    let one = fixture.join("one", soft, 1);
    let other = fixture.join("other", fixed(30), 1);
    fixture.run_ms(1_000);
    let holds = |fixture: &Fixture| [one, other].map(|at| fixture.status(at, 0).holds);
    assert_eq!(holds(&fixture), [true; 2]);
    // Channels that were made without a group, before anybody had terms.
    let alone = [one, other].map(|at| fixture.add_alone(at, 0));
    fixture.run_ms(1_000);
    assert_eq!(holds(&fixture), [false, true]);
    let given = |at: usize| fixture.tenants[at].slices.keys().map(|(_, group)| *group);
    assert!(
        given(one)
            .chain(given(other))
            .all(|group| !alone.contains(&group))
    );
    // The gate has them all the same.
    let closed = fixture.tenants[other]
        .calls
        .iter()
        .any(|(_, knob)| match knob {
            Knob::Close { channels, .. } => {
                channels.iter().any(|channel| channel.handle == alone[1])
            }
            _ => false,
        });
    assert!(closed);
    fixture.remove_groups_from(one, 0, 1);
    fixture.run_ms(1_000);
    assert_eq!(holds(&fixture), [true; 2]);
    // A native one is promised nothing, which is held.
    let mut fixture = Fixture::new(32, 1);
    let native = fixture.join("native", plan::Terms::NATIVE, 1);
    fixture.add_alone(native, 0);
    let neighbour = fixture.join("neighbour", soft, 1);
    fixture.run_ms(1_000);
    assert!([native, neighbour].map(|at| fixture.status(at, 0).holds) == [true; 2]);
}

#[test]
fn stopping_opens_every_gate_and_gives_up_the_records() {
    for seed in 0..20 {
        let mut fixture = Fixture::new(seed, 2);
        let one = fixture.join("one", fixed(10), 1);
        let pause_ms = SETTLED_MS + fixture.random.below(250);
        fixture.run_ms(pause_ms);
        fixture.tell(one, Event::Stopping);
        fixture.run_ms(50);
        assert!(fixture.tenants[one].done);
        assert!(fixture.lines.values().all(crate::fixture::Line::runs));
        for card in &fixture.cards {
            assert!(card.living().is_empty() && card.dead().is_empty());
        }
    }
}

#[test]
fn channels_that_come_while_the_gate_is_closed_are_closed_too() {
    let mut fixture = Fixture::new(4, 1);
    let one = fixture.join("one", fixed(10), 1);
    fixture.run_ms(SETTLED_MS);
    while matches!(fixture.gate(one, 0), GateStatus::Open) {
        fixture.run_ms(1);
    }
    fixture.run_ms(2);
    // 150 channels make three calls at every turn.
    fixture.add_group(one, 0, 150);
    let from_ns = fixture.now_ns + 2 * MS;
    fixture.run_ms(2);
    assert!(!fixture.lines.values().any(crate::fixture::Line::runs));
    fixture.run_ms(5_000);
    let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
    assert!(permille.abs_diff(100) <= 10, "{permille}");
    let longest = fixture.longest_closed_ns(one, 0, from_ns);
    assert!(longest < S, "{longest}");
}

#[test]
fn handles_that_have_gone_do_not_stop_the_others() {
    let mut fixture = Fixture::new(5, 1);
    let one = fixture.join("one", fixed(20), 3);
    fixture.run_ms(SETTLED_MS);
    let listed = fixture.tenants[one].objects[0].groups[1].channels[0];
    fixture.gone.insert(listed.handle);
    let from_ns = fixture.now_ns + 500 * MS;
    fixture.run_ms(4_000);
    let status = fixture.status(one, 0);
    assert_eq!(
        (status.enforcement_level, status.counts.alarms),
        (Some(EnforcementLevel::Gate), 0)
    );
    fixture
        .lines
        .retain(|(_, _, channel), _| *channel != listed);
    let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
    assert!(permille.abs_diff(200) <= 6, "{permille}");
}

#[test]
fn a_driver_that_refuses_knobs_is_met_with_weaker_ones_and_the_status_reports_why() {
    for (refused, enforcement_level, holds) in [
        (vec!["get"], EnforcementLevel::Gate, true),
        (vec!["set"], EnforcementLevel::Gate, true),
        (vec!["close"], EnforcementLevel::Schedule, true),
        (vec!["close", "schedule"], EnforcementLevel::Slices, false),
        (vec!["open", "schedule"], EnforcementLevel::Slices, false),
        (
            vec!["close", "schedule", "set"],
            EnforcementLevel::Freezer,
            false,
        ),
    ] {
        let mut fixture = Fixture::new(6, 1);
        for knob in &refused {
            fixture.faults.refused.insert(knob, 0x56);
        }
        let one = fixture.join("one", fixed(20), 1);
        fixture.join("other", fixed(40), 1);
        fixture.run_ms(SETTLED_MS);
        let from_ns = fixture.now_ns;
        fixture.run_ms(4_000);
        let status = fixture.status(one, 0);
        assert_eq!(
            (status.enforcement_level, status.holds),
            (Some(enforcement_level), holds),
            "{refused:?}"
        );
        let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
        if enforcement_level >= EnforcementLevel::Schedule {
            assert!(permille.abs_diff(200) <= 6, "{refused:?}: {permille}");
        } else if refused[0] != "open" {
            assert_eq!(permille, 1_000, "{refused:?}");
            assert!(status.reason.is_some());
            // What has no gate has slices by its cap: 20 to 40.
            if enforcement_level == EnforcementLevel::Slices {
                let slices: Vec<u64> = fixture
                    .tenants
                    .iter()
                    .map(|tenant| *tenant.slices.values().next().unwrap())
                    .collect();
                assert!(
                    slices[1] > slices[0] * 19 / 10 && slices[1] < slices[0] * 21 / 10,
                    "{slices:?}"
                );
            }
        }
        // Nobody asks over and over: two calls in each of 96 windows, and a few at the start.
        let calls = fixture.tenants[one].calls.len();
        assert!(calls < 2 * 96 + 20, "{refused:?}: {calls}");
    }
}

#[test]
fn a_gate_that_is_refused_in_later_life_becomes_a_weaker_one() {
    let mut fixture = Fixture::new(7, 1);
    let one = fixture.join("one", fixed(20), 1);
    fixture.run_ms(SETTLED_MS);
    fixture.faults.refused.insert("close", 0x31);
    fixture.run_ms(SETTLED_MS);
    let from_ns = fixture.now_ns;
    fixture.run_ms(4_000);
    let status = fixture.status(one, 0);
    assert_eq!(status.enforcement_level, Some(EnforcementLevel::Schedule));
    assert!(status.reason.unwrap().to_string().contains("0x31"));
    let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
    assert!(permille.abs_diff(200) <= 6, "{permille}");
}

#[test]
fn a_driver_that_is_slow_for_seconds_rests_the_gate_until_it_is_fast_again() {
    let mut fixture = Fixture::new(8, 1);
    let one = fixture.join("one", fixed(20), 1);
    fixture.run_ms(SETTLED_MS);
    fixture.faults.takes_ns = Some(60 * MS);
    fixture.run_ms(4_000);
    assert_eq!(fixture.status(one, 0).counts.alarms, 0);
    let slow = |fixture: &mut Fixture| loop {
        fixture.run_ms(10);
        let status = fixture.status(one, 0);
        if status.enforcement_level == Some(EnforcementLevel::Slices) {
            return status;
        }
    };
    let status = slow(&mut fixture);
    assert!(!status.holds && status.reason.unwrap().to_string().contains("slow"));
    assert_eq!(status.counts.alarms, 1);
    let from_ns = fixture.now_ns;
    fixture.run_ms(900);
    assert!(fixture.permille(one, 0, from_ns, fixture.now_ns) > 900);
    // Still slow: it rests again, for longer. And a minute at most after it is fast again, it is held as before.
    fixture.run_ms(1_000);
    slow(&mut fixture);
    fixture.faults.takes_ns = None;
    fixture.run_ms(6_000);
    let from_ns = fixture.now_ns;
    fixture.run_ms(5_000);
    let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
    assert!(permille.abs_diff(200) <= 6, "{permille}");
    assert_eq!(
        fixture.status(one, 0).enforcement_level,
        Some(EnforcementLevel::Gate)
    );
}

#[test]
fn lost_calls_are_made_again() {
    for seed in 0..10 {
        let mut fixture = Fixture::new(seed, 1);
        fixture.faults.lost_permille = 200;
        fixture.faults.stalls_permille = 20;
        let one = fixture.join("one", fixed(40), 2);
        fixture.run_ms(SETTLED_MS);
        let from_ns = fixture.now_ns;
        fixture.run_ms(10_000);
        let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
        assert!(permille.abs_diff(400) <= 60, "{seed}: {permille}");
        assert!(fixture.longest_closed_ns(one, 0, from_ns) < compute::CLOSED_MAX_NS);
    }
}

#[test]
fn a_gang_runs_on_all_its_cards_at_the_same_time() {
    let mut fixture = Fixture::new(9, 4);
    let one = fixture.join("gang", fixed(30), 1);
    fixture.join("other", fixed(20), 1);
    fixture.run_ms(SETTLED_MS);
    let from_ns = fixture.now_ns;
    fixture.run_ms(5_000);
    let spans: Vec<Vec<(u64, u64)>> = (0..4)
        .map(|card| {
            let mut spans = fixture.spans(one, card);
            spans.retain(|(from, _)| *from >= from_ns + 50 * MS);
            spans
        })
        .collect();
    assert!(spans[0].len() >= 19, "{}", spans[0].len());
    for card in 1..4 {
        for (here, there) in spans[0].iter().zip(&spans[card]) {
            assert!(
                here.0.abs_diff(there.0) < 1_200_000 && here.1.abs_diff(there.1) < 1_200_000,
                "card {card}: {here:?} {there:?}"
            );
        }
        let permille = fixture.permille(one, card, from_ns, fixture.now_ns);
        assert!(permille.abs_diff(300) <= 8, "card {card}: {permille}");
    }
}

#[test]
fn the_account_takes_off_what_late_closes_add() {
    for (metered, low, high) in [(false, 125, 140), (true, 97, 103)] {
        let mut fixture = Fixture::new(10, 1);
        fixture.faults.close_lag_ns = 4 * MS;
        let one = fixture.join("one", fixed(10), 1);
        fixture.tenants[one].metered = metered;
        fixture.run_ms(60_000);
        let from_ns = fixture.now_ns;
        fixture.run_ms(10_000);
        let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
        assert!((low..=high).contains(&permille), "{metered}: {permille}");
    }
}

#[test]
fn high_priority_has_long_slices_until_it_has_used_its_ratio() {
    let mut fixture = Fixture::new(11, 1);
    let online = fixture.join(
        "online",
        terms(Policy::Preemptive, None, 1, Priority::High),
        1,
    );
    let offline = fixture.join(
        "offline",
        terms(Policy::Preemptive, None, 1, Priority::Low),
        1,
    );
    fixture.run_ms(SETTLED_MS);
    assert_eq!(fixture.status(online, 0).ratio_enforced, Some(false));
    assert_eq!(fixture.status(offline, 0).ratio_enforced, None);
    assert!(
        fixture.tenants[online]
            .slices
            .values()
            .all(|slice_us| *slice_us > 900_000)
    );
    assert!(
        fixture.tenants[online]
            .levels
            .values()
            .all(|level| *level == 2)
    );
    assert_eq!(fixture.gate_calls(online, fixture.now_ns - 1_000 * MS), 0);
    // Its use is all of the time from now on, by this account.
    fixture.tenants[online].metered = true;
    fixture.run_ms(SETTLED_MS);
    assert_eq!(fixture.status(online, 0).ratio_enforced, Some(true));
    assert!(
        fixture.tenants[online]
            .slices
            .values()
            .all(|slice_us| *slice_us < 2_000)
    );
    assert!(
        fixture.tenants[online]
            .levels
            .values()
            .all(|level| *level == 1)
    );
}

#[test]
fn an_idle_offline_containers_segment_is_used_by_the_next_until_it_has_work() {
    let mut fixture = Fixture::new(12, 1);
    let low = terms(Policy::Preemptive, None, 1, Priority::Low);
    let online = fixture.join(
        "online",
        terms(Policy::Preemptive, None, 1, Priority::High),
        1,
    );
    let (one, other) = (fixture.join("one", low, 1), fixture.join("other", low, 1));
    fixture.tenants[online].busy = Some(true);
    fixture.tenants[one].busy = Some(true);
    fixture.tenants[other].busy = Some(true);
    fixture.run_ms(SETTLED_MS);
    let from_ns = fixture.now_ns;
    fixture.run_ms(2_000);
    assert!(
        fixture
            .permille(one, 0, from_ns, fixture.now_ns)
            .abs_diff(500)
            < 20
    );
    fixture.tenants[other].busy = Some(false);
    fixture.run_ms(500);
    let from_ns = fixture.now_ns;
    fixture.run_ms(2_000);
    let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
    assert!(permille > 970, "{permille}");
    fixture.tenants[other].busy = Some(true);
    fixture.run_ms(300);
    let from_ns = fixture.now_ns;
    fixture.run_ms(2_000);
    assert!(
        fixture
            .permille(one, 0, from_ns, fixture.now_ns)
            .abs_diff(500)
            < 20
    );
}

#[test]
fn soft_shares_are_set_once_and_cost_no_gate() {
    let mut fixture = Fixture::new(13, 1);
    let weights = [1, 2, 5];
    for weight in weights {
        fixture.join(
            &format!("w{weight}"),
            terms(Policy::Weighted, None, weight, Priority::Normal),
            1,
        );
    }
    fixture.run_ms(SETTLED_MS);
    let from_ns = fixture.now_ns;
    fixture.run_ms(10_000);
    for (at, weight) in weights.iter().enumerate() {
        assert!(
            fixture.tenants[at]
                .calls
                .iter()
                .all(|(at_ns, _)| *at_ns < from_ns)
        );
        let slice = |at: usize| *fixture.tenants[at].slices.values().next().unwrap();
        let expected = slice(0) * u64::from(*weight);
        assert!(
            slice(at).abs_diff(expected) <= expected / 50,
            "{weight}: {}",
            slice(at)
        );
    }
}

#[test]
fn a_clock_that_jumps_and_a_governor_that_slept_leave_no_gate_closed() {
    let mut fixture = Fixture::new(14, 1);
    let one = fixture.join("one", fixed(10), 1);
    fixture.run_ms(SETTLED_MS);
    for _ in 0..20 {
        let jump_ms = fixture.random.below(10_000);
        fixture.now_ns += jump_ms * MS;
        let from_ns = fixture.now_ns;
        fixture.run_ms(1_000);
        // What ran on meanwhile is given back.
        assert!(fixture.longest_closed_ns(one, 0, from_ns) < compute::CLOSED_MAX_NS);
    }
}

#[test]
fn the_probe_asks_in_order_and_before_anything_is_set() {
    let mut fixture = Fixture::new(15, 1);
    let one = fixture.join("one", fixed(10), 1);
    fixture.run_ms(20);
    let requested: Vec<&str> = fixture.tenants[one]
        .calls
        .iter()
        .map(|(_, knob)| name(knob))
        .take(4)
        .collect();
    assert_eq!(requested, ["get", "set", "close", "open"]);
    assert!(matches!(
        fixture.tenants[one].calls[1].1,
        Knob::SetTimeslice {
            slice_us: 1_024,
            ..
        }
    ));
    assert!(matches!(
        fixture.tenants[one].calls[2].1,
        Knob::Close {
            after_slice: true,
            ..
        }
    ));
}

#[test]
fn a_peer_that_claims_more_than_it_was_admitted_to_takes_nothing_from_others() {
    let mut fixture = Fixture::new(16, 1);
    let one = fixture.join("one", fixed(30), 1);
    let mut record = ShareRecord::new("ns/liar", 1, 1, 1);
    record.now = Some(Claim {
        terms: fixed(90),
        groups: 1,
        gang: None,
        place_ppm: None,
    });
    let bytes = record.encode(2).unwrap();
    fixture.cards[0].scribble("ns/liar", bytes.as_slice());
    fixture.run_ms(SETTLED_MS);
    assert!(fixture.status(one, 0).entitlement_ppm < 300_000);
    fixture.admitted.insert("ns/liar".to_owned(), fixed(10));
    fixture.run_ms(SETTLED_MS);
    assert_eq!(fixture.status(one, 0).entitlement_ppm, 300_000);
    // What was granted before is believed until the change has come about, and no longer.
    fixture.admitted.insert("ns/liar".to_owned(), fixed(20));
    fixture.run_ms(4 * SETTLED_MS);
    assert_eq!(fixture.status(one, 0).entitlement_ppm, 300_000);
}

#[test]
fn who_fails_closed_keeps_its_gate_through_slow_calls() {
    let mut fixture = Fixture::new(17, 1);
    let one = fixture.join("one", fixed(20), 1);
    fixture.tenants[one].fail = Fail::Closed;
    fixture.kill(one);
    fixture.start(one);
    fixture.run_ms(SETTLED_MS);
    fixture.faults.takes_ns = Some(60 * MS);
    fixture.run_ms(8_000);
    let status = fixture.status(one, 0);
    assert_eq!(
        (status.enforcement_level, status.holds),
        (Some(EnforcementLevel::Gate), true)
    );
    assert!(status.counts.alarms > 0);
    let from_ns = fixture.now_ns - 3_000 * MS;
    assert!(fixture.permille(one, 0, from_ns, fixture.now_ns) < 900);
}

#[test]
fn calls_that_were_slow_once_keep_no_gate_open_or_closed() {
    for percent in [2, 93] {
        let mut fixture = Fixture::new(18, 1);
        fixture.faults.takes_ns = Some(8 * MS);
        let one = fixture.join("one", fixed(percent), 1);
        fixture.run_ms(60);
        fixture.faults.takes_ns = None;
        fixture.run_ms(SETTLED_MS);
        let from_ns = fixture.now_ns;
        fixture.run_ms(4_000);
        let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
        let entitled = u64::from(percent) * 10;
        assert!(
            permille.abs_diff(entitled) <= entitled / 100 + 2,
            "{permille}"
        );
    }
}
