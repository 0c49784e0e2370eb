//! Shares of a card's time through a real engine: caps, then weights, then one online tenant before two offline ones, in the same
//! three containers. What each has got is the simulated card's own account, never what a tenant or a broker says.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use integration::command::{LIMIT, capture, wait_until};
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;
use serde_json::Value;

/// Cards whose kernels take time.
const CARDS: &str = include_str!("../../configs/sim/shares.toml");
const CONTAINERS: [&str; 3] = ["a", "b", "c"];
/// Until every load runs and every broker has taken up the others' slots.
const SETTLE: Duration = Duration::from_secs(2);
/// What shares are taken over.
const MEASURED: Duration = Duration::from_secs(6);
/// How long a load runs, seconds: both, and what starting it may take on a busy machine.
const LOAD_SECONDS: u64 = 14;
/// The promise for caps, relative: 2 %. The rest is what a timer of this machine is late by: up to 0.3 ms a window (the 99th
/// percentile of the card's and the brokers' timers together, measured by `cargo xtask bench compute` and in docs/scheduling.md) of
/// the smallest segment, 10 ms.
const CAP_ERROR: f64 = 0.02 + 0.03;
/// The promise for weights, 3 %, and the same noise.
const WEIGHT_ERROR: f64 = 0.03 + 0.03;
/// Closed loop: as much as the card gives.
const GREEDY: [&str; 6] = ["--block-us", "100", "--kernel-us", "2000", "--depth", "64"];
/// Requests at random, a fifth of a card.
const ONLINE: [&str; 8] = [
    "--block-us",
    "100",
    "--kernel-us",
    "100",
    "--batch",
    "40",
    "--poisson",
    "50",
];

#[test]
fn three_containers_share_a_card_as_they_were_promised() -> Result<()> {
    let rig = match rig::start_with(Suite::Host, CARDS)? {
        Ok(rig) => rig,
        Err(reason) => skip!(
            "three_containers_share_a_card_as_they_were_promised",
            "{reason}"
        ),
    };
    for (id, percent) in CONTAINERS.iter().zip(["10%", "30%", "60%"]) {
        let compute = format!("cgpu.io/compute={percent}");
        rig.hold(
            id,
            &["cgpu.io/memory=2Gi", "cgpu.io/policy=fixed", &compute],
        )?
        .success()?;
    }
    let caps = shares(&rig, [&GREEDY; 3])?;
    println!("caps 10/30/60: {caps:?}");
    for (id, promised) in CONTAINERS.iter().zip([0.1, 0.3, 0.6]) {
        close(&caps, id, promised, CAP_ERROR)?;
    }

    for (id, weight) in CONTAINERS.iter().zip(["1", "2", "5"]) {
        set(&rig, id, &["--policy", "weighted", "--weight", weight])?;
    }
    let weights = shares(&rig, [&GREEDY; 3])?;
    println!("weights 1:2:5: {weights:?}");
    let sum: f64 = CONTAINERS.iter().filter_map(|id| weights.get(*id)).sum();
    for (id, weight) in CONTAINERS.iter().zip([1.0, 2.0, 5.0]) {
        close(&weights, id, sum * weight / 8.0, WEIGHT_ERROR)?;
    }

    set(&rig, "a", &["--priority", "high"])?;
    for id in ["b", "c"] {
        set(&rig, id, &["--priority", "low", "--weight", "1"])?;
    }
    let hybrid = shares(&rig, [&ONLINE, &GREEDY, &GREEDY])?;
    println!("one online, two offline: {hybrid:?}");
    let of = |id: &str| hybrid.get(id).copied().unwrap_or_default();
    // It gets what it asks for, and the others at least nine tenths of what it leaves, in equal parts.
    ensure!((0.15..0.25).contains(&of("a")), "{hybrid:?}");
    ensure!(
        of("b") + of("c") >= 0.9 * (1.0 - of("a")),
        "the offline tenants have too little: {hybrid:?}"
    );
    close(&hybrid, "b", (of("b") + of("c")) / 2.0, WEIGHT_ERROR)?;

    for id in CONTAINERS {
        rig.containerd.remove(id)?;
    }
    ensure!(rig.node.grants().is_empty(), "{:?}", rig.node.grants());
    rig.finish()
}

fn close(shares: &BTreeMap<String, f64>, id: &str, promised: f64, relative: f64) -> Result<()> {
    let had = shares.get(id).copied().unwrap_or_default();
    ensure!(
        (had - promised).abs() <= promised * relative,
        "{id} had {had:.4} of the card instead of {promised:.4}: {shares:?}"
    );
    Ok(())
}

fn set(rig: &Rig, id: &str, terms: &[&str]) -> Result<()> {
    let mut arguments = vec!["set", id];
    arguments.extend(terms);
    rig.node.cgpu(&arguments)?.success()?;
    Ok(())
}

/// Runs a load in each container and says what part of the card each has had.
fn shares(rig: &Rig, loads: [&[&str]; 3]) -> Result<BTreeMap<String, f64>> {
    std::thread::scope(|scope| {
        let running: Vec<_> = CONTAINERS
            .iter()
            .zip(loads)
            .map(|(id, load)| scope.spawn(move || run(rig, id, load)))
            .collect();
        let before = engine_ns(rig)?;
        wait_until("every load to have had the card", LIMIT, || {
            let now = engine_ns(rig)?;
            Ok(CONTAINERS
                .iter()
                .all(|id| now.of(id) > before.of(id) + 1_000_000))
        })?;
        // Shares are over time: there is no event to wait for.
        std::thread::sleep(SETTLE);
        let from = engine_ns(rig)?;
        std::thread::sleep(MEASURED);
        let until = engine_ns(rig)?;
        for (id, load) in CONTAINERS.iter().zip(running) {
            match load.join() {
                Ok(done) => done.with_context(|| format!("container {id}"))?,
                Err(_) => bail!("a thread of the test panicked"),
            };
        }
        let whole = (until.at_ns - from.at_ns) as f64;
        Ok(CONTAINERS
            .iter()
            .map(|id| {
                (
                    (*id).to_owned(),
                    (until.of(id) - from.of(id)) as f64 / whole,
                )
            })
            .collect())
    })
}

fn run(rig: &Rig, id: &str, load: &[&str]) -> Result<Value> {
    let seconds = LOAD_SECONDS.to_string();
    let mut arguments = vec![
        "tasks",
        "exec",
        "--exec-id",
        "load",
        id,
        "cgpu-burn",
        "load",
        "--json",
        "--seconds",
        &seconds,
    ];
    arguments.extend(load);
    let mut command = rig.containerd.ctr_command(&arguments)?;
    capture(&mut command, Duration::from_secs(LOAD_SECONDS * 4))?
        .success()?
        .json()
}

/// The busy card's own account.
struct EngineTime {
    at_ns: u64,
    sessions: BTreeMap<String, u64>,
}

impl EngineTime {
    fn of(&self, id: &str) -> u64 {
        self.sessions
            .iter()
            .find(|(session, _ns)| session.rsplit('/').next() == Some(id))
            .map_or(0, |(_session, ns)| *ns)
    }
}

fn engine_ns(rig: &Rig) -> Result<EngineTime> {
    let account = rig.node.sim_account()?;
    let mut at_ns = 0;
    let mut sessions = BTreeMap::new();
    for card in account.as_array().context("no cards")? {
        at_ns = card["at_ns"].as_u64().context("no at_ns")?;
        let times: Vec<(String, u64)> = serde_json::from_value(card["engine_ns"].clone())?;
        for (session, ns) in times {
            *sessions.entry(session).or_default() += ns;
        }
    }
    Ok(EngineTime { at_ns, sessions })
}
