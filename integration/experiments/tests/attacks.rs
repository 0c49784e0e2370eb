//! Containers that attack shares with what is left to them: when they work, when they come and go, and for how long they hold the driver's
//! locks. The plan and the governor are the real ones; nobody's share moves by more than two percent over 10 s, or five in any second.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use experiments::scene::{Load, MS, Record, S, Scene, Steering, Tenant};
use experiments::stage::Stage;
use experiments::terms::{BUSY, fixed, weighted};
use runlist::world::Control;

const SETTLED_NS: u64 = 4 * S;
const UNTIL_NS: u64 = SETTLED_NS + 14 * S;
const LONG_NS: u64 = 10 * S;
/// Relative, percent.
const LONG: f64 = 2.0;
const ANY_SECOND: f64 = 5.0;

fn play(scene: &Scene) -> Record {
    Stage::default().play(scene, Steering::Governed).unwrap()
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

fn bursts(on_ms: u64, off_ms: u64) -> Load {
    Load::Bursts {
        depth: 64,
        kernel_ns: 5 * MS,
        on_ns: on_ms * MS,
        off_ns: off_ms * MS,
    }
}

#[test]
fn idling_and_bursting_moves_no_cap() {
    for (seed, (on_ms, off_ms)) in [(300, 700), (31, 32), (125, 125), (900, 2_000)]
        .into_iter()
        .enumerate()
    {
        let scene = Scene::new(400 + seed as u64, UNTIL_NS)
            .with(Tenant::new(fixed(20), bursts(on_ms, off_ms)))
            .with(Tenant::new(fixed(60), BUSY));
        let what = format!("{on_ms} of {} ms", on_ms + off_ms);
        let record = play(&scene);
        is_bounded(&what, &record, 0, 20.0);
        holds(&what, &record, 1, 60.0);
    }
}

#[test]
fn idling_and_bursting_takes_nothing_from_those_who_share_by_weight() {
    for (seed, (on_ms, off_ms)) in [(300, 700), (31, 32), (5, 5)].into_iter().enumerate() {
        let scene = Scene::new(420 + seed as u64, UNTIL_NS)
            .with(Tenant::new(weighted(1), bursts(on_ms, off_ms)))
            .with(Tenant::new(weighted(3), BUSY));
        let record = play(&scene);
        // Three quarters, and whatever the other leaves.
        for window_ns in [LONG_NS, S] {
            let shares = record.used[1][0].shares(window_ns, SETTLED_NS, UNTIL_NS);
            let least = shares.into_iter().fold(f64::INFINITY, f64::min);
            assert!(least >= 75.0 * 0.97, "{on_ms}/{off_ms}: {least}");
        }
    }
}

#[test]
fn containers_that_come_and_go_move_no_cap_over_ten_seconds() {
    // A crowd of one user's containers, each of which lives for a few windows. Windows of another length may come with each: a second
    // that begins in one and ends in another holds no whole number of them.
    let mut scene = Scene::new(440, UNTIL_NS).with(Tenant::new(fixed(60), BUSY));
    scene = scene.with(Tenant::new(fixed(20), BUSY));
    let mut joins_ns = SETTLED_NS;
    while joins_ns + S < UNTIL_NS {
        let mut tenant = Tenant::new(fixed(5), BUSY);
        tenant.joins_ns = joins_ns;
        tenant.leaves_ns = Some(joins_ns + 650 * MS);
        scene = scene.with(tenant);
        joins_ns += 230 * MS;
    }
    let record = play(&scene);
    for (tenant, percent) in [(0, 60.0), (1, 20.0)] {
        let curve = &record.used[tenant][0];
        let error = curve.error(percent, LONG_NS, SETTLED_NS, UNTIL_NS);
        let worst = error.map_or(f64::INFINITY, |error| error.worst_percent);
        assert!(worst <= LONG, "tenant {tenant} is off by {worst} %");
    }
}

#[test]
fn a_gang_moves_no_cap_on_any_of_its_cards() {
    let gang = Load::Gang {
        step_ns: 3 * MS,
        all_reduce_ns: 500_000,
        rest_ns: 7 * MS,
    };
    let mut scene = Scene::new(450, UNTIL_NS);
    scene.cards = 2;
    let mut attacker = Tenant::new(fixed(20), gang);
    attacker.cards = vec![0, 1];
    let mut second = Tenant::new(fixed(60), BUSY);
    second.cards = vec![1];
    let scene = scene
        .with(attacker)
        .with(Tenant::new(fixed(60), BUSY))
        .with(second);
    let record = play(&scene);
    is_bounded("a gang", &record, 0, 20.0);
    holds("beside a gang", &record, 1, 60.0);
    holds("beside a gang", &record, 2, 60.0);
}

#[test]
fn contexts_in_a_loop_at_a_brokers_pace_move_no_share_over_ten_seconds() {
    // 150 ms of the driver's locks every 10 s: 1.5 % (`broker::share::pace`).
    for seed in 0..4 {
        let mut scene = Scene::new(460 + seed, UNTIL_NS)
            .with(Tenant::new(fixed(20), BUSY))
            .with(Tenant::new(fixed(60), BUSY));
        scene.storm = Some((Control::CONTEXT, 10 * S));
        let record = play(&scene);
        for (tenant, percent) in [(0, 20.0), (1, 60.0)] {
            let curve = &record.used[tenant][0];
            let error = curve.error(percent, LONG_NS, SETTLED_NS, UNTIL_NS).unwrap();
            println!("contexts: tenant {tenant}: {:.2} %", error.worst_percent);
            assert!(error.worst_percent <= LONG, "tenant {tenant}: {error:?}");
        }
    }
}
