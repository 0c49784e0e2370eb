//! Delete of an exec or of the container.

use std::sync::Arc;

use sys::sync::lock;

use super::Supervisor;
use super::cell::{Cell, Holding};
use crate::error::GpuResult;
use crate::error::{Error, Result};
use crate::runtime::gpu;
use crate::task::{ContainerId, Event, Exit, Phase, Pid, Step, Target, View};

impl Supervisor {
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
        cell.exec_start_ended(target).await;
        let before = lock(&cell.state).view(target)?;
        if let Phase::Stopped(_) = before.phase {
            // The exit event comes before the delete event.
            cell.settled(target).await;
            if let Some(copying) = cell.copying(target) {
                copying.finish().await;
            }
        }
        // Again, because another may have deleted it and taken its name meanwhile.
        let View { pid, phase } = lock(&cell.state).view(target)?;
        cell.apply(Step::BeginDelete(target.clone()))?;
        match target {
            Target::Init => {
                let init = self.delete_container(&cell, phase).await?;
                Ok(init.unzip())
            }
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

    /// Returns what init was and how it ended, if there was one.
    async fn delete_container(
        &self,
        cell: &Arc<Cell>,
        before: Phase,
    ) -> Result<Option<(Pid, Exit)>> {
        cell.signals_are_answered().await;
        self.teardown(cell).await;
        let deleted = match cell.calls.runc().state_dir(&cell.id).exists() {
            true => cell.calls.simple("delete", &[cell.id.as_str()]).await,
            false => Ok(()),
        };
        if let Err(error) = deleted {
            cell.apply(Step::DeleteFailed)?;
            return Err(error);
        }
        let had_init = lock(&cell.state).view(&Target::Init)?.pid.is_some();
        if had_init {
            // runc has killed the init of a container that was never started.
            cell.settled(&Target::Init).await;
            if let (Phase::Created, Some(copying)) = (before, cell.copying(&Target::Init)) {
                copying.finish().await;
            }
        }
        let unmounted = cell.unmount().await;
        let released = self.give_back(cell).await;
        if let Err(error) = unmounted.and(released) {
            cell.apply(Step::DeleteFailed)?;
            return Err(error);
        }
        cell.apply(Step::Deleted)?;
        drop(std::mem::take(&mut *lock(&cell.live)));
        lock(&self.containers).remove(&cell.id);
        let View { pid, phase } = lock(&cell.state).view(&Target::Init)?;
        let init = match (pid, phase) {
            (None, _) => None,
            (Some(pid), Phase::Stopped(exit)) => Some((pid, exit)),
            (Some(_), _) => return Err(Error::Lost("the container's init")),
        };
        cell.send(Event::Delete {
            id: cell.id.clone(),
            init,
        });
        Ok(init)
    }

    /// While the container's control group is still there. The container goes whatever comes of it; what is not undone is a
    /// reservation that the driver keeps.
    pub(super) async fn teardown(&self, cell: &Cell) {
        // A container that runc then does not delete is still held.
        let running = lock(&cell.live).share.running();
        let done = match running {
            Some(running) => gpu::off_thread(&self.reaper, move || running.teardown()).await,
            None => self.teardown_ended(cell).await,
        };
        if let Err(error) = done.and_then(|done| Ok(done?)) {
            tracing::warn!(container = %cell.id, %error, "cannot undo what holds the container");
        }
    }

    /// [`Supervisor::teardown`] of a container that never ran, or whose share could not be released.
    async fn teardown_ended(&self, cell: &Cell) -> Result<GpuResult<()>> {
        let Some(ended) = std::mem::take(&mut lock(&cell.live).share).ended() else {
            return Ok(Ok(()));
        };
        let torn_down = move || {
            let done = ended.teardown();
            (ended, done)
        };
        let (ended, done) = gpu::off_thread(&self.reaper, torn_down).await?;
        lock(&cell.live).share = Holding::Ended(ended);
        Ok(done)
    }

    /// Gives back what the container has of a card. A release that fails is owed: the next Delete tries it again.
    pub(super) async fn give_back(&self, cell: &Cell) -> Result<()> {
        let Some(mut ended) = std::mem::take(&mut lock(&cell.live).share).ended() else {
            return Ok(());
        };
        let released = move || {
            let done = ended.release();
            (ended, done)
        };
        let (ended, done) = gpu::off_thread(&self.reaper, released).await?;
        if done.is_err() {
            lock(&cell.live).share = Holding::Ended(ended);
        }
        Ok(done?)
    }
}
