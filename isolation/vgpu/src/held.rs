//! From the start on: whether what runs in a container is held.

use cards::{ContainerKey, Grant};

use crate::backend::{self, StartWatch};
use crate::state::ContainerDir;
use crate::{Config, Error};

/// Just before start: follows a container that [`crate::arm`] could not hold yet, since its runtime loads the filter only now, to its
/// program. `None` where it is held, or has no vGPU. Its door starts it and calls [`StartWatch::finish`].
///
/// # Errors
/// It cannot be followed, and must not be started.
pub fn watch_start(
    config: &Config,
    key: &ContainerKey,
    init: i32,
) -> Result<Option<StartWatch>, Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    if !dir.exists() {
        return Ok(None);
    }
    let grant = Grant::read(dir.path())?;
    backend::of(config, grant.backend).watch_start(&dir, &grant, init)
}

/// Whether a container that waits to be started must be followed by [`watch_start`]: asked first where its first process is
/// not known.
///
/// # Errors
/// Its grant cannot be read.
pub fn is_held_at_start(config: &Config, key: &ContainerKey) -> Result<bool, Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    if !dir.exists() {
        return Ok(false);
    }
    let grant = Grant::read(dir.path())?;
    Ok(backend::of(config, grant.backend).is_held_at_start(&dir))
}

/// Looks at a process that was just started in a running container; its door kills one that is not held. A container without
/// a vGPU is fine.
///
/// # Errors
/// It is not held.
pub fn hold_exec(config: &Config, key: &ContainerKey, process: i32) -> Result<(), Error> {
    let dir = ContainerDir::of(&config.state_dir, key);
    if !dir.exists() {
        return Ok(());
    }
    let grant = Grant::read(dir.path())?;
    backend::of(config, grant.backend).hold_exec(&dir, &grant, process)
}
