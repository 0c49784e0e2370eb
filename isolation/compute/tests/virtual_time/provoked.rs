//! What a container can do to its own gate: none of it makes its share larger, or a neighbour's smaller.

use compute::{Channel, Event, Knob};
use plan::{EnforcementLevel, Policy, Priority};

use crate::fixture::{Fixture, MS, OwnGroup, S, fixed, name, terms};

const SETTLED_MS: u64 = 2_000;
/// Over which a share may be off by two percent.
const LONG_MS: u64 = 10_000;
/// NV_ERR_INVALID_STATE: of many statuses, one that says nothing of the object's end.
const ODD: u32 = 0x40;

/// A container of 20 % that attacks, and a neighbour of 60 %, on a card of its own.
struct Attack {
    fixture: Fixture,
    attacker: usize,
    neighbour: usize,
}

impl Attack {
    fn new(seed: u64) -> Self {
        let mut fixture = Fixture::new(seed, 1);
        let attacker = fixture.join("attacker", fixed(20), 4);
        let neighbour = fixture.join("neighbour", fixed(60), 1);
        for at in [attacker, neighbour] {
            fixture.tenants[at].tricks.own_group = OwnGroup::Requested;
        }
        fixture.run_ms(SETTLED_MS);
        Self {
            fixture,
            attacker,
            neighbour,
        }
    }

    /// Both have what they were promised, over 10 s, and in each second.
    fn holds(&mut self, mut every_100_ms: impl FnMut(&mut Fixture, usize)) {
        let from_ns = self.fixture.now_ns;
        while self.fixture.now_ns < from_ns + LONG_MS * MS {
            every_100_ms(&mut self.fixture, self.attacker);
            self.fixture.run_ms(100);
        }
        let fixture = &self.fixture;
        let part = |at, from_ns, length_ns| {
            let got = fixture.got_ns(at, 0, from_ns, from_ns + length_ns);
            got * 100_000 / length_ns
        };
        let (all, of) = (LONG_MS * MS, [(self.attacker, 20), (self.neighbour, 60)]);
        for (at, percent) in of {
            let (exact, long) = (percent * 1_000, part(at, from_ns, all));
            let (most, least) = (exact * 102 / 100, exact * 98 / 100);
            assert!(long <= most, "{at}: {long} of {exact} in 100 000");
            if at == self.neighbour {
                assert!(long >= least, "{at}: {long} of {exact} in 100 000");
            }
        }
        for second in 0..LONG_MS / 1_000 {
            let start_ns = from_ns + second * S;
            let (own, others) = (
                part(self.attacker, start_ns, S),
                part(self.neighbour, start_ns, S),
            );
            assert!(own <= 21_000, "second {second}: the attacker has {own}");
            assert!(
                others >= 57_000,
                "second {second}: the neighbour has {others}"
            );
        }
        for (at, _) in of {
            let status = fixture.status(at, 0);
            assert_eq!(
                (status.enforcement_level, status.holds),
                (Some(EnforcementLevel::Gate), true)
            );
            assert_eq!(status.counts.alarms, 0);
        }
    }
}

#[test]
fn waiting_for_a_tenants_own_calls_is_no_slow_driver() {
    let mut attack = Attack::new(1);
    let attacker = attack.attacker;
    // Longer than any knob may wait, so that nothing but the breaker's judgement is what this shows.
    attack.fixture.tenants[attacker].tricks.waits_ns = 60 * MS;
    attack.fixture.run_ms(2 * LONG_MS);
    let status = attack.fixture.status(attacker, 0);
    assert_eq!(
        (status.enforcement_level, status.holds),
        (Some(EnforcementLevel::Gate), true)
    );
    assert_eq!((status.counts.slow, status.counts.alarms), (0, 0));
}

#[test]
fn calls_that_wait_as_long_as_knobs_let_them_move_no_share() {
    let mut attack = Attack::new(2);
    attack.holds(|fixture, attacker| {
        // In bursts: an average must not forget.
        let waits_ns = &mut fixture.tenants[attacker].tricks.waits_ns;
        *waits_ns = if *waits_ns == 0 { MS } else { 0 };
    });
}

#[test]
fn channels_that_come_and_go_under_the_knob_move_no_share() {
    let mut attack = Attack::new(3);
    attack.holds(|fixture, attacker| {
        let listed: Vec<_> = fixture.tenants[attacker].objects[0]
            .groups
            .iter()
            .flat_map(|group| group.channels.clone())
            .collect();
        // The broker lists for a while what the driver has no more.
        for channel in listed.iter().skip(4) {
            fixture.end(attacker, 0, *channel);
        }
        if listed.len() > 8 {
            let kept = fixture.tenants[attacker].objects[0].groups.split_off(4);
            fixture.tenants[attacker].objects[0].generation += 1;
            drop(kept);
            fixture.tell(attacker, Event::ObjectsChanged);
        }
        fixture.add_group(attacker, 0, 1);
    });
}

#[test]
fn what_a_tenants_own_channels_refuse_weakens_no_gate() {
    for own_group in [OwnGroup::Requested, OwnGroup::UsedUp] {
        for refused in ["close", "open", "schedule", "set", "get"] {
            for in_later_life in [false, true] {
                let mut fixture = Fixture::new(4, 1);
                let attacker = fixture.join("attacker", fixed(20), 1);
                let neighbour = fixture.join("neighbour", fixed(60), 1);
                fixture.tenants[attacker].tricks.own_group = own_group;
                if in_later_life {
                    fixture.run_ms(SETTLED_MS);
                }
                let tricks = &mut fixture.tenants[attacker].tricks;
                tricks.refused.insert(refused, ODD);
                fixture.run_ms(6_000);
                let status = fixture.status(attacker, 0);
                let enforcement_level = status.enforcement_level.unwrap_or(EnforcementLevel::Gate);
                assert_eq!(
                    enforcement_level,
                    EnforcementLevel::Gate,
                    "{own_group:?} {refused} {in_later_life}"
                );
                assert_eq!(status.counts.alarms, 0);
                // It asks with growing pauses, and not at every refusal.
                assert!(fixture.questions <= 8, "{refused}: {}", fixture.questions);
                // And when it stops it is held again at once; the neighbour was all the time.
                fixture.tenants[attacker].tricks.refused.clear();
                fixture.run_ms(SETTLED_MS);
                let from_ns = fixture.now_ns;
                fixture.run_ms(4_000);
                let permille = fixture.permille(attacker, 0, from_ns, fixture.now_ns);
                if own_group == OwnGroup::Requested {
                    assert!(permille.abs_diff(200) <= 6, "{refused}: {permille}");
                }
                let permille = fixture.permille(neighbour, 0, from_ns, fixture.now_ns);
                assert!(permille.abs_diff(600) <= 6, "{refused}: {permille}");
            }
        }
    }
}

#[test]
fn one_channel_that_refuses_keeps_no_other_from_being_closed() {
    let mut attack = Attack::new(5);
    let attacker = attack.attacker;
    let groups = &attack.fixture.tenants[attacker].objects[0].groups;
    let odd = groups[0].channels[0].handle;
    let others: Vec<_> = groups[1..]
        .iter()
        .flat_map(|group| group.channels.clone())
        .collect();
    let tricks = &mut attack.fixture.tenants[attacker].tricks;
    tricks.refused.insert("close", ODD);
    tricks.odd.insert(odd);
    attack.fixture.run_ms(SETTLED_MS);
    let from_ns = attack.fixture.now_ns;
    attack.fixture.run_ms(4_000);
    for channel in others {
        let permille = permille_of(&attack.fixture, attacker, channel, from_ns);
        assert!(permille <= 240, "{permille}");
    }
}

/// How much of the time since then one channel could run, in parts of a thousand.
fn permille_of(fixture: &Fixture, at: usize, channel: Channel, from_ns: u64) -> u64 {
    let line = &fixture.lines[&(fixture.tenants[at].key.clone(), 0, channel)];
    let spans = line.spans(fixture.now_ns);
    let inside = |(from, to): &(u64, u64)| to.saturating_sub((*from).max(from_ns));
    let open_ns: u64 = spans.iter().map(inside).sum();
    open_ns * 1_000 / (fixture.now_ns - from_ns)
}

#[test]
fn a_driver_that_means_it_is_met_with_a_weaker_knob() {
    let mut fixture = Fixture::new(6, 1);
    let one = fixture.join("one", fixed(20), 1);
    fixture.tenants[one].tricks.own_group = OwnGroup::Requested;
    fixture.run_ms(SETTLED_MS);
    fixture.faults.refused.insert("close", ODD);
    fixture.run_ms(3_000);
    let from_ns = fixture.now_ns;
    fixture.run_ms(4_000);
    let status = fixture.status(one, 0);
    assert_eq!(
        (status.enforcement_level, status.counts.alarms),
        (Some(EnforcementLevel::Schedule), 1)
    );
    let permille = fixture.permille(one, 0, from_ns, fixture.now_ns);
    assert!(permille.abs_diff(200) <= 6, "{permille}");
}

#[test]
fn a_group_that_refuses_its_slice_ends_slices_for_no_other() {
    let weighted = |weight| terms(Policy::Weighted, None, weight, Priority::Normal);
    for own_group in [OwnGroup::Requested, OwnGroup::UsedUp] {
        let mut fixture = Fixture::new(7, 1);
        let attacker = fixture.join("attacker", weighted(1), 2);
        let neighbour = fixture.join("neighbour", weighted(1), 1);
        for at in [attacker, neighbour] {
            fixture.tenants[at].tricks.own_group = own_group;
        }
        fixture.run_ms(SETTLED_MS);
        let slices = |fixture: &Fixture, at: usize| fixture.tenants[at].slices.clone();
        let before = slices(&fixture, neighbour);
        let odd = fixture.add_group(attacker, 0, 1);
        let tricks = &mut fixture.tenants[attacker].tricks;
        tricks.refused.insert("set", ODD);
        tricks.odd.insert(odd);
        fixture.run_ms(SETTLED_MS);
        // The layout has three groups now: the other two have their new slices, and so has the next one.
        let next = fixture.add_group(attacker, 0, 1);
        fixture.run_ms(SETTLED_MS);
        let now = slices(&fixture, attacker);
        let of = |group: u32| now.get(&(0, group)).copied();
        let all: Vec<u64> = now.values().copied().collect();
        assert!(of(next).is_some() && of(odd).is_none(), "{now:?}");
        assert!(all.iter().all(|slice| *slice == all[0]), "{now:?}");
        assert_eq!(slices(&fixture, neighbour), before);
        assert!(fixture.status(attacker, 0).holds && fixture.status(neighbour, 0).holds);
        // The odd one is tried again, now and then, and has its slice when it takes it.
        let tries = |fixture: &Fixture| {
            let sets = fixture.tenants[attacker].calls.iter();
            sets.filter(
                |(_, knob)| matches!(knob, Knob::SetTimeslice { group, .. } if *group == odd),
            )
            .count()
        };
        let (count, from_ns) = (tries(&fixture), fixture.now_ns);
        fixture.run_ms(30_000);
        let again = tries(&fixture) - count;
        assert!((2..=20).contains(&again), "{again} since {from_ns}");
        fixture.tenants[attacker].tricks.refused.clear();
        fixture.run_ms(11_000);
        assert_eq!(slices(&fixture, attacker).get(&(0, odd)), of(next).as_ref());
    }
}

#[test]
fn what_a_call_has_set_running_past_the_gate_is_stopped_again() {
    let mut attack = Attack::new(8);
    let channels: Vec<_> = attack.fixture.tenants[attack.attacker].objects[0]
        .groups
        .iter()
        .flat_map(|group| group.channels.clone())
        .collect();
    attack.holds(|fixture, attacker| {
        let closes = matches!(
            fixture.gate(attacker, 0),
            compute::GateStatus::Closed { .. }
        );
        if closes {
            // A call that had passed before the gate closed comes back after it.
            fixture.enable(attacker, 0, &channels);
            fixture.tenants[attacker].tricks.disturbed = true;
            fixture.tell(attacker, Event::ObjectsChanged);
        }
    });
    let closes = attack.fixture.tenants[attack.attacker].calls.iter();
    assert!(closes.filter(|(_, knob)| name(knob) == "close").count() > 100);
}

#[test]
fn what_runs_past_a_closed_gate_again_and_again_is_given_back() {
    let mut fixture = Fixture::new(12, 1);
    fixture.rules[0].costs.switch_us = 10;
    fixture.faults.takes_ns = Some(600_000);
    let attacker = fixture.join("attacker", fixed(20), 1);
    fixture.join("neighbour", fixed(60), 1);
    fixture.run_ms(SETTLED_MS);
    let channels: Vec<_> = fixture.tenants[attacker].objects[0]
        .groups
        .iter()
        .flat_map(|group| group.channels.clone())
        .collect();
    let from_ns = fixture.now_ns;
    while fixture.now_ns < from_ns + LONG_MS * MS {
        fixture.run_ms(10);
        let status = fixture.gate(attacker, 0);
        if matches!(status, compute::GateStatus::Closed { .. }) {
            // Calls that had passed the gate, and are executed one after another.
            fixture.enable(attacker, 0, &channels);
            fixture.tenants[attacker].tricks.disturbed = true;
            fixture.tell(attacker, Event::ObjectsChanged);
        }
    }
    let has = fixture.permille(attacker, 0, from_ns, fixture.now_ns);
    assert!(has <= 204, "{has}");
}

#[test]
fn a_channel_that_refuses_its_close_once_each_time_is_charged_until_it_closes() {
    let mut fixture = Fixture::new(15, 1);
    let attacker = fixture.join("attacker", fixed(20), 1);
    fixture.join("neighbour", fixed(60), 1);
    fixture.run_ms(SETTLED_MS);
    let channel = fixture.tenants[attacker].objects[0].groups[0].channels[0];
    let key = (fixture.tenants[attacker].key.clone(), 0, channel);
    let (from_ns, end_ns) = (fixture.now_ns, fixture.now_ns + LONG_MS * MS);
    let refused = |fixture: &Fixture| fixture.status(attacker, 0).counts.refused;
    while fixture.now_ns < end_ns {
        let before = refused(&fixture);
        let tricks = &mut fixture.tenants[attacker].tricks;
        tricks.refused.insert("close", ODD);
        while refused(&fixture) == before && fixture.now_ns < end_ns {
            fixture.run_ms(1);
        }
        fixture.tenants[attacker].tricks.refused.clear();
        while fixture.lines[&key].runs() && fixture.now_ns < end_ns {
            fixture.run_ms(1);
        }
    }
    let has = permille_of(&fixture, attacker, channel, from_ns);
    assert!(has <= 210, "{has}");
    assert!(refused(&fixture) > 20);
    let level = fixture.status(attacker, 0).enforcement_level;
    assert_eq!(level, Some(EnforcementLevel::Gate));
}

/// What the one channel of a container of 20 % has, in parts of a thousand, that makes another group each second while its gate is closed.
fn beside_its_own_new_groups(made: impl Fn(&mut Fixture, usize, Channel)) -> u64 {
    let mut fixture = Fixture::new(14, 1);
    let one = fixture.join("one", fixed(20), 1);
    fixture.join("neighbour", fixed(60), 1);
    fixture.run_ms(SETTLED_MS);
    let channel = fixture.tenants[one].objects[0].groups[0].channels[0];
    let is_closed =
        |fixture: &Fixture| matches!(fixture.gate(one, 0), compute::GateStatus::Closed { .. });
    let from_ns = fixture.now_ns;
    while fixture.now_ns < from_ns + LONG_MS * MS {
        let second_ns = fixture.now_ns;
        // It has just closed.
        for closed in [false, true] {
            while is_closed(&fixture) != closed {
                fixture.run_ms(1);
            }
        }
        let handle = fixture.add_group(one, 0, 1) + 1;
        made(&mut fixture, one, Channel { client: 1, handle });
        fixture.run_ms(30);
        fixture.remove_groups_from(one, 0, 1);
        fixture.run_until(second_ns + S);
    }
    permille_of(&fixture, one, channel, from_ns)
}

#[test]
fn what_ran_past_a_closed_gate_ends_with_what_ran() {
    let has = beside_its_own_new_groups(|fixture, at, channel| {
        // A call that had passed the gate set it running, and its program ends before the close is executed.
        fixture.tenants[at].tricks.disturbed = true;
        fixture.end(at, 0, channel);
    });
    assert!(has >= 190, "{has}");
}

#[test]
fn a_group_that_does_not_run_yet_is_charged_nothing_while_the_gate_is_closed() {
    let has = beside_its_own_new_groups(|fixture, _, _| {
        // Contexts take the driver's locks, and its close waits for them.
        fixture.locked_until_ns = fixture.now_ns + 25 * MS;
    });
    assert!(has >= 196, "{has}");
}

#[test]
fn a_group_that_is_made_while_the_gate_is_open_is_charged_for_a_late_close() {
    let mut fixture = Fixture::new(16, 1);
    let attacker = fixture.join("attacker", fixed(20), 1);
    fixture.join("neighbour", fixed(60), 1);
    fixture.run_ms(SETTLED_MS);
    let is_closed = |fixture: &Fixture| {
        matches!(
            fixture.gate(attacker, 0),
            compute::GateStatus::Closed { .. }
        )
    };
    let from_ns = fixture.now_ns;
    while fixture.now_ns < from_ns + LONG_MS * MS {
        let start_ns = fixture.now_ns;
        // Nothing of it is there when its gate opens, so that no call opens anything.
        for closed in [false, true] {
            while is_closed(&fixture) != closed {
                fixture.run_ms(1);
            }
        }
        fixture.remove_groups(attacker, 0);
        while is_closed(&fixture) {
            fixture.run_ms(1);
        }
        fixture.add_group(attacker, 0, 1);
        fixture.locked_until_ns = fixture.now_ns + 150 * MS;
        fixture.run_until(start_ns + 2 * S);
    }
    let has = fixture.permille(attacker, 0, from_ns, fixture.now_ns);
    assert!(has <= 204, "{has}");
    assert_eq!(fixture.status(attacker, 0).counts.alarms, 0);
}

#[test]
fn a_container_of_any_terms_gives_back_what_its_late_gate_gave_it() {
    let shared = |policy| terms(policy, None, 1, Priority::Normal);
    let soft = terms(Policy::Soft, Some(30), 1, Priority::Normal);
    let (exact, low) = (fixed(20), shared(Policy::Weighted));
    let high = terms(Policy::Preemptive, None, 1, Priority::High);
    for (own, others) in [
        (shared(Policy::Preemptive), vec![exact]),
        (shared(Policy::Weighted), vec![exact]),
        (soft, vec![exact]),
        (plan::Terms::NATIVE, vec![exact]),
        (low, vec![low, high]),
    ] {
        let part = |waits_ns: u64| {
            let mut fixture = Fixture::new(13, 1);
            let attacker = fixture.join("attacker", own, 1);
            for (at, terms) in others.iter().enumerate() {
                fixture.join(&format!("other{at}"), *terms, 1);
            }
            for tenant in &mut fixture.tenants {
                tenant.busy = Some(true);
            }
            fixture.run_ms(SETTLED_MS);
            let from_ns = fixture.now_ns;
            while fixture.now_ns < from_ns + LONG_MS * MS {
                // Its gate waits for calls of its own before it closes, and not before it opens.
                let closed = matches!(
                    fixture.gate(attacker, 0),
                    compute::GateStatus::Closed { .. }
                );
                fixture.tenants[attacker].tricks.waits_ns = if closed { 0 } else { waits_ns };
                fixture.run_ms(1);
            }
            fixture.permille(attacker, 0, from_ns, fixture.now_ns)
        };
        let (honest, late) = (part(0), part(MS));
        assert!(late <= honest + 8, "{own:?}: {late} instead of {honest}");
    }
}

#[test]
fn locks_that_are_held_for_long_are_made_even_within_ten_seconds() {
    for seed in 0..6 {
        let mut fixture = Fixture::new(seed, 1);
        let attacker = fixture.join("attacker", fixed(20), 1);
        let neighbour = fixture.join("neighbour", fixed(60), 1);
        fixture.run_ms(SETTLED_MS);
        // As often as a broker lets its container's calls hold the driver's locks for 150 ms.
        for _ in 0..3 {
            let from_ns = fixture.now_ns;
            let pause_ms = fixture.random.below(500);
            fixture.run_ms(pause_ms);
            fixture.locked_until_ns = fixture.now_ns + 150 * MS;
            fixture.run_until(from_ns + LONG_MS * MS);
            for (at, percent) in [(attacker, 20), (neighbour, 60)] {
                let got = fixture.open_ns(at, 0, from_ns, fixture.now_ns) * 1_000 / (LONG_MS * MS);
                assert!(
                    got <= percent * 10 + percent / 5 + 1,
                    "{seed}: {at} has {got}"
                );
                assert!(
                    got >= percent * 10 - percent / 5 - 2,
                    "{seed}: {at} has {got}"
                );
            }
            assert_eq!(fixture.status(attacker, 0).counts.alarms, 0);
        }
    }
}

/// What a container of 20 % has, in parts of a thousand, that holds the locks for 450 ms every 4 s while its gate is open.
fn beside_an_accomplice(seed: u64, each_100_ms: impl Fn(&mut Fixture, usize)) -> u64 {
    let mut fixture = Fixture::new(seed, 1);
    let attacker = fixture.join("attacker", fixed(20), 1);
    let accomplice = fixture.join("accomplice", fixed(1), 1);
    fixture.join("neighbour", fixed(60), 1);
    fixture.run_ms(SETTLED_MS);
    let from_ns = fixture.now_ns;
    for _ in 0..8 {
        let start_ns = fixture.now_ns;
        while matches!(
            fixture.gate(attacker, 0),
            compute::GateStatus::Closed { .. }
        ) {
            fixture.run_ms(1);
        }
        fixture.locked_until_ns = fixture.now_ns + 450 * MS;
        while fixture.now_ns < start_ns + 4 * S {
            each_100_ms(&mut fixture, accomplice);
            fixture.run_ms(100);
        }
    }
    fixture.permille(attacker, 0, from_ns, fixture.now_ns)
}

#[test]
fn a_neighbour_that_comes_and_goes_cancels_nothing_that_is_to_be_given_back() {
    for seed in 0..3 {
        let quiet = beside_an_accomplice(seed, |_, _| ());
        let noisy = beside_an_accomplice(seed, |fixture, accomplice| {
            if fixture.tenants[accomplice].objects[0].groups.is_empty() {
                fixture.add_group(accomplice, 0, 1);
            } else {
                fixture.remove_groups(accomplice, 0);
            }
        });
        assert!(noisy <= quiet + 4, "{seed}: {noisy} instead of {quiet}");
        assert!(noisy <= 220, "{seed}: {noisy}");
    }
}

/// What a container has of a card whose hardware gives each group that can run its slice in turn, sampled each millisecond, in parts of 100 000.
fn sliced(
    fixture: &mut Fixture,
    at: usize,
    ms: u64,
    mut each_ms: impl FnMut(&mut Fixture, u64),
) -> u64 {
    /// What a group has until its slice is set.
    const DEFAULT_US: u64 = 1_024;
    let mut sum = 0;
    for passed in 0..ms {
        each_ms(fixture, passed);
        fixture.run_ms(1);
        let weight = |fixture: &Fixture, tenant: usize| -> u64 {
            let tenant = &fixture.tenants[tenant];
            let runs = |group: &&compute::Group| {
                let mut channels = group.channels.iter();
                channels.any(|channel| fixture.lines[&(tenant.key.clone(), 0, *channel)].runs())
            };
            let slice = |group: &compute::Group| {
                let set = tenant.slices.get(&(0, group.handle));
                set.copied().unwrap_or(DEFAULT_US)
            };
            let groups = tenant.objects[0].groups.iter().filter(runs);
            groups.map(slice).sum()
        };
        let all: u64 = (0..fixture.tenants.len())
            .map(|tenant| weight(fixture, tenant))
            .sum();
        sum += weight(fixture, at) * 100_000 / all.max(1);
    }
    sum / ms
}

#[test]
fn groups_that_come_and_go_at_changes_of_epoch_take_no_slices_from_a_neighbour() {
    let weighted = |weight| terms(Policy::Weighted, None, weight, Priority::Normal);
    for kept in [0, 1, 4] {
        let mut fixture = Fixture::new(9, 1);
        let attacker = fixture.join("attacker", weighted(1), kept);
        let neighbour = fixture.join("neighbour", weighted(1), 1);
        for turn in 0..6 {
            // In between it has nothing to do, and nothing to lose.
            fixture.remove_groups(attacker, 0);
            for _ in 0..kept {
                fixture.add_group(attacker, 0, 1);
            }
            fixture.run_ms(SETTLED_MS);
            let had = sliced(&mut fixture, neighbour, 1_000, |fixture, ms| {
                // At any time of a window.
                if ms == 500 + 11 * turn {
                    for _ in kept..64 {
                        fixture.add_group(attacker, 0, 1);
                    }
                }
            });
            assert!(had >= 48_000, "{kept} groups kept: {had} of 50 000");
        }
    }
}

#[test]
fn many_groups_of_a_native_container_leave_a_soft_floor_its_part() {
    let mut fixture = Fixture::new(5, 1);
    fixture.join("native", plan::Terms::NATIVE, 128);
    let floor = terms(Policy::Soft, Some(30), 1, Priority::Normal);
    let soft = fixture.join("soft", floor, 1);
    fixture.run_ms(SETTLED_MS);
    let has = sliced(&mut fixture, soft, 2_000, |_, _| ());
    assert!(has >= 29_000, "{has} in 100 000");
    assert!(
        fixture.tenants[soft]
            .calls
            .iter()
            .all(|(_, knob)| name(knob) != "interleave")
    );
    assert_eq!(fixture.gate_calls(0, fixture.now_ns - S), 0, "slices alone");
}

#[test]
fn a_driver_that_has_refused_the_gate_gets_the_question_again_and_is_believed() {
    let mut attack = Attack::new(11);
    let fixture = &mut attack.fixture;
    let level = |fixture: &Fixture| fixture.status(attack.attacker, 0).enforcement_level;
    fixture.faults.refused.insert("close", 0x56);
    fixture.run_ms(5_000);
    assert_eq!(level(fixture), Some(EnforcementLevel::Schedule));
    let before = fixture.questions;
    fixture.run_ms(200_000);
    assert_eq!(fixture.questions, before, "at a slow pace");
    fixture.faults.refused.clear();
    fixture.run_ms(120_000);
    assert_eq!(level(fixture), Some(EnforcementLevel::Gate));
    let from_ns = fixture.now_ns;
    fixture.run_ms(10_000);
    let has = fixture.permille(attack.attacker, 0, from_ns, fixture.now_ns);
    assert!((196..=204).contains(&has), "{has}");
}
