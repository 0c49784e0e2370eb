//! Many processes that allocate, duplicate, map, unmap and free at random.
//!
//! Each process keeps its own account of what must still be held: a piece of memory lives while it has a handle or a UVM
//! mapping. What the driver answers against that account is counted as unexpected.

mod tenant;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use nix::sys::signal::{Signal, raise};
use rmclient::{Client, Nodes};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Outcome;
use crate::JSON_VERSION;
use crate::size::{Size, human};

/// What `churn` and its processes are told.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Duration, seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Number of processes.
    #[arg(long, default_value_t = 4)]
    processes: u32,
    /// Seed of the random numbers: the same seed gives the same load.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Largest allocation.
    #[arg(long, default_value = "256Mi")]
    largest: Size,
    /// Kill the processes (SIGKILL) while they hold memory.
    #[arg(long)]
    die: bool,
    /// Do not use /dev/nvidia-uvm: no mappings into GPU address spaces.
    #[arg(long)]
    no_uvm: bool,
}

/// What one process saw.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Calls that changed something.
    operations: u64,
    /// Allocations that succeeded.
    allocations: u64,
    /// Allocations refused for lack of memory.
    refused: u64,
    /// The most that this process held, bytes.
    held_peak_bytes: u64,
    /// The most that any of its cards was used, as the driver said, bytes.
    used_peak_bytes: u64,
    /// How often a card was used beyond its total.
    over_total: u64,
    /// Answers that must not be, and how often.
    unexpected: BTreeMap<String, u64>,
}

impl Report {
    fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.allocations += other.allocations;
        self.refused += other.refused;
        self.held_peak_bytes = self.held_peak_bytes.max(other.held_peak_bytes);
        self.used_peak_bytes = self.used_peak_bytes.max(other.used_peak_bytes);
        self.over_total += other.over_total;
        for (what, times) in other.unexpected {
            *self.unexpected.entry(what).or_insert(0) += times;
        }
    }
}

/// Starts the processes, waits for them, and adds up what they saw.
///
/// # Errors
/// A process that could not be started or left no report.
pub fn run(dev: &Path, options: &Options) -> anyhow::Result<Outcome> {
    let nodes = Nodes::in_dir(dev);
    let before_bytes = used_bytes(&nodes)?;
    let program = std::env::current_exe().context("find this program")?;
    let mut workers = Vec::new();
    for index in 0..options.processes {
        let mut command = Command::new(&program);
        command
            .arg("--dev")
            .arg(dev)
            .args(["--json", "churn-worker"])
            .args(["--seconds", &options.seconds.to_string()])
            .args([
                "--seed",
                &options.seed.wrapping_add(u64::from(index)).to_string(),
            ])
            .args(["--largest", &options.largest.bytes.to_string()])
            .args(options.die.then_some("--die"))
            .args(options.no_uvm.then_some("--no-uvm"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        workers.push(command.spawn().context("start a process of the load")?);
    }
    let mut report = Report::default();
    for (index, worker) in workers.into_iter().enumerate() {
        let output = worker.wait_with_output().context("wait for a process")?;
        let own: Report = serde_json::from_slice(&output.stdout).with_context(|| {
            format!("process {index} ended with {} and no report", output.status)
        })?;
        report.add(own);
    }
    let after_bytes = used_bytes(&nodes)?;
    let bad = !report.unexpected.is_empty() || report.over_total > 0;
    Ok(Outcome {
        text: format!(
            "churn: {} processes, {} operations, {} allocations, {} refused, at most {} in use; used {} before and {} after; {}",
            options.processes,
            report.operations,
            report.allocations,
            report.refused,
            human(report.used_peak_bytes),
            human(before_bytes),
            human(after_bytes),
            if report.unexpected.is_empty() {
                "nothing unexpected".to_owned()
            } else {
                format!("unexpected: {:?}", report.unexpected)
            },
        ),
        json: json!({
            "version": JSON_VERSION,
            "load": "churn",
            "seed": options.seed,
            "seconds": options.seconds,
            "processes": options.processes,
            "operations": report.operations,
            "allocations": report.allocations,
            "refused": report.refused,
            "held_peak_bytes": report.held_peak_bytes,
            "used_peak_bytes": report.used_peak_bytes,
            "over_total": report.over_total,
            "used_before_bytes": before_bytes,
            "used_after_bytes": after_bytes,
            "unexpected": report.unexpected,
        }),
        code: u8::from(bad),
    })
}

/// What all cards together are used, as the driver says here.
fn used_bytes(nodes: &Nodes) -> anyhow::Result<u64> {
    let client = Client::connect(nodes)?;
    let mut used_bytes = 0;
    for card in client.cards()? {
        used_bytes += card.memory()?.used_bytes();
    }
    Ok(used_bytes)
}

/// One process of the load.
///
/// # Errors
/// A driver that cannot be used at all.
pub fn work(nodes: &Nodes, options: &Options) -> anyhow::Result<Outcome> {
    // Without its parent nobody reads the report.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).context("follow the parent")?;
    let client = Client::connect(nodes)?;
    let deadline = Instant::now() + Duration::from_secs(options.seconds);
    let mut tenant = tenant::Tenant::new(&client, options)?;
    while Instant::now() < deadline {
        tenant.step();
    }
    let report = if options.die {
        tenant.report()
    } else {
        tenant.finish()
    };
    let outcome = Outcome {
        text: format!("{report:?}"),
        json: serde_json::to_value(&report)?,
        code: 0,
    };
    if options.die {
        outcome.print(super::Printed::Json)?;
        raise(Signal::SIGKILL).context("die")?;
    }
    Ok(outcome)
}
