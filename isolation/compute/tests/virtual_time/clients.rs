//! A container of many processes: a knob makes a call for each of their RM clients, and what the first one has opened runs while the others are made.

use crate::fixture::{Fixture, MS, S, fixed};
use plan::Costs;

const SETTLED_MS: u64 = 2_000;

#[test]
fn a_container_of_many_clients_opens_in_nobodys_segment() {
    for clients in [1, 8, 25] {
        let mut fixture = Fixture::new(21, 1);
        // The card is full: a segment of another ends where its own begins.
        let one = fixture.join("one", fixed(40), 1);
        let attacker = fixture.join("attacker", fixed(20), 1);
        let other = fixture.join("other", fixed(40), 1);
        for client in 2..=clients {
            fixture.add_group_of(attacker, 0, 1, client);
        }
        fixture.run_ms(SETTLED_MS);
        let from_ns = fixture.now_ns;
        fixture.run_ms(10_000);
        for neighbour in [one, other] {
            let overlap_ns = fixture.longest_overlap_ns(attacker, neighbour, 0, from_ns);
            println!("{clients} clients: {overlap_ns} ns beside {neighbour}");
            // A lap, and what so many calls vary by.
            assert!(overlap_ns < 700_000, "{clients} clients: {overlap_ns}");
            let has = fixture.got_ns(neighbour, 0, from_ns, fixture.now_ns) * 1_000 / (10 * S);
            assert!(has >= 396, "{clients} clients leave {has} of 400");
        }
        let has = fixture.permille(attacker, 0, from_ns, fixture.now_ns);
        println!("{clients} clients: {has} of 200");
        assert!((150..=204).contains(&has), "{clients} clients: {has}");
    }
}

#[test]
fn a_gang_opens_on_its_first_card_no_earlier_than_a_small_neighbour_can_bear() {
    let mut fixture = Fixture::new(24, 8);
    let neighbours = [fixed(4), fixed(36)].map(|terms| {
        let key = format!("of-{:?}", terms.percent);
        fixture.join_on(&key, terms, 1, 1)
    });
    let gang = fixture.join("gang", fixed(60), 1);
    for client in 2..=8 {
        fixture.add_group_of(gang, 7, 1, client);
    }
    fixture.run_ms(2 * SETTLED_MS);
    let from_ns = fixture.now_ns;
    fixture.run_ms(10_000);
    for neighbour in neighbours {
        let overlap_ns = fixture.longest_overlap_ns(gang, neighbour, 0, from_ns);
        println!("{overlap_ns} ns beside {neighbour}");
        assert!(overlap_ns < 600_000, "{overlap_ns}");
    }
    let has = fixture.permille(gang, 0, from_ns, fixture.now_ns);
    assert!((580..=606).contains(&has), "{has}");
}

#[test]
fn what_the_first_of_many_calls_has_opened_counts_from_then_on() {
    let mut fixture = Fixture::new(22, 1);
    let attacker = fixture.join("attacker", fixed(20), 1);
    fixture.join("neighbour", fixed(60), 1);
    for client in 2..=25 {
        fixture.add_group_of(attacker, 0, 1, client);
    }
    fixture.run_ms(SETTLED_MS);
    // Calls become slower at once, and lead by what they took before.
    let from_ns = fixture.now_ns;
    while fixture.now_ns < from_ns + 10 * S {
        let takes_ns = match fixture.faults.takes_ns {
            None => Some(600_000),
            Some(_) => None,
        };
        fixture.faults.takes_ns = takes_ns;
        fixture.run_ms(90);
    }
    let has = fixture.permille(attacker, 0, from_ns, fixture.now_ns);
    println!("{has} of 200");
    assert!(has <= 204, "{has}");
}

#[test]
fn a_small_cap_that_was_late_once_opens_in_nobodys_segment_afterwards() {
    for (others, window_ms) in [(6, 1_000), (4, 500)] {
        let mut fixture = Fixture::new(23, 1);
        fixture.rules[0].costs = Costs::of_node(8);
        let small = fixture.join("small", fixed(1), 1);
        for other in 0..others {
            fixture.join(&format!("other-{other}"), fixed(15), 1);
        }
        fixture.run_ms(3 * SETTLED_MS);
        assert_eq!(fixture.status(small, 0).window_ns, window_ms * MS);
        // A neighbour makes a context while its segment ends.
        let runs = |fixture: &Fixture| {
            let spans = fixture.spans(small, 0);
            spans.last().is_some_and(|(_, to)| *to == fixture.now_ns)
        };
        while !runs(&fixture) {
            fixture.run_ms(1);
        }
        fixture.locked_until_ns = fixture.now_ns + 150 * MS;
        fixture.run_ms(3_000);
        let from_ns = fixture.now_ns;
        fixture.run_ms(40_000);
        let has = fixture.open_ns(small, 0, from_ns, fixture.now_ns) * 100_000 / (40 * S);
        println!("windows of {window_ms} ms: {has} of 1 000");
        assert!(has <= 1_050, "windows of {window_ms} ms: {has}");
        assert!(fixture.longest_closed_ns(small, 0, from_ns) < compute::CLOSED_MAX_NS);
    }
}

#[test]
fn who_misses_segments_gains_nothing_by_being_let_in_between_them() {
    for metered in [false, true] {
        let mut fixture = Fixture::new(25, 1);
        fixture.rules[0].costs = Costs::of_node(8);
        let small = fixture.join("small", fixed(1), 1);
        fixture.tenants[small].metered = metered;
        for other in 0..6 {
            fixture.join(&format!("other-{other}"), fixed(15), 1);
        }
        fixture.run_ms(3 * SETTLED_MS);
        let spans = fixture.spans(small, 0);
        let start_ns = spans.last().expect("a segment").0;
        let from_ns = fixture.now_ns;
        let missed = |fixture: &Fixture| fixture.status(small, 0).counts.late;
        let before = missed(&fixture);
        for window in (2..42).step_by(2) {
            // A slice is set when the segment begins, and the call waits for the driver's locks until it is over.
            fixture.run_until(start_ns + window * S - 10 * MS);
            fixture.locked_until_ns = fixture.now_ns + 40 * MS;
            fixture.add_group(small, 0, 0);
            fixture.run_ms(500);
            fixture.remove_groups_from(small, 0, 1);
        }
        fixture.run_ms(2_000);
        let has = fixture.open_ns(small, 0, from_ns, fixture.now_ns) * 100_000
            / (fixture.now_ns - from_ns);
        println!(
            "{has} of 1 000, metered: {metered}, {} missed",
            missed(&fixture) - before
        );
        assert!(missed(&fixture) - before >= 20);
        assert!(has <= 1_050, "metered: {metered}: {has}");
    }
}

#[test]
fn what_an_open_that_is_refused_in_part_has_opened_is_closed_again() {
    let mut fixture = Fixture::new(26, 1);
    let attacker = fixture.join("attacker", fixed(20), 1);
    fixture.join("neighbour", fixed(60), 1);
    for client in 2..=25 {
        fixture.add_group_of(attacker, 0, 1, client);
    }
    fixture.run_ms(SETTLED_MS);
    // One channel refuses to be opened, and all calls take so long that the segment ends before each of the others is opened by itself.
    let last = fixture.tenants[attacker].objects[0].groups.last();
    let odd = last.expect("a group").channels[0].handle;
    let tricks = &mut fixture.tenants[attacker].tricks;
    tricks.odd.insert(odd);
    tricks.refused.insert("open", 0x40);
    fixture.faults.takes_ns = Some(1_000_000);
    fixture.run_ms(SETTLED_MS);
    let from_ns = fixture.now_ns;
    fixture.run_ms(10_000);
    let has = fixture.permille(attacker, 0, from_ns, fixture.now_ns);
    println!("{has} of 200");
    assert!(fixture.status(attacker, 0).counts.refused > 0);
    assert!(has <= 204, "{has}");
}
