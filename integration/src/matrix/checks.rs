//! What is asked of every engine.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::command::{LIMIT, wait_until};

use super::engine::{Ask, Container, Engine, Restarts};
use super::pods;
use super::rows::Family;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// `cgpu-burn`'s exit code for NV_ERR_NO_MEMORY.
const NO_MEMORY: i32 = 3;

/// The check that is asked of one row of each kind.
pub const FIFTY: &str = "50 containers, 10 at a time";

/// One demand.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its name in the tables.
    pub name: &'static str,
    /// What must hold.
    pub demands: &'static str,
    /// Fails where it does not.
    pub body: fn(&mut dyn Engine) -> Result<()>,
}

const fn check(
    name: &'static str,
    demands: &'static str,
    body: fn(&mut dyn Engine) -> Result<()>,
) -> Check {
    Check {
        name,
        demands,
        body,
    }
}

/// Every check that is asked of an engine of this family, in the order of the tables.
pub fn checks_of(family: Family) -> impl Iterator<Item = &'static Check> {
    let pods: &[Check] = match family {
        Family::Cri | Family::CriO => POD_CHECKS,
        Family::Containerd | Family::Nerdctl | Family::Docker | Family::Podman => &[],
    };
    CHECKS.iter().chain(pods)
}

/// Every check.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    CHECKS.iter().chain(POD_CHECKS)
}

/// What is asked of everyone.
const CHECKS: &[Check] = &[
    check("run", "a program's output arrives and it ends with 0", run),
    check(
        "exit codes",
        "0, 9 and 255 arrive; a program that is not there, or is none, is an error (docker: 127, 126)",
        exit_codes,
    ),
    check(
        "logs",
        "20000 lines of a detached container, none lost",
        logs,
    ),
    check(
        "exec",
        "output and exit code of 20 execs, one after the other; a program that is not there harms nobody",
        exec,
    ),
    check(
        "exec with tty",
        "it has the terminal's size, and 20000 lines come through it",
        exec_with_tty,
    ),
    check(
        "stats",
        "memory in use is not 0, the limit is the one that was set",
        stats,
    ),
    check("top", "the container's processes are listed", top),
    check(
        "pause",
        "a paused program stands still, a resumed one goes on",
        pause,
    ),
    check(
        "update",
        "a limit of memory set later is the one that is told",
        update,
    ),
    check(
        "kill",
        "a signal reaches the program, whose own exit code arrives; SIGKILL gives 137",
        kill,
    ),
    check(
        "OOM",
        "the engine tells that the kernel killed the program",
        oom,
    ),
    check(
        "restart policy",
        "a program that fails is started again as often as was asked, with the vGPU each time",
        restart_policy,
    ),
    check(
        "health check",
        "a passing one gives healthy, a failing one unhealthy",
        health_check,
    ),
    check(
        "restart by the user",
        "three restarts as compose makes them: the same quota each time, one grant",
        restart_by_user,
    ),
    check(
        "vGPU quota held",
        "4 GiB: the total inside is 4 GiB, 4000 MiB can be had, 4097 MiB not, by the program and by an exec",
        quota_held,
    ),
    check(
        "vGPU resize",
        "`cgpu set --memory 6Gi` on a running container: its total is 6 GiB",
        resize,
    ),
    check(
        "plain beside vGPU",
        "a container that asks for nothing has no card, while one beside it has",
        plain_beside,
    ),
    check(
        "restart of the engine",
        "daemon killed and started again under running containers: exec, quota and exit code are as before",
        engine_restart,
    ),
    check(
        "live-restore",
        "daemon stopped and started again: containers have run on, exec and exit code are as before",
        live_restore,
    ),
    check(
        FIFTY,
        "half of them with a vGPU: all start, run and are removed; no grant, shim or open file of the engine's more than before",
        fifty,
    ),
];

/// What is asked beyond these of engines that serve pods.
const POD_CHECKS: &[Check] = &[
    check(
        "pod: two containers",
        "the sandbox has no card; each container has what its own annotation asks for",
        pods::requests_of_containers,
    ),
    check(
        "pod: request of the pod",
        "the pod's annotation holds for its container, not for the sandbox",
        pods::request_of_the_pod,
    ),
    check(
        "pod: init, then app",
        "a container that ends before the next one starts, with its own quota; the app gets its memory",
        pods::init_then_app,
    ),
    check(
        "pod: sidecar",
        "a container without a request beside one with: it has no card and outlives the other",
        pods::sidecar,
    ),
    check(
        "pod: environment",
        "ALIYUN_COM_GPU_MEM_* of a container, as a device plugin sets them",
        pods::request_by_environment,
    ),
    check(
        "pod: execSync",
        "1000 lines in one answer, and an exit code with its reason",
        pods::exec_sync,
    ),
    check(
        "pod: shared processes",
        "shareProcessNamespace: containers see each other's processes, and one may hold a vGPU",
        pods::shared_processes,
    ),
    check(
        "pod: stop and remove",
        "a pod stopped and removed with its containers running gives everything back",
        pods::stop_and_remove,
    ),
    check(
        "pod: restart of containerd",
        "killed and started again under a pod: containers run on, take an exec, and end with their own code",
        pods::engine_restart,
    ),
];

/// A script that ends only when told to.
fn until_reported(code: u32) -> String {
    format!("trap 'exit {code}' USR1; echo ready; while true; do sleep 0.05; done")
}

fn wait_for_log(engine: &dyn Engine, name: &str, text: &str) -> Result<()> {
    wait_until(&format!("{text:?} in the logs"), LIMIT, || {
        // A log may come into being only with its first line.
        Ok(engine.logs(name).is_ok_and(|reply| reply.contains(text)))
    })
}

fn run(engine: &mut dyn Engine) -> Result<()> {
    let reply = engine.once(&Container::new("run", &["sh", "-c", "echo out"]))?;
    ensure!(
        reply.code == Some(0) && reply.stdout.trim() == "out",
        "{reply:?}"
    );
    Ok(())
}

fn exit_codes(engine: &mut dyn Engine) -> Result<()> {
    for code in [0, 9, 255] {
        let script = format!("exit {code}");
        let reply = engine.once(&Container::new("code", &["sh", "-c", &script]))?;
        ensure!(reply.code == Some(code), "{code} became {reply:?}");
    }
    let agreed = engine.codes_of_no_program();
    for (program, code) in [
        ("/no/such/program", agreed.map(|(absent, _)| absent)),
        ("/etc/passwd", agreed.map(|(_, none)| none)),
    ] {
        let reply = engine.once(&Container::new("no-program", &[program]))?;
        ensure!(!reply.succeeded(), "{program}: {reply:?}");
        ensure!(
            code.is_none() || reply.code == code,
            "{program} should end with {code:?}: {reply:?}"
        );
        let reported = format!("{}{}", reply.stdout, reply.stderr);
        ensure!(
            reported.contains("no such file or directory") || reported.contains("ermission denied"),
            "{program}: no reason in {reply:?}"
        );
        engine.remove_all()?;
    }
    Ok(())
}

fn logs(engine: &mut dyn Engine) -> Result<()> {
    let script = match engine.reads_on_after_the_end() {
        true => "seq 1 20000",
        false => "seq 1 20000; sleep 100000",
    };
    engine.start(&Container::new("logs", &["sh", "-c", script]))?;
    let expected: String = (1..=20000).map(|number| format!("{number}\n")).collect();
    let mut reply = String::new();
    let complete = wait_until("all lines", LIMIT, || {
        reply = engine.logs("logs").unwrap_or_default();
        Ok(reply == expected)
    });
    if complete.is_err() {
        bail!(
            "{} bytes of {}, the last line {:?}",
            reply.len(),
            expected.len(),
            reply.lines().last()
        );
    }
    Ok(())
}

fn exec(engine: &mut dyn Engine) -> Result<()> {
    engine.start(&Container::waiting("exec"))?;
    for number in 0..20 {
        let script = format!("echo {number}; exit {number}");
        let reply = engine.exec("exec", &["sh", "-c", &script])?;
        ensure!(
            reply.code == Some(number) && reply.stdout.trim() == number.to_string(),
            "exec {number}: {reply:?}"
        );
    }
    let reply = engine.exec("exec", &["/no/such/program"])?;
    ensure!(!reply.succeeded(), "{reply:?}");
    engine.exec("exec", &["true"])?.success()?;
    Ok(())
}

fn exec_with_tty(engine: &mut dyn Engine) -> Result<()> {
    engine.start(&Container::waiting("tty"))?;
    // An engine tells the size after it has started the program.
    let script = "until stty size 2>/dev/null | grep '45 123'; do true; done; seq 1 20000; \
                  echo 'all is said'; read _; exit 7";
    let reply = engine.exec_in_terminal("tty", &["sh", "-c", script])?;
    ensure!(reply.code == Some(7), "{:?} instead of 7", reply.code);
    let lines: Vec<&str> = reply.stdout.lines().map(str::trim).collect();
    let size = lines.iter().position(|line| *line == "45 123");
    let size = size.with_context(|| format!("no size in {:?}", lines.first()))?;
    // A client may say something of its own before and after.
    let numbers = lines.iter().skip(size + 1).take(20000);
    let complete = numbers
        .zip(1..=20000_u32)
        .filter(|(line, number)| **line == number.to_string());
    let complete = complete.count();
    ensure!(
        complete == 20000,
        "{complete} lines of 20000 in their place"
    );
    Ok(())
}

fn limited(name: &str) -> Container<'_> {
    Container {
        memory_bytes: Some(64 * MIB),
        ..Container::waiting(name)
    }
}

fn stats(engine: &mut dyn Engine) -> Result<()> {
    engine.start(&limited("stats"))?;
    let usage = engine.usage("stats")?;
    ensure!(
        usage.memory_bytes > 0 && usage.limit_bytes == Some(64 * MIB),
        "{usage:?}"
    );
    Ok(())
}

fn top(engine: &mut dyn Engine) -> Result<()> {
    let script = "sleep 1000 & sleep 1001 & wait";
    engine.start(&Container::new("top", &["sh", "-c", script]))?;
    let mut reply = String::new();
    let listed = wait_until("both processes", LIMIT, || {
        reply = engine.processes("top")?;
        Ok(reply.contains("sleep 1000") && reply.contains("sleep 1001"))
    });
    listed.with_context(|| reply)
}

fn pause(engine: &mut dyn Engine) -> Result<()> {
    let script = "n=0; while true; do n=$((n+1)); echo $n; sleep 0.02; done";
    engine.start(&Container::new("pause", &["sh", "-c", script]))?;
    wait_for_log(engine, "pause", "3")?;
    engine.pause("pause")?;
    // What was written before may still be on its way.
    let mut before = engine.logs("pause")?;
    wait_until("the output to stand still", LIMIT, || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let now = engine.logs("pause")?;
        let still = now == before;
        before = now;
        Ok(still)
    })?;
    engine.resume("pause")?;
    wait_until("the output to go on", LIMIT, || {
        Ok(engine.logs("pause")?.len() > before.len())
    })
}

fn update(engine: &mut dyn Engine) -> Result<()> {
    engine.start(&limited("update"))?;
    engine.set_memory("update", 96 * MIB)?;
    let limit = engine.limit("update")?;
    ensure!(limit == Some(96 * MIB), "{limit:?}");
    engine.exec("update", &["true"])?.success()?;
    Ok(())
}

fn kill(engine: &mut dyn Engine) -> Result<()> {
    let script = until_reported(7);
    engine.start(&Container::new("kill", &["sh", "-c", &script]))?;
    wait_for_log(engine, "kill", "ready")?;
    engine.signal("kill", "USR1")?;
    let code = engine.end_of("kill")?;
    ensure!(code == 7, "{code} instead of 7");
    engine.remove("kill")?;
    engine.start(&Container::waiting("kill9"))?;
    engine.signal("kill9", "KILL")?;
    let code = engine.end_of("kill9")?;
    ensure!(code == 137, "{code} instead of 137");
    Ok(())
}

fn oom(engine: &mut dyn Engine) -> Result<()> {
    let script = "echo ready; x=y; while true; do x=$x$x; done";
    engine.start(&Container {
        memory_bytes: Some(32 * MIB),
        ..Container::new("oom", &["sh", "-c", script])
    })?;
    ensure!(engine.oom_killed("oom")?, "its end was told without");
    Ok(())
}

fn restart_policy(engine: &mut dyn Engine) -> Result<()> {
    let script = "cgpu smi --json >/dev/null && echo sees a card; exit 4";
    engine.start(&Container {
        restarts: Restarts::OnFailure(2),
        ..Container::new("policy", &["sh", "-c", script]).gib(4)
    })?;
    wait_until("two restarts", LIMIT, || {
        Ok(engine.restarted("policy")? == 2)
    })?;
    // An engine may count before it starts.
    let expected = "sees a card\n".repeat(3);
    let mut reply = String::new();
    let complete = wait_until("three starts with a card", LIMIT, || {
        reply = engine.logs("policy")?;
        Ok(reply == expected && !engine.runs("policy")?)
    });
    complete.with_context(|| reply)
}

fn health_check(engine: &mut dyn Engine) -> Result<()> {
    let well = Container {
        health: Some("true"),
        ..Container::waiting("well")
    };
    engine.start(&well)?;
    ensure!(engine.healthy("well")?, "it is well");
    engine.start(&Container {
        name: "unhealthy",
        health: Some("false"),
        ..well
    })?;
    ensure!(!engine.healthy("unhealthy")?, "it is unhealthy");
    Ok(())
}

fn restart_by_user(engine: &mut dyn Engine) -> Result<()> {
    engine.start(&Container::waiting("again").gib(4))?;
    for _ in 0..3 {
        engine.restart("again")?;
        sees(engine, "again", 4)?;
        let vgpus = vgpus(engine)?;
        ensure!(vgpus.len() == 1, "one vGPU, not {vgpus:?}");
    }
    Ok(())
}

/// The total of the one card that a container sees.
fn total(smi: &Value) -> Result<u64> {
    let cards = smi["cards"].as_array().context("cards in the document")?;
    ensure!(cards.len() == 1, "one card, not {smi}");
    smi["cards"][0]["memory_total_bytes"]
        .as_u64()
        .with_context(|| format!("a total in {smi}"))
}

/// An exec sees one card of so many GiB.
fn sees(engine: &dyn Engine, name: &str, gib: u64) -> Result<()> {
    let smi = engine.exec(name, &["cgpu", "smi", "--json"])?.success()?;
    let total = total(&smi.json()?)?;
    ensure!(total == gib * GIB, "{total} bytes inside, not {gib} GiB");
    Ok(())
}

/// The containers that hold a vGPU, as the host sees them.
fn vgpus(engine: &dyn Engine) -> Result<Vec<String>> {
    let ps = engine.node().cgpu(&["ps", "--json"])?.success()?.json()?;
    let listed = ps["vgpus"].as_array().context("vgpus in the document")?;
    listed
        .iter()
        .map(|vgpu| {
            let name = vgpu["container"].as_str();
            Ok(name
                .with_context(|| format!("a name in {vgpu}"))?
                .to_owned())
        })
        .collect()
}

fn quota_held(engine: &mut dyn Engine) -> Result<()> {
    let once = |program| engine.once(&Container::new("quota", program).gib(4));
    let smi = once(&["cgpu", "smi", "--json"])?.success()?.json()?;
    ensure!(total(&smi)? == 4 * GIB, "{smi}");
    once(&["cgpu-burn", "alloc", "4000Mi"])?.success()?;
    let over = once(&["cgpu-burn", "alloc", "4097Mi"])?;
    ensure!(over.code == Some(NO_MEMORY), "{over:?}");
    engine.start(&Container::waiting("held").gib(4))?;
    sees(engine, "held", 4)?;
    let over = engine.exec("held", &["cgpu-burn", "alloc", "5Gi"])?;
    ensure!(over.code == Some(NO_MEMORY), "{over:?}");
    engine.remove("held")?;
    let left = engine.node().grants();
    ensure!(left.is_empty(), "grants after the removal: {left:?}");
    Ok(())
}

fn resize(engine: &mut dyn Engine) -> Result<()> {
    engine.start(&Container::waiting("resize").gib(4))?;
    let listed = vgpus(engine)?;
    let [id] = listed.as_slice() else {
        bail!("one vGPU, not {listed:?}");
    };
    engine
        .node()
        .cgpu(&["set", id, "--memory", "6Gi"])?
        .success()?;
    sees(engine, "resize", 6)?;
    let over = engine.exec("resize", &["cgpu-burn", "alloc", "6145Mi"])?;
    ensure!(over.code == Some(NO_MEMORY), "{over:?}");
    engine
        .exec("resize", &["cgpu-burn", "alloc", "5Gi"])?
        .success()?;
    Ok(())
}

fn plain_beside(engine: &mut dyn Engine) -> Result<()> {
    engine.start(&Container::waiting("with").gib(4))?;
    engine.start(&Container::waiting("without"))?;
    let nodes = engine.exec("without", &["sh", "-c", "ls /dev | grep -c nvidia"])?;
    ensure!(nodes.stdout.trim() == "0", "{nodes:?}");
    sees(engine, "with", 4)?;
    let vgpus = vgpus(engine)?;
    ensure!(vgpus.len() == 1, "one vGPU, not {vgpus:?}");
    Ok(())
}

/// Ends with 6 when [`TELL_TO_END`] has been run beside it and its process is gone. Gone is reaped: the exec's own end has been
/// seen by then, and the container's, which would kill it, cannot take its place.
pub(super) const UNTIL_REPORTED_TO_END: &str = "until pid=$(cat /tmp/told 2>/dev/null) && ! kill -0 $pid 2>/dev/null; do sleep 0.1; done; exit 6";
/// What an exec does to end [`UNTIL_REPORTED_TO_END`]; the exec ends with 0. The file appears with what is in it.
pub(super) const TELL_TO_END: &[&str] = &[
    "sh",
    "-c",
    "echo $$ >/tmp/telling && mv /tmp/telling /tmp/told",
];

/// Two containers that end with a code of their own when they are told to.
fn start_pair(engine: &dyn Engine) -> Result<()> {
    let program = ["sh", "-c", UNTIL_REPORTED_TO_END];
    engine.start(&Container::new("plain", &program))?;
    engine.start(&Container::new("held", &program).gib(4))
}

/// They run on under the new daemon, take an exec, hold their quota, and end with their own code.
fn check_pair(engine: &dyn Engine) -> Result<()> {
    for name in ["plain", "held"] {
        ensure!(engine.runs(name)?, "{name} does not run any more");
        engine.exec(name, &["true"])?.success()?;
    }
    sees(engine, "held", 4)?;
    let over = engine.exec("held", &["cgpu-burn", "alloc", "5Gi"])?;
    ensure!(over.code == Some(NO_MEMORY), "{over:?}");
    for name in ["plain", "held"] {
        engine.exec(name, TELL_TO_END)?.success()?;
        let code = engine.end_of(name)?;
        ensure!(code == 6, "{name} ended with {code} instead of 6");
        engine.remove(name)?;
    }
    let left = engine.node().grants();
    ensure!(left.is_empty(), "grants after the removal: {left:?}");
    Ok(())
}

fn engine_restart(engine: &mut dyn Engine) -> Result<()> {
    start_pair(engine)?;
    engine.crash_and_restart()?;
    check_pair(engine)
}

fn live_restore(engine: &mut dyn Engine) -> Result<()> {
    start_pair(engine)?;
    engine.stop_and_start()?;
    check_pair(engine)
}

fn fifty(engine: &mut dyn Engine) -> Result<()> {
    const CONTAINERS: usize = 50;
    const AT_ONCE: usize = 10;
    /// What an engine keeps open beside its containers comes and goes; a file for each of them, or of the vGPUs, is more.
    const SLACK: usize = 20;
    let engine: &dyn Engine = engine;
    let names: Vec<String> = (0..CONTAINERS).map(|number| format!("n{number}")).collect();
    // As many at once, each thread one after the other.
    let in_threads = |work: &(dyn Fn(usize, &str) -> Result<()> + Sync)| -> Result<()> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE)
                .map(|first| {
                    let names = &names;
                    scope.spawn(move || {
                        (first..CONTAINERS).step_by(AT_ONCE).try_for_each(|number| {
                            let name = names.get(number).map_or("", String::as_str);
                            work(number, name).with_context(|| format!("container {name}"))
                        })
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| bail!("a thread of the check panicked"))
            })
        })
    };
    // What an engine opens with its first container it may keep.
    engine.start(&Container::waiting("first"))?;
    engine.remove("first")?;
    let before = open_files(engine)?;
    in_threads(&|number, name| {
        let ask = if number % 2 == 0 {
            Ask::Nothing
        } else {
            Ask::Gib(1)
        };
        engine.start(&Container {
            ask,
            ..Container::waiting(name)
        })
    })?;
    let held: BTreeSet<String> = vgpus(engine)?.into_iter().collect();
    ensure!(held.len() == CONTAINERS / 2, "{} vGPUs", held.len());
    in_threads(&|_, name| {
        ensure!(engine.runs(name)?, "it does not run");
        engine.exec(name, &["true"])?.success()?;
        engine.remove(name)
    })?;
    let left = engine.node().grants();
    ensure!(left.is_empty(), "grants after the removal: {left:?}");
    for program in [
        "containerd-shim-cgpu-v2",
        "containerd-shim-runc-v2",
        "cgpu-broker",
    ] {
        wait_until(&format!("the end of every {program}"), LIMIT, || {
            Ok(engine.node().running(program).is_empty())
        })?;
    }
    let mut after = Vec::new();
    wait_until("the engine to close its files", LIMIT, || {
        after = open_files(engine)?;
        Ok(after
            .iter()
            .zip(&before)
            .all(|(after, before)| *after <= before + SLACK))
    })
    .with_context(|| format!("{before:?} open before, {after:?} after"))
}

/// Open files of each of the engine's daemons.
fn open_files(engine: &dyn Engine) -> Result<Vec<usize>> {
    let daemons = engine.daemons();
    daemons
        .iter()
        .map(|pid| Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count()))
        .collect()
}
