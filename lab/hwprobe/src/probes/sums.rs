//! What the driver counts for a slice's memory, beside what the broker's ledger has of it.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::world::World;
use super::{End, found};
use crate::bundle::Bundle;

const QUOTA: &str = "1Gi";
/// What the program in the slice holds, in one allocation.
const HELD: &str = "96Mi";
/// Brokers compare every five seconds, where the configuration does not say otherwise.
const PATIENCE: Duration = Duration::from_secs(25);
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) fn probe(bundle: &Bundle) -> anyhow::Result<End> {
    let modes: &[&[&str]] = if bundle.is_simulated() {
        &[&[]]
    } else {
        &[&["--mode", "strict"], &["--mode", "compat"]]
    };
    let world = World::without_kernels(bundle)?;
    for mode in modes {
        let name = mode.get(1).unwrap_or(&"simulated");
        let mut command = world.cgpu();
        command
            .args(["run", "--memory", QUOTA])
            .args(*mode)
            .arg("--")
            .arg(bundle.program("cgpu-burn"))
            .args(["hold", HELD])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut run = command.spawn().context("start cgpu run")?;
        let seen = look(&world, &mut run);
        end(&world, &mut run)?;
        found(
            format!("the driver's sum and the ledger's for {HELD} in a slice, {name}"),
            seen,
        );
    }
    Ok(End::Done)
}

/// What `cgpu ps` and `cgpu metrics` say, once the broker has compared with the memory held, or said why it does not.
fn look(world: &World<'_>, run: &mut Child) -> Value {
    let container = run.id().to_string();
    let began = Instant::now();
    loop {
        let ps = ps(world, &container);
        let counted = |figure: &str| metric(world, figure, &container);
        let (driver, ledger) = (
            counted("cgpu_driver_counted_bytes"),
            counted("cgpu_ledger_counted_bytes"),
        );
        let reconciled = ps.get("reconciled").cloned().unwrap_or(Value::Null);
        let is_reported = match reconciled.get("by_driver").and_then(Value::as_bool) {
            // A comparison in the middle of the allocation shows it on one side: the next is waited for.
            Some(true) => ledger.is_some_and(|bytes| bytes > 0) && driver == ledger,
            Some(false) => true,
            None => false,
        };
        if is_reported || began.elapsed() > PATIENCE || !matches!(run.try_wait(), Ok(None)) {
            return json!({
                "driver_counted_bytes": driver,
                "ledger_counted_bytes": ledger,
                "used_bytes, by the ledger": ps.pointer("/cards/0/used_bytes"),
                "reconciled": reconciled,
                "health": ps.get("health"),
            });
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn ps(world: &World<'_>, container: &str) -> Value {
    let output = world.cgpu().args(["ps", "--json"]).output();
    output
        .ok()
        .and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok())
        .and_then(|all| {
            let vgpus = all.get("vgpus")?.as_array()?;
            let is_it =
                |vgpu: &&Value| vgpu.get("container").and_then(Value::as_str) == Some(container);
            vgpus.iter().find(is_it).cloned()
        })
        .unwrap_or(Value::Null)
}

fn metric(world: &World<'_>, figure: &str, container: &str) -> Option<u64> {
    let output = world.cgpu().arg("metrics").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let label = format!(",name=\"{container}\"");
    text.lines()
        .find(|line| line.starts_with(figure) && line.contains(&label))?
        .rsplit_once(' ')?
        .1
        .parse()
        .ok()
}

/// Ends the program in the slice, and with it `cgpu run`.
fn end(world: &World<'_>, run: &mut Child) -> anyhow::Result<()> {
    let processes = ps(world, &run.id().to_string());
    let pids = processes.get("processes").and_then(Value::as_array);
    for process in pids.into_iter().flatten() {
        let pid = process.get("pid").and_then(Value::as_i64);
        if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) {
            let _ended_already = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
    let began = Instant::now();
    while run.try_wait().context("look at cgpu run")?.is_none() {
        if began.elapsed() > PATIENCE {
            let _ended_already = run.kill();
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
