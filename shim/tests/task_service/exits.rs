//! Ends of processes: each is told once, after the start and before whatever ends with it.

use std::collections::HashMap;
use std::fs;

use containerd_shim_protos::events::task::{TaskExecStarted, TaskExit};
use containerd_shim_protos::shim::oci::Options;
use protobuf::Message;
use ttrpc::Code;

use crate::engine::*;
use crate::harness::need_runc;
use crate::refusal::code;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn of_many_execs_that_end_at_once_each_end_is_reported_once_and_in_order() {
    need_runc!();
    const LANES: usize = 6;
    const EACH: usize = 12;
    let mut engine = Engine::new().await;
    let id = "many";
    let (task, socket) = engine.running(id).await;
    let lanes = (0..LANES).map(|lane| {
        let task = task.clone();
        tokio::spawn(async move {
            for number in 0..EACH {
                let exec = format!("e{lane}-{number}");
                let status = (lane * EACH + number) % 250;
                let script = format!("exit {status}");
                let seen = run_exec(&task, "many", &exec, &script, Io::default()).await;
                assert_eq!(usize::try_from(seen).expect("a status"), status);
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.expect("all execs of a lane");
    }
    end(&task, id, &socket).await;

    let mut pids: HashMap<String, u32> = HashMap::new();
    let mut exits = 0;
    loop {
        let (topic, event) = engine.next().await;
        match topic.as_str() {
            "/tasks/exec-started" => {
                let started = TaskExecStarted::parse_from_bytes(&event.value).expect("a start");
                assert!(pids.insert(started.exec_id, started.pid).is_none());
            }
            "/tasks/exit" => {
                let exit = TaskExit::parse_from_bytes(&event.value).expect("an exit");
                if exit.id == id {
                    break;
                }
                assert_eq!(pids.remove(&exit.id), Some(exit.pid), "{}", exit.id);
                exits += 1;
            }
            _ => {}
        }
    }
    assert_eq!(
        (exits, pids.len()),
        (LANES * EACH, 0),
        "init's end is the last"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_end_before_runc_has_answered_is_reported_after_the_start() {
    need_runc!();
    let mut engine = Engine::new().await;
    let id = "early";
    // A runc that answers only when what it has started has ended.
    let ended = engine.make_fifo("ended");
    let wrapper = engine.script(
        "late-runc",
        &format!(
            "runc \"$@\" || exit 1\ncase \"$*\" in *' exec '*|*' start '*) read x < {};; esac",
            ended.display()
        ),
    );
    drop(engine.bundle(id, "exit 8", false));
    let (task, socket) = engine.start_shim(id).await;
    let pid = engine.create(&task, id, "", false, binary(&wrapper)).await;
    let gone = move |pid: u32| {
        let ended = ended.clone();
        tokio::task::spawn_blocking(move || {
            let stat = format!("/proc/{pid}/stat");
            while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")) {
                std::thread::yield_now();
            }
            fs::write(ended, "go\n").expect("the gate");
        })
    };
    let (started, reported) = tokio::join!(start(&task, id, ""), gone(pid));
    assert_eq!(started.expect("start"), pid);
    reported.expect("no panic");
    assert_eq!(wait(&task, id, "").await, 8);
    for topic in ["/tasks/create", "/tasks/start", "/tasks/exit"] {
        assert_eq!(engine.next_event().await, topic);
    }
    assert_eq!(delete(&task, id, "").await.expect("delete"), 8);
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn execs_that_end_with_init_are_reported_before_it() {
    need_runc!();
    let mut engine = Engine::new().await;
    let id = "with-init";
    let (task, socket) = engine.running(id).await;
    for exec in ["a", "b", "c"] {
        let io = Io::default();
        add_exec(&task, id, exec, "sleep 1000", io)
            .await
            .expect("exec");
        start(&task, id, exec).await.expect("start of the exec");
    }
    drop(kill(&task, id).await.expect("kill"));
    let mut reported = Vec::new();
    for _ in 0..4 {
        let exit = engine.next_exit().await;
        assert_eq!(exit.exit_status, 137);
        reported.push(exit.id);
    }
    assert_eq!(
        reported.last().map(String::as_str),
        Some(id),
        "{reported:?}"
    );
    // Nothing can be added to what has ended, as containerd's own shim says it.
    let late = add_exec(&task, id, "late", "true", Io::default()).await;
    assert_eq!(code(late).0, Code::FAILED_PRECONDITION);
    for exec in ["a", "b", "c"] {
        assert_eq!(delete(&task, id, exec).await.expect("delete"), 137);
    }
    assert_eq!(delete(&task, id, "").await.expect("delete"), 137);
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn without_a_pid_namespace_orphans_are_reaped_and_all_ends_with_init() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "orphans";
    let script =
        "i=0; while [ $i -lt 40 ]; do (true &); (sleep 1000 &); i=$((i+1)); done; exec sleep 1000";
    let bundle = engine.bundle(id, script, false);
    let config = bundle.join("config.json");
    let spec = fs::read_to_string(&config).expect("the spec");
    fs::write(&config, spec.replace("{\"type\":\"pid\"},", "")).expect("the spec");
    let (task, socket) = engine.start_shim(id).await;
    let shim = shim_pid(&task, id).await;
    engine
        .create(&task, id, "", false, Options::default())
        .await;
    let group = fs::read_to_string(bundle.join("init.pid")).expect("init");
    start(&task, id, "").await.expect("start");
    let children = || {
        let path = format!("/proc/{shim}/task/{shim}/children");
        let children = fs::read_to_string(path).expect("children");
        let numbers = children.split_whitespace().map(str::to_owned);
        numbers.collect::<Vec<_>>()
    };
    let state = |pid: &String| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next())
    };
    // Init and forty that sleep; those that have ended are reaped.
    until("the orphans are the shim's and the dead are gone", || {
        let children = children();
        children.len() == 41 && children.iter().all(|pid| state(pid) != Some('Z'))
    })
    .await;
    assert!(children().contains(&group.trim().to_owned()));
    drop(kill(&task, id).await.expect("kill"));
    assert_eq!(wait(&task, id, "").await, 137);
    until("all of the container has ended", || children().is_empty()).await;
    assert_eq!(delete(&task, id, "").await.expect("delete"), 137);
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_exec_gets_every_signal_that_there_is() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "signals";
    let (task, socket) = engine.running(id).await;
    add_exec(&task, id, "e", "exec sleep 1000", Io::default())
        .await
        .expect("exec");
    assert_eq!(
        code(signal(&task, id, "e", 9).await).0,
        Code::FAILED_PRECONDITION
    );
    let pid = start(&task, id, "e").await.expect("start of the exec");
    // runc has returned before its process executed the program, once in two hundred times under load: until then Go's runtime takes the signal.
    let program = format!("/proc/{pid}/cmdline");
    until("it is the program", || {
        fs::read(&program).is_ok_and(|line| line.starts_with(b"sleep"))
    })
    .await;
    drop(signal(&task, id, "e", 0).await.expect("it is there"));
    let (invalid, text) = code(signal(&task, id, "e", 65).await);
    assert_eq!(invalid, Code::INVALID_ARGUMENT);
    assert!(text.contains("65") && text.contains("64"), "{text}");
    // SIGRTMIN+3, by which systemd is asked to stop.
    drop(signal(&task, id, "e", 37).await.expect("a signal"));
    assert_eq!(wait(&task, id, "e").await, 128 + 37);
    let (gone, text) = code(signal(&task, id, "e", 9).await);
    assert_eq!(gone, Code::NOT_FOUND);
    assert!(text.contains("process already finished"), "{text}");
    assert_eq!(code(signal(&task, id, "x", 9).await).0, Code::NOT_FOUND);
    end(&task, id, &socket).await;
}
