//! All containers of this shim: takes a request, asks the state machine, calls runc, applies what came of it.
//!
//! Locks: `containers` (the map) and each cell's `state` and `live`. Each is held for a few instructions, never over an
//! `.await` and never two at once, so a slow runc of one container delays no other. What must not run twice at a
//! time is refused by the state machine, which knows the steps under way.

mod cell;
mod checkpoint;
mod create;
mod delete;
mod launch;
mod run;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustix::termios::Winsize;
use serde_json::Value;
use sys::sync::lock;
use tokio::sync::mpsc;

use self::cell::{Cell, Input, Signalling};
use super::cgroup::Stats;
use super::gpu::{self, Gpu, Running};
use super::reaper::Reaper;
use crate::error::{Error, Result};
use crate::task::{
    ContainerId, Denied, Event, ExecId, Exit, Pid, Resources, StdioRequest, Step, Target, View,
};

/// The containers of one shim process.
pub struct Supervisor {
    namespace: String,
    reaper: Reaper,
    gpu: Arc<dyn Gpu>,
    events: mpsc::UnboundedSender<Event>,
    containers: Mutex<HashMap<ContainerId, Arc<Cell>>>,
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
        cell.exec_start_ended(target).await;
        let pid = lock(&cell.state).signalled(target)?;
        if *target != Target::Init {
            return kill_process(target, pid, signal);
        }
        let _under_way = Signalling::begin(&cell);
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

    /// Freezes all processes.
    ///
    /// # Errors
    /// Not running, or runc's own words.
    pub async fn pause(&self, id: &ContainerId) -> Result<()> {
        let steps = [Step::BeginPause, Step::Paused, Step::PauseFailed];
        self.set_pace(id, "pause", steps).await
    }

    /// Thaws them.
    ///
    /// # Errors
    /// Not paused, or runc's own words.
    pub async fn resume(&self, id: &ContainerId) -> Result<()> {
        let steps = [Step::BeginResume, Step::Resumed, Step::ResumeFailed];
        self.set_pace(id, "resume", steps).await
    }

    async fn set_pace(
        &self,
        id: &ContainerId,
        command: &'static str,
        [begin, done, failed]: [Step; 3],
    ) -> Result<()> {
        let cell = self.cell(id)?;
        cell.apply(begin)?;
        let result = cell.calls.simple(command, &[id.as_str()]).await;
        cell.apply_if_alive(if result.is_ok() { done } else { failed });
        result
    }

    /// Sets new limits, of CPU time also on what makes the container's calls. A container with a share keeps its rules of devices.
    ///
    /// # Errors
    /// runc's own words; resources that are no JSON; a control group that cannot be changed.
    pub async fn update(&self, id: &ContainerId, resources: &Resources) -> Result<()> {
        let cell = self.cell(id)?;
        let running = lock(&cell.live).share.running();
        let mut resources = resources.0.clone();
        if let Some(running) = running {
            let edit = move || edited(&resources, running.as_ref());
            let edited = gpu::off_thread(&self.reaper, edit).await?;
            resources = edited.map_err(|source| Error::RequestJson {
                what: "resources",
                source,
            })?;
        }
        cell.calls.update(&resources).await?;
        self.follow(&cell).await
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
    /// It has none: it is to be restored and has not been started.
    pub fn stats(&self, id: &ContainerId) -> Result<Stats> {
        let cell = self.cell(id)?;
        let cgroup = lock(&cell.live).cgroup.clone();
        let cgroup = cgroup.ok_or_else(|| Error::NoCgroup(id.clone()))?;
        Ok(cgroup.stats())
    }

    /// Sets the size of a terminal. Before the start it holds for the start; a process without a terminal has none to set, as
    /// with containerd's own shim.
    ///
    /// # Errors
    /// There is no such process; the kernel's own.
    pub fn resize(&self, id: &ContainerId, target: &Target, columns: u16, rows: u16) -> Result<()> {
        let cell = self.cell(id)?;
        lock(&cell.state).view(target)?;
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let copying = lock(&cell.live)
            .streams
            .get_mut(target)
            .and_then(|streams| {
                streams.size = Some(size);
                streams.copying.clone()
            });
        copying
            .map_or(Ok(()), |copying| copying.resize(size))
            .map_err(crate::error::system("set the size of a terminal"))
    }

    /// Closes a process's input, once the engine's own end is closed. Before the start it holds for the start.
    ///
    /// # Errors
    /// There is no such process.
    pub fn close_stdin(&self, id: &ContainerId, target: &Target) -> Result<()> {
        let cell = self.cell(id)?;
        lock(&cell.state).view(target)?;
        let copying = lock(&cell.live)
            .streams
            .get_mut(target)
            .and_then(|streams| {
                streams.input = Input::Closed;
                streams.copying.clone()
            });
        if let Some(copying) = copying {
            copying.close_stdin();
        }
        Ok(())
    }
}

/// SIGRTMAX: programs are stopped by real-time signals too, as systemd is.
const LAST_SIGNAL: i32 = 64;

/// Who gets a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillScope {
    /// One process.
    One,
    /// Every process of the container.
    All,
}

fn kill_process(target: &Target, pid: Pid, signal: u32) -> Result<()> {
    let number = i32::try_from(signal)
        .ok()
        .filter(|number| (0..=LAST_SIGNAL).contains(number));
    let number = number.ok_or_else(|| Error::Invalid {
        key: "signal",
        value: signal.to_string(),
        allowed: "0 to 64",
    })?;
    let sent =
        sys::pidfd::PidFd::open(pid.as_nix().as_raw()).and_then(|process| process.signal(number));
    match sent {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {
            Err(Denied::AlreadyExited(target.clone()).into())
        }
        Err(error) => Err(crate::error::system("send a signal")(error)),
    }
}

fn edited(resources: &[u8], running: &dyn Running) -> serde_json::Result<Vec<u8>> {
    let mut resources: Value = serde_json::from_slice(resources)?;
    running.edit_update(&mut resources);
    serde_json::to_vec(&resources)
}
