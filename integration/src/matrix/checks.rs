//! What is asked of every engine.

use anyhow::{Context, Result, bail, ensure};

use crate::command::{LIMIT, wait_until};

use super::engine::{Container, Engine, Restarts};
use super::rows::Family;
use super::vgpu::{self, sees, vgpus};
use super::{claims, load, pods};

const MIB: u64 = 1 << 20;

/// The check that is asked of one row of each kind.
pub const FIFTY: &str = "50 containers, 10 at a time";

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The engine: its own shim and runc must do the same.
    Engine,
    /// A vGPU, which there is under cgpu alone.
    Vgpu,
}

/// One demand.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its name in the tables.
    pub name: &'static str,
    /// What must hold.
    pub demands: &'static str,
    /// Of what.
    pub about: About,
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
        about: About::Engine,
        body,
    }
}

const fn of_vgpu(
    name: &'static str,
    demands: &'static str,
    body: fn(&mut dyn Engine) -> Result<()>,
) -> Check {
    Check {
        about: About::Vgpu,
        ..check(name, demands, body)
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
    of_vgpu(
        "restart policy",
        "a program that fails is started again as often as was asked, with the vGPU each time",
        restart_policy,
    ),
    check(
        "health check",
        "a passing one gives healthy, a failing one unhealthy",
        health_check,
    ),
    of_vgpu(
        "restart by the user",
        "three restarts as compose makes them: the same quota each time, one grant",
        restart_by_user,
    ),
    of_vgpu(
        "vGPU quota held",
        "4 GiB: the total inside is 4 GiB, 4000 MiB can be had, 4097 MiB not, by the program and by an exec",
        vgpu::quota_held,
    ),
    of_vgpu(
        "vGPU resize",
        "`cgpu set --memory 6Gi` on a running container: its total is 6 GiB",
        vgpu::resize,
    ),
    of_vgpu(
        "plain beside vGPU",
        "a container that asks for nothing has no card, while one beside it has",
        vgpu::plain_beside,
    ),
    of_vgpu(
        "broker killed",
        "SIGKILL to the broker under a program that holds memory: another one serves, with the same account and quota",
        vgpu::broker_killed,
    ),
    of_vgpu(
        "upgrade",
        "`cgpu upgrade` under a program that holds memory: another broker serves, with the same account and quota",
        vgpu::upgrade,
    ),
    of_vgpu(
        "restart of the engine",
        "daemon killed and started again under running containers: exec, quota and exit code are as before",
        vgpu::engine_restart,
    ),
    of_vgpu(
        "live-restore",
        "daemon stopped and started again: containers have run on, exec and exit code are as before",
        vgpu::live_restore,
    ),
    of_vgpu(
        FIFTY,
        "half of them with a vGPU: all start, run and are removed; no grant, shim or open file of the engine's more than before",
        load::fifty,
    ),
];

/// What is asked beyond these of engines that serve pods.
const POD_CHECKS: &[Check] = &[
    of_vgpu(
        "pod: two containers",
        "the sandbox has no card; each container has what its own annotation asks for",
        pods::requests_of_containers,
    ),
    of_vgpu(
        "pod: request of the pod",
        "the pod's annotation holds for its container, not for the sandbox",
        pods::request_of_the_pod,
    ),
    of_vgpu(
        "pod: init, then app",
        "a container that ends before the next one starts, with its own quota; the app gets its memory",
        pods::init_then_app,
    ),
    of_vgpu(
        "pod: sidecar",
        "a container without a request beside one with: it has no card and outlives the other",
        pods::sidecar,
    ),
    of_vgpu(
        "pod: environment",
        "ALIYUN_COM_GPU_MEM_* of a container, as a device plugin sets them",
        pods::request_by_environment,
    ),
    check(
        "pod: stop",
        "SIGTERM reaches the program, whose own exit code arrives; one that does not mind it is killed after the time given",
        pods::stop_signals,
    ),
    check(
        "pod: statistics",
        "`crictl statsp`: the pod uses memory and CPU time, and its container is among its own",
        pods::statistics,
    ),
    check(
        "pod: execSync",
        "1000 lines in one answer, and an exit code with its reason",
        pods::exec_sync,
    ),
    of_vgpu(
        "pod: shared processes",
        "shareProcessNamespace: containers see each other's processes, and one may hold a vGPU",
        pods::shared_processes,
    ),
    of_vgpu(
        "pod: stop and remove",
        "a pod stopped and removed with its containers running gives everything back",
        pods::stop_and_remove,
    ),
    of_vgpu(
        "pod: claim",
        "a claim's CDI device gives what the claim's record says, once; the environment's amounts are not read; without a record nothing starts",
        claims::of_a_container,
    ),
    of_vgpu(
        "pod: claim, again",
        "an init container, and a container that is started again, each have their claim's share",
        claims::restarted,
    ),
    of_vgpu(
        "pod: forged claim",
        "another pod's claim, no claim, and annotations beside one are refused, and nothing is granted",
        claims::forged,
    ),
    of_vgpu(
        "pod: claim without cgpu",
        "under plain runc a claim's CDI device gives no card",
        claims::without_our_handler,
    ),
    of_vgpu(
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
