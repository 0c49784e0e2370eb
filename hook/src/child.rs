//! runc as a child: its signals and its end are passed on.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// What an engine or a person may send to a runtime.
const FORWARDED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Runs the command to its end. Signals that arrive meanwhile are the child's.
///
/// # Errors
/// The program cannot be started or waited for.
pub(crate) fn wait(mut command: Command, program: &Path) -> anyhow::Result<ExitStatus> {
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    // Only now: the child would inherit what is blocked here.
    let mut signals = SigSet::empty();
    signals.extend(FORWARDED);
    signals.add(Signal::SIGCHLD);
    signals.thread_block().context("cannot block signals")?;
    loop {
        // First: the child may have ended before its end could be waited for.
        if let Some(status) = child.try_wait().context("cannot wait for runc")? {
            return Ok(status);
        }
        match signals.wait().context("cannot wait for signals")? {
            Signal::SIGCHLD => {}
            signal => forward(&child, signal),
        }
    }
}

fn forward(child: &Child, signal: Signal) {
    // Not waited for yet, so the number is the child's. A child that has just ended needs no signal.
    if let Ok(pid) = i32::try_from(child.id()) {
        kill(Pid::from_raw(pid), signal).unwrap_or_default();
    }
}

/// The child's own exit code; killed by a signal, 128 and its number, as shells say it.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
