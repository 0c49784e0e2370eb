//! `cgpu doctor`

mod host_engine;
mod probe;
mod selinux;
mod standing;

use std::process::ExitCode;

use cards::FrontendKind;
use cards::GpuUuid;
use cards::lock::FileLock;
use cards::placement::CardName;
use host_config::Config;
use sys::pidfd::PidFd;

pub(super) use self::standing::{elsewhere, standing_of};
use super::Form;
use crate::render;
use view::doctor::{Doctor, assess};
use view::host_driver::HostDriver;
use view::ps;

/// Below the help of `cgpu doctor`.
pub(super) const EXAMPLES: &str = "\
Exit code: 0 if nothing is missing or broken, else 1.

Examples:
  cgpu doctor
  cgpu doctor --repair
  cgpu doctor --repair --card 0                   Also use card 0 again, which was marked unhealthy";

/// Whether leftovers are taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Repair {
    /// They are only listed.
    No,
    /// They are taken back first.
    Leftovers,
    /// They are, and the bad health of this card, which its mender names: nobody else can say that it is well.
    Card(String),
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

/// Takes back what ended containers have left; says of whom.
fn take_leftovers(config: &Config) -> anyhow::Result<Vec<String>> {
    if !config.state_dir.is_dir() {
        return Ok(Vec::new());
    }
    let mut reclaimed = super::run::sweep(config)?;
    if !reclaimed.is_empty() {
        await_abandoned_brokers(config)?;
    }
    let keys = vgpu::reclaim(config)?;
    reclaimed.extend(keys.iter().map(ToString::to_string));
    Ok(reclaimed)
}

/// The card that is meant. One that the driver does not show any more is known by its report.
fn named_card(config: &Config, name: &str) -> anyhow::Result<GpuUuid> {
    let reported = cards::health::reported(&config.state_dir)?;
    if let Some(uuid) = reported.iter().find(|uuid| uuid.as_str() == name) {
        return Ok(uuid.clone());
    }
    let shown = match HostDriver::of(config).inventory(config) {
        Ok(inventory) => inventory.map_or_else(Vec::new, |inventory| inventory.cards),
        Err(error) if reported.is_empty() => return Err(error.context("look for the card")),
        Err(_) => Vec::new(),
    };
    let meant = match name.parse() {
        Ok(index) => Some(CardName::Index(index)),
        Err(_) => GpuUuid::new(name).ok().map(CardName::Uuid),
    };
    let other = meant.as_ref().and_then(|meant| meant.mistaken_for(&shown));
    if let Some(other) = other {
        anyhow::bail!(
            "/dev/nvidia{name} is {}, and the driver's card {name} is another one: name the card by its UUID",
            other.uuid
        );
    }
    let mut named = shown.iter();
    let named = named.find(|card| meant.as_ref().is_some_and(|meant| meant.names(card)));
    if let Some(card) = named {
        return Ok(card.uuid.clone());
    }
    let gone = reported
        .iter()
        .filter(|uuid| shown.iter().all(|card| card.uuid != **uuid));
    let present: Vec<String> = shown
        .iter()
        .map(|card| format!("{} ({})", card.index, card.uuid))
        .chain(gone.map(|uuid| format!("{uuid} (marked unhealthy, and not shown by the driver)")))
        .collect();
    let present = match present.as_slice() {
        [] => "none".to_owned(),
        present => present.join(", "),
    };
    anyhow::bail!("no card {name} on this host, which has: {present}")
}

pub(super) fn run(form: Form, repair: &Repair) -> anyhow::Result<ExitCode> {
    if *repair != Repair::No && !nix::unistd::geteuid().is_root() {
        anyhow::bail!("`cgpu doctor --repair` needs root: it changes the state folder");
    }
    let loaded = Config::load();
    // A wrong name is an error before anything is changed.
    let card = match (&loaded, repair) {
        (Ok(config), Repair::Card(name)) => Some((config, named_card(config, name)?)),
        _ => None,
    };
    let (mut reclaimed, mut cleared_cards, mut undone) = (None, None, None);
    match (&loaded, repair) {
        (_, Repair::No) => {}
        (Ok(config), _) => {
            reclaimed = Some(take_leftovers(config)?);
            cleared_cards = Some(Vec::new());
        }
        (Err(_), _) => {
            undone = Some("Repair: not done, since the configuration cannot be read".to_owned());
        }
    }
    if let Some((config, uuid)) = card {
        if cards::health::clear(&config.state_dir, &uuid)? {
            vgpu::events::card_repaired(config, &uuid);
            cleared_cards = Some(vec![uuid.to_string()]);
        } else {
            undone = Some(format!("Card {uuid} was not marked unhealthy"));
        }
    }
    let mut doctor = assessed(&loaded);
    doctor.reclaimed = reclaimed;
    doctor.cleared_cards = cleared_cards;
    form.print(&doctor, |doctor| {
        let text = render::doctor::render(doctor, render::Look::of_output());
        undone
            .iter()
            .fold(text, |text, undone| format!("{text}\n\n{undone}"))
    })?;
    Ok(if doctor.is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
