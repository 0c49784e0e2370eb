//! Kill -9 at any moment of a container's start: nothing stays after the next start or `cgpu doctor --repair`.

use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use integration::command::{LIMIT, capture, wait_until};
use integration::containerd::CGPU;
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;

/// Kills are spread over the time that a start takes, in steps of this.
const STEP: Duration = Duration::from_millis(4);
const STEPS: u32 = 30;

/// One at a time: the dead socket of a killed shim cannot be told from that of another test's.
static KILLING: Mutex<()> = Mutex::new(());

fn with(test: &str, body: fn(&Rig) -> Result<()>) -> Result<()> {
    let _alone = KILLING.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    body(&rig)?;
    rig.finish()
}

fn kill(pid: i32) -> Result<()> {
    // It may have ended by itself in this moment.
    capture(Command::new("kill").args(["-9", &pid.to_string()]), LIMIT)?;
    Ok(())
}

/// Starts a container and kills `program` a little later each time; then what is left must be repairable.
fn killed_at_every_moment(rig: &Rig, program: &str) -> Result<()> {
    let mut hits = 0;
    for step in 0..STEPS {
        let id = format!("c{step}");
        let mut start = rig
            .containerd
            .ctr_command(&[
                "run",
                "-d",
                "--runtime",
                CGPU,
                "--annotation",
                "cgpu.io/memory=4Gi",
                &rig.image.name,
                &id,
                "sleep",
                "1000",
            ])?
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        wait_until("the program to start", LIMIT, || {
            Ok(!rig.node.running(program).is_empty() || start.try_wait()?.is_some())
        })?;
        // The moment of the kill is what is varied: there is no event to wait for.
        std::thread::sleep(STEP * step);
        for pid in rig.node.running(program) {
            kill(pid)?;
            hits += 1;
        }
        start.wait()?;
        rig.containerd.ctr(&["tasks", "rm", "--force", &id])?;
        rig.containerd.ctr(&["containers", "rm", &id])?;
        if step % 2 == 0 {
            rig.node.cgpu(&["doctor", "--repair"])?;
        } else {
            // The next start reclaims as well: the card has room for five such grants only.
            rig.hold("next", &["cgpu.io/memory=24Gi", "cgpu.io/cards=2"])?
                .success()
                .with_context(|| format!("the start after a kill at step {step}"))?;
            rig.containerd.remove("next")?;
        }
        let left = rig
            .node
            .settled(|line| line.contains("containerd --config"));
        assert!(
            left.is_empty(),
            "step {step} left behind:\n  {}",
            left.join("\n  ")
        );
    }
    assert!(hits >= STEPS / 2, "only {hits} of {STEPS} kills hit");
    Ok(())
}

#[test]
fn the_shim_is_killed_at_every_moment_of_a_start() -> Result<()> {
    with("the_shim_is_killed_at_every_moment_of_a_start", |rig| {
        killed_at_every_moment(rig, "containerd-shim-cgpu-v2")
    })
}

#[test]
fn the_broker_is_killed_at_every_moment_of_a_start() -> Result<()> {
    with("the_broker_is_killed_at_every_moment_of_a_start", |rig| {
        killed_at_every_moment(rig, "cgpu-broker")
    })
}
