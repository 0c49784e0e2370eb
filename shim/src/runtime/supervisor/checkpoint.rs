//! A running container into a checkpoint, and a container from one. runc calls criu for both.

use std::sync::Arc;

use sys::sync::lock;

use super::Supervisor;
use super::cell::{Cell, Holding};
use crate::error::{Error, Result};
use crate::task::{Checkpoint, ContainerId, Pid, Step, Target};

impl Supervisor {
    /// Writes a running or paused container to a checkpoint.
    ///
    /// # Errors
    /// It does not run, has a share of a card, or runc's own words.
    pub async fn checkpoint(&self, id: &ContainerId, how: &Checkpoint) -> Result<()> {
        let cell = self.cell(id)?;
        if !matches!(lock(&cell.live).share, Holding::Nothing) {
            return Err(Error::NoCheckpoint(id.clone()));
        }
        cell.apply(Step::BeginCheckpoint)?;
        let done = cell.calls.checkpoint(how).await;
        // An init that ends with its checkpoint may have been reaped already.
        cell.apply_if_alive(Step::CheckpointEnded);
        done
    }

    /// Start of a container from a checkpoint: its init runs as soon as it is there.
    pub(super) async fn restore(&self, cell: &Arc<Cell>) -> Result<Pid> {
        let request = cell.stdio(&Target::Init)?;
        let window = self.reaper.window();
        let launched = cell.launch(&Target::Init, &request, &[], &window).await;
        let (pid, copying) = match launched {
            Ok(launched) => launched,
            Err(error) => {
                cell.forget_in_runc().await;
                return Err(error);
            }
        };
        cell.attach(&Target::Init, copying);
        cell.attach_cgroup(pid);
        cell.apply(Step::Started(Target::Init, pid))?;
        let watched = Arc::clone(cell);
        window.claim(pid, move |exit| watched.exited(Target::Init, exit));
        Ok(pid)
    }
}

impl Cell {
    /// After a call of runc that has failed: removes whatever it left.
    pub(super) async fn forget_in_runc(&self) {
        if self.calls.runc().state_dir(&self.id).exists()
            && let Err(error) = self
                .calls
                .simple("delete", &["--force", self.id.as_str()])
                .await
        {
            tracing::warn!(container = %self.id, %error, "cannot delete what runc left");
        }
    }
}
