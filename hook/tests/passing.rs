//! What `cgpu-runtime` passes on to the runtime behind it, which is a script here, and which runtimes it refuses.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod fake;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::json;

use self::fake::{Host, features, slice};

/// Not a test: see [`fake`].
#[test]
fn play_broker() {
    fake::broker();
}

const WRAPPER: &str = env!("CARGO_BIN_EXE_cgpu-runtime");

fn wrapper(host: &Host, arguments: &[&str]) -> Output {
    host.command(WRAPPER).args(arguments).output().unwrap()
}

fn reply(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// All of a file, if it is there.
fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn edit_config(host: &Host, from: &str, to: &str) {
    let config = text(&host.path("cgpu.toml"));
    assert!(config.contains(from), "{config}");
    host.configure(&config.replace(from, to));
}

/// Says how it was called into files of the host: words, environment, open descriptors, its own pid. Not of what the wrapper
/// itself asks of it.
fn telling(host: &Host) {
    let dir = host.dir.path().display();
    host.script(
        "runtime",
        &features(&format!(
            r#"case $1 in state | delete) exit 0;; esac
printf '%s\n' "$@" > {dir}/words; env > {dir}/env; ls /proc/$$/fd > {dir}/fds; echo $$ > {dir}/pid"#
        )),
    );
}

/// With descriptors 3, 4 and 5 open.
fn with_descriptors(host: &Host, listening: &str, arguments: &[&str]) -> Output {
    host.command("sh")
        .args([
            "-c",
            &format!(r#"{listening} exec "$0" "$@" 3</dev/null 4</dev/null 5</dev/null"#),
            WRAPPER,
        ])
        .args(arguments)
        .output()
        .unwrap()
}

fn descriptors(host: &Host) -> Vec<u32> {
    let mut open: Vec<u32> = text(&host.path("fds"))
        .lines()
        .map(|line| line.parse().unwrap())
        // The shell reads its script through 10 or above.
        .filter(|number| *number > 2 && *number < 10)
        .collect();
    open.sort_unstable();
    open
}

#[test]
fn every_other_command_is_passed_on_argument_for_argument() {
    let Some(host) = Host::find() else { return };
    telling(&host);
    for arguments in [
        &["--version"][..],
        &["--root", "/r", "state", "c1"],
        &["--root=/r", "--systemd-cgroup", "kill", "--all", "c1", "9"],
        &["update", "--resources", "-", "c1"],
        &["--future-option=1", "future-command", "--with", "a b", ""],
        &["create", "--help"],
        &["list", "-f", "json"],
        &[],
    ] {
        let output = wrapper(&host, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", reply(&output));
        let reported = text(&host.path("words"));
        let expected: String = if arguments.is_empty() {
            "\n".to_owned()
        } else {
            arguments
                .iter()
                .map(|argument| format!("{argument}\n"))
                .collect()
        };
        assert_eq!(reported, expected);
    }
}

#[test]
fn the_engine_s_environment_and_descriptors_reach_the_runtime_and_nothing_else_does() {
    let Some(host) = Host::find() else { return };
    telling(&host);
    let plain = host.bundle("plain", json!({}));
    let bundle = plain.to_str().unwrap();
    let arguments = |count: &'static str| {
        [
            "create",
            "--preserve-fds",
            count,
            "--bundle",
            bundle,
            "plain",
        ]
    };
    for (listening, count, open) in [
        ("", "0", &[][..]),
        ("", "2", &[3, 4]),
        ("LISTEN_PID=$$ LISTEN_FDS=1", "0", &[3]),
        ("LISTEN_PID=$$ LISTEN_FDS=1", "1", &[3, 4]),
    ] {
        let output = with_descriptors(&host, listening, &arguments(count));
        assert!(output.status.success(), "{}", reply(&output));
        assert_eq!(descriptors(&host), open, "{listening} {count}");
    }
    let environment = text(&host.path("env"));
    assert!(!environment.contains("of the container"), "{environment}");
    // The runtime has taken the wrapper's place: the number is its own already.
    let pid = text(&host.path("pid"));
    assert!(
        environment.contains(&format!("LISTEN_PID={pid}")),
        "{environment}"
    );
}

/// Its file may be a pipe, by a shell's `<(…)`, and what is in it is the runtime's to read.
#[test]
fn an_exec_of_a_plain_container_has_its_file_and_all_descriptors() {
    let Some(host) = Host::find() else { return };
    telling(&host);
    let arguments = ["exec", "--process", "/proc/self/fd/4", "plain"];
    let output = with_descriptors(&host, "", &arguments);
    assert!(output.status.success(), "{}", reply(&output));
    let words: Vec<String> = text(&host.path("words"))
        .lines()
        .map(str::to_owned)
        .collect();
    assert_eq!(words, arguments);
    assert_eq!(descriptors(&host), [3, 4, 5]);
}

/// The runtime is a child then, and is refused in the end: it makes no container.
#[test]
fn a_child_gets_the_same_under_its_own_number() {
    let Some(host) = Host::find() else { return };
    telling(&host);
    let bundle = host.bundle("c1", slice());
    let arguments = [
        "create",
        "--preserve-fds",
        "1",
        "--bundle",
        bundle.to_str().unwrap(),
        "c1",
    ];
    let output = with_descriptors(&host, "LISTEN_PID=$$ LISTEN_FDS=1 ENGINE=here", &arguments);
    assert_eq!(
        text(&host.path("words")).lines().last(),
        Some("c1"),
        "{}",
        reply(&output)
    );
    assert_eq!(descriptors(&host), [3, 4]);
    let environment = text(&host.path("env"));
    let pid = text(&host.path("pid"));
    assert!(
        environment.contains(&format!("LISTEN_PID={pid}")),
        "{environment} {pid}"
    );
    assert!(environment.contains("ENGINE=here\n") && environment.contains("LISTEN_FDS=1\n"));
    assert!(!environment.contains("of the container"), "{environment}");
    drop(wrapper(&host, &["delete", "--force", "c1"]));
    host.assert_clean();
}

#[test]
fn a_killed_wrapper_takes_its_runtime_along() {
    let Some(host) = Host::find() else { return };
    let fifo = host.path("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    host.script(
        "runtime",
        &features(&format!("echo $$ > {0}; exec sleep 1000", fifo.display())),
    );
    let bundle = host.bundle("c1", slice());
    let mut child = host
        .command(WRAPPER)
        .args(["create", "--bundle", bundle.to_str().unwrap(), "c1"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    // Blocks until the runtime runs.
    let pid = fs::read_to_string(&fifo).unwrap().trim().parse().unwrap();
    let runtime = sys::pidfd::PidFd::open(pid).unwrap();
    assert!(host.grant("runc", "c1").is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(runtime.wait_exit(60_000).unwrap());
    // The engine then deletes what may be there.
    host.script("runtime", &features("exit 0"));
    let deleted = wrapper(&host, &["delete", "--force", "c1"]);
    assert!(deleted.status.success(), "{}", reply(&deleted));
    host.assert_clean();
}

#[test]
fn what_a_checkpoint_cannot_hold_is_refused() {
    let Some(host) = Host::find() else { return };
    telling(&host);
    let plain = host.bundle("plain", json!({}));
    let asks = host.bundle("asks", slice());
    let restore = |bundle: &Path| {
        wrapper(
            &host,
            &[
                "restore",
                "--image-path",
                "/i",
                "--bundle",
                bundle.to_str().unwrap(),
                "c",
            ],
        )
    };
    assert!(restore(&plain).status.success());
    assert!(wrapper(&host, &["checkpoint", "plain"]).status.success());
    let refused = restore(&asks);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        reply(&refused).contains("neither checkpointed nor restored"),
        "{}",
        reply(&refused)
    );
}

#[test]
fn a_runtime_that_is_not_the_administrator_s_alone_is_refused_with_the_reason() {
    let Some(host) = Host::find() else { return };
    let runtime = host.path("runtime");
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o757)).unwrap();
    let refused = wrapper(&host, &["--version"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(reply(&refused).contains("mode 757"), "{}", reply(&refused));
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).unwrap();
    // A configuration that cannot be used is told to whoever asks for something by it.
    let asks = host.bundle("asks", slice());
    let asks = ["restore", "--bundle", asks.to_str().unwrap(), "c"];
    let with_it = || wrapper(&host, &asks);
    fs::set_permissions(host.dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = with_it();
    assert!(
        reply(&refused).contains("can replace it"),
        "{}",
        reply(&refused)
    );
    fs::set_permissions(host.dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(wrapper(&host, &["--version"]).status.success());

    let named = runtime.to_str().unwrap().to_owned();
    edit_config(&host, &named, "runc");
    assert!(reply(&with_it()).contains("an absolute path"));
    edit_config(&host, "runc = \"runc\"", &format!("runc = \"{WRAPPER}\""));
    assert!(reply(&wrapper(&host, &["--version"])).contains("is cgpu-runtime itself"));
    edit_config(&host, WRAPPER, "/no/such/runtime");
    let refused = wrapper(&host, &["--version"]);
    assert!(
        reply(&refused).contains("/no/such/runtime"),
        "{}",
        reply(&refused)
    );
}

#[test]
fn a_runtime_named_crun_is_read_as_crun_reads_its_arguments() {
    let Some(host) = Host::find() else { return };
    let dir = host.dir.path().display().to_string();
    let crun = host.script(
        "crun",
        &features(&format!("printf '%s\\n' \"$@\" > {dir}/words")),
    );
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "100Gi"}));
    let attached = format!("-b{}", bundle.display());
    // Go's parser has no such option: the container is not understood, and runs by nobody.
    assert!(reply(&wrapper(&host, &["create", &attached, "c1"])).contains("unknown option"));
    let named = host.path("runtime");
    edit_config(&host, named.to_str().unwrap(), crun.to_str().unwrap());
    let refused = wrapper(
        &host,
        &["--cgroup-manager=cgroupfs", "create", &attached, "c1"],
    );
    assert!(
        reply(&refused).contains("100 GiB on one card is requested"),
        "{}",
        reply(&refused)
    );
    assert!(!host.path("words").exists());
    host.assert_clean();
}
