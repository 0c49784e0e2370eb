//! Where a process is while it holds the state lock, for which all starts of the host wait.
//!
//! CRI-O starts `cgpu-runtime` in the pod's group, with `conmon_cgroup = "pod"` and wherever it has no systemd
//! (`cgroup_manager = "cgroupfs"`). The pod's author chooses that group's quota and weight. At the end of a quota the kernel stops all who are
//! in the group for the rest of a period of 100 ms, and on a busy host one with the least weight gets no processor: with the lock, for
//! all others.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use host_config::{Config, chain};
use nix::unistd::getppid;
use sys::proc;

use super::tree::Tree;
use super::{OwnGroup, failed};
use crate::error::Error;

/// The group, beside those of vGPUs. Their names have a `+`: no sweep takes it for one.
const NAME: &str = "starts";

/// A process that is out of its group's limits, if they would hold it up; dropped, it goes back. It starts no program meanwhile.
#[derive(Debug)]
pub(crate) struct Outside {
    way_back: Vec<File>,
}

impl Outside {
    /// Leaves this process's group where that has a quota, or less than the default weight.
    pub(crate) fn of_limits(config: &Config) -> Self {
        let group = OwnGroup {
            tree: Tree::at(&config.broker.cgroup_root),
            name: NAME.to_owned(),
        };
        let mut outside = Self {
            way_back: Vec::new(),
        };
        let own = group.group_of("self", "cpu");
        if own.is_some_and(|own| group.is_limited(&own))
            && can_leave()
            && let Err(error) = outside.enter(&group)
        {
            tracing::warn!(error = %chain(&error), "the state lock is held within the limits of this process's control group");
        }
        outside
    }

    fn enter(&mut self, group: &OwnGroup) -> Result<(), Error> {
        group.make()?;
        let open = |folder: &Path| {
            let path = folder.join(group.tree.entrance());
            let opened = OpenOptions::new().write(true).open(&path);
            opened.map_err(failed(&path))
        };
        for controller in group.tree.controllers() {
            let Some(own) = group.group_of("self", controller) else {
                continue;
            };
            let way_back = open(&own)?;
            let folder = group.folder(controller);
            enter(&open(&folder)?).map_err(failed(&folder))?;
            self.way_back.push(way_back);
        }
        Ok(())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        for entrance in &self.way_back {
            if let Err(error) = enter(entrance) {
                tracing::warn!(%error, "cannot go back into the control group that was left for the state lock");
            }
        }
    }
}

/// By its opened `cgroup.procs` or `tasks`.
fn enter(mut entrance: &File) -> std::io::Result<()> {
    entrance.write_all(b"0")
}

/// Another thread might do the same at this moment. A parent that stays keeps the group: systemd removes a scope when its last process
/// leaves it.
fn can_leave() -> bool {
    let has_one_thread =
        matches!(proc::status_field("self", "Threads"), Ok(Some(count)) if count == "1");
    let groups = (proc::groups_of("self"), proc::groups_of(getppid()));
    has_one_thread && matches!(groups, (Ok(own), Ok(parents)) if own == parents)
}
