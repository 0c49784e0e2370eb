//! The control group of a vGPU's own processes: supervisor, broker and executor.
//!
//! What a container causes in them is limited, and shown, as the container's own. They are not in the container's groups: there
//! they would be frozen and killed with it, starved by its limit of processes, and shown in its statistics.
//!
//! ```text
//! version 1   <root>/{memory,cpu,pids}/cgpu/<name>, and <root>/cpuacct/cgpu/<name> where that is a tree of its own;
//!             never freezer or devices
//! version 2   <root>/system.slice/cgpu.service/<name> where systemd has delegated that group, else <root>/cgpu/<name>
//! ```
//!
//! The supervisor enters before its program is executed ([`OwnGroup::admit`]); what it starts inherits the group. Memory and
//! processes are limited from the beginning. Weight and quota of CPU time are the container's own, from [`OwnGroup::follow`] on. Where
//! the container's share of a card's time is governed, the weight is between the default and ten times that.
//!
//! At the end of a quota the kernel stops all threads of the group for the rest of a period, the governor and whoever holds a lock of
//! the driver among them, and the container's neighbours would pay. So the broker reads the quota in `cpu-time.json` ([`cards::CpuTime`])
//! and has the container's calls wait before that is used up; what it leaves in one period is there in the next (`cpu.cfs_burst_us`).
//!
//! Beside these groups is one for starts that hold the state lock ([`Outside`]).

mod cpu_time;
mod outside;
mod tree;

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cards::ContainerKey;
use cards::cpu_time::UsageFile;
use host_config::{Config, chain};
use rustix::fs::XattrFlags;
use serde::{Deserialize, Serialize};
use sys::control_group;

pub(crate) use self::cpu_time::Governor;
pub(crate) use self::outside::Outside;
use self::tree::{PARENT, SERVICE, Tree, name_of, suffix_of};
use crate::error::Error;

/// What a broker needs without any object of its tenant's.
const BASE_BYTES: u64 = 16 << 20;
/// For each of the objects, mappings and the like that a container may have (`journal::limits`): some 2.7 million with four cards.
const OBJECT_BYTES: u64 = 256;
const MOST_OBJECTS: u64 = 3 << 20;
/// Both halves of the journal, which are counted with the broker that writes them.
const JOURNAL_BYTES: u64 = 512 << 20;
/// Twice the broker's own maxima: during a replacement there are two.
const MEMORY_BYTES: u64 = 2 * (BASE_BYTES + OBJECT_BYTES * MOST_OBJECTS) + JOURNAL_BYTES;
/// Threads: two brokers during a replacement, each with 256 at work and those that wait on listeners, and the executor's 1024.
const MOST_THREADS: u64 = 8192;

/// With it systemd-oomd leaves a group alone.
const OOMD_OMIT: &str = "user.oomd_omit";

/// How long processes may take to be gone once they have been signalled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Before they are killed.
    pub(crate) unharmed: Duration,
    /// In all.
    pub(crate) in_all: Duration,
}

/// Of the frontend whose container has ended.
pub(crate) const OF_ITS_FRONTEND: Patience = Patience {
    unharmed: Duration::from_millis(500),
    in_all: Duration::from_secs(2),
};
/// Of a start that takes back what another one left. What hangs in a driver is left to a later sweep.
pub(crate) const OF_A_START: Patience = Patience {
    unharmed: Duration::ZERO,
    in_all: Duration::from_millis(100),
};
/// Of a start whose own name is still another vGPU's: an engine that starts a container again expects it to start.
pub(crate) const OF_ITS_NAME: Patience = Patience {
    unharmed: Duration::ZERO,
    in_all: Duration::from_secs(10),
};
/// The lock of the node is held meanwhile: what was left is killed at once, and waited for by nobody. A later sweep finds it gone.
const SWEEP: Patience = Patience {
    unharmed: Duration::ZERO,
    in_all: Duration::ZERO,
};

/// One vGPU's group: a folder in each tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnGroup {
    tree: Tree,
    name: String,
}

/// What a vGPU's own processes use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnUsage {
    /// CPU time since the vGPU was made; absent where no tree counts it.
    pub cpu_ns: Option<u64>,
    /// Memory now.
    pub memory_bytes: Option<u64>,
    /// Processes and threads now.
    pub threads: Option<u64>,
}

impl OwnGroup {
    /// Of a container, whether it is there or not.
    pub(crate) fn of(config: &Config, key: &ContainerKey) -> Self {
        Self {
            tree: Tree::at(&config.broker.cgroup_root),
            name: name_of(&config.state_dir, key),
        }
    }

    /// Where it is, or where it would be made.
    fn folders(&self) -> Vec<PathBuf> {
        let parents = self.tree.parents().into_iter();
        let all = parents.map(|parent| parent.join(&self.name));
        match &self.tree {
            Tree::V1 { .. } => all.collect(),
            Tree::V2 { root } => {
                let there = all.clone().find(|folder| folder.is_dir());
                let parent = if root.join(SERVICE).is_dir() {
                    SERVICE
                } else {
                    PARENT
                };
                let new = root.join(parent).join(&self.name);
                vec![there.unwrap_or(new)]
            }
        }
    }

    /// Makes the group with its limits, and has the command's child enter it before it executes its program.
    ///
    /// # Errors
    /// [`Error::OwnGroup`], which names the path. Nothing is left then.
    pub(crate) fn admit(&self, command: &mut Command) -> Result<(), Error> {
        let made = self.make().and_then(|()| {
            let procs = self
                .folders()
                .into_iter()
                .map(|folder| folder.join(self.tree.entrance()));
            procs
                .map(|procs| {
                    let mut options = OpenOptions::new();
                    options.write(true).open(&procs).map_err(failed(&procs))
                })
                .collect::<Result<Vec<File>, Error>>()
        });
        match made {
            Ok(entrances) => {
                control_group::enter_before_exec(command, entrances);
                Ok(())
            }
            Err(error) => {
                for folder in self.folders() {
                    // Nobody is in it yet. One that cannot be removed is found by the next reclaim.
                    drop(fs::remove_dir(folder));
                }
                Err(error)
            }
        }
    }

    fn make(&self) -> Result<(), Error> {
        if let Tree::V2 { root } = &self.tree {
            for parent in self.folders().iter().filter_map(|folder| folder.parent()) {
                make_folder(parent)?;
                // systemd gives a delegated group its controllers.
                if parent == root.join(PARENT) {
                    delegate(root)?;
                }
                delegate(parent)?;
            }
        }
        for folder in self.folders() {
            if let Some(parent) = folder.parent() {
                make_folder(parent)?;
            }
            make_folder(&folder)?;
        }
        let limits: &[(&str, &str, u64)] = match self.tree {
            Tree::V1 { .. } => &[
                ("memory", "memory.limit_in_bytes", MEMORY_BYTES),
                ("pids", "pids.max", MOST_THREADS),
            ],
            Tree::V2 { .. } => &[
                ("", "memory.max", MEMORY_BYTES),
                ("", "pids.max", MOST_THREADS),
            ],
        };
        for (controller, name, value) in limits {
            self.set(controller, name, &value.to_string())?;
        }
        if matches!(self.tree, Tree::V2 { .. }) {
            keep_from_oomd(&self.folder(""));
        }
        Ok(())
    }

    /// The folder in a controller's tree, which is the only one on version 2.
    fn folder(&self, controller: &str) -> PathBuf {
        match &self.tree {
            Tree::V1 { root } => root.join(controller).join(PARENT).join(&self.name),
            Tree::V2 { .. } => self.folders().into_iter().next().unwrap_or_default(),
        }
    }

    fn set(&self, controller: &str, name: &str, value: &str) -> Result<(), Error> {
        let path = self.folder(controller).join(name);
        fs::write(&path, value).map_err(failed(&path))
    }

    fn number(&self, controller: &str, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.folder(controller).join(name)).ok()?;
        text.trim().parse().ok()
    }

    /// Whether the group is there.
    pub(crate) fn exists(&self) -> bool {
        self.folders().iter().any(|folder| folder.is_dir())
    }

    /// Where the kernel counts the CPU time of its processes; nowhere where no tree does.
    fn usage_file(&self) -> Option<UsageFile> {
        let there = |path: PathBuf| path.exists().then_some(path);
        match &self.tree {
            Tree::V1 { .. } => ["cpuacct", "cpu"]
                .into_iter()
                .find_map(|tree| there(self.folder(tree).join("cpuacct.usage")))
                .map(UsageFile::Nanoseconds),
            Tree::V2 { .. } => there(self.folder("").join("cpu.stat")).map(UsageFile::CpuStat),
        }
    }

    /// What its processes use; nothing where there is no group.
    pub(crate) fn usage(&self) -> Option<OwnUsage> {
        if !self.exists() {
            return None;
        }
        let cpu_ns = self.usage_file().and_then(|file| {
            let text = fs::read_to_string(file.path()).ok()?;
            file.nanoseconds(&text)
        });
        Some(match self.tree {
            Tree::V1 { .. } => OwnUsage {
                cpu_ns,
                memory_bytes: self.number("memory", "memory.usage_in_bytes"),
                threads: self.number("pids", "pids.current"),
            },
            Tree::V2 { .. } => OwnUsage {
                cpu_ns,
                memory_bytes: self.number("", "memory.current"),
                threads: self.number("", "pids.current"),
            },
        })
    }

    /// Removes the group once its processes are gone. They end with the supervisor; what has not ended soon is killed. The group may be
    /// the next vGPU's of this name as soon as `is_still` says no, and is left alone then.
    ///
    /// # Errors
    /// [`Error::StillEnding`]: a process that has not ended, killed or not, is in it. [`Error::OwnGroup`]: it is empty, and stays.
    pub(crate) fn remove(
        &self,
        patience: Patience,
        is_still: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        for folder in self.folders() {
            loop {
                if !is_still() {
                    return Ok(());
                }
                let error = match fs::remove_dir(&folder) {
                    Ok(()) => break,
                    Err(error) if error.kind() == ErrorKind::NotFound => break,
                    Err(error) => error,
                };
                if error.kind() == ErrorKind::ResourceBusy && begun.elapsed() >= patience.unharmed {
                    // They are a vGPU's own: nobody else is let in. What cannot be read or killed is looked at again.
                    let all = control_group::processes(&folder).unwrap_or_default();
                    drop(control_group::kill_members(&folder, &all, is_still));
                }
                if error.kind() != ErrorKind::ResourceBusy {
                    return Err(failed(&folder)(error));
                }
                if begun.elapsed() >= patience.in_all {
                    return Err(Error::StillEnding { path: folder });
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

/// Whether there is a tree that groups can be made in.
///
/// # Errors
/// [`Error::OwnGroup`], which names the folder that is not there.
pub(crate) fn tree_of(config: &Config) -> Result<(), Error> {
    let tree = Tree::at(&config.broker.cgroup_root);
    let folders = match &tree {
        Tree::V1 { .. } => tree.parents(),
        Tree::V2 { .. } => Vec::new(),
    };
    for folder in folders.iter().filter_map(|folder| folder.parent()) {
        fs::read_dir(folder).map(drop).map_err(failed(folder))?;
    }
    Ok(())
}

/// Removes the groups of this state folder whose container has none there: a killed frontend may leave one. The state lock is held, so
/// that no group is a new container's; nothing is waited for. Whether all are gone.
pub(crate) fn sweep(config: &Config, containers: &[ContainerKey]) -> bool {
    let tree = Tree::at(&config.broker.cgroup_root);
    let suffix = suffix_of(&config.state_dir);
    let is_of_ours = |name: &str| match suffix.as_str() {
        "" => !name.contains('@'),
        suffix => name.ends_with(suffix),
    };
    let live: Vec<String> = containers
        .iter()
        .map(|key| name_of(&config.state_dir, key))
        .collect();
    let mut all_gone = true;
    for parent in tree.parents() {
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_group = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if !is_group || !name.contains('+') || !is_of_ours(&name) || live.contains(&name) {
                continue;
            }
            let tree = tree.clone();
            match (OwnGroup { tree, name }).remove(SWEEP, &|| true) {
                Ok(()) => {
                    tracing::info!(group = %entry.path().display(), "removed a control group that was left")
                }
                Err(error) => {
                    all_gone = false;
                    tracing::warn!(error = %chain(&error), "a control group that was left stays");
                }
            }
        }
    }
    all_gone
}

/// The groups of a state folder's vGPUs.
#[cfg(test)]
pub(crate) fn all(config: &Config) -> Vec<PathBuf> {
    let suffix = suffix_of(&config.state_dir);
    let parents = Tree::at(&config.broker.cgroup_root).parents();
    let entries = parents.iter().flat_map(fs::read_dir).flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with(&suffix))
        .collect()
}

/// systemd-oomd ends all processes of a group at once: broker and supervisor, either of which would have brought the other back. It heeds the
/// attribute of a group that is root's (`oomd_fetch_cgroup_oom_preference`, oomd-util.c); a kernel before 5.7 has none there.
fn keep_from_oomd(group: &Path) {
    let set = rustix::fs::setxattr(group, OOMD_OMIT, b"1", XattrFlags::empty());
    if let Err(error) = set {
        tracing::debug!(%error, group = %group.display(), "systemd-oomd may end these processes");
    }
}

fn make_folder(path: &Path) -> Result<(), Error> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed(path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Gives the groups below a folder of version 2 the controllers that they lack.
fn delegate(folder: &Path) -> Result<(), Error> {
    let path = folder.join("cgroup.subtree_control");
    let has = fs::read_to_string(&path).map_err(failed(&path))?;
    let lacking: Vec<String> = ["cpu", "memory", "pids"]
        .into_iter()
        .filter(|needed| !has.split_whitespace().any(|name| name == *needed))
        .map(|name| format!("+{name}"))
        .collect();
    if lacking.is_empty() {
        return Ok(());
    }
    fs::write(&path, lacking.join(" ")).map_err(failed(&path))
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::OwnGroup { path, source }
}

#[cfg(test)]
mod tests;
