//! Brokers are killed and upgraded under containers that allocate all the time: nothing fails, and nothing is lost.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use integration::command::{LIMIT, capture, wait_until};
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const CONTAINERS: [&str; 3] = ["c0", "c1", "c2"];
const KILLS: usize = 30;
const UPGRADES: usize = 9;
/// One round of the load. Rounds follow each other until all kills and upgrades are done: how long those take is the
/// machine's affair.
const ROUND: Duration = Duration::from_secs(4);
/// Whatever the machine: brokers that are away for good are not waited for.
const LONGEST: Duration = Duration::from_secs(300);
/// Time between two kills: brokers die while they start, while they take over, and while they serve.
const STEP: Duration = Duration::from_millis(37);

#[test]
fn brokers_are_killed_and_upgraded_under_load() -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!("brokers_are_killed_and_upgraded_under_load", "{reason}"),
    };
    for id in CONTAINERS {
        rig.hold(id, &["cgpu.io/memory=2Gi"])?.success()?;
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let loads: Vec<_> = CONTAINERS
            .iter()
            .map(|id| (id, scope.spawn(|| churn_until(&rig, id, &is_over))))
            .collect();
        let done = kill_and_upgrade(&rig);
        is_over.store(true, Ordering::SeqCst);
        for (id, load) in loads {
            match load.join() {
                Ok(rounds) => rounds.with_context(|| format!("container {id}"))?,
                Err(_) => bail!("a thread of the test panicked"),
            }
        }
        done
    })?;
    assert!(rig.node.ledgers()?.is_empty(), "{:?}", rig.node.ledgers()?);
    for card in rig.node.sim_account()?.as_array().context("no cards")? {
        assert_eq!(card["used_bytes"], 0, "{card}");
    }
    for id in CONTAINERS {
        rig.containerd.remove(id)?;
    }
    assert_eq!(rig.node.grants(), Vec::<String>::new());
    rig.finish()
}

fn kill_and_upgrade(rig: &Rig) -> Result<()> {
    let began = Instant::now();
    let mut kills = 0;
    let mut upgrades = Vec::new();
    while kills < KILLS || upgrades.len() < UPGRADES {
        ensure!(
            began.elapsed() < LONGEST,
            "in {LONGEST:?} {kills} kills and upgrades that took {upgrades:?} µs"
        );
        for broker in serving(rig) {
            // It may have ended by itself in this moment.
            capture(
                Command::new("kill").args(["-9", &broker.to_string()]),
                LIMIT,
            )?;
            kills += 1;
            // The moment of the kill is what is varied: there is no event to wait for.
            std::thread::sleep(STEP);
        }
        if upgrades.len() < UPGRADES {
            wait_until("a broker for each container", LIMIT, || {
                Ok(serving(rig).len() == CONTAINERS.len() && rig.node.ledgers().is_ok())
            })?;
            let report = rig.node.cgpu(&["upgrade", "--json"])?.success()?.json()?;
            for row in report["containers"].as_array().context("no containers")? {
                let pause = row["pause_us"].as_u64();
                upgrades.push(pause.with_context(|| format!("no pause in {row}"))?);
            }
        }
    }
    upgrades.sort_unstable();
    println!("{kills} kills; upgrades paused calls for {upgrades:?} µs");
    Ok(())
}

/// Any one process of ours may be killed, again and again: `cgpu ps` shows who serves and who watches, and each kill is an event.
#[test]
fn brokers_and_supervisors_are_killed_in_turn_under_load() -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(
            "brokers_and_supervisors_are_killed_in_turn_under_load",
            "{reason}"
        ),
    };
    rig.hold("c0", &["cgpu.io/memory=2Gi"])?.success()?;
    let mut waits = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        let load = scope.spawn(|| churn(&rig, "c0", 3 * ROUND));
        for round in 0..24 {
            let before = answered_pids(&rig)?;
            ensure!(serving(&rig) == [before.broker], "{before:?}");
            ensure!(watching(&rig) == [before.supervisor], "{before:?}");
            let is_broker = round % 3 == 0;
            let victim = if is_broker {
                before.broker
            } else {
                before.supervisor
            };
            let began = Instant::now();
            kill(Pid::from_raw(victim), Signal::SIGKILL)?;
            wait_until("both to be there again", LIMIT, || {
                let Ok(now) = pids(&rig) else {
                    return Ok(false);
                };
                let (changed, kept) = if is_broker {
                    (now.broker != victim, now.supervisor == before.supervisor)
                } else {
                    (now.supervisor != victim, now.broker == before.broker)
                };
                ensure!(kept, "{before:?} {now:?}");
                Ok(changed)
            })?;
            waits.push(began.elapsed().as_millis());
        }
        match load.join() {
            Ok(done) => done,
            Err(_) => bail!("a thread of the test panicked"),
        }
    })?;
    waits.sort_unstable();
    println!("ready again, as `cgpu ps` tells, after {waits:?} ms");
    let events = rig.node.cgpu(&["events", "c0"])?.success()?.stdout;
    for kind in ["supervisor_replaced", "broker_replaced"] {
        ensure!(events.contains(kind), "{events}");
    }
    // The one that watches now ends with the container, and so does its broker.
    rig.containerd.remove("c0")?;
    ensure!(
        watching(&rig).is_empty() && serving(&rig).is_empty(),
        "left: {:?} {:?}",
        watching(&rig),
        serving(&rig)
    );
    assert_eq!(rig.node.grants(), Vec::<String>::new());
    rig.finish()
}

#[derive(Debug)]
struct Pids {
    broker: i32,
    supervisor: i32,
}

/// As `cgpu ps` tells.
fn pids(rig: &Rig) -> Result<Pids> {
    let ps = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
    let vgpu = &ps["vgpus"][0];
    ensure!(vgpu["health"] == "ok", "{vgpu}");
    let pid = |key: &str| -> Result<i32> {
        let pid = vgpu[key].as_i64();
        Ok(i32::try_from(
            pid.with_context(|| format!("{key} is absent"))?,
        )?)
    };
    Ok(Pids {
        broker: pid("broker_pid")?,
        supervisor: pid("supervisor_pid")?,
    })
}

/// [`pids`] of the next answer: on a loaded machine a broker may have no CPU in the time that `cgpu ps` waits for it.
fn answered_pids(rig: &Rig) -> Result<Pids> {
    let mut answered = None;
    wait_until("a healthy broker's answer", LIMIT, || {
        answered = pids(rig).ok();
        Ok(answered.is_some())
    })?;
    answered.context("an answer")
}

/// The brokers, by their command line.
fn serving(rig: &Rig) -> Vec<i32> {
    of_ours(rig, |arguments| arguments.contains(&"--serve"))
}

/// Those who start brokers.
fn watching(rig: &Rig) -> Vec<i32> {
    of_ours(rig, |arguments| !arguments.contains(&"--serve"))
}

fn of_ours(rig: &Rig, is_needed: impl Fn(&[&str]) -> bool) -> Vec<i32> {
    let mut all = rig.node.running("cgpu-broker");
    all.retain(|pid| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments: Vec<&str> = line.split('\0').collect();
        arguments.contains(&"--dir") && is_needed(&arguments)
    });
    all
}

/// Round after round: each begins with an exec, whatever has become of the broker in this moment.
fn churn_until(rig: &Rig, id: &str, is_over: &AtomicBool) -> Result<()> {
    while !is_over.load(Ordering::SeqCst) {
        churn(rig, id, ROUND)?;
    }
    Ok(())
}

fn churn(rig: &Rig, id: &str, round: Duration) -> Result<()> {
    let seconds = round.as_secs().to_string();
    let mut command = rig.containerd.ctr_command(&[
        "tasks",
        "exec",
        "--exec-id",
        "churn",
        id,
        "cgpu-burn",
        "--json",
        "churn",
        "--seconds",
        &seconds,
        "--processes",
        "2",
        "--largest",
        "512Mi",
    ])?;
    let reply = capture(&mut command, round + LIMIT)?.success()?.json()?;
    let number = |key: &str| reply[key].as_u64().unwrap_or_default();
    assert!(number("allocations") > 0, "{reply}");
    assert_eq!(
        (number("over_total"), number("used_after_bytes")),
        (0, 0),
        "{reply}"
    );
    Ok(())
}
