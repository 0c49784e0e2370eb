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

/// Undoes what killed frontends and brokers left behind; says whose it was.
///
/// # Errors
/// What could not be undone.
pub fn reclaim(config: &Config) -> Result<Vec<ContainerKey>, Error> {
    if !state::vgpus_dir(&config.state_dir).exists() && !config.state_dir.join("cards").exists() {
        let sockets = Path::new(sockets::DIR);
        sockets::sweep(sockets).map_err(Error::io("remove dead sockets in", sockets))?;
        return Ok(Vec::new());
    }
    let lock = StateLock::take(&config.state_dir)?;
    reclaim_locked(&Arc::new(config.clone()), &lock)
}

pub(crate) fn reclaim_locked(
    config: &Arc<Config>,
    lock: &StateLock,
) -> Result<Vec<ContainerKey>, Error> {
    let mut reclaimed = Vec::new();
    let sockets = Path::new(sockets::DIR);
    sockets::sweep(sockets).map_err(Error::io("remove dead sockets in", sockets))?;
    let containers = state::containers(&config.state_dir)?;
    own_group::sweep(config, &containers);
    for key in containers {
        let container = Container::new(Arc::clone(config), key);
        if backend::is_live(container.dir())? {
            continue;
        }
        container.take_back(
            lock,
            "neither frontend nor broker lived any more: its vGPU was taken back",
        )?;
        tracing::info!(key = %container.key(), "reclaimed a stale vGPU");
        reclaimed.push(container.key().clone());
    }
    let store = DiskStore;
    let reservations = Reservations::open(lock, &config.state_dir, &store);
    for entry in reservations
        .all()?
        .into_iter()
        .flat_map(|of_card| of_card.grants)
    {
        if !ContainerDir::of(&config.state_dir, &entry.key).exists()
            && !reclaimed.contains(&entry.key)
        {
            reservations.remove(&entry.key)?;
            reclaimed.push(entry.key);
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
