//! PyTorch as it is installed, unmodified, in slices.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};

use super::host::{reply, which};
use super::{End, found};
use crate::bundle::Bundle;

pub(super) const SCRIPT: &str = include_str!("torch.py");

pub(super) fn probe(bundle: &Bundle) -> anyhow::Result<End> {
    if bundle.is_simulated() {
        return Ok(End::NotRun(
            "CUDA's libraries are licensed for the vendor's cards only".to_owned(),
        ));
    }
    let python = match python() {
        Ok(python) => python,
        Err(why) => return Ok(End::NotRun(why)),
    };
    let folder = tempfile::tempdir().context("make a folder for the script")?;
    let script = folder.path().join("torch_probe.py");
    std::fs::write(&script, SCRIPT).context("write the script")?;
    let bare = |task: &str| {
        let mut command = Command::new(&python);
        command.arg(&script).arg(task);
        command
    };
    let inside = |memory: &str, options: &[&str], task: &str| {
        let mut command = bundle.run(memory, options);
        command.arg(&python).arg(&script).arg(task);
        command
    };
    found("context, bare", timed(&mut bare("context")));
    for mode in ["strict", "compat"] {
        let options = ["--mode", mode];
        found(
            format!("context, {mode}"),
            timed(&mut inside("8Gi", &options, "context")),
        );
        for task in ["total", "oom", "matmul", "pinned", "ipc", "managed"] {
            found(
                format!("{task}, {mode}"),
                timed(&mut inside("8Gi", &options, task)),
            );
        }
    }
    found("context, bare again", timed(&mut bare("context")));
    found("matmul, bare", timed(&mut bare("matmul")));
    // Two at once, each filling its own slice: neither may see or touch the other's.
    let tenants: Vec<std::process::Child> = ["6Gi", "10Gi"]
        .into_iter()
        .map(|memory| {
            inside(memory, &["--mode", "strict"], "oom")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .context("start a tenant")
        })
        .collect::<anyhow::Result<_>>()?;
    for (tenant, memory) in tenants.into_iter().zip(["6Gi", "10Gi"]) {
        let output = tenant.wait_with_output()?;
        found(
            format!("one of two tenants, {memory}"),
            json!(String::from_utf8_lossy(&output.stdout).trim()),
        );
    }
    Ok(End::Done)
}

/// A Python that has PyTorch; or what is missing.
pub(super) fn python() -> Result<String, String> {
    let Some(python) = which("python3") else {
        return Err("no python3 here".to_owned());
    };
    let has_torch = Command::new(&python)
        .args(["-c", "import torch"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !has_torch {
        return Err("python3 has no torch here".to_owned());
    }
    Ok(python)
}

fn timed(command: &mut Command) -> Value {
    let began = Instant::now();
    let text = reply(command, |_line| true);
    let value: Option<Value> = text
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok());
    json!({"seconds": (began.elapsed().as_secs_f64() * 1e3).round() / 1e3, "output": value.unwrap_or(text)})
}
