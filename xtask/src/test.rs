//! `cargo xtask test`: format, lints, and every test of the workspace.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use integration::cache::repository;
use integration::command::{find, line, progress};
use integration::packages::ensure_installed;
use integration::programs::{Profile, Programs, target_folder};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out the tests on real engines.
    #[arg(long)]
    quick: bool,
    /// Only tests whose name contains this.
    filter: Option<String>,
}

/// What is not Rust and that builds and tests use.
const TOOLS: [(&str, &str); 3] = [
    ("script", "bsdutils"),
    ("setpriv", "util-linux"),
    ("python3", "python3"),
];

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// From `test result: ok. 6 passed; 0 failed; 0 ignored; …`.
    fn of_line(line: &str) -> Option<Self> {
        let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
        let number = |word: &str| -> Option<u64> {
            counts
                .split("; ")
                .find_map(|part| part.strip_suffix(word)?.trim().parse().ok())
        };
        Some(Self {
            passed: number("passed")?,
            failed: number("failed")?,
            ignored: number("ignored")?,
        })
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let began = Instant::now();
    let mut counts = Counts::default();
    if integration::skip::lacks_root().is_none() {
        ensure_installed(&TOOLS)?;
    }
    if options.filter.is_none() {
        step("format", cargo(&["fmt", "--all", "--check"]), &mut counts)?;
        step(
            "lints",
            cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ]),
            &mut counts,
        )?;
        if find("cargo-deny").is_some() && repository().join("deny.toml").exists() {
            step(
                "licences and sources",
                cargo(&["deny", "check", "bans", "licenses", "sources"]),
                &mut counts,
            )?;
        } else {
            integration::skip::record("licences and sources", "no cargo-deny");
            counts.ignored += 1;
        }
    }

    let skips = target_folder().join("skips");
    fs::create_dir_all(target_folder())?;
    fs::write(&skips, "")?;

    progress("tests of the crates");
    let mut unit = cargo(&[
        "test",
        "--workspace",
        "--exclude",
        "integration",
        "--exclude",
        "security",
        "--no-fail-fast",
    ]);
    tests(&mut unit, options, &skips, &mut counts)?;
    if !options.quick {
        let programs = Programs::build(Profile::Dev)?;
        progress("tests on real engines");
        let mut engines = cargo(&[
            "test",
            "--package",
            "integration",
            "--package",
            "security",
            "--no-fail-fast",
        ]);
        engines.env("CGPU_BIN", programs.folder());
        tests(&mut engines, options, &skips, &mut counts)?;
    }

    let skipped = fs::read_to_string(&skips)?;
    let skipped: Vec<&str> = skipped.lines().collect();
    // A test that skips aloud returns without having checked anything: the runner calls that passed.
    let aloud = u64::try_from(skipped.len())?;
    println!("\nin {} s", began.elapsed().as_secs());
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

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(repository());
    command
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

/// Runs one `cargo test`, shows what it says as it says it, and counts.
fn tests(
    command: &mut Command,
    options: &Options,
    skips: &Path,
    counts: &mut Counts,
) -> Result<()> {
    if let Some(filter) = &options.filter {
        command.arg(filter);
    }
    command
        // Two at a time: each starts daemons of its own.
        .args(["--", "--test-threads=2"])
        .env("CGPU_SKIPS", skips)
        .env("RUST_BACKTRACE", "0");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{}`", line(command)))?;
    let out = child.stdout.take().context("standard output is a pipe")?;
    let mut seen = Counts::default();
    for said in BufReader::new(out).lines() {
        let said = said?;
        println!("{said}");
        if let Some(one) = Counts::of_line(&said) {
            seen.add(one);
        }
    }
    let status = child.wait()?;
    if !status.success() && seen.failed == 0 {
        // It did not compile, or a test ended the process.
        seen.failed += 1;
        eprintln!("FAILED: `{}` ended with {status}", line(command));
    }
    if status.success() && seen == Counts::default() {
        bail!("`{}` ran no test", line(command));
    }
    counts.add(seen);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_runners_line() {
        let line = "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 1s";
        let counts = Counts {
            passed: 3,
            failed: 1,
            ignored: 2,
        };
        assert_eq!(Counts::of_line(line), Some(counts));
        assert_eq!(Counts::of_line("running 3 tests"), None);
    }
}
