//! The commands that look at a host, on one with simulated cards and a container of `cgpu run`: explain, inspect, logs, report, top.
#![cfg(feature = "host")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use common::{beside, can_make_slices};

const LIMIT: Duration = Duration::from_secs(30);
/// What no output may have.
const SECRET: &str = "a-secret-of-the-container";

/// Two simulated cards.
struct Host {
    dir: TempDir,
    sim: Child,
}

impl Host {
    /// `None`, said aloud, where a slice cannot be made.
    fn start(test: &str) -> Option<Self> {
        if !can_make_slices(test, &["cgpu-sim", "cgpu-broker"]) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::write(
            dir.path().join("cgpu.toml"),
            format!("state_dir = {state:?}\n"),
        )
        .unwrap();
        let mut sim = Command::new(beside("cgpu-sim"))
            .args(["--profile", "two-ada", "--state-dir"])
            .arg(&state)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(sim.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert!(line.contains("ready"), "{line}");
        Some(Self { dir, sim })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu"));
        command.args(arguments);
        command.env("CGPU_CONFIG", self.dir.path().join("cgpu.toml"));
        command.current_dir(self.dir.path());
        command
    }

    fn cgpu(&self, arguments: &[&str]) -> Output {
        self.command(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.cgpu(arguments);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.cgpu(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A command with a vGPU that waits until it is dropped, and its name.
    fn container(&self, options: &[&str]) -> (Waiting, String) {
        let before = self.ids();
        let mut command = self.command(&["run"]);
        command.args(options).args(["--", "sleep", "600"]);
        command.env("SECRET", SECRET).stdin(Stdio::null());
        let waiting = Waiting(command.spawn().unwrap());
        let until = Instant::now() + LIMIT;
        loop {
            let mut ids = self.ids().into_iter();
            if let Some(id) = ids.find(|id| !before.contains(id)) {
                return (waiting, id);
            }
            assert!(Instant::now() < until, "no container");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The containers whose brokers answer.
    fn ids(&self) -> Vec<String> {
        let ps = self.json(&["ps", "--json"]);
        let vgpus = ps["vgpus"].as_array().unwrap().iter();
        let running = vgpus.filter(|vgpu| vgpu["state"] == "running");
        running
            .map(|vgpu| vgpu["container"].as_str().unwrap().to_owned())
            .collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        end(&mut self.sim);
    }
}

/// A `cgpu run`, which ends with this.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

fn end(child: &mut Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    if kill(pid, Signal::SIGTERM).is_ok() {
        child.wait().unwrap();
    }
}

#[test]
fn explain_names_the_card_that_a_request_then_gets() {
    let Some(host) = Host::start("explain_names_the_card_that_a_request_then_gets") else {
        return;
    };
    let (_filling, _) = host.container(&["--memory", "20Gi"]);
    let explained = host.json(&["explain", "--memory", "6Gi", "--json"]);
    assert_eq!(explained["cards"][0]["outcome"], "memory", "{explained}");
    assert_eq!(explained["cards"][1]["outcome"], "chosen", "{explained}");
    let (_second, id) = host.container(&["--memory", "6Gi"]);
    let inspected = host.json(&["inspect", &id, "--json"]);
    assert_eq!(
        inspected["vgpu"]["cards"][0]["uuid"],
        explained["cards"][1]["uuid"]
    );
    let refused = host.cgpu(&["explain", "--memory", "30Gi"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(text.starts_with("Refused: 30 GiB on one card"), "{text}");
    for (arguments, code, part) in [
        (
            &["explain", "--memory", "4Gx"][..],
            2,
            "--memory = \"4Gx\" is not allowed",
        ),
        (&["explain", &id][..], 1, "give its options instead"),
        (
            &["explain", &id, "--compute", "30"][..],
            2,
            "a request of its own",
        ),
        (&["explain", "absent"][..], 1, "no container \"absent\""),
    ] {
        let output = host.cgpu(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(code) && error.contains(part),
            "{arguments:?}: {error}"
        );
    }
    // A driver that answers nobody: no container starts.
    let mut host = host;
    host.sim.kill().unwrap();
    host.sim.wait().unwrap();
    let silent = host.cgpu(&["explain", "--memory", "1Gi"]);
    let text = String::from_utf8_lossy(&silent.stdout).into_owned();
    assert_eq!(silent.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("Refused: the driver does not answer (") && !text.contains("chosen"),
        "{text}"
    );
}

/// Name and bytes of what is in an archive.
fn unpacked(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = flate2::read::GzDecoder::new(File::open(path).unwrap());
    let mut archive = tar::Archive::new(file);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        (name, bytes)
    });
    entries.collect()
}

#[test]
fn one_container_is_inspected_its_log_read_and_its_secrets_are_in_no_report() {
    let test = "one_container_is_inspected_its_log_read_and_its_secrets_are_in_no_report";
    let Some(host) = Host::start(test) else {
        return;
    };
    let (waiting, id) = host.container(&["--memory", "4Gi", "--compute", "20%"]);
    let text = host.text(&["inspect", &id]);
    for part in [
        &format!("cgpu-run/{id}"),
        "4096 MiB",
        "fixed 20 %",
        "backend broker",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let mut follow = host.command(&["logs", &id, "--follow"]);
    let follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let reported = host.text(&["report", "--output", "report.tar.gz"]);
    assert!(reported.contains("report.tar.gz"), "{reported}");
    let again = host.cgpu(&["report", "--output", "report.tar.gz"]);
    assert_eq!(again.status.code(), Some(1), "nothing is overwritten");
    let archive = unpacked(&host.dir.path().join("report.tar.gz"));
    for name in [
        "contents.txt",
        "doctor.json",
        "ps.json",
        "cards.json",
        "metrics.prom",
        "events.jsonl",
        "cgpu.toml",
    ] {
        assert!(
            archive.contains_key(&format!("cgpu-report/{name}")),
            "{:?}",
            archive.keys()
        );
    }
    assert!(archive.contains_key(&format!("cgpu-report/logs/cgpu-run/{id}/broker.log")));
    for (name, bytes) in &archive {
        let text = String::from_utf8_lossy(bytes);
        assert!(
            !text.contains(SECRET),
            "{name} has a container's environment"
        );
    }
    // Nobody reads: none of them waits for an end.
    for endless in [
        &["logs", &id, "--follow"][..],
        &["top", "--json", "-d", "0.1"],
        &["top", "--batch", "-d", "0.1"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut unread = host.command(endless).stdout(writer).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while unread.try_wait().unwrap().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let ended = unread.try_wait().unwrap();
        unread.kill().unwrap();
        let is_fine = ended.is_some_and(|status| status.success());
        assert!(is_fine, "{endless:?}: {ended:?}");
    }
    // It ends with the container, and has its last lines.
    drop(waiting);
    let followed = follow.wait_with_output().unwrap();
    let lines = String::from_utf8_lossy(&followed.stdout).into_owned();
    assert!(
        followed.status.success() && lines.contains("told to end"),
        "{lines}"
    );
    let gone = host.cgpu(&["inspect", &id]);
    assert_eq!(gone.status.code(), Some(1));
}

#[test]
fn top_prints_what_it_shows_where_there_is_no_terminal() {
    let Some(host) = Host::start("top_prints_what_it_shows_where_there_is_no_terminal") else {
        return;
    };
    let (_waiting, id) = host.container(&["--memory", "4Gi"]);
    let once = host.text(&["top"]);
    assert!(
        once.contains("Simulated RTX 4090") && once.contains(&id),
        "{once}"
    );
    let lines = host.text(&["top", "--json", "-n", "2", "-d", "0.1"]);
    let documents: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(documents.len(), 2);
    assert_eq!(documents[1]["vgpus"][0]["container"], id.as_str());
    assert!(documents[0]["at_unix_ms"].as_u64() < documents[1]["at_unix_ms"].as_u64());
    for (arguments, part) in [
        (&["top", "-d", "0"][..], "allowed are 0.1 to 3600"),
        (&["top", "-n", "0"][..], "0"),
        (&["top", "--once", "--batch"][..], "cannot be used with"),
    ] {
        let output = host.cgpu(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && error.contains(part),
            "{arguments:?}: {error}"
        );
    }
}

#[test]
fn a_grant_that_cannot_be_read_hides_no_other_container() {
    let Some(host) = Host::start("a_grant_that_cannot_be_read_hides_no_other_container") else {
        return;
    };
    let (_waiting, id) = host.container(&["--memory", "1Gi"]);
    let torn = host.dir.path().join("state/vgpus/moby/torn");
    fs::create_dir_all(&torn).unwrap();
    fs::write(torn.join("grant.json"), "{").unwrap();
    for command in [
        &["ps"][..],
        &["ps", "--json"],
        &["ps", "--quiet"],
        &["top", "--once"],
        &["upgrade"],
    ] {
        let output = host.cgpu(command);
        let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        assert!(out.contains(&id), "{command:?}: {out}{err}");
        assert!(err.contains("moby/torn: grant "), "{command:?}: {err}");
        assert_eq!(output.status.code(), Some(1), "{command:?}");
    }
    assert!(host.text(&["inspect", &id]).contains(&id));
    assert_eq!(host.cgpu(&["inspect", "moby/torn"]).status.code(), Some(1));
    let doctor = host.json(&["doctor", "--json"]);
    let checks = doctor["checks"].as_array().unwrap();
    let of = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(of("grants")["level"], "broken");
    assert_eq!(of("stale grants")["level"], "ok", "a start does not fail");
    // Nothing is taken from it: its grant stays where it is.
    assert!(torn.join("grant.json").exists());
}

#[test]
fn what_cannot_be_printed_names_standard_output_and_another_user_needs_root() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let Some(host) = Host::start("what_cannot_be_printed_names_standard_output") else {
        return;
    };
    for command in ["events", "metrics"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = host.command(&[command]).stdout(full).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.contains("write to standard output"),
            "{command}: {error}"
        );
    }
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(host.dir.path(), open).unwrap();
    let output = host.command(&["smi"]).uid(65_534).output();
    let output = output.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("needs root"), "{error}");
}

fn has_child(pid: u32, name: &str) -> bool {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().any(|child| {
        let comm = fs::read_to_string(format!("/proc/{child}/comm"));
        comm.is_ok_and(|comm| comm.trim() == name)
    })
}

/// The broker's process and that of its supervisor, as the container's folder names the latter.
fn kill_all_that_serve(host: &Host, id: &str) {
    let named = host.dir.path().join("state/vgpus/cgpu-run").join(id);
    let named: Value =
        serde_json::from_slice(&fs::read(named.join("broker.pid")).unwrap()).unwrap();
    let supervisor = named["pid"].as_i64().unwrap();
    let children = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = fs::read_to_string(children).unwrap();
    let pid = |number: &str| Pid::from_raw(number.parse().unwrap());
    let supervisor = pid(&supervisor.to_string());
    kill(supervisor, Signal::SIGSTOP).unwrap();
    for child in children.split_whitespace() {
        kill(pid(child), Signal::SIGKILL).unwrap();
    }
    kill(supervisor, Signal::SIGKILL).unwrap();
}

#[test]
fn a_broker_that_is_gone_is_noticed_while_the_command_runs() {
    let Some(host) = Host::start("a_broker_that_is_gone_is_noticed_while_the_command_runs") else {
        return;
    };
    let (waiting, id) = host.container(&["--memory", "1Gi"]);
    let until = Instant::now() + LIMIT;
    while !has_child(waiting.0.id(), "sleep") {
        assert!(Instant::now() < until, "the command does not run");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_all_that_serve(&host, &id);
    loop {
        let events = host.cgpu(&["events", &id, "--kind", "broker_gone"]);
        let events = String::from_utf8_lossy(&events.stdout).into_owned();
        if events.contains("every GPU call of the container fails from now on") {
            assert_eq!(events.lines().count(), 1, "{events}");
            break;
        }
        assert!(Instant::now() < until, "{events}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let ps = host.text(&["ps"]);
    assert!(
        ps.contains("broker gone") && ps.contains("every GPU call"),
        "{ps}"
    );
}
