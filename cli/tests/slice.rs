//! `cgpu run` with simulated cards of its own, and `cgpu-burn` in the slice: filter, broker, simulator, all real.
#![cfg(feature = "host")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use common::{beside, can_make_slices};

const GIB: u64 = 1 << 30;

const PROFILE: &str = r#"
[driver]
version = "570.195.03"

[[card]]
name = "Simulated RTX 4090"
memory_mib = 24576
architecture = "ada"
count = 2
"#;

/// A state folder, a profile, and the programs.
struct Host {
    dir: TempDir,
}

impl Host {
    /// `None`, said aloud, where a slice cannot be made.
    fn find(test: &str) -> Option<Self> {
        if !can_make_slices(test, &["cgpu-sim", "cgpu-broker", "cgpu-burn"]) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cards.toml"), PROFILE).unwrap();
        let state_dir = dir.path().join("state");
        let config = format!("state_dir = \"{}\"\n", state_dir.display());
        std::fs::write(dir.path().join("cgpu.toml"), config).unwrap();
        Some(Self { dir })
    }

    fn run(&self, options: &[&str], command: &[&str]) -> Output {
        self.run_by(Command::new(env!("CARGO_BIN_EXE_cgpu")), (options, command))
    }

    /// By a command that takes `run` and what is behind it as arguments.
    fn run_by(&self, mut cgpu: Command, (options, command): (&[&str], &[&str])) -> Output {
        cgpu.arg("run")
            .args(options)
            .arg("--simulate")
            .arg(self.dir.path().join("cards.toml"))
            .arg("--")
            .args(command)
            .env("CGPU_CONFIG", self.dir.path().join("cgpu.toml"))
            .output()
            .unwrap()
    }

    /// One load of `cgpu-burn`: its report, which must say that nothing went wrong.
    fn burn(&self, options: &[&str], load: &[&str]) -> Value {
        let program = beside("cgpu-burn");
        let mut command = vec![program.to_str().unwrap(), "--json"];
        command.extend(load);
        let output = self.run(options, &command);
        assert_eq!(output.status.code(), Some(0), "{load:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Folders of simulators that are left.
    fn left(&self) -> Vec<PathBuf> {
        let own = std::fs::read_dir(self.dir.path().join("state/own")).unwrap();
        own.map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect()
    }
}

const ONE_GIB: [&str; 2] = ["--memory", "1Gi"];

#[test]
fn the_slice_is_what_is_seen_and_every_view_agrees() {
    let Some(host) = Host::find("the_slice_is_what_is_seen_and_every_view_agrees") else {
        return;
    };
    let two = ["--memory", "8Gi", "--cards", "2"];
    let output = host.run(&two, &[env!("CARGO_BIN_EXE_cgpu"), "smi", "--json"]);
    let smi: Value = serde_json::from_slice(&output.stdout).unwrap();
    let totals: Vec<_> = smi["cards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["memory_total_bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(totals, [4 * GIB, 4 * GIB]);
    assert_eq!(host.burn(&ONE_GIB, &["views"])["agree"], true);
    assert_eq!(host.left(), Vec::<PathBuf>::new());
}

#[test]
fn all_of_the_quota_can_be_had_and_no_byte_more() {
    let Some(host) = Host::find("all_of_the_quota_can_be_had_and_no_byte_more") else {
        return;
    };
    for path in ["short", "long", "heap"] {
        let filled = host.burn(&ONE_GIB, &["fill", "--down-to", "64Ki", "--path", path]);
        assert_eq!(filled["got_bytes"], GIB, "{path}");
        assert_eq!(filled["status_code"], 0x51, "{path}");
    }
    let over = host.run(
        &ONE_GIB,
        &[beside("cgpu-burn").to_str().unwrap(), "alloc", "1073741825"],
    );
    assert_eq!(over.status.code(), Some(3), "{over:?}");
}

#[test]
fn memory_counts_until_its_last_reference_ends() {
    let Some(host) = Host::find("memory_counts_until_its_last_reference_ends") else {
        return;
    };
    let reply = host.burn(&ONE_GIB, &["references"]);
    for way in ["duplicate", "mapping"] {
        let way = &reply["ways"][way];
        assert_eq!(way["without_handle_bytes"], reply["piece_bytes"], "{reply}");
        assert_eq!(way["after_bytes"], 0, "{reply}");
    }
}

#[test]
fn a_load_from_several_processes_stays_inside_and_leaves_nothing() {
    let Some(host) = Host::find("a_load_from_several_processes_stays_inside_and_leaves_nothing")
    else {
        return;
    };
    let two = ["--memory", "2Gi", "--cards", "2"];
    // A busy machine takes longer to come to the quota.
    for seconds in ["2", "8", "32", "128"] {
        let load = ["churn", "--seconds", seconds, "--processes", "3"];
        let reply = host.burn(&two, &load);
        assert_eq!(reply["used_after_bytes"], 0, "{reply}");
        assert!(reply["used_peak_bytes"].as_u64().unwrap() <= GIB, "{reply}");
        if reply["refused"].as_u64().unwrap() > 0 {
            return;
        }
        println!("the quota was not reached: {reply}");
    }
    panic!("the quota was never reached");
}

#[test]
fn every_spelling_of_a_call_is_caught_and_no_second_listener_comes() {
    let Some(host) = Host::find("every_spelling_of_a_call_is_caught_and_no_second_listener_comes")
    else {
        return;
    };
    host.burn(&ONE_GIB, &["vectors"]);
}

#[test]
fn calls_happen_once_under_signals() {
    let Some(host) = Host::find("calls_happen_once_under_signals") else {
        return;
    };
    let reply = host.burn(&ONE_GIB, &["storm", "--seconds", "2"]);
    assert!(reply["allocations"].as_u64().unwrap() > 0);
    assert_eq!(reply["allocations"], reply["frees"]);
}

#[test]
fn the_exit_code_is_the_command_s() {
    let Some(host) = Host::find("the_exit_code_is_the_command_s") else {
        return;
    };
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 11"], 11),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["/no/such/program"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let output = host.run(&ONE_GIB, command);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
    }
    assert_eq!(host.left(), Vec::<PathBuf>::new());
}

/// What the kernel takes: many arguments, and one of almost 128 KiB.
#[test]
fn a_long_command_is_run_as_it_is() {
    let Some(host) = Host::find("a_long_command_is_run_as_it_is") else {
        return;
    };
    let many = vec!["x".repeat(60); 2_000];
    let one = vec!["x".repeat(100 << 10)];
    for (arguments, bytes) in [(many, 2_000 * 60), (one, 100 << 10)] {
        let mut command = vec!["sh", "-c", r#"IFS=; printf %s "$*" | wc -c"#, "sh"];
        command.extend(arguments.iter().map(String::as_str));
        let output = host.run(&ONE_GIB, &command);
        let reply = String::from_utf8_lossy(&output.stdout);
        assert_eq!(reply.trim(), bytes.to_string(), "{:?}", output.status);
    }
}

#[test]
fn what_the_command_leaves_running_ends_with_it() {
    let Some(host) = Host::find("what_the_command_leaves_running_ends_with_it") else {
        return;
    };
    if !Path::new("/sys/fs/cgroup").exists() {
        println!("SKIP: what_the_command_leaves_running_ends_with_it: no cgroups");
        return;
    }
    let output = host.run(
        &ONE_GIB,
        &["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let pid = String::from_utf8(output.stdout).unwrap();
    // A killed orphan is init's to reap; until then it is a zombie, which runs no more.
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
}

#[test]
fn more_processes_than_descriptors_end_with_the_command() {
    let name = "more_processes_than_descriptors_end_with_the_command";
    let Some(host) = Host::find(name) else {
        return;
    };
    let script = "for i in $(seq 300); do sleep 1000 >/dev/null 2>&1 & done; echo $!";
    let mut few = Command::new("prlimit");
    few.arg("--nofile=128:128").arg(env!("CARGO_BIN_EXE_cgpu"));
    let output = host.run_by(few, (&ONE_GIB, &["sh", "-c", script]));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let last = String::from_utf8_lossy(&output.stdout);
    assert!(!runs(last.trim()), "{output:?}");
}

/// The command's own group, in the hierarchy in which `cgpu run` made it.
const OWN_GROUP: &str = r#"
    g=$(sed -n 's,^[0-9]*:pids:,/sys/fs/cgroup/pids,p' /proc/self/cgroup)
    [ -d "$g" ] || g=/sys/fs/cgroup$(sed -n 's,^0::,,p' /proc/self/cgroup)
    [ -d "$g" ] || g=/sys/fs/cgroup/unified$(sed -n 's,^0::,,p' /proc/self/cgroup)
"#;

#[test]
fn what_runs_in_groups_below_the_command_s_ends_with_it() {
    let name = "what_runs_in_groups_below_the_command_s_ends_with_it";
    let Some(host) = Host::find(name) else {
        return;
    };
    if !Path::new("/sys/fs/cgroup").exists() {
        println!("SKIP: {name}: no cgroups");
        return;
    }
    let script = format!(
        "{OWN_GROUP}
        mkdir -p $g/below/two || exit 9
        sleep 1000 >/dev/null 2>&1 &
        echo $! > $g/below/two/cgroup.procs || exit 9
        echo $! $g"
    );
    let output = host.run(&ONE_GIB, &["sh", "-c", &script]);
    let reply = String::from_utf8_lossy(&output.stdout);
    let (pid, group) = reply.trim().split_once(' ').unwrap();
    assert!(group.contains("/cgpu-run-"), "{reply}");
    assert!(!runs(pid), "{output:?}");
    assert!(!Path::new(group).exists(), "{output:?}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// A frozen process is not killed: one that the driver keeps is as good as that.
#[test]
fn a_process_that_does_not_end_keeps_the_grant() {
    let name = "a_process_that_does_not_end_keeps_the_grant";
    let Some(host) = Host::find(name) else {
        return;
    };
    let frozen = Path::new("/sys/fs/cgroup/freezer");
    if !frozen.join("tasks").exists() {
        println!("SKIP: {name}: no freezer of version 1");
        return;
    }
    let frozen = frozen.join(format!("cgpu-slice-test-{}", std::process::id()));
    std::fs::create_dir(&frozen).unwrap();
    let _sim = Sim::start(&host);
    let run = |script: &str| {
        Command::new(env!("CARGO_BIN_EXE_cgpu"))
            .args([
                "run", "--memory", "40Gi", "--cards", "2", "--", "sh", "-c", script, "sh",
            ])
            .arg(&frozen)
            .env("CGPU_CONFIG", host.dir.path().join("cgpu.toml"))
            .output()
            .unwrap()
    };
    let output = run("sleep 1000 >/dev/null 2>&1 & echo $! > $1/cgroup.procs
        echo FROZEN > $1/freezer.state; echo $!");
    let pid = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let grants = std::fs::read_dir(host.dir.path().join("state/vgpus/cgpu-run"));
    let reply = String::from_utf8_lossy(&output.stderr).into_owned();
    let kept = grants.map_or(0, Iterator::count);
    std::fs::write(frozen.join("freezer.state"), "THAWED").unwrap();
    assert!(
        reply.contains(&format!("do not end: [{pid}]")),
        "{output:?}"
    );
    assert_eq!(kept, 1, "{output:?}");
    // Killed already, it ends now; its broker does so with it, and the next start takes the vGPU back.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !run("true").status.success() {
        assert!(std::time::Instant::now() < until, "{reply}");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::remove_dir(&frozen).unwrap();
}

/// Whether a process runs; a killed orphan that nobody has waited for runs no more.
fn runs(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

#[test]
fn what_a_command_has_started_ends_with_a_run_that_is_killed() {
    let name = "what_a_command_has_started_ends_with_a_run_that_is_killed";
    let Some(host) = Host::find(name) else {
        return;
    };
    if !Path::new("/sys/fs/cgroup").exists() {
        println!("SKIP: {name}: no cgroups");
        return;
    }
    let _sim = Sim::start(&host);
    let mut run = Command::new(env!("CARGO_BIN_EXE_cgpu"))
        .arg("run")
        .args(ONE_GIB)
        .args(["--", "sh", "-c"])
        .arg("setsid sh -c 'sleep 1000 & echo $$ $!; wait' </dev/null & wait")
        .env("CGPU_CONFIG", host.dir.path().join("cgpu.toml"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reply = String::new();
    let mut stdout = BufReader::new(run.stdout.take().unwrap());
    stdout.read_line(&mut reply).unwrap();
    let pids: Vec<&str> = reply.split_whitespace().collect();
    assert_eq!(pids.len(), 2, "{reply}");
    assert!(pids.iter().all(|pid| runs(pid)), "{reply}");
    run.kill().unwrap();
    run.wait().unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while pids.iter().any(|pid| runs(pid)) {
        assert!(std::time::Instant::now() < until, "{reply}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn runs_of_two_pid_namespaces_leave_each_other_alone() {
    let name = "runs_of_two_pid_namespaces_leave_each_other_alone";
    let Some(host) = Host::find(name) else {
        return;
    };
    let _sim = Sim::start(&host);
    let mut first = Requested::start(&host, &ONE_GIB);
    first.share();
    let beside = || {
        Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(env!("CARGO_BIN_EXE_cgpu"))
            .arg("run")
            .args(ONE_GIB)
            .args(["--", "true"])
            .env("CGPU_CONFIG", host.dir.path().join("cgpu.toml"))
            .output()
            .unwrap()
    };
    // The same number each time, in a namespace of its own.
    for _ in 0..2 {
        let output = beside();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    first.share();
    first.end();
}

/// Simulated cards for several commands; they end with it.
struct Sim(std::process::Child);

impl Sim {
    fn start(host: &Host) -> Self {
        let state_dir = host.dir.path().join("state");
        let mut state = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut state, 0o700);
        state.create(&state_dir).unwrap();
        let program = beside("cgpu-sim");
        let mut child = Command::new(program)
            .arg("--profile")
            .arg(host.dir.path().join("cards.toml"))
            .arg("--state-dir")
            .arg(state_dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 5];
        let stdout = child.stdout.as_mut().unwrap();
        stdout.read_exact(&mut ready).unwrap();
        assert_eq!(&ready, b"ready");
        Self(child)
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A slice that says what `cgpu smi` shows in it whenever it is asked, and ends with its input.
struct Requested {
    run: std::process::Child,
    reply: BufReader<std::process::ChildStdout>,
}

impl Requested {
    fn start(host: &Host, options: &[&str]) -> Self {
        let script = r#"while read line; do "$0" smi --json | tr -d '\n'; echo; done"#;
        let mut run = Command::new(env!("CARGO_BIN_EXE_cgpu"))
            .arg("run")
            .args(options)
            .args(["--", "sh", "-c", script, env!("CARGO_BIN_EXE_cgpu")])
            .env("CGPU_CONFIG", host.dir.path().join("cgpu.toml"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let reply = BufReader::new(run.stdout.take().unwrap());
        Self { run, reply }
    }

    fn share(&mut self) -> Value {
        self.run.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.reply.read_line(&mut line).unwrap();
        let smi: Value = serde_json::from_str(&line).unwrap();
        smi["cards"][0]["share"]["text"].clone()
    }

    fn name(&self) -> String {
        self.run.id().to_string()
    }

    fn end(mut self) {
        drop(self.run.stdin.take());
        assert!(self.run.wait().unwrap().success());
    }
}

#[test]
fn a_running_slice_has_another_share_at_once_in_every_view() {
    let Some(host) = Host::find("a_running_slice_has_another_share_at_once_in_every_view") else {
        return;
    };
    let _sim = Sim::start(&host);
    let cgpu = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_cgpu"))
            .args(arguments)
            .env("CGPU_CONFIG", host.dir.path().join("cgpu.toml"))
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let reply = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
        (output.status.success(), reply, error)
    };
    let mut first = Requested::start(
        &host,
        &["--memory", "1Gi", "--cards", "0,", "--compute", "30"],
    );
    let mut second = Requested::start(
        &host,
        &["--memory", "1Gi", "--cards", "0,", "--compute", "60%"],
    );
    assert_eq!(first.share(), "fixed 30 %");
    assert_eq!(second.share(), "fixed 60 %");
    let (done, _, error) = cgpu(&["set", &first.name(), "--compute", "41", "--json"]);
    assert!(!done && error.contains("40 % left"), "{error}");
    assert_eq!(first.share(), "fixed 30 %");
    let both = [
        "set",
        &first.name(),
        "--compute",
        "40",
        "--memory",
        "2Gi",
        "--json",
    ];
    let (done, reply, error) = cgpu(&both);
    assert!(done, "{error}");
    assert_eq!(reply["cards"][0]["quota_bytes"], 2 * GIB);
    assert_eq!(reply["compute"][0]["now"]["percent"], 40);
    assert_eq!(first.share(), "fixed 40 %");
    let (done, _, error) = cgpu(&["set", &first.name(), "--weight", "3"]);
    assert!(done, "{error}");
    assert_eq!(first.share(), "weighted weight 3");
    let (done, reply, error) = cgpu(&["set", "--card", "0", "--policy", "soft", "--json"]);
    assert!(done, "{error}");
    assert_eq!(reply["containers"].as_array().unwrap().len(), 2, "{reply}");
    assert_eq!(first.share(), "soft weight 3");
    assert_eq!(second.share(), "soft 60 %");
    let (_, ps, _) = cgpu(&["ps", "--json"]);
    let mut shares: Vec<String> = ps["vgpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|vgpu| {
            let share = &vgpu["cards"][0]["share"];
            format!(
                "{} {} {}",
                share["policy"], share["percent"], share["weight"]
            )
        })
        .collect();
    shares.sort();
    assert_eq!(shares, ["\"soft\" 60 1", "\"soft\" null 3"], "{ps}");
    let (_, cards, _) = cgpu(&["cards", "--json"]);
    assert_eq!(cards["cards"][0]["compute"]["policy"], "soft");
    assert_eq!(cards["cards"][0]["compute"]["reserved_ppm"], 600_000);
    first.end();
    let (done, _, error) = cgpu(&["set", &second.name(), "--compute", "99"]);
    assert!(done, "{error}");
    let gone = second.name();
    second.end();
    let (done, _, error) = cgpu(&["set", &gone, "--compute", "50"]);
    assert!(!done && error.contains("no container"), "{error}");
}

/// `cgpu events --follow`, event by event; ended with this.
struct Followed {
    run: std::process::Child,
    events: mpsc::Receiver<Value>,
}

impl Followed {
    fn start(host: &Host) -> Self {
        let mut run = Command::new(env!("CARGO_BIN_EXE_cgpu"))
            .args(["events", "--follow", "--json"])
            .env("CGPU_CONFIG", host.dir.path().join("cgpu.toml"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let reply = BufReader::new(run.stdout.take().unwrap());
        let (tell, events) = mpsc::channel();
        std::thread::spawn(move || {
            for line in reply.lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
                // Nobody listens once the test has ended.
                let _unheard = tell.send(event);
            }
        });
        Self { run, events }
    }

    /// The next event's container, kind and text.
    fn next(&self) -> [String; 3] {
        let patience = Duration::from_secs(60);
        let event = self.events.recv_timeout(patience).unwrap();
        ["container", "kind", "text"]
            .map(|field| event[field].as_str().unwrap_or_default().to_owned())
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.run.kill().unwrap();
        self.run.wait().unwrap();
    }
}

#[test]
fn what_happens_to_any_container_is_followed_as_it_happens() {
    let Some(host) = Host::find("what_happens_to_any_container_is_followed_as_it_happens") else {
        return;
    };
    let _sim = Sim::start(&host);
    let one = ["--memory", "1Gi", "--cards", "0,"];
    let set = |container: &str, memory: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_cgpu"))
            .args(["set", container, "--memory", memory])
            .env("CGPU_CONFIG", host.dir.path().join("cgpu.toml"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let reported = |followed: &Followed, container: &str, quota_bytes: u64| {
        let [of, kind, text] = followed.next();
        assert_eq!((&*of, &*kind), (container, "quota_changed"), "{text}");
        let quota = format!("-> {} MiB", quota_bytes >> 20);
        assert!(text.contains(&quota), "{text}");
    };
    let mut first = Requested::start(&host, &one);
    first.share();
    let first_name = first.name();
    set(&first_name, "2Gi");
    // What is there already comes first.
    let followed = Followed::start(&host);
    reported(&followed, &first_name, 2 * GIB);
    let mut second = Requested::start(&host, &one);
    second.share();
    let second_name = second.name();
    set(&second_name, "3Gi");
    reported(&followed, &second_name, 3 * GIB);
    set(&first_name, "4Gi");
    reported(&followed, &first_name, 4 * GIB);
    // One that ends says so, and the others are followed on.
    first.end();
    let [of, kind, _] = followed.next();
    assert_eq!((&*of, &*kind), (&*first_name, "ended"));
    set(&second_name, "1Gi");
    reported(&followed, &second_name, GIB);
    second.end();
}

#[test]
fn a_card_that_is_set_to_one_user_is_passed_over_and_a_refusal_reports_what_to_do() {
    let test = "a_card_that_is_set_to_one_user_is_passed_over_and_a_refusal_reports_what_to_do";
    let Some(host) = Host::find(test) else {
        return;
    };
    let card = |name: &str, mode: &str| {
        format!("[[card]]\nname = \"{name}\"\nmemory_mib = 24576\narchitecture = \"ada\"\n{mode}\n")
    };
    let profile = [
        "[driver]\nversion = \"570.195.03\"\n",
        &card("Divided", "mig = true"),
        &card("Exclusive", "compute_mode = \"exclusive_process\""),
        &card("Confidential", "confidential = true"),
        &card("Shared", ""),
    ];
    std::fs::write(host.dir.path().join("cards.toml"), profile.concat()).unwrap();
    let smi = [env!("CARGO_BIN_EXE_cgpu"), "smi", "--json"];
    let output = host.run(&ONE_GIB, &smi);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = seen["cards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["Shared"]);

    let output = host.run(&["--memory", "2Gi", "--cards", "2"], &smi);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let reported = String::from_utf8_lossy(&output.stderr);
    for part in [
        "is in MIG mode",
        "`nvidia-smi -i 0 -mig 0`",
        "compute mode Exclusive_Process",
        "`nvidia-smi -i 1 -c DEFAULT`",
        "confidential computing",
    ] {
        assert!(reported.contains(part), "{part:?}: {reported}");
    }
    assert_eq!(host.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_wrong_profile_or_request_leaves_nothing_behind() {
    let Some(host) = Host::find("a_wrong_profile_or_request_leaves_nothing_behind") else {
        return;
    };
    for options in [
        &["--memory", "48Gi"][..],
        &["--memory", "1Gi", "--cards", "3"],
    ] {
        let output = host.run(options, &["true"]);
        assert_eq!(output.status.code(), Some(1), "{options:?}");
        assert!(!output.stderr.is_empty(), "{options:?}");
    }
    std::fs::write(host.dir.path().join("cards.toml"), "[driver\n").unwrap();
    let output = host.run(&ONE_GIB, &["true"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cards.toml"));
    assert_eq!(host.left(), Vec::<PathBuf>::new());
}
