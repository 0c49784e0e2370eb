//! One container: its state, what it holds, and what follows from each step of the state machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::error::{Error, Result};
use crate::runtime::cgroup::Cgroup;
use crate::runtime::gpu::Share;
use crate::runtime::runc::Calls;
use crate::runtime::spec::PidNamespace;
use crate::runtime::stdio::Copying;
use crate::runtime::{oom, rootfs};
use crate::task::{
    Container, ContainerId, Denied, Effect, Event, Exit, Happened, Mount, Pid, RuncOptions,
    StdioRequest, Step, Target,
};

/// How long Delete waits for the end of an init that runc has killed.
const EXIT_WAIT: Duration = Duration::from_secs(10);

/// One container.
pub(super) struct Cell {
    pub(super) namespace: String,
    pub(super) id: ContainerId,
    pub(super) bundle: PathBuf,
    pub(super) rootfs: Vec<Mount>,
    pub(super) options: RuncOptions,
    pub(super) pid_namespace: PidNamespace,
    pub(super) calls: Calls,
    pub(super) state: Mutex<Container>,
    pub(super) live: Mutex<Live>,
    pub(super) events: mpsc::UnboundedSender<Event>,
}

/// What a container holds that has to be given back.
#[derive(Default)]
pub(super) struct Live {
    pub(super) streams: BTreeMap<Target, ProcessStreams>,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) oom_watch: Option<oom::Watch>,
    pub(super) share: Option<Share>,
}

pub(super) struct ProcessStreams {
    pub(super) request: StdioRequest,
    pub(super) process_json: Vec<u8>,
    pub(super) copying: Option<Arc<Copying>>,
    pub(super) exit: watch::Sender<Option<Exit>>,
}

impl ProcessStreams {
    pub(super) fn new(request: StdioRequest, process_json: Vec<u8>) -> Self {
        Self {
            request,
            process_json,
            copying: None,
            exit: watch::channel(None).0,
        }
    }
}

/// Every change under these locks is complete in itself, so poison is ignored.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cell {
    /// Takes a step and does what follows from it.
    pub(super) fn apply(self: &Arc<Self>, step: Step) -> Result<()> {
        let effects = lock(&self.state).apply(step)?;
        self.perform(effects);
        Ok(())
    }

    /// For the end of a step that init's own end may have overtaken.
    pub(super) fn apply_if_alive(self: &Arc<Self>, step: Step) {
        if let Err(denied) = self.apply(step) {
            tracing::debug!(container = %self.id, %denied, "overtaken");
        }
    }

    pub(super) fn send(&self, event: Event) {
        // The queue's reader lives as long as the process.
        drop(self.events.send(event));
    }

    pub(super) fn perform(self: &Arc<Self>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Publish(happened) => self.send(self.event(happened)),
                Effect::Settle(target, pid, exit) => {
                    drop(tokio::spawn(Arc::clone(self).settle(target, pid, exit)))
                }
            }
        }
    }

    pub(super) fn event(&self, happened: Happened) -> Event {
        let id = self.id.clone();
        match happened {
            Happened::Created(pid) => Event::Create {
                id,
                bundle: self.bundle.clone(),
                rootfs: self.rootfs.clone(),
                stdio: self
                    .stdio(&Target::Init)
                    .unwrap_or_else(|_gone| StdioRequest::nowhere()),
                pid,
            },
            Happened::Started(Target::Init, pid) => Event::Start { id, pid },
            Happened::Started(Target::Exec(exec), pid) => Event::ExecStarted { id, exec, pid },
            Happened::ExecAdded(exec) => Event::ExecAdded { id, exec },
            Happened::Paused => Event::Paused { id },
            Happened::Resumed => Event::Resumed { id },
        }
    }

    /// The reaper's report.
    pub(super) fn exited(self: &Arc<Self>, target: Target, exit: Exit) {
        if let Err(denied) = self.apply(Step::Exited(target, exit)) {
            tracing::warn!(container = %self.id, %denied, "the end of a process that is not known");
        }
    }

    /// Delivers what is left of the output, then tells containerd, then those who wait.
    pub(super) async fn settle(self: Arc<Self>, target: Target, pid: Pid, exit: Exit) {
        if target == Target::Init
            && self.pid_namespace == PidNamespace::Shared
            && let Err(error) = self
                .calls
                .simple("kill", &["--all", self.id.as_str(), "KILL"])
                .await
        {
            tracing::debug!(container = %self.id, %error, "nothing left to kill");
        }
        if let Some(copying) = self.copying(&target) {
            copying.process_ended().await;
        }
        self.send(Event::Exit {
            id: self.id.clone(),
            target: target.clone(),
            pid,
            exit,
        });
        if let Some(streams) = lock(&self.live).streams.get(&target) {
            streams.exit.send_replace(Some(exit));
        }
    }

    /// Waits, within reason, until [`Self::settle`] has run for a process that has ended or is about to.
    pub(super) async fn settled(&self, target: &Target) {
        let Ok(mut exit) = self.exit_of(target) else {
            return;
        };
        if tokio::time::timeout(EXIT_WAIT, exit.wait_for(Option::is_some))
            .await
            .is_err()
        {
            tracing::warn!(container = %self.id, %target, "has not ended in time");
        }
    }

    pub(super) fn exit_of(&self, target: &Target) -> Result<watch::Receiver<Option<Exit>>> {
        lock(&self.state).view(target)?;
        let live = lock(&self.live);
        let streams = live.streams.get(target);
        streams
            .map(|streams| streams.exit.subscribe())
            .ok_or_else(|| self.missing(target))
    }

    pub(super) fn stdio(&self, target: &Target) -> Result<StdioRequest> {
        let live = lock(&self.live);
        live.streams
            .get(target)
            .map(|streams| streams.request.clone())
            .ok_or_else(|| self.missing(target))
    }

    pub(super) fn missing(&self, target: &Target) -> Error {
        match target {
            Target::Init => Error::NoContainer(self.id.clone()),
            Target::Exec(exec) => Denied::NoExec(exec.clone()).into(),
        }
    }

    pub(super) fn copying(&self, target: &Target) -> Option<Arc<Copying>> {
        lock(&self.live).streams.get(target)?.copying.clone()
    }

    pub(super) fn attach(&self, target: &Target, copying: Copying) {
        if let Some(streams) = lock(&self.live).streams.get_mut(target) {
            streams.copying = Some(Arc::new(copying));
        }
    }

    /// Finds the control group while init is alive, and watches it for kills for want of memory.
    pub(super) fn attach_cgroup(&self, pid: Pid) {
        let Some(cgroup) = Cgroup::of(pid) else {
            return;
        };
        let (id, events) = (self.id.clone(), self.events.clone());
        let told = move || drop(events.send(Event::Oom { id: id.clone() }));
        let oom = oom::watch(&cgroup, told);
        let mut live = lock(&self.live);
        live.cgroup = Some(cgroup);
        live.oom_watch = oom;
    }

    /// What the shim mounted; what the engine mounted is the engine's.
    pub(super) fn unmount(&self) -> Result<()> {
        if self.rootfs.is_empty() {
            Ok(())
        } else {
            rootfs::unmount(&self.bundle.join("rootfs"))
        }
    }
}
