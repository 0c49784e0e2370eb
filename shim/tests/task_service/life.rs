//! A container's life, its neighbours', and the service's two names.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use containerd_shim_protos::api;
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::shim_async::Client;
use protobuf::well_known_types::any::Any;
use protobuf::{Message, MessageField};
use ttrpc::Code;

use crate::engine::*;
use crate::harness::{need_runc, process, runc_state};
use crate::refusal::code;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_container_runs_and_its_events_come_in_order() {
    need_runc!();
    let mut engine = Engine::new().await;
    let id = "life";
    let bundle = engine.bundle(id, "seq 1 50000; exit 7", false);
    let (task, socket) = engine.start_shim(id).await;
    let (out, reader) = engine.fifo("life.out");
    let pid = engine
        .create(&task, id, &out, false, Options::default())
        .await;
    let request = api::DeleteRequest {
        id: "absent".into(),
        ..Default::default()
    };
    assert_eq!(
        code(task.delete(limit(), &request).await).0,
        Code::NOT_FOUND
    );
    assert_eq!(start(&task, id, "").await.expect("start"), pid);
    assert_eq!(wait(&task, id, "").await, 7);
    assert_eq!(code(kill(&task, id).await).0, Code::NOT_FOUND);
    assert_eq!(delete(&task, id, "").await.expect("delete"), 7);
    assert!(
        reader
            .join()
            .expect("the reader")
            .ends_with("49999\n50000\n")
    );
    for topic in [
        "/tasks/create",
        "/tasks/start",
        "/tasks/exit",
        "/tasks/delete",
    ] {
        assert_eq!(engine.next_event().await, topic);
    }
    shutdown(&task, &socket).await;
    assert!(!runc_state(id).exists());
    let left: Vec<_> = fs::read_dir(bundle)
        .expect("the bundle")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().starts_with("log-")),
        "{left:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_exec_has_a_terminal_and_its_own_end() {
    need_runc!();
    let mut engine = Engine::new().await;
    let id = "exec";
    drop(engine.bundle(id, "sleep 1000", false));
    let (task, socket) = engine.start_shim(id).await;
    engine
        .create(&task, id, "", false, Options::default())
        .await;
    start(&task, id, "").await.expect("start");
    let (out, reader) = engine.fifo("exec.out");
    let script = process(&["/bin/sh", "-c", "tty; seq 1 20000; exit 5"], true);
    let exec = api::ExecProcessRequest {
        id: id.into(),
        exec_id: "e".into(),
        terminal: true,
        stdout: out,
        spec: MessageField::some(Any {
            value: script.to_string().into_bytes(),
            ..Any::default()
        }),
        ..Default::default()
    };
    drop(task.exec(limit(), &exec).await.expect("exec"));
    assert_eq!(
        code(task.exec(limit(), &exec).await).0,
        Code::ALREADY_EXISTS
    );
    start(&task, id, "e").await.expect("start of the exec");
    assert_eq!(wait(&task, id, "e").await, 5);
    assert_eq!(delete(&task, id, "e").await.expect("delete of the exec"), 5);
    let text = reader.join().expect("the reader");
    assert!(
        text.starts_with("/dev/pts/") && text.ends_with("19999\r\n20000\r\n"),
        "{}",
        text.len()
    );

    let broken = process(&["/bin/absent"], false).to_string().into_bytes();
    let spec = MessageField::some(Any {
        value: broken,
        ..Any::default()
    });
    let exec = api::ExecProcessRequest {
        exec_id: "b".into(),
        terminal: false,
        stdout: String::new(),
        spec,
        ..exec
    };
    drop(task.exec(limit(), &exec).await.expect("exec"));
    let (unknown, text) = code(start(&task, id, "b").await);
    assert_eq!(unknown, Code::UNKNOWN);
    assert!(
        text.starts_with("OCI runtime exec failed: ") && text.contains("no such file or directory"),
        "{text}"
    );

    assert_eq!(
        code(delete(&task, id, "").await).0,
        Code::FAILED_PRECONDITION
    );
    drop(kill(&task, id).await.expect("kill"));
    assert_eq!(wait(&task, id, "").await, 137);
    assert_eq!(delete(&task, id, "").await.expect("delete"), 137);
    let mut topics = Vec::new();
    while topics.last().is_none_or(|topic| topic != "/tasks/delete") {
        topics.push(engine.next_event().await);
    }
    let of_exec = ["/tasks/exec-added", "/tasks/exec-started", "/tasks/exit"];
    assert_eq!(
        topics.get(2..5),
        Some(of_exec.map(String::from).as_slice()),
        "{topics:?}"
    );
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_runc_that_hangs_holds_up_no_neighbour_in_the_pod() {
    need_runc!();
    let engine = Engine::new().await;
    drop(engine.bundle("quick", "sleep 1000", false));
    drop(engine.bundle("slow", "exit 3", false));
    let (task, socket) = engine.start_shim("quick").await;
    let (same, same_socket) = engine.start_shim("slow").await;
    assert_eq!(socket, same_socket, "one shim for the group");
    engine
        .create(&task, "quick", "", false, Options::default())
        .await;

    // A runc whose create waits until somebody writes to the gate.
    let gate = engine.dir.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let wrapper = engine.dir.path().join("slow-runc");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *' create '*) read x < {};; esac\nexec runc \"$@\"\n",
        gate.display()
    );
    fs::write(&wrapper, script).expect("a wrapper");
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("an executable");
    let options = Options {
        binary_name: wrapper.display().to_string(),
        ..Options::default()
    };
    let (engine_ref, slow) = (&engine, &same);
    let creating = engine_ref.create(slow, "slow", "", false, options);
    let neighbour = async {
        start(&task, "quick", "").await.expect("start");
        drop(kill(&task, "quick").await.expect("kill"));
        assert_eq!(wait(&task, "quick", "").await, 137);
        assert_eq!(delete(&task, "quick", "").await.expect("delete"), 137);
        let opened = tokio::task::spawn_blocking(move || OpenOptions::new().write(true).open(gate));
        opened
            .await
            .expect("no panic")
            .and_then(|mut gate| gate.write_all(b"go\n"))
            .expect("the gate");
    };
    tokio::join!(creating, neighbour);
    start(&same, "slow", "").await.expect("start");
    assert_eq!(wait(&same, "slow", "").await, 3);
    assert_eq!(delete(&same, "slow", "").await.expect("delete"), 3);
    shutdown(&same, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_create_that_fails_leaves_nothing_and_reports_what_runc_reported() {
    need_runc!();
    let engine = Engine::new().await;
    let bundle = engine.bundle("bad", "true", false);
    let config = fs::read_to_string(bundle.join("config.json")).expect("the spec");
    fs::write(
        bundle.join("config.json"),
        config.replace("/bin/sh", "/bin/absent"),
    )
    .expect("the spec");
    let (task, socket) = engine.start_shim("bad").await;
    let request = api::CreateTaskRequest {
        id: "bad".into(),
        bundle: bundle.display().to_string(),
        ..Default::default()
    };
    let (unknown, text) = code(task.create(limit(), &request).await);
    assert_eq!(unknown, Code::UNKNOWN);
    assert!(
        text.starts_with("OCI runtime create failed: ")
            && text.contains("no such file or directory"),
        "{text}"
    );
    let state = api::StateRequest {
        id: "bad".into(),
        ..Default::default()
    };
    assert_eq!(code(task.state(limit(), &state).await).0, Code::NOT_FOUND);
    assert!(!runc_state("bad").exists());

    let mistaken = Any {
        type_url: "some.Options".into(),
        ..Any::default()
    };
    let request = api::CreateTaskRequest {
        options: MessageField::some(mistaken),
        ..request
    };
    assert_eq!(
        code(task.create(limit(), &request).await).0,
        Code::INVALID_ARGUMENT
    );
    for (path, answer) in [("", Code::INVALID_ARGUMENT), ("/image", Code::NOT_FOUND)] {
        let checkpoint = api::CheckpointTaskRequest {
            id: "bad".into(),
            path: path.into(),
            ..Default::default()
        };
        assert_eq!(code(task.checkpoint(limit(), &checkpoint).await).0, answer);
    }
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_service_answers_to_its_older_name_too() {
    need_runc!();
    let engine = Engine::new().await;
    drop(engine.bundle("names", "true", false));
    let (task, socket) = engine.start_shim("names").await;
    let client = Client::connect(&format!("unix://{}", socket.display()))
        .await
        .expect("a connection");
    for service in ["containerd.task.v2.Task", "containerd.task.v3.Task"] {
        let connect = api::ConnectRequest {
            id: "names".into(),
            ..Default::default()
        };
        let request = ttrpc::Request {
            service: service.into(),
            method: "Connect".into(),
            timeout_nano: 5_000_000_000,
            payload: connect.write_to_bytes().expect("a request"),
            ..Default::default()
        };
        let response = client.request(request).await.expect(service);
        let connected =
            api::ConnectResponse::parse_from_bytes(&response.payload).expect("a response");
        assert!(connected.shim_pid > 0 && connected.task_pid == 0);
    }
    shutdown(&task, &socket).await;
}

/// The soft limit of a process's open files.
fn soft_limit(pid: u32) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("the limits");
    let mut files = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .expect("the limit of open files")
        .split_whitespace();
    files
        .next()
        .and_then(|soft| soft.parse().ok())
        .expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_shim_may_open_more_files_than_what_it_starts() {
    need_runc!();
    const LOW: u64 = 600;
    let engine = Engine::new().await;
    let id = "files";
    let (called, logged) = (engine.path("runc.limits"), engine.path("logger.limit"));
    // Not read of the container's processes: a runc of some versions of Go raises the limit for them itself.
    let runc = engine.script(
        "runc.sh",
        &format!("ulimit -Sn >> {}\nexec runc \"$@\"", called.display()),
    );
    let logger = engine.script(
        "logger.sh",
        &format!("exec 5>&-\ncat <&3\nulimit -Sn > {}", logged.display()),
    );
    drop(engine.bundle(id, "sleep 1000", false));
    let start_command = engine.start_command(id);
    let mut limited = std::process::Command::new("/bin/sh");
    limited
        .args(["-c", &format!("ulimit -Sn {LOW} && exec \"$0\" \"$@\"")])
        .arg(start_command.get_program())
        .args(start_command.get_args())
        .env("TTRPC_ADDRESS", engine.path("events.sock"))
        .current_dir(engine.path(id))
        .stdin(std::process::Stdio::null());
    let (task, socket) = engine.started(&mut limited).await;
    let out = format!("binary://{logger}");
    engine.create(&task, id, "", false, binary(&runc)).await;
    start(&task, id, "").await.expect("start");
    add_exec(&task, id, "e", "sleep 1000", Io::out(&out))
        .await
        .expect("exec");
    start(&task, id, "e").await.expect("start of the exec");
    assert!(soft_limit(shim_pid(&task, id).await) > LOW);
    drop(signal(&task, id, "e", 9).await.expect("kill"));
    assert_eq!(wait(&task, id, "e").await, 137);
    assert_eq!(delete(&task, id, "e").await.expect("delete"), 137);
    for (program, limits) in [("runc", called), ("the logging program", logged)] {
        let limits = fs::read_to_string(limits).expect(program);
        assert!(
            !limits.is_empty() && limits.lines().all(|limit| limit == LOW.to_string()),
            "{program}: {limits}"
        );
    }
    end(&task, id, &socket).await;
}
