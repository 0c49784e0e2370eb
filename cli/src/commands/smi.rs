//! `cgpu smi`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use rmclient::Nodes;

use super::Form;
use crate::model::smi::{Absent, NOTE_FILE, Note, collect};
use crate::render;

pub(super) fn run(form: Form, dev: &Path) -> anyhow::Result<ExitCode> {
    let note = Note::read(&dev.join(NOTE_FILE));
    match collect(&Nodes::in_dir(dev), &note).context("ask the driver")? {
        Ok(smi) => {
            form.print(&smi, render::smi::render)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(Absent::Driver(node)) => bail!(
            "no NVIDIA driver here: {} does not exist (inside a container: it was given no GPU; \
             on the host: simulated cards have no nodes, `cgpu cards` lists them)",
            node.display()
        ),
        Err(Absent::Cards(missing)) => bail!(
            "the driver answers, but no card is visible here: none of {} exists",
            listed(&missing)
        ),
    }
}

fn listed(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "its (empty) list of cards".to_owned();
    }
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}
