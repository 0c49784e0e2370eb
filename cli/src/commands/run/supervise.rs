//! Waiting for the command while passing signals on.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use sys::pidfd::PidFd;
use vgpu::{Brokers, Running};

/// What is passed on. A stop of this program itself is left to the terminal.
const FORWARDED: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGALRM,
];

/// Until the next supervisor is named.
const SUCCESSION: Duration = Duration::from_millis(200);

/// Those that would end this program, kept from doing so while there is something to undo.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndingSignals(SigSet);

/// Keeps the signals that would end this program. Programs started from here on inherit this, so it is as little as can be:
/// the broker and the simulator take SIGTERM and SIGINT themselves.
pub(super) fn keep_ending_signals() -> anyhow::Result<EndingSignals> {
    let signals: SigSet = [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
    ]
    .into_iter()
    .collect();
    signals.thread_block().context("block signals")?;
    Ok(EndingSignals(signals))
}

impl EndingSignals {
    /// The code to end with where one has come while there is no command: from a terminal the command has not had it either.
    pub(super) fn come(self) -> anyhow::Result<Option<ExitCode>> {
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&self.0, flags).context("open a signal descriptor")?;
        let ignored = ignored_signals();
        while let Some(info) = signals.read_signal().context("look for a signal")? {
            // By `nohup`, and in a script's background: what is kept is queued all the same.
            let bit = info.ssi_signo.saturating_sub(1);
            if ignored.checked_shr(bit).is_some_and(|rest| rest & 1 == 1) {
                continue;
            }
            let code = info.ssi_signo.saturating_add(128);
            return Ok(Some(ExitCode::from(u8::try_from(code).unwrap_or(1))));
        }
        Ok(None)
    }

    /// Keeps all signals that [`wait`] passes on, and that of the command's end.
    pub(super) fn and_all_others(self) -> anyhow::Result<SignalFd> {
        let mut signals = self.0;
        signals.extend(FORWARDED);
        signals.add(Signal::SIGCHLD);
        signals.thread_block().context("block signals")?;
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).context("open a signal descriptor")
    }
}

/// A bit for each, from the first: `SigIgn` in `/proc/self/status`.
fn ignored_signals() -> u64 {
    let field = sys::proc::status_field("self", "SigIgn").ok().flatten();
    let mask = field.and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    mask.unwrap_or_default()
}

/// Waits for the command; its exit code is this program's, 128 and the signal's number where a signal ended it.
pub(super) fn wait(
    mut child: Child,
    signals: &SignalFd,
    running: &Running,
) -> anyhow::Result<ExitCode> {
    let mut broker = running.broker_process();
    let pid = Pid::from_raw(child.id().cast_signed());
    loop {
        if let Some(status) = child.try_wait().context("wait for the command")? {
            return Ok(exit_code(status));
        }
        if wait_for_either(signals, broker.as_ref())? == Readable::Broker {
            // One that has lost its supervisor starts the next, which is named some milliseconds later.
            std::thread::sleep(SUCCESSION);
            broker = match running.notice_broker() {
                Brokers::There => running.broker_process(),
                Brokers::Gone => None,
            };
            continue;
        }
        let Some(info) = signals.read_signal().context("wait for a signal")? else {
            continue;
        };
        let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok();
        if let Some(signal) = signal
            .filter(|signal| *signal != Signal::SIGCHLD && is_for_us_alone(*signal, info.ssi_code))
        {
            // It may have ended, but nobody has waited for it: its number is its own still.
            kill(pid, signal).context("pass a signal on")?;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readable {
    Signals,
    Broker,
}

fn wait_for_either(signals: &SignalFd, broker: Option<&PidFd>) -> anyhow::Result<Readable> {
    let on = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds = vec![on(signals.as_fd())];
    fds.extend(broker.map(|broker| on(broker.as_fd())));
    loop {
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("wait for a signal"),
        }
    }
    let is_signalled = fds.first().and_then(PollFd::any).unwrap_or(true);
    Ok(if is_signalled {
        Readable::Signals
    } else {
        Readable::Broker
    })
}

/// A terminal sends the signals of its keys and of its size to the whole foreground group, the command included. That of its hangup it
/// sends to the session's leader, which may be this program, and that of an alarm is its owner's. A person or program sends to us alone, or
/// to the group: a signal does not show which. The sender's own group does not either, since a script signals what it has started. It is
/// passed on then.
fn is_for_us_alone(signal: Signal, code: i32) -> bool {
    const SI_KERNEL: i32 = 0x80;
    let is_of_keys_or_size = matches!(signal, Signal::SIGINT | Signal::SIGQUIT | Signal::SIGWINCH);
    code != SI_KERNEL || !is_of_keys_or_size
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_comes_before_the_command_ends_the_run() {
        let ending = keep_ending_signals().unwrap();
        assert_eq!(ending.come().unwrap(), None);
        // Of this thread alone, which keeps it; not one that shells ignore for what they start behind.
        nix::sys::signal::raise(Signal::SIGTERM).unwrap();
        let code = ending.come().unwrap();
        assert_eq!(code, Some(ExitCode::from(143)));
        assert_eq!(ending.come().unwrap(), None);
    }

    #[test]
    fn a_terminal_s_keys_and_size_reach_the_command_by_themselves_and_nothing_else_does() {
        const SI_USER: i32 = 0;
        const SI_KERNEL: i32 = 0x80;
        for signal in FORWARDED {
            assert!(is_for_us_alone(signal, SI_USER), "{signal}");
            let is_of_keys_or_size =
                [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGWINCH].contains(&signal);
            assert_eq!(
                is_for_us_alone(signal, SI_KERNEL),
                !is_of_keys_or_size,
                "{signal}"
            );
        }
    }

    #[test]
    fn codes_are_the_shell_s() {
        for (raw, code) in [(0, 0), (11 << 8, 11), (9, 137), (15, 143)] {
            assert_eq!(
                format!("{:?}", exit_code(ExitStatus::from_raw(raw))),
                format!("{:?}", ExitCode::from(code))
            );
        }
    }
}
