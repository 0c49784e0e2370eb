//! What is asked of a vGPU: its quota, and what answers its calls.

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::command::{LIMIT, wait_until};
use crate::programs::NO_MEMORY;

use super::engine::{Container, Engine};

const GIB: u64 = 1 << 30;

/// The total of the one card that a container sees.
fn total(smi: &Value) -> Result<u64> {
    let cards = smi["cards"].as_array().context("cards in the document")?;
    ensure!(cards.len() == 1, "one card, not {smi}");
    smi["cards"][0]["memory_total_bytes"]
        .as_u64()
        .with_context(|| format!("a total in {smi}"))
}

/// An exec sees one card of so many GiB.
pub(super) fn sees(engine: &dyn Engine, name: &str, gib: u64) -> Result<()> {
    let smi = engine.exec(name, &["cgpu", "smi", "--json"])?.success()?;
    let total = total(&smi.json()?)?;
    ensure!(total == gib * GIB, "{total} bytes inside, not {gib} GiB");
    Ok(())
}

/// The containers that hold a vGPU, as the host sees them.
pub(super) fn vgpus(engine: &dyn Engine) -> Result<Vec<String>> {
    let ps = engine.node().cgpu(&["ps", "--json"])?.success()?.json()?;
    let listed = ps["vgpus"].as_array().context("vgpus in the document")?;
    listed
        .iter()
        .map(|vgpu| {
            let name = vgpu["container"].as_str();
            Ok(name
                .with_context(|| format!("a name in {vgpu}"))?
                .to_owned())
        })
        .collect()
}

pub(super) fn quota_held(engine: &mut dyn Engine) -> Result<()> {
    let once = |program| engine.once(&Container::new("quota", program).gib(4));
    let smi = once(&["cgpu", "smi", "--json"])?.success()?.json()?;
    ensure!(total(&smi)? == 4 * GIB, "{smi}");
    once(&["cgpu-burn", "alloc", "4000Mi"])?.success()?;
    let over = once(&["cgpu-burn", "alloc", "4097Mi"])?;
    ensure!(over.code == NO_MEMORY, "{over:?}");
    engine.start(&Container::waiting("held").gib(4))?;
    sees(engine, "held", 4)?;
    let over = engine.exec("held", &["cgpu-burn", "alloc", "5Gi"])?;
    ensure!(over.code == NO_MEMORY, "{over:?}");
    engine.remove("held")?;
    let left = engine.node().grants();
    ensure!(left.is_empty(), "grants after the removal: {left:?}");
    Ok(())
}

pub(super) fn resize(engine: &mut dyn Engine) -> Result<()> {
    engine.start(&Container::waiting("resize").gib(4))?;
    let listed = vgpus(engine)?;
    let [id] = listed.as_slice() else {
        bail!("one vGPU, not {listed:?}");
    };
    engine
        .node()
        .cgpu(&["set", id, "--memory", "6Gi"])?
        .success()?;
    sees(engine, "resize", 6)?;
    let over = engine.exec("resize", &["cgpu-burn", "alloc", "6145Mi"])?;
    ensure!(over.code == NO_MEMORY, "{over:?}");
    engine
        .exec("resize", &["cgpu-burn", "alloc", "5Gi"])?
        .success()?;
    Ok(())
}

pub(super) fn plain_beside(engine: &mut dyn Engine) -> Result<()> {
    engine.start(&Container::waiting("with").gib(4))?;
    engine.start(&Container::waiting("without"))?;
    let nodes = engine.exec("without", &["sh", "-c", "ls /dev | grep -c nvidia"])?;
    ensure!(nodes.stdout.trim() == "0", "{nodes:?}");
    sees(engine, "with", 4)?;
    let vgpus = vgpus(engine)?;
    ensure!(vgpus.len() == 1, "one vGPU, not {vgpus:?}");
    Ok(())
}

/// Who answers a container's calls and who watches that, as `cgpu ps` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pids {
    broker: i32,
    supervisor: i32,
}

/// Of the only vGPU, once its broker answers.
fn pids(engine: &dyn Engine) -> Result<Pids> {
    let mut shown = Value::Null;
    let answered = wait_until("a healthy broker", LIMIT, || {
        let ps = engine.node().cgpu(&["ps", "--json"])?.success()?.json()?;
        shown = ps["vgpus"][0].clone();
        Ok(shown["health"] == "ok" && shown["broker_pid"].is_i64())
    });
    answered.with_context(|| format!("{shown}"))?;
    let pid = |key: &str| -> Result<i32> {
        let pid = shown[key].as_i64();
        Ok(i32::try_from(
            pid.with_context(|| format!("no {key} in {shown}"))?,
        )?)
    };
    Ok(Pids {
        broker: pid("broker_pid")?,
        supervisor: pid("supervisor_pid")?,
    })
}

/// A container of 4 GiB whose program holds one of them.
fn start_holding(engine: &dyn Engine, name: &str) -> Result<()> {
    engine.start(&Container::new(name, &["cgpu-burn", "hold", "1Gi"]).gib(4))?;
    wait_until("the memory to be held", LIMIT, || {
        let smi = engine.exec(name, &["cgpu", "smi", "--json"])?.success()?;
        let used = smi.json()?["cards"][0]["memory_used_bytes"].as_u64();
        Ok(used.is_some_and(|used| used >= GIB))
    })
}

/// What the program holds is counted still, and the rest of the quota can be had.
fn holds_as_before(engine: &dyn Engine, name: &str) -> Result<()> {
    sees(engine, name, 4)?;
    let over = engine.exec(name, &["cgpu-burn", "alloc", "3100Mi"])?;
    ensure!(over.code == NO_MEMORY, "{over:?}");
    engine
        .exec(name, &["cgpu-burn", "alloc", "2900Mi"])?
        .success()?;
    ensure!(engine.runs(name)?, "its program has ended");
    engine.remove(name)?;
    let left = engine.node().grants();
    ensure!(left.is_empty(), "grants after the removal: {left:?}");
    Ok(())
}

pub(super) fn broker_killed(engine: &mut dyn Engine) -> Result<()> {
    start_holding(engine, "orphan")?;
    let before = pids(engine)?;
    kill(Pid::from_raw(before.broker), Signal::SIGKILL)?;
    let mut after = before;
    wait_until("another broker", LIMIT, || {
        after = pids(engine)?;
        Ok(after.broker != before.broker)
    })?;
    ensure!(
        after.supervisor == before.supervisor,
        "{before:?} {after:?}"
    );
    holds_as_before(engine, "orphan")
}

pub(super) fn upgrade(engine: &mut dyn Engine) -> Result<()> {
    start_holding(engine, "upgraded")?;
    let before = pids(engine)?;
    let report = engine.node().cgpu(&["upgrade", "--json"])?.success()?;
    let report = report.json()?;
    let listed = report["containers"].as_array();
    let listed = listed.with_context(|| format!("no containers in {report}"))?;
    ensure!(
        listed.len() == 1 && listed.iter().all(|row| row["pause_us"].is_u64()),
        "{report}"
    );
    let after = pids(engine)?;
    ensure!(after.broker != before.broker, "{before:?} {after:?}");
    holds_as_before(engine, "upgraded")
}

/// Ends with 6 when [`TELL_TO_END`] has been run beside it and its process is gone. Gone is reaped: the exec's own end has been
/// seen by then, and the container's, which would kill it, cannot take its place.
pub(super) const UNTIL_REPORTED_TO_END: &str = "until pid=$(cat /tmp/told 2>/dev/null) && ! kill -0 $pid 2>/dev/null; do sleep 0.1; done; exit 6";
/// What an exec does to end [`UNTIL_REPORTED_TO_END`]; the exec ends with 0. The file appears with what is in it.
pub(super) const TELL_TO_END: &[&str] = &[
    "sh",
    "-c",
    "echo $$ >/tmp/telling && mv /tmp/telling /tmp/told",
];

/// Two containers that end with a code of their own when they are told to.
fn start_pair(engine: &dyn Engine) -> Result<()> {
    let program = ["sh", "-c", UNTIL_REPORTED_TO_END];
    engine.start(&Container::new("plain", &program))?;
    engine.start(&Container::new("held", &program).gib(4))
}

/// They run on under the new daemon, take an exec, hold their quota, and end with their own code.
fn check_pair(engine: &dyn Engine) -> Result<()> {
    for name in ["plain", "held"] {
        ensure!(engine.runs(name)?, "{name} does not run any more");
        engine.exec(name, &["true"])?.success()?;
    }
    sees(engine, "held", 4)?;
    let over = engine.exec("held", &["cgpu-burn", "alloc", "5Gi"])?;
    ensure!(over.code == NO_MEMORY, "{over:?}");
    for name in ["plain", "held"] {
        engine.exec(name, TELL_TO_END)?.success()?;
        let code = engine.end_of(name)?;
        ensure!(code == 6, "{name} ended with {code} instead of 6");
        engine.remove(name)?;
    }
    let left = engine.node().grants();
    ensure!(left.is_empty(), "grants after the removal: {left:?}");
    Ok(())
}

pub(super) fn engine_restart(engine: &mut dyn Engine) -> Result<()> {
    start_pair(engine)?;
    engine.crash_and_restart()?;
    check_pair(engine)
}

pub(super) fn live_restore(engine: &mut dyn Engine) -> Result<()> {
    start_pair(engine)?;
    engine.stop_and_start()?;
    check_pair(engine)
}
