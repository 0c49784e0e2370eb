//! Test executables, some at a time: many of them wait more than they compute.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use integration::command::line;

use super::executables::Executable;
use super::reader::{Counts, Reader};

/// Executables at a time.
const AT_ONCE: usize = 4;
/// Tests of how much of a card each tenant gets: one that has no processor asks for less than its share. `card` measures that as its bundle does.
const ALONE: [&str; 2] = ["shares", "card"];
/// Tests at a time in one: each may start daemons of its own.
const THREADS: usize = 2;
/// An executable that takes longer is ended, and has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(20 * 60);

/// How one executable has ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) counts: Counts,
    pub(crate) shown: String,
    pub(crate) skips: Vec<String>,
    pub(crate) took: Duration,
}

impl Outcome {
    /// In one line.
    pub(crate) fn line(&self) -> String {
        let seconds = self.took.as_secs_f64();
        let Counts {
            passed,
            failed,
            ignored,
        } = self.counts;
        format!(
            "{}: {passed} passed, {failed} failed, {ignored} ignored, {seconds:.1} s",
            self.name
        )
    }
}

/// What all executables are run with.
pub(crate) struct Settings<'a> {
    /// Only tests whose name contains this.
    pub(crate) filter: Option<&'a str>,
    /// The folder of our programs.
    pub(crate) programs: Option<&'a Path>,
    /// Where tests note what they skip.
    pub(crate) skips: &'a Path,
    /// For their output until they end.
    pub(crate) scratch: &'a Path,
    /// See [`LIMIT`].
    pub(crate) limit: Duration,
}

/// Runs all, the first ones first, and those that need the machine for themselves when the others have ended. `ended` gets each
/// outcome as it comes.
pub(crate) fn run(
    executables: Vec<Executable>,
    settings: &Settings<'_>,
    mut ended: impl FnMut(Outcome),
) {
    let (alone, beside) = executables
        .into_iter()
        .partition(|executable| ALONE.contains(&executable.target.as_str()));
    run_beside(beside, AT_ONCE, settings, &mut ended);
    run_beside(alone, 1, settings, &mut ended);
}

fn run_beside(
    executables: Vec<Executable>,
    at_once: usize,
    settings: &Settings<'_>,
    ended: &mut dyn FnMut(Outcome),
) {
    let queue = Mutex::new(VecDeque::from(executables));
    let (sender, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        for worker in 0..at_once {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || {
                loop {
                    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                    // One takes the last: not all of them are to start engines at a time.
                    let next = match worker {
                        0 => queue.pop_back(),
                        _ => queue.pop_front(),
                    };
                    drop(queue);
                    let Some(executable) = next else { break };
                    let outcome = one(&executable, settings);
                    let outcome = outcome.unwrap_or_else(|error| Outcome {
                        name: executable.name(),
                        counts: Counts {
                            failed: 1,
                            ..Counts::default()
                        },
                        shown: format!("FAILED: {error:#}\n"),
                        skips: Vec::new(),
                        took: Duration::ZERO,
                    });
                    if sender.send(outcome).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        outcomes.iter().for_each(ended);
    });
}

fn one(executable: &Executable, settings: &Settings<'_>) -> Result<Outcome> {
    let began = Instant::now();
    // Files: a daemon that a test has left would keep a pipe open.
    let [out, err] = [(); 2].map(|()| tempfile::NamedTempFile::new_in(settings.scratch));
    let (out, err) = (out?, err?);
    let to = |file: &File| file.try_clone().map(Stdio::from);
    let mut command = Command::new(&executable.path);
    command.args(settings.filter);
    command
        .arg(format!("--test-threads={THREADS}"))
        .arg("--show-output")
        .current_dir(&executable.folder)
        .env("CARGO_MANIFEST_DIR", &executable.folder)
        .env("CGPU_SKIPS", settings.skips)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(to(out.as_file())?)
        .stderr(to(err.as_file())?);
    if let Some(programs) = settings.programs {
        command.env("CGPU_BIN", programs);
    }
    let mut child = command
        .spawn()
        .with_context(|| format!("starting `{}`", line(&command)))?;
    let mut is_late = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > settings.limit && !is_late {
            is_late = true;
            child.kill()?;
        }
        thread::sleep(Duration::from_millis(50));
    };
    let mut reader = Reader::default();
    for reply in BufReader::new(out.reopen()?).split(b'\n') {
        reader.read(&String::from_utf8_lossy(&reply?));
    }
    if !status.success() && reader.counts.failed == 0 {
        reader.counts.failed = 1;
        let why = match is_late {
            true => format!("was ended after {} s", settings.limit.as_secs_f64()),
            false => format!("ended with {status}"),
        };
        reader
            .shown
            .push_str(&format!("FAILED: `{}` {why}\n", line(&command)));
    }
    if reader.counts.failed > 0 {
        let mut reply = Vec::new();
        err.reopen()?.read_to_end(&mut reply)?;
        reader.shown.push_str(&String::from_utf8_lossy(&reply));
    } else {
        reader.shown.clear();
    }
    Ok(Outcome {
        name: executable.name(),
        counts: reader.counts,
        shown: reader.shown,
        skips: reader.skips,
        took: began.elapsed(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A script in the place of a test executable, run with this limit.
    fn outcome(script: &str, limit: Duration) -> Outcome {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let executable = Executable {
            package: "cgpu-ledger".to_owned(),
            target: "script".to_owned(),
            path,
            folder: folder.path().to_owned(),
        };
        let settings = Settings {
            filter: None,
            programs: None,
            skips: &folder.path().join("skips"),
            scratch: folder.path(),
            limit,
        };
        let mut outcomes = Vec::new();
        run(vec![executable], &settings, |outcome| {
            outcomes.push(outcome);
        });
        outcomes.pop().unwrap()
    }

    #[test]
    fn an_executable_fails_that_takes_too_long_or_ends_otherwise_than_its_tests_report() {
        let passed = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured'";
        let minute = Duration::from_secs(60);
        assert_eq!(outcome(passed, minute).counts.passed, 2);
        let late = outcome("exec sleep 600", Duration::from_millis(50));
        assert_eq!(late.counts.failed, 1);
        assert!(
            late.shown.contains("was ended after 0.05 s"),
            "{}",
            late.shown
        );
        let died = outcome(&format!("{passed}; echo why >&2; exit 3"), minute);
        assert_eq!(died.counts.failed, 1);
        assert!(died.shown.contains("exit status: 3"), "{}", died.shown);
        assert!(died.shown.contains("why"), "{}", died.shown);
    }
}
