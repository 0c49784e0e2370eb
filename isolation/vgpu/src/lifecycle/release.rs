//! The way back: after a failed create, at release, and in reclaim.
//!
//! What is to be undone is known from the container's folder alone, so that one routine ([`Container::undo`]) serves all three.

use std::path::Path;
use std::sync::Arc;

use cards::lock::StateLock;
use cards::reservations::Reservations;
use cards::store::DiskStore;
use cards::{Backend, ContainerKey, Grant};
use host_config::{Config, chain};

use crate::events::Log;
use crate::state::{self, ContainerDir};
use crate::{Container, Error, backend, bundle, own_group, sockets};

/// What became of what killed frontends and brokers left behind.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    /// Whose it was.
    pub(crate) keys: Vec<ContainerKey>,
    /// What could not be undone, or looked at. It keeps its reservation, and no other container from its start.
    pub(crate) failed: Vec<(ContainerKey, Error)>,
}

impl Reclaimed {
    fn fail(&mut self, key: &ContainerKey, error: Error) {
        tracing::warn!(%key, error = %chain(&error), "a stale vGPU could not be reclaimed; the next start tries again");
        self.failed.push((key.clone(), error));
    }
}

/// Undoes what killed frontends and brokers left behind; says whose it was.
///
/// # Errors
/// The first that could not be undone; the others are.
pub fn reclaim(config: &Config) -> Result<Vec<ContainerKey>, Error> {
    let reclaimed = reclaim_each(config)?;
    match reclaimed.failed.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(reclaimed.keys),
    }
}

/// [`reclaim`], with each failure by its container.
pub(super) fn reclaim_each(config: &Config) -> Result<Reclaimed, Error> {
    sweep_sockets();
    if !state::vgpus_dir(&config.state_dir).exists() && !config.state_dir.join("cards").exists() {
        return Ok(Reclaimed::default());
    }
    let lock = StateLock::take(&config.state_dir)?;
    reclaim_locked(&Arc::new(config.clone()), &lock)
}

/// A dead socket is in nobody's way: who needs its name takes it. So this comes before the state lock, for which every start of the host waits.
pub(crate) fn sweep_sockets() {
    let dir = sockets::dir();
    if let Err(error) = sockets::sweep(&dir) {
        tracing::warn!(%error, "cannot remove dead sockets in {}", dir.display());
    }
}

/// Whoever calls it has swept sockets before the lock ([`sweep_sockets`]).
///
/// # Errors
/// Vgpus or reservations cannot be read.
pub(crate) fn reclaim_locked(config: &Arc<Config>, lock: &StateLock) -> Result<Reclaimed, Error> {
    let mut reclaimed = Reclaimed::default();
    let containers = state::containers(&config.state_dir)?;
    own_group::sweep(config, &containers);
    for key in containers {
        let container = Container::new(Arc::clone(config), key);
        match container.take_back_stale(lock) {
            Ok(true) => reclaimed.keys.push(container.key().clone()),
            Ok(false) => {}
            Err(error) => reclaimed.fail(container.key(), error),
        }
    }
    let store = DiskStore;
    let reservations = Reservations::open(lock, &config.state_dir, &store);
    for entry in reservations
        .all()?
        .into_iter()
        .flat_map(|of_card| of_card.grants)
    {
        let exists = ContainerDir::of(&config.state_dir, &entry.key).exists();
        if exists || reclaimed.keys.contains(&entry.key) {
            continue;
        }
        match reservations.remove(&entry.key) {
            Ok(_) => reclaimed.keys.push(entry.key),
            Err(error) => reclaimed.fail(&entry.key, error.into()),
        }
    }
    Ok(reclaimed)
}

impl Container {
    /// Ends its vGPU: broker stopped, spec put back, grant and folder gone. A container without one is fine.
    ///
    /// # Errors
    /// What could not be undone; a later call, or [`reclaim`], tries again.
    pub(super) fn release(&self) -> Result<(), Error> {
        if !self.dir().exists() {
            return Ok(());
        }
        let log = Log::of(self);
        // Outside the lock: a broker may take a second to end, and other containers start meanwhile.
        self.end_backends()?;
        let lock = StateLock::take(&self.config().state_dir)?;
        self.undo(&lock)?;
        drop(lock);
        log.ended("the container has ended; its vGPU was released");
        Ok(())
    }

    /// [`Container::release`] under the lock, for a container that nobody holds any more: the lock of a frontend that was killed
    /// before its broker took its own, or a reservation that it has left, may be all that is there.
    pub(super) fn take_back(&self, lock: &StateLock, why: &str) -> Result<(), Error> {
        let log = Log::of(self);
        self.end_backends()?;
        self.undo(lock)?;
        log.ended(why);
        Ok(())
    }

    /// [`Container::take_back`] where neither frontend nor broker lives; whether it was so.
    fn take_back_stale(&self, lock: &StateLock) -> Result<bool, Error> {
        if backend::is_live(self.dir())? {
            return Ok(false);
        }
        self.take_back(
            lock,
            "neither frontend nor broker lived any more: its vGPU was taken back",
        )?;
        tracing::info!(key = %self.key(), "reclaimed a stale vGPU");
        Ok(true)
    }

    /// Ends whatever backend's work is in the folder, of which the grant may be unreadable.
    fn end_backends(&self) -> Result<(), Error> {
        [Backend::DriverLimit, Backend::Broker]
            .into_iter()
            .try_for_each(|kind| backend::of(self.config(), kind).end(self.dir()))
    }

    /// Removes all traces of a container whose broker is dead, in the reverse order of their making. Safe to repeat.
    pub(super) fn undo(&self, lock: &StateLock) -> Result<(), Error> {
        let key = self.key();
        match Grant::read(self.dir().path()) {
            Ok(Grant {
                bundle: Some(bundle),
                ..
            }) => {
                self.restore(&bundle);
                Config::forget(&bundle);
            }
            Ok(_) => {}
            Err(cards::Error::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error @ cards::Error::Newer { .. }) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%key, error = %chain(&error), "a grant that cannot be read is removed")
            }
        }
        let store = DiskStore;
        Reservations::open(lock, &self.config().state_dir, &store).remove(key)?;
        self.dir().remove()
    }

    /// The card's memory is free for others whether or not the engine's folder still takes its spec back.
    fn restore(&self, bundle: &Path) {
        let key = self.key();
        if let Err(error) = bundle::restore(self.dir(), key, bundle) {
            tracing::warn!(%key, error = %chain(&error), "the spec could not be put back");
        }
    }

    /// The error that counts is the one that made us undo; what is left is stale and reclaimed by the next start.
    pub(super) fn report_failed_undo(&self, result: Result<(), Error>) {
        if let Err(error) = result {
            tracing::warn!(key = %self.key(), error = %chain(&error), "a failed start could not be undone; the next start will");
        }
    }
}
