//! What a program inside a slice sees, and where its memory ends.

use serde_json::{Value, json};

use super::host::{reply, which};
use super::{End, found};
use crate::bundle::Bundle;

/// The slice of these probes.
const QUOTA: &str = "4Gi";
const QUOTA_BYTES: u64 = 4 << 30;

pub(super) fn probe(bundle: &Bundle) -> anyhow::Result<End> {
    let modes: &[&[&str]] = if bundle.is_simulated() {
        // One executor is behind a simulated card, whatever the mode.
        &[&[]]
    } else {
        &[&["--mode", "strict"], &["--mode", "compat"]]
    };
    for mode in modes {
        let name = mode.get(1).unwrap_or(&"simulated");
        let burn = bundle.program("cgpu-burn");
        let mut smi = bundle.run(QUOTA, mode);
        smi.arg(bundle.program("cgpu")).args(["smi", "--json"]);
        found(format!("cgpu smi, {name}"), reply(&mut smi, |_line| true));
        let mut views = bundle.run(QUOTA, mode);
        views.arg(&burn).args(["--json", "views"]);
        found(
            format!("every view of memory, {name}"),
            reply(&mut views, |_line| true),
        );
        let mut fill = bundle.run(QUOTA, mode);
        fill.arg(&burn)
            .args(["--json", "fill", "--chunk", "64Mi", "--down-to", "64Ki"]);
        let filled = reply(&mut fill, |_line| true);
        let bytes = filled
            .as_str()
            .and_then(|text| serde_json::from_str::<Value>(text).ok())
            .and_then(|value| value.get("got_bytes").and_then(Value::as_u64));
        found(format!("memory until refused, {name}"), filled);
        found(
            format!("quota less what could be had, bytes, {name}"),
            json!(
                bytes
                    .map(|bytes| i128::from(QUOTA_BYTES) - i128::from(bytes))
                    .and_then(|left| i64::try_from(left).ok())
            ),
        );
        let mut references = bundle.run(QUOTA, mode);
        references.arg(&burn).args(["--json", "references"]);
        found(
            format!("references kept, {name}"),
            reply(&mut references, |_line| true),
        );
    }
    Ok(End::Done)
}

/// The vendor's tool, on the vendor's cards only: its licence does not allow any other.
pub(super) fn vendor_tool(bundle: &Bundle) -> anyhow::Result<End> {
    if bundle.is_simulated() {
        return Ok(End::NotRun(
            "the vendor's programs are licensed for its cards only".to_owned(),
        ));
    }
    let Some(tool) = which("nvidia-smi") else {
        return Ok(End::NotRun("no nvidia-smi here".to_owned()));
    };
    let query = "--query-gpu=name,memory.total,memory.used,memory.free,memory.reserved";
    let mut bare = std::process::Command::new(&tool);
    bare.args([query, "--format=csv"]);
    found("bare", reply(&mut bare, |_line| true));
    for mode in ["strict", "compat"] {
        let mut inside = bundle.run(QUOTA, &["--mode", mode]);
        inside.arg(&tool).args([query, "--format=csv"]);
        found(
            format!("in a slice of {QUOTA}, {mode}"),
            reply(&mut inside, |_line| true),
        );
        let mut table = bundle.run(QUOTA, &["--mode", mode]);
        table.arg(&tool);
        found(
            format!("its table, {mode}"),
            reply(&mut table, |line| line.contains("MiB")),
        );
    }
    Ok(End::Done)
}
