//! CPU time of a vGPU's own processes: weight and quota are the container's own, within bounds.

use std::fmt::Display;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use cards::store::DiskStore;
use cards::{CpuTime, Grant, cpu_time};
use host_config::{Config, chain};
use plan::Terms;
use sys::failed;

use super::OwnGroup;
use super::tree::Tree;
use crate::error::Error;
use crate::state::{CPU_GROUP, ContainerDir};

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

impl OwnGroup {
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
        let Some(group) = self.group_of(init, "cpu") else {
            return Ok(());
        };
        let record = dir.file(CPU_GROUP);
        fs::write(&record, group.as_os_str().as_bytes()).map_err(failed("write", &record))?;
        self.follow_group(dir, &group, governor)
    }

    /// [`OwnGroup::follow`], by the container's group that was noted then.
    ///
    /// # Errors
    /// As [`OwnGroup::follow`].
    pub(crate) fn follow_again(&self, dir: &ContainerDir, governor: Governor) -> Result<(), Error> {
        use std::os::unix::ffi::OsStringExt;
        let read = sys::absent_is_none(fs::read(dir.file(CPU_GROUP)));
        match read.map_err(failed("read", dir.file(CPU_GROUP)))? {
            Some(path) => {
                let group = PathBuf::from(std::ffi::OsString::from_vec(path));
                self.follow_group(dir, &group, governor)
            }
            None => Ok(()),
        }
    }

    pub(super) fn follow_group(
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
            // An idle group of version 2 (`cpu.idle`) has 0, which is no weight to write.
            let own = own.unwrap_or(default).max(1);
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

    /// The group of a process in a controller's tree, which is the only one on version 2.
    pub(super) fn group_of(&self, process: impl Display, controller: &str) -> Option<PathBuf> {
        let (root, needed) = match &self.tree {
            Tree::V1 { root } => (root.join(controller), controller),
            Tree::V2 { root } => (root.clone(), ""),
        };
        let path = sys::proc::group_of(process, needed).ok()??;
        let path = Path::new(path.trim_start_matches('/'));
        let is_below = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        is_below.then(|| root.join(path))
    }

    /// A group and those that it is in.
    fn up_from<'a>(&self, group: &'a Path) -> impl Iterator<Item = &'a Path> {
        let root = match &self.tree {
            Tree::V1 { root } => root.join("cpu"),
            Tree::V2 { root } => root.clone(),
        };
        let all = group.ancestors();
        all.take_while(move |folder| folder.starts_with(&root))
    }

    /// Whether a group, or one that it is in, has a quota of CPU time or less than the default weight.
    pub(super) fn is_limited(&self, group: &Path) -> bool {
        let (weight, default) = match self.tree {
            Tree::V1 { .. } => ("cpu.shares", DEFAULT_SHARES),
            Tree::V2 { .. } => ("cpu.weight", DEFAULT_WEIGHT),
        };
        let is_light = |folder| number(folder, weight).is_some_and(|own| own < default);
        self.terms_of(group).quota_ppm.is_some() || self.up_from(group).any(is_light)
    }

    /// Weight of the group itself, and the least quota of it and of those that it is in.
    fn terms_of(&self, group: &Path) -> CpuTerms {
        let quota_ppm = self
            .up_from(group)
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
}

fn number(folder: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    text.trim().parse().ok()
}

fn quota_v1(folder: &Path) -> Option<(u64, u64)> {
    // Without a quota it is -1, which is no such number.
    let quota = number(folder, "cpu.cfs_quota_us")?;
    Some((quota, number(folder, "cpu.cfs_period_us")?))
}

fn quota_v2(folder: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    // Without a quota it is `max`.
    Some((quota.parse().ok()?, period.parse().ok()?))
}
