//! The machine as it is.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{End, found};
use crate::bundle::Bundle;

/// Small files whose text is a fact, with what they are called in the report.
const FILES: [(&str, &str); 6] = [
    ("kernel", "/proc/sys/kernel/osrelease"),
    ("driver", "/proc/driver/nvidia/version"),
    ("driver parameters", "/proc/driver/nvidia/params"),
    (
        "uvm_disable_hmm",
        "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm",
    ),
    ("this process's cgroups", "/proc/self/cgroup"),
    ("dmesg_restrict", "/proc/sys/kernel/dmesg_restrict"),
];

const LONGEST: usize = 4_000;

pub(super) fn probe(bundle: &Bundle) -> anyhow::Result<End> {
    for (what, path) in FILES {
        found(
            what,
            match fs::read_to_string(path) {
                Ok(text) => json!(cut(&text)),
                Err(error) => json!(error.to_string()),
            },
        );
    }
    found(
        "CPUs",
        std::thread::available_parallelism().map_or(0, usize::from),
    );
    let nodes: Vec<String> = fs::read_dir("/dev")?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("nvidia") || name == "dri")
        .collect();
    found("nodes", json!(nodes));
    found(
        "cgroup v2 controllers",
        fs::read_to_string("/sys/fs/cgroup/cgroup.controllers")
            .unwrap_or_else(|error| error.to_string()),
    );
    found(
        "dmem.capacity",
        fs::read_to_string("/sys/fs/cgroup/dmem.capacity")
            .unwrap_or_else(|error| error.to_string()),
    );
    found(
        "libraries",
        reply(Command::new("ldconfig").arg("-p"), |line| {
            line.contains("libcuda.so") || line.contains("libnvidia-ml.so")
        }),
    );
    for program in ["nvidia-smi", "python3", "runc", "containerd"] {
        found(program, json!(which(program)));
    }
    found(
        "cgpu doctor",
        reply(bundle.cgpu().arg("doctor"), |_line| true),
    );
    Ok(End::Done)
}

/// Where a program is in the usual folders.
pub(super) fn which(program: &str) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .map(|folder| Path::new(folder).join(program))
        .find(|candidate| candidate.is_file())
        .map(|found| found.display().to_string())
}

/// The lines that a command says and that are wanted; its complaint where it fails.
pub(super) fn reply(command: &mut Command, needed: impl Fn(&str) -> bool) -> Value {
    match command.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let lines: Vec<&str> = text.lines().filter(|line| needed(line)).collect();
            if output.status.success() {
                json!(cut(&lines.join("\n")))
            } else {
                let complaint = String::from_utf8_lossy(&output.stderr);
                json!(cut(&format!(
                    "{}: {}\n{}",
                    output.status,
                    complaint.trim(),
                    lines.join("\n")
                )))
            }
        }
        Err(error) => json!(error.to_string()),
    }
}

fn cut(text: &str) -> String {
    text.trim_end().chars().take(LONGEST).collect()
}
