//! Runs probes one after another, each with its time limit, and writes the report.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::RunOptions;
use crate::bundle::Bundle;
use crate::catalogue::{self, PROBES, Place, Probe, UNANSWERED};
use crate::probes::{Line, RECORDINGS, SIMULATE};
use crate::report::{Finding, Outcome, Report, State, VERSION};

/// What the driver shows where it is loaded.
const DRIVER: &str = "/proc/driver/nvidia/version";

pub(crate) fn run(options: &RunOptions) -> anyhow::Result<ExitCode> {
    for name in &options.only {
        if catalogue::find(name).is_none() {
            let known: Vec<&str> = PROBES.iter().map(|probe| probe.name).collect();
            bail!(
                "--only {name}: no such probe; there are {}",
                known.join(", ")
            );
        }
    }
    let bundle = Bundle::find(options.simulate.as_deref())?;
    std::fs::create_dir_all(&options.out).context("make the folder of the report")?;
    let recordings = options
        .out
        .canonicalize()
        .context("find the folder of the report")?
        .join("recordings");
    if !bundle.is_simulated() && !Path::new(DRIVER).exists() {
        bail!(
            "no NVIDIA driver here ({DRIVER} is missing); --simulate PROFILE proves the bundle without one"
        );
    }
    let began = Instant::now();
    let budget = Duration::from_secs(options.budget_s);
    let mut report = Report {
        version: VERSION,
        on: if bundle.is_simulated() {
            "simulated"
        } else {
            "card"
        }
        .to_owned(),
        seconds: 0.0,
        probes: Vec::new(),
    };
    for probe in PROBES {
        if !options.only.is_empty() && !options.only.iter().any(|name| name == probe.name) {
            continue;
        }
        let outcome = one(
            &bundle,
            &recordings,
            probe,
            budget.saturating_sub(began.elapsed()),
        );
        progress(&outcome);
        report.probes.push(outcome);
        // After each: a machine that goes away leaves what was found.
        report.seconds = began.elapsed().as_secs_f64();
        report.write(&options.out)?;
    }
    if options.only.is_empty() {
        report
            .probes
            .extend(UNANSWERED.iter().map(|(question, why)| Outcome {
                name: (*question).to_owned(),
                questions: Vec::new(),
                seconds: 0.0,
                state: State::NotRun {
                    why: (*why).to_owned(),
                },
            }));
        report.write(&options.out)?;
    }
    print(&format!(
        "report: {}",
        options.out.join("report.md").display()
    ));
    let failed = report
        .probes
        .iter()
        .any(|probe| matches!(probe.state, State::Failed { .. }));
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn one(bundle: &Bundle, recordings: &Path, probe: &Probe, left: Duration) -> Outcome {
    let began = Instant::now();
    let state = if left < Duration::from_secs(5) {
        State::NotRun {
            why: "the time budget is spent".to_owned(),
        }
    } else {
        let limit = Duration::from_secs(probe.limit_s).min(left);
        watched(bundle, recordings, probe, limit).unwrap_or_else(|error| State::Failed {
            why: format!("{error:#}"),
            findings: Vec::new(),
        })
    };
    Outcome {
        name: probe.name.to_owned(),
        questions: probe
            .questions
            .iter()
            .map(|question| (*question).to_owned())
            .collect(),
        seconds: began.elapsed().as_secs_f64(),
        state,
    }
}

/// One probe in a process of its own, killed with all its children at the limit.
fn watched(
    bundle: &Bundle,
    recordings: &Path,
    probe: &Probe,
    limit: Duration,
) -> anyhow::Result<State> {
    let me = std::env::current_exe().context("find this program")?;
    let mut command = match probe.place {
        Place::Card => bundle.bare(&me),
        Place::Host => Command::new(&me),
    };
    command
        .arg("probe")
        .arg(probe.name)
        .env(RECORDINGS, recordings);
    if let Some(profile) = bundle.profile() {
        command.env(SIMULATE, profile);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("start {command:?}"))?;
    let out = child.stdout.take().context("standard output is a pipe")?;
    let err = child.stderr.take().context("standard error is a pipe")?;
    let complaints = std::thread::spawn(move || {
        BufReader::new(err)
            .lines()
            .map_while(Result::ok)
            .last()
            .unwrap_or_default()
    });
    let (reply, heard) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if reply.send(line).is_err() {
                break;
            }
        }
    });
    let deadline = Instant::now() + limit;
    let mut findings = Vec::new();
    let mut not_run = None;
    let in_time = loop {
        match heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Line::Found { what, value }) => findings.push(Finding { what, value }),
                Ok(Line::NotRun { why }) => not_run = Some(why),
                // A program that the probe ran has said something.
                Err(_not_ours) => {}
            },
            Err(mpsc::RecvTimeoutError::Disconnected) => break true,
            Err(mpsc::RecvTimeoutError::Timeout) => break false,
        }
    };
    if !in_time {
        // A process in a hung driver call may outlive even this; the report does not wait for it.
        let group = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        let _gone = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGTERM);
        std::thread::sleep(Duration::from_millis(500));
        let _gone = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        return Ok(State::Failed {
            why: format!("not finished after {} s", limit.as_secs()),
            findings,
        });
    }
    let status = child.wait().context("wait for the probe")?;
    let complaint = complaints.join().unwrap_or_default();
    drop(reader);
    Ok(match not_run {
        Some(why) => State::NotRun { why },
        None if status.success() => State::Ran { findings },
        None => State::Failed {
            why: format!("{status}: {complaint}"),
            findings,
        },
    })
}

fn progress(outcome: &Outcome) {
    let state = match &outcome.state {
        State::Ran { findings } => format!("{} findings", findings.len()),
        State::NotRun { why } => format!("not run: {why}"),
        State::Failed { why, .. } => format!("FAILED: {why}"),
    };
    print(&format!(
        "{:<18} {:>6.1} s  {state}",
        outcome.name, outcome.seconds
    ));
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn print(line: &str) {
    println!("{line}");
}
