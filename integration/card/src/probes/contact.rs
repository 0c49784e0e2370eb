//! Programs on the card as it is, then the same in a slice: every call that they make, and the first that a slice answers otherwise.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use serde_json::{Value, json};

use super::host::which;
use super::{End, found, torch};
use crate::bundle::Bundle;
use crate::record::{Answer, Call, differences, unknown};

/// Differences that a report names; the first says what to mend, the last ones mostly follow from it.
const MOST_DIFFERENCES: usize = 20;

/// One program.
struct Program {
    name: &'static str,
    /// The slice that it is tried in.
    memory: &'static str,
    command: Vec<String>,
}

pub(super) fn probe(bundle: &Bundle) -> anyhow::Result<End> {
    let folder = tempfile::tempdir().context("make a folder")?;
    // From the least that may go wrong to the most.
    let modes: &[&[&str]] = if bundle.is_simulated() {
        &[&[]]
    } else {
        &[&["--mode", "strict"], &["--mode", "compat"]]
    };
    for program in programs(bundle, folder.path())? {
        let name = program.name;
        let native = match recorded(bundle, &program, None, folder.path()) {
            Ok(native) => native,
            Err(error) => {
                found(
                    format!("{name}, natively"),
                    json!({"failed": format!("{error:#}")}),
                );
                continue;
            }
        };
        found(
            format!("{name}, natively"),
            json!({
                "ended with": native.status,
                "said": native.said,
                "calls": native.calls.len(),
                "without a row in cgpu's tables": unknown(&native.calls),
            }),
        );
        found(
            format!("{name}, every call natively"),
            by_call(&native.calls),
        );
        for (at, mode) in modes.iter().enumerate() {
            let way = mode.get(1).unwrap_or(&"simulated");
            let next = modes.get(at + 1).and_then(|mode| mode.get(1));
            let next = next.map_or("no other way is left", |mode| *mode);
            let verdict = match recorded(bundle, &program, Some(mode), folder.path()) {
                Ok(here) => verdict(&native, &here, next),
                Err(error) => json!({"failed": format!("{error:#}"), "tried next": next}),
            };
            found(format!("{name}, {way}"), verdict);
        }
    }
    Ok(End::Done)
}

/// What a slice did to a program.
fn verdict(native: &Ended, here: &Ended, next: &str) -> Value {
    let mut all = differences(&native.calls, &here.calls);
    let count = all.len();
    all.truncate(MOST_DIFFERENCES);
    let first = all.first().map(|it| {
        format!(
            "step {} of {}, {}: natively {}, here {}",
            it.step,
            here.calls.len(),
            it.call,
            it.natively,
            it.here
        )
    });
    let went_well = here.status == native.status;
    json!({
        "ended with": here.status,
        "said": here.said,
        "calls": here.calls.len(),
        "first refused": first,
        "refused": count,
        "the first of them": all,
        "tried next": (!went_well).then_some(next),
    })
}

/// Each call with how often it was made and the answers that it got, most frequent first.
fn by_call(calls: &[Call]) -> Value {
    let mut rows: Vec<(String, usize, Vec<Answer>)> = Vec::new();
    for call in calls {
        let name = call.what.to_string();
        match rows.iter_mut().find(|(of, ..)| *of == name) {
            Some((_, times, answers)) => {
                *times += 1;
                if !answers.contains(&call.answer) {
                    answers.push(call.answer);
                }
            }
            None => rows.push((name, 1, vec![call.answer])),
        }
    }
    rows.sort_by_key(|(_, times, _)| std::cmp::Reverse(*times));
    let rows = rows.into_iter().map(|(name, times, answers)| {
        let answers: Vec<String> = answers.iter().map(ToString::to_string).collect();
        json!([name, times, answers.join(", ")])
    });
    Value::Array(rows.collect())
}

fn programs(bundle: &Bundle, folder: &Path) -> anyhow::Result<Vec<Program>> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    if bundle.is_simulated() {
        // The vendor's programs are licensed for its cards; more than the slice has is refused there and not natively.
        let burn = bundle.program("cgpu-burn");
        let burn = burn.to_str().context("the bundle's path is no text")?;
        return Ok(vec![
            Program {
                name: "memory within the quota",
                memory: "1Gi",
                command: words(&[burn, "--json", "alloc", "512Mi"]),
            },
            Program {
                name: "memory beyond the quota",
                memory: "1Gi",
                command: words(&[burn, "--json", "alloc", "2Gi"]),
            },
        ]);
    }
    let cuda = bundle.program("cgpu-cuda");
    let cuda = cuda.to_str().context("the bundle's path is no text")?;
    let mut programs = vec![Program {
        name: "a small CUDA program",
        memory: "8Gi",
        command: words(&[cuda]),
    }];
    if let Some(tool) = which("nvidia-smi") {
        programs.push(Program {
            name: "nvidia-smi",
            memory: "8Gi",
            command: vec![tool],
        });
    }
    if let Ok(python) = torch::python() {
        let script = folder.join("torch_probe.py");
        std::fs::write(&script, torch::SCRIPT).context("write the script")?;
        let script = script.to_str().context("a folder's path is no text")?;
        programs.push(Program {
            name: "PyTorch, a matrix product",
            memory: "8Gi",
            command: words(&[&python, script, "matmul"]),
        });
    }
    Ok(programs)
}

/// How a recorded program ended.
struct Ended {
    status: i32,
    calls: Vec<Call>,
    /// The last lines of what it said, where it failed.
    said: Option<String>,
}

/// Of what a program said; a report is no log.
const MOST_SAID: usize = 2000;

/// A program under the recorder: on the card itself, or in a slice with these options.
fn recorded(
    bundle: &Bundle,
    program: &Program,
    mode: Option<&[&str]>,
    folder: &Path,
) -> anyhow::Result<Ended> {
    let me = std::env::current_exe().context("find this program")?;
    let out = folder.join("calls.jsonl");
    let mut command = match mode {
        None => bundle.bare(&me),
        Some(options) => {
            let mut command = bundle.run(program.memory, options);
            command.arg(&me);
            command
        }
    };
    command.arg("record").arg("--out").arg(&out).arg("--");
    let output = command
        .args(&program.command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("start {command:?}"))?;
    let read = || -> anyhow::Result<Ended> {
        let text = std::fs::read_to_string(&out).context("read the recording")?;
        let mut lines = text.lines();
        let status = lines.next().context("an empty recording")?;
        let status = serde_json::from_str(status).context("the recording's head")?;
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let last = said.char_indices().rev().nth(MOST_SAID);
        let last = last.map_or(0, |(at, _)| at);
        Ok(Ended {
            status,
            said: (status != 0).then(|| said.get(last..).unwrap_or_default().to_owned()),
            calls: lines
                .map(serde_json::from_str)
                .collect::<Result<_, _>>()
                .context("a recorded call")?,
        })
    };
    let ended = read().with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!(
            "{}: {}",
            output.status,
            said.lines().last().unwrap_or_default()
        )
    });
    let _gone = std::fs::remove_file(&out);
    ended
}

/// `cgpu-card record`: the status of the program on the first line, then a call a line.
pub(crate) fn record_here(out: &Path, dev: &Path, command: &[String]) -> anyhow::Result<()> {
    let release = rmclient::Client::connect(&rmclient::Nodes::in_dir(dev))
        .map(|client| client.release())
        .ok();
    let me = std::env::current_exe().context("find this program")?;
    let mut held = Command::new(me);
    held.arg("held").arg("--").args(command);
    let recording = crate::record::record(&mut held, release)?;
    let mut text = format!("{}\n", recording.status);
    for call in &recording.calls {
        text.push_str(&serde_json::to_string(call)?);
        text.push('\n');
    }
    std::fs::write(out, text).with_context(|| format!("write {}", out.display()))?;
    if recording.left_out > 0 {
        anyhow::bail!("{} calls were not kept", recording.left_out);
    }
    Ok(())
}
