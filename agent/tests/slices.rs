//! The agent beside real brokers, with simulated cards.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

#[expect(dead_code, reason = "the other tests play their brokers")]
mod host;
#[expect(dead_code, reason = "the fixture of all tests of the agent")]
mod served;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use host::{Host, soon};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use served::Agent;

const PROFILE: &str = r#"
[driver]
version = "570.195.03"

[[card]]
name = "Simulated L4"
memory_mib = 24576
architecture = "ada"
count = 1
"#;

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_cgpu-agent")).with_file_name(name)
}

/// A process of the test's, which ends with it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.0.id().cast_signed());
        let _gone = kill(pid, Signal::SIGTERM);
        drop(self.0.wait());
    }
}

/// Processes that are stopped, until this ends.
struct Stopped([Pid; 2]);

impl Stopped {
    fn new(processes: [Pid; 2]) -> Self {
        let stopped = Self(processes);
        stopped.signal(Signal::SIGSTOP);
        stopped
    }

    fn signal(&self, signal: Signal) {
        for pid in self.0 {
            let _gone = kill(pid, signal);
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
    }
}

/// Starts a program and waits for its first line.
fn started(command: &mut Command) -> Ended {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_ne!(line, "", "{command:?} ended");
    Ended(child)
}

#[test]
fn a_broker_that_is_stopped_is_absent_and_back_when_it_goes_on() {
    const TEST: &str = "a_broker_that_is_stopped_is_absent_and_back_when_it_goes_on";
    for program in ["cgpu", "cgpu-sim", "cgpu-broker", "cgpu-burn"] {
        if !beside(program).is_file() {
            println!("SKIP: {TEST}: {program} is not built beside cgpu-agent");
            return;
        }
    }
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: {TEST}: needs root");
        return;
    }
    let host = Host::new();
    let profile = host.path("cards.toml");
    std::fs::write(&profile, PROFILE).unwrap();
    let mut sim = Command::new(beside("cgpu-sim"));
    sim.arg("--state-dir").arg(host.state_dir());
    let _sim = started(sim.arg("--profile").arg(&profile));
    let cgpu = || {
        let mut cgpu = Command::new(beside("cgpu"));
        cgpu.env("CGPU_CONFIG", host.path("cgpu.toml"));
        cgpu
    };
    let burn = beside("cgpu-burn");
    let mut run = cgpu();
    run.args(["run", "--memory", "1Gi", "--"]).arg(burn);
    let run = started(run.args(["hold", "64Mi"]));
    let agent = Agent::start(&mut host.command("127.0.0.1:0"));
    let name = format!("engine_namespace=\"cgpu-run\",name=\"{}\"", run.0.id());
    let used = || {
        agent
            .get("/metrics")
            .value("cgpu_memory_used_bytes", &[&name])
    };
    let held = f64::from(64_u32 << 20);
    assert!(used() >= Some(held), "{:?}", used());
    let answer = agent.get("/metrics");
    let calls = answer.value("cgpu_call_duration_seconds_count", &[&name]);
    assert!(calls > Some(0.0), "{calls:?}");
    assert_eq!(answer.value("cgpu_card_containers", &[]), Some(1.0));
    let ps = cgpu().args(["ps", "--json"]).output().unwrap();
    let ps: Value = serde_json::from_slice(&ps.stdout).unwrap();
    // The supervisor would replace a broker that does not answer.
    let stopped = Stopped::new(["supervisor_pid", "broker_pid"].map(|process| {
        let pid = ps["vgpus"][0][process].as_i64().unwrap();
        Pid::from_raw(pid.try_into().unwrap())
    }));
    soon("its figures are absent", || used().is_none());
    let up = agent.get("/metrics").value("cgpu_broker_up", &[&name]);
    assert_eq!(up, Some(0.0));
    drop(stopped);
    soon("they are back", || used() >= Some(held));
    drop(run);
    soon("the container is gone", || {
        agent
            .get("/metrics")
            .value("cgpu_broker_up", &[&name])
            .is_none()
    });
}
