//! `cargo xtask card`: the bundle for a machine with a real card, and its run.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use integration::bundle::Bundle;
use integration::command::{line, progress};
use integration::programs::target_folder;

/// What the driver shows where it is loaded.
const DRIVER: &str = "/proc/driver/nvidia/version";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only build the bundle and its archive; another machine runs it.
    #[arg(long)]
    bundle_only: bool,
    /// Run on simulated cards although a card is here.
    #[arg(long)]
    simulate: bool,
    /// Seconds for all probes.
    #[arg(long, default_value_t = 480)]
    budget_s: u64,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let bundle = Bundle::release()?;
    let archive = target_folder().join("card").join("cgpu-card.tar.gz");
    let mut tar = Command::new("tar");
    tar.arg("-czf")
        .arg(&archive)
        .arg("-C")
        .arg(bundle.folder())
        .arg(".");
    let status = tar
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting `{}`", line(&tar)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", line(&tar));
    }
    progress(&format!(
        "bundle: {}; there, `./cgpu-card run --out DIR` as root",
        archive.display()
    ));
    if options.bundle_only {
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = Command::new(bundle.frontend());
    command
        .args(["run", "--budget-s", &options.budget_s.to_string(), "--out"])
        .arg(target_folder().join("card").join("report"));
    if options.simulate || !Path::new(DRIVER).exists() {
        progress(
            "no NVIDIA driver is used: simulated cards, which prove the bundle and say nothing about hardware",
        );
        command.arg("--simulate").arg(bundle.profile());
    }
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting `{}`", line(&command)))?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
