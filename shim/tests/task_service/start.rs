//! `start` and what it replies to each generation of containerd, and the options that choose runc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use containerd_shim_protos::api;
use containerd_shim_protos::bootstrap_api::{BootstrapParams, BootstrapResult, Extension};
use containerd_shim_protos::types::introspection::RuntimeInfo;
use protobuf::well_known_types::any::Any;
use protobuf::{CodedOutputStream, Message, MessageField};
use ttrpc::Code;

use crate::SHIM;
use crate::engine::*;
use crate::harness::{NAMESPACE, need_runc};
use crate::refusal::code;

/// `runtimeoptions.v1.Options` with a file's path, or with TOML text.
fn generic(path: &str, body: &str) -> Any {
    let mut value = Vec::new();
    let mut out = CodedOutputStream::vec(&mut value);
    let fields = [(1, "runtimeoptions.v1.Options"), (2, path), (3, body)];
    for (number, text) in fields {
        if !text.is_empty() {
            out.write_string(number, text).expect("a field");
        }
    }
    out.flush().expect("a message");
    drop(out);
    Any {
        type_url: "runtimeoptions.v1.Options".into(),
        value,
        ..Any::default()
    }
}

fn socket(address: &[u8]) -> PathBuf {
    let address = std::str::from_utf8(address).expect("text");
    PathBuf::from(address.strip_prefix("unix://").expect("an address alone"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn options_on_standard_input_are_answered_with_the_address_alone() {
    need_runc!();
    let engine = Engine::new().await;
    drop(engine.bundle("bare", "true", false));
    let mut last = None;
    for options in [
        runc_options(&binary("runc")),
        generic("", "SystemdCgroup = false"),
        generic("", ""),
    ] {
        let input = options.write_to_bytes().expect("options");
        let output = answer(&mut engine.start_command("bare"), &input);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        let socket = socket(&output.stdout);
        assert!(last.is_none_or(|last| last == socket), "one shim");
        last = Some(socket);
    }
    let socket = last.expect("three starts");
    shutdown(&connect(&socket).await, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn parameters_on_standard_input_are_enough_and_are_answered_in_kind() {
    need_runc!();
    let mut engine = Engine::new().await;
    let id = "params";
    let bundle = engine.bundle(id, "exit 4", false);
    let sockets = engine.path("s");
    let params = BootstrapParams {
        instance_id: id.into(),
        namespace: NAMESPACE.clone(),
        containerd_grpc_address: engine.path("containerd.sock").display().to_string(),
        containerd_ttrpc_address: engine.path("events.sock").display().to_string(),
        socket_dir: Some(sockets.display().to_string()),
        extensions: vec![Extension {
            value: MessageField::some(runc_options(&binary("runc"))),
            ..Default::default()
        }],
        ..Default::default()
    };
    let input = params.write_to_bytes().expect("parameters");
    let mut command = Command::new(SHIM);
    command
        .arg("start")
        .env_remove("TTRPC_ADDRESS")
        .current_dir(&bundle);
    let output = answer(&mut command, &input);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let result = BootstrapResult::parse_from_bytes(&output.stdout).expect("a result");
    assert_eq!((result.version, result.protocol.as_str()), (3, "ttrpc"));
    let socket = socket(result.address.as_bytes());
    assert_eq!(socket.parent(), Some(sockets.as_path()));

    // With flags as well, as containerd sends both today.
    let again = answer(&mut engine.start_command(id), &input);
    assert_eq!(again.stdout, output.stdout, "the same server");

    let task = connect(&socket).await;
    engine.create(&task, id, "", false, binary("runc")).await;
    start(&task, id, "").await.expect("start");
    assert_eq!(engine.next_exit().await.exit_status, 4);
    assert_eq!(delete(&task, id, "").await.expect("delete"), 4);
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn two_starts_of_a_group_at_a_time_have_one_server() {
    need_runc!();
    let engine = Engine::new().await;
    for id in ["both-a", "both-b"] {
        drop(engine.bundle(id, "true", false));
    }
    let spawn = |id| {
        let mut command = engine.start_command(id);
        let spawned = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        spawned.expect("the shim")
    };
    let children = [spawn("both-a"), spawn("both-b")];
    let outputs = children.map(|child| child.wait_with_output().expect("an answer"));
    let [first, second] = outputs.map(|output| socket(&output.stdout));
    assert_eq!(first, second);
    shutdown(&connect(&first).await, &first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn options_that_are_not_understood_are_named_and_nothing_is_left() {
    need_runc!();
    let engine = Engine::new().await;
    let bundle = engine.bundle("unknown", "true", false);
    let some = Any {
        type_url: "some.Options".into(),
        ..Any::default()
    };
    for (options, arguments) in [
        (some, vec!["some.Options", "runtimeoptions.v1.Options"]),
        (
            generic("", "Policy = \"strict\""),
            vec!["Policy", "BinaryName"],
        ),
        (
            generic("", "SystemdCgroup = 3"),
            vec!["SystemdCgroup = 3", "boolean"],
        ),
        (
            generic("/absent/options.toml", ""),
            vec!["/absent/options.toml"],
        ),
    ] {
        let input = options.write_to_bytes().expect("options");
        let output = answer(&mut engine.start_command("unknown"), &input);
        assert!(!output.status.success() && output.stdout.is_empty());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        for argument in arguments {
            assert!(text.contains(argument), "{text}");
        }
        assert!(!bundle.join("address").exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn generic_options_choose_runc_by_file_or_by_table() {
    need_runc!();
    let engine = Engine::new().await;
    let seen = engine.path("seen");
    let runc = engine.script(
        "marked-runc",
        &format!("echo \"$*\" >> {}\nexec runc \"$@\"", seen.display()),
    );
    let file = engine.path("options.toml");
    fs::write(&file, format!("BinaryName = {runc:?}\n")).expect("a file");
    let table = format!("BinaryName = {runc:?}\nNoNewKeyring = true\n");
    let both = [
        ("by-file", generic(&file.display().to_string(), "")),
        ("by-table", generic("", &table)),
    ];
    for (id, options) in both {
        drop(engine.bundle(id, "exit 6", false));
        let (task, socket) = engine.start_shim(id).await;
        let created = engine.try_create(&task, id, Io::default(), options).await;
        created.expect("create");
        start(&task, id, "").await.expect("start");
        assert_eq!(wait(&task, id, "").await, 6);
        assert_eq!(delete(&task, id, "").await.expect("delete"), 6);
        let lines = fs::read_to_string(&seen).expect("what was called");
        assert!(
            lines
                .lines()
                .any(|line| line.contains(" create ") && line.ends_with(id)),
            "{lines}"
        );
        shutdown(&task, &socket).await;
    }
    let lines = fs::read_to_string(&seen).expect("what was called");
    let with = |id: &str| {
        let create = lines
            .lines()
            .find(|line| line.contains(" create ") && line.ends_with(id));
        create.expect("a create").contains("--no-new-keyring")
    };
    assert_eq!((with("by-file"), with("by-table")), (false, true));

    let id = "by-mistake";
    drop(engine.bundle(id, "true", false));
    let (task, socket) = engine.start_shim(id).await;
    let wrong = generic("", "Binary = \"runc\"");
    let (invalid, text) = code(engine.try_create(&task, id, Io::default(), wrong).await);
    assert_eq!(invalid, Code::INVALID_ARGUMENT);
    assert!(
        text.contains("Binary") && text.contains("BinaryName"),
        "{text}"
    );
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_runtime_describes_itself_and_the_runc_of_its_options() {
    need_runc!();
    let engine = Engine::new().await;
    let info = |options: &Any| {
        let input = options.write_to_bytes().expect("options");
        let output = answer(Command::new(SHIM).arg("-info"), &input);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        RuntimeInfo::parse_from_bytes(&output.stdout).expect("a description")
    };
    let runc = engine.script("runc", "echo '{\"ociVersionMax\":\"9.9.9\"}'");
    for options in [
        runc_options(&binary(&runc)),
        generic("", &format!("BinaryName = {runc:?}")),
    ] {
        let described = info(&options);
        assert_eq!(described.name, "io.containerd.cgpu.v2");
        assert_eq!(described.options.type_url, options.type_url);
        let features = String::from_utf8(described.features.value.clone()).expect("JSON");
        assert!(features.contains("9.9.9"), "{features}");
    }
    let without = info(&runc_options(&binary("/absent/runc")));
    assert!(without.features.is_none());
    assert_eq!(info(&Any::default()).name, "io.containerd.cgpu.v2");

    let version = Command::new(SHIM).arg("-v").output().expect("the shim");
    let text = String::from_utf8(version.stdout).expect("text");
    assert!(
        text.starts_with("containerd-shim-cgpu-v2:\n  Version: "),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn core_scheduling_is_had_or_its_lack_is_reported() {
    need_runc!();
    let engine = Engine::new().await;
    drop(engine.bundle("core", "true", false));
    let output = engine
        .start_command("core")
        .env("SCHED_CORE", "1")
        .output()
        .expect("the shim");
    if !output.status.success() {
        // A kernel without it, or a processor without siblings.
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            text.contains("SCHED_CORE") && output.stdout.is_empty(),
            "{text}"
        );
        return;
    }
    use rustix::process::Pid;
    use rustix::thread::{CoreSchedulingScope, core_scheduling_cookie};
    let socket = socket(&output.stdout);
    let task = connect(&socket).await;
    let shim = i32::try_from(shim_pid(&task, "core").await).expect("a process");
    let shim = Pid::from_raw(shim).expect("a process");
    let cookie = core_scheduling_cookie(shim, CoreSchedulingScope::Thread);
    assert_ne!(cookie.expect("a cookie"), 0);
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_server_is_killed_a_little_later_than_containerd_and_sooner_than_never() {
    need_runc!();
    let engine = Engine::new().await;
    drop(engine.bundle("score", "true", false));
    let (task, socket) = engine.start_shim("score").await;
    let score = |process: &str| {
        let text = fs::read_to_string(Path::new("/proc").join(process).join("oom_score_adj"));
        text.expect("a score")
            .trim()
            .parse::<i32>()
            .expect("a number")
    };
    let server = score(&shim_pid(&task, "score").await.to_string());
    assert_eq!(server, (score("self") + 1).min(1_000));
    shutdown(&task, &socket).await;
}

/// Where containerd's own helper looks for the shim of a group: `shim.SocketAddress`.
fn computed_socket(engine: &Engine, group: &str) -> PathBuf {
    use sha2::{Digest, Sha256};
    let path = engine
        .path("containerd.sock")
        .join(NAMESPACE.as_str())
        .join(group);
    let hash = Sha256::digest(path.as_os_str().as_encoded_bytes());
    let name: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new("/run/containerd/s").join(name)
}

/// Terminals that a process has open, once there are as many as `needed`.
async fn terminals(process: u32, needed: usize) {
    let open = || {
        let fds = fs::read_dir(format!("/proc/{process}/fd")).expect("the shim lives");
        let targets = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        targets
            .filter(|target| target.to_string_lossy().contains("ptmx"))
            .count()
    };
    until(&format!("{needed} terminals"), || open() == needed).await;
}

/// As containerd's suite for CRI does in `TestContainerTTYLeakAfterExit`.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_shim_found_by_containerds_own_rule_keeps_no_terminal_of_an_ended_process() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "found";
    drop(engine.bundle(id, "sleep 1000", true));
    let (_task, socket) = engine.start_shim(id).await;
    assert_eq!(socket, computed_socket(&engine, "group"));

    let task = connect(&computed_socket(&engine, "group")).await;
    let connected = task.connect(limit(), &api::ConnectRequest::default()).await;
    let connected = connected.expect("no identity is needed");
    assert_eq!(connected.task_pid, 0);
    let program = fs::read_link(format!("/proc/{}/exe", connected.shim_pid));
    assert_eq!(program.expect("a process"), Path::new(SHIM));

    let (out, reader) = engine.fifo("out");
    engine.create(&task, id, &out, true, binary("runc")).await;
    start(&task, id, "").await.expect("start");
    terminals(connected.shim_pid, 1).await;
    for (exec, stdin) in [("mute", None), ("interactive", Some("in"))] {
        let (stdout, read) = engine.fifo(exec);
        let io = Io {
            stdin: stdin.map_or_else(String::new, |name| {
                engine.make_fifo(name).display().to_string()
            }),
            ..Io::terminal(&stdout)
        };
        assert_eq!(run_exec(&task, id, exec, "echo tty", io).await, 0);
        terminals(connected.shim_pid, 1).await;
        assert_eq!(read.join().expect("output"), "tty\r\n");
    }
    drop(kill(&task, id).await.expect("kill"));
    assert_eq!(wait(&task, id, "").await, 137);
    assert_eq!(delete(&task, id, "").await.expect("delete"), 137);
    terminals(connected.shim_pid, 0).await;
    drop(reader.join().expect("output"));
    shutdown(&task, &socket).await;
    let link = socket.with_file_name(format!(
        "cgpu-{}",
        socket.file_name().expect("a name").display()
    ));
    until("its second name is removed", || !link.exists()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_group_that_another_shim_serves_is_refused_until_that_has_ended() {
    need_runc!();
    let engine = Engine::new().await;
    drop(engine.bundle("after", "true", false));
    let socket = computed_socket(&engine, "group");
    fs::create_dir_all("/run/containerd/s").expect("a folder");
    let foreign = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let output = engine.start_command("after").output().expect("the shim");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("another runtime's shim"),
        "{text}"
    );
    assert!(socket.exists(), "it is left alone");
    drop(foreign);
    let (task, found) = engine.start_shim("after").await;
    assert_eq!(found, socket, "a stale socket is replaced");
    shutdown(&task, &socket).await;
}
