//! `cgpu smi`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use rmclient::Nodes;

use super::Form;
use crate::render;
use view::smi::{Absent, RECORD_FILE, SliceRecord, Smi, collect};

/// Where the driver's nodes are, unless `--dev` says otherwise.
pub(super) const DEV: &str = "/dev";

pub(super) fn run(form: Form, dev: &Path) -> anyhow::Result<ExitCode> {
    let record = SliceRecord::read(&dev.join(RECORD_FILE));
    let smi = match collect(&Nodes::in_dir(dev), &record).context("query the driver")? {
        Ok(smi) => smi,
        Err(Absent::Driver(node)) => {
            let simulated = if dev == Path::new(DEV) {
                simulated()?
            } else {
                None
            };
            simulated.with_context(|| {
                let simulator = if nix::unistd::geteuid().is_root() {
                    "cgpu-sim does not run"
                } else {
                    "only root sees simulated GPUs"
                };
                format!(
                    "no GPU here: {} does not exist, and {simulator}. In a container: it was given no GPU. On the host: load NVIDIA's \
                     driver, or simulate GPUs with `cgpu-sim --profile two-ada`",
                    node.display()
                )
            })?
        }
        Err(Absent::Cards(missing)) => bail!(
            "the driver answers, but no card is visible here: none of {} exists",
            listed(&missing)
        ),
    };
    form.print(&smi, |smi| {
        render::smi::render(smi, render::Look::of_output())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The simulated cards of this host, which have no nodes; `None` where it simulates none.
#[cfg(feature = "host")]
fn simulated() -> anyhow::Result<Option<Smi>> {
    use view::host_driver::{ANSWER, HostDriver};
    use view::{cards, ps, smi};
    let config = host_config::Config::load()?;
    let driver = HostDriver::of(&config);
    if driver != HostDriver::Sim {
        return Ok(None);
    }
    if let Some(why) = driver.trouble(&config, ANSWER) {
        bail!("the simulator of this host's cards does not answer: {why}");
    }
    let (cards, vgpus) = (cards::collect(&config)?, ps::collect(&config)?);
    Ok(Some(smi::simulated(&cards, &vgpus)))
}

/// A container knows nothing of its host.
#[cfg(not(feature = "host"))]
fn simulated() -> anyhow::Result<Option<Smi>> {
    Ok(None)
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
