//! Brokers are killed and upgraded under containers that allocate all the time: nothing fails, and nothing is lost.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use integration::command::{LIMIT, capture, wait_until};
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;

const CONTAINERS: [&str; 3] = ["c0", "c1", "c2"];
const KILLS: usize = 30;
const SECONDS: u64 = 12;
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
    std::thread::scope(|scope| -> Result<()> {
        let loads: Vec<_> = CONTAINERS
            .iter()
            .map(|id| (id, scope.spawn(|| churn(&rig, id))))
            .collect();
        let began = Instant::now();
        let mut kills = 0;
        let mut upgrades = Vec::new();
        while began.elapsed() < Duration::from_secs(SECONDS) - Duration::from_secs(3) {
            for broker in serving(&rig)? {
                // It may have ended by itself in this moment.
                capture(
                    Command::new("kill").args(["-9", &broker.to_string()]),
                    LIMIT,
                )?;
                kills += 1;
                // The moment of the kill is what is varied: there is no event to wait for.
                std::thread::sleep(STEP);
            }
            if upgrades.len() < 9 {
                wait_until("a broker for each container", LIMIT, || {
                    Ok(serving(&rig)?.len() == CONTAINERS.len() && rig.node.ledgers().is_ok())
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
        assert!(kills >= KILLS, "only {kills} kills");
        assert!(upgrades.len() >= 9);
        for (id, load) in loads {
            match load.join() {
                Ok(done) => done.with_context(|| format!("container {id}"))?,
                Err(_) => bail!("a thread of the test panicked"),
            }
        }
        Ok(())
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

/// The brokers that serve: children of supervisors.
fn serving(rig: &Rig) -> Result<Vec<i32>> {
    let all = rig.node.running("cgpu-broker");
    let parent = |pid: &i32| -> Option<i32> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok()
    };
    Ok(all
        .iter()
        .copied()
        .filter(|pid| parent(pid).is_some_and(|parent| all.contains(&parent)))
        .collect())
}

fn churn(rig: &Rig, id: &str) -> Result<()> {
    let seconds = SECONDS.to_string();
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
    let limit = Duration::from_secs(SECONDS * 6);
    let said = capture(&mut command, limit)?.success()?.json()?;
    let number = |key: &str| said[key].as_u64().unwrap_or_default();
    assert!(number("allocations") > 0, "{said}");
    assert_eq!(
        (number("over_total"), number("used_after_bytes")),
        (0, 0),
        "{said}"
    );
    Ok(())
}
