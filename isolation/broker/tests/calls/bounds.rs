//! What a tenant makes grow, and how far.

use serde_json::Value;

use crate::Test;
use crate::fake::GRANULE;
use crate::kept::Kept;
use crate::rm;
use crate::stage::until;

pub(crate) const TESTS: &[Test] = &[
    (
        "bounds::many_ended_processes_are_one_figure_of_the_status",
        ended_processes,
    ),
    (
        "bounds::refusals_by_the_thousand_leave_a_short_log",
        flood_of_refusals,
    ),
];

fn bytes_of(cards: &Value) -> u64 {
    let cards = cards.as_array().unwrap();
    cards
        .iter()
        .map(|card| card["used_bytes"].as_u64().unwrap())
        .sum()
}

fn ended_processes() {
    const PROCESSES: u32 = 100;
    let kept = Kept::new(1 << 40);
    let (tenant, process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let allocated = tenant.memory(fd, client, device, 1, GRANULE);
    assert_eq!(allocated.status(), rm::OK);
    let before = kept.status().to_string().len();
    for handle in 0..PROCESSES {
        // Its memory stays: the file is its parent's as well.
        let (child, _pid) = tenant.process(&[fd]);
        let allocated = child.memory(fd, client, device, 10 + handle, GRANULE);
        assert_eq!(allocated.status(), rm::OK);
    }
    let mut status = Value::Null;
    until("all of them are known to have ended", || {
        status = kept.status();
        status["processes"]
            .as_array()
            .is_some_and(|listed| listed.len() == 1)
    });
    assert_eq!(status["processes"][0]["pid"], process.0.id());
    let ended = &status["folded"]["ended"];
    assert_eq!(ended[0]["processes"], PROCESSES);
    assert_eq!(bytes_of(ended), u64::from(PROCESSES) * GRANULE);
    let listed = bytes_of(&status["processes"][0]["cards"]);
    assert_eq!(listed + bytes_of(ended), bytes_of(&status["cards"]));
    let after = status.to_string().len();
    assert!(after < before + 512, "{before} bytes, and then {after}");
}

fn flood_of_refusals() {
    let kept = Kept::new(1 << 30);
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let before = kept.log().len();
    // Each spells its reason in its own way, as far as it can: calls, classes and sizes that there are none of.
    for number in 0..4000_u32 {
        let called = match number % 3 {
            0 => tenant.call(fd, rm::ALLOC, &rm::alloc(number, 1, 2, number, 0), &[]),
            1 => tenant.call(fd, rm::ALLOC ^ ((number % 200) << 16), &[0; 64], &[]),
            _ => tenant.call(
                fd,
                rm::ALLOC,
                &rm::control(number, number, number, 0, number),
                &[],
            ),
        };
        drop(called);
    }
    let status = kept.status();
    assert!(
        status["calls"]["refused"].as_u64().unwrap() > 1000,
        "{status}"
    );
    let log = kept.log();
    let lines = log[before..].lines().count();
    // 64 reasons that are told apart, one for all others, and each again after ten seconds.
    assert!(lines <= 3 * 65, "{lines} lines: {log}");
    assert!(log.len() < 64 << 10, "{} bytes", log.len());
    assert!(status["health"]["suppressed_logs"].as_u64().unwrap() > 0);
}
