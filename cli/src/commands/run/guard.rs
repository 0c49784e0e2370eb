//! What ends a command whose `cgpu run` was killed.
//!
//! The kernel ends the command itself with its `cgpu run`, and not what that has started: a process that waits at the other end of a
//! pipe does. It is in a process group of its own, so that a terminal's signals pass it by.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::Context;

use super::own_cgroup::OwnCgroup;

/// What `cgpu run` writes where there is nothing to end any more.
const DONE: &[u8] = b"done";

/// The guard of one command's processes.
#[derive(Debug)]
pub(super) struct Guard {
    process: Child,
    pipe: io::PipeWriter,
}

impl Guard {
    /// Starts it beside a command that has not been started.
    pub(super) fn start(group: &OwnCgroup) -> anyhow::Result<Self> {
        let (read, pipe) = io::pipe().context("make a pipe")?;
        let program = std::env::current_exe().context("find this program")?;
        let process = Command::new(program)
            .arg("run-guard")
            .arg(group.folder())
            .stdin(OwnedFd::from(read))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("start what ends the command if this program is killed")?;
        Ok(Self { process, pipe })
    }

    /// Nothing is left to end.
    pub(super) fn stand_down(mut self) -> anyhow::Result<()> {
        // One that was killed reads nothing, and does nothing.
        match self.pipe.write_all(DONE) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(error).context("tell what watches over the command");
            }
            Ok(()) | Err(_) => {}
        }
        drop(self.pipe);
        let status = self.process.wait();
        status.context("wait for what watches over the command")?;
        Ok(())
    }
}

/// `cgpu run-guard GROUP`: waits until `cgpu run` has said that all is done, or has ended without.
pub(in crate::commands) fn run(group: PathBuf) -> anyhow::Result<ExitCode> {
    let mut reported = Vec::new();
    let limit = u64::try_from(DONE.len()).unwrap_or(u64::MAX);
    io::stdin()
        .take(limit)
        .read_to_end(&mut reported)
        .context("wait for `cgpu run`")?;
    if reported != DONE {
        OwnCgroup::at(group).end()?;
    }
    Ok(ExitCode::SUCCESS)
}
