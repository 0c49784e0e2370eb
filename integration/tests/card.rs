//! The card's bundle, as far as a machine without a card goes: every probe that can runs on a simulated card, the others say
//! why they did not, and the report says that none of it is about hardware.

use std::collections::HashMap;
use std::process::Command;

use integration::bundle::Bundle;
use integration::skip;
use serde_json::Value;

/// Probes that answer to nothing but a real card.
const REAL_ONLY: [&str; 2] = ["nvidia-smi", "torch"];

#[test]
fn the_bundle_runs_every_probe_on_a_simulated_card_and_reports() {
    if let Some(reason) = skip::lacks_root() {
        return skip::record("the card's bundle", reason);
    }
    let folder = tempfile::tempdir().unwrap();
    let bundle = Bundle::for_tests(&folder.path().join("bundle")).unwrap();
    let out = folder.path().join("report");
    // A host of its own: state and configuration of whoever runs the tests stay out of it.
    let config = folder.path().join("cgpu.toml");
    let state = folder.path().join("state");
    std::fs::write(&config, format!("state_dir = {:?}\n", state)).unwrap();
    let output = Command::new(bundle.frontend())
        .args(["run", "--out"])
        .arg(&out)
        .arg("--simulate")
        .arg(bundle.profile())
        .env("CGPU_CONFIG", &config)
        .output()
        .unwrap();
    let reply = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = std::fs::read_to_string(out.join("report.json")).unwrap_or_else(|error| {
        panic!(
            "{error}: {reply}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["on"], "simulated");
    let states: HashMap<&str, &Value> = report["probes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|probe| (probe["name"].as_str().unwrap(), &probe["state"]))
        .collect();
    for (name, state) in &states {
        let unanswered = name.starts_with("abi-") || name.starts_with('T');
        let expected = if unanswered || REAL_ONLY.contains(name) {
            "not_run"
        } else {
            "ran"
        };
        assert_eq!(state["state"], expected, "{name}: {state:#} {reply}");
    }
    assert!(output.status.success(), "{reply}");
    let finding = |probe: &str, what: &str| -> Value {
        states[probe]["findings"]
            .as_array()
            .unwrap()
            .iter()
            .find(|finding| finding["what"].as_str().unwrap().starts_with(what))
            .unwrap_or_else(|| panic!("{probe} has no {what:?}: {:#}", states[probe]))["value"]
            .clone()
    };
    // What is known of the simulated card must come out of the probes as it is.
    let contact = |name: &str| finding("first-contact", name);
    assert_eq!(contact("memory within the quota, simulated")["refused"], 0);
    let beyond = contact("memory beyond the quota, simulated");
    let refused = beyond["first refused"].as_str().unwrap_or_default();
    assert!(
        refused.ends_with("NV_ESC_RM_ALLOC NV01_MEMORY_LOCAL_USER (0x40): natively NV_OK (0x0), here NV_ERR_NO_MEMORY (0x51)"),
        "{beyond:#}"
    );
    assert_eq!(beyond["tried next"], "no other way is left");
    // The recordings stay, with what was asked and answered.
    for (file, requested) in [("within", 512_u64 << 20), ("beyond", 2 << 30)] {
        let recording = out
            .join("recordings")
            .join(format!("{file}-simulated.jsonl"));
        let recording = std::fs::read_to_string(&recording).unwrap();
        let calls: Vec<Value> = recording
            .lines()
            .skip(1)
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let of_memory = calls.iter().filter(|call| call["key"] == 0x40);
        let mut bytes = 0;
        for call in of_memory {
            // {…; u64 size @64}, of NV_MEMORY_ALLOCATION_PARAMS.
            let params = call["bytes"]["requested"][1].as_str().unwrap();
            let size = u64::from_str_radix(&params[128..144], 16).unwrap();
            bytes += size.swap_bytes();
        }
        assert!(bytes >= requested / 2, "{file}: {bytes}");
    }
    assert_eq!(finding("memory", "allocation of 1 bytes")["size"], 64 << 10);
    assert_eq!(
        finding("memory", "allocation beyond the card"),
        "NV_ERR_NO_MEMORY (0x51)"
    );
    assert_eq!(finding("slice", "quota less what could be had"), 0);
    let sums = finding("sums", "the driver's sum and the ledger's");
    for figure in ["driver_counted_bytes", "ledger_counted_bytes"] {
        assert_eq!(sums[figure], 96 << 20, "{sums:#}");
    }
    assert_eq!(sums["reconciled"]["by_driver"], true, "{sums:#}");
    assert_eq!(
        finding("files", "another process by a duplicate"),
        "NV_OK (0x0)"
    );
    assert_ne!(
        finding("files", "another process by a fresh file"),
        "NV_OK (0x0)"
    );
    assert_ne!(
        finding("foreign-channels", "a stranger's FIFO_DISABLE_CHANNELS"),
        "ok"
    );
    let positions = finding("userd", "GP_GET and GP_PUT after the first entry");
    assert_eq!(positions["get"], positions["put"], "{positions}");
    for situation in [
        "latencies, the card idle",
        "latencies, beside a storm",
        "latencies, on a group whose kernels run",
    ] {
        let gate = &finding("knobs", situation)["FIFO_DISABLE_CHANNELS off and on"];
        assert!(gate["runs"].as_u64().unwrap() > 0, "{situation}: {gate}");
    }
    // How exact shares are is tested where nothing else runs; here, that the probe can tell them apart.
    for slices in ["weights 1 and 3", "10 % and 50 %"] {
        let shares = finding("shares", slices);
        let percent = &shares["percent of the card's time"];
        assert!((0..2).all(|slice| percent[slice].is_f64()), "{shares:#}");
        // Of three seconds one is common to both loads and whole in each, at another moment: a busy machine may take just that from one.
        let kernels = |slice: usize| shares["loads"][slice]["kernels"].as_f64();
        let [less, more] = [0, 1].map(|slice| kernels(slice).unwrap_or(0.0));
        assert!(less > 5.0 && more > 1.5 * less, "{slices}: {shares:#}");
    }
    let kills = finding("crash", "a tenth of the card");
    assert_eq!(kills["ended by"], Value::Null, "{kills:#}");
    let ended = finding("crash", "an application killed");
    let took_ms = ended.as_array().unwrap();
    assert!(
        !took_ms.is_empty() && took_ms.iter().all(Value::is_u64),
        "{ended}"
    );
    let markdown = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(
        markdown.contains("says nothing about hardware"),
        "{markdown}"
    );
}
