//! `cgpu-burn load` in slices of one simulated card: filter, brokers, simulator, all real.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

const PROFILE: &str = r#"
[driver]
version = "570.195.03"

[[card]]
name = "Simulated RTX 4090"
memory_mib = 4096
architecture = "ada"
block_us = 100
"#;

/// A simulator that several slices use.
struct Host {
    dir: TempDir,
    sim: Child,
}

impl Drop for Host {
    fn drop(&mut self) {
        // A test that has failed already leaves it to the system.
        drop(self.sim.kill());
        drop(self.sim.wait());
    }
}

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_cgpu-burn")).with_file_name(name)
}

impl Host {
    /// `None`, said aloud, where a slice cannot be made.
    fn start(test: &str) -> Option<Self> {
        for program in ["cgpu", "cgpu-sim", "cgpu-broker"] {
            if !beside(program).is_file() {
                println!("SKIP: {test}: {program} is not built beside cgpu-burn");
                return None;
            }
        }
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: {test}: needs root");
            return None;
        }
        if let Err(error) = sys::seccomp::supported() {
            println!("SKIP: {test}: no seccomp user notification: {error}");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cards.toml"), PROFILE).unwrap();
        let state_dir = dir.path().join("state");
        std::fs::create_dir(&state_dir).unwrap();
        let config = format!(
            "state_dir = \"{}\"\n[driver]\nkind = \"sim\"\n",
            state_dir.display()
        );
        std::fs::write(dir.path().join("cgpu.toml"), config).unwrap();
        let mut sim = Command::new(beside("cgpu-sim"))
            .arg("--profile")
            .arg(dir.path().join("cards.toml"))
            .arg("--state-dir")
            .arg(&state_dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(sim.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        Some(Self { dir, sim })
    }

    /// A load in a slice of its own.
    fn load(&self, options: &[&str]) -> Child {
        Command::new(beside("cgpu"))
            .args(["run", "--memory", "256Mi", "--"])
            .arg(env!("CARGO_BIN_EXE_cgpu-burn"))
            .args(["--json", "load"])
            .args(options)
            .env("CGPU_CONFIG", self.dir.path().join("cgpu.toml"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// The card's own account.
    fn account(&self) -> Value {
        let output = Command::new(beside("cgpu-sim"))
            .args(["account", "--state-dir"])
            .arg(self.dir.path().join("state"))
            .output()
            .unwrap();
        let cards: Value = serde_json::from_slice(&output.stdout).unwrap();
        cards[0].clone()
    }

    /// Waits for an account of which something holds.
    fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let account = self.account();
            if holds(&account) {
                return account;
            }
            assert!(Instant::now() < deadline, "{what}: {account}");
        }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// Compute time by session.
fn used_ns(account: &Value) -> Vec<u64> {
    let sessions = account["engine_ns"].as_array().unwrap();
    sessions.iter().map(|pair| number(&pair[1])).collect()
}

fn report(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The load's own process: below that of `cgpu run`.
fn program_of(run: &Child) -> Pid {
    let children = |pid: u32| -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let text = text.unwrap_or_default();
        text.split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    };
    let mut pending = vec![run.id()];
    while let Some(pid) = pending.pop() {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name.trim() == "cgpu-burn" {
            return Pid::from_raw(pid.cast_signed());
        }
        pending.extend(children(pid));
    }
    panic!("no load below {}", run.id());
}

#[test]
fn two_loads_get_half_a_card_each_and_end_with_a_report() {
    let Some(host) = Host::start("two_loads_get_half_a_card_each_and_end_with_a_report") else {
        return;
    };
    let options = ["--seconds", "0", "--kernel-us", "2000", "--depth", "256"];
    let loads = [host.load(&options), host.load(&options)];
    // Both have been served for a while, and have all their kernels on the card.
    let before = host.until("both run", |account| {
        let used = used_ns(account);
        used.len() == 2 && used.iter().all(|used| *used > 200_000_000)
    });
    let at_ns = number(&before["at_ns"]);
    let after = host.until("half a second", |account| {
        number(&account["at_ns"]) >= at_ns + 500_000_000
    });
    let got: Vec<u64> = used_ns(&after)
        .iter()
        .zip(used_ns(&before))
        .map(|(after, before)| after - before)
        .collect();
    let whole = number(&after["at_ns"]) - at_ns;
    let switching = number(&after["switching_ns"]) - number(&before["switching_ns"]);
    let sum: u64 = got.iter().sum();
    assert!(
        (sum + switching) * 100 >= whole * 99,
        "the card stood still: {got:?} and {switching} of {whole}"
    );
    assert!(
        got[0].abs_diff(got[1]) * 100 <= 2 * sum,
        "{got:?} of {whole}"
    );
    for load in &loads {
        kill(program_of(load), Signal::SIGTERM).unwrap();
    }
    for load in loads {
        let reply = report(&load.wait_with_output().unwrap());
        assert_eq!(reply["error"], Value::Null, "{reply}");
        assert_eq!(reply["kernel_ns"], 2_000_000, "{reply}");
        let (kernels, busy_ns) = (number(&reply["kernels"]), number(&reply["busy_ns"]));
        assert!(kernels > 100 && busy_ns == kernels * 2_000_000, "{reply}");
        assert!(
            number(&reply["end_ns"]) > number(&reply["start_ns"]),
            "{reply}"
        );
    }
    // Nothing of them is left on the card.
    host.until("the sessions' end", |account| used_ns(account).is_empty());
}

#[test]
fn requests_at_random_and_impossible_requests() {
    let Some(host) = Host::start("requests_at_random_and_impossible_requests") else {
        return;
    };
    let options = [
        "--seconds",
        "1",
        "--kernel-us",
        "500",
        "--poisson",
        "200",
        "--batch",
        "2",
    ];
    let reply = report(&host.load(&options).wait_with_output().unwrap());
    let requests = number(&reply["requests"]);
    assert!((20..=320).contains(&requests), "{reply}");
    assert!(number(&reply["kernels"]) >= 2 * requests, "{reply}");
    assert!(
        number(&reply["latency"]["p50_ns"]) >= 1_000_000,
        "two kernels of half a millisecond: {reply}"
    );
    for (options, expect) in [
        (&["--depth", "0"][..], "--depth 0: must be 1 to"),
        (&["--card", "7"], "no GPU 7 here"),
        (&["--bursts", "5"], "ON/OFF"),
        (&["--kernel-us", "0"], "--kernel-us 0: must be 1 to"),
    ] {
        let output = host.load(options).wait_with_output().unwrap();
        assert_ne!(output.status.code(), Some(0), "{options:?}");
        let reply = String::from_utf8_lossy(&output.stderr);
        assert!(reply.contains(expect), "{options:?}: {reply}");
    }
}
