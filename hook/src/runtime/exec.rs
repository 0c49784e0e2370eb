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
use crate::exec_file::{ExecFile, with_file};

impl Runtime {
    /// Where an exec's process is told as soon as it runs: by the file that the engine names.
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

    /// The process of an exec, by its file, or by what the command line gives it; the file, and what it is to be, for a container with
    /// a vGPU.
    pub(super) fn judged_exec(
        &self,
        id: &str,
        process: Option<&Path>,
        capabilities: &[String],
    ) -> anyhow::Result<Option<(PathBuf, ExecFile)>> {
        let container = self.container(id)?;
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
            return Ok(None);
        };
        match container.exec_of_file(process)? {
            None => Ok(None),
            Some(judged) => Ok(Some((process.to_owned(), ExecFile::new(&judged)?))),
        }
    }

    pub(super) fn exec(
        &mut self,
        id: &str,
        judged: Option<(PathBuf, ExecFile)>,
        kept: Inherited,
    ) -> anyhow::Result<ExitCode> {
        let reads = |runtime: &Self, former: &Path, file: &Path| {
            with_file(&runtime.arguments, runtime.global_arguments, former, file)
        };
        if let Some(pid_file) = self.pid_file_of_a_detached()
            && let Some(running) = self.own(&self.container(id)?)?
        {
            if let Some((former, file)) = &judged {
                self.arguments = reads(self, former, &file.for_a_child())?;
            }
            return self.exec_verified(&running, &pid_file, kept);
        }
        kept.pass_on().context("cannot pass descriptors on")?;
        if let Some((former, file)) = judged {
            self.arguments = reads(self, &former, &file.for_this_place()?)?;
        }
        self.take_this_place()
    }
}
