//! `cargo xtask test`: format, lints, and every test of the workspace.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
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

/// What the runner says, line by line. What passing tests have printed is read for their skips, and not shown.
#[derive(Debug, Default)]
struct Reader {
    /// Between `successes:` and the next heading.
    of_passing: bool,
    /// Whose output it is.
    test: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Read {
    is_shown: bool,
    /// With the name of the test that skipped.
    skip: Option<String>,
}

impl Reader {
    fn read(&mut self, line: &str) -> Read {
        if line == "successes:" {
            self.of_passing = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            *self = Self::default();
        } else if let Some(test) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.test = Some(test.to_owned());
        }
        let skip = line.strip_prefix("SKIP: ").map(|reason| match &self.test {
            Some(test) if !reason.contains(test.as_str()) => format!("SKIP: {test}: {reason}"),
            _ => line.to_owned(),
        });
        Read {
            is_shown: !self.of_passing,
            skip,
        }
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
        "cgpu-integration",
        "--exclude",
        "cgpu-security",
        "--no-fail-fast",
    ]);
    tests(&mut unit, options, &skips, &mut counts)?;
    if !options.quick {
        let programs = Programs::build(Profile::Dev)?;
        progress("tests on real engines");
        let mut engines = cargo(&[
            "test",
            "--package",
            "cgpu-integration",
            "--package",
            "cgpu-security",
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
        .args(["--", "--test-threads=2", "--show-output"])
        .env("CGPU_SKIPS", skips)
        .env("RUST_BACKTRACE", "0");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{}`", line(command)))?;
    let out = child.stdout.take().context("standard output is a pipe")?;
    let mut seen = Counts::default();
    let mut reader = Reader::default();
    for said in BufReader::new(out).lines() {
        let said = said?;
        let read = reader.read(&said);
        if read.is_shown {
            println!("{said}");
        }
        if let Some(skip) = read.skip {
            writeln!(OpenOptions::new().append(true).open(skips)?, "{skip}")?;
        }
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
    fn skips_of_passing_tests_are_counted_and_their_output_is_not_shown() {
        let said = [
            ("test one ... ok", true, None),
            ("SKIP: not root", true, Some("SKIP: not root")),
            ("successes:", false, None),
            ("---- part::one stdout ----", false, None),
            ("  a note", false, None),
            (
                "SKIP: no loop devices",
                false,
                Some("SKIP: part::one: no loop devices"),
            ),
            ("---- two stdout ----", false, None),
            (
                "SKIP: two: needs root",
                false,
                Some("SKIP: two: needs root"),
            ),
            ("failures:", true, None),
            ("---- three stdout ----", true, None),
            (
                "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured",
                true,
                None,
            ),
            ("successes:", false, None),
            (
                "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured",
                true,
                None,
            ),
        ];
        let mut reader = Reader::default();
        for (line, is_shown, skip) in said {
            let skip = skip.map(str::to_owned);
            assert_eq!(reader.read(line), Read { is_shown, skip }, "{line}");
        }
    }

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
