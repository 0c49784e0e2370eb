//! Reads what a container's control groups count, as containerd's two metrics messages. What is absent and what has no limit is answered as containerd's own
//! shim answers it (github.com/containerd/cgroups, `Stat` of `cgroup1` and `cgroup2`).

/// A message with fields that have the kernel's names for what it counts, and with others.
macro_rules! counted {
    ($message:ident, $counts:expr, { $($field:ident)* } $(, $other:ident: $value:expr)*) => {
        $message {
            $($field: $counts.of(stringify!($field)),)*
            $($other: $value,)*
            ..Default::default()
        }
    };
}

mod files;
mod v1;
mod v2;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use containerd_shim_protos::{cgroups, cgroups_v2};

use crate::task::Pid;

const ROOT: &str = "/sys/fs/cgroup";

/// A container's control groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroup {
    /// One directory per controller.
    V1 {
        /// By controller, e.g. `memory`.
        dirs: HashMap<String, PathBuf>,
    },
    /// One directory.
    V2 {
        /// It.
        dir: PathBuf,
    },
}

/// Numbers of either version.
#[derive(Debug, Clone, PartialEq)]
pub enum Stats {
    /// cgroup v1.
    V1(Box<cgroups::metrics::Metrics>),
    /// cgroup v2.
    V2(Box<cgroups_v2::metrics::Metrics>),
}

/// What of the machine, beside the control group, is in the numbers.
#[derive(Debug, Clone, Copy)]
struct Machine<'a> {
    /// `/proc/partitions`: the names of block devices.
    partitions: &'a Path,
    /// `/sys/kernel/mm/hugepages`: the sizes of huge pages.
    hugepages: &'a Path,
}

impl Machine<'static> {
    fn this() -> Self {
        Self {
            partitions: Path::new("/proc/partitions"),
            hugepages: Path::new("/sys/kernel/mm/hugepages"),
        }
    }
}

impl Cgroup {
    /// Finds the control groups of a process that is alive.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Self> {
        let text = sys::proc::groups_of(pid).ok()?;
        Self::parse(&text, Path::new(ROOT))
    }

    /// `/proc/PID/cgroup` below a root; the root's own form tells the version.
    fn parse(text: &str, root: &Path) -> Option<Self> {
        if root.join("cgroup.controllers").exists() {
            let path = sys::proc::group_in(text, "")?.trim_start_matches('/');
            return Some(Self::V2 {
                dir: root.join(path),
            });
        }
        let lines = text.lines().filter_map(|line| {
            let (names, path) = line.split_once(':')?.1.split_once(':')?;
            Some((names, path.trim_start_matches('/')))
        });
        let dirs = lines.flat_map(|(names, path)| {
            names
                .split(',')
                .filter(|name| !name.is_empty())
                .map(move |name| (name.to_owned(), root.join(name).join(path)))
        });
        Some(Self::V1 {
            dirs: dirs.collect(),
        })
    }

    /// Where the memory controller's files are.
    #[must_use]
    pub fn memory_dir(&self) -> Option<PathBuf> {
        match self {
            Self::V1 { dirs } => dirs.get("memory").cloned(),
            Self::V2 { dir } => Some(dir.clone()),
        }
    }

    /// Reads everything. Of a container whose groups are gone nothing is counted, as containerd's own shim has it.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats_on(Machine::this())
    }

    fn stats_on(&self, machine: Machine<'_>) -> Stats {
        match self {
            Self::V1 { dirs } => Stats::V1(Box::new(v1::read(dirs, machine))),
            Self::V2 { dir } => Stats::V2(Box::new(v2::read(dir, machine))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn v1_has_a_directory_per_controller_also_when_two_share_one() {
        let root = tempfile::tempdir().unwrap();
        let text = "4:memory:/a/b\n3:cpu,cpuacct:/c\n1:name=systemd:/d\n0::/\n";
        let Some(Cgroup::V1 { dirs }) = Cgroup::parse(text, root.path()) else {
            panic!("not v1")
        };
        assert_eq!(dirs["memory"], root.path().join("memory/a/b"));
        assert_eq!(dirs["cpuacct"], root.path().join("cpuacct/c"));
    }

    #[test]
    fn v2_is_one_directory_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        let cgroup = Cgroup::parse("1:name=x:/y\n0::/a/b\n", root.path()).unwrap();
        let dir = root.path().join("a/b");
        assert_eq!(cgroup.memory_dir(), Some(dir.clone()));
        assert_eq!(cgroup, Cgroup::V2 { dir });
    }
}
