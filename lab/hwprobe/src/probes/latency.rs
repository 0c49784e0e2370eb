//! What a slice costs: the same work bare and inside, turn by turn, so that a machine that speeds up or slows down meets both.

use serde_json::{Map, Value};

use super::host::reply;
use super::{End, found};
use crate::bundle::Bundle;

/// Pairs of runs.
const TURNS: usize = 5;

pub(super) fn probe(bundle: &Bundle) -> anyhow::Result<End> {
    if bundle.is_simulated() {
        // There is no bare run: without a slice nobody answers. The slice alone shows that the work runs.
        let mut calls = bundle.run("4Gi", &[]);
        calls
            .arg(bundle.program("cgpu-burn"))
            .args(["--json", "calls", "--count", "500"]);
        found("in a slice (simulated)", reply(&mut calls, |_line| true));
        return Ok(End::Done);
    }
    for work in [
        &["--json", "calls", "--count", "3000"][..],
        &["--json", "mallocs", "--count", "1000"][..],
    ] {
        let mut rows: Vec<(&str, Vec<Value>)> = vec![
            ("bare", Vec::new()),
            ("strict", Vec::new()),
            ("compat", Vec::new()),
        ];
        for _turn in 0..TURNS {
            for (place, results) in &mut rows {
                let burn = bundle.program("cgpu-burn");
                let mut command = match *place {
                    "bare" => bundle.bare(&burn),
                    mode => {
                        let mut command = bundle.run("4Gi", &["--mode", mode]);
                        command.arg(&burn);
                        command
                    }
                };
                let text = reply(command.args(work), |_line| true);
                let value = text
                    .as_str()
                    .and_then(|text| serde_json::from_str(text).ok());
                results.push(value.unwrap_or(text));
            }
        }
        let what = work.get(1).copied().unwrap_or("work");
        let all: Map<String, Value> = rows
            .into_iter()
            .map(|(place, results)| (place.to_owned(), Value::Array(results)))
            .collect();
        found(format!("`cgpu-burn {what}`, {TURNS} turns"), all);
    }
    Ok(End::Done)
}
