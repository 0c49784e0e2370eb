//! `cgpu metrics`: one scrape on standard output, for a node exporter's text collector or a timer of one's own.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use crate::output;
use view::metrics;
use view::metrics::text::{Dialect, TextForm, render};
use view::version::Build;

/// Below the help of `cgpu metrics`.
pub(super) const EXAMPLES: &str = "\
cgpu-agent alone has what is counted over time (cgpu_events_total, cgpu_starts_refused_total,
cgpu_scrape_errors_total, cgpu_prepare_*), the time that a scrape takes, NVML's figures of real
GPUs, and other exporters' names of metrics (`[metrics] dialects`).

Example, for the textfile collector of Prometheus' node exporter:
  cd /var/lib/node_exporter && cgpu metrics > cgpu.new && mv cgpu.new cgpu.prom";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The text format.
    #[arg(long, value_enum, default_value_t = Format::Prometheus)]
    format: Format,
}

/// A text form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Prometheus' own text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    Openmetrics,
}

pub(super) fn run(options: &Options, build: Build) -> anyhow::Result<ExitCode> {
    let metrics = metrics::collect(&host_config::Config::load()?, build)?;
    let form = match options.format {
        Format::Prometheus => TextForm::Prometheus,
        Format::Openmetrics => TextForm::Openmetrics,
    };
    let text = render(&metrics, form, &[Dialect::Cgpu])?;
    output::print(text.trim_end()).context("write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
