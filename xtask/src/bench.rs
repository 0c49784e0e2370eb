//! `cargo xtask bench`: latency and memory against their targets, on simulated cards.
//!
//! Ratios and differences are of values measured in one run, turn by turn, so that a busy machine is busy for both. What a call
//! costs is promised as a ratio to the floor, which is what the kernel makes of any notified call on the same machine
//! (isolation/broker/benches/notify.rs). A row of turns has the interval in which their median lies, with 95 % confidence: it holds or is
//! missed where all of the interval says so, and is inconclusive otherwise, and on a machine where others are busy.

mod attacks;
mod compute;
mod isolation;
mod shim;
mod value;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use experiments::report::Effort;
use integration::cache::repository;
use integration::command::{progress, succeed};
use integration::containerd::CGPU;
use integration::engines::Engines;
use integration::image;
use integration::packages::Suite;
use integration::programs::{Profile, Programs, target_folder};
use integration::rig::Rig;
use integration::skip;
use serde::{Deserialize, Serialize};

use value::{Judgement, Value, is_loaded};

use crate::{machine, table};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// What to measure; everything where nothing is named.
    #[arg(value_name = "PART")]
    parts: Vec<Part>,
    /// Fewer repetitions: to see that it works, not for numbers.
    #[arg(long)]
    quick: bool,
    /// Of the part `attacks` a neighbour's allocations beside this attack alone; may be given again.
    #[arg(long, value_name = "ATTACK")]
    attack: Vec<String>,
    /// A folder of programs to measure (as `target/cgpu-programs/release`), built before; else they are built.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
}

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Calls: notified, of a container to a simulated card, and those that the filter lets pass.
    Notified,
    /// Allocations, a flood's neighbour, a resize, a broker's replacement.
    Isolation,
    /// Container starts with a vGPU, without one, and without cgpu; many at once.
    Starts,
    /// Memory of shim and broker, and the shim's size.
    Memory,
    /// What hostile tenants cost others: allocations, starts, `cgpu ps`, and shares in virtual time.
    Attacks,
    /// Shares of a card's time, in virtual time; needs neither root nor engines.
    Compute,
}

/// One line of `target/bench.json`.
#[derive(Debug, Serialize)]
struct Measured {
    name: String,
    unit: &'static str,
    median: f64,
    /// Where the median lies.
    interval: (f64, f64),
    p99: f64,
    /// The most that the median may be; `None` where nothing is promised.
    target: Option<f64>,
    /// The most that `p99` may be.
    p99_target: Option<f64>,
    judgement: Option<Judgement>,
    /// Under which circumstances, where they differ from row to row.
    #[serde(skip_serializing_if = "String::is_empty")]
    remark: String,
    machine: String,
    #[serde(skip)]
    values: (Value, Value),
}

impl Measured {
    /// The worse of what is said of both promises; `None` where nothing is promised.
    fn judged(&self, is_loaded: bool) -> Option<Judgement> {
        let (median, p99) = self.values;
        let of = |value: Value, target: Option<f64>| Some(value.judged(target?, is_loaded));
        of(median, self.target).max(of(p99, self.p99_target))
    }

    fn target_text(&self) -> String {
        let median = self.target.map(|target| format!("≤ {target}"));
        let p99 = self.p99_target.map(|target| format!("p99 ≤ {target}"));
        median.into_iter().chain(p99).collect::<Vec<_>>().join(", ")
    }

    fn median_text(&self) -> String {
        let (low, high) = self.interval;
        let median = format!("{:.2}", self.median);
        if low < high {
            format!("{median} ({low:.2} to {high:.2})")
        } else {
            median
        }
    }
}

const VGPU: [&str; 4] = ["--runtime", CGPU, "--annotation", "cgpu.io/memory=1Gi"];
/// Rows of the broker's bench of its memory, as they are called here, with their units. The targets are the rows' own.
const TABLES: [(&str, &str, &str); 10] = [
    (
        "broker's tables, private memory: nothing",
        "private memory, nothing",
        "MiB",
    ),
    (
        "broker's tables, private memory: 10 000 objects",
        "private memory, 10 000 objects",
        "MiB",
    ),
    (
        "broker's tables, private memory: 100 000 objects",
        "private memory, 100 000 objects",
        "MiB",
    ),
    (
        "broker's tables, private memory: 2^20 objects",
        "private memory, objects at their maximum",
        "MiB",
    ),
    (
        "broker's tables, private memory: clients at their maximum",
        "private memory, clients at their maximum",
        "MiB",
    ),
    (
        "broker's tables, private memory: 2^20 pieces of managed memory",
        "private memory, managed memory at its maximum",
        "MiB",
    ),
    (
        "broker's tables, private memory: everything at its maximum",
        "private memory, everything at its maximum",
        "MiB",
    ),
    (
        "the same of a successor",
        "private memory of a successor, everything at its maximum",
        "MiB",
    ),
    (
        "journal: everything at its maximum",
        "journal, everything at its maximum",
        "MiB",
    ),
    (
        "journal taken over: everything at its maximum",
        "a journal taken over, everything at its maximum",
        "ms",
    ),
];

/// Containers with a vGPU, and without, in which passing calls are timed.
const PASSING_TURNS: usize = 9;
const PASSING: &str = include_str!("../../integration/payloads/passing_calls.py");

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let parts = match options.parts.as_slice() {
        [] => Part::value_variants(),
        named => named,
    };
    let mut worst = Judgement::Holds;
    if parts.contains(&Part::Compute) {
        let all_hold = compute::run(if options.quick {
            Effort::Short
        } else {
            Effort::Full
        })?;
        if !all_hold {
            worst = Judgement::Missed;
        }
    }
    if parts.iter().any(|part| *part != Part::Compute) {
        worst = worst.max(on_engines(options, parts)?);
    }
    Ok(match worst {
        Judgement::Holds => ExitCode::SUCCESS,
        Judgement::Missed => ExitCode::FAILURE,
        Judgement::Inconclusive => ExitCode::from(2),
    })
}

/// All but [`Part::Compute`]; the worst that is said of a promise.
fn on_engines(options: &Options, parts: &[Part]) -> Result<Judgement> {
    if let Some(reason) = skip::lacks_root() {
        bail!("the bench {reason}: it starts a containerd");
    }
    let machine = machine::describe();
    let programs = match &options.programs {
        Some(folder) => Programs::at(folder)?,
        None => Programs::build(Profile::Release)?,
    };
    let mut bench = Bench {
        rig: Rig::start(&programs, &Engines::fetch(Suite::Host)?)?,
        machine: machine.clone(),
        measured: Vec::new(),
    };
    let (calls, starts, many, blocks, turns) = if options.quick {
        (2_000, 5, 10, 20, 3)
    } else {
        (50_000, 200, 50, 300, 15)
    };
    for part in parts {
        let first = bench.measured.len();
        let was_loaded = is_loaded()?;
        match part {
            Part::Notified => {
                bench.notified_calls()?;
                bench.simulated_calls(calls)?;
                bench.passing_calls(blocks)?;
            }
            Part::Isolation => {
                bench.allocations(turns, calls / 25)?;
                bench.flood(turns, calls / 25)?;
                bench.resize(turns * 4)?;
                bench.replacement(turns * 2)?;
            }
            Part::Starts => {
                bench.starts(starts)?;
                bench.many_at_once(many)?;
            }
            Part::Memory => {
                bench.memory()?;
                bench.tables()?;
                bench.size(&programs)?;
            }
            Part::Attacks => bench.attacks(options.quick, &options.attack)?,
            Part::Compute => {}
        }
        bench.judge(first, was_loaded || is_loaded()?);
    }
    let Bench { rig, measured, .. } = bench;
    rig.finish()?;

    println!("\n{machine}\n");
    let rows: Vec<Vec<String>> = measured
        .iter()
        .map(|one| {
            vec![
                one.name.clone(),
                one.unit.to_owned(),
                one.median_text(),
                format!("{:.2}", one.p99),
                one.target_text(),
                one.judgement.map_or("", Judgement::text).to_owned(),
                one.remark.clone(),
            ]
        })
        .collect();
    table::print(&["what", "unit", "median", "p99", "target", "", ""], &rows);
    let file = target_folder().join("bench.json");
    fs::write(&file, serde_json::to_vec_pretty(&measured)?)
        .with_context(|| format!("writing {}", file.display()))?;
    println!("\n{}", file.display());
    let judgements = measured.iter().filter_map(|one| one.judgement);
    Ok(judgements.max().unwrap_or(Judgement::Holds))
}

/// A row of the broker's bench.
#[derive(Debug, Deserialize)]
struct Row {
    name: String,
    median: f64,
    p99: f64,
    /// What is promised of it.
    #[serde(default)]
    target: Option<f64>,
    /// Median and p99 of each round, which all rows of calls have in common.
    #[serde(default)]
    rounds: Vec<(f64, f64)>,
}

struct Bench {
    rig: Rig,
    machine: String,
    measured: Vec<Measured>,
}

impl Bench {
    fn add(
        &mut self,
        name: impl Into<String>,
        unit: &'static str,
        median: Value,
        p99: f64,
        target: Option<f64>,
    ) {
        let p99 = (Value::timed(p99), None);
        self.add_with_tail(name, unit, (median, target), p99, String::new());
    }

    /// Median and p99 each with its target, and the circumstances.
    fn add_with_tail(
        &mut self,
        name: impl Into<String>,
        unit: &'static str,
        (median, target): (Value, Option<f64>),
        (p99, p99_target): (Value, Option<f64>),
        remark: String,
    ) {
        self.measured.push(Measured {
            name: name.into(),
            unit,
            median: median.value,
            interval: (median.low, median.high),
            p99: p99.value,
            target,
            p99_target,
            judgement: None,
            remark,
            machine: self.machine.clone(),
            values: (median, p99),
        });
    }

    /// Judges all rows from this one on.
    fn judge(&mut self, first: usize, is_loaded: bool) {
        if is_loaded {
            progress("others are busy on this machine: times decide nothing");
        }
        for row in self.measured.iter_mut().skip(first) {
            row.judgement = row.judged(is_loaded);
        }
    }

    /// The broker's own bench: its workers under the real filter, a driver that makes a real ioctl on the duplicate.
    fn notified_calls(&mut self) -> Result<()> {
        progress("notified calls");
        let rows = of_the_broker("notify", &[])?;
        let named = |name: &str| {
            let row = rows.iter().find(|one| one.name == name);
            row.with_context(|| format!("no row {name}"))
        };
        let floor = named("floor, free")?;
        for (name, row) in [
            (
                "floor of a notified call: received, copied, answered",
                floor,
            ),
            (
                "notified call, answered by the broker (refusals, fewer than are held up)",
                named("answered, free")?,
            ),
            (
                "notified call, executed on the duplicate",
                named("executed, free")?,
            ),
        ] {
            let medians = row.rounds.iter().map(|round| round.0).collect();
            self.add(name, "µs", Value::of_turns(medians), row.p99, None);
        }
        for (name, row, most) in [
            (
                "notified call, answered, to the floor",
                "answered, free",
                1.6,
            ),
            (
                "notified call, executed, to the floor",
                "executed, free",
                1.7,
            ),
        ] {
            let rounds = &named(row)?.rounds;
            let medians = pairs(rounds, &floor.rounds, |one, floor| one.0 / floor.0);
            let tails = pairs(rounds, &floor.rounds, |one, floor| one.1 / floor.1);
            self.add_with_tail(
                name,
                "×",
                (Value::of_turns(medians), Some(most)),
                (Value::of_turns(tails), Some(3.0)),
                String::new(),
            );
        }
        Ok(())
    }

    /// The floor of a notified call, now; µs.
    fn floor(&self) -> Result<f64> {
        let rows = of_the_broker("notify", &["--floor"])?;
        let row = rows.first().context("no row of the floor")?;
        Ok(row.median)
    }

    /// What a tenant in a container sees of a simulated card: no promise, since the simulator's own work is in it.
    fn simulated_calls(&mut self, count: u32) -> Result<()> {
        progress("calls of a container to a simulated card");
        self.rig.hold("calls", &["cgpu.io/memory=1Gi"])?.success()?;
        let count = count.to_string();
        let reply = self
            .rig
            .containerd
            .exec(
                "calls",
                &["cgpu-burn", "--json", "calls", "--count", &count],
            )?
            .success()?
            .json()?;
        self.rig.containerd.remove("calls")?;
        for (name, kind) in [
            ("in a container: refused by the broker", "answered"),
            ("in a container: executed by cgpu-sim", "executed"),
        ] {
            let (median, p99) = microseconds(&reply["kinds"][kind])?;
            self.add(name, "µs", Value::timed(median), p99, None);
        }
        Ok(())
    }

    fn passing_calls(&mut self, blocks: usize) -> Result<()> {
        progress("calls that the filter lets pass");
        let image = match image::tinygrad(None) {
            Ok(image) => image,
            Err(error) => {
                skip::record("bench: passing calls", &format!("{error:#}"));
                return Ok(());
            }
        };
        self.rig.containerd.import(&image)?;
        let sample = |id: &str, options: &[&str]| -> Result<Vec<f64>> {
            let blocks = (blocks / PASSING_TURNS).to_string();
            let program = ["python3", "-c", PASSING, &blocks, "2000"];
            let reply = self
                .rig
                .containerd
                .run_once(&image, id, options, &program)?
                .success()?;
            serde_json::from_value(reply.json()?).context("a list of times")
        };
        let (mut more, mut floors) = (Vec::new(), Vec::new());
        for turn in 0..PASSING_TURNS {
            let with = sample(&format!("with{turn}"), &VGPU)?;
            let without = sample(&format!("without{turn}"), &["--runtime", CGPU])?;
            floors.push(self.floor()?);
            let median = |values: Vec<f64>| quantile(&sorted(values), 0.5);
            more.push((median(with) - median(without)) / 1000.0);
        }
        let p99 = quantile(&sorted(more.clone()), 0.99);
        self.add(
            "call that passes the filter, more than without",
            "µs",
            Value::of_turns(more.clone()),
            p99,
            None,
        );
        let parts = pairs(&more, &floors, |more, floor| more / floor);
        let p99 = quantile(&sorted(parts.clone()), 0.99);
        self.add(
            "call that passes the filter, more than without, to the floor",
            "×",
            Value::of_turns(parts),
            p99,
            Some(0.03),
        );
        Ok(())
    }

    /// What a broker's tables cost with so many of what a container can have, and how long a successor takes to have them.
    fn tables(&mut self) -> Result<()> {
        progress("memory of a broker's tables");
        let rows = of_the_broker("memory", &[])?;
        for (name, row, unit) in TABLES {
            let row = rows
                .iter()
                .find(|one| one.name == row)
                .with_context(|| format!("no row {row}"))?;
            let median = match unit {
                "ms" => Value::timed(row.median),
                _ => Value::counted(row.median),
            };
            self.add(name, unit, median, row.p99, row.target);
        }
        Ok(())
    }

    /// Private memory of each process of the node that runs `program`, in MB.
    fn private_mb(&self, program: &str) -> Result<Vec<f64>> {
        let mut all = Vec::new();
        for pid in self.rig.node.running(program) {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let kib: u32 = text
                .lines()
                .filter(|line| line.starts_with("Private_"))
                .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u32>().ok())
                .sum();
            all.push(f64::from(kib) * 1024.0 / 1e6);
        }
        if all.is_empty() {
            bail!("no {program} runs on the node");
        }
        Ok(all)
    }
}

/// Rows of one of the broker's own benches.
fn of_the_broker(name: &str, options: &[&str]) -> Result<Vec<Row>> {
    let bench = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .args(["bench", "--package", "cgpu-broker", "--bench", name])
            .current_dir(repository());
        command
    };
    // Building it takes minutes, and shows that it does.
    if !bench().arg("--no-run").status()?.success() {
        bail!("the broker's bench {name} does not build");
    }
    let reply = succeed(bench().args(["--quiet", "--", "--json"]).args(options))?;
    serde_json::from_value(reply.json()?).with_context(|| format!("rows of the bench {name}"))
}

fn microseconds(kind: &serde_json::Value) -> Result<(f64, f64)> {
    let value = |key: &str| {
        kind[key]
            .as_f64()
            .map(|nanoseconds| nanoseconds / 1000.0)
            .with_context(|| format!("no {key} in {kind}"))
    };
    Ok((value("median_ns")?, value("p99_ns")?))
}

pub(crate) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// What was measured in the same turn, put together.
pub(crate) fn pairs<T: Copy>(one: &[T], other: &[T], by: impl Fn(T, T) -> f64) -> Vec<f64> {
    one.iter()
        .zip(other)
        .map(|(one, other)| by(*one, *other))
        .collect()
}

/// The value below which `share` of the sorted values lie; 0 of none.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of 0 to 1 of a length gives an index within it"
    )]
    let index = (sorted.len() as f64 * share).floor() as usize;
    sorted.get(index.min(last)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_values() {
        let values = sorted(vec![4.0, 1.0, 3.0, 2.0, 5.0]);
        assert!((quantile(&values, 0.5) - 3.0).abs() < 1e-9);
        assert!((quantile(&values, 0.99) - 5.0).abs() < 1e-9);
        assert!(quantile(&[], 0.5).abs() < 1e-9);
    }
}
