//! Reads what a container's control groups count. Absent files and "no limit" are answered as containerd's own shim
//! answers them: 0, and the greatest number.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

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
    V1(Box<StatsV1>),
    /// cgroup v2.
    V2(Box<StatsV2>),
}

/// Numbers of cgroup v1.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatsV1 {
    /// Processes now, and at most.
    pub pids: (u64, u64),
    /// Processor time.
    pub cpu: CpuV1,
    /// Memory.
    pub memory: MemoryV1,
    /// `blkio.throttle.io_service_bytes_recursive` and `io_serviced_recursive`.
    pub bytes: Vec<Blkio>,
    /// Operations, likewise.
    pub operations: Vec<Blkio>,
    /// Per page size: usage, most ever, failures.
    pub hugetlb: Vec<(String, [u64; 3])>,
}

/// Processor time, nanoseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuV1 {
    /// All.
    pub total_ns: u64,
    /// In the kernel.
    pub kernel_ns: u64,
    /// In programs.
    pub user_ns: u64,
    /// By processor.
    pub per_cpu_ns: Vec<u64>,
    /// `cpu.stat`: nr_periods, nr_throttled, throttled_time.
    pub throttling: [u64; 3],
}

/// Memory, bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryV1 {
    /// `memory.stat` as it stands.
    pub stat: HashMap<String, u64>,
    /// Of `memory.`, `memory.memsw.`, `memory.kmem.`, `memory.kmem.tcp.`: limit, usage, most ever, failures.
    pub entries: [[u64; 4]; 4],
    /// `memory.oom_control`: oom_kill_disable, under_oom, oom_kill.
    pub oom: [u64; 3],
}

/// One line of a blkio file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blkio {
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
    /// Read, Write, Sync, Async, Discard, Total.
    pub operation: String,
    /// Bytes or operations.
    pub value: u64,
}

/// Numbers of cgroup v2.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatsV2 {
    /// Processes now, and at most.
    pub pids: (u64, u64),
    /// `cpu.stat`.
    pub cpu: CpuV2,
    /// Memory.
    pub memory: MemoryV2,
    /// `io.stat`: major, minor, and its keys.
    pub io: Vec<(u64, u64, HashMap<String, u64>)>,
}

/// `cpu.stat` as it stands.
pub type CpuV2 = HashMap<String, u64>;

/// Memory, bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryV2 {
    /// `memory.stat` as it stands.
    pub stat: HashMap<String, u64>,
    /// `memory.events` as it stands.
    pub events: HashMap<String, u64>,
    /// memory.current, memory.max, memory.peak.
    pub memory: [u64; 3],
    /// memory.swap.current, memory.swap.max, memory.swap.peak.
    pub swap: [u64; 3],
}

impl Cgroup {
    /// Finds the control groups of a process that is alive.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        Self::parse(&text, Path::new(ROOT))
    }

    /// `/proc/PID/cgroup` below a root; the root's own form tells the version.
    fn parse(text: &str, root: &Path) -> Option<Self> {
        let lines = text.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            Some((
                parts.next()?,
                parts.next()?,
                parts.next()?.trim_start_matches('/'),
            ))
        });
        if root.join("cgroup.controllers").exists() {
            let (_, _, path) = lines
                .into_iter()
                .find(|(number, names, _)| *number == "0" && names.is_empty())?;
            return Some(Self::V2 {
                dir: root.join(path),
            });
        }
        let dirs = lines.flat_map(|(_, names, path)| {
            names
                .split(',')
                .filter(|name| !name.is_empty())
                .map(move |name| (name.to_owned(), root.join(name).join(path)))
        });
        Some(Self::V1 {
            dirs: dirs.collect(),
        })
    }

    /// Whether it is still there.
    #[must_use]
    pub fn exists(&self) -> bool {
        match self {
            Self::V1 { dirs } => dirs.values().any(|dir| dir.exists()),
            Self::V2 { dir } => dir.exists(),
        }
    }

    /// Where the memory controller's files are.
    #[must_use]
    pub fn memory_dir(&self) -> Option<PathBuf> {
        match self {
            Self::V1 { dirs } => dirs.get("memory").cloned(),
            Self::V2 { dir } => Some(dir.clone()),
        }
    }

    /// Reads everything.
    #[must_use]
    pub fn stats(&self) -> Stats {
        match self {
            Self::V1 { dirs } => Stats::V1(Box::new(stats_v1(dirs))),
            Self::V2 { dir } => Stats::V2(Box::new(stats_v2(dir))),
        }
    }
}

fn stats_v1(dirs: &HashMap<String, PathBuf>) -> StatsV1 {
    let dir = |name: &str| dirs.get(name).cloned().unwrap_or_default();
    let (cpuacct, memory, blkio, hugetlb) =
        (dir("cpuacct"), dir("memory"), dir("blkio"), dir("hugetlb"));
    let throttled = pairs(&dir("cpu").join("cpu.stat"));
    let of = |map: &HashMap<String, u64>, name: &str| map.get(name).copied().unwrap_or(0);
    let oom = pairs(&memory.join("memory.oom_control"));
    let entry = |prefix: &str| {
        [
            "limit_in_bytes",
            "usage_in_bytes",
            "max_usage_in_bytes",
            "failcnt",
        ]
        .map(|name| number(&memory.join(format!("{prefix}{name}"))))
    };
    let per_cpu = fs::read_to_string(cpuacct.join("cpuacct.usage_percpu")).unwrap_or_default();
    StatsV1 {
        pids: (
            number(&dir("pids").join("pids.current")),
            pids_limit(&dir("pids").join("pids.max")),
        ),
        cpu: CpuV1 {
            total_ns: number(&cpuacct.join("cpuacct.usage")),
            kernel_ns: number(&cpuacct.join("cpuacct.usage_sys")),
            user_ns: number(&cpuacct.join("cpuacct.usage_user")),
            per_cpu_ns: per_cpu
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect(),
            throttling: ["nr_periods", "nr_throttled", "throttled_time"]
                .map(|name| of(&throttled, name)),
        },
        memory: MemoryV1 {
            stat: pairs(&memory.join("memory.stat")),
            entries: [
                "memory.",
                "memory.memsw.",
                "memory.kmem.",
                "memory.kmem.tcp.",
            ]
            .map(entry),
            oom: ["oom_kill_disable", "under_oom", "oom_kill"].map(|name| of(&oom, name)),
        },
        bytes: blkio_lines(&blkio.join("blkio.throttle.io_service_bytes_recursive")),
        operations: blkio_lines(&blkio.join("blkio.throttle.io_serviced_recursive")),
        hugetlb: hugetlb_sizes(&hugetlb),
    }
}

fn stats_v2(dir: &Path) -> StatsV2 {
    let number = |name: &str| number(&dir.join(name));
    StatsV2 {
        pids: (number("pids.current"), pids_limit(&dir.join("pids.max"))),
        cpu: pairs(&dir.join("cpu.stat")),
        memory: MemoryV2 {
            stat: pairs(&dir.join("memory.stat")),
            events: pairs(&dir.join("memory.events")),
            memory: ["memory.current", "memory.max", "memory.peak"].map(number),
            swap: ["memory.swap.current", "memory.swap.max", "memory.swap.peak"].map(number),
        },
        io: fs::read_to_string(dir.join("io.stat"))
            .unwrap_or_default()
            .lines()
            .filter_map(io_line)
            .collect(),
    }
}

/// One number, or `max`.
fn number(path: &Path) -> u64 {
    match fs::read_to_string(path).as_deref().map(str::trim) {
        Ok("max") => u64::MAX,
        Ok(text) => text.parse().unwrap_or(0),
        Err(_) => 0,
    }
}

/// For processes "no limit" is 0 on the wire.
fn pids_limit(path: &Path) -> u64 {
    match number(path) {
        u64::MAX => 0,
        limit => limit,
    }
}

/// Lines of a name and a number.
fn pairs(path: &Path) -> HashMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let pair = |line: &str| {
        line.split_once(' ')
            .and_then(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
    };
    text.lines().filter_map(pair).collect()
}

fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn blkio_lines(path: &Path) -> Vec<Blkio> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let one = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = device(words.next()?)?;
        Some(Blkio {
            major,
            minor,
            operation: words.next()?.to_owned(),
            value: words.next()?.parse().ok()?,
        })
    };
    text.lines().filter_map(one).collect()
}

fn io_line(line: &str) -> Option<(u64, u64, HashMap<String, u64>)> {
    let mut words = line.split_whitespace();
    let (major, minor) = device(words.next()?)?;
    let keys = words
        .filter_map(|word| word.split_once('='))
        .filter_map(|(k, v)| Some((k.to_owned(), v.parse().ok()?)));
    Some((major, minor, keys.collect()))
}

fn hugetlb_sizes(dir: &Path) -> Vec<(String, [u64; 3])> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let size = name
            .strip_prefix("hugetlb.")?
            .strip_suffix(".usage_in_bytes")?
            .to_owned();
        // The reservation counters share the prefix.
        if size.contains('.') {
            return None;
        }
        let counts = ["usage_in_bytes", "max_usage_in_bytes", "failcnt"];
        let counts = counts.map(|what| number(&dir.join(format!("hugetlb.{size}.{what}"))));
        Some((size, counts))
    };
    entries.filter_map(size).collect()
}

#[cfg(test)]
mod tests {
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
    fn v2_numbers_are_read_with_limits_and_max_means_none() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        let dir = root.path().join("x");
        fs::create_dir(&dir).unwrap();
        for (name, text) in [
            ("memory.max", "max\n"),
            ("memory.current", "4096\n"),
            ("pids.max", "max\n"),
            ("pids.current", "3\n"),
            ("cpu.stat", "usage_usec 12\nuser_usec 7\n"),
            ("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4\n"),
        ] {
            fs::write(dir.join(name), text).unwrap();
        }
        let cgroup = Cgroup::parse("0::/x\n", root.path()).unwrap();
        let Stats::V2(stats) = cgroup.stats() else {
            panic!("not v2")
        };
        assert_eq!(stats.memory.memory, [4096, u64::MAX, 0]);
        assert_eq!(stats.pids, (3, 0));
        assert_eq!(stats.cpu["usage_usec"], 12);
        assert_eq!(stats.io[0].2["wbytes"], 2);
    }
}
