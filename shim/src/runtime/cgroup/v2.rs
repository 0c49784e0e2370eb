//! Version 2: one folder. What a controller that is not enabled would count is 0.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::files::{device, hugepage_sizes, number, pairs, rdma};
use super::{Machine, Pids, Rdma};

/// Numbers of cgroup v2.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatsV2 {
    /// Processes; no limit is the greatest number.
    pub pids: Pids,
    /// `cpu.stat` as it stands.
    pub cpu: HashMap<String, u64>,
    /// `cpu.pressure`.
    pub cpu_pressure: Option<Pressures>,
    /// Memory.
    pub memory: MemoryV2,
    /// `memory.events` as it stands.
    pub events: Option<HashMap<String, u64>>,
    /// `io.stat`, a device each.
    pub io: Vec<IoV2>,
    /// `io.pressure`.
    pub io_pressure: Option<Pressures>,
    /// Huge pages, by size.
    pub hugetlb: Vec<HugetlbV2>,
    /// RDMA devices.
    pub rdma: Rdma,
}

/// Memory, bytes; no limit is the greatest number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryV2 {
    /// `memory.stat` as it stands.
    pub stat: HashMap<String, u64>,
    /// memory.current, memory.max, memory.peak.
    pub memory: [u64; 3],
    /// memory.swap.current, memory.swap.max, memory.swap.peak.
    pub swap: [u64; 3],
    /// `memory.pressure`.
    pub pressure: Option<Pressures>,
}

/// One line of `io.stat`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IoV2 {
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
    /// `rbytes`, `wbytes`, `rios`, `wios` and what else the kernel counts.
    pub counts: HashMap<String, u64>,
}

/// Huge pages of one size, bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HugetlbV2 {
    /// E.g. `2MB`.
    pub size: String,
    /// Now.
    pub current: u64,
    /// The limit.
    pub max: u64,
    /// How often the limit was met.
    pub failures: u64,
}

/// A pressure file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pressures {
    /// Some tasks wait.
    pub some: Option<Pressure>,
    /// All do.
    pub full: Option<Pressure>,
}

/// One line of a pressure file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pressure {
    /// Percent over the last 10, 60 and 300 seconds.
    pub averages: [f64; 3],
    /// Since the group is there.
    pub total_us: u64,
}

pub(super) fn read(dir: &Path, machine: Machine<'_>) -> StatsV2 {
    let number = |name: &str| number(&dir.join(name));
    let stat = pairs(&dir.join("memory.stat"));
    // Without the controller's statistics its other numbers are left out too.
    let memory = stat.map(|stat| MemoryV2 {
        stat,
        memory: ["memory.current", "memory.max", "memory.peak"].map(number),
        swap: ["memory.swap.current", "memory.swap.max", "memory.swap.peak"].map(number),
        pressure: pressures(&dir.join("memory.pressure")),
    });
    let cpu = pairs(&dir.join("cpu.stat"));
    StatsV2 {
        pids: Pids {
            current: number("pids.current"),
            limit: number("pids.max"),
        },
        cpu_pressure: cpu
            .as_ref()
            .and_then(|_| pressures(&dir.join("cpu.pressure"))),
        cpu: cpu.unwrap_or_default(),
        memory: memory.unwrap_or_default(),
        events: pairs(&dir.join("memory.events")),
        io: fs::read_to_string(dir.join("io.stat"))
            .unwrap_or_default()
            .lines()
            .filter_map(io_line)
            .collect(),
        io_pressure: pressures(&dir.join("io.pressure")),
        hugetlb: hugetlb(dir, machine.hugepages),
        rdma: rdma(dir).unwrap_or_default(),
    }
}

fn hugetlb(dir: &Path, hugepages: &Path) -> Vec<HugetlbV2> {
    let of = |size: String| {
        let at = |what: &str| dir.join(format!("hugetlb.{size}.{what}"));
        let events = pairs(&at("events")).unwrap_or_default();
        HugetlbV2 {
            current: number(&at("current")),
            max: number(&at("max")),
            failures: events.get("max").copied().unwrap_or(0),
            size,
        }
    };
    hugepage_sizes(hugepages).into_iter().map(of).collect()
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn io_line(line: &str) -> Option<IoV2> {
    let (numbers, rest) = line.split_once(' ')?;
    let (major, minor) = device(numbers)?;
    let counts = rest
        .split_whitespace()
        .filter_map(|argument| argument.split_once('='))
        .filter_map(|(key, value)| Some((key.to_owned(), value.parse().ok()?)));
    Some(IoV2 {
        major,
        minor,
        counts: counts.collect(),
    })
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and the same of `full`; `None` where the kernel does not count it.
fn pressures(path: &Path) -> Option<Pressures> {
    let text = fs::read_to_string(path).ok()?;
    let mut read = Pressures::default();
    for line in text.lines() {
        let Some((name, rest)) = line.split_once(' ') else {
            continue;
        };
        match name {
            "some" => read.some = Some(pressure(rest)?),
            "full" => read.full = Some(pressure(rest)?),
            _ => {}
        }
    }
    Some(read)
}

fn pressure(fields: &str) -> Option<Pressure> {
    let mut read = Pressure::default();
    let [ten, sixty, three_hundred] = &mut read.averages;
    for field in fields.split_whitespace() {
        let (key, value) = field.split_once('=')?;
        match key {
            "avg10" => *ten = value.parse().ok()?,
            "avg60" => *sixty = value.parse().ok()?,
            "avg300" => *three_hundred = value.parse().ok()?,
            "total" => read.total_us = value.parse().ok()?,
            _ => {}
        }
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::cgroup::{Cgroup, Stats};

    fn stats(files: &[(&str, &str)]) -> StatsV2 {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("group");
        fs::create_dir(&dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
        let hugepages = root.path().join("hugepages");
        fs::create_dir_all(hugepages.join("hugepages-2048kB")).unwrap();
        let stats = Cgroup::V2 { dir }.stats_on(Machine {
            partitions: Path::new("/nonexistent"),
            hugepages: &hugepages,
        });
        let Stats::V2(stats) = stats else {
            panic!("not v2")
        };
        *stats
    }

    #[test]
    fn every_file_is_read_and_max_means_no_limit() {
        let pressure_text = "some avg10=1.50 avg60=0.25 avg300=0.00 total=99\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let stats = stats(&[
            ("pids.current", "3\n"),
            ("pids.max", "max\n"),
            ("cpu.stat", "usage_usec 12\nuser_usec 7\nnr_bursts 1\n"),
            ("cpu.pressure", pressure_text),
            ("memory.stat", "anon 10\nfile 20\n"),
            ("memory.current", "4096\n"),
            ("memory.max", "67108864\n"),
            ("memory.peak", "8192\n"),
            ("memory.swap.max", "max\n"),
            ("memory.pressure", "some avg10=x\n"),
            (
                "memory.events",
                "low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\noom_group_kill 5\n",
            ),
            (
                "io.stat",
                "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5\n8:16 \n",
            ),
            ("hugetlb.2MB.current", "0\n"),
            ("hugetlb.2MB.max", "max\n"),
            ("hugetlb.2MB.events", "max 6\n"),
            ("rdma.current", "mlx4_0 hca_handle=2 hca_object=3\n"),
            ("rdma.max", "mlx4_0 hca_handle=max hca_object=9\n"),
        ]);
        assert_eq!(
            stats.pids,
            Pids {
                current: 3,
                limit: u64::MAX
            }
        );
        assert_eq!((stats.cpu["usage_usec"], stats.cpu["nr_bursts"]), (12, 1));
        let pressure = stats.cpu_pressure.unwrap();
        let some = pressure.some.unwrap();
        assert_eq!((some.averages, some.total_us), ([1.5, 0.25, 0.0], 99));
        assert_eq!(pressure.full.unwrap().total_us, 7);
        assert_eq!(stats.memory.memory, [4_096, 67_108_864, 8_192]);
        assert_eq!(stats.memory.swap, [0, u64::MAX, 0]);
        assert_eq!(stats.memory.pressure, None, "not what a pressure file says");
        assert_eq!(stats.events.unwrap()["oom_group_kill"], 5);
        assert_eq!(stats.io.len(), 2);
        assert_eq!(stats.io[0].counts["wbytes"], 2);
        let [huge] = &stats.hugetlb[..] else {
            panic!("{:?}", stats.hugetlb)
        };
        assert_eq!(
            (huge.size.as_str(), huge.max, huge.failures),
            ("2MB", u64::MAX, 6)
        );
        assert_eq!(stats.rdma.limit[0].handles, u32::MAX);
    }

    #[test]
    fn a_group_without_controllers_counts_nothing() {
        let stats = stats(&[("memory.current", "4096\n")]);
        assert_eq!(stats.memory, MemoryV2::default());
        assert_eq!((stats.events, stats.cpu_pressure), (None, None));
        assert_eq!(stats.hugetlb[0].max, 0);
    }
}
