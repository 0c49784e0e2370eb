//! Steps as one script, which a guest or this machine runs, and what it comes to.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use integration::cache::{self, repository};
use integration::command::{capture, progress};
use integration::engines::Engines;
use integration::guest::{Guest, Init, RESULTS, Storage};
use integration::packages::Suite;
use integration::programs::target_folder;

use super::packages;
use super::starts::Starts;
use super::steps::Step;
use crate::engines::{Outcome as CellOutcome, Record};
use crate::suite::executables::Executable;
use crate::suite::reader::{Counts, Reader};
use crate::suite::runner::Outcome;

/// A kind of host: a column of docs/reports/hosts.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// This machine.
    Host,
    /// A guest by its first process.
    Guest(Init),
}

impl Place {
    pub(super) const ALL: [Self; 4] = [
        Self::Host,
        Self::Guest(Init::ShellOfVersion1),
        Self::Guest(Init::Shell),
        Self::Guest(Init::Systemd),
    ];

    /// What the column is called.
    pub(super) fn name(self) -> String {
        match self {
            Self::Host => "version 1, host".to_owned(),
            Self::Guest(init) => format!("{}, guest", init.name()),
        }
    }
}

/// What a step has come to.
pub(super) struct Report {
    pub(super) step: Step,
    pub(super) outcome: Outcome,
    /// Of a row its cells.
    pub(super) cells: Vec<Record>,
    /// Of starts.
    pub(super) starts: Option<Starts>,
}

impl Report {
    /// A step of which nothing came.
    pub(super) fn failed(place: Place, step: Step, reason: &str) -> Self {
        let failed = Counts {
            failed: 1,
            ..Counts::default()
        };
        let outcome = Outcome {
            name: format!("{}: {}", place.name(), step.name()),
            counts: failed,
            shown: format!("FAILED: {reason}\n"),
            skips: Vec::new(),
            took: Duration::ZERO,
        };
        Self {
            step,
            outcome,
            cells: Vec::new(),
            starts: None,
        }
    }
}

impl Report {
    /// Prints it.
    ///
    /// # Returns
    /// How many of its tests failed.
    pub(super) fn show(&self) -> u64 {
        println!("{}", self.outcome.line());
        print!("{}", self.outcome.shown);
        for skip in &self.outcome.skips {
            println!("{skip}");
        }
        self.outcome.counts.failed
    }
}

pub(super) struct Plan<'a> {
    pub(super) steps: &'a [Step],
    /// Of rows in the place of the steps' own, where there are any.
    pub(super) checks: &'a [String],
    /// How often each check is run.
    pub(super) times: u32,
    pub(super) executables: &'a [Executable],
    /// The folder of our programs.
    pub(super) programs: &'a Path,
    /// Of those whose starts are measured.
    pub(super) shipped: &'a Path,
    pub(super) limit: Duration,
}

impl Plan<'_> {
    /// A step that was not reached is one that failed.
    pub(super) fn run(&self, guest: &Guest, place: Place) -> Result<Vec<Report>> {
        let folder =
            tempfile::tempdir_in(target_folder()).context("folder for the guest's results")?;
        let results = folder.path();
        let ended = match place {
            Place::Host => {
                progress("this machine");
                self.run_here(results)
            }
            Place::Guest(init) => {
                let (release, name) = (guest.release(), init.name());
                progress(&format!(
                    "a guest with Linux {release}, control groups: {name}"
                ));
                let script = self.script(Path::new(RESULTS))?;
                // What is on a disk is its own.
                let units = match guest.storage() {
                    Storage::Memory => units(init),
                    Storage::Disk | Storage::System { .. } => String::new(),
                };
                let script = format!("{units}{script}");
                guest.run(init, &script, results, self.limit)
            }
        };
        let end = match &ended {
            Ok(()) => String::new(),
            Err(error) => {
                eprintln!("{error:#}");
                // The rest is the console's.
                let text = error.to_string();
                text.lines().next().unwrap_or_default().to_owned()
            }
        };
        let reports = self.steps.iter().enumerate();
        reports
            .map(|(number, step)| {
                if !results.join(format!("{number}.status")).exists() {
                    let reason = format!("it was not reached: {end}");
                    return Ok(Report::failed(place, *step, &reason));
                }
                read(results, number, place, *step)
                    .with_context(|| format!("reading what {} came to", step.name()))
            })
            .collect()
    }

    fn run_here(&self, results: &Path) -> Result<()> {
        let file = results.join("run.sh");
        fs::write(&file, self.script(results)?)?;
        capture(Command::new("sh").arg(&file), self.limit).map(drop)
    }

    fn script(&self, results: &Path) -> Result<String> {
        let mut script = String::new();
        let at = results.display();
        for (number, step) in self.steps.iter().enumerate() {
            let command = self.command(number, *step, results)?;
            script.push_str(&format!(
                "began=$(cut -d' ' -f1 /proc/uptime)\n(\n{command}\n) > {at}/{number}.out 2>&1\n\
                 echo $? $began $(cut -d' ' -f1 /proc/uptime) > {at}/{number}.status\n"
            ));
        }
        Ok(script)
    }

    /// For a shell.
    fn command(&self, number: usize, step: Step, results: &Path) -> Result<String> {
        let (programs, times) = (self.programs.display(), self.times);
        // Not the running program's own file: the build may have put another in its place.
        let xtask = target_folder().join("debug/xtask");
        let (xtask, repository) = (xtask.display(), repository());
        let repository = repository.display();
        let records = results.join(format!("{number}.json"));
        let records = records.display();
        let skips = results.join(format!("{number}.skips"));
        let skips = skips.display();
        Ok(match step {
            Step::Row(row, checks) | Step::Plain(row, checks) => {
                let own = checks.iter().copied();
                let checks: Vec<&str> = match self.checks {
                    [] => own.collect(),
                    checks => checks.iter().map(String::as_str).collect(),
                };
                let checks: String = checks
                    .iter()
                    .map(|name| format!(" --check '{name}'"))
                    .collect();
                let plain = match step {
                    Step::Plain(..) => " --plain",
                    _ => "",
                };
                format!(
                    "cd {repository}\nCGPU_BIN={programs} {xtask} engines --row '{row}'{checks}{plain} --times {times} --records {records}"
                )
            }
            Step::Script(_, script, _) | Step::Reboots(_, script, _) => format!(
                "export PATH={programs}:$PATH CGPU_CACHE={} CGPU_PACKAGES={}\n{script}",
                cache::folder().display(),
                packages::folder().display(),
            ),
            Step::Starts(count) => format!(
                "cd {repository}\nCGPU_BIN={} {xtask} guest --pairs {count} --starts {records}",
                self.shipped.display(),
            ),
            Step::Tests(name, filters) => {
                let executable = self
                    .executables
                    .iter()
                    .find(|executable| executable.name() == name);
                let executable =
                    executable.with_context(|| format!("there are no tests \"{name}\""))?;
                let folder = executable.folder.display();
                // Some tests of the crates find runc in PATH alone.
                let runc = Engines::fetch(Suite::Host)?.runc()?;
                let runc = runc.parent().context("runc is in a folder")?.display();
                format!(
                    "cd {folder}\nPATH=$PATH:{runc} CARGO_MANIFEST_DIR={folder} CGPU_BIN={programs} CGPU_SKIPS={skips} RUST_BACKTRACE=0 {} {} --test-threads=1 --show-output",
                    executable.path.display(),
                    filters.join(" "),
                )
            }
        })
    }
}

/// cgpu's own unit, before the steps.
fn units(init: Init) -> String {
    match init {
        Init::Shell | Init::ShellOfVersion1 => String::new(),
        Init::Systemd => format!(
            "cp {}/configs/systemd/cgpu.service /etc/systemd/system/\nsystemctl daemon-reload\nsystemctl start cgpu.service\nsystemctl --no-pager status cgpu.service\n",
            repository().display()
        ),
    }
}

fn read(results: &Path, number: usize, place: Place, step: Step) -> Result<Report> {
    let file = |kind: &str| results.join(format!("{number}.{kind}"));
    let status = fs::read_to_string(file("status"))?;
    let numbers: Vec<f64> = status
        .split_whitespace()
        .map_while(|text| text.parse().ok())
        .collect();
    let [code, began, ended] = numbers.as_slice() else {
        bail!("no code and two moments: {status}");
    };
    let text = fs::read(file("out"))?;
    let text = String::from_utf8_lossy(&text);
    let mut report = Report::failed(place, step, "");
    let mut reader = Reader::default();
    match step {
        Step::Tests(..) => {
            text.lines().for_each(|line| reader.read(line));
            // A test's own line has no end yet when it skips.
            let skips = fs::read_to_string(file("skips")).unwrap_or_default();
            let read: Vec<String> = skips.lines().map(str::to_owned).collect();
            reader.skips.retain(|skip| !read.contains(skip));
            reader.skips.extend(read);
        }
        Step::Row(..) | Step::Plain(..) if file("json").exists() => {
            report.cells = serde_json::from_slice(&fs::read(file("json"))?)?;
        }
        Step::Starts(_) if file("json").exists() => {
            report.starts = Some(Starts::read(&file("json"))?);
            reader.counts.passed = 1;
        }
        Step::Row(..) | Step::Plain(..) | Step::Starts(_) => {}
        Step::Script(_, _, expected) | Step::Reboots(_, _, expected) => {
            match expected.iter().find(|part| !text.contains(**part)) {
                None => reader.counts.passed = 1,
                Some(missing) => {
                    reader.counts.failed = 1;
                    reader.shown = format!("FAILED: no \"{missing}\" in:\n{text}\n");
                }
            }
        }
    }
    for cell in &report.cells {
        let (counts, check, reason) = (&mut reader.counts, &cell.check, &cell.reason);
        let (count, heading) = match cell.outcome {
            CellOutcome::Passed => {
                counts.passed += 1;
                continue;
            }
            CellOutcome::Failed => (&mut counts.failed, "FAILED"),
            CellOutcome::Skipped => (&mut counts.ignored, "left out"),
        };
        *count += 1;
        let line = format!("{heading}: {check}: {reason}\n");
        reader.shown.push_str(&line);
    }
    if *code != 0.0 && reader.counts.failed == 0 {
        reader.counts.failed = 1;
        reader.shown = format!("FAILED: it ended with {code}\n{text}\n");
    }
    report.outcome.counts = reader.counts;
    report.outcome.shown = reader.shown;
    report.outcome.skips = reader.skips;
    report.outcome.took = Duration::from_secs_f64((ended - began).max(0.0));
    Ok(report)
}
