//! All vGPUs of the host, as `cgpu ps` shows them.

use std::path::PathBuf;

use cards::{ContainerKey, Grant, Names};
use control::{Status, client};
use host_config::Config;

use crate::own_group::{OwnGroup, OwnUsage};
use crate::state::{self, ContainerDir};
use crate::{Error, backend, names};

/// A vGPU as others see it.
#[derive(Debug)]
pub struct VgpuState {
    /// What was granted.
    pub grant: Grant,
    /// Its broker.
    pub broker: BrokerState,
    /// Whether anybody of it lives.
    pub life: Life,
    /// The broker's own answer, if it gave one in time.
    pub status: Option<Status>,
    /// What people call it.
    pub names: Names,
    /// What its own processes use; absent where they have no control group.
    pub own: Option<OwnUsage>,
}

/// Whether frontend, broker, or a process of the container lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// One of them.
    Live,
    /// None: it is reclaimed at the next start.
    Stale,
}

/// Whether the broker lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerState {
    /// It holds `broker.lock`.
    Alive,
    /// Nobody holds `broker.lock`.
    Gone,
    /// The container's backend has none.
    None,
}

/// The containers that have a vGPU, by key, and what people call them. No broker is asked.
///
/// # Errors
/// A state folder that cannot be read.
pub fn named(config: &Config) -> Result<Vec<(ContainerKey, Names)>, Error> {
    let mut named = Vec::new();
    for key in state::containers(&config.state_dir)? {
        let dir = ContainerDir::of(&config.state_dir, &key);
        // Without one it is being made, or being removed, at this moment.
        if dir.file(cards::grant::FILE_NAME).exists() {
            named.push((key, names::read(&dir)));
        }
    }
    Ok(named)
}

/// What people call a container that has a vGPU; nothing of one that has none.
#[must_use]
pub fn names_of(config: &Config, key: &ContainerKey) -> Names {
    names::read(&ContainerDir::of(&config.state_dir, key))
}

/// All vGPUs of this host, by key.
///
/// # Errors
/// A state folder or grant that cannot be read.
pub fn list(config: &Config) -> Result<Vec<VgpuState>, Error> {
    list_each(config)?
        .into_iter()
        .map(|(_, state)| state)
        .collect()
}

/// A container that has a vGPU, and what is known of it.
pub type Listed = (ContainerKey, Result<VgpuState, Error>);

/// All vGPUs of this host, by key. One whose state cannot be read is an error of its own.
///
/// # Errors
/// A state folder that cannot be read.
pub fn list_each(config: &Config) -> Result<Vec<Listed>, Error> {
    let mut states = Vec::new();
    for key in state::containers(&config.state_dir)? {
        match without_status(config, &key) {
            // Being made, or being removed, at this moment.
            Ok(None) => {}
            Ok(Some(state)) => states.push((key, Ok(state))),
            Err(error) => states.push((key, Err(error))),
        }
    }
    let living = states.iter_mut().filter_map(|(_, state)| match state {
        Ok(state) if state.broker == BrokerState::Alive => Some(state),
        Ok(_) | Err(_) => None,
    });
    let mut living: Vec<&mut VgpuState> = living.collect();
    let sockets: Vec<PathBuf> = living
        .iter()
        .map(|state| ContainerDir::of(&config.state_dir, &state.grant.key).control_socket())
        .collect();
    let answers = client::statuses(&sockets);
    for (state, answer) in living.iter_mut().zip(answers) {
        state.status = answer
            .inspect_err(|error| tracing::debug!(%error, key = %state.grant.key, "no status"))
            .ok();
    }
    Ok(states)
}

/// What the state folder has of a vGPU; `None`: no grant.
fn without_status(config: &Config, key: &ContainerKey) -> Result<Option<VgpuState>, Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    let Some(grant) = cards::Error::absent_is_none(Grant::read(dir.path()))? else {
        return Ok(None);
    };
    let broker = match grant.backend {
        _ if dir.has_broker()? => BrokerState::Alive,
        cards::Backend::Broker => BrokerState::Gone,
        cards::Backend::DriverLimit | cards::Backend::Share => BrokerState::None,
    };
    Ok(Some(VgpuState {
        broker,
        life: if backend::is_live(&dir)? {
            Life::Live
        } else {
            Life::Stale
        },
        own: OwnGroup::of(config, &grant.key).usage(),
        names: names::read(&dir),
        grant,
        status: None,
    }))
}
