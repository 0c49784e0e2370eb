//! runc missing, hanging, killed, and silent.

use std::fs;

use containerd_shim_protos::api;
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::shim_async::TaskClient;
use containerd_shim_protos::types::mount::Mount;
use protobuf::MessageField;
use protobuf::well_known_types::any::Any;
use ttrpc::Code;

use crate::engine::*;
use crate::harness::{cgroup, need_runc, process, runc_state};
use crate::refusal::code;

/// Folders of the container's control groups.
fn groups(id: &str) -> Vec<std::path::PathBuf> {
    let below = cgroup(id);
    let hierarchies = fs::read_dir("/sys/fs/cgroup")
        .expect("control groups")
        .flatten();
    let group = |root: std::path::PathBuf| root.join(below.trim_start_matches('/'));
    hierarchies
        .map(|entry| group(entry.path()))
        .chain([group("/sys/fs/cgroup".into())])
        .filter(|group| group.exists())
        .collect()
}

/// Processes that were started for the container: in its groups, or with its bundle in their command line.
fn processes(id: &str, bundle: &std::path::Path) -> Vec<String> {
    let (group, bundle) = (cgroup(id), bundle.display().to_string());
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let ours = |entry: fs::DirEntry| {
        let read = |name| fs::read(entry.path().join(name)).unwrap_or_default();
        let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let groups = String::from_utf8_lossy(&read("cgroup")).into_owned();
        (groups.contains(&group) || line.contains(&bundle)).then_some(line)
    };
    entries.filter_map(ours).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_runc_that_is_missing_or_reports_nothing_is_named() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "no-runc";
    let bundle = engine.bundle(id, "true", false);
    let (task, socket) = engine.start_shim(id).await;
    let silent = engine.script("silent-runc", "exit 0");
    let mute = engine.script("mute-runc", "exit 3");
    let signalled = engine.script("killed-runc", "kill -9 $$");
    for (program, arguments) in [
        ("/absent/runc", vec!["/absent/runc", "No such file"]),
        ("absent-runc", vec!["absent-runc", "No such file"]),
        (silent.as_str(), vec!["init.pid"]),
        (
            mute.as_str(),
            vec!["OCI runtime create failed", "mute-runc", "3"],
        ),
        (
            signalled.as_str(),
            vec!["OCI runtime create failed", "killed-runc", "137"],
        ),
    ] {
        let options = runc_options(&binary(program));
        let created = engine.try_create(&task, id, Io::default(), options).await;
        let (_, text) = code(created);
        for argument in arguments {
            assert!(text.contains(argument), "{program}: {text}");
        }
        let state = api::StateRequest {
            id: id.into(),
            ..Default::default()
        };
        assert_eq!(code(task.state(limit(), &state).await).0, Code::NOT_FOUND);
    }
    // The same shim makes the container when it is given one that works.
    engine
        .create(&task, id, "", false, Options::default())
        .await;
    start(&task, id, "").await.expect("start");
    assert_eq!(wait(&task, id, "").await, 0);
    assert_eq!(delete(&task, id, "").await.expect("delete"), 0);
    assert!(processes(id, &bundle).is_empty());
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_runc_that_is_killed_while_it_creates_leaves_nothing() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "killed-runc";
    let bundle = engine.bundle(id, "sleep 1000", false);
    let config = bundle.join("config.json");
    let plain = fs::read_to_string(&config).expect("the spec");
    let mut spec: serde_json::Value = serde_json::from_str(&plain).expect("JSON");
    let hook = serde_json::json!({"path": "/bin/sh", "args": ["sh", "-c", "kill -9 $PPID"]});
    spec["hooks"] = serde_json::json!({"createRuntime": [hook]});
    fs::write(&config, spec.to_string()).expect("the spec");
    let (task, socket) = engine.start_shim(id).await;
    let options = runc_options(&Options::default());
    let created = engine.try_create(&task, id, Io::default(), options).await;
    let (unknown, text) = code(created);
    assert_eq!(unknown, Code::UNKNOWN);
    assert!(text.contains("137"), "{text}");
    assert!(!runc_state(id).exists());
    until("its processes end", || processes(id, &bundle).is_empty()).await;
    assert_eq!(groups(id), Vec::<std::path::PathBuf>::new());

    fs::write(&config, plain).expect("the spec");
    engine
        .create(&task, id, "", false, Options::default())
        .await;
    start(&task, id, "").await.expect("start");
    end(&task, id, &socket).await;
    assert_eq!(groups(id), Vec::<std::path::PathBuf>::new());
}

async fn verb(task: TaskClient, verb: &'static str) -> ttrpc::Result<()> {
    let id = "hung".to_owned();
    match verb {
        "start" => start(&task, &id, "").await.map(drop),
        "exec" => {
            let process = process(&["/bin/true"], false).to_string().into_bytes();
            let request = api::ExecProcessRequest {
                id: id.clone(),
                exec_id: "e".into(),
                spec: MessageField::some(Any {
                    value: process,
                    ..Any::default()
                }),
                ..Default::default()
            };
            drop(task.exec(limit(), &request).await?);
            start(&task, &id, "e").await.map(drop)
        }
        "pause" => {
            let request = api::PauseRequest {
                id,
                ..Default::default()
            };
            task.pause(limit(), &request).await.map(drop)
        }
        "resume" => {
            let request = api::ResumeRequest {
                id,
                ..Default::default()
            };
            task.resume(limit(), &request).await.map(drop)
        }
        "ps" => {
            let request = api::PidsRequest {
                id,
                ..Default::default()
            };
            task.pids(limit(), &request).await.map(drop)
        }
        "update" => {
            let request = api::UpdateTaskRequest {
                id,
                resources: MessageField::some(Any {
                    value: b"{}".to_vec(),
                    ..Any::default()
                }),
                ..Default::default()
            };
            task.update(limit(), &request).await.map(drop)
        }
        "kill" => kill(&task, &id).await.map(drop),
        _ => delete(&task, &id, "").await.map(drop),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn whatever_runc_hangs_in_a_neighbour_in_the_pod_is_served() {
    need_runc!();
    let engine = Engine::new().await;
    drop(engine.bundle("hung", "sleep 1000", false));
    let gate = engine.make_fifo("gate");
    let reached = engine.make_fifo("reached");
    let wrapper = engine.script(
        "hanging-runc",
        &format!(
            "for word; do case \"$word\" in create|state) break;; start|exec|pause|resume|ps|update|kill|delete)\n\
             echo > {}; read x < {}; break;; esac; done\nexec runc \"$@\"",
            reached.display(),
            gate.display()
        ),
    );
    let (task, socket) = engine.start_shim("hung").await;
    engine
        .create(&task, "hung", "", false, binary(&wrapper))
        .await;
    let pipe = |path: std::path::PathBuf, mode: &'static str| {
        tokio::task::spawn_blocking(move || match mode {
            "read" => fs::read(path).map(drop),
            _ => fs::write(path, "go\n"),
        })
    };
    for (number, name) in [
        "start", "exec", "pause", "resume", "ps", "update", "kill", "delete",
    ]
    .into_iter()
    .enumerate()
    {
        let hanging = tokio::spawn(verb(task.clone(), name));
        pipe(reached.clone(), "read")
            .await
            .expect("no panic")
            .expect("runc hangs");
        // A whole life beside it, in the same shim.
        let neighbour = format!("quick{number}");
        drop(engine.bundle(&neighbour, "sleep 1000", false));
        let (same, same_socket) = engine.start_shim(&neighbour).await;
        assert_eq!(same_socket, socket, "one shim for the group");
        engine
            .create(&same, &neighbour, "", false, Options::default())
            .await;
        start(&same, &neighbour, "").await.expect("start");
        assert_eq!(
            run_exec(&same, &neighbour, "e", "exit 4", Io::default()).await,
            4
        );
        drop(kill(&same, &neighbour).await.expect("kill"));
        assert_eq!(wait(&same, &neighbour, "").await, 137);
        assert_eq!(delete(&same, &neighbour, "").await.expect("delete"), 137);
        assert!(!hanging.is_finished(), "{name} hangs");
        pipe(gate.clone(), "write")
            .await
            .expect("no panic")
            .expect("the gate");
        hanging.await.expect("no panic").expect(name);
        if name == "exec" {
            assert_eq!(wait(&task, "hung", "e").await, 0);
            assert_eq!(delete(&task, "hung", "e").await.expect("delete"), 0);
        }
        if name == "kill" {
            assert_eq!(wait(&task, "hung", "").await, 137);
        }
    }
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_end_of_a_mount_helper_is_left_to_who_started_it() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "helped";
    drop(engine.bundle(id, "exit 6", false));
    let (gate, process) = (engine.make_fifo("gate"), engine.path("helper.pid"));
    // It mounts nothing, and leaves a process that keeps its standard error open.
    drop(engine.script(
        "mount.fuse3",
        &format!(
            "read x < {} &\necho $$ > {}",
            gate.display(),
            process.display()
        ),
    ));
    let path = std::env::var("PATH").expect("a path");
    let mut command = engine.start_command(id);
    command.env("PATH", format!("{}:{path}", engine.dir.path().display()));
    let (task, socket) = engine.started(&mut command).await;
    let request = api::CreateTaskRequest {
        id: id.into(),
        bundle: engine.path(id).display().to_string(),
        rootfs: vec![Mount {
            type_: "fuse3.fake".into(),
            source: "source".into(),
            ..Default::default()
        }],
        options: MessageField::some(runc_options(&Options::default())),
        ..Default::default()
    };
    let creating = {
        let task = task.clone();
        tokio::spawn(async move { task.create(limit(), &request).await })
    };
    until("the helper has ended", || {
        let pid = fs::read_to_string(&process).unwrap_or_default();
        let ended = |pid: &str| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_ok_and(|stat| stat.contains(") Z"))
                || !std::path::Path::new("/proc").join(pid).exists()
        };
        pid.ends_with('\n') && ended(pid.trim())
    })
    .await;
    // The shim has taken notice of that by its next answers.
    for _ in 0..2 {
        assert!(shim_pid(&task, id).await > 0);
    }
    tokio::task::spawn_blocking(move || fs::write(gate, "go\n"))
        .await
        .expect("no panic")
        .expect("the gate");
    creating.await.expect("no panic").expect("create");
    start(&task, id, "").await.expect("start");
    assert_eq!(wait(&task, id, "").await, 6);
    assert_eq!(delete(&task, id, "").await.expect("delete"), 6);
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn who_kills_or_deletes_an_exec_during_its_start_finds_what_came_of_it() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "given-up";
    drop(engine.bundle(id, "sleep 1000", false));
    let (gate, reached) = (engine.make_fifo("gate"), engine.make_fifo("reached"));
    let wrapper = engine.script(
        "slow-runc",
        &format!(
            "case \" $* \" in *' exec '*) echo > {}; read x < {}; $x;; esac\nexec runc \"$@\"",
            reached.display(),
            gate.display()
        ),
    );
    let (task, socket) = engine.start_shim(id).await;
    engine.create(&task, id, "", false, binary(&wrapper)).await;
    start(&task, id, "").await.expect("start");
    // runc starts the one that is killed, and fails for the one that is deleted.
    for (exec, verdict) in [("killed", "true"), ("deleted", "exit 3")] {
        add_exec(&task, id, exec, "exec sleep 1000", Io::default())
            .await
            .expect("exec");
        let (starter, ender) = (task.clone(), task.clone());
        let starting = tokio::spawn(async move { start(&starter, id, exec).await });
        let reached = reached.clone();
        tokio::task::spawn_blocking(move || fs::read(reached))
            .await
            .expect("no panic")
            .expect("runc is called");
        let ending = tokio::spawn(async move {
            match exec {
                "killed" => signal(&ender, id, exec, 9).await.map(drop),
                _ => delete(&ender, id, exec).await.map(drop),
            }
        });
        // Requests of a connection are taken in turn.
        for _ in 0..2 {
            tokio::task::yield_now().await;
            assert!(shim_pid(&task, id).await > 0);
        }
        assert!(!ending.is_finished(), "{exec} before its start has ended");
        let gate = gate.clone();
        tokio::task::spawn_blocking(move || fs::write(gate, format!("{verdict}\n")))
            .await
            .expect("no panic")
            .expect("the gate");
        let started = starting.await.expect("no panic");
        ending.await.expect("no panic").expect(exec);
        if exec == "killed" {
            started.expect("start of the exec");
            assert_eq!(wait(&task, id, exec).await, 137);
            assert_eq!(delete(&task, id, exec).await.expect("delete"), 137);
        } else {
            started.expect_err("runc has failed");
            assert_eq!(code(delete(&task, id, exec).await).0, Code::NOT_FOUND);
        }
    }
    end(&task, id, &socket).await;
}
