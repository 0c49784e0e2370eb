//! `cgpu-card record`, in front of no driver: programs, their children and their threads are followed to their ends.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// The status of a recorded shell script, and its calls.
fn recorded(script: &str) -> (i32, Vec<serde_json::Value>) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("calls");
    let output = Command::new(env!("CARGO_BIN_EXE_cgpu-card"))
        .args(["record", "--dev", "/nowhere", "--out"])
        .arg(&out)
        .args(["--", "sh", "-c", script])
        .output()
        .unwrap();
    let reply = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{reply}");
    let text = std::fs::read_to_string(&out).unwrap();
    let mut lines = text.lines();
    let status = lines.next().unwrap().parse().unwrap();
    let calls = lines.map(|line| serde_json::from_str(line).unwrap());
    (status, calls.collect())
}

#[test]
fn calls_of_a_program_and_of_what_it_starts_are_recorded_with_their_answers() {
    let (status, calls) = recorded(
        "cat /nowhere/nvidiactl; (cat /nowhere/nvidia0) & wait; cat /dev/null /nowhere/other; exit 3",
    );
    assert_eq!(status, 3);
    let opened: Vec<_> = calls
        .iter()
        .map(|call| {
            (
                call["call"].as_str().unwrap(),
                call["path"].as_str().unwrap(),
                &call["answer"],
            )
        })
        .collect();
    let refused = serde_json::json!({"errno": 2});
    assert_eq!(
        opened,
        [
            ("open", "/nowhere/nvidiactl", &refused),
            ("open", "/nowhere/nvidia0", &refused)
        ]
    );
    assert_ne!(calls[0]["thread"], calls[1]["thread"]);
}

#[test]
fn signals_reach_a_recorded_program_and_its_end_by_one_is_reported() {
    let (status, calls) = recorded("trap 'exit 5' USR1; kill -USR1 $$; exit 6");
    assert_eq!((status, calls.len()), (5, 0));
    let (status, _) = recorded("kill -KILL $$");
    assert_eq!(status, -9);
}

#[test]
fn what_cannot_be_recorded_is_reported() {
    let output = Command::new(env!("CARGO_BIN_EXE_cgpu-card"))
        .args(["record", "--out", "/dev/null", "--", "/nowhere/program"])
        .output()
        .unwrap();
    let reply = String::from_utf8_lossy(&output.stderr);
    assert!(reply.contains("start /nowhere/program"), "{reply}");
}
