//! `cargo xtask test`: format, lints, and every test of the workspace.
//!
//! Everything is built once, with one set of features, and the test executables are run some at a time. Lints are checked beside them,
//! or by the build itself where clippy is its compiler.
//! No crate has documentation tests: `cargo test --doc` would compile each crate again, to run none.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use integration::cache::repository;
use integration::command::{find, line, progress};
use integration::packages::ensure_installed;
use integration::prefetch;
use integration::programs::{Profile, Programs, target_folder};

use crate::guest;
use crate::suite::executables::{self, Executable};
use crate::suite::reader::Counts;
use crate::suite::{Layer, cargo, runner};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Which tests.
    #[arg(value_enum, default_value_t = Which::All)]
    layer: Which,
    /// Only tests whose name contains this; no lints.
    #[arg(long)]
    only: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    /// Neither root nor another process is needed.
    Pure,
    /// Processes of ours, runc, seccomp.
    Host,
    /// containerd, docker, podman, CRI-O, hostile tenants.
    Engines,
    /// All of them, format and lints.
    All,
}

impl Which {
    fn has(self, layer: Layer) -> bool {
        match self {
            Self::All => true,
            Self::Pure => layer == Layer::Pure,
            Self::Host => layer == Layer::Host,
            Self::Engines => layer == Layer::Engines,
        }
    }
}

/// What is not Rust and that builds and tests use.
const TOOLS: [(&str, &str); 3] = [
    ("script", "bsdutils"),
    ("setpriv", "util-linux"),
    ("python3", "python3"),
];

/// How long each step took, for the table at the end.
#[derive(Default)]
struct Times(Vec<(String, Duration)>);

impl Times {
    fn take<T>(&mut self, what: &str, step: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = step();
        self.0.push((what.to_owned(), began.elapsed()));
        done
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let began = Instant::now();
    let mut counts = Counts::default();
    let mut times = Times::default();
    if integration::skip::lacks_root().is_none() {
        ensure_installed(&TOOLS)?;
    }
    let is_whole = options.layer == Which::All && options.only.is_none();
    let skips = target_folder().join("skips");
    fs::create_dir_all(target_folder())?;
    fs::write(&skips, "")?;
    if is_whole {
        checks(&mut counts)?;
    }
    progress("building programs and tests");
    let fetches = options.layer.has(Layer::Engines)
        && options.only.is_none()
        && integration::skip::lacks_root().is_none();
    if fetches {
        // Nobody waits for it but a test that needs what is on its way.
        thread::spawn(prefetch::all);
    }
    let built = times.take("build", executables::build)?;
    let chosen = chosen(built.tests, options.layer);
    let for_guest = chosen.clone();
    let needs_programs = chosen.iter().any(|one| one.layer() == Layer::Engines);
    let programs = match needs_programs {
        true => Some(times.take("build for images", || Programs::gather(Profile::Dev))?),
        false => None,
    };
    let settings = runner::Settings {
        filter: options.only.as_deref(),
        programs: programs.as_ref().map(Programs::folder),
        skips: &skips,
        scratch: &target_folder(),
        limit: runner::LIMIT,
    };
    let lints = thread::scope(|scope| -> Result<bool> {
        let lints = (is_whole && !executables::lints()).then(|| scope.spawn(lints));
        progress("tests");
        let tested = test(chosen, &settings, &mut times)?;
        counts.add(tested);
        match lints.map(thread::ScopedJoinHandle::join) {
            None => Ok(no_warnings(built.warnings)),
            Some(Ok(passed)) => passed,
            Some(Err(_panicked)) => bail!("the lints' thread has panicked"),
        }
    })?;
    // Not beside the others: it took five times as long, and they longer by what that saved (two processors, one run).
    if let Some(programs) = programs.as_ref().filter(|_| options.only.is_none()) {
        let run = || guest::short(&for_guest, programs.folder());
        let ended = times.take("tests, in a guest with version 2 of control groups", run);
        counts.add(of_guest(ended, &skips)?);
    }
    if is_whole {
        counts.add(Counts {
            passed: u64::from(lints),
            failed: u64::from(!lints),
            ignored: 0,
        });
    }
    report(counts, &skips, &times, began.elapsed())
}

/// The longest first, so that none of them is the last to run; then engines' tests, which take longer than others.
fn chosen(executables: Vec<Executable>, which: Which) -> Vec<Executable> {
    let mut chosen = executables;
    chosen.retain(|executable| which.has(executable.layer()));
    chosen.sort_by_key(|executable| {
        let at = LONGEST.iter().position(|name| *name == executable.target);
        (
            at.unwrap_or(LONGEST.len()),
            std::cmp::Reverse(executable.layer()),
        )
    });
    chosen
}

/// Tests that take minutes, by how many (the table at the end of a run in a fresh clone).
const LONGEST: [&str; 10] = [
    "matrix",
    "packages",
    "upgrade",
    "attacks",
    "calls",
    "slices",
    "driver",
    "referee",
    "lifecycle",
    "engines",
];

fn test(
    executables: Vec<Executable>,
    settings: &runner::Settings<'_>,
    times: &mut Times,
) -> Result<Counts> {
    let mut layers = Layer::ALL.map(|layer| (layer, Counts::default(), Duration::ZERO));
    let layer_of: Vec<(String, Layer)> = executables
        .iter()
        .map(|executable| (executable.name(), executable.layer()))
        .collect();
    let mut reply = Ok(());
    let mut slowest: Vec<(String, Duration)> = Vec::new();
    runner::run(executables, settings, |outcome| {
        println!("{}", outcome.line());
        print!("{}", outcome.shown);
        if reply.is_ok() {
            reply = record_skips(settings.skips, &outcome.skips);
        }
        let layer = layer_of.iter().find(|(name, _)| *name == outcome.name);
        for (of, counts, took) in &mut layers {
            if layer.is_some_and(|(_, layer)| layer == of) {
                counts.add(outcome.counts);
                *took += outcome.took;
            }
        }
        slowest.push((outcome.name, outcome.took));
    });
    reply?;
    let mut counts = Counts::default();
    for (layer, of_layer, took) in layers {
        counts.add(of_layer);
        if of_layer != Counts::default() {
            let name = format!("tests, {}, one after another", layer.name());
            times.0.push((name, took));
        }
    }
    if counts == Counts::default() {
        bail!("no test was run");
    }
    slowest.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    slowest.truncate(8);
    let slowest = slowest.into_iter();
    times
        .0
        .extend(slowest.map(|(name, took)| (format!("  {name}"), took)));
    Ok(counts)
}

/// What was asked in a guest; a machine that can have none skips aloud.
fn of_guest(ended: Result<Vec<runner::Outcome>>, skips: &Path) -> Result<Counts> {
    let mut counts = Counts::default();
    match ended {
        Ok(outcomes) => {
            for outcome in outcomes {
                println!("{}", outcome.line());
                print!("{}", outcome.shown);
                record_skips(skips, &outcome.skips)?;
                counts.add(outcome.counts);
            }
        }
        Err(error) => {
            let reason = format!("{error:#}").replace('\n', " ");
            record_skips(skips, &[format!("SKIP: guest: {reason}")])?;
            // As a test that skips.
            counts.passed = 1;
        }
    }
    Ok(counts)
}

fn record_skips(file: &Path, skips: &[String]) -> Result<()> {
    use std::io::Write;
    let mut file = fs::OpenOptions::new().append(true).open(file)?;
    for skip in skips {
        writeln!(file, "{skip}")?;
    }
    Ok(())
}

/// What is checked before anything is built.
fn checks(counts: &mut Counts) -> Result<()> {
    step("format", cargo(&["fmt", "--all", "--check"]), counts)?;
    if find("cargo-deny").is_some() && repository().join("deny.toml").exists() {
        let deny = cargo(&["deny", "check", "bans", "licenses", "sources"]);
        return step("licences and sources", deny, counts);
    }
    integration::skip::record("licences and sources", "no cargo-deny");
    counts.ignored += 1;
    Ok(())
}

/// Whether a build that lints has found nothing.
fn no_warnings(warnings: usize) -> bool {
    if warnings > 0 {
        eprintln!("FAILED: lints: {warnings} warnings of the build");
    }
    warnings == 0
}

/// Whether clippy has nothing to say.
fn lints() -> Result<bool> {
    let args = ["clippy", "--workspace", "--all-targets", "--quiet"];
    let mut command = cargo(&args);
    command.args(["--", "-D", "warnings"]);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting `{}`", line(&command)))?;
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        eprintln!("FAILED: lints: `{}`", line(&command));
    }
    Ok(output.status.success())
}

fn report(counts: Counts, skips: &Path, times: &Times, took: Duration) -> Result<ExitCode> {
    let skipped = fs::read_to_string(skips)?;
    let skipped: Vec<&str> = skipped.lines().collect();
    // A test that skips aloud returns without having checked anything: the runner calls that passed.
    let aloud = u64::try_from(skipped.len())?;
    println!();
    for (what, took) in &times.0 {
        println!("{:>7.1} s  {what}", took.as_secs_f64());
    }
    println!("{:>7.1} s  in all", took.as_secs_f64());
    println!();
    for skip in &skipped {
        println!("{skip}");
    }
    println!(
        "{} passed, {} failed, {} skipped",
        counts.passed.saturating_sub(aloud),
        counts.failed,
        counts.ignored + aloud
    );
    Ok(if counts.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One check that is not a test: it counts as one.
fn step(what: &str, mut command: Command, counts: &mut Counts) -> Result<()> {
    progress(what);
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting `{}`", line(&command)))?;
    if status.success() {
        counts.passed += 1;
    } else {
        eprintln!("FAILED: {what}: `{}`", line(&command));
        counts.failed += 1;
    }
    Ok(())
}
