//! `cgpu metrics`: one scrape on standard output, for a node exporter's text collector or a timer of one's own.

use std::process::ExitCode;

use crate::{model, output, render};

pub(super) fn run() -> anyhow::Result<ExitCode> {
    let metrics = model::metrics::collect(&vgpu::Config::load()?)?;
    output::say(render::metrics::render(&metrics)?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}
