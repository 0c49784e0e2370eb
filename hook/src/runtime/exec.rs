//! An exec through `cgpu-runtime`.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;
use sys::descriptors::Inherited;
use vgpu::{Container, Running};

use super::{Runtime, read_pid};
use crate::child;
use crate::command_line::{Detached, FileOption};
use crate::sealed_file::sealed_file;

impl Runtime {
    /// An exec whose process is killed if it runs without the container's filter.
    fn exec_verified(
        &mut self,
        running: &Running,
        detached: &Detached,
        kept: Inherited,
    ) -> anyhow::Result<ExitCode> {
        let pid_file = detached.pid_file.clone();
        let is_ours = pid_file.is_none();
        let pid_file = pid_file.unwrap_or_else(|| running.exec_pid_file());
        if is_ours {
            self.arguments = detached.with_pid_file(&self.arguments, &pid_file);
        }
        let status = self.child(kept)?;
        let written = read_pid(&pid_file);
        if is_ours {
            // It goes with the vGPU at the latest.
            drop(std::fs::remove_file(&pid_file));
        }
        if status.success() {
            let process = written?;
            if let Err(unheld) = running.verify_exec(process) {
                let killed = unheld.kill();
                killed.context("a process that is not held cannot be killed")?;
                return Err(unheld.error.into());
            }
        }
        Ok(child::exit_code(status))
    }

    /// Looks at the process of an exec, by its file, or by what the command line gives it. For a container with a vGPU the runtime gets
    /// the file's process as it was judged.
    pub(super) fn judge_exec(
        &mut self,
        container: &Container,
        process: Option<&FileOption>,
        capabilities: &[String],
        kept: Inherited,
    ) -> anyhow::Result<()> {
        let Some(process) = process else {
            // Built from the container's own spec, which is edited already: what is looked at is what is given beside it, and its broker.
            let sets = match capabilities {
                [] => json!({}),
                given => json!({"bounding": given, "effective": given, "permitted": given}),
            };
            let mut process = json!({"capabilities": sets});
            if let Some(running) = container.reopen() {
                running.edit_exec(&mut process)?;
            }
            return Ok(());
        };
        if let Some(judged) = container.exec_of_file(&process.file)? {
            let file = sealed_file(&judged, kept.after())?;
            self.arguments = process.replaced(&self.arguments, file);
        }
        Ok(())
    }

    pub(super) fn exec(
        &mut self,
        container: &Container,
        detached: Option<Detached>,
        kept: Inherited,
    ) -> anyhow::Result<ExitCode> {
        if let Some(detached) = detached
            && let Some(running) = self.own(container)?
        {
            return self.exec_verified(&running, &detached, kept);
        }
        kept.pass_on().context("cannot pass descriptors on")?;
        self.take_this_place()
    }
}
