//! Classic pods name no handler of the container engine, and without cgpu's there is no card in a container.

use anyhow::{Context, Result, ensure};
use integration::cluster::Recorded;
use serde_json::{Value, json};

#[test]
fn every_classic_pod_gets_the_handler() -> Result<()> {
    let recorded = Recorded::read()?;
    for (case, handler) in [
        ("memory alone", json!("cgpu")),
        ("whole cards are the scheduler's work", json!("cgpu")),
        ("a whole card of NVIDIA's handler", json!("cgpu")),
        ("a whole card of the author's own handler", json!("kata")),
        (
            "a whole card in a namespace that is left alone",
            Value::Null,
        ),
    ] {
        let answer = recorded.answers.get(case);
        let answer = answer.with_context(|| format!("no answer to {case}"))?;
        let seen = &answer.admitted["runtimeClassName"];
        ensure!(*seen == handler, "{case}: {seen}, not {handler}");
    }
    Ok(())
}
