//! Everything that an engine asks of a shim, from start to deletion, under containerd of both generations.
//! No container here asks for a vGPU: these must be plain containers under our shim.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result};
use integration::command::{LIMIT, capture, in_terminal, line, wait_until};
use integration::containerd::CGPU;
use integration::daemon::Daemon;
use integration::packages::Suite;
use integration::rig::{self, Rig};

macro_rules! under_both_containerds {
    ($($name:ident)*) => {
        mod host {
            $(#[test] fn $name() -> anyhow::Result<()> { super::with(super::Suite::Host, concat!("host::", stringify!($name)), super::$name) })*
        }
        mod newer {
            $(#[test] fn $name() -> anyhow::Result<()> { super::with(super::Suite::Newer, concat!("newer::", stringify!($name)), super::$name) })*
        }
    };
}

under_both_containerds! {
    exit_codes_and_both_streams_arrive
    standard_input_reaches_the_program
    a_terminal_has_its_size_and_loses_no_output
    exec_runs_beside_init_with_its_own_exit_code
    signals_reach_the_right_process
    pause_stops_and_resume_continues
    ps_lists_every_process
    metrics_tell_memory_and_its_limit
    output_goes_to_a_log_file
    output_goes_to_a_logging_program
    events_come_in_order
    an_oom_kill_is_reported
    containers_of_one_group_share_a_shim
    a_shim_is_where_containerds_own_tools_look_for_it
    a_program_that_is_not_there_is_an_error_and_leaves_nothing
    a_killed_shim_leaves_a_container_that_can_be_removed
    a_restarted_containerd_finds_its_containers
}

static KILLING: RwLock<()> = RwLock::new(());

fn with(suite: Suite, test: &str, body: fn(&mut Rig) -> Result<()>) -> Result<()> {
    // What a killed shim leaves on the machine cannot be told from what another test would: alone, or beside others
    // that kill none.
    let kills = test.contains("killed_shim");
    let _alone = kills.then(|| KILLING.write().unwrap_or_else(PoisonError::into_inner));
    let _together = (!kills).then(|| KILLING.read().unwrap_or_else(PoisonError::into_inner));
    let mut rig = match rig::start(suite)? {
        Ok(rig) => rig,
        Err(reason) => integration::skip!(test, "{reason}"),
    };
    body(&mut rig)?;
    rig.finish()
}

fn exit_codes_and_both_streams_arrive(rig: &mut Rig) -> Result<()> {
    for code in [0, 1, 42, 255] {
        let script = format!("echo out; echo err >&2; exit {code}");
        let reply = rig.once(&format!("c{code}"), &[], &["sh", "-c", &script])?;
        assert_eq!(
            (reply.code, reply.stdout.as_str(), reply.stderr.trim()),
            (Some(code), "out\n", "err"),
            "{reply:?}"
        );
    }
    // Many containers, each ending at once: an exit that comes before `start` has answered must not be lost.
    for number in 0..10 {
        let reply = rig.once(&format!("quick-{number}"), &[], &["true"])?;
        assert_eq!(reply.code, Some(0), "{reply:?}");
    }
    Ok(())
}

/// A command under `sh`, for pipes and `script`.
fn shell(command: &Command, pattern: &str) -> Result<integration::command::Outcome> {
    let mut shell = Command::new("sh");
    shell.args(["-c", &pattern.replace("{}", &line(command))]);
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            shell.env(key, value);
        }
    }
    capture(&mut shell, LIMIT)
}

fn standard_input_reaches_the_program(rig: &mut Rig) -> Result<()> {
    let run = rig.containerd.ctr_command(&[
        "run",
        "--rm",
        "--runtime",
        CGPU,
        &rig.image.name,
        "in",
        "sha256sum",
    ])?;
    let reply = shell(&run, "head -c 3000000 /dev/zero | {}")?.success()?;
    let expected = capture(
        Command::new("sh").args(["-c", "head -c 3000000 /dev/zero | sha256sum"]),
        LIMIT,
    )?;
    assert_eq!(reply.stdout, expected.stdout);
    rig.hold("c", &[])?.success()?;
    let exec = rig
        .containerd
        .ctr_command(&["tasks", "exec", "--exec-id", "e", "c", "wc", "-c"])?;
    let reply = shell(&exec, "head -c 100000 /dev/zero | {}")?.success()?;
    assert_eq!(reply.stdout.trim(), "100000");
    rig.containerd.remove("c")
}

/// A script that waits, after all that it has said, until it was read.
fn then_waits(script: &str) -> String {
    format!("{script}; echo 'all is said'; read _")
}

/// What was said before that.
fn numbers_of(reply: &str) -> Vec<&str> {
    let reply = reply
        .split_once("all is said")
        .map_or("", |(before, _)| before);
    reply.split_whitespace().collect()
}

fn a_terminal_has_its_size_and_loses_no_output(rig: &mut Rig) -> Result<()> {
    let terminal = |mut command: Command| in_terminal(&mut command, 123, 45, LIMIT)?.success();
    let run = rig.containerd.ctr_command(&[
        "run",
        "--rm",
        "-t",
        "--runtime",
        CGPU,
        &rig.image.name,
        "tty",
        "sh",
        "-c",
        &then_waits("seq 1 20000"),
    ])?;
    let reply = terminal(run)?;
    let numbers = numbers_of(&reply.stdout);
    assert_eq!((numbers.len(), numbers.last()), (20000, Some(&"20000")));
    rig.hold("c", &[])?.success()?;
    let exec = rig.containerd.ctr_command(&[
        "tasks",
        "exec",
        "-t",
        "--exec-id",
        "e",
        "c",
        "sh",
        "-c",
        // The engine tells the size of an exec's terminal after it has started it.
        &then_waits("until stty size 2>/dev/null | grep .; do true; done"),
    ])?;
    let reply = terminal(exec)?;
    assert!(reply.stdout.contains("45 123"), "{reply:?}");
    for number in 0..5 {
        let name = format!("e{number}");
        let exec = rig.containerd.ctr_command(&[
            "tasks",
            "exec",
            "-t",
            "--exec-id",
            &name,
            "c",
            "sh",
            "-c",
            &then_waits("seq 1 50000"),
        ])?;
        let reply = terminal(exec)?;
        let numbers = numbers_of(&reply.stdout);
        assert_eq!(
            (numbers.len(), numbers.last()),
            (50000, Some(&"50000")),
            "exec {number} lost some of its output"
        );
    }
    rig.containerd.remove("c")
}

fn exec_runs_beside_init_with_its_own_exit_code(rig: &mut Rig) -> Result<()> {
    rig.hold("c", &[])?.success()?;
    for code in [0, 3, 200] {
        let reply = rig
            .containerd
            .exec("c", &["sh", "-c", &format!("echo $$; exit {code}")])?;
        assert_eq!(reply.code, Some(code), "{reply:?}");
    }
    let reply = rig.containerd.exec("c", &["no-such-program"])?.failure()?;
    assert!(reply.contains("no-such-program"), "{reply}");
    // A failed exec must not harm the container.
    rig.containerd.exec("c", &["true"])?.success()?;
    let reply = rig.containerd.ctr(&["tasks", "ls"])?.success()?;
    assert!(reply.stdout.contains("RUNNING"), "{}", reply.stdout);
    rig.containerd.remove("c")
}

fn signals_reach_the_right_process(rig: &mut Rig) -> Result<()> {
    let trap = "trap 'echo got; exit 9' USR1; echo ready; while true; do sleep 0.05; done";
    let log = rig.node.root().join("signals.log");
    let uri = format!("file://{}", log.display());
    rig.containerd
        .run_detached(
            &rig.image,
            "c",
            &["--runtime", CGPU, "--log-uri", &uri],
            &["sh", "-c", trap],
        )?
        .success()?;
    let logged = |text: &str| Ok(fs::read_to_string(&log).unwrap_or_default().contains(text));
    wait_until("the trap", LIMIT, || logged("ready"))?;
    rig.containerd
        .ctr(&["tasks", "kill", "-s", "SIGUSR1", "c"])?
        .success()?;
    wait_until("the signal", LIMIT, || logged("got"))?;
    wait_until("the end", LIMIT, || {
        Ok(rig
            .containerd
            .ctr(&["tasks", "ls"])?
            .stdout
            .contains("STOPPED"))
    })?;
    let reply = rig.containerd.ctr(&["tasks", "rm", "c"])?;
    assert!(
        reply.stderr.contains("exit code 9"),
        "the exit code of the ended task: {reply:?}"
    );
    rig.containerd.ctr(&["containers", "rm", "c"])?.success()?;
    // A signal to a task that is not there is an error.
    rig.containerd.ctr(&["tasks", "kill", "c"])?.failure()?;
    Ok(())
}

fn pause_stops_and_resume_continues(rig: &mut Rig) -> Result<()> {
    rig.hold("c", &[])?.success()?;
    rig.containerd.pause("c")?;
    let reply = rig.containerd.ctr(&["tasks", "ls"])?.success()?;
    assert!(reply.stdout.contains("PAUSED"), "{}", reply.stdout);
    rig.containerd.ctr(&["tasks", "resume", "c"])?.success()?;
    rig.containerd.exec("c", &["true"])?.success()?;
    rig.containerd.remove("c")
}

fn ps_lists_every_process(rig: &mut Rig) -> Result<()> {
    rig.detached("c", &[], &["sh", "-c", "sleep 1000 & sleep 1001 & wait"])?
        .success()?;
    wait_until("three processes", LIMIT, || {
        let reply = rig.containerd.ctr(&["tasks", "ps", "c"])?.success()?;
        Ok(reply.stdout.lines().count() == 4)
    })?;
    rig.containerd.remove("c")
}

fn metrics_tell_memory_and_its_limit(rig: &mut Rig) -> Result<()> {
    let limit = "67108864";
    rig.containerd
        .run_detached(
            &rig.image,
            "c",
            &["--runtime", CGPU, "--memory-limit", limit],
            &["sleep", "1000"],
        )?
        .success()?;
    let reply = rig
        .containerd
        .ctr(&["tasks", "metrics", "--format", "json", "c"])?
        .success()?;
    assert!(
        reply.stdout.contains(limit),
        "no limit of {limit} bytes in {}",
        reply.stdout
    );
    rig.containerd.remove("c")
}

fn output_goes_to_a_log_file(rig: &mut Rig) -> Result<()> {
    let log = rig.node.root().join("out.log");
    let uri = format!("file://{}", log.display());
    rig.containerd
        .run_detached(
            &rig.image,
            "c",
            &["--runtime", CGPU, "--log-uri", &uri],
            &["sh", "-c", "echo one; echo two >&2"],
        )?
        .success()?;
    wait_until("both lines in the file", LIMIT, || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        Ok(text.contains("one\n") && text.contains("two\n"))
    })?;
    rig.containerd.remove("c")
}

fn output_goes_to_a_logging_program(rig: &mut Rig) -> Result<()> {
    // containerd's contract: output on descriptor 3, errors on 4, readiness told by closing 5.
    let (program, out, err) = (
        rig.node.root().join("logger"),
        rig.node.root().join("logged.out"),
        rig.node.root().join("logged.err"),
    );
    let script = format!(
        "#!/bin/sh\nexec 5>&-\ncat <&3 >{} &\ncat <&4 >{} &\nwait\n",
        out.display(),
        err.display()
    );
    fs::write(&program, script)?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    let uri = format!("binary://{}", program.display());
    let options = ["--runtime", CGPU, "--log-uri", &uri];
    let print = ["sh", "-c", "echo one; echo two >&2"];
    rig.containerd
        .run_detached(&rig.image, "c", &options, &print)?
        .success()?;
    wait_until("both lines in the program's files", LIMIT, || {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        Ok(text(&out) == "one\n" && text(&err) == "two\n")
    })?;
    rig.containerd.remove("c")
}

fn events(rig: &Rig) -> Result<Daemon> {
    let command = rig.containerd.ctr_command(&["events"])?;
    let mut events = Daemon::start("ctr events", &command, &rig.node.root().join("events.log"))?;
    // It says nothing when it has subscribed: events are made until one arrives.
    let mut probe = 0;
    let log = rig.node.root().join("events.log");
    events.wait_ready(LIMIT, || {
        probe += 1;
        let name = format!("probe-{probe}");
        rig.containerd
            .ctr(&["leases", "create", "--id", &name, "--expires", "1h"])?;
        rig.containerd
            .ctr(&["containers", "create", &rig.image.name, &name])?
            .success()?;
        rig.containerd
            .ctr(&["containers", "rm", &name])?
            .success()?;
        Ok(fs::read_to_string(&log)?.contains("probe-"))
    })?;
    Ok(events)
}

fn events_come_in_order(rig: &mut Rig) -> Result<()> {
    let mut events = events(rig)?;
    rig.once("c", &[], &["sh", "-c", "exit 5"])?;
    let tasks = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.contains("/tasks/"))
            .filter_map(|line| {
                line.split_whitespace()
                    .find(|argument| argument.starts_with("/tasks/"))
            })
            .map(str::to_owned)
            .collect()
    };
    let deleted = wait_until("the delete event", Duration::from_secs(10), || {
        Ok(tasks(&events.output()).contains(&"/tasks/delete".to_owned()))
    });
    let reply = events.output();
    deleted.with_context(|| reply.clone())?;
    assert_eq!(
        tasks(&reply),
        [
            "/tasks/create",
            "/tasks/start",
            "/tasks/exit",
            "/tasks/delete"
        ],
        "{reply}"
    );
    assert!(reply.contains("\"exit_status\":5"), "{reply}");
    events.stop(Duration::from_secs(5))?;
    Ok(())
}

fn an_oom_kill_is_reported(rig: &mut Rig) -> Result<()> {
    let mut events = events(rig)?;
    rig.containerd
        .run_detached(
            &rig.image,
            "c",
            &["--runtime", CGPU, "--memory-limit", "16777216"],
            &["sh", "-c", "x=y; while true; do x=$x$x; done"],
        )?
        .success()?;
    wait_until("the OOM event", LIMIT, || {
        Ok(events.output().contains("/tasks/oom"))
    })?;
    events.stop(Duration::from_secs(5))?;
    rig.containerd.remove("c")
}

fn shims(rig: &Rig) -> Result<usize> {
    Ok(rig.node.running("containerd-shim-cgpu-v2").len())
}

fn containers_of_one_group_share_a_shim(rig: &mut Rig) -> Result<()> {
    let group = ["io.containerd.runc.v2.group=pod"];
    for id in ["one", "two", "three"] {
        rig.hold(id, &group)?.success()?;
    }
    assert_eq!(shims(rig)?, 1);
    // One ends; the others live on.
    rig.containerd.remove("one")?;
    for id in ["two", "three"] {
        rig.containerd.exec(id, &["true"])?.success()?;
        rig.containerd.remove(id)?;
    }
    wait_until("the shim's end", LIMIT, || Ok(shims(rig)? == 0))
}

fn a_shim_is_where_containerds_own_tools_look_for_it(rig: &mut Rig) -> Result<()> {
    rig.hold("alone", &[])?.success()?;
    rig.hold("grouped", &["io.containerd.runc.v2.group=pod"])?
        .success()?;
    for group in ["alone", "pod"] {
        let path = rig.containerd.socket();
        let path = path.join(rig.containerd.namespace()).join(group);
        let mut sum = Command::new("sh");
        sum.args(["-c", "printf %s \"$1\" | sha256sum", "sh"])
            .arg(path);
        let sum = capture(&mut sum, LIMIT)?.success()?.stdout;
        let sum = sum.split(' ').next().context("a sum")?;
        let socket = format!("/run/containerd/s/{sum}");
        let bound = fs::read_to_string("/proc/net/unix")?;
        assert!(
            bound.lines().any(|entry| entry.ends_with(&socket)),
            "{socket}"
        );
    }
    for id in ["alone", "grouped"] {
        rig.containerd.remove(id)?;
    }
    Ok(())
}

fn a_program_that_is_not_there_is_an_error_and_leaves_nothing(rig: &mut Rig) -> Result<()> {
    let reply = rig.detached("c", &[], &["/no/such/program"])?.failure()?;
    assert!(reply.contains("no such file or directory"), "{reply}");
    rig.containerd.ctr(&["containers", "rm", "c"])?;
    wait_until("the shim's end", LIMIT, || Ok(shims(rig)? == 0))
}

fn a_killed_shim_leaves_a_container_that_can_be_removed(rig: &mut Rig) -> Result<()> {
    rig.hold("c", &[])?.success()?;
    for shim in rig.node.running("containerd-shim-cgpu-v2") {
        capture(Command::new("kill").args(["-9", &shim.to_string()]), LIMIT)?.success()?;
    }
    // containerd sees the connection end and runs `delete`, which must end the container.
    wait_until("the container's end", LIMIT, || {
        let tasks = rig.containerd.ctr(&["tasks", "ls", "-q"])?;
        Ok(tasks.stdout.trim().is_empty())
    })?;
    rig.containerd.ctr(&["containers", "rm", "c"])?.success()?;
    rig.once("again", &[], &["true"])?
        .success()
        .context("a container after the crash")?;
    Ok(())
}

fn a_restarted_containerd_finds_its_containers(rig: &mut Rig) -> Result<()> {
    rig.hold("c", &[])?.success()?;
    rig.containerd.kill()?;
    rig.containerd.restart()?;
    let reply = rig.containerd.ctr(&["tasks", "ls"])?.success()?;
    assert!(reply.stdout.contains("RUNNING"), "{}", reply.stdout);
    rig.containerd.exec("c", &["true"])?.success()?;
    rig.containerd.remove("c")
}
