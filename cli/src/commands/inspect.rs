//! `cgpu inspect`: everything that is known of one container's vGPU.

use std::process::ExitCode;

use clap::Args;
use host_config::Config;
use view::inspect::Inspect;
use view::names::find;

use super::Form;
use crate::render;

/// Below the help of `cgpu inspect`.
pub(super) const EXAMPLES: &str = "\
Examples:
  cgpu inspect web
  cgpu inspect moby/e95e304dafa2 --json";

/// The options of `cgpu inspect`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The container, as `cgpu ps` shows it.
    container: String,
    #[command(flatten)]
    form: Form,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let key = find(&config, &options.container)?;
    let document = Inspect::collect(&config, &key)?;
    options.form.print(&document, render::inspect::render)?;
    Ok(ExitCode::SUCCESS)
}
