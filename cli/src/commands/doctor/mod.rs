//! `cgpu doctor`

mod probe;
mod selinux;
mod standing;

use std::process::ExitCode;

use cards::FrontendKind;
use cards::lock::FileLock;
use host_config::Config;
use sys::pidfd::PidFd;

pub(super) use self::standing::standing_of;
use super::Form;
use crate::render;
use view::doctor::{Doctor, assess};
use view::ps;

/// Below the help of `cgpu doctor`.
pub(super) const EXAMPLES: &str = "\
Exit code: 0 if nothing is missing or broken, else 1.

Examples:
  cgpu doctor
  cgpu doctor --repair";

/// Whether leftovers are taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repair {
    /// They are only listed.
    No,
    /// They are taken back first.
    Yes,
}

/// How long a broker may take to see that its slice's last process has ended.
const BROKER_END_MS: u16 = 5_000;

/// Brokers of `cgpu run` end by themselves once frontend and processes are gone; their grants are stale only then.
fn await_abandoned_brokers(config: &Config) -> anyhow::Result<()> {
    for vgpu in ps::collect(config)?.vgpus {
        let dir = config
            .state_dir
            .join("vgpus")
            .join(&vgpu.namespace)
            .join(&vgpu.container);
        let is_abandoned =
            vgpu.frontend == FrontendKind::Run && !FileLock::is_held(&dir.join("frontend.lock"))?;
        // A number that names no process any more is a broker that has ended.
        if is_abandoned
            && let Some(pid) = vgpu.supervisor_pid.or(vgpu.broker_pid)
            && let Ok(broker) = PidFd::open(pid)
        {
            broker.wait_exit(BROKER_END_MS)?;
        }
    }
    Ok(())
}

/// What this host offers and what is wrong with it.
pub(super) fn assessed(loaded: &Result<Config, host_config::config::Error>) -> Doctor {
    assess(&probe::look(loaded))
}

pub(super) fn run(form: Form, repair: Repair) -> anyhow::Result<ExitCode> {
    if repair == Repair::Yes && !nix::unistd::geteuid().is_root() {
        anyhow::bail!("`cgpu doctor --repair` needs root: it changes the state folder");
    }
    let loaded = Config::load();
    let reclaimed = match (&loaded, repair) {
        (Ok(config), Repair::Yes) if config.state_dir.is_dir() => {
            let mut reclaimed = super::run::sweep(config)?;
            if !reclaimed.is_empty() {
                await_abandoned_brokers(config)?;
            }
            let keys = vgpu::reclaim(config)?;
            reclaimed.extend(keys.iter().map(ToString::to_string));
            Some(reclaimed)
        }
        (_, Repair::Yes) => Some(Vec::new()),
        (_, Repair::No) => None,
    };
    let cleared_cards = match (&loaded, repair) {
        (Ok(config), Repair::Yes) => {
            let cleared = cards::health::clear(&config.state_dir)?;
            for uuid in &cleared {
                vgpu::events::card_repaired(config, uuid);
            }
            Some(cleared.iter().map(ToString::to_string).collect())
        }
        (_, Repair::Yes) => Some(Vec::new()),
        (_, Repair::No) => None,
    };
    let mut doctor = assessed(&loaded);
    doctor.reclaimed = reclaimed;
    doctor.cleared_cards = cleared_cards;
    form.print(&doctor, |doctor| {
        render::doctor::render(doctor, render::Look::of_output())
    })?;
    Ok(if doctor.is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
