//! Programs on the card as it is, then the same in a slice: every call that they make, and the first that a slice answers otherwise.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use serde_json::{Value, json};

use super::host::which;
use super::{End, RECORDINGS, found, torch};
use crate::bundle::Bundle;
use crate::record::{Answer, Call, differences, other_answers, unknown};

/// Differences that a report names; the first says what to mend, the last ones mostly follow from it.
const MOST_DIFFERENCES: usize = 20;
/// Of controls that were answered otherwise.
const MOST_OTHER_ANSWERS: usize = 60;

/// How a program is run: natively, or in a slice with these options.
struct Way {
    name: &'static str,
    options: Option<&'static [&'static str]>,
    /// Not tried where another one has gone well.
    is_last_resort: bool,
}

const fn slice(name: &'static str, options: &'static [&'static str]) -> Way {
    Way {
        name,
        options: Some(options),
        is_last_resort: false,
    }
}

const fn last_resort(name: &'static str, options: &'static [&'static str]) -> Way {
    Way {
        is_last_resort: true,
        ..slice(name, options)
    }
}

const NATIVELY: Way = Way {
    name: "natively",
    options: None,
    is_last_resort: false,
};
const SIMULATED: &[Way] = &[slice("simulated", &[])];
/// From the least that may go wrong to the most, then with less and less of what a slice does besides.
const ON_A_CARD: &[Way] = &[
    slice("strict", &["--mode", "strict"]),
    slice("compat", &["--mode", "compat"]),
    slice(
        "strict, without the driver's page of figures",
        &["--mode", "strict", "--card-figures", "refuse"],
    ),
    last_resort(
        "strict, time not shared",
        &["--mode", "strict", "--policy", "native"],
    ),
    last_resort(
        "compat, managed memory not counted, time not shared",
        &[
            "--mode",
            "compat",
            "--managed",
            "allow",
            "--policy",
            "native",
        ],
    ),
];

/// One program.
struct Program {
    name: &'static str,
    /// What its recordings are called.
    file: &'static str,
    /// The slice that it is tried in.
    memory: &'static str,
    command: Vec<String>,
}

pub(super) fn probe(bundle: &Bundle) -> anyhow::Result<End> {
    let temporary = tempfile::tempdir().context("make a folder")?;
    let kept = std::env::var_os(RECORDINGS).map(PathBuf::from);
    let folder = kept.as_deref().unwrap_or_else(|| temporary.path());
    std::fs::create_dir_all(folder).context("make the folder of recordings")?;
    for program in programs(bundle, temporary.path())? {
        let name = program.name;
        let native = match recorded(bundle, &program, &NATIVELY, folder) {
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
                "output": native.reply,
                "calls": native.calls.len(),
                "without a row in cgpu's tables": unknown(&native.calls),
            }),
        );
        found(
            format!("{name}, every call natively"),
            by_call(&native.calls),
        );
        let ways = if bundle.is_simulated() {
            SIMULATED
        } else {
            ON_A_CARD
        };
        let mut went_well = false;
        for (at, way) in ways.iter().enumerate() {
            // Both modes are asked for anyhow; the rest only where neither will do.
            if way.is_last_resort && went_well {
                continue;
            }
            let next = ways
                .get(at + 1)
                .map_or("no other way is left", |it| it.name);
            let verdict = match recorded(bundle, &program, way, folder) {
                Ok(here) => {
                    went_well |= here.status == native.status;
                    verdict(&native, &here, next)
                }
                Err(error) => json!({"failed": format!("{error:#}"), "tried next": next}),
            };
            found(format!("{name}, {}", way.name), verdict);
        }
    }
    Ok(End::Done)
}

/// What a slice did to a program.
fn verdict(native: &Ended, here: &Ended, next: &str) -> Value {
    let mut all = differences(&native.calls, &here.calls);
    let count = all.len();
    all.truncate(MOST_DIFFERENCES);
    let mut others = other_answers(&native.calls, &here.calls);
    others.truncate(MOST_OTHER_ANSWERS);
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
        "output": here.reply,
        "calls": here.calls.len(),
        "first refused": first,
        "refused": count,
        "the first of them": all,
        "answered otherwise": others,
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
                file: "within",
                memory: "1Gi",
                command: words(&[burn, "--json", "alloc", "512Mi"]),
            },
            Program {
                name: "memory beyond the quota",
                file: "beyond",
                memory: "1Gi",
                command: words(&[burn, "--json", "alloc", "2Gi"]),
            },
        ]);
    }
    let cuda = bundle.program("cgpu-cuda");
    let cuda = cuda.to_str().context("the bundle's path is no text")?;
    let mut programs = vec![Program {
        name: "a small CUDA program",
        file: "cuda",
        memory: "8Gi",
        command: words(&[cuda]),
    }];
    if let Some(tool) = which("nvidia-smi") {
        programs.push(Program {
            name: "nvidia-smi",
            file: "nvidia-smi",
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
            file: "torch",
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
    reply: Option<String>,
}

/// Of what a program said; a report is no log.
const MOST_PRINTED: usize = 2000;

/// A program under the recorder: on the card itself, or in a slice with these options.
fn recorded(bundle: &Bundle, program: &Program, way: &Way, folder: &Path) -> anyhow::Result<Ended> {
    let me = std::env::current_exe().context("find this program")?;
    let name = way.name.replace(", ", "-").replace([' ', '\''], "-");
    let out = folder.join(format!("{}-{name}.jsonl", program.file));
    let mut command = match way.options {
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
        let reply = [&output.stdout[..], &output.stderr[..]].concat();
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let last = reply.char_indices().rev().nth(MOST_PRINTED);
        let last = last.map_or(0, |(at, _)| at);
        Ok(Ended {
            status,
            reply: (status != 0).then(|| reply.get(last..).unwrap_or_default().to_owned()),
            calls: lines
                .map(serde_json::from_str)
                .collect::<Result<_, _>>()
                .context("a recorded call")?,
        })
    };
    read().with_context(|| {
        let reply = String::from_utf8_lossy(&output.stderr);
        format!(
            "{}: {}",
            output.status,
            reply.lines().last().unwrap_or_default()
        )
    })
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
