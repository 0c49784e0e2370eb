//! `cgpu events`: which of what is logged is printed.
#![cfg(feature = "host")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use cards::ContainerKey;
use cards::events::{self, Event};
use tempfile::TempDir;

/// A state folder with the events of two containers: `a0` to `a5` of one, every tenth of a second, and `b0` of the other.
fn host() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let text = format!("state_dir = {state:?}\n");
    fs::write(dir.path().join("cgpu.toml"), text).unwrap();
    for number in 0..6 {
        let kind = if number % 2 == 0 { "xid" } else { "over_quota" };
        happens(
            &state,
            "a",
            kind,
            1000 + 100 * number,
            &format!("a{number}"),
        );
    }
    happens(&state, "b", "refused", 1050, "b0");
    dir
}

fn happens(state: &Path, id: &str, kind: &str, at_unix_ms: u64, text: &str) {
    let key = ContainerKey::new("default", id).unwrap();
    let event = Event {
        at_unix_ms,
        ..Event::now(kind, text)
    };
    events::append(&events::of_container(state, &key), &event).unwrap();
}

fn command(host: &TempDir, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu"));
    command.arg("events").args(options);
    command.env("CGPU_CONFIG", host.path().join("cgpu.toml"));
    command
}

fn texts(output: &Output) -> Vec<String> {
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = |line: &str| line.rsplit(' ').next().unwrap_or_default().to_owned();
    lines.lines().map(last).collect()
}

fn printed(host: &TempDir, options: &[&str]) -> Vec<String> {
    let output = command(host, options).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    texts(&output)
}

#[test]
fn the_last_ones_those_since_a_moment_and_those_of_kinds_are_printed() {
    let host = host();
    let all = ["a0", "b0", "a1", "a2", "a3", "a4", "a5"];
    assert_eq!(printed(&host, &[]), all);
    assert_eq!(printed(&host, &["-n", "2"]), ["a4", "a5"]);
    assert_eq!(printed(&host, &["--lines", "100"]), all);
    let since = ["--since", "1970-01-01T00:00:01.300Z"];
    assert_eq!(printed(&host, &since), ["a3", "a4", "a5"]);
    assert_eq!(printed(&host, &["--since", "10m"]), ["events"], "No events");
    let of_kinds = ["--kind", "xid", "--kind", "refused"];
    assert_eq!(printed(&host, &of_kinds), ["a0", "b0", "a2", "a4"]);
    // The last ones of those that are asked for.
    assert_eq!(printed(&host, &["--kind", "xid", "-n", "1"]), ["a4"]);
    assert_eq!(
        printed(&host, &["a", "-n", "6", "--kind", "xid"]),
        ["a0", "a2", "a4"]
    );
}

/// It has no vGPU, and another command that looks for it names `cgpu events`.
#[test]
fn a_container_without_a_vgpu_that_has_events_is_pointed_to_them() {
    let host = host();
    happens(
        &host.path().join("state"),
        "nogpu",
        "near_miss",
        3000,
        "it starts without a card",
    );
    for (name, is_known) in [("nogpu", true), ("default/nogpu", true), ("nobody", false)] {
        for command in ["inspect", "explain"] {
            let output = Command::new(env!("CARGO_BIN_EXE_cgpu"))
                .args([command, name])
                .env("CGPU_CONFIG", host.path().join("cgpu.toml"))
                .output()
                .unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains("no container"), "{error}");
            let pointer = format!("cgpu events {name}");
            assert_eq!(error.contains(&pointer), is_known, "{error}");
        }
    }
}

/// The commonest reason for a container without a card leaves no trace: it was never seen.
#[test]
fn events_of_an_unknown_container_name_the_forgotten_runtime() {
    let host = host();
    let output = command(&host, &["web"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let parts = ["no container \"web\"", "not started under cgpu's runtime"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

/// As `tail` and `journalctl` do: who follows wants what comes.
#[test]
fn who_follows_gets_the_last_ten_first() {
    let host = host();
    for number in 0..9 {
        happens(
            &host.path().join("state"),
            "c",
            "xid",
            2000 + number,
            &format!("c{number}"),
        );
    }
    let begins = |options: &[&str], most: usize| {
        use std::io::{BufRead, BufReader};
        let mut run = command(&host, options)
            .arg("--follow")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(run.stdout.take().unwrap()).lines();
        let texts: Vec<String> = lines
            .take(most)
            .map(|line| {
                line.unwrap()
                    .rsplit(' ')
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect();
        run.kill().unwrap();
        run.wait().unwrap();
        texts
    };
    assert_eq!(begins(&[], 2), ["a5", "c0"], "ten of sixteen");
    assert_eq!(begins(&["-n", "1"], 1), ["c8"]);
    assert_eq!(
        begins(&["--since", "1970-01-01T00:00:01.000Z"], 2),
        ["a0", "b0"],
        "all of them"
    );
}

#[test]
fn who_follows_a_name_follows_the_container_that_is_made_anew_under_it() {
    use std::io::{BufRead, BufReader};
    let host = host();
    let happens = |id: &str, text: &str| {
        let key = ContainerKey::new("moby", id).unwrap();
        let event = Event {
            names: serde_json::from_str(r#"{"name": "web"}"#).unwrap(),
            ..Event::now("xid", text)
        };
        let state = host.path().join("state");
        events::append(&events::of_container(&state, &key), &event).unwrap();
    };
    happens("one", "first");
    let mut run = command(&host, &["web", "--follow"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let output = run.stdout.take().unwrap();
    let (lines_in, lines_out) = std::sync::mpsc::channel();
    let _reader = std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.for_each(|line| lines_in.send(line).unwrap());
    });
    let next = || lines_out.recv_timeout(std::time::Duration::from_secs(30));
    let (before, after) = (next(), {
        happens("two", "anew");
        next()
    });
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(before.is_ok_and(|line| line.ends_with("first")));
    assert!(after.is_ok_and(|line| line.ends_with("anew")));
}

#[test]
fn what_is_not_understood_names_what_is_allowed() {
    let host = host();
    for (options, parts) in [
        (
            &["--kind", "xids"][..],
            &["xids", "card_lost", "near_miss"][..],
        ),
        (
            &["--since", "yesterday"],
            &["yesterday", "10m", "2026-11-22T07:16:24Z"],
        ),
        (&["-n", "all"], &["all"]),
    ] {
        let output = command(&host, options).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn a_history_that_is_not_there_is_an_error() {
    let host = host();
    let output = command(&host, &["--history=/nonexistent"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        error.contains("/nonexistent") && error.contains("cgpu-agent"),
        "{error}"
    );
    let empty = host.path().join("history");
    fs::create_dir(&empty).unwrap();
    let history = format!("--history={}", empty.display());
    assert_eq!(printed(&host, &[&history]).len(), 7);
}
