//! An update through `cgpu-runtime`.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Runtime, kept};
use crate::child;
use crate::command_line::FileOption;
use crate::sealed_file::sealed_file;

/// More than any set of limits has.
const RESOURCES_MAX_BYTES: u64 = 16 << 20;

impl Runtime {
    /// What makes the calls of a container with a vGPU gets the CPU time that the container has afterwards. The container keeps its rules
    /// of devices.
    pub(super) fn update(
        mut self,
        id: &str,
        resources: Option<&FileOption>,
    ) -> anyhow::Result<ExitCode> {
        let running = match self.container(id) {
            Ok(container) if container.granted()?.is_some() => container.reopen(),
            // The runtime's alone, or its to complain of.
            Ok(_) | Err(_) => None,
        };
        let Some(running) = running else {
            return self.take_this_place();
        };
        let kept = kept(0)?;
        if let Some(resources) = resources {
            let mut edited = read(&resources.file)?;
            running.edit_update(&mut edited);
            let file = sealed_file(&edited, kept.after())?;
            self.arguments = resources.replaced(&self.arguments, file);
        }
        let status = self.child(kept)?;
        if status.success() {
            running.follow()?;
        }
        Ok(child::exit_code(status))
    }
}

fn read(file: &Path) -> anyhow::Result<Value> {
    let from = match file.to_str() {
        Some("-") => Path::new("/proc/self/fd/0"),
        _ => file,
    };
    let mut text = Vec::new();
    let read = std::fs::File::open(from)
        .and_then(|file| file.take(RESOURCES_MAX_BYTES + 1).read_to_end(&mut text));
    let read = read.with_context(|| format!("cannot read {}", file.display()))?;
    if read as u64 > RESOURCES_MAX_BYTES {
        bail!(
            "{} has more than {RESOURCES_MAX_BYTES} bytes",
            file.display()
        );
    }
    serde_json::from_slice(&text).with_context(|| format!("{} is not valid", file.display()))
}
