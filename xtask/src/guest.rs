//! `cargo xtask guest`: the engines' checks and other tests under a kernel whose control groups have version 2 alone.
//!
//! The short form is part of `cargo xtask test`. The long one asks this machine the same, and writes docs/reports/hosts.md.

mod arm64;
mod document;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::command::progress;
use integration::guest::{Guest, Init, RESULTS};
use integration::packages::Suite;
use integration::programs::{Profile, Programs, target_folder};

use crate::engines::{Outcome as CellOutcome, Record};
use crate::suite::executables::{self, Executable};
use crate::suite::reader::{Counts, Reader};
use crate::suite::runner::Outcome;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// All that is worth its time there, and docs/reports/hosts.md.
    #[arg(long)]
    long: bool,
    /// Whose kernel runs.
    #[arg(long, value_enum, default_value_t = Kernel::Host)]
    kernel: Kernel,
    /// systemd is the guest's first process.
    #[arg(long)]
    systemd: bool,
    /// Only what has this in its name.
    #[arg(long)]
    only: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kernel {
    /// The release of Debian that this machine has.
    Host,
    /// Debian 13.
    Trixie,
    /// Debian 12 for arm64, with programs and tests that are built for it.
    Arm64,
}

impl Kernel {
    fn suite(self) -> Suite {
        match self {
            Self::Host => Suite::Host,
            Self::Trixie => Suite::Trixie,
            Self::Arm64 => Suite::Arm64,
        }
    }
}

/// What the guest does, one after the other.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A row of `cargo xtask engines`, and those of its checks whose names contain one of these; all, if there is none.
    Row(&'static str, &'static [&'static str]),
    /// Tests of an executable by package and name, whose names contain one of these; all, if there is none.
    Tests(&'static str, &'static [&'static str]),
    /// A script by its name, and what its output must have.
    Script(&'static str, &'static str, &'static [&'static str]),
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Row(name, _) | Self::Tests(name, _) | Self::Script(name, ..) => name,
        }
    }
}

/// containerd of Debian 12 with the shim, on this machine's cgroups and on the guest's.
const CONTAINERD: &str = "containerd (ctr)/host/shim by type/HostRunc";

/// About three minutes on two cores.
const SHORT: &[Step] = &[
    Step::Row(
        CONTAINERD,
        &["run", "exec", "stats", "update", "pause", "OOM", "vGPU"],
    ),
    Step::Tests("integration own_group", &["own_processes_pay"]),
];

/// Every check but that of fifty containers: ten that start at a time have no broker ready within the five seconds that a frontend
/// waits for it.
const ALL_BUT_FIFTY: &[&str] = &[
    "run",
    "exit codes",
    "logs",
    "exec",
    "stats",
    "top",
    "pause",
    "update",
    "kill",
    "OOM",
    "restart",
    "health",
    "vGPU",
    "live",
];

/// What half an hour has room for. Brokers that are killed under load are not among it: the test wants more kills in its time than such
/// a machine comes to.
const LONG: &[Step] = &[
    Step::Row(CONTAINERD, ALL_BUT_FIFTY),
    Step::Row("docker/host/wrapper/HostRunc", ALL_BUT_FIFTY),
    Step::Row("podman/host/hook/HostRunc", ALL_BUT_FIFTY),
    Step::Tests("integration own_group", &[]),
    Step::Tests(
        "integration resources_limits",
        &["limits_are_shown", "who_goes_beyond"],
    ),
    Step::Tests(
        "integration resources_stats",
        &["host::two_shims_count_the_same"],
    ),
    Step::Tests(
        "integration slices",
        &["every_path_to_memory", "deletion_returns"],
    ),
];

const SHORT_LIMIT: Duration = Duration::from_secs(15 * 60);
const LONG_LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let (executables, programs) = match options.kernel {
        Kernel::Host | Kernel::Trixie => {
            let executables = executables::build()?;
            let programs = Programs::gather(Profile::Dev)?;
            (executables, programs.folder().to_owned())
        }
        Kernel::Arm64 => (
            executables::build_for_arm64()?,
            target_folder().join(executables::ARM64).join("debug"),
        ),
    };
    let (steps, limit) = match (options.kernel, options.long) {
        (Kernel::Arm64, _) => (arm64::STEPS, LONG_LIMIT),
        (Kernel::Host | Kernel::Trixie, true) => (LONG, LONG_LIMIT),
        (Kernel::Host | Kernel::Trixie, false) => (SHORT, SHORT_LIMIT),
    };
    let is_needed = |step: &Step| {
        options
            .only
            .as_ref()
            .is_none_or(|only| step.name().contains(only))
    };
    let steps: Vec<Step> = steps.iter().copied().filter(is_needed).collect();
    let plan = Plan {
        steps: &steps,
        executables: &executables,
        programs: &programs,
        limit,
    };
    let guest = Guest::of(options.kernel.suite())?;
    let kinds: &[Init] = match (options.long, options.systemd) {
        (true, false) if options.kernel != Kernel::Arm64 => &[Init::Shell, Init::Systemd],
        (_, true) => &[Init::Systemd],
        (_, false) => &[Init::Shell],
    };
    let mut counts = Counts::default();
    let mut columns = Vec::new();
    for init in kinds {
        let reports = plan.run(&guest, *init)?;
        for report in &reports {
            println!("{}", report.outcome.line());
            print!("{}", report.outcome.shown);
            for skip in &report.outcome.skips {
                println!("{skip}");
            }
            counts.add(report.outcome.counts);
        }
        if options.kernel == Kernel::Arm64 && options.only.is_none() {
            arm64::write(&guest, &reports)?;
        }
        columns.push((*init, reports));
    }
    if options.kernel != Kernel::Arm64 && options.long && options.only.is_none() && !options.systemd
    {
        document::write(&guest, &columns)?;
    }
    Ok(match counts.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The short form, of executables that are built.
///
/// # Errors
/// A reason to skip aloud: there is no guest here.
pub(crate) fn short(executables: &[Executable], programs: &Path) -> Result<Vec<Outcome>> {
    let guest = Guest::of(Suite::Host)?;
    let plan = Plan {
        steps: SHORT,
        executables,
        programs,
        limit: SHORT_LIMIT,
    };
    let reports = plan.run(&guest, Init::Shell).unwrap_or_else(|error| {
        let failed = Counts {
            failed: 1,
            ..Counts::default()
        };
        vec![Report {
            outcome: Outcome {
                name: "guest".to_owned(),
                counts: failed,
                shown: format!("FAILED: {error:#}\n"),
                skips: Vec::new(),
                took: Duration::ZERO,
            },
            cells: Vec::new(),
        }]
    });
    Ok(reports.into_iter().map(|report| report.outcome).collect())
}

/// What a step has come to.
struct Report {
    outcome: Outcome,
    /// Of a row its cells.
    cells: Vec<Record>,
}

struct Plan<'a> {
    steps: &'a [Step],
    executables: &'a [Executable],
    /// The folder of our programs.
    programs: &'a Path,
    limit: Duration,
}

impl Plan<'_> {
    fn run(&self, guest: &Guest, init: Init) -> Result<Vec<Report>> {
        progress(&format!(
            "a guest with Linux {}, control groups: {}",
            guest.release(),
            init.name()
        ));
        let folder =
            tempfile::tempdir_in(target_folder()).context("folder for the guest's results")?;
        let results = folder.path();
        let mut script = match init {
            Init::Shell => String::new(),
            Init::Systemd => format!(
                "cp {}/configs/systemd/cgpu.service /etc/systemd/system/\nsystemctl daemon-reload\nsystemctl start cgpu.service\nsystemctl --no-pager status cgpu.service\n",
                repository().display()
            ),
        };
        for (number, step) in self.steps.iter().enumerate() {
            let command = self.command(number, *step)?;
            script.push_str(&format!(
                "began=$(cut -d' ' -f1 /proc/uptime)\n(\n{command}\n) > {RESULTS}/{number}.out 2>&1\n\
                 echo $? $began $(cut -d' ' -f1 /proc/uptime) > {RESULTS}/{number}.status\n"
            ));
        }
        guest.run(init, &script, results, self.limit)?;
        let reports = self.steps.iter().enumerate();
        reports
            .map(|(number, step)| {
                read(results, number, *step)
                    .with_context(|| format!("reading what {} came to", step.name()))
            })
            .collect()
    }

    /// In the guest's shell.
    fn command(&self, number: usize, step: Step) -> Result<String> {
        let programs = self.programs.display();
        Ok(match step {
            Step::Row(row, checks) => {
                let checks: String = checks
                    .iter()
                    .map(|name| format!(" --check '{name}'"))
                    .collect();
                let records = target_folder().join("engines.json");
                // Not the running program's own file: the build may have put another in its place.
                let (repository, xtask) = (repository(), target_folder().join("debug/xtask"));
                format!(
                    "cd {}\nrm -f {records}\nCGPU_BIN={programs} {} engines --row '{row}'{checks}\nended=$?\n\
                     cp {records} {RESULTS}/{number}.json\nexit $ended",
                    repository.display(),
                    xtask.display(),
                    records = records.display(),
                )
            }
            Step::Script(_, script, _) => format!("export PATH={programs}:$PATH\n{script}"),
            Step::Tests(name, filters) => {
                let executable = self
                    .executables
                    .iter()
                    .find(|executable| executable.name() == name);
                let executable =
                    executable.with_context(|| format!("there are no tests \"{name}\""))?;
                let folder = executable.folder.display();
                format!(
                    "cd {folder}\nCARGO_MANIFEST_DIR={folder} CGPU_BIN={programs} CGPU_SKIPS=/dev/null RUST_BACKTRACE=0 {} {} --test-threads=1 --show-output",
                    executable.path.display(),
                    filters.join(" "),
                )
            }
        })
    }
}

fn read(results: &Path, number: usize, step: Step) -> Result<Report> {
    let file = |kind: &str| results.join(format!("{number}.{kind}"));
    let status = fs::read_to_string(file("status"))?;
    let numbers: Vec<f64> = status
        .split_whitespace()
        .map_while(|text| text.parse().ok())
        .collect();
    let [code, began, ended] = numbers.as_slice() else {
        anyhow::bail!("no code and two moments: {status}");
    };
    let text = fs::read(file("out"))?;
    let text = String::from_utf8_lossy(&text);
    let mut reader = Reader::default();
    let cells: Vec<Record> = match step {
        Step::Tests(..) => {
            text.lines().for_each(|line| reader.read(line));
            Vec::new()
        }
        Step::Script(_, _, expected) => {
            match expected.iter().find(|part| !text.contains(**part)) {
                None => reader.counts.passed += 1,
                Some(missing) => {
                    reader.counts.failed += 1;
                    reader.shown = format!("FAILED: no \"{missing}\" in:\n{text}\n");
                }
            }
            Vec::new()
        }
        Step::Row(..) => {
            let cells = fs::read(file("json")).with_context(|| text.clone().into_owned())?;
            serde_json::from_slice(&cells)?
        }
    };
    for cell in &cells {
        let (counts, check, reason) = (&mut reader.counts, &cell.check, &cell.reason);
        match cell.outcome {
            CellOutcome::Passed => counts.passed += 1,
            CellOutcome::Failed => {
                counts.failed += 1;
                reader
                    .shown
                    .push_str(&format!("FAILED: {check}: {reason}\n"));
            }
            CellOutcome::Skipped => {
                counts.ignored += 1;
                reader
                    .shown
                    .push_str(&format!("not asked: {check}: {reason}\n"));
            }
        }
    }
    if *code != 0.0 && reader.counts.failed == 0 {
        reader.counts.failed = 1;
        reader.shown = format!("FAILED: it ended with {code}\n{text}\n");
    }
    Ok(Report {
        outcome: Outcome {
            name: format!("guest: {}", step.name()),
            counts: reader.counts,
            shown: reader.shown,
            skips: reader.skips,
            took: Duration::from_secs_f64((ended - began).max(0.0)),
        },
        cells,
    })
}
