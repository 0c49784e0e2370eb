//! Create, and how it is undone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sys::sync::lock;

use super::Supervisor;
use super::cell::{Cell, Holding, Live, ProcessStreams};
use crate::error::{Error, Result};
use crate::runtime::broker;
use crate::runtime::gpu::{self, Prepared};
use crate::runtime::orphans;
use crate::runtime::reaper::Window;
use crate::runtime::runc::{Calls, Runc};
use crate::runtime::spec::Spec;
use crate::task::{Container, Create, Pid, Step, Target};

impl Supervisor {
    /// Creates a container; its init waits to be started. One from a checkpoint has no init before its start restores it.
    ///
    /// # Errors
    /// Whatever step fails; the ones before it are undone.
    pub async fn create(&self, request: Create) -> Result<Option<Pid>> {
        let spec = Spec::read(&request.bundle)?;
        let runc = Runc::new(&self.namespace, &request.options, spec.cgroups_path());
        let calls = Calls::new(
            runc,
            self.reaper.clone(),
            request.id.clone(),
            request.bundle.clone(),
        );
        let init = ProcessStreams::new(request.stdio, Vec::new());
        let cell = Arc::new(Cell {
            namespace: self.namespace.clone(),
            id: request.id.clone(),
            bundle: request.bundle,
            rootfs: request.rootfs,
            options: request.options,
            restore: request.restore,
            pid_namespace: spec.pid_namespace(),
            cgroups_path: spec.cgroups_path().map(str::to_owned),
            calls,
            state: Mutex::new(Container::new()),
            live: Mutex::new(Live {
                streams: BTreeMap::from([(Target::Init, init)]),
                ..Live::default()
            }),
            events: self.events.clone(),
            changed: tokio::sync::watch::channel(()).0,
            signals: tokio::sync::watch::channel(0).0,
        });
        {
            use std::collections::hash_map::Entry;
            match lock(&self.containers).entry(request.id.clone()) {
                Entry::Occupied(_) => return Err(Error::ContainerExists(request.id)),
                Entry::Vacant(free) => drop(free.insert(Arc::clone(&cell))),
            }
        }
        let created = self.create_in(&cell).await;
        if created.is_err() {
            lock(&self.containers).remove(&cell.id);
        }
        created
    }

    async fn create_in(&self, cell: &Arc<Cell>) -> Result<Option<Pid>> {
        cell.calls.runc().save(&cell.bundle)?;
        let created = self.create_mounted(cell).await;
        if created.is_err() {
            self.undo_create(cell).await;
        }
        created
    }

    /// The root is mounted first: for a real card's container it is looked at, to know where its linker looks.
    async fn create_mounted(&self, cell: &Arc<Cell>) -> Result<Option<Pid>> {
        cell.mount().await?;
        let created = {
            let gpu = Arc::clone(&self.gpu);
            let (namespace, id, bundle) =
                (self.namespace.clone(), cell.id.clone(), cell.bundle.clone());
            gpu::off_thread(&self.reaper, move || gpu.create(&namespace, &id, &bundle)).await??
        };
        if let Some(prepared) = created {
            lock(&cell.live).share = Holding::Prepared(prepared);
        }
        match &cell.restore {
            None => self.create_runc(cell).await.map(Some),
            Some(_) => Self::prepare(cell).map(|()| None),
        }
    }

    async fn create_runc(&self, cell: &Arc<Cell>) -> Result<Pid> {
        let request = cell.stdio(&Target::Init)?;
        let window = self.reaper.window();
        let launched = cell.launch(&Target::Init, &request, &[], &window).await;
        // First: runc fails where nobody takes its listener, and does not know why.
        let ready = self.ready(cell).await;
        let (pid, copying) = match (launched, ready) {
            (Ok(launched), Ok(())) => launched,
            (Ok((pid, _copying)), Err(error)) => {
                kill_unheld(cell, &window, pid);
                return Err(error);
            }
            (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
        };
        if let Err(error) = self.verify_filter(cell, pid).await {
            kill_unheld(cell, &window, pid);
            return Err(error);
        }
        cell.attach(&Target::Init, copying);
        cell.attach_cgroup(pid);
        cell.apply(Step::Created(pid))?;
        let watched = Arc::clone(cell);
        window.claim(pid, move |exit| watched.exited(Target::Init, exit));
        Ok(pid)
    }

    /// For a container from a checkpoint: all but runc.
    fn prepare(cell: &Arc<Cell>) -> Result<()> {
        if !matches!(lock(&cell.live).share, Holding::Nothing) {
            return Err(Error::NoCheckpoint(cell.id.clone()));
        }
        cell.apply(Step::Prepared)
    }

    /// What a container with a share of a card needs was started while runc created it.
    async fn ready(&self, cell: &Cell) -> Result<()> {
        let Some(mut prepared) = cell.take_prepared() else {
            return Ok(());
        };
        let waited = move || {
            let ready = prepared.ready();
            (prepared, ready)
        };
        let (prepared, ready) = gpu::off_thread(&self.reaper, waited).await?;
        lock(&cell.live).share = Holding::Prepared(prepared);
        Ok(ready?)
    }

    /// A container with a share of a card is verified before it can be started.
    async fn verify_filter(&self, cell: &Cell, init: Pid) -> Result<()> {
        let Some(prepared) = cell.take_prepared() else {
            return Ok(());
        };
        let verified = gpu::off_thread(&self.reaper, move || prepared.verify_filter(init)).await?;
        let (share, verified) = match verified {
            Ok(running) => (Holding::Running(running), Ok(())),
            Err((error, ended)) => (Holding::Ended(ended), Err(error.into())),
        };
        let watch = share.running().and_then(|running| broker::watch(&running));
        let mut live = lock(&cell.live);
        live.broker_watch = watch;
        live.share = share;
        drop(live);
        verified
    }

    /// A create that failed leaves nothing: no runc state, mount, stream or share.
    async fn undo_create(&self, cell: &Arc<Cell>) {
        self.teardown(cell).await;
        cell.forget_in_runc().await;
        if let Err(error) = remove_cgroups(cell).await {
            tracing::warn!(container = %cell.id, %error, "cannot remove what runc left");
        }
        if let Err(error) = cell.unmount().await {
            tracing::warn!(container = %cell.id, %error, "cannot unmount");
        }
        if let Err(error) = self.give_back(cell).await {
            tracing::error!(container = %cell.id, %error, "cannot give back the share of a card");
        }
        drop(std::mem::take(&mut *lock(&cell.live)));
    }
}

impl Cell {
    /// The share of a container that is being made; whoever takes it puts back what comes of it.
    fn take_prepared(&self) -> Option<Box<dyn Prepared>> {
        let share = &mut lock(&self.live).share;
        match std::mem::take(share) {
            Holding::Prepared(prepared) => Some(prepared),
            other @ (Holding::Nothing | Holding::Running(_) | Holding::Ended(_)) => {
                *share = other;
                None
            }
        }
    }
}

/// A call of runc that was killed has noted nowhere which control groups it made.
async fn remove_cgroups(cell: &Cell) -> Result<()> {
    let Some(path) = cell.cgroups_path.clone() else {
        return Ok(());
    };
    let (runc, id) = (cell.calls.runc().clone(), cell.id.clone());
    let removed =
        tokio::task::spawn_blocking(move || orphans::remove_cgroups(&runc, &id, &path)).await;
    removed.map_err(|_panic| Error::Lost("removing control groups"))?
}

/// A container that is not held must not start.
pub(super) fn kill_unheld(cell: &Cell, window: &Window, pid: Pid) {
    if let Err(error) = window.kill(pid) {
        tracing::warn!(container = %cell.id, %error, "cannot kill a process that is not held");
    }
}
