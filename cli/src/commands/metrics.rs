//! `cgpu metrics`: one scrape on standard output, for a node exporter's text collector or a timer of one's own.

use std::process::ExitCode;

use clap::Args;

use crate::render::metrics::TextForm;
use crate::{model, output, render};

/// Below the help of `cgpu metrics`.
pub(super) const EXAMPLES: &str = "\
Example, for the textfile collector of Prometheus' node exporter:
  cd /var/lib/node_exporter && cgpu metrics > cgpu.new && mv cgpu.new cgpu.prom";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The text format.
    #[arg(long, value_enum, default_value_t = TextForm::Prometheus)]
    format: TextForm,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let metrics = model::metrics::collect(&host_config::Config::load()?)?;
    output::print(render::metrics::render(&metrics, options.format)?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}
