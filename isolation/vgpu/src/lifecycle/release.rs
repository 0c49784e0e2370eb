//! The way back: after a failed create, at release, and in reclaim.
//!
//! What is to be undone is known from the container's folder alone, so that one routine ([`Container::undo`]) serves all three.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cards::lock::StateLock;
use cards::reservations::Reservations;
use cards::store::DiskStore;
use cards::{Backend, ContainerKey, Grant};
use host_config::{Config, chain};

use crate::backend::Ending;
use crate::events::Log;
use crate::own_group::{OF_A_START, OF_ITS_FRONTEND, OF_ITS_NAME, Outside, Patience};
use crate::state::{self, ContainerDir, Which};
use crate::{Container, Error, backend, bundle, own_group, resize, sockets};

/// Groups whose processes were killed are looked at again so often.
const GROUP_TRIES: u32 = 10;
const GROUP_PAUSE: Duration = Duration::from_millis(100);

/// What became of what killed frontends and brokers left behind.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    /// Whose it was.
    pub(crate) keys: Vec<ContainerKey>,
    /// What could not be undone, or looked at. It keeps its reservation, and no other container from its start.
    pub(crate) failed: Vec<(ContainerKey, Error)>,
    /// Control groups that nobody has, and whose processes have not left them yet.
    groups_stay: bool,
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
    let _outside = Outside::of_limits(config);
    let lock = StateLock::take(&config.state_dir)?;
    let (lock, reclaimed) = reclaim_locked(&Arc::new(config.clone()), lock)?;
    drop(lock);
    // What was killed leaves its group a moment later, and nobody waits for the lock until then.
    let mut groups_stay = reclaimed.groups_stay;
    for _ in 0..GROUP_TRIES {
        if !groups_stay {
            break;
        }
        std::thread::sleep(GROUP_PAUSE);
        let _lock = StateLock::take(&config.state_dir)?;
        groups_stay = !own_group::sweep(config, &state::containers(&config.state_dir)?);
    }
    Ok(reclaimed)
}

/// A dead socket is in nobody's way: who needs its name takes it. So this comes before the state lock, for which every start of the host waits.
pub(crate) fn sweep_sockets() {
    let dir = sockets::dir();
    if let Err(error) = sockets::sweep(&dir) {
        tracing::warn!(%error, "cannot remove dead sockets in {}", dir.display());
    }
}

/// Whoever calls it has swept sockets before the lock ([`sweep_sockets`]). It gives the lock back as it was taken; in between it may have
/// been let go, see [`take_back`].
///
/// # Errors
/// Vgpus or reservations cannot be read.
pub(crate) fn reclaim_locked(
    config: &Arc<Config>,
    lock: StateLock,
) -> Result<(StateLock, Reclaimed), Error> {
    let mut reclaimed = Reclaimed::default();
    let mut left = Vec::new();
    for key in state::containers(&config.state_dir)? {
        let container = Container::new(Arc::clone(config), key);
        match backend::is_live(container.dir()) {
            Ok(true) => {}
            Ok(false) => left.extend(Left::of(
                &container,
                "neither frontend nor broker nor container lived any more: its vGPU was taken back",
            )),
            Err(error) => reclaimed.fail(container.key(), error),
        }
    }
    let (lock, taken) = take_back(config, lock, &left)?;
    for (left, result) in left.iter().zip(taken) {
        let key = left.container.key();
        match result {
            Ok(Taken::Back) => {
                tracing::info!(%key, "reclaimed a stale vGPU");
                reclaimed.keys.push(key.clone());
            }
            Ok(Taken::ByOthers) => {}
            Err(error) => reclaimed.fail(key, error),
        }
    }
    reclaimed.groups_stay = !own_group::sweep(config, &state::containers(&config.state_dir)?);
    let store = DiskStore;
    let reservations = Reservations::open(&lock, &config.state_dir, &store);
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
    resize::settle_terms(config, &reservations)?;
    Ok((lock, reclaimed))
}

/// A vGPU that nobody holds any more, as it was found under the state lock: the lock of a frontend that was killed before its broker
/// took its own, or a reservation that it has left, may be all that is there.
pub(super) struct Left {
    container: Container,
    which: Which,
    /// For the record.
    why: &'static str,
}

impl Left {
    /// `None`: there is none.
    pub(super) fn of(container: &Container, why: &'static str) -> Option<Self> {
        Some(Self {
            container: container.clone(),
            which: container.dir().which()?,
            why,
        })
    }

    /// Under the lock, after its processes were ended without it.
    fn undo(&self, lock: &StateLock) -> Result<Taken, Error> {
        let dir = self.container.dir();
        if !dir.is_still(self.which) || backend::is_live(dir)? {
            return Ok(Taken::ByOthers);
        }
        let log = Log::of(&self.container);
        self.container.undo(lock)?;
        log.ended(self.why);
        Ok(Taken::Back)
    }
}

/// What became of a vGPU that was to be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// Its memory is free.
    Back,
    /// It was gone when the lock was taken again, or is somebody's.
    ByOthers,
}

/// Takes back what nobody holds. The lock is let go while processes are ended: a start waits for them, since it may need what they hold,
/// but nobody waits for that start. What was seen under the lock before is to be looked at again. With nothing to take back it is kept.
///
/// # Errors
/// The lock cannot be had again.
pub(super) fn take_back(
    config: &Config,
    lock: StateLock,
    all: &[Left],
) -> Result<(StateLock, Vec<Result<Taken, Error>>), Error> {
    if all.is_empty() {
        return Ok((lock, Vec::new()));
    }
    drop(lock);
    let ended: Vec<Result<(), Error>> = all
        .iter()
        .map(|left| left.container.end_backends(left.which, OF_A_START))
        .collect();
    let lock = StateLock::take(&config.state_dir)?;
    let taken = all.iter().zip(ended);
    let taken = taken
        .map(|(left, ended)| ended.and_then(|()| left.undo(&lock)))
        .collect();
    Ok((lock, taken))
}

impl Container {
    /// Ends this vGPU: broker stopped, spec put back, grant and folder gone. One that is gone is fine: the name may be another's. One whose
    /// processes the driver keeps from ending is left to [`reclaim`], with all that it has reserved.
    ///
    /// # Errors
    /// What could not be undone; a later call, or [`reclaim`], tries again.
    pub(super) fn release(&self, which: Option<Which>) -> Result<(), Error> {
        let Some(which) = which.filter(|which| self.dir().is_still(*which)) else {
            return Ok(());
        };
        // Outside the lock: a broker may take a second to end, and other containers start meanwhile.
        match self.end_backends(which, OF_ITS_FRONTEND) {
            // The container has ended, whatever the driver does: an engine could do nothing but try again. Every start does.
            Err(error @ Error::StillEnding { .. }) => {
                let key = self.key();
                tracing::warn!(%key, error = %chain(&error), "a vGPU is not released yet");
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => self.undo_ended(which),
        }
    }

    /// Before a vGPU of this name is made: what another one has left may take its time to end.
    pub(super) fn await_former(&self) {
        let is_left = !backend::is_live(self.dir()).unwrap_or(true);
        if let Some(which) = self.dir().which().filter(|_| is_left)
            && let Err(error) = self.end_backends(which, OF_ITS_NAME)
        {
            let key = self.key();
            tracing::warn!(%key, error = %chain(&error), "what a former vGPU of this name has left does not end");
        }
    }

    /// Meanwhile another one may have taken the vGPU back, and the engine have made the next container of this name.
    pub(super) fn undo_ended(&self, which: Which) -> Result<(), Error> {
        let _outside = Outside::of_limits(self.config());
        let lock = StateLock::take(&self.config().state_dir)?;
        if !self.dir().is_still(which) {
            return Ok(());
        }
        let log = Log::of(self);
        self.undo(&lock)?;
        drop(lock);
        log.ended("the container has ended; its vGPU was released");
        Ok(())
    }

    /// Ends whatever backend's work is in the folder, of which the grant may be unreadable.
    pub(super) fn end_backends(&self, which: Which, patience: Patience) -> Result<(), Error> {
        let ending = Ending {
            is_still: &|| self.dir().is_still(which),
            patience,
        };
        [Backend::DriverLimit, Backend::Broker]
            .into_iter()
            .try_for_each(|kind| backend::of(self.config(), kind).end(self.dir(), &ending))
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
            Err(cards::Error::Io(error)) if error.is_absent() => {}
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
