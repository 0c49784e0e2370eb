//! The runtime as a child: it dies with this process, its signals and its end are passed on.
//!
//! Between fork and exec stands this program once more ([`NAME`]): there the runtime is tied to its parent's life, as if there
//! were one process only, and gets the number under which it was to be given sockets (`LISTEN_PID`).

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::Context;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getppid};
use sys::descriptors::Inherited;

/// The program's name between fork and exec. What follows it: the parent's pid, the runtime, the runtime's arguments.
pub const NAME: &str = "cgpu-runtime: child";

const THIS_PROGRAM: &str = "/proc/self/exe";

/// What an engine or a person may send to a runtime.
const FORWARDED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Runs the runtime to its end. Signals that arrive meanwhile are the child's, and so are the kept descriptors.
///
/// # Errors
/// The program cannot be started or waited for.
pub fn wait(runtime: &Path, arguments: &[OsString], kept: Inherited) -> anyhow::Result<ExitStatus> {
    let mut command = Command::new(THIS_PROGRAM);
    command
        .arg0(NAME)
        .arg(std::process::id().to_string())
        .arg(runtime)
        .args(arguments);
    kept.pass_on().context("cannot pass descriptors on")?;
    let spawned = command.spawn();
    kept.hold_back_again()
        .context("cannot hold descriptors back")?;
    let mut child = spawned.with_context(|| format!("cannot run {}", runtime.display()))?;
    // Only now: the child would inherit what is blocked here.
    let mut signals = SigSet::empty();
    signals.extend(FORWARDED);
    signals.add(Signal::SIGCHLD);
    signals.thread_block().context("cannot block signals")?;
    let ended = passing_signals(&mut child, &signals);
    // What is executed later starts with them open.
    signals.thread_unblock().context("cannot unblock signals")?;
    ended
}

fn passing_signals(child: &mut Child, signals: &SigSet) -> anyhow::Result<ExitStatus> {
    loop {
        // First: the child may have ended before its end could be waited for.
        if let Some(status) = child.try_wait().context("cannot wait for the runtime")? {
            return Ok(status);
        }
        let signal = signals.wait().context("cannot wait for signals")?;
        if signal != Signal::SIGCHLD {
            forward(child, signal);
        }
    }
}

fn forward(child: &Child, signal: Signal) {
    // Not waited for yet, so the number is the child's. A child that has just ended needs no signal.
    if let Ok(pid) = i32::try_from(child.id()) {
        kill(Pid::from_raw(pid), signal).unwrap_or_default();
    }
}

/// Between fork and exec: `arguments` as [`NAME`] says.
///
/// # Errors
/// The parent is gone, or the runtime cannot be started.
pub fn become_runtime(arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    let [parent, runtime, arguments @ ..] = arguments else {
        anyhow::bail!("{NAME} is no name to call this program by");
    };
    let parent: i32 = parent
        .to_str()
        .and_then(|parent| parent.parse().ok())
        .context("the parent's pid is no number")?;
    set_pdeathsig(Signal::SIGKILL).context("cannot be tied to the parent's life")?;
    // It may have died before that.
    anyhow::ensure!(getppid() == Pid::from_raw(parent), "the parent is gone");
    let mut command = Command::new(runtime);
    command.args(arguments);
    if std::env::var("LISTEN_PID").is_ok_and(|pid| pid == parent.to_string()) {
        command.env("LISTEN_PID", std::process::id().to_string());
    }
    let error = anyhow::Error::from(command.exec());
    Err(error.context(format!("cannot run {}", Path::new(runtime).display())))
}

/// The child's own exit code; killed by a signal, 128 and its number, as shells say it.
#[must_use]
pub fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
