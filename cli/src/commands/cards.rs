//! `cgpu cards`

use std::process::ExitCode;

use super::Form;
use crate::render;
use view::cards::collect;

pub(super) fn run(form: Form) -> anyhow::Result<ExitCode> {
    let cards = collect(&host_config::Config::load()?)?;
    form.print(&cards, render::cards::render)?;
    Ok(ExitCode::SUCCESS)
}
