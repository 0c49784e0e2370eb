//! Containers that attack shares with what is left to them. The plan and the governor are the real ones; nobody's share moves by more
//! than two percent over 10 s, or five in any second, but where an attack's rows promise less.

use experiments::ATTACKS;
use experiments::report::{Effort, cells};

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

#[test]
fn contexts_in_a_loop_at_a_brokers_pace_move_no_share_in_the_end() {
    holds("contexts in a loop, at a broker's pace");
}

#[test]
fn a_process_for_each_channel_group_moves_no_share() {
    holds("a process for each channel group");
}

#[test]
fn churned_channels_move_no_share() {
    holds("channels churned");
}

#[test]
fn channels_that_end_under_the_knob_move_no_share() {
    holds("channels that end under the knob");
}

#[test]
fn channels_that_refuse_the_knob_move_no_share() {
    holds("channels that refuse the knob");
}

#[test]
fn allocations_without_pause_move_no_share() {
    holds("allocations without pause");
}
