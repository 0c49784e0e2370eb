//! Where the groups of vGPUs are, and what they are called.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cards::ContainerKey;

/// The parent of all of them.
pub(super) const PARENT: &str = "cgpu";
/// The service whose group systemd delegates.
pub(super) const SERVICE: &str = "system.slice/cgpu.service";
/// The state folder whose groups carry no mark.
pub(super) const DEFAULT_STATE_DIR: &str = "/run/cgpu";

/// The trees of control groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tree {
    /// Folders of the controllers, each with its name.
    V1 {
        root: PathBuf,
    },
    V2 {
        root: PathBuf,
    },
}

impl Tree {
    /// The file by which a process with one thread enters a group.
    ///
    /// Whoever moves a *process* takes the lock that excludes all forks of the host (`cgroup_threadgroup_rwsem`): on Linux 6.18 the first
    /// such write of a start took 8.8 ms, those behind it 50 µs each. On version 1 a thread that moves itself alone takes no such lock
    /// (kernel/cgroup/cgroup.c, `cgroup_procs_write_start`; commit 9a3284fad42f of 2019, in 5.4's later releases too). On version 2
    /// that is for threaded groups only, which this is not.
    pub(super) fn entrance(&self) -> &'static str {
        match self {
            Self::V1 { .. } => "tasks",
            Self::V2 { .. } => "cgroup.procs",
        }
    }

    pub(super) fn at(root: &Path) -> Self {
        let root = root.to_owned();
        if root.join("cgroup.controllers").exists() {
            Self::V2 { root }
        } else {
            Self::V1 { root }
        }
    }

    /// Those in whose trees groups are made. The tree of version 2 has no name.
    pub(super) fn controllers(&self) -> Vec<&'static str> {
        match self {
            Self::V1 { root } => {
                let counts_alone =
                    root.join("cpuacct").is_dir() && !root.join("cpu/cpuacct.usage").exists();
                ["memory", "cpu", "pids"]
                    .into_iter()
                    .chain(counts_alone.then_some("cpuacct"))
                    .collect()
            }
            Self::V2 { .. } => vec![""],
        }
    }

    /// Where groups can be, in each tree. On version 2 it is one of two folders: a service can be started or removed at any time.
    pub(super) fn parents(&self) -> Vec<PathBuf> {
        match self {
            Self::V1 { root } => {
                let controllers = self.controllers().into_iter();
                controllers
                    .map(|controller| root.join(controller).join(PARENT))
                    .collect()
            }
            Self::V2 { root } => vec![root.join(SERVICE), root.join(PARENT)],
        }
    }
}

/// Names of groups, which tell a state folder's own from all others.
pub(super) fn suffix_of(state_dir: &Path) -> String {
    if state_dir == Path::new(DEFAULT_STATE_DIR) {
        return String::new();
    }
    // One folder has one mark, however it is spelled.
    let state_dir: PathBuf = state_dir.components().collect();
    format!("@{:016x}", plan::fnv1a(state_dir.as_os_str().as_bytes()))
}

/// `<namespace>+<container>`, cut where it is too long for a file, and the state folder's mark. No key has a `+` or an `@`.
pub(super) fn name_of(state_dir: &Path, key: &ContainerKey) -> String {
    const MOST_BYTES: usize = 200;
    let mut name = format!("{}+{}", key.namespace(), key.id());
    if name.len() > MOST_BYTES {
        let hash = plan::fnv1a(name.as_bytes());
        name = name.chars().take(MOST_BYTES - 17).collect();
        name = format!("{name}+{hash:016x}");
    }
    name + &suffix_of(state_dir)
}
