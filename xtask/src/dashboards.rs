//! `cargo xtask dashboards`: the files in configs/grafana, from the code that describes them.

use std::process::ExitCode;

use anyhow::Result;
use integration::cache::repository;

#[derive(clap::Args)]
pub(crate) struct Options {}

pub(crate) fn run(_options: &Options) -> Result<ExitCode> {
    for path in ::dashboards::write(&repository())? {
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
