//! An exec through `cgpu-runtime`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;
use sys::descriptors::Inherited;
use vgpu::Running;

use super::{Runtime, read_pid};
use crate::child;
use crate::command_line::ProcessOption;
use crate::exec_file::exec_file;

impl Runtime {
    /// Where the runtime writes an exec's process as soon as it runs: the file that the engine names.
    fn pid_file_of_a_detached(&self) -> Option<PathBuf> {
        let detached = |argument: &OsString| argument == "--detach" || argument == "-d";
        self.arguments
            .iter()
            .any(detached)
            .then(|| self.pid_file())?
    }

    /// An exec whose process is killed if it runs without the container's filter.
    fn exec_verified(
        &self,
        running: &Running,
        pid_file: &Path,
        kept: Inherited,
    ) -> anyhow::Result<ExitCode> {
        let status = self.child(kept)?;
        if status.success() {
            let process = read_pid(pid_file)?;
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
        id: &str,
        process: Option<&ProcessOption>,
        capabilities: &[String],
        kept: Inherited,
    ) -> anyhow::Result<()> {
        let Ok(container) = self.container(id) else {
            return Ok(());
        };
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
            let file = exec_file(&judged, kept.after())?;
            self.arguments = process.replaced(&self.arguments, file);
        }
        Ok(())
    }

    pub(super) fn exec(&self, id: &str, kept: Inherited) -> anyhow::Result<ExitCode> {
        if let Some(pid_file) = self.pid_file_of_a_detached()
            && let Ok(container) = self.container(id)
            && let Some(running) = self.own(&container)?
        {
            return self.exec_verified(&running, &pid_file, kept);
        }
        kept.pass_on().context("cannot pass descriptors on")?;
        self.take_this_place()
    }
}
