//! `cgpu ps`

use std::process::ExitCode;

use super::Form;
use crate::render::ps::{Width, render};
use view::ps::collect;

pub(super) fn run(form: Form, width: Width) -> anyhow::Result<ExitCode> {
    let ps = collect(&host_config::Config::load()?)?;
    form.print(&ps, |ps| render(ps, width))?;
    Ok(ExitCode::SUCCESS)
}
