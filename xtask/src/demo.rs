//! `cargo xtask demo`.
use anyhow::Result;
use std::process::ExitCode;
#[derive(clap::Args)]
pub(crate) struct Options {}
pub(crate) fn run(_: &Options) -> Result<ExitCode> {
    anyhow::bail!("not yet")
}
