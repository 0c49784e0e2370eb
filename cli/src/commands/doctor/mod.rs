//! `cgpu doctor`

mod probe;

use std::process::ExitCode;

use vgpu::Config;

use super::Form;
use crate::model::doctor::assess;
use crate::render;

/// Whether leftovers are taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repair {
    /// They are only listed.
    No,
    /// They are taken back first.
    Yes,
}

pub(super) fn run(form: Form, repair: Repair) -> anyhow::Result<ExitCode> {
    let loaded = Config::load();
    let reclaimed = match (&loaded, repair) {
        (Ok(config), Repair::Yes) if config.state_dir.is_dir() => {
            let keys = vgpu::reclaim(config)?;
            let mut reclaimed: Vec<String> = keys.iter().map(ToString::to_string).collect();
            reclaimed.extend(super::run::sweep(config)?);
            Some(reclaimed)
        }
        (_, Repair::Yes) => Some(Vec::new()),
        (_, Repair::No) => None,
    };
    let mut doctor = assess(&probe::look(&loaded));
    doctor.reclaimed = reclaimed;
    form.print(&doctor, render::doctor::render)?;
    Ok(if doctor.can_start {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
