//! Shares of a card's time through a real engine: caps, then weights, then one online tenant before two offline ones, in the same
//! three containers. What each has got is the simulated card's own account, never what a tenant or a broker says.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use integration::command::{LIMIT, capture, wait_until};
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;
use serde_json::Value;

/// Cards whose kernels take time.
const CARDS: &str = include_str!("../../configs/sim/shares.toml");
const CONTAINERS: [&str; 3] = ["a", "b", "c"];
/// Until every load runs and every broker has taken up the others' share records.
const SETTLE: Duration = Duration::from_secs(2);
/// What shares are taken over.
const MEASURED: Duration = Duration::from_secs(6);
/// How long a load runs, seconds: both, and what starting all of them may take on a busy machine.
const LOAD_SECONDS: u64 = 11;
/// The same where a broker is killed up to [`KILLING`], and once more.
const KILLED_LOAD_SECONDS: u64 = 14;
/// The promises, relative. Each is loosened by what this machine's timers and hand-overs are late by while it is measured ([`lateness`]).
const CAP_ERROR: f64 = 0.02;
const WEIGHT_ERROR: f64 = 0.03;
/// The offline tenants' least part of what the online one leaves.
const HARVEST: f64 = 0.9;
/// A machine that is busier than that is not let off: the promises are the brokers' to keep, which go before everybody.
const NOISE_MAX: f64 = 0.1;
/// The is cyclic's shortest window (`plan`): each turn of it has two edges that may be late.
const WINDOW: Duration = Duration::from_micros(62_500);
/// One at a time: each needs the machine's processors.
static ALONE: Mutex<()> = Mutex::new(());
/// Closed loop: as much as the card gives.
const GREEDY: [&str; 6] = ["--block-us", "100", "--kernel-us", "5000", "--depth", "64"];
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
fn three_containers_share_a_card_as_entitled() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = match rig::start_with(Suite::Host, CARDS)? {
        Ok(rig) => rig,
        Err(reason) => skip!("three_containers_share_a_card_as_entitled", "{reason}"),
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
    for (id, entitled) in CONTAINERS.iter().zip([0.1, 0.3, 0.6]) {
        caps.is(id, entitled, CAP_ERROR)?;
    }

    for (id, weight) in CONTAINERS.iter().zip(["1", "2", "5"]) {
        set(&rig, id, &["--policy", "weighted", "--weight", weight])?;
    }
    let weights = shares(&rig, [&GREEDY; 3])?;
    println!("weights 1:2:5: {weights:?}");
    for (id, weight) in CONTAINERS.iter().zip([1.0, 2.0, 5.0]) {
        weights.is(id, weights.sum() * weight / 8.0, WEIGHT_ERROR)?;
    }

    set(&rig, "a", &["--priority", "high"])?;
    for id in ["b", "c"] {
        set(&rig, id, &["--priority", "low", "--weight", "1"])?;
    }
    let hybrid = shares(&rig, [&ONLINE, &GREEDY, &GREEDY])?;
    println!("one online, two offline: {hybrid:?}");
    // It gets what it asks for, and the others at least nine tenths of what it leaves, in equal parts.
    ensure!((0.15..0.25).contains(&hybrid.of("a")), "{hybrid:?}");
    let offline = hybrid.of("b") + hybrid.of("c");
    ensure!(
        offline + 2.0 * hybrid.noise >= HARVEST * (1.0 - hybrid.of("a")),
        "the offline tenants have too little: {hybrid:?}"
    );
    hybrid.is("b", offline / 2.0, WEIGHT_ERROR)?;

    for id in CONTAINERS {
        rig.containerd.remove(id)?;
    }
    ensure!(rig.node.grants().is_empty(), "{:?}", rig.node.grants());
    rig.finish()
}

/// Everything that a program can ask of the scheduler for itself: kernels that cannot be stopped, a slice of a second, six groups.
const GRABBING: [&str; 11] = [
    "--block-us",
    "100",
    "--kernel-us",
    "20000",
    "--depth",
    "16",
    "--wfi",
    "--slice-us",
    "1000000",
    "--groups",
    "6",
];

#[test]
fn a_tenant_cannot_take_more_than_its_share() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = match rig::start_with(Suite::Host, CARDS)? {
        Ok(rig) => rig,
        Err(reason) => skip!("a_tenant_cannot_take_more_than_its_share", "{reason}"),
    };
    for (id, percent) in CONTAINERS.iter().zip(["20%", "30%", "50%"]) {
        let compute = format!("cgpu.io/compute={percent}");
        rig.hold(id, &["cgpu.io/memory=2Gi", &compute])?.success()?;
    }
    let fixed = shares(&rig, [&GRABBING, &GREEDY, &GREEDY])?;
    println!("20 % that wants all, 30 %, 50 %: {fixed:?}");
    ensure!(
        fixed.of("a") <= 0.2 * (1.0 + CAP_ERROR) + fixed.noise,
        "{fixed:?}"
    );
    fixed.is("b", 0.3, CAP_ERROR)?;
    fixed.is("c", 0.5, CAP_ERROR)?;

    // By weight its groups share what one group has.
    for id in CONTAINERS {
        set(&rig, id, &["--policy", "weighted", "--weight", "1"])?;
    }
    let equal = shares(&rig, [&GRABBING, &GREEDY, &GREEDY])?;
    println!("a third that wants all, and two others: {equal:?}");
    let third = equal.sum() / 3.0;
    ensure!(
        equal.of("a") <= third * (1.0 + WEIGHT_ERROR) + equal.noise,
        "{equal:?}"
    );

    for id in CONTAINERS {
        rig.containerd.remove(id)?;
    }
    rig.finish()
}

/// Clients whose channels end while the gate acts on them, as fast as they can be made.
const CHURNING: [&str; 8] = [
    "--block-us",
    "100",
    "--kernel-us",
    "5000",
    "--depth",
    "64",
    "--churn",
    "4",
];

#[test]
fn a_tenant_that_churns_channels_loosens_no_gate() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = match rig::start_with(Suite::Host, CARDS)? {
        Ok(rig) => rig,
        Err(reason) => skip!("a_tenant_that_churns_channels_loosens_no_gate", "{reason}"),
    };
    for (id, percent) in CONTAINERS.iter().zip(["20%", "60%", "10%"]) {
        let compute = format!("cgpu.io/compute={percent}");
        rig.hold(id, &["cgpu.io/memory=2Gi", &compute])?.success()?;
    }
    let shares = shares(&rig, [&CHURNING, &GREEDY, &GREEDY])?;
    println!("20 % that churns channels, 60 %, 10 %: {shares:?}");
    let compute = |id| -> Result<Value> {
        let status = status_of(&rig, id).context("no broker answers")?;
        Ok(status["cards"][0]["compute"].clone())
    };
    for id in CONTAINERS {
        let compute = compute(id)?;
        println!("{id}: {compute}");
        ensure!(
            compute["enforcement_level"] == "gate" && compute["holds"] == true,
            "{id}: {compute}"
        );
        ensure!(compute["counts"]["alarms"] == 0, "{id}: {compute}");
    }
    ensure!(
        shares.of("a") <= 0.2 * (1.0 + CAP_ERROR) + shares.noise,
        "{shares:?}"
    );
    shares.is("b", 0.6, CAP_ERROR)?;
    for id in CONTAINERS {
        rig.containerd.remove(id)?;
    }
    rig.finish()
}

#[test]
fn under_strict_the_first_containers_of_a_fresh_node_are_held() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = match rig::start_with(Suite::Host, CARDS)? {
        Ok(rig) => rig,
        Err(reason) => skip!(
            "under_strict_the_first_containers_of_a_fresh_node_are_held",
            "{reason}"
        ),
    };
    rig.node
        .edit_config(|text| text + "\n[compute]\nmode = \"strict\"\n")?;
    let third = ["cgpu.io/memory=2Gi", "cgpu.io/compute=30%"];
    // All at once: whoever is first finds out what the card holds.
    std::thread::scope(|scope| -> Result<()> {
        let starting: Vec<_> = CONTAINERS
            .iter()
            .map(|id| scope.spawn(|| rig.hold(id, &third)?.success()))
            .collect();
        for start in starting {
            match start.join() {
                Ok(started) => started?,
                Err(_) => bail!("a thread of the test panicked"),
            };
        }
        Ok(())
    })?;
    let cards = std::fs::read_dir(rig.node.state_dir().join("cards"))?;
    let known: Vec<_> = cards
        .map(|card| Ok(card?.path().join("enforcement.json")))
        .collect::<Result<_>>()?;
    let known = known.iter().find(|file| file.exists());
    let known = known.context("nobody has written down what the card holds")?;
    let read = || -> Result<Value> { Ok(serde_json::from_slice(&std::fs::read(known)?)?) };
    let found = read()?;
    ensure!(found["enforcement_level"] == "gate", "{found}");
    for id in CONTAINERS {
        rig.containerd.remove(id)?;
    }

    // What another driver held says nothing; what this one does not hold is refused.
    let mut of_another = found.clone();
    of_another["driver_version"] = "1.2.3".into();
    of_another["enforcement_level"] = "slices".into();
    std::fs::write(known, of_another.to_string())?;
    rig.hold("a", &third)?.success()?;
    ensure!(read()? == found, "{}", read()?);
    rig.containerd.remove("a")?;
    let mut too_little = found;
    too_little["enforcement_level"] = "slices".into();
    std::fs::write(known, too_little.to_string())?;
    let reply = rig.hold("a", &third)?.failure()?;
    rig.containerd.remove("a")?;
    ensure!(
        reply.contains("needs enforcement level 2") && reply.contains("has enforcement level 1"),
        "{reply}"
    );
    rig.finish()
}

/// How often a broker is killed, where the machine starts the next one soon enough: the loads end some time.
const KILLS: usize = 12;
const KILLING: Duration = Duration::from_secs(8);
/// And at least.
const KILLS_LEAST: usize = 3;
/// And how long after the last time.
const BETWEEN_KILLS_MS: [u64; 5] = [290, 610, 370, 530, 430];
/// A successor gives back what its container had too much, up to that time of its share (`compute::carry_over`).
const GIVEN_BACK: f64 = 0.3;

#[test]
fn a_share_is_kept_while_its_brokers_are_killed() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = match rig::start_with(Suite::Host, CARDS)? {
        Ok(rig) => rig,
        Err(reason) => skip!("a_share_is_kept_while_its_brokers_are_killed", "{reason}"),
    };
    let entitled = BTreeMap::from([("a", 0.3), ("b", 0.1), ("c", 0.2)]);
    for (id, part) in &entitled {
        let compute = format!("cgpu.io/compute={:.0}%", part * 100.0);
        rig.hold(id, &["cgpu.io/memory=2Gi", &compute])?.success()?;
    }
    let mut away = Vec::new();
    let killed = shares_while(&rig, [&GREEDY; 3], KILLED_LOAD_SECONDS, || {
        away = kill_brokers(&rig, "a", entitled["a"])?;
        Ok(())
    })?;
    println!(
        "30 % whose broker is killed {} times, 10 %, 20 %: {killed:?}, {away:?}",
        away.len()
    );
    let part_of = |each: fn(&Away) -> f64| away.iter().map(each).sum::<f64>() / killed.over_s;
    // What a successor lets go it has had, however long a busy machine took to start that; what the last one gives back may not
    // be given back yet.
    let kept = entitled["a"] * GIVEN_BACK / killed.over_s;
    let most = entitled["a"] * (1.0 + CAP_ERROR) + part_of(|away| away.let_go_s) + kept;
    let least = entitled["a"] * (1.0 - CAP_ERROR) - kept;
    let had = killed.of("a");
    ensure!(
        (least - killed.noise..=most + killed.noise).contains(&had),
        "a had {had:.3}, and {least:.3} to {most:.3} was allowed: {killed:?}, {away:?}"
    );
    // While nobody closes its gate it may have all of its neighbours' segments.
    for id in ["b", "c"] {
        let (part, had) = (entitled[id], killed.of(id));
        let least = part * (1.0 - CAP_ERROR) - part * part_of(|away| away.seconds);
        ensure!(
            (least - killed.noise..=part * (1.0 + CAP_ERROR) + killed.noise).contains(&had),
            "{id} had {had:.3} of {part}, and {least:.3} at least was allowed: {killed:?}, {away:?}"
        );
    }
    for id in CONTAINERS {
        rig.containerd.remove(id)?;
    }
    rig.finish()
}

/// From a broker's end to its successor.
#[derive(Debug)]
struct Away {
    seconds: f64,
    /// What the container has had beyond its share meanwhile, and beyond what is given back.
    let_go_s: f64,
}

/// Kills the broker of a container over and over, each time while its gate is open: it stays open until the next one has come.
fn kill_brokers(rig: &Rig, id: &str, entitled: f64) -> Result<Vec<Away>> {
    let mut all = Vec::new();
    let served = |status: Option<Value>| {
        let broker = status?["broker"].clone();
        Some((broker["pid"].as_i64()?, broker["replaced"].as_u64()?))
    };
    let began = Instant::now();
    for kill in 0..KILLS {
        if began.elapsed() >= KILLING {
            break;
        }
        // Between kills its share is to be made even: that takes time, and has no event.
        std::thread::sleep(Duration::from_millis(
            BETWEEN_KILLS_MS[kill % BETWEEN_KILLS_MS.len()],
        ));
        let mut serving = None;
        wait_until("an open gate", LIMIT, || {
            let status = status_of(rig, id);
            let gate = status
                .as_ref()
                .map(|status| &status["cards"][0]["compute"]["gate"]);
            let is_open = gate.is_some_and(|gate| gate["state"] == "open");
            serving = served(status).filter(|_| is_open);
            Ok(serving.is_some())
        })?;
        let (pid, replaced) = serving.context("no broker serves")?;
        let before = engine_ns(rig)?;
        capture(Command::new("kill").args(["-9", &pid.to_string()]), LIMIT)?.success()?;
        wait_until("the next broker", LIMIT, || {
            Ok(served(status_of(rig, id)).is_some_and(|(_, later)| later > replaced))
        })?;
        let after = engine_ns(rig)?;
        let seconds = (after.at_ns - before.at_ns) as f64 / 1e9;
        let used_s = (after.of(id) - before.of(id)) as f64 / 1e9;
        let ahead_s = used_s - entitled * seconds;
        all.push(Away {
            seconds,
            let_go_s: (ahead_s - entitled * GIVEN_BACK).max(0.0),
        });
    }
    ensure!(all.len() >= KILLS_LEAST, "too slow a machine: {all:?}");
    Ok(all)
}

/// What the supervisor or broker of a container says, if one answers.
fn status_of(rig: &Rig, id: &str) -> Option<Value> {
    let state = rig.node.state_dir();
    let folder = state.join("vgpus").join(rig.node.namespace()).join(id);
    let mut stream = UnixStream::connect(folder.join("control.sock")).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream.write_all(b"{\"op\":\"status\"}\n").ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// What the containers have had of the card, and how late things were meanwhile.
#[derive(Debug)]
struct Shares {
    of: BTreeMap<String, f64>,
    /// How long that was.
    over_s: f64,
    /// Part of a window that a late edge at each of its ends makes.
    noise: f64,
}

impl Shares {
    fn of(&self, id: &str) -> f64 {
        self.of.get(id).copied().unwrap_or_default()
    }

    fn sum(&self) -> f64 {
        self.of.values().sum()
    }

    fn is(&self, id: &str, entitled: f64, relative: f64) -> Result<()> {
        ensure!(
            (self.of(id) - entitled).abs() <= entitled * relative + self.noise,
            "{id} was promised {entitled:.4} of the card: {self:?}"
        );
        Ok(())
    }
}

fn set(rig: &Rig, id: &str, terms: &[&str]) -> Result<()> {
    let mut arguments = vec!["set", id];
    arguments.extend(terms);
    rig.node.cgpu(&arguments)?.success()?;
    Ok(())
}

/// Runs a load in each container and says what part of the card each has had.
fn shares(rig: &Rig, loads: [&[&str]; 3]) -> Result<Shares> {
    shares_while(rig, loads, LOAD_SECONDS, || Ok(()))
}

/// The same, of a time in which something else happens as well.
fn shares_while(
    rig: &Rig,
    loads: [&[&str]; 3],
    load_seconds: u64,
    happening: impl FnOnce() -> Result<()>,
) -> Result<Shares> {
    std::thread::scope(|scope| {
        let running: Vec<_> = CONTAINERS
            .iter()
            .zip(loads)
            .map(|(id, load)| scope.spawn(move || run(rig, id, load, load_seconds)))
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
        let watching = scope.spawn(|| lateness(MEASURED));
        happening()?;
        let late = watching.join();
        let late = late.map_err(|_panic| anyhow::anyhow!("a thread of the test panicked"))??;
        let until = engine_ns(rig)?;
        ensure!(
            !running.iter().any(|load| load.is_finished()),
            "too slow a machine: a load ended before the others were measured"
        );
        for (id, load) in CONTAINERS.iter().zip(running) {
            match load.join() {
                Ok(done) => done.with_context(|| format!("container {id}"))?,
                Err(_) => bail!("a thread of the test panicked"),
            };
        }
        let whole = (until.at_ns - from.at_ns) as f64;
        let part = |id: &&str| (until.of(id) - from.of(id)) as f64 / whole;
        Ok(Shares {
            of: CONTAINERS
                .iter()
                .map(|id| ((*id).to_owned(), part(id)))
                .collect(),
            over_s: whole / 1e9,
            noise: (2.0 * late.as_secs_f64() / WINDOW.as_secs_f64()).min(NOISE_MAX),
        })
    })
}

/// Watches for so long how late a thread wakes and another answers it, which is the way of a broker's call to the card: on average,
/// as shares over many windows are averages.
fn lateness(watched: Duration) -> Result<Duration> {
    let (ask, requested) = mpsc::channel::<mpsc::Sender<()>>();
    let answering = std::thread::spawn(move || {
        for question in requested {
            if question.send(()).is_err() {
                break;
            }
        }
    });
    let began = Instant::now();
    let mut late = Vec::new();
    for turn in 1.. {
        let due = began + Duration::from_millis(5) * turn;
        if due > began + watched {
            break;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let (answer, answered) = mpsc::channel();
        ask.send(answer)?;
        answered.recv()?;
        late.push(due.elapsed());
    }
    drop(ask);
    ensure!(answering.join().is_ok(), "the answering thread panicked");
    let turns = u32::try_from(late.len()).ok().filter(|turns| *turns > 0);
    let turns = turns.context("nothing was watched")?;
    Ok(late.iter().sum::<Duration>() / turns)
}

fn run(rig: &Rig, id: &str, load: &[&str], load_seconds: u64) -> Result<Value> {
    let seconds = load_seconds.to_string();
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
    capture(&mut command, Duration::from_secs(load_seconds * 4))?
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
