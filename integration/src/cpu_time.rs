//! CPU time that containers, and their vGPUs' own processes, have used: what the kernel counts for their control groups.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::wait_until;
use crate::leftovers::own_groups;
use crate::rig::Rig;

const ROOT: &str = "/sys/fs/cgroup";
/// The tree that counts CPU time in version 1.
const COUNTING: &str = "cpuacct";

/// The groups of one container: its own, and its vGPU's where it has one.
#[derive(Debug, Clone)]
pub struct Groups {
    container: PathBuf,
    vgpu: Option<PathBuf>,
    /// The container's first process.
    init: i32,
}

/// What both have used since they were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// The container's programs.
    pub container: Duration,
    /// Supervisor, broker and executor.
    pub vgpu: Duration,
}

impl Used {
    /// Both.
    pub fn all(self) -> Duration {
        self.container + self.vgpu
    }

    /// What was used after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            container: self.container.saturating_sub(before.container),
            vgpu: self.vgpu.saturating_sub(before.vgpu),
        }
    }
}

impl Groups {
    /// Those of a running container.
    pub fn of(rig: &Rig, id: &str) -> Result<Self> {
        let listed = rig.containerd.ctr(&["tasks", "ls"])?.success()?;
        let mut rows = listed.stdout.lines().map(str::split_whitespace);
        let init = rows
            .find_map(|mut row| (row.next() == Some(id)).then(|| row.next()?.parse().ok())?)
            .with_context(|| format!("no process of {id} in {}", listed.stdout))?;
        let text = fs::read_to_string(format!("/proc/{init}/cgroup"))?;
        let container =
            counting(&text).with_context(|| format!("no group of {init} counts: {text}"))?;
        let of_container = format!("+{id}@");
        let counts = |path: &PathBuf| of_group(path).is_ok();
        let vgpu = own_groups(&[rig.node.state_dir()])
            .into_iter()
            .filter(|path| path.to_string_lossy().contains(&of_container))
            .find(counts);
        Ok(Self {
            container,
            vgpu,
            init,
        })
    }

    /// What they have used.
    pub fn used(&self) -> Result<Used> {
        let vgpu = self.vgpu.as_deref().map(of_group).transpose()?;
        Ok(Used {
            container: of_group(&self.container)?,
            vgpu: vgpu.unwrap_or_default(),
        })
    }

    /// SIGKILL to all of the container's processes but the first, until none is left.
    pub fn kill_others(&self) -> Result<()> {
        wait_until(
            "programs of a container to end",
            Duration::from_secs(20),
            || {
                let others = self.others()?;
                for pid in &others {
                    // It may have ended by itself.
                    let _gone = kill(Pid::from_raw(*pid), Signal::SIGKILL);
                }
                Ok(others.is_empty())
            },
        )
    }

    fn others(&self) -> Result<Vec<i32>> {
        let path = self.container.join("cgroup.procs");
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let all = text.lines().filter_map(|line| line.parse().ok());
        Ok(all.filter(|pid| *pid != self.init).collect())
    }
}

/// The folder of a process's group in the tree that counts, from its `/proc/<pid>/cgroup`.
fn counting(text: &str) -> Option<PathBuf> {
    let mut rows = text.lines().map(|line| line.splitn(3, ':'));
    let (tree, group) = rows.find_map(|mut row| {
        let (number, controllers, group) = (row.next()?, row.next()?, row.next()?);
        let counts = controllers.split(',').any(|name| name == COUNTING);
        // Version 2 comes last, and has no controllers here.
        (counts || number == "0").then_some((counts.then_some(COUNTING), group))
    })?;
    let root = Path::new(ROOT).join(tree.unwrap_or_default());
    Some(root.join(group.trim_start_matches('/')))
}

/// CPU time of a group, from `cpuacct.usage` of version 1 or `cpu.stat` of version 2.
fn of_group(folder: &Path) -> Result<Duration> {
    if let Ok(text) = fs::read_to_string(folder.join("cpuacct.usage")) {
        return Ok(Duration::from_nanos(text.trim().parse()?));
    }
    let path = folder.join("cpu.stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "));
    let micros = line.with_context(|| format!("no usage_usec in {}", path.display()))?;
    Ok(Duration::from_micros(micros.trim().parse()?))
}

/// CPU time of one process and its threads, to a hundredth of a second.
pub fn of_process(pid: u32) -> Result<Duration> {
    const TICK: Duration = Duration::from_millis(10);
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before the last bracket may hold anything; utime and stime are fields 14 and 15 of the line.
    let (_, fields) = text.rsplit_once(')').context("a process's stat")?;
    let times = fields.split_whitespace().skip(11).take(2);
    let ticks: u32 = times.filter_map(|field| field.parse::<u32>().ok()).sum();
    Ok(TICK * ticks)
}

/// How often the host's processors have gone from one thread to another since it started: `ctxt` of `/proc/stat`.
pub fn switches() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat")?;
    let of_line = |line: &str| line.strip_prefix("ctxt ")?.trim().parse().ok();
    let found = text.lines().find_map(of_line);
    found.context("no ctxt in /proc/stat")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_that_counts_is_found_in_both_versions() {
        let first = "4:memory:/t1.0/c\n2:cpu,cpuacct:/t1.0/c\n0::/other";
        let second = "0::/t1.0/c";
        assert_eq!(
            counting(first).unwrap(),
            Path::new("/sys/fs/cgroup/cpuacct/t1.0/c")
        );
        assert_eq!(
            counting(second).unwrap(),
            Path::new("/sys/fs/cgroup/t1.0/c")
        );
        assert_eq!(counting("4:memory:/t1.0/c"), None);
    }

    #[test]
    fn a_busy_process_uses_time_and_none_has_an_error() {
        // What it does is to use time, so this ends.
        while of_process(std::process::id()).unwrap().is_zero() {
            std::hint::spin_loop();
        }
        of_process(u32::MAX).unwrap_err();
    }
}
