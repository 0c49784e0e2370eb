//! Whether slices get the shares that they were promised (T4, T5, T7), and what the host's tools see of them meanwhile (T13).

use serde_json::{Value, json};

use super::host::{reply, which};
use super::world::{Load, World, shares};
use super::{End, found};
use crate::bundle::Bundle;

/// Loads side by side: what is asked, and each slice's options of `cgpu run`.
const SIDE_BY_SIDE: [(&str, &[&[&str]]); 5] = [
    ("two native slices", &[&[], &[]]),
    (
        "weights 1 and 1",
        &[&["--policy", "weighted"], &["--policy", "weighted"]],
    ),
    (
        "weights 1 and 3",
        &[&["--policy", "weighted"], &["--weight", "3"]],
    ),
    (
        "weights 1 and 10",
        &[&["--policy", "weighted"], &["--weight", "10"]],
    ),
    (
        "10 % and 50 %, the rest idle",
        &[&["--compute", "10"], &["--compute", "50"]],
    ),
];

pub(super) fn probe(bundle: &Bundle) -> anyhow::Result<End> {
    let mut world = match World::open(bundle)? {
        Ok(world) => world,
        Err(why) => return Ok(End::NotRun(why)),
    };
    let seconds = if world.is_simulated() { 3 } else { 7 };
    if !world.is_simulated() {
        let alone = world.tenant("alone", &[], Load::Busy, seconds)?.answer()?;
        world.kernel_ns = alone.get("kernel_ns").and_then(Value::as_u64);
        found("alone, native", brief(&alone));
    }
    for (what, slices) in SIDE_BY_SIDE {
        // Simulated cards prove that the probe runs: two of each kind of knob are enough.
        if world.is_simulated() && !what.starts_with("10 %") && !what.starts_with("weights 1 and 3")
        {
            continue;
        }
        let mut tenants = slices
            .iter()
            .enumerate()
            .map(|(number, options)| {
                world.tenant(&format!("busy{number}"), options, Load::Busy, seconds)
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let reported = tenants
            .last_mut()
            .map(|tenant| tenant.await_ps(&world, is_there));
        let meanwhile = (!world.is_simulated() && what.starts_with("two")).then(host_tools);
        let answers = tenants
            .into_iter()
            .map(|tenant| tenant.answer())
            .collect::<anyhow::Result<Vec<_>>>()?;
        found(
            what,
            json!({
                "percent of the card's time": shares(&answers),
                "loads": answers.iter().map(brief).collect::<Vec<_>>(),
                "the last one's share, as cgpu ps has it": reported.as_ref().map(share_of),
            }),
        );
        if let Some(meanwhile) = meanwhile {
            found("the host's view of both", meanwhile);
        }
    }
    let rate = 50;
    let alone = world.tenant("alone", &[], Load::Requests(rate), seconds)?;
    found("requests, alone", latency(&alone.answer()?));
    for (what, online, offline) in [
        ("requests beside a native load", &[][..], &[][..]),
        (
            "requests of high priority beside a load of low",
            &["--priority", "high"][..],
            &["--priority", "low"][..],
        ),
    ] {
        if world.is_simulated() && online.is_empty() {
            continue;
        }
        let mut load = world.tenant("load", offline, Load::Busy, seconds + 2)?;
        let there = load.await_ps(&world, is_there);
        let requests = world
            .tenant("requests", online, Load::Requests(rate), seconds)?
            .answer()?;
        let load = load.answer()?;
        found(
            what,
            json!({
                "requests": latency(&requests),
                "load": brief(&load),
                "the load's share, as cgpu ps has it": share_of(&there),
            }),
        );
    }
    Ok(End::Done)
}

/// Whether the load runs, and its share counts: that of a container without a governor says nothing.
fn is_there(ps: &Value) -> bool {
    let runs = ps
        .get("processes")
        .and_then(Value::as_array)
        .is_some_and(|processes| !processes.is_empty());
    let entitled = share_of(ps).get("entitlement_ppm").and_then(Value::as_u64);
    runs && entitled != Some(0)
}

pub(super) fn share_of(ps: &Value) -> Value {
    ps.pointer("/cards/0/share").cloned().unwrap_or(Value::Null)
}

/// A load's answer without its seconds.
pub(super) fn brief(answer: &Value) -> Value {
    match answer.as_object() {
        None => answer.clone(),
        Some(all) => json!({
            "kernels": all.get("kernels"),
            "kernel_ns": all.get("kernel_ns"),
            "percent by second": all.get("windows").and_then(Value::as_array).map(|windows| {
                windows
                    .iter()
                    .filter_map(|window| Some(window.get("busy_ns")?.as_u64()? / 10_000_000))
                    .collect::<Vec<_>>()
            }),
        }),
    }
}

fn latency(answer: &Value) -> Value {
    match answer.get("latency") {
        Some(latency) => latency.clone(),
        None => answer.clone(),
    }
}

/// What the vendor's tool says of processes while two slices work.
fn host_tools() -> Value {
    let Some(tool) = which("nvidia-smi") else {
        return json!("no nvidia-smi here");
    };
    let mut apps = std::process::Command::new(&tool);
    apps.args([
        "--query-compute-apps=pid,process_name,used_memory",
        "--format=csv",
    ]);
    let mut utilisation = std::process::Command::new(&tool);
    utilisation.args(["pmon", "-c", "1", "-s", "u"]);
    json!({
        "compute processes": reply(&mut apps, |_line| true),
        "utilisation by process": reply(&mut utilisation, |_line| true),
    })
}
