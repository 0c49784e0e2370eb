//! `cgpu-runtime` over real runc, as docker drives it, with a played broker. Skips aloud without root, runc or a static busybox.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

#[path = "fake/one_card.rs"]
mod one_card;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use cards::Grant;
use cards::lock::FileLock;
use serde_json::{Value, json};

const PLAY_BROKER: &str = "CGPU_TEST_PLAY_BROKER";
const BUSYBOX: &str = "/bin/busybox";

/// Not a test: the test program as a broker, which takes listeners and answers nothing.
#[test]
fn play_broker() {
    let Some(dir) = std::env::var_os(PLAY_BROKER).map(PathBuf::from) else {
        return;
    };
    let _lock = FileLock::take(&dir.join("broker.lock")).unwrap();
    // As the frontend hands it over: standard input.
    let socket = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let questions = UnixListener::bind(dir.join("control.sock")).unwrap();
    fs::write("/proc/self/fd/3", "ready\n").unwrap();
    let listeners = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&listeners);
    std::thread::spawn(move || {
        for connection in questions.incoming() {
            let status = control::Status {
                listeners: taken.lock().unwrap().len(),
                ..control::Status::default()
            };
            let mut connection = connection.unwrap();
            // A connection that is closed with something unread ends in an error for who has written it. Who asks waits a moment on a busy machine,
            // and asks again.
            let requested = BufReader::new(&connection).read_line(&mut String::new());
            if requested.is_ok() {
                let _given_up = writeln!(connection, "{}", json!(status));
            }
        }
    });
    for connection in socket.incoming() {
        let mut bytes = [0; 65536];
        let (_, fds) = sys::fd_passing::receive(connection.unwrap().as_fd(), &mut bytes).unwrap();
        listeners.lock().unwrap().extend(fds);
    }
}

struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn find() -> Option<Self> {
        let skip = |reason: &str| {
            println!("SKIP: {reason}");
            None
        };
        if !nix::unistd::geteuid().is_root() {
            return skip("not root");
        }
        if Command::new("runc").arg("--version").output().is_err() {
            return skip("no runc");
        }
        let Ok(busybox) = fs::read(BUSYBOX) else {
            return skip("no busybox");
        };
        // A dynamic program names its loader.
        if busybox.windows(8).any(|window| window == b"/ld-linu") {
            return skip("busybox is not static");
        }
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        one_card::simulate(&state);
        let broker = dir.path().join("broker");
        let me = std::env::current_exe().unwrap();
        fs::write(&broker, format!("#!/bin/sh\nexec 3>&1 >/dev/null; {PLAY_BROKER}=\"$2\" exec '{}' --exact play_broker\n", me.display())).unwrap();
        fs::set_permissions(&broker, fs::Permissions::from_mode(0o755)).unwrap();
        let config = format!(
            "state_dir = \"{}\"\n[driver]\nkind = \"sim\"\n[broker]\npath = \"{}\"\n",
            state.display(),
            broker.display()
        );
        fs::write(dir.path().join("cgpu.toml"), config).unwrap();
        Some(Self { dir })
    }

    fn bundle(&self, id: &str, annotations: Value, script: &str) -> PathBuf {
        let bundle = self.dir.path().join("bundles").join(id);
        for folder in ["rootfs/bin", "rootfs/proc", "rootfs/dev"] {
            fs::create_dir_all(bundle.join(folder)).unwrap();
        }
        fs::copy(BUSYBOX, bundle.join("rootfs/bin/busybox")).unwrap();
        let spec = json!({
            "ociVersion": "1.0.2",
            "annotations": annotations,
            "process": {"args": ["/bin/busybox", "sh", "-c", script], "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["NVIDIA_VISIBLE_DEVICES=all"]},
            "root": {"path": "rootfs"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            ],
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "network"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
                "readonlyPaths": ["/proc/bus", "/proc/sys", "/proc/sysrq-trigger"],
            },
        });
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        bundle
    }

    /// As docker's shim calls a runtime. Output goes to files: a container keeps what it inherits.
    fn runtime(&self, arguments: &[&str]) -> Answer {
        let (out, err) = (
            self.dir.path().join("stdout"),
            self.dir.path().join("stderr"),
        );
        let status = Command::new(env!("CARGO_BIN_EXE_cgpu-runtime"))
            .arg("--root")
            .arg(self.dir.path().join("runtime-runc/moby"))
            .arg("--log")
            .arg(self.dir.path().join("log.json"))
            .args(["--log-format", "json"])
            .args(arguments)
            .env("CGPU_CONFIG", self.dir.path().join("cgpu.toml"))
            .stdin(Stdio::null())
            .stdout(fs::File::create(&out).unwrap())
            .stderr(fs::File::create(&err).unwrap())
            .status()
            .unwrap();
        Answer {
            code: status.code(),
            stdout: fs::read_to_string(out).unwrap(),
            stderr: fs::read_to_string(err).unwrap(),
        }
    }

    /// A runtime that does something else first where `subcommand` is asked for; `$bundle` is the bundle.
    fn play_runc(&self, subcommand: &str, first: &str) {
        let fake = self.dir.path().join("runc");
        let script = format!(
            r#"#!/bin/sh
last=
for word in "$@"; do [ "$last" = --bundle ] && bundle=$word; last=$word; done
case " $* " in *" {subcommand} "*) {first};; esac
exec runc "$@"
"#
        );
        // Written by another process: one that this one starts meanwhile would hold it open, and it could not be run.
        let written = Command::new("sh")
            .args([
                "-c",
                r#"printf %s "$1" > "$2" && chmod 755 "$2""#,
                "sh",
                &script,
            ])
            .arg(&fake)
            .status()
            .unwrap();
        assert!(written.success());
        let file = self.dir.path().join("cgpu.toml");
        let config = fs::read_to_string(&file).unwrap();
        if !config.starts_with("runc") {
            fs::write(&file, format!("runc = \"{}\"\n{config}", fake.display())).unwrap();
        }
    }

    fn grant(&self, id: &str) -> Option<Grant> {
        Grant::read(&self.dir.path().join("state/vgpus/moby").join(id)).ok()
    }

    /// By their environment, which names this host's folder.
    fn kill_brokers(&self) {
        let named = format!("{PLAY_BROKER}={}", self.dir.path().display());
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let is_broker = String::from_utf8_lossy(&environment).contains(&named);
            let pid = entry.file_name().to_string_lossy().parse::<i32>();
            if let (true, Ok(pid)) = (is_broker, pid) {
                let process = sys::pidfd::PidFd::open(pid).unwrap();
                let pid = nix::unistd::Pid::from_raw(pid);
                nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
                assert!(process.wait_exit(20_000).unwrap(), "killed");
            }
        }
    }

    fn assert_clean(&self) {
        let vgpus = self.dir.path().join("state/vgpus");
        assert!(!vgpus.exists() || fs::read_dir(vgpus).unwrap().next().is_none());
    }
}

#[derive(Debug)]
struct Answer {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Bundles that show cgpu one thing and runc another one, or take of the host what decides over it.
#[test]
fn a_hostile_bundle_is_refused_before_anything_is_granted() {
    let Some(host) = Host::find() else { return };
    let bundle = host.bundle("h", json!({"cgpu.io/memory": "4Gi"}), "true");
    let file = bundle.join("config.json");
    let plain = fs::read_to_string(&file).unwrap();
    let spec: Value = serde_json::from_str(&plain).unwrap();
    std::os::unix::fs::symlink("/etc", host.dir.path().join("link")).unwrap();
    let link = host.dir.path().join("link/cron.d");
    let member = |member: &str| plain.replacen('{', &format!("{{{member},"), 1);
    let mounted = |mount: Value| {
        let mut spec = spec.clone();
        spec["mounts"].as_array_mut().unwrap().push(mount);
        spec.to_string()
    };
    let bound = |source: &Path, options: &[&str]| {
        mounted(json!({"destination": "/x", "type": "bind", "source": source, "options": options}))
    };
    let annotated = |annotations: Value| {
        let mut spec = spec.clone();
        spec["annotations"] = annotations;
        spec.to_string()
    };
    let hidden = plain.replacen("annotations", "annotation\u{17f}", 1);
    let own = Path::new(env!("CARGO_BIN_EXE_cgpu-runtime"));
    for (text, reply) in [
        (
            member(
                r#""mount\u017f":[{"destination":"/x","type":"bind","source":"/etc","options":["rbind"]}]"#,
            ),
            "mounts",
        ),
        (
            member(r#""Hooks":{"createRuntime":[{"path":"/bin/false","args":["false"]}]}"#),
            "hooks",
        ),
        (
            member(r#""process":{"args":["/bin/busybox"],"cwd":"/"}"#),
            "twice",
        ),
        (format!("{plain}{{}}"), "trailing"),
        (hidden, "annotations"),
        (bound(&link, &["rbind"]), "host-root"),
        (bound(own.parent().unwrap(), &["rbind"]), "host-root"),
        (bound(Path::new("/usr/sbin"), &["bind", "rw"]), "host-root"),
        (
            bound(Path::new("/proc/self/root"), &["rbind", "ro"]),
            "host-",
        ),
        (
            bound(Path::new("/run/containerd/s"), &["rbind", "ro"]),
            "engine-socket",
        ),
        (
            mounted(
                json!({"destination": "/x", "type": "overlay", "source": "overlay", "options": ["lowerdir=/"]}),
            ),
            "host-root",
        ),
        (
            annotated(
                json!({"cgpu.io/memory": "4Gi", "io.kubernetes.cri.container-type": "sandbox"}),
            ),
            "asks for a vGPU",
        ),
        (
            annotated(
                json!({"cgpu.io/memory": "4Gi", "io.kubernetes.cri.sandbox-id": "h", "io.kubernetes.cri-o.ContainerType": "container"}),
            ),
            "two engines",
        ),
    ] {
        fs::write(&file, &text).unwrap();
        let refused = host.runtime(&["create", "--bundle", bundle.to_str().unwrap(), "h"]);
        assert_eq!(refused.code, Some(1), "{text}");
        assert!(
            refused.stderr.contains(reply),
            "{reply}: {}",
            refused.stderr
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "untouched");
        host.assert_clean();
    }
    // The same files under another name: a bind mount of the host's, in a namespace of this test's.
    let volume = host.dir.path().join("volumes/v/_data");
    fs::create_dir_all(&volume).unwrap();
    fs::write(&file, bound(&volume, &["rbind"])).unwrap();
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg(r#"mount --bind /etc "$1" && shift && exec "$@""#)
        .arg("sh")
        .arg(&volume)
        .arg(own)
        .arg("--root")
        .arg(host.dir.path().join("runtime-runc/moby"))
        .args(["create", "--bundle", bundle.to_str().unwrap(), "h"])
        .env("CGPU_CONFIG", host.dir.path().join("cgpu.toml"))
        .output()
        .unwrap();
    let reply = String::from_utf8_lossy(&status.stderr);
    assert!(
        !status.status.success() && reply.contains("host-root"),
        "{reply}"
    );
    host.assert_clean();
    // And what was there before the attacker came is started.
    fs::write(&file, &plain).unwrap();
    let created = host.runtime(&["create", "--bundle", bundle.to_str().unwrap(), "h"]);
    assert_eq!(created.code, Some(0), "{created:?}");
    assert_eq!(host.runtime(&["delete", "--force", "h"]).code, Some(0));
    host.assert_clean();
}

#[test]
fn a_container_lives_and_dies_through_the_wrapper() {
    let Some(host) = Host::find() else { return };
    let bundle = host.bundle(
        "c1",
        json!({"cgpu.io/memory": "4Gi"}),
        "exec busybox sleep 1000",
    );
    let before = fs::read(bundle.join("config.json")).unwrap();
    let created = host.runtime(&[
        "create",
        "--bundle",
        bundle.to_str().unwrap(),
        "--pid-file",
        bundle.join("pid").to_str().unwrap(),
        "c1",
    ]);
    assert_eq!(created.code, Some(0), "{created:?}");
    assert_eq!(host.grant("c1").unwrap().cards[0].quota_bytes, 4 << 30);
    let busy = host.bundle("c2", json!({"cgpu.io/memory": "21Gi"}), "true");
    let refused = host.runtime(&["create", "--bundle", busy.to_str().unwrap(), "c2"]);
    assert_eq!(refused.code, Some(1));
    let log = fs::read_to_string(host.dir.path().join("log.json")).unwrap();
    let entry: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(entry["level"], "error");
    for reply in [entry["msg"].as_str().unwrap(), &refused.stderr] {
        assert!(
            reply.contains("21 GiB on one card does not fit") && reply.contains("20 GiB of 24 GiB"),
            "{reply}"
        );
    }

    assert_eq!(host.runtime(&["start", "c1"]).code, Some(0));
    let process = host.dir.path().join("process.json");
    let script = "echo $NVIDIA_VISIBLE_DEVICES; ls /dev";
    let spec = json!({"args": ["/bin/busybox", "sh", "-c", script.replace("ls", "busybox ls")], "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"]});
    fs::write(&process, spec.to_string()).unwrap();
    let seen = host.runtime(&["exec", "--process", process.to_str().unwrap(), "c1"]);
    let arguments: Vec<&str> = seen.stdout.split_whitespace().collect();
    assert_eq!(arguments.first(), Some(&"void"), "{seen:?}");
    for node in ["nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"] {
        assert!(arguments.contains(&node), "{seen:?}");
    }

    // Deletion is refused while it runs, and must not take the vGPU with it.
    assert_ne!(host.runtime(&["delete", "c1"]).code, Some(0));
    assert!(host.grant("c1").is_some());
    let deleted = host.runtime(&["delete", "--force", "c1"]);
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    host.assert_clean();
    assert_eq!(fs::read(bundle.join("config.json")).unwrap(), before);
}

/// runc starts it from there: in the current folder may be another, which asks for nothing.
#[test]
fn a_bundle_that_is_named_behind_the_container_is_the_one_that_is_judged() {
    let Some(host) = Host::find() else { return };
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}), "true");
    let created = host.runtime(&["create", "c1", "--bundle", bundle.to_str().unwrap()]);
    assert_eq!(created.code, Some(0), "{created:?}");
    assert_eq!(host.grant("c1").unwrap().cards[0].quota_bytes, 4 << 30);
    let deleted = host.runtime(&["delete", "c1", "--force"]);
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    host.assert_clean();
}

#[test]
fn a_run_in_one_step_is_refused_since_nobody_could_look_at_its_filter() {
    let Some(host) = Host::find() else { return };
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}), "echo hello; exit 7");
    for arguments in [&["run", "--bundle"][..], &["run", "--detach", "--bundle"]] {
        let arguments = [arguments, &[bundle.to_str().unwrap(), "c1"]].concat();
        let ran = host.runtime(&arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.stderr.contains("use create and start"), "{ran:?}");
        host.assert_clean();
    }
}

/// What runtimes, or wrappers below this one, could make of the profile without a word.
#[test]
fn a_container_whose_filter_does_not_hold_is_refused_and_everything_released() {
    let Some(host) = Host::find() else { return };
    let other = host.dir.path().join("other.sock");
    let elsewhere = UnixListener::bind(&other).unwrap();
    let config = r#""$bundle/config.json""#;
    let listener = format!(
        r##"sed -i 's#"listenerPath":"[^"]*"#"listenerPath":"{}"#' {config}"##,
        other.display()
    );
    let dropped = format!(r#"sed -i 's/"seccomp":{{/"left_out":{{/' {config}"#);
    let swallowed = format!(
        r#"sed -i 's/"syscalls":\[/"syscalls":[{{"names":["ioctl"],"action":"SCMP_ACT_LOG"}},/' {config}"#
    );
    for (at, (change, needed)) in [
        (&dropped, "there is no filter"),
        (&swallowed, "it lets NV_ESC_"),
        (&listener, "was not handed the listener"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("c{at}");
        host.play_runc("create", change);
        let script = "busybox touch /ran";
        let bundle = host.bundle(&id, json!({"cgpu.io/memory": "4Gi"}), script);
        let before = fs::read(bundle.join("config.json")).unwrap();
        let bundle_name = bundle.to_str().unwrap();
        let arguments = ["create", "--bundle", bundle_name, &id];
        // With a pid file, as engines call it, and without.
        let pid_file = bundle.join("pid");
        let with_file = [
            &arguments[..3],
            &["--pid-file", pid_file.to_str().unwrap(), &id],
        ]
        .concat();
        for arguments in [&arguments[..], &with_file] {
            let refused = host.runtime(arguments);
            assert_eq!(refused.code, Some(1), "{change}: {refused:?}");
            assert!(refused.stderr.contains(needed), "{change}: {refused:?}");
            host.assert_clean();
            assert_eq!(fs::read(bundle.join("config.json")).unwrap(), before);
            assert!(!host.dir.path().join("runtime-runc/moby").join(&id).exists());
            assert!(!bundle.join("rootfs/ran").exists());
        }
    }
    drop(elsewhere);
}

#[test]
fn an_exec_that_runs_without_the_filter_is_killed() {
    an_exec_is_killed_whose_runtime(r#"s/"seccomp":{/"left_out":{/"#);
}

/// As many filters as the container's first process has, and one that allows everything.
#[test]
fn an_exec_that_runs_with_another_filter_is_killed() {
    an_exec_is_killed_whose_runtime(r#"s/"syscalls":\[{/"syscalls":[],"left_out":[{/"#);
}

/// `changes`: what the runtime makes of the container's state before the second exec.
fn an_exec_is_killed_whose_runtime(changes: &str) {
    let Some(host) = Host::find() else { return };
    let state = host.dir.path().join("runtime-runc/moby/c1/state.json");
    let change = format!(
        r#"[ -e "{0}/unfiltered" ] && sed -i '{changes}' "{1}""#,
        host.dir.path().display(),
        state.display()
    );
    host.play_runc("exec", &change);
    let script = "exec busybox sleep 1000";
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}), script);
    let bundle = bundle.to_str().unwrap();
    let created = host.runtime(&["create", "--bundle", bundle, "c1"]);
    assert_eq!(created.code, Some(0), "{created:?}");
    assert_eq!(host.runtime(&["start", "c1"]).code, Some(0));
    let process = host.dir.path().join("process.json");
    let spec = json!({"args": ["/bin/busybox", "sleep", "1000"], "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"]});
    fs::write(&process, spec.to_string()).unwrap();
    let pid_file = host.dir.path().join("exec.pid");
    let arguments = detached_exec(&pid_file, &process);
    let without_file = [
        "exec",
        "-detach=true",
        "c1",
        "/bin/busybox",
        "sleep",
        "1000",
    ];
    for arguments in [&arguments[..], &without_file] {
        let held = host.runtime(arguments);
        assert_eq!(held.code, Some(0), "{held:?}");
    }
    fs::write(host.dir.path().join("unfiltered"), "").unwrap();
    for arguments in [&without_file[..], &arguments] {
        let refused = host.runtime(arguments);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(
            refused
                .stderr
                .contains("without the container's seccomp filter"),
            "{refused:?}"
        );
    }
    let left = fs::read_dir(host.dir.path().join("state/vgpus/moby/c1")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left
        .filter(|name| name.to_string_lossy().starts_with("exec-"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let pid = fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // It may be gone altogether, or be nobody's to wait for yet.
    if let Ok(process) = sys::pidfd::PidFd::open(pid) {
        assert!(process.wait_exit(20_000).unwrap(), "killed");
    }
    assert_eq!(host.runtime(&["delete", "--force", "c1"]).code, Some(0));
    host.assert_clean();
}

/// Engines write the file in `/tmp`, which a container may have mounted: the runtime reads what was judged, whatever is there by then.
#[test]
fn an_exec_s_process_is_the_one_that_was_judged() {
    let Some(host) = Host::find() else { return };
    let script = "exec busybox sleep 1000";
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}), script);
    let file = host.dir.path().join("process.json");
    let process = |word: &str| json!({"args": ["/bin/busybox", "sh", "-c", format!("echo {word} >> /seen")], "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": []});
    let other = host.dir.path().join("other.json");
    fs::write(&other, process("another").to_string()).unwrap();
    let swap = format!("cp {} {}", other.display(), file.display());
    host.play_runc("exec", &swap);
    let created = host.runtime(&["create", "--bundle", bundle.to_str().unwrap(), "c1"]);
    assert_eq!(created.code, Some(0), "{created:?}");
    assert_eq!(host.runtime(&["start", "c1"]).code, Some(0));
    let seen = bundle.join("rootfs/seen");
    let lines = || fs::read_to_string(&seen).unwrap_or_default();
    let by_place = ["exec", "--process", file.to_str().unwrap(), "c1"];
    let pid_file = host.dir.path().join("exec.pid");
    for (number, arguments) in [&by_place[..], &detached_exec(&pid_file, &file)]
        .into_iter()
        .enumerate()
    {
        fs::write(&file, process("judged").to_string()).unwrap();
        let exec = host.runtime(arguments);
        assert_eq!(exec.code, Some(0), "{exec:?}");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while lines().lines().count() <= number && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(lines(), "judged\n".repeat(number + 1));
    }
    assert_eq!(host.runtime(&["delete", "--force", "c1"]).code, Some(0));
    host.assert_clean();
}

/// With its program's file or by words: what runc would say is that a socket is not there.
#[test]
fn an_exec_after_the_broker_s_end_names_the_broker() {
    let Some(host) = Host::find() else { return };
    let script = "exec busybox sleep 1000";
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}), script);
    let created = host.runtime(&["create", "--bundle", bundle.to_str().unwrap(), "c1"]);
    assert_eq!(created.code, Some(0), "{created:?}");
    assert_eq!(host.runtime(&["start", "c1"]).code, Some(0));
    let by_words = ["exec", "c1", "/bin/busybox", "true"];
    let with_capability = ["exec", "--cap", "CAP_KILL", "c1", "/bin/busybox", "true"];
    assert_eq!(host.runtime(&by_words).code, Some(0));

    host.kill_brokers();
    let process = host.dir.path().join("process.json");
    fs::write(&process, json!({"args": ["true"], "cwd": "/"}).to_string()).unwrap();
    let by_file = ["exec", "--process", process.to_str().unwrap(), "c1"];
    for arguments in [&by_words[..], &with_capability, &by_file] {
        let refused = host.runtime(arguments);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("broker"), "{refused:?}");
    }
    assert_eq!(host.runtime(&["delete", "--force", "c1"]).code, Some(0));
    host.assert_clean();
}

fn detached_exec<'a>(pid_file: &'a Path, process: &'a Path) -> [&'a str; 7] {
    let (pid_file, process) = (pid_file.to_str().unwrap(), process.to_str().unwrap());
    [
        "exec",
        "--detach",
        "--pid-file",
        pid_file,
        "--process",
        process,
        "c1",
    ]
}

/// The exec's process has ended and conmon has waited for it: its number, which the runtime has written, is another process's.
#[test]
fn a_stranger_that_has_an_exec_s_number_is_neither_stopped_nor_killed() {
    let Some(host) = Host::find() else { return };
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid_file = host.dir.path().join("exec.pid");
    let write = format!("echo {} > {}; exit 0", stranger.id(), pid_file.display());
    host.play_runc("exec", &write);
    let script = "exec busybox sleep 1000";
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}), script);
    let created = host.runtime(&["create", "--bundle", bundle.to_str().unwrap(), "c1"]);
    assert_eq!(created.code, Some(0), "{created:?}");
    assert_eq!(host.runtime(&["start", "c1"]).code, Some(0));
    // One that is stopped and goes on has been on a CPU in between.
    let number = stranger.id();
    let switches = || sys::proc::status_field(number, "voluntary_ctxt_switches").ok();
    let before = switches();
    let process = host.dir.path().join("process.json");
    fs::write(&process, json!({"args": ["true"], "cwd": "/"}).to_string()).unwrap();
    let exec = host.runtime(&detached_exec(&pid_file, &process));
    let (ended, after) = (stranger.try_wait().unwrap(), switches());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_eq!(ended, None, "{exec:?}");
    assert_eq!(after, before, "it was stopped");
    assert_eq!(exec.code, Some(0), "{exec:?}");
    assert_eq!(host.runtime(&["delete", "--force", "c1"]).code, Some(0));
    host.assert_clean();
}

#[test]
fn an_update_takes_no_device_away_from_a_container_with_a_vgpu() {
    let Some(host) = Host::find() else { return };
    let (file, seen) = (
        host.dir.path().join("new.json"),
        host.dir.path().join("seen"),
    );
    let read = format!(
        r#"before=; for word in "$@"; do case $before in --resources) file=$word;; esac; before=$word; done; cat $file > {}; exit 0"#,
        seen.display()
    );
    host.play_runc("update", &read);
    let devices = json!([{"allow": false, "access": "rwm"}]);
    let resources = json!({"devices": devices, "memory": {"limit": 1 << 30}});
    // As the container's spec has them.
    let rules = json!([{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm"}]);
    fs::write(&file, resources.to_string()).unwrap();
    let update = ["update", "--resources", file.to_str().unwrap(), "c1"];
    for (annotations, expected) in [
        (
            json!({"cgpu.io/memory": "4Gi"}),
            json!({"devices": rules, "memory": {"limit": 1 << 30}}),
        ),
        (json!({}), resources.clone()),
    ] {
        let bundle = host.bundle("c1", annotations, "exec busybox sleep 1000");
        let config = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        spec["linux"]["resources"]["devices"] = rules.clone();
        fs::write(&config, spec.to_string()).unwrap();
        let created = host.runtime(&["create", "--bundle", bundle.to_str().unwrap(), "c1"]);
        assert_eq!(created.code, Some(0), "{created:?}");
        let updated = host.runtime(&update);
        assert_eq!(updated.code, Some(0), "{updated:?}");
        let seen: Value = serde_json::from_slice(&fs::read(&seen).unwrap()).unwrap();
        assert_eq!(seen, expected);
        assert_eq!(host.runtime(&["delete", "--force", "c1"]).code, Some(0));
        fs::remove_dir_all(bundle).unwrap();
    }
    host.assert_clean();
}

#[test]
fn a_runc_that_fails_leaves_no_vgpu() {
    let Some(host) = Host::find() else { return };
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}), "true");
    fs::remove_dir_all(bundle.join("rootfs")).unwrap();
    let failed = host.runtime(&["create", "--bundle", bundle.to_str().unwrap(), "c1"]);
    assert_ne!(failed.code, Some(0));
    host.assert_clean();
}

#[test]
fn one_that_is_nearly_a_request_is_reported_and_needs_no_configuration() {
    let Some(host) = Host::find() else { return };
    let bundle = host.bundle("c1", json!({"cgpu/memory": "4Gi"}), "busybox sleep 1000");
    let arguments = ["create", "--bundle", bundle.to_str().unwrap(), "c1"];
    let created = host.runtime(&arguments);
    assert_eq!(created.code, Some(0), "{created:?}");
    let log = cards::events::read(&host.dir.path().join("state/events/containers/moby/c1"));
    let log = log.unwrap();
    let [event] = log.as_slice() else {
        panic!("{log:?}")
    };
    assert!(
        event.kind == "near_miss" && event.text.contains("cgpu.io/memory=4Gi"),
        "{event:?}"
    );
    let file = host.dir.path().join("cgpu.toml");
    fs::write(&file, "[broker").unwrap();
    let deleted = host.runtime(&["delete", "--force", "c1"]);
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    // Images say what is nearly a request too: a broken file must not stop them.
    let created = host.runtime(&arguments);
    assert_eq!(created.code, Some(0), "{created:?}");
    let deleted = host.runtime(&["delete", "--force", "c1"]);
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
}

#[test]
fn a_plain_container_that_others_reach_is_closed_to_the_driver_also_with_a_broken_configuration() {
    let Some(host) = Host::find() else { return };
    let bundle = host.bundle("c1", json!({}), "grep Seccomp: /proc/self/status");
    let path = bundle.join("config.json");
    let own: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut joined = own.clone();
    joined["linux"]["namespaces"][1]["path"] = json!("/proc/self/ns/net");
    for configuration in [None, Some("[broker")] {
        if let Some(text) = configuration {
            fs::write(host.dir.path().join("cgpu.toml"), text).unwrap();
        }
        for (spec, mode) in [(&own, "0"), (&joined, "2")] {
            fs::write(&path, spec.to_string()).unwrap();
            let ran = host.runtime(&["run", "--bundle", bundle.to_str().unwrap(), "c1"]);
            assert_eq!(ran.code, Some(0), "{ran:?}");
            assert_eq!(ran.stdout, format!("Seccomp:\t{mode}\n"), "{ran:?}");
            let after: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let rules = after["linux"]["seccomp"]["syscalls"].as_array();
            assert_eq!(rules.is_some_and(|rules| rules.len() > 20), mode == "2");
        }
    }
    assert!(!host.dir.path().join("state/lock").exists());
}

/// runc takes letters, digits and `_+,-.`.
#[test]
fn a_name_that_is_the_runtime_s_alone_is_no_plain_container_s_fault() {
    let Some(host) = Host::find() else { return };
    let long = "l".repeat(129);
    for id in ["a+b", "a,b", ".a", &long] {
        let bundle = host.bundle(id, json!({}), "exec busybox sleep 1000");
        let path = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        spec["linux"]["namespaces"][1]["path"] = json!("/proc/self/ns/net");
        fs::write(&path, spec.to_string()).unwrap();
        let bundle = bundle.to_str().unwrap();
        let read_mode = [
            "exec",
            id,
            "/bin/busybox",
            "grep",
            "Seccomp:",
            "/proc/self/status",
        ];
        for arguments in [
            &["create", "--bundle", bundle, id][..],
            &["start", id],
            &read_mode,
            &["delete", "--force", id],
        ] {
            let answer = host.runtime(arguments);
            assert_eq!(answer.code, Some(0), "{arguments:?}: {answer:?}");
            if arguments == read_mode {
                assert_eq!(answer.stdout, "Seccomp:\t2\n", "closed to the driver");
            }
        }
    }
    let bundle = host.bundle("a+b", json!({"cgpu.io/memory": "4Gi"}), "true");
    let refused = host.runtime(&["create", "--bundle", bundle.to_str().unwrap(), "a+b"]);
    assert_eq!(refused.code, Some(1));
    for part in ["cannot have a vGPU", "a+b", "[A-Za-z0-9_.-]"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    host.assert_clean();
}

#[test]
fn a_container_that_asks_for_nothing_is_plain_runc() {
    let Some(host) = Host::find() else { return };
    let bundle = host.bundle("c1", json!({}), "echo $NVIDIA_VISIBLE_DEVICES");
    let before = fs::read(bundle.join("config.json")).unwrap();
    let ran = host.runtime(&["run", "--bundle", bundle.to_str().unwrap(), "c1"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "all\n"),
        "{ran:?}"
    );
    assert_eq!(fs::read(bundle.join("config.json")).unwrap(), before);
    assert!(!host.dir.path().join("state/lock").exists());
    let version = |program: &Path| -> Output {
        Command::new(program)
            .arg("--version")
            .env("CGPU_CONFIG", host.dir.path().join("cgpu.toml"))
            .output()
            .unwrap()
    };
    assert_eq!(
        version(Path::new(env!("CARGO_BIN_EXE_cgpu-runtime"))).stdout,
        version(Path::new("runc")).stdout
    );
}
