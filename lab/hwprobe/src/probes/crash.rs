//! What becomes of a gate whose broker or whose application dies (T12): brokers are killed at odd times while a slice of a tenth works.

use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::shares::{brief, share_of};
use super::world::{Load, World};
use super::{End, found};
use crate::bundle::Bundle;

/// A tenth of the card's time: nine times in ten its gate is closed.
const TENTH: &[&str] = &["--compute", "10"];
/// Between two kills: no multiple of any window.
const KILL_EVERY: Duration = Duration::from_millis(370);
/// As long as a gate may be closed, twice.
const PATIENCE: Duration = Duration::from_secs(4);
const LOOK_EVERY: Duration = Duration::from_millis(5);

pub(super) fn probe(bundle: &Bundle) -> anyhow::Result<End> {
    let world = match World::open(bundle)? {
        Ok(world) => world,
        Err(why) => return Ok(End::NotRun(why)),
    };
    let (seconds, kills) = if world.is_simulated() {
        (4, 3)
    } else {
        (10, 8)
    };
    let mut tenant = world.tenant("killed", TENTH, Load::Busy, seconds)?;
    let supervisor = supervisor(&tenant.await_ps(&world, has_process));
    let mut replaced_ms = Vec::new();
    for _kill in 0..kills {
        std::thread::sleep(KILL_EVERY);
        let Some(pid) = supervisor.and_then(broker) else {
            break;
        };
        if kill(pid, Signal::SIGKILL).is_err() {
            break;
        }
        let began = Instant::now();
        let replaced = || {
            supervisor
                .and_then(broker)
                .is_some_and(|other| other != pid)
        };
        while !replaced() && began.elapsed() < PATIENCE {
            std::thread::sleep(LOOK_EVERY);
        }
        replaced_ms.push(replaced().then(|| milliseconds(began)));
    }
    let share = share_of(&world.ps(&tenant));
    let answer = tenant.answer()?;
    found(
        "a tenth of the card, its broker killed again and again",
        json!({
            "ms until there was another": replaced_ms,
            "load": brief(&answer),
            "longest that a kernel took, ns": answer.pointer("/latency/max_ns"),
            "ended by": answer.get("error"),
            "share, as cgpu ps has it": share,
        }),
    );
    let mut took_ms = Vec::new();
    for number in 0..kills {
        let mut tenant = world.tenant("application", TENTH, Load::Busy, 60)?;
        let reply = tenant.await_ps(&world, has_process);
        let Some(pid) = process(&reply) else {
            tenant.await_end(LOOK_EVERY)?;
            break;
        };
        std::thread::sleep(KILL_EVERY / 3 * (1 + number % 3));
        kill(pid, Signal::SIGKILL).context("kill the application")?;
        let began = Instant::now();
        let ended = tenant.await_end(PATIENCE * 3)?;
        took_ms.push(ended.then(|| milliseconds(began)));
    }
    found(
        "an application killed while its gate was mostly closed: ms until its slice had gone",
        json!(took_ms),
    );
    Ok(End::Done)
}

fn has_process(ps: &Value) -> bool {
    process(ps).is_some() && supervisor(ps).is_some()
}

fn process(ps: &Value) -> Option<Pid> {
    // The one that holds most: a shell around it holds nothing.
    let processes = ps.get("processes")?.as_array()?;
    let pid = processes.last()?.get("pid")?.as_i64()?;
    Some(Pid::from_raw(i32::try_from(pid).ok()?))
}

/// Who starts the container's brokers.
fn supervisor(ps: &Value) -> Option<Pid> {
    let pid = ps.get("supervisor_pid")?.as_i64()?;
    Some(Pid::from_raw(i32::try_from(pid).ok()?))
}

/// The broker itself: the supervisor's child of that name.
fn broker(supervisor: Pid) -> Option<Pid> {
    let children =
        std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
    children
        .split_ascii_whitespace()
        .filter_map(|pid| pid.parse::<i32>().ok())
        .find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim_end() == "cgpu-broker")
        })
        .map(Pid::from_raw)
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
