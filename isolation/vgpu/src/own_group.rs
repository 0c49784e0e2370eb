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
//! the driver among them, and the container's neighbours would pay. So the broker is told the quota in `cpu-time.json` ([`CpuTime`])
//! and has the container's calls wait before that is used up; what it leaves in one period is there in the next (`cpu.cfs_burst_us`).

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cards::cpu_time::{self, UsageFile};
use cards::store::DiskStore;
use cards::{ContainerKey, CpuTime, Grant};
use plan::Terms;
use serde::Serialize;

use crate::error::Error;
use crate::state::{CPU_GROUP, ContainerDir};
use host_config::Config;
use host_config::chain;

/// The parent of all of them.
const PARENT: &str = "cgpu";
/// The service whose group systemd delegates.
const SERVICE: &str = "system.slice/cgpu.service";
/// The state folder whose groups carry no mark.
const DEFAULT_STATE_DIR: &str = "/run/cgpu";

/// What a broker needs without any object of its tenant's.
const BASE_BYTES: u64 = 16 << 20;
/// For each of the objects and mappings that a container may have.
const OBJECT_BYTES: u64 = 256;
const MOST_OBJECTS: u64 = 2 << 20;
/// Both halves of the journal, which are counted with the broker that writes them.
const JOURNAL_BYTES: u64 = 512 << 20;
/// Twice the broker's own maxima: during a replacement there are two.
const MEMORY_BYTES: u64 = 2 * (BASE_BYTES + OBJECT_BYTES * MOST_OBJECTS) + JOURNAL_BYTES;
/// Threads: two brokers during a replacement, each with 256 at work and those that wait on listeners, and the executor's 1024.
const MOST_THREADS: u64 = 8192;

/// The default weight of version 1 and of version 2. With less than that the governor, which is in the group, gets no processor in time on
/// a busy host: with the weight of a Kubernetes container that asks for no CPU time, 2, gates closed half a second late.
const DEFAULT_SHARES: u64 = 1024;
const DEFAULT_WEIGHT: u64 = 100;
/// So many times as much at most: governors of others compete with it.
const MOST_TIMES: u64 = 10;
/// In a period of this length, microseconds, the group may use its quota.
const PERIOD_US: u64 = 100_000;
/// Of one core, millionths: with less a broker serves no call in time.
const LEAST_QUOTA_PPM: u64 = 100_000;

/// Whether neighbours depend on a thread in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Governor {
    /// The driver divides the card's time.
    None,
    /// The broker turns the container's gate by the clock.
    HoldsShares,
}

impl Governor {
    /// By the container's terms on its cards as they are now. Terms that cannot be read may be governed.
    pub(crate) fn of(config: &Config, grant: &Grant) -> Self {
        let is_native = grant.cards.iter().all(|card| {
            let terms = cards::rules::terms_on(&config.state_dir, &card.uuid, &grant.compute);
            matches!(terms, Ok(Terms::NATIVE))
        });
        if is_native {
            Self::None
        } else {
            Self::HoldsShares
        }
    }
}

/// How long processes may take to be gone once they were told to end, before they are killed, and in all.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// What was left is killed at once. The lock of the node is held meanwhile; what hangs in a driver is tried again.
const SWEEP: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(100));

/// The trees of control groups.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tree {
    /// Folders of the controllers, each with its name.
    V1 {
        root: PathBuf,
    },
    V2 {
        root: PathBuf,
    },
}

/// One vGPU's group: a folder in each tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnGroup {
    tree: Tree,
    name: String,
}

/// What a vGPU's own processes use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct OwnUsage {
    /// CPU time since the vGPU was made; absent where no tree counts it.
    pub cpu_ns: Option<u64>,
    /// Memory now.
    pub memory_bytes: Option<u64>,
    /// Processes and threads now.
    pub threads: Option<u64>,
}

/// CPU time that a container may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTerms {
    /// `cpu.shares` of version 1.
    shares: Option<u64>,
    /// `cpu.weight` of version 2.
    weight: Option<u64>,
    /// Of one core, millionths; absent: as much as there is.
    quota_ppm: Option<u64>,
}

impl Tree {
    fn at(root: &Path) -> Self {
        let root = root.to_owned();
        if root.join("cgroup.controllers").exists() {
            Self::V2 { root }
        } else {
            Self::V1 { root }
        }
    }

    /// Where groups can be, in each tree. On version 2 it is one of two folders: a service can be started or removed at any time.
    fn parents(&self) -> Vec<PathBuf> {
        match self {
            Self::V1 { root } => {
                let counts_alone =
                    root.join("cpuacct").is_dir() && !root.join("cpu/cpuacct.usage").exists();
                ["memory", "cpu", "pids"]
                    .into_iter()
                    .chain(counts_alone.then_some("cpuacct"))
                    .map(|controller| root.join(controller).join(PARENT))
                    .collect()
            }
            Self::V2 { root } => vec![root.join(SERVICE), root.join(PARENT)],
        }
    }
}

/// Names of groups, which tell a state folder's own from all others.
fn suffix_of(state_dir: &Path) -> String {
    if state_dir == Path::new(DEFAULT_STATE_DIR) {
        return String::new();
    }
    // One folder has one mark, however it is spelled.
    let state_dir: PathBuf = state_dir.components().collect();
    format!("@{:016x}", fnv(state_dir.as_os_str().as_bytes()))
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// `<namespace>+<container>`, cut where it is too long for a file, and the state folder's mark. No key has a `+` or an `@`.
fn name_of(state_dir: &Path, key: &ContainerKey) -> String {
    const MOST_BYTES: usize = 200;
    let mut name = format!("{}+{}", key.namespace(), key.id());
    if name.len() > MOST_BYTES {
        let hash = fnv(name.as_bytes());
        name = name.chars().take(MOST_BYTES - 17).collect();
        name = format!("{name}+{hash:016x}");
    }
    name + &suffix_of(state_dir)
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
                .map(|folder| folder.join("cgroup.procs"));
            procs
                .map(|procs| {
                    let mut options = OpenOptions::new();
                    options.write(true).open(&procs).map_err(failed(&procs))
                })
                .collect::<Result<Vec<File>, Error>>()
        });
        match made {
            Ok(entrances) => {
                sys::control_group::enter_before_exec(command, entrances);
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

    /// Takes weight and quota of CPU time over from the container of this process, and notes where they are found.
    ///
    /// # Errors
    /// [`Error::OwnGroup`], or a file of the container's folder that cannot be written.
    pub(crate) fn follow(
        &self,
        dir: &ContainerDir,
        init: i32,
        governor: Governor,
    ) -> Result<(), Error> {
        let Some(group) = self.cpu_group_of(init) else {
            return Ok(());
        };
        let record = dir.file(CPU_GROUP);
        fs::write(&record, group.as_os_str().as_bytes()).map_err(Error::io("write", &record))?;
        self.follow_group(dir, &group, governor)
    }

    /// [`OwnGroup::follow`], by the container's group that was noted then.
    ///
    /// # Errors
    /// As [`OwnGroup::follow`].
    pub(crate) fn follow_again(&self, dir: &ContainerDir, governor: Governor) -> Result<(), Error> {
        use std::os::unix::ffi::OsStringExt;
        match fs::read(dir.file(CPU_GROUP)) {
            Ok(path) => {
                let group = PathBuf::from(std::ffi::OsString::from_vec(path));
                self.follow_group(dir, &group, governor)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::io("read", dir.file(CPU_GROUP))(error)),
        }
    }

    fn follow_group(
        &self,
        dir: &ContainerDir,
        group: &Path,
        governor: Governor,
    ) -> Result<(), Error> {
        let terms = self.terms_of(group);
        let reported = CpuTime {
            version: cpu_time::VERSION,
            quota_ppm: terms.quota_ppm,
            usage: self.usage_file(),
        };
        reported.write(&DiskStore, dir.path())?;
        let weight = |own: Option<u64>, default: u64| {
            let own = own.unwrap_or(default);
            match governor {
                Governor::None => own,
                Governor::HoldsShares => own.clamp(default, default * MOST_TIMES),
            }
        };
        let quota_us = terms.quota_ppm.map(|ppm| ppm * PERIOD_US / 1_000_000);
        let written = |none: &str| quota_us.map_or_else(|| none.to_owned(), |us| us.to_string());
        match &self.tree {
            Tree::V1 { .. } => {
                let shares = weight(terms.shares, DEFAULT_SHARES);
                self.set("cpu", "cpu.shares", &shares.to_string())?;
                // A burst is no longer than its quota: that may become less.
                self.save_up("cpu", "cpu.cfs_burst_us", 0);
                self.set("cpu", "cpu.cfs_period_us", &PERIOD_US.to_string())?;
                self.set("cpu", "cpu.cfs_quota_us", &written("-1"))?;
                self.save_up("cpu", "cpu.cfs_burst_us", quota_us.unwrap_or(0));
            }
            Tree::V2 { .. } => {
                let weight = weight(terms.weight, DEFAULT_WEIGHT);
                self.set("", "cpu.weight", &weight.to_string())?;
                self.save_up("", "cpu.max.burst", 0);
                let most = format!("{} {PERIOD_US}", written("max"));
                self.set("", "cpu.max", &most)?;
                self.save_up("", "cpu.max.burst", quota_us.unwrap_or(0));
            }
        }
        Ok(())
    }

    /// What is left of a quota can be used later, where the kernel knows that (5.14 and later).
    fn save_up(&self, controller: &str, file: &str, burst_us: u64) {
        if self.folder(controller).join(file).exists()
            && let Err(error) = self.set(controller, file, &burst_us.to_string())
        {
            tracing::debug!(error = %chain(&error), "nothing of a quota is saved up");
        }
    }

    /// The group of a process in the tree that divides CPU time.
    fn cpu_group_of(&self, pid: i32) -> Option<PathBuf> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let (root, needed) = match &self.tree {
            Tree::V1 { root } => (root.join("cpu"), "cpu"),
            Tree::V2 { root } => (root.clone(), ""),
        };
        let path = text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let has = controllers
                .split(',')
                .any(|controller| controller == needed);
            has.then_some(Path::new(path.trim_start_matches('/')))
        })?;
        let is_below = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        is_below.then(|| root.join(path))
    }

    /// Weight of the group itself, and the least quota of it and of those that it is in.
    fn terms_of(&self, group: &Path) -> CpuTerms {
        let number = |folder: &Path, name: &str| -> Option<u64> {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            text.trim().parse().ok()
        };
        let root = match &self.tree {
            Tree::V1 { root } => root.join("cpu"),
            Tree::V2 { root } => root.clone(),
        };
        let quota_ppm = group
            .ancestors()
            .take_while(|folder| folder.starts_with(&root))
            .filter_map(|folder| match self.tree {
                Tree::V1 { .. } => quota_v1(folder),
                Tree::V2 { .. } => quota_v2(folder),
            })
            .filter(|(_, period)| *period > 0)
            .map(|(quota, period)| quota.saturating_mul(1_000_000) / period)
            .min();
        CpuTerms {
            shares: number(group, "cpu.shares"),
            weight: number(group, "cpu.weight"),
            quota_ppm: quota_ppm.map(|quota| quota.max(LEAST_QUOTA_PPM)),
        }
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

    /// Removes the group once its processes are gone. They end with the supervisor; what has not ended soon is killed.
    ///
    /// # Errors
    /// [`Error::OwnGroup`]: a process that cannot be killed is in it. [`sweep`] tries again.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        self.remove_within(PATIENCE)
    }

    fn remove_within(&self, (ends, all): (Duration, Duration)) -> Result<(), Error> {
        let begun = Instant::now();
        for folder in self.folders() {
            loop {
                let error = match fs::remove_dir(&folder) {
                    Ok(()) => break,
                    Err(error) if error.kind() == ErrorKind::NotFound => break,
                    Err(error) => error,
                };
                if error.kind() != ErrorKind::ResourceBusy || begun.elapsed() > all {
                    return Err(failed(&folder)(error));
                }
                if begun.elapsed() > ends {
                    kill_all_in(&folder);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

/// Removes the groups of this state folder whose container has none there: a killed frontend may leave one.
pub(crate) fn sweep(config: &Config, containers: &[ContainerKey]) {
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
    for parent in tree.parents() {
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_group = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if !is_group || !name.contains('+') || !is_of_ours(&name) || live.contains(&name) {
                continue;
            }
            let tree = tree.clone();
            match (OwnGroup { tree, name }).remove_within(SWEEP) {
                Ok(()) => {
                    tracing::info!(group = %entry.path().display(), "removed a control group that was left")
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "a control group that was left stays");
                }
            }
        }
    }
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

/// They are a vGPU's own: nobody else is let in.
fn kill_all_in(folder: &Path) {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for pid in text.lines().filter_map(|line| line.parse::<i32>().ok()) {
        let Ok(process) = sys::pidfd::PidFd::open(pid) else {
            continue;
        };
        // Read again after it was opened: from then on the number cannot change hands.
        let still = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        if still.lines().any(|line| line.parse() == Ok(pid)) {
            // It may be gone by itself.
            drop(process.signal(libc::SIGKILL));
        }
    }
}

fn quota_v1(folder: &Path) -> Option<(u64, u64)> {
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        text.trim().parse().ok()
    };
    // Without a quota it is -1, which is no such number.
    Some((number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?))
}

fn quota_v2(folder: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    // Without a quota it is `max`.
    Some((quota.parse().ok()?, period.parse().ok()?))
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
