//! `binary://` log URIs: a program of the administrator's that reads a container's output.
//!
//! containerd's contract: descriptor 3 is standard output, 4 standard error, 5 is closed by the program when it is
//! ready; the URI's query gives the arguments; `CONTAINER_ID` and `CONTAINER_NAMESPACE` are in its environment. It ends
//! by itself at the end of both streams, and is ended if it does not: Delete waits for that, so that the log is whole.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal};
use sys::pidfd::PidFd;
use tokio::sync::oneshot;

use super::reaper::Reaper;
use super::stdio::End;
use crate::error::{Error, Result, file, system};
use crate::task::{Exit, Pid};

/// How long the program may take to be ready.
const READY_WAIT: Duration = Duration::from_secs(30);

/// How long the program may take to deal with the rest of the output once that has ended.
const REST_WAIT: Duration = Duration::from_secs(10);

/// How long it may take to end when it is asked to.
const END_WAIT: Duration = Duration::from_secs(2);

/// Descriptors below this number are the program's own.
const FIRST_FREE: i32 = 10;

/// How the program says that it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// `binary://`: it closes descriptor 5; one that has ended has closed it as well.
    Closed,
    /// `binary-v2://`: it writes a byte first.
    Reported,
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Logger {
    program: String,
    arguments: Vec<String>,
    readiness: Readiness,
}

/// Whose output it is, and who waits for the program.
#[derive(Clone, Copy)]
pub(super) struct Whose<'a> {
    pub(super) namespace: &'a str,
    /// The container's identity, or the exec's: containerd's own shim gives an exec's logger that.
    pub(super) id: &'a str,
    pub(super) reaper: &'a Reaper,
}

impl Logger {
    /// Reads what follows `binary://`: a path, and `?key=value&…`, of which keys and values are the arguments.
    pub(super) fn parse(uri: &str, readiness: Readiness) -> Option<Self> {
        let (program, query) = uri.split_once('?').unwrap_or((uri, ""));
        let arguments = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .flat_map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                [key, value]
                    .into_iter()
                    .filter(|argument| !argument.is_empty())
                    .map(|argument| decoded(&argument.replace('+', " ")))
            });
        let arguments: Option<Vec<_>> = arguments.collect();
        let program = decoded(program)?;
        program.starts_with('/').then_some(())?;
        Some(Self {
            program,
            arguments: arguments?,
            readiness,
        })
    }

    /// Starts the program and waits until it is ready; returns where output and errors are to be written.
    pub(super) async fn start(&self, whose: Whose<'_>) -> Result<(End, End, Running)> {
        let (out_read, out_write) = pipe()?;
        let (err_read, err_write) = pipe()?;
        let (ready_read, ready_write) = pipe()?;
        let running = self.spawn(whose, [&out_read, &err_read, &ready_write])?;
        drop((out_read, err_read, ready_write));
        let ready = End::new(ready_read)?;
        let mut byte = [0];
        let reported = tokio::time::timeout(READY_WAIT, ready.read(&mut byte)).await;
        let not_ready = |allowed| Error::Invalid {
            key: "logger",
            value: self.program.clone(),
            allowed,
        };
        let reported = reported
            .map_err(|_late| not_ready("a program that closes descriptor 5 in 30 s"))?
            .map_err(system("wait for the logger"))?;
        if self.readiness == Readiness::Reported && reported == 0 {
            return Err(not_ready(
                "a program that writes to descriptor 5 when it is ready",
            ));
        }
        Ok((End::new(out_write)?, End::new(err_write)?, running))
    }

    fn spawn(&self, whose: Whose<'_>, fds: [&OwnedFd; 3]) -> Result<Running> {
        let text = |text: &str| {
            let value = text.to_owned();
            CString::new(text).map_err(|_nul| Error::Invalid {
                key: "logger",
                value,
                allowed: "text without NUL",
            })
        };
        let failed = |error: io::Error| file("execute", &self.program)(error);
        let mut actions = PosixSpawnFileActions::init().map_err(|errno| failed(errno.into()))?;
        for (fd, number) in fds.into_iter().zip(3..) {
            actions
                .add_dup2(fd.as_raw_fd(), number)
                .map_err(|errno| failed(errno.into()))?;
        }
        let arguments: Result<Vec<_>> = std::iter::once(&self.program)
            .chain(&self.arguments)
            .map(|argument| text(argument))
            .collect();
        let path = std::env::var("PATH").unwrap_or_default();
        let environment: Result<Vec<_>> = [
            ("PATH", path.as_str()),
            ("CONTAINER_NAMESPACE", whose.namespace),
            ("CONTAINER_ID", whose.id),
        ]
        .into_iter()
        .map(|(key, value)| text(&format!("{key}={value}")))
        .collect();
        let attributes = attributes().map_err(|errno| failed(errno.into()))?;
        let (program, arguments, environment) = (text(&self.program)?, arguments?, environment?);
        // Nobody reaps before the spawn is known, so the number is this program's.
        let spawned = whose.reaper.watch_spawned(|| {
            let pid = posix_spawn(
                program.as_c_str(),
                &actions,
                &attributes,
                &arguments,
                &environment,
            )?;
            // The program has executed, but its first instructions are its linker's.
            if let Err(error) = sys::open_files::restore_in(pid.as_raw()) {
                tracing::warn!(%error, "a logging program keeps the shim's limit of open files");
            }
            let process = PidFd::open(pid.as_raw())?;
            let pid = Pid::new(pid.as_raw().cast_unsigned()).ok_or(Errno::ESRCH)?;
            Ok((pid, process))
        });
        let (process, exit) = spawned.map_err(failed)?;
        Ok(Running {
            process,
            exit: Some(exit),
        })
    }
}

/// The program gets signals as a program does that nobody has prepared: this one ignores SIGPIPE.
fn attributes() -> nix::Result<PosixSpawnAttr> {
    let mut attributes = PosixSpawnAttr::init()?;
    let mut ignored = SigSet::empty();
    ignored.add(Signal::SIGPIPE);
    attributes.set_sigdefault(&ignored)?;
    attributes.set_sigmask(&SigSet::empty())?;
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK,
    )?;
    Ok(attributes)
}

/// A program that was started. It is killed if it is dropped before it has ended.
#[derive(Debug)]
pub(super) struct Running {
    process: PidFd,
    exit: Option<oneshot::Receiver<Exit>>,
}

impl Running {
    /// Waits for the end of a program whose streams are closed; one that does not end by that is asked to, then killed.
    pub(super) async fn end(mut self) {
        let Some(mut exit) = self.exit.take() else {
            return;
        };
        for (wait, signal) in [(REST_WAIT, Signal::SIGTERM), (END_WAIT, Signal::SIGKILL)] {
            // A reaper that is gone waits for nobody any more.
            if tokio::time::timeout(wait, &mut exit).await.is_ok() {
                return;
            }
            tracing::warn!(%signal, "a logging program does not end with its streams");
            self.signal(signal);
        }
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) = self.process.signal(signal as i32) {
            tracing::debug!(%error, "the logging program has ended");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.exit.is_some() {
            self.signal(Signal::SIGKILL);
        }
    }
}

/// A pipe whose ends do not have the numbers that they get in the program.
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = io::pipe().map_err(system("make a pipe"))?;
    Ok((high(read.into())?, high(write.into())?))
}

fn high(fd: OwnedFd) -> Result<OwnedFd> {
    if fd.as_raw_fd() >= FIRST_FREE {
        return Ok(fd);
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_FREE).map_err(system("move a descriptor"))
}

/// Percent-encoded text.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let pair = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&pair).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_of_the_query_are_the_arguments() {
        let uri = "/usr/bin/log%20it?--dir=/var/log&verbose&a+b=%2B";
        let logger = Logger::parse(uri, Readiness::Closed).unwrap();
        assert_eq!(logger.program, "/usr/bin/log it");
        assert_eq!(
            logger.arguments,
            ["--dir", "/var/log", "verbose", "a b", "+"]
        );
        for bad in ["relative", "", "/x%2", "/x%zz"] {
            assert_eq!(Logger::parse(bad, Readiness::Closed), None, "{bad}");
        }
    }
}
