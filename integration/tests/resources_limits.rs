//! Limits as docker shows, sets and unsets them, and what it says of a container that went beyond its memory.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result};
use integration::command::{LIMIT, wait_until};
use integration::containerd::CGPU;
use integration::docker::Docker;
use integration::packages::Suite;
use integration::rig::{self, Rig};

fn with_docker(test: &str, body: fn(&Rig, &Docker) -> Result<()>) -> Result<()> {
    let rig = match rig::start(Suite::Newer)? {
        Ok(rig) => rig,
        Err(reason) => integration::skip!(test, "{reason}"),
    };
    let mut docker = Docker::start(&rig.node, &rig.containerd)?;
    docker.load(&rig.image)?;
    body(&rig, &docker)?;
    docker.stop()?;
    drop(docker);
    rig.finish()
}

fn run(rig: &Rig, docker: &Docker, id: &str, options: &[&str], program: &[&str]) -> Result<()> {
    let mut args = vec![
        "run",
        "-d",
        "--name",
        id,
        "--network=none",
        "--runtime",
        CGPU,
    ];
    args.extend(options);
    args.push(&rig.image.name);
    args.extend(program);
    docker.docker(&args)?.success()?;
    Ok(())
}

/// A file of the container's control group, of either version.
fn limit(docker: &Docker, id: &str, v1: &str, v2: &str) -> Result<String> {
    let script = format!("cat /sys/fs/cgroup/{v1} 2>/dev/null || cat /sys/fs/cgroup/{v2}");
    let reply = docker
        .docker(&["exec", id, "sh", "-c", &script])?
        .success()?;
    Ok(reply.stdout.trim().to_owned())
}

/// `POST /containers/ID/update`.
fn update_by_api(docker: &Docker, id: &str, body: &str) -> Result<()> {
    let command = docker.command(&[]);
    let mut arguments = command.get_args().filter_map(|argument| argument.to_str());
    let socket = arguments.find_map(|argument| argument.strip_prefix("unix://"));
    let mut stream = UnixStream::connect(socket.context("docker's socket")?)?;
    stream.set_read_timeout(Some(LIMIT))?;
    write!(
        stream,
        "POST /containers/{id}/update HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    anyhow::ensure!(answer.contains(" 200 OK\r\n"), "{answer}");
    Ok(())
}

#[test]
fn limits_are_shown_set_and_unset() -> Result<()> {
    with_docker("limits_are_shown_set_and_unset", |rig, docker| {
        let sleep = ["sleep", "100000"];
        let options = ["--memory", "64m", "--pids-limit", "20"];
        run(rig, docker, "held", &options, &sleep)?;
        let format = "{{.MemUsage}} {{.PIDs}} {{.CPUPerc}}";
        let shown = docker
            .docker(&["stats", "--no-stream", "--format", format, "held"])?
            .success()?;
        let arguments: Vec<&str> = shown.stdout.split_whitespace().collect();
        assert_eq!(
            (arguments[2], arguments[3]),
            ("64MiB", "1"),
            "{arguments:?}"
        );
        assert!(!arguments[0].starts_with("0B"), "{arguments:?}");

        let pids = || limit(docker, "held", "pids/pids.max", "pids.max");
        assert_eq!(pids()?, "20");
        let update = |args: &[&str]| -> Result<()> {
            docker
                .docker(&[&["update"], args, &["held"]].concat())?
                .success()?;
            Ok(())
        };
        update(&["--pids-limit", "42"])?;
        assert_eq!(pids()?, "42");
        // 0 and every negative number unset it; the client leaves a 0 out, so it is sent as the library would.
        for unset in [0, -1, -2] {
            update(&["--pids-limit", "42"])?;
            assert_eq!(pids()?, "42");
            update_by_api(docker, "held", &format!(r#"{{"PidsLimit":{unset}}}"#))?;
            assert_eq!(pids()?, "max", "after {unset}");
        }
        // What is not named stays.
        update(&["--pids-limit", "42"])?;
        update_by_api(docker, "held", r#"{"CpuShares":600}"#)?;
        assert_eq!(pids()?, "42");

        update(&["--memory", "96m", "--memory-swap", "96m"])?;
        let memory = limit(docker, "held", "memory/memory.limit_in_bytes", "memory.max")?;
        assert_eq!(memory, (96 << 20).to_string());
        let shown = docker
            .docker(&["stats", "--no-stream", "--format", "{{.MemUsage}}", "held"])?
            .success()?;
        assert!(shown.stdout.trim().ends_with("/ 96MiB"), "{shown:?}");
        update(&[
            "--cpu-quota",
            "30000",
            "--cpu-period",
            "100000",
            "--cpu-shares",
            "512",
        ])?;
        let quota = limit(docker, "held", "cpu/cpu.cfs_quota_us", "cpu.max")?;
        assert!(quota.starts_with("30000"), "{quota}");
        // What runc refuses is told in its words.
        let refused = docker
            .docker(&["update", "--cpuset-cpus", "0-100000", "held"])?
            .failure()?;
        assert!(!refused.is_empty());
        let top = docker
            .docker(&["top", "held", "-o", "pid,args"])?
            .success()?;
        assert!(top.stdout.contains("sleep 100000"), "{top:?}");
        docker.docker(&["rm", "-f", "held"])?.success()?;
        Ok(())
    })
}

/// The end of the container and its reason come within the same instant: in ten of ten the reason is known with the end.
#[test]
fn who_goes_beyond_its_memory_is_reported() -> Result<()> {
    with_docker("who_goes_beyond_its_memory_is_reported", |rig, docker| {
        let hungry = ["sh", "-c", "x=y; while true; do x=$x$x; done"];
        let ids: Vec<String> = (0..10).map(|number| format!("oom-{number}")).collect();
        for id in &ids {
            run(
                rig,
                docker,
                id,
                &["--memory", "16m", "--memory-swap", "16m"],
                &hungry,
            )?;
        }
        for id in &ids {
            docker.docker(&["wait", id])?.success()?;
            let state = docker
                .docker(&["inspect", "--format", "{{json .State}}", id])?
                .success()?
                .json()?;
            assert_eq!(state["OOMKilled"], true, "{id}: {state}");
            assert_eq!(state["ExitCode"], 137, "{id}: {state}");
        }
        // One that is killed otherwise is not said to have.
        run(
            rig,
            docker,
            "killed",
            &["--memory", "16m"],
            &["sleep", "100000"],
        )?;
        docker.docker(&["kill", "killed"])?.success()?;
        docker.docker(&["wait", "killed"])?.success()?;
        let state = docker
            .docker(&["inspect", "--format", "{{.State.OOMKilled}}", "killed"])?
            .success()?;
        assert_eq!(state.stdout.trim(), "false");
        for id in ids.iter().map(String::as_str).chain(["killed"]) {
            docker.docker(&["rm", id])?.success()?;
        }
        Ok(())
    })
}

#[test]
fn a_stop_signal_reaches_init_and_a_shared_pid_namespace_is_emptied() -> Result<()> {
    let test = "a_stop_signal_reaches_init_and_a_shared_pid_namespace_is_emptied";
    with_docker(test, |rig, docker| {
        let waits = "trap 'exit 7' 37; touch /ready; while true; do sleep 0.05; done";
        let options = ["--stop-signal", "SIGRTMIN+3"];
        run(rig, docker, "held", &options, &["/bin/sh", "-c", waits])?;
        wait_until("the trap", LIMIT, || {
            Ok(docker
                .docker(&["exec", "held", "test", "-e", "/ready"])?
                .succeeded())
        })?;
        docker.docker(&["stop", "-t", "60", "held"])?.success()?;
        let code = docker
            .docker(&["inspect", "--format", "{{.State.ExitCode}}", "held"])?
            .success()?;
        assert_eq!(code.stdout.trim(), "7");
        docker.docker(&["rm", "held"])?.success()?;

        // In the host's PID namespace nobody else ends what init leaves.
        let leaves = "sleep 98765 & echo $! > /child; exec sleep 100000";
        run(
            rig,
            docker,
            "shared",
            &["--pid=host"],
            &["sh", "-c", leaves],
        )?;
        let mut child = String::new();
        wait_until("the child", LIMIT, || {
            child = docker.docker(&["exec", "shared", "cat", "/child"])?.stdout;
            Ok(!child.trim().is_empty())
        })?;
        let child: u32 = child.trim().parse().context("a process number")?;
        let command_line = format!("/proc/{child}/cmdline");
        assert!(std::fs::read_to_string(&command_line)?.contains("98765"));
        docker.docker(&["kill", "shared"])?.success()?;
        docker.docker(&["wait", "shared"])?.success()?;
        wait_until("the child's end", Duration::from_secs(10), || {
            let line = std::fs::read_to_string(&command_line).unwrap_or_default();
            Ok(!line.contains("98765"))
        })?;
        docker.docker(&["rm", "shared"])?.success()?;
        Ok(())
    })
}
