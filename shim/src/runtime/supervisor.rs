//! All containers of this shim: takes a request, asks the state machine, calls runc, applies what came of it.
//!
//! Locks: `containers` (the map) and each cell's `state` and `live`. Each is held for a few instructions, never over an
//! `.await` and never two at once, so a slow runc of one container delays no other. What must not run twice at a
//! time is refused by the state machine, which knows the steps under way.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::cgroup::{Cgroup, Stats};
use super::console::Console;
use super::gpu::{self, Gpu, Share};
use super::logger::Whose;
use super::reaper::Reaper;
use super::runc::{Calls, Runc, Streams};
use super::spec::{PidNamespace, Spec};
use super::stdio::{Copying, Prepared};
use super::{oom, rootfs};
use crate::error::{Error, Result};
use crate::task::{
    Container, ContainerId, Create, Denied, Effect, Event, Exec, ExecId, Exit, Happened, Mount,
    Phase, Pid, Resources, RuncOptions, StdioRequest, Step, Target, Terminal, View,
};

/// How long Delete waits for the end of an init that runc has killed.
const EXIT_WAIT: Duration = Duration::from_secs(10);

/// How long a terminal that runc has sent may take to arrive.
const CONSOLE_WAIT: Duration = Duration::from_secs(5);

const KILL: u32 = 9;

/// The containers of one shim process.
pub struct Supervisor {
    namespace: String,
    reaper: Reaper,
    gpu: Arc<dyn Gpu>,
    events: mpsc::UnboundedSender<Event>,
    containers: Mutex<HashMap<ContainerId, Arc<Cell>>>,
}

/// One container.
struct Cell {
    namespace: String,
    id: ContainerId,
    bundle: PathBuf,
    rootfs: Vec<Mount>,
    options: RuncOptions,
    pid_namespace: PidNamespace,
    calls: Calls,
    state: Mutex<Container>,
    live: Mutex<Live>,
    events: mpsc::UnboundedSender<Event>,
}

/// What a container holds that has to be given back.
#[derive(Default)]
struct Live {
    streams: BTreeMap<Target, ProcessStreams>,
    cgroup: Option<Cgroup>,
    oom_watch: Option<oom::Watch>,
    share: Option<Share>,
}

struct ProcessStreams {
    request: StdioRequest,
    process_json: Vec<u8>,
    copying: Option<Arc<Copying>>,
    exit: watch::Sender<Option<Exit>>,
}

impl ProcessStreams {
    fn new(request: StdioRequest, process_json: Vec<u8>) -> Self {
        Self {
            request,
            process_json,
            copying: None,
            exit: watch::channel(None).0,
        }
    }
}

/// What State answers.
#[derive(Debug)]
pub struct Process {
    /// The container's bundle.
    pub bundle: PathBuf,
    /// Its streams.
    pub stdio: StdioRequest,
    /// Where it stands.
    pub view: View,
}

/// Every change under these locks is complete in itself, so poison is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Supervisor {
    /// No containers yet.
    #[must_use]
    pub fn new(
        namespace: String,
        reaper: Reaper,
        gpu: Arc<dyn Gpu>,
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        Self {
            namespace,
            reaper,
            gpu,
            events,
            containers: Mutex::default(),
        }
    }

    /// Whether the shim may end.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.containers).is_empty()
    }

    fn cell(&self, id: &ContainerId) -> Result<Arc<Cell>> {
        lock(&self.containers)
            .get(id)
            .cloned()
            .ok_or_else(|| Error::NoContainer(id.clone()))
    }

    /// Creates a container; its init waits to be started.
    ///
    /// # Errors
    /// Whatever step fails; the ones before it are undone.
    pub async fn create(&self, request: Create) -> Result<Pid> {
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
            pid_namespace: spec.pid_namespace(),
            calls,
            state: Mutex::new(Container::new()),
            live: Mutex::new(Live {
                streams: BTreeMap::from([(Target::Init, init)]),
                ..Live::default()
            }),
            events: self.events.clone(),
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

    async fn create_in(&self, cell: &Arc<Cell>) -> Result<Pid> {
        cell.calls.runc().save(&cell.bundle)?;
        let share = {
            let (namespace, id, bundle) =
                (self.namespace.clone(), cell.id.clone(), cell.bundle.clone());
            gpu::off_thread(&self.gpu, &self.reaper, move |gpu| {
                gpu.create(&namespace, &id, &bundle)
            })
            .await?
        };
        let shared = share.is_some();
        lock(&cell.live).share = share;
        let created = self.create_runc(cell).await;
        if created.is_err() {
            self.undo_create(cell, shared).await;
        }
        created
    }

    async fn create_runc(&self, cell: &Arc<Cell>) -> Result<Pid> {
        rootfs::mount_all(&cell.bundle.join("rootfs"), &cell.rootfs)?;
        let request = cell.stdio(&Target::Init)?;
        let window = self.reaper.window();
        let (pid, copying) = cell.launch(&Target::Init, &request, &[]).await?;
        cell.attach(&Target::Init, copying);
        cell.attach_cgroup(pid);
        cell.apply(Step::Created(pid))?;
        let watched = Arc::clone(cell);
        window.claim(pid, move |exit| watched.exited(Target::Init, exit));
        Ok(pid)
    }

    /// A create that failed leaves nothing: no runc state, mount, stream or share.
    async fn undo_create(&self, cell: &Arc<Cell>, shared: bool) {
        if cell.calls.runc().state_dir(&cell.id).exists()
            && let Err(error) = cell
                .calls
                .simple("delete", &["--force", cell.id.as_str()])
                .await
        {
            tracing::warn!(container = %cell.id, %error, "cannot delete what runc left");
        }
        if let Err(error) = cell.unmount() {
            tracing::warn!(container = %cell.id, %error, "cannot unmount");
        }
        drop(std::mem::take(&mut *lock(&cell.live)));
        if shared && let Err(error) = self.release(&cell.id).await {
            tracing::error!(container = %cell.id, %error, "cannot give back the share of a card");
        }
    }

    async fn release(&self, id: &ContainerId) -> Result<()> {
        let (namespace, id) = (self.namespace.clone(), id.clone());
        gpu::off_thread(&self.gpu, &self.reaper, move |gpu| {
            gpu.release(&namespace, &id)
        })
        .await
    }

    /// Starts init or an exec.
    ///
    /// # Errors
    /// The state does not allow it, or runc's own words.
    pub async fn start(&self, id: &ContainerId, target: Target) -> Result<Pid> {
        let cell = self.cell(id)?;
        cell.apply(Step::BeginStart(target.clone()))?;
        let started = match &target {
            Target::Init => self.start_init(&cell).await,
            Target::Exec(exec) => self.start_exec(&cell, exec).await,
        };
        if started.is_err() {
            cell.apply(Step::StartFailed(target))?;
        }
        started
    }

    async fn start_init(&self, cell: &Arc<Cell>) -> Result<Pid> {
        let pid = lock(&cell.state).signalled(&Target::Init)?;
        cell.calls.simple("start", &[cell.id.as_str()]).await?;
        cell.apply(Step::Started(Target::Init, pid))?;
        Ok(pid)
    }

    async fn start_exec(&self, cell: &Arc<Cell>, exec: &ExecId) -> Result<Pid> {
        let target = Target::Exec(exec.clone());
        let (request, process_json) = {
            let live = lock(&cell.live);
            let streams = live
                .streams
                .get(&target)
                .ok_or_else(|| Denied::NoExec(exec.clone()))?;
            (streams.request.clone(), streams.process_json.clone())
        };
        let window = self.reaper.window();
        let (pid, copying) = cell.launch(&target, &request, &process_json).await?;
        cell.attach(&target, copying);
        cell.apply(Step::Started(target.clone(), pid))?;
        let watched = Arc::clone(cell);
        window.claim(pid, move |exit| watched.exited(target, exit));
        Ok(pid)
    }

    /// Adds an exec, to be started later.
    ///
    /// # Errors
    /// The state does not allow it, the process is not JSON, or the share of a card is gone.
    pub async fn exec(&self, id: &ContainerId, mut request: Exec) -> Result<()> {
        let cell = self.cell(id)?;
        if lock(&cell.live).share.is_some() {
            let what = "the exec's process";
            let mut process: serde_json::Value = serde_json::from_slice(&request.process_json)
                .map_err(|source| Error::RequestJson { what, source })?;
            let (namespace, id) = (self.namespace.clone(), id.clone());
            process = gpu::off_thread(&self.gpu, &self.reaper, move |gpu| {
                gpu.edit_exec(&namespace, &id, &mut process)?;
                Ok(process)
            })
            .await?;
            request.process_json = serde_json::to_vec(&process)
                .map_err(|source| Error::RequestJson { what, source })?;
        }
        let target = Target::Exec(request.id.clone());
        let effects = lock(&cell.state).apply(Step::AddExec(request.id))?;
        let streams = ProcessStreams::new(request.stdio, request.process_json);
        lock(&cell.live).streams.insert(target, streams);
        cell.perform(effects);
        Ok(())
    }

    /// Waits for a process to end; answers when its output is delivered and its exit event sent.
    ///
    /// # Errors
    /// There is no such process, or it was deleted without having run.
    pub async fn wait(&self, id: &ContainerId, target: &Target) -> Result<Exit> {
        let cell = self.cell(id)?;
        let mut exit = cell.exit_of(target)?;
        let ended = exit
            .wait_for(Option::is_some)
            .await
            .map_err(|_deleted| Denied::NotStarted(target.clone()))?;
        (*ended).ok_or(Error::Lost("a process"))
    }

    /// What a process is and where it stands.
    ///
    /// # Errors
    /// There is no such process.
    pub fn state(&self, id: &ContainerId, target: &Target) -> Result<Process> {
        let cell = self.cell(id)?;
        let view = lock(&cell.state).view(target)?;
        Ok(Process {
            bundle: cell.bundle.clone(),
            stdio: cell.stdio(target)?,
            view,
        })
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The process has not started, has ended, or runc's own words.
    pub async fn kill(
        &self,
        id: &ContainerId,
        target: &Target,
        signal: u32,
        all: KillScope,
    ) -> Result<()> {
        let cell = self.cell(id)?;
        let pid = lock(&cell.state).signalled(target)?;
        if *target != Target::Init {
            return kill_process(target, pid, signal);
        }
        let number = signal.to_string();
        let sent = match all {
            KillScope::One => cell.calls.simple("kill", &[id.as_str(), &number]).await,
            KillScope::All => {
                cell.calls
                    .simple("kill", &["--all", id.as_str(), &number])
                    .await
            }
        };
        if sent.is_err() {
            // runc refuses to signal what has just ended; the reaper knows better than its words.
            self.reaper.reap();
            lock(&cell.state).signalled(target)?;
        }
        sent
    }

    /// Deletes an exec, or the container.
    ///
    /// # Errors
    /// It is alive, or runc's own words.
    pub async fn delete(
        &self,
        id: &ContainerId,
        target: &Target,
    ) -> Result<(Option<Pid>, Option<Exit>)> {
        let cell = self.cell(id)?;
        let View { pid, phase } = lock(&cell.state).view(target)?;
        if let Phase::Stopped(_) = phase {
            // The exit event comes before the delete event.
            cell.settled(target).await;
        }
        cell.apply(Step::BeginDelete(target.clone()))?;
        match target {
            Target::Init => self
                .delete_container(&cell)
                .await
                .map(|(pid, exit)| (Some(pid), Some(exit))),
            Target::Exec(_) => {
                lock(&cell.live).streams.remove(target);
                let exit = if let Phase::Stopped(exit) = phase {
                    Some(exit)
                } else {
                    None
                };
                Ok((pid, exit))
            }
        }
    }

    async fn delete_container(&self, cell: &Arc<Cell>) -> Result<(Pid, Exit)> {
        let deleted = match cell.calls.runc().state_dir(&cell.id).exists() {
            true => cell.calls.simple("delete", &[cell.id.as_str()]).await,
            false => Ok(()),
        };
        if let Err(error) = deleted {
            cell.apply(Step::DeleteFailed)?;
            return Err(error);
        }
        // runc has killed the init of a container that was never started.
        cell.settled(&Target::Init).await;
        let unmounted = cell.unmount();
        let released = if lock(&cell.live).share.take().is_some() {
            self.release(&cell.id).await
        } else {
            Ok(())
        };
        if let Err(error) = unmounted.and(released) {
            cell.apply(Step::DeleteFailed)?;
            return Err(error);
        }
        cell.apply(Step::Deleted)?;
        drop(std::mem::take(&mut *lock(&cell.live)));
        lock(&self.containers).remove(&cell.id);
        let View { pid, phase } = lock(&cell.state).view(&Target::Init)?;
        let (Some(pid), Phase::Stopped(exit)) = (pid, phase) else {
            return Err(Error::Lost("the container's init"));
        };
        cell.send(Event::Delete {
            id: cell.id.clone(),
            pid,
            exit,
        });
        Ok((pid, exit))
    }

    /// Freezes all processes.
    ///
    /// # Errors
    /// Not running, or runc's own words.
    pub async fn pause(&self, id: &ContainerId) -> Result<()> {
        let cell = self.cell(id)?;
        cell.apply(Step::BeginPause)?;
        let done = cell.calls.simple("pause", &[id.as_str()]).await;
        cell.apply_if_alive(if done.is_ok() {
            Step::Paused
        } else {
            Step::PauseFailed
        });
        done
    }

    /// Thaws them.
    ///
    /// # Errors
    /// Not paused, or runc's own words.
    pub async fn resume(&self, id: &ContainerId) -> Result<()> {
        let cell = self.cell(id)?;
        cell.apply(Step::BeginResume)?;
        let done = cell.calls.simple("resume", &[id.as_str()]).await;
        cell.apply_if_alive(if done.is_ok() {
            Step::Resumed
        } else {
            Step::ResumeFailed
        });
        done
    }

    /// Sets new limits.
    ///
    /// # Errors
    /// runc's own words.
    pub async fn update(&self, id: &ContainerId, resources: &Resources) -> Result<()> {
        self.cell(id)?.calls.update(&resources.0).await
    }

    /// The container's processes, and the exec that each began as, if the shim knows.
    ///
    /// # Errors
    /// runc's own words.
    pub async fn pids(&self, id: &ContainerId) -> Result<Vec<(Pid, Option<ExecId>)>> {
        let cell = self.cell(id)?;
        let pids = cell.calls.ps().await?;
        let execs = lock(&cell.state).running_execs();
        let named = |pid: &Pid| {
            execs
                .iter()
                .find(|(_, exec_pid)| exec_pid == pid)
                .map(|(id, _)| id.clone())
        };
        Ok(pids.into_iter().map(|pid| (pid, named(&pid))).collect())
    }

    /// What the container's control group counts.
    ///
    /// # Errors
    /// The control group is gone.
    pub fn stats(&self, id: &ContainerId) -> Result<Stats> {
        let cell = self.cell(id)?;
        let cgroup = lock(&cell.live).cgroup.clone();
        let cgroup = cgroup
            .filter(Cgroup::exists)
            .ok_or_else(|| Error::NoCgroup(id.clone()))?;
        Ok(cgroup.stats())
    }

    /// Sets the size of a terminal.
    ///
    /// # Errors
    /// The process has no terminal.
    pub fn resize(&self, id: &ContainerId, target: &Target, columns: u16, rows: u16) -> Result<()> {
        let cell = self.cell(id)?;
        lock(&cell.state).view(target)?;
        let resized = cell
            .copying(target)
            .and_then(|copying| copying.resize(columns, rows));
        resized
            .ok_or_else(|| Error::NoTerminal(target.to_string()))?
            .map_err(crate::error::system("set the size of a terminal"))
    }

    /// Closes a process's input, once the engine's own end is closed.
    ///
    /// # Errors
    /// There is no such process.
    pub fn close_stdin(&self, id: &ContainerId, target: &Target) -> Result<()> {
        let cell = self.cell(id)?;
        lock(&cell.state).view(target)?;
        if let Some(copying) = cell.copying(target) {
            copying.close_stdin();
        }
        Ok(())
    }
}

/// Who gets a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillScope {
    /// One process.
    One,
    /// Every process of the container.
    All,
}

fn kill_process(target: &Target, pid: Pid, signal: u32) -> Result<()> {
    let known = i32::try_from(signal)
        .ok()
        .and_then(|number| nix::sys::signal::Signal::try_from(number).ok());
    let Some(known) = known else {
        return Err(Error::Invalid {
            key: "signal",
            value: signal.to_string(),
            allowed: "1 to 31",
        });
    };
    match nix::sys::signal::kill(pid.as_nix(), known) {
        Ok(()) => Ok(()),
        Err(nix::errno::Errno::ESRCH) => Err(Denied::AlreadyExited(target.clone()).into()),
        Err(errno) => Err(crate::error::system("send a signal")(errno)),
    }
}

impl Cell {
    /// Takes a step and does what follows from it.
    fn apply(self: &Arc<Self>, step: Step) -> Result<()> {
        let effects = lock(&self.state).apply(step)?;
        self.perform(effects);
        Ok(())
    }

    /// For the end of a step that init's own end may have overtaken.
    fn apply_if_alive(self: &Arc<Self>, step: Step) {
        if let Err(denied) = self.apply(step) {
            tracing::debug!(container = %self.id, %denied, "overtaken");
        }
    }

    fn send(&self, event: Event) {
        // The queue's reader lives as long as the process.
        drop(self.events.send(event));
    }

    fn perform(self: &Arc<Self>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Publish(happened) => self.send(self.event(happened)),
                Effect::Settle(target, pid, exit) => {
                    drop(tokio::spawn(Arc::clone(self).settle(target, pid, exit)))
                }
            }
        }
    }

    fn event(&self, happened: Happened) -> Event {
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
    fn exited(self: &Arc<Self>, target: Target, exit: Exit) {
        if let Err(denied) = self.apply(Step::Exited(target, exit)) {
            tracing::warn!(container = %self.id, %denied, "the end of a process that is not known");
        }
    }

    /// Delivers what is left of the output, then tells containerd, then those who wait.
    async fn settle(self: Arc<Self>, target: Target, pid: Pid, exit: Exit) {
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
    async fn settled(&self, target: &Target) {
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

    fn exit_of(&self, target: &Target) -> Result<watch::Receiver<Option<Exit>>> {
        lock(&self.state).view(target)?;
        let live = lock(&self.live);
        let streams = live.streams.get(target);
        streams
            .map(|streams| streams.exit.subscribe())
            .ok_or_else(|| self.missing(target))
    }

    fn stdio(&self, target: &Target) -> Result<StdioRequest> {
        let live = lock(&self.live);
        live.streams
            .get(target)
            .map(|streams| streams.request.clone())
            .ok_or_else(|| self.missing(target))
    }

    fn missing(&self, target: &Target) -> Error {
        match target {
            Target::Init => Error::NoContainer(self.id.clone()),
            Target::Exec(exec) => Denied::NoExec(exec.clone()).into(),
        }
    }

    fn copying(&self, target: &Target) -> Option<Arc<Copying>> {
        lock(&self.live).streams.get(target)?.copying.clone()
    }

    fn attach(&self, target: &Target, copying: Copying) {
        if let Some(streams) = lock(&self.live).streams.get_mut(target) {
            streams.copying = Some(Arc::new(copying));
        }
    }

    /// Has runc start a process, with pipes or with a terminal.
    async fn launch(
        &self,
        target: &Target,
        request: &StdioRequest,
        process_json: &[u8],
    ) -> Result<(Pid, Copying)> {
        let prepared = Prepared::open(
            request,
            Whose {
                namespace: &self.namespace,
                id: &self.id,
            },
        )
        .await?;
        match request.terminal {
            Terminal::Pipes => {
                let (streams, copying) = prepared.pipes(&self.options)?;
                let pid = self.call_runc(target, process_json, streams, None).await?;
                Ok((pid, copying))
            }
            Terminal::Pty => {
                let console = Console::bind(&self.bundle)?;
                let called = self.call_runc(target, process_json, Streams::null(), Some(&console));
                let received = console.receive();
                tokio::pin!(called, received);
                // runc sends the terminal before it ends; if it fails, its error is the one to tell.
                let (pid, master) = tokio::select! {
                    biased;
                    master = &mut received => (called.await?, master),
                    ended = &mut called => (ended?, within(CONSOLE_WAIT, received).await),
                };
                let master = master.inspect_err(|_| {
                    if let Err(error) = kill_process(target, pid, KILL) {
                        tracing::warn!(container = %self.id, %error, "cannot kill a process without a terminal");
                    }
                })?;
                Ok((pid, prepared.terminal(master)?))
            }
        }
    }

    async fn call_runc(
        &self,
        target: &Target,
        process_json: &[u8],
        streams: Streams,
        console: Option<&Console>,
    ) -> Result<Pid> {
        let socket = console.map(Console::path);
        match target {
            Target::Init => self.calls.create(streams, socket).await,
            Target::Exec(exec) => self.calls.exec(exec, process_json, streams, socket).await,
        }
    }

    /// Finds the control group while init is alive, and watches it for kills for want of memory.
    fn attach_cgroup(&self, pid: Pid) {
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
    fn unmount(&self) -> Result<()> {
        if self.rootfs.is_empty() {
            Ok(())
        } else {
            rootfs::unmount(&self.bundle.join("rootfs"))
        }
    }
}

async fn within(
    limit: Duration,
    received: impl Future<Output = Result<OwnedFd>>,
) -> Result<OwnedFd> {
    tokio::time::timeout(limit, received)
        .await
        .unwrap_or(Err(Error::NoConsole))
}
