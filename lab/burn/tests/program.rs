//! The program as a person starts it, on a machine without any driver.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

use std::process::{Command, Output};

fn burn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cgpu-burn"))
        .args(arguments)
        .output()
        .unwrap()
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn burn_without_a_driver_fails_and_a_size_without_unit_is_explained() {
    let empty = tempfile::tempdir().unwrap();
    let dev = empty.path().to_str().unwrap();
    let output = burn(&["--dev", dev, "alloc", "1Mi"]);
    assert_eq!(output.status.code(), Some(1));
    let error = error_of(&output);
    assert!(
        error.contains("nvidiactl") && error.contains("no GPU here"),
        "{error}"
    );
    // A node behind which nobody is.
    std::fs::write(empty.path().join("nvidiactl"), "").unwrap();
    let error = error_of(&burn(&["--dev", dev, "alloc", "1Mi"]));
    assert!(
        !error.contains("no GPU here") && error.contains("nobody answers"),
        "{error}"
    );
    let output = burn(&["alloc", "4G"]);
    assert_ne!(output.status.code(), Some(0));
    assert!(error_of(&output).contains("e.g. 512Mi"));
}

#[test]
fn every_spelling_of_a_call_is_made_even_without_a_filter() {
    let output = burn(&["--json", "vectors"]);
    let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let vectors = reply["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 36);
    // Nothing answers EBUSY to a second listener here, and the report must say so.
    assert_eq!(output.status.code(), Some(1));
    let listener = vectors
        .iter()
        .find(|vector| vector["vector"] == "second listener")
        .unwrap();
    assert_eq!(listener["errno"], "EFAULT");
}
