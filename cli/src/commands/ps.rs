//! `cgpu ps`

use std::process::ExitCode;

use super::Form;
use crate::model::ps::collect;
use crate::render;

pub(super) fn run(form: Form) -> anyhow::Result<ExitCode> {
    let ps = collect(&vgpu::Config::load()?)?;
    form.print(&ps, render::ps::render)?;
    Ok(ExitCode::SUCCESS)
}
