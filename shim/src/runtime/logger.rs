//! `binary://` log URIs: a program of the administrator's that reads a container's output.
//!
//! containerd's contract: descriptor 3 is standard output, 4 standard error, 5 is closed by the program when it is
//! ready; the URI's query gives the arguments; `CONTAINER_ID` and `CONTAINER_NAMESPACE` are in its environment.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawn};

use super::stdio::End;
use crate::error::{Error, Result, file, system};
use crate::task::ContainerId;

/// How long the program may take to be ready.
const READY_WAIT: Duration = Duration::from_secs(10);

/// Descriptors below this number are the program's own.
const FIRST_FREE: i32 = 10;

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Logger {
    program: String,
    arguments: Vec<String>,
}

/// Whose output it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whose<'a> {
    pub(super) namespace: &'a str,
    pub(super) id: &'a ContainerId,
}

impl Logger {
    /// Reads what follows `binary://`: a path, and `?key=value&…`, of which keys and values are the arguments.
    pub(super) fn parse(uri: &str) -> Option<Self> {
        let (program, query) = uri.split_once('?').unwrap_or((uri, ""));
        let words = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .flat_map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                [key, value]
                    .into_iter()
                    .filter(|word| !word.is_empty())
                    .map(decoded)
            });
        let arguments: Option<Vec<_>> = words.collect();
        let program = decoded(program)?;
        program.starts_with('/').then_some(())?;
        Some(Self {
            program,
            arguments: arguments?,
        })
    }

    /// Starts the program and waits until it is ready; returns where output and errors are to be written. It ends by
    /// itself when both are closed; the shim reaps it.
    pub(super) async fn start(&self, whose: Whose<'_>) -> Result<(End, End)> {
        let (out_read, out_write) = pipe()?;
        let (err_read, err_write) = pipe()?;
        let (ready_read, ready_write) = pipe()?;
        self.spawn(whose, [&out_read, &err_read, &ready_write])?;
        drop((out_read, err_read, ready_write));
        let ready = End::new(ready_read)?;
        let told = tokio::time::timeout(READY_WAIT, ready.read(&mut [0])).await;
        let Ok(told) = told else {
            let value = self.program.clone();
            return Err(Error::Invalid {
                key: "logger",
                value,
                allowed: "a program that closes descriptor 5 in 10 s",
            });
        };
        told.map_err(system("wait for the logger"))?;
        Ok((End::new(out_write)?, End::new(err_write)?))
    }

    fn spawn(&self, whose: Whose<'_>, fds: [&OwnedFd; 3]) -> Result<()> {
        let text = |text: &str| {
            let value = text.to_owned();
            CString::new(text).map_err(|_nul| Error::Invalid {
                key: "logger",
                value,
                allowed: "text without NUL",
            })
        };
        let failed = |errno: nix::errno::Errno| file("execute", &self.program)(errno.into());
        let mut actions = PosixSpawnFileActions::init().map_err(failed)?;
        for (fd, number) in fds.into_iter().zip(3..) {
            actions.add_dup2(fd.as_raw_fd(), number).map_err(failed)?;
        }
        let arguments: Result<Vec<_>> = std::iter::once(&self.program)
            .chain(&self.arguments)
            .map(|word| text(word))
            .collect();
        let path = std::env::var("PATH").unwrap_or_default();
        let environment: Result<Vec<_>> = [
            ("PATH", path.as_str()),
            ("CONTAINER_NAMESPACE", whose.namespace),
            ("CONTAINER_ID", whose.id.as_str()),
        ]
        .into_iter()
        .map(|(key, value)| text(&format!("{key}={value}")))
        .collect();
        let attributes = PosixSpawnAttr::init().map_err(failed)?;
        let program = text(&self.program)?;
        posix_spawn(
            program.as_c_str(),
            &actions,
            &attributes,
            &arguments?,
            &environment?,
        )
        .map_err(failed)?;
        Ok(())
    }
}

/// A pipe whose ends do not have the numbers that they get in the program.
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = std::io::pipe().map_err(system("make a pipe"))?;
    Ok((high(read.into())?, high(write.into())?))
}

fn high(fd: OwnedFd) -> Result<OwnedFd> {
    if fd.as_raw_fd() >= FIRST_FREE {
        return Ok(fd);
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_FREE).map_err(system("move a descriptor"))
}

/// Percent-encoded text.
fn decoded(text: &str) -> Option<String> {
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
        let logger = Logger::parse("/usr/bin/log%20it?--dir=/var/log&verbose").unwrap();
        assert_eq!(logger.program, "/usr/bin/log it");
        assert_eq!(logger.arguments, ["--dir", "/var/log", "verbose"]);
        for bad in ["relative", "", "/x%2", "/x%zz"] {
            assert_eq!(Logger::parse(bad), None, "{bad}");
        }
    }
}
