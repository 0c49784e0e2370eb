//! One container: its state, what it holds, and what follows from each step of the state machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::termios::Winsize;
use sys::sync::lock;
use tokio::sync::{mpsc, watch};

use crate::error::{Error, Result};
use crate::runtime::cgroup::Cgroup;
use crate::runtime::gpu::{Ended, Prepared, Running};
use crate::runtime::runc::Calls;
use crate::runtime::spec::PidNamespace;
use crate::runtime::stdio::Copying;
use crate::runtime::{broker, oom, rootfs};
use crate::task::{
    Container, ContainerId, Denied, Effect, Event, Exit, Happened, Mount, Pid, Restore,
    RuncOptions, StdioRequest, Step, Target,
};

/// How long Delete waits for the end of an init that runc has killed.
const EXIT_WAIT: Duration = Duration::from_secs(10);

/// How long init's exit event waits for those of its execs; less than what Delete waits for init.
const EXECS_WAIT: Duration = Duration::from_secs(8);

/// One container.
pub(super) struct Cell {
    pub(super) namespace: String,
    pub(super) id: ContainerId,
    pub(super) bundle: PathBuf,
    pub(super) rootfs: Vec<Mount>,
    pub(super) options: RuncOptions,
    /// The checkpoint that its start restores it from.
    pub(super) restore: Option<Restore>,
    pub(super) pid_namespace: PidNamespace,
    pub(super) cgroups_path: Option<String>,
    pub(super) calls: Calls,
    pub(super) state: Mutex<Container>,
    pub(super) live: Mutex<Live>,
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// Told after every step and every exit that has been settled.
    pub(super) changed: watch::Sender<()>,
    /// How many signals to init are under way.
    pub(super) signals: watch::Sender<usize>,
}

/// A signal to init on its way. Delete waits for it: after Delete containerd asks the shim to end, and what is not
/// answered by then is not answered at all.
pub(super) struct Signalling<'a>(&'a watch::Sender<usize>);

impl<'a> Signalling<'a> {
    pub(super) fn begin(cell: &'a Cell) -> Self {
        cell.signals.send_modify(|under_way| *under_way += 1);
        Self(&cell.signals)
    }
}

impl Drop for Signalling<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|under_way| *under_way -= 1);
    }
}

/// What a container holds that has to be given back.
#[derive(Default)]
pub(super) struct Live {
    pub(super) streams: BTreeMap<Target, ProcessStreams>,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) oom_watch: Option<oom::Watch>,
    pub(super) broker_watch: Option<broker::Watch>,
    pub(super) share: Holding,
}

/// What a container has of a card.
#[derive(Default)]
pub(super) enum Holding {
    /// It asked for none, or has given it back.
    #[default]
    Nothing,
    /// A share whose container is not created yet.
    Prepared(Box<dyn Prepared>),
    /// The share of a container that may be started.
    Running(Arc<dyn Running>),
    /// A share that is to be released; where that has failed, Delete tries again.
    Ended(Box<dyn Ended>),
}

impl Holding {
    /// The share of a container that may be started.
    pub(super) fn running(&self) -> Option<Arc<dyn Running>> {
        match self {
            Self::Running(running) => Some(Arc::clone(running)),
            Self::Nothing | Self::Prepared(_) | Self::Ended(_) => None,
        }
    }

    /// What is left to be released.
    pub(super) fn ended(self) -> Option<Box<dyn Ended>> {
        match self {
            Self::Nothing => None,
            Self::Prepared(prepared) => Some(prepared.ended()),
            Self::Running(running) => Some(running.ended()),
            Self::Ended(ended) => Some(ended),
        }
    }
}

/// Whether the engine may still write input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// It may.
    Open,
    /// CloseIO was asked for, perhaps before the process was started.
    Closed,
}

pub(super) struct ProcessStreams {
    pub(super) request: StdioRequest,
    pub(super) process_json: Vec<u8>,
    pub(super) copying: Option<Arc<Copying>>,
    pub(super) input: Input,
    /// What ResizePty gave last, perhaps before the process was started.
    pub(super) size: Option<Winsize>,
    pub(super) exit: watch::Sender<Option<Exit>>,
}

impl ProcessStreams {
    pub(super) fn new(request: StdioRequest, process_json: Vec<u8>) -> Self {
        Self {
            request,
            process_json,
            copying: None,
            input: Input::Open,
            size: None,
            exit: watch::channel(None).0,
        }
    }
}

impl Cell {
    /// Takes a step and does what follows from it.
    pub(super) fn apply(self: &Arc<Self>, step: Step) -> Result<()> {
        let effects = lock(&self.state).apply(step)?;
        self.changed.send_replace(());
        self.perform(effects);
        Ok(())
    }

    /// For the end of a step that init's own end may have overtaken.
    pub(super) fn apply_if_alive(self: &Arc<Self>, step: Step) {
        if let Err(denied) = self.apply(step) {
            tracing::debug!(container = %self.id, %denied, "overtaken");
        }
    }

    /// Waits until no signal to init is under way.
    pub(super) async fn signals_are_answered(&self) {
        // The sender lives as long as the container.
        drop(
            self.signals
                .subscribe()
                .wait_for(|under_way| *under_way == 0)
                .await,
        );
    }

    /// Waits until no start of this exec is under way. Kill and Delete do, as with containerd's own shim: where a Start is given up,
    /// nobody else would end what comes of it.
    pub(super) async fn exec_start_ended(&self, target: &Target) {
        // The sender lives as long as the container.
        drop(
            self.changed
                .subscribe()
                .wait_for(|()| !lock(&self.state).is_starting_exec(target))
                .await,
        );
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
                checkpoint: self
                    .restore
                    .as_ref()
                    .map(|restore| restore.image.clone())
                    .unwrap_or_default(),
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
        let delivered = async {
            if let Some(copying) = self.copying(&target) {
                copying.process_ended().await;
            }
        };
        match target {
            Target::Init => drop(tokio::join!(delivered, self.execs_reported())),
            Target::Exec(_) => delivered.await,
        }
        // Why it ended comes before that it ended.
        if let Some(watch) = &lock(&self.live).oom_watch {
            watch.flush();
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
        self.changed.send_replace(());
    }

    /// Waits, within reason, until the ends of all execs are told: containerd takes init's end for the last.
    async fn execs_reported(&self) {
        let all = async {
            loop {
                let mut changed = self.changed.subscribe();
                let due = lock(&self.state).execs_that_end();
                let reported = {
                    let live = lock(&self.live);
                    due.iter().all(|exec| {
                        let streams = live.streams.get(exec);
                        streams.is_none_or(|streams| streams.exit.borrow().is_some())
                    })
                };
                if reported || changed.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(EXECS_WAIT, all).await.is_err() {
            tracing::warn!(container = %self.id, "an exec has not ended with init");
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
            if streams.input == Input::Closed {
                copying.close_stdin();
            }
            if let Some(size) = streams.size
                && let Err(error) = copying.resize(size)
            {
                tracing::warn!(container = %self.id, %target, %error, "the terminal keeps the size that it has");
            }
            streams.copying = Some(Arc::new(copying));
        }
    }

    /// Finds the control group while init is alive, and watches it for kills for want of memory.
    pub(super) fn attach_cgroup(&self, pid: Pid) {
        let Some(cgroup) = Cgroup::of(pid) else {
            return;
        };
        let (id, events) = (self.id.clone(), self.events.clone());
        let reported = oom::reporter(id, events);
        let oom = oom::watch(&cgroup, reported);
        let mut live = lock(&self.live);
        live.cgroup = Some(cgroup);
        live.oom_watch = oom;
    }

    /// Mounts what the request names; on a thread of its own, because some file systems take their time.
    pub(super) async fn mount(&self) -> Result<()> {
        let (root, mounts) = (self.bundle.join("rootfs"), self.rootfs.clone());
        // A helper may be started, whose end is that thread's to wait for.
        let _off = self.calls.reaper().hands_off();
        let mounted = tokio::task::spawn_blocking(move || rootfs::mount_all(&root, &mounts)).await;
        mounted.map_err(|_panic| Error::Lost("mounting"))?
    }

    /// Unmounts what the shim mounted; what the engine mounted is the engine's.
    pub(super) async fn unmount(&self) -> Result<()> {
        if self.rootfs.is_empty() {
            return Ok(());
        }
        let root = self.bundle.join("rootfs");
        let unmounted = tokio::task::spawn_blocking(move || rootfs::unmount(&root)).await;
        unmounted.map_err(|_panic| Error::Lost("unmounting"))?
    }
}
