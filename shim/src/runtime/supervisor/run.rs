//! Start of init, and execs: added, started.

use std::sync::Arc;

use spec::strict_json::{self, Document};
use sys::sync::lock;

use super::Supervisor;
use super::cell::{Cell, Holding, ProcessStreams};
use super::create::kill_unheld;
use crate::error::{Error, Result};
use crate::runtime::gpu::{self, Running, StartWatch, Started};
use crate::task::{ContainerId, Denied, Exec, ExecId, Pid, Step, Target, Terminal};

impl Supervisor {
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
            cell.apply_if_alive(Step::StartFailed(target));
        }
        started
    }

    async fn start_init(&self, cell: &Arc<Cell>) -> Result<Pid> {
        if lock(&cell.state).to_be_restored() {
            return self.restore(cell).await;
        }
        let pid = lock(&cell.state).signalled(&Target::Init)?;
        let watch = self.watch_start(cell, pid).await?;
        let started = cell.calls.simple("start", &[cell.id.as_str()]).await;
        if let Some(watch) = watch {
            let how = match &started {
                Ok(_) => Started::Yes,
                Err(_) => Started::No,
            };
            gpu::off_thread(&self.reaper, move || watch(how)).await??;
        }
        started?;
        cell.apply(Step::Started(Target::Init, pid))?;
        Ok(pid)
    }

    /// A container with a share of a card that could not be held before is followed to its program.
    async fn watch_start(&self, cell: &Cell, init: Pid) -> Result<Option<StartWatch>> {
        let Some(running) = cell.verified()? else {
            return Ok(None);
        };
        Ok(gpu::off_thread(&self.reaper, move || running.watch_start(init)).await??)
    }

    /// A process of a container with a share of a card is looked at once runc has started it.
    async fn verify_exec(&self, cell: &Cell, process: Pid) -> Result<()> {
        let Some(running) = cell.verified()? else {
            return Ok(());
        };
        Ok(gpu::off_thread(&self.reaper, move || running.verify_exec(process)).await??)
    }

    /// What makes the calls of a container with a share of a card gets the CPU time that the container has now.
    pub(super) async fn follow(&self, cell: &Cell) -> Result<()> {
        let Some(running) = lock(&cell.live).share.running() else {
            return Ok(());
        };
        Ok(gpu::off_thread(&self.reaper, move || running.follow()).await??)
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
        let (pid, copying) = cell
            .launch(&target, &request, &process_json, &window)
            .await?;
        if let Err(error) = self.verify_exec(cell, pid).await {
            kill_unheld(cell, &window, pid);
            return Err(error);
        }
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
        let what = "the exec's process";
        let mut process = strict_json::parse(Document::Process, &request.process_json)
            .map_err(|source| Error::RequestJson { what, source })?;
        let mut edited = agree_on_terminal(&mut process, request.stdio.terminal);
        let running = lock(&cell.live).share.running();
        if let Some(running) = running {
            let edit = move || running.edit_exec(&mut process).map(|()| process);
            process = gpu::off_thread(&self.reaper, edit).await??;
            edited = true;
        }
        if edited {
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
}

impl Cell {
    /// The share of a container that may be started; `None`: it has none.
    fn verified(&self) -> Result<Option<Arc<dyn Running>>> {
        match &lock(&self.live).share {
            Holding::Nothing => Ok(None),
            Holding::Running(running) => Ok(Some(Arc::clone(running))),
            Holding::Prepared(_) | Holding::Ended(_) => Err(Error::Unverified(self.id.clone())),
        }
    }
}

/// What the engine asked of the streams holds, as with containerd's own shim, whatever the process says: runc refuses a process
/// and a console socket that disagree. Whether anything had to be changed.
fn agree_on_terminal(process: &mut serde_json::Value, requested: Terminal) -> bool {
    let requested = requested == Terminal::Pty;
    let Some(process) = process.as_object_mut() else {
        return false;
    };
    let reply = process.get("terminal").and_then(serde_json::Value::as_bool);
    if reply.unwrap_or_default() == requested {
        return false;
    }
    process.insert("terminal".to_owned(), requested.into());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exec_has_a_terminal_when_its_streams_are_one() {
        for (reply, requested, expected) in [
            (r#"{"args":["a"]}"#, Terminal::Pipes, None),
            (r#"{"terminal":true}"#, Terminal::Pty, None),
            (r#"{"terminal":false}"#, Terminal::Pty, Some(true)),
            (r#"{"args":["a"]}"#, Terminal::Pty, Some(true)),
            (r#"{"terminal":true}"#, Terminal::Pipes, Some(false)),
        ] {
            let mut process = serde_json::from_str(reply).unwrap();
            let before: serde_json::Value = serde_json::from_str(reply).unwrap();
            let edited = agree_on_terminal(&mut process, requested);
            assert_eq!(edited, expected.is_some(), "{reply} {requested:?}");
            match expected {
                Some(expected) => assert_eq!(process["terminal"], expected, "{reply}"),
                None => assert_eq!(process, before),
            }
        }
    }
}
