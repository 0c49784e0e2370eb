//! Version 1: a folder of files for each controller. A controller without its files is left out.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::files::{device, hugepage_sizes, limited, pairs, rdma};
use super::{Machine, Pids, Rdma};

/// What the kernel counts in a second of `cpuacct.stat`: USER_HZ, 100 on every architecture that containers run on.
const TICKS_PER_SECOND: u64 = 100;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// Numbers of cgroup v1.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatsV1 {
    /// Processes; no limit is 0.
    pub pids: Option<Pids>,
    /// Processor time.
    pub cpu: CpuV1,
    /// Memory.
    pub memory: Option<MemoryV1>,
    /// `memory.oom_control`: oom_kill_disable, under_oom, oom_kill.
    pub oom: Option<[u64; 3]>,
    /// Block devices.
    pub blkio: Option<BlkioV1>,
    /// Huge pages, by size.
    pub hugetlb: Vec<HugetlbV1>,
    /// RDMA devices.
    pub rdma: Option<Rdma>,
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
}

/// Huge pages of one size, bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HugetlbV1 {
    /// E.g. `2MB`.
    pub size: String,
    /// Now.
    pub usage: u64,
    /// Most ever.
    pub max: u64,
    /// How often more was asked for than allowed.
    pub failures: u64,
}

/// Block devices. Where an I/O scheduler counts by itself (`blkio.io_serviced_recursive`) its numbers are taken, else those
/// of the throttling layer, which has the first two only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlkioV1 {
    /// Bytes.
    pub service_bytes: Vec<Blkio>,
    /// Operations.
    pub serviced: Vec<Blkio>,
    /// Operations that wait.
    pub queued: Vec<Blkio>,
    /// Nanoseconds of service.
    pub service_time: Vec<Blkio>,
    /// Nanoseconds of waiting.
    pub wait_time: Vec<Blkio>,
    /// Merged operations.
    pub merged: Vec<Blkio>,
    /// Milliseconds of the device.
    pub time: Vec<Blkio>,
    /// Sectors.
    pub sectors: Vec<Blkio>,
}

/// One line of a blkio file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blkio {
    /// Path of the device, empty if the kernel lists it no more.
    pub device: String,
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
    /// Read, Write, Sync, Async, Discard, Total; empty where the file has none.
    pub operation: String,
    /// Bytes or operations.
    pub value: u64,
}

pub(super) fn read(dirs: &HashMap<String, PathBuf>, machine: Machine<'_>) -> StatsV1 {
    let dir = |name: &str| dirs.get(name).filter(|dir| dir.exists());
    StatsV1 {
        pids: dir("pids").and_then(|dir| pids(dir)),
        cpu: cpu(dir("cpuacct"), dir("cpu")),
        memory: dir("memory").and_then(|dir| memory(dir)),
        oom: dir("memory").and_then(|dir| oom(dir)),
        blkio: dir("blkio").map(|dir| blkio(dir, machine.partitions)),
        hugetlb: dir("hugetlb").map_or_else(Vec::new, |dir| hugetlb(dir, machine.hugepages)),
        rdma: dir("rdma").and_then(|dir| rdma(dir)),
    }
}

fn pids(dir: &Path) -> Option<Pids> {
    Some(Pids {
        current: limited(&dir.join("pids.current"))?,
        limit: limited(&dir.join("pids.max")).unwrap_or(0),
    })
}

fn cpu(cpuacct: Option<&PathBuf>, cpu: Option<&PathBuf>) -> CpuV1 {
    let of = |map: &HashMap<String, u64>, name: &str| map.get(name).copied().unwrap_or(0);
    let ns = |ticks: u64| ticks.saturating_mul(NS_PER_SECOND / TICKS_PER_SECOND);
    let mut read = CpuV1::default();
    if let Some(dir) = cpuacct {
        let stat = pairs(&dir.join("cpuacct.stat")).unwrap_or_default();
        read.user_ns = ns(of(&stat, "user"));
        read.kernel_ns = ns(of(&stat, "system"));
        read.total_ns = limited(&dir.join("cpuacct.usage")).unwrap_or(0);
        let each = fs::read_to_string(dir.join("cpuacct.usage_percpu")).unwrap_or_default();
        let arguments = each.split_whitespace();
        read.per_cpu_ns = arguments
            .filter_map(|argument| argument.parse().ok())
            .collect();
    }
    if let Some(dir) = cpu {
        let stat = pairs(&dir.join("cpu.stat")).unwrap_or_default();
        read.throttling =
            ["nr_periods", "nr_throttled", "throttled_time"].map(|name| of(&stat, name));
    }
    read
}

fn memory(dir: &Path) -> Option<MemoryV1> {
    let stat = pairs(&dir.join("memory.stat"))?;
    let entry = |prefix: &str| {
        [
            "limit_in_bytes",
            "usage_in_bytes",
            "max_usage_in_bytes",
            "failcnt",
        ]
        .map(|name| limited(&dir.join(format!("{prefix}{name}"))).unwrap_or(0))
    };
    let entries = [
        "memory.",
        "memory.memsw.",
        "memory.kmem.",
        "memory.kmem.tcp.",
    ];
    Some(MemoryV1 {
        stat,
        entries: entries.map(entry),
    })
}

fn oom(dir: &Path) -> Option<[u64; 3]> {
    let control = pairs(&dir.join("memory.oom_control"))?;
    let names = ["oom_kill_disable", "under_oom", "oom_kill"];
    Some(names.map(|name| control.get(name).copied().unwrap_or(0)))
}

fn hugetlb(dir: &Path, hugepages: &Path) -> Vec<HugetlbV1> {
    let of = |size: String| {
        let count = |what: &str| limited(&dir.join(format!("hugetlb.{size}.{what}")));
        Some(HugetlbV1 {
            usage: count("usage_in_bytes")?,
            max: count("max_usage_in_bytes")?,
            failures: count("failcnt")?,
            size,
        })
    };
    let sizes = hugepage_sizes(hugepages);
    sizes.into_iter().filter_map(of).collect()
}

fn blkio(dir: &Path, partitions: &Path) -> BlkioV1 {
    let devices = block_devices(partitions);
    let lines = |name: &str| blkio_lines(&dir.join(format!("blkio.{name}")), &devices);
    let scheduler = BlkioV1 {
        service_bytes: lines("io_service_bytes_recursive"),
        serviced: lines("io_serviced_recursive"),
        queued: lines("io_queued_recursive"),
        service_time: lines("io_service_time_recursive"),
        wait_time: lines("io_wait_time_recursive"),
        merged: lines("io_merged_recursive"),
        time: lines("time_recursive"),
        sectors: lines("sectors_recursive"),
    };
    if scheduler != BlkioV1::default() {
        return scheduler;
    }
    BlkioV1 {
        service_bytes: lines("throttle.io_service_bytes"),
        serviced: lines("throttle.io_serviced"),
        ..BlkioV1::default()
    }
}

/// `8:0 Read 4096` or `8:0 4096`; the last line, `Total 4096`, names no device.
fn blkio_lines(path: &Path, devices: &HashMap<(u64, u64), String>) -> Vec<Blkio> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let one = |line: &str| {
        let mut arguments = line.split_whitespace();
        let (major, minor) = device(arguments.next()?)?;
        let (operation, value) = match (arguments.next()?, arguments.next()) {
            (operation, Some(value)) => (operation, value),
            (value, None) => ("", value),
        };
        Some(Blkio {
            device: devices.get(&(major, minor)).cloned().unwrap_or_default(),
            major,
            minor,
            operation: operation.to_owned(),
            value: value.parse().ok()?,
        })
    };
    text.lines().filter_map(one).collect()
}

/// `/proc/partitions`: two lines of heading, then `MAJOR MINOR BLOCKS NAME`.
fn block_devices(partitions: &Path) -> HashMap<(u64, u64), String> {
    let text = fs::read_to_string(partitions).unwrap_or_default();
    let one = |line: &str| {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let [major, minor, _blocks, name] = arguments[..] else {
            return None;
        };
        let numbers = (major.parse().ok()?, minor.parse().ok()?);
        Some((numbers, format!("/dev/{name}")))
    };
    text.lines().skip(2).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::cgroup::{Cgroup, RdmaDevice, Stats};

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = dir.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(dir)
        }

        fn stats(&self) -> StatsV1 {
            let at = |name: &str| (name.to_owned(), self.0.path().join(name));
            let controllers = [
                "pids", "cpu", "cpuacct", "memory", "blkio", "hugetlb", "rdma",
            ];
            let cgroup = Cgroup::V1 {
                dirs: controllers.map(at).into(),
            };
            let stats = cgroup.stats_on(Machine {
                partitions: &self.0.path().join("partitions"),
                hugepages: &self.0.path().join("hugepages"),
            });
            let Stats::V1(stats) = stats else {
                panic!("not v1")
            };
            *stats
        }
    }

    #[test]
    fn every_controller_is_read() {
        let tree = Tree::new(&[
            ("pids/pids.current", "3\n"),
            ("pids/pids.max", "max\n"),
            (
                "cpu/cpu.stat",
                "nr_periods 5\nnr_throttled 2\nthrottled_time 77\n",
            ),
            ("cpuacct/cpuacct.usage", "123456789\n"),
            ("cpuacct/cpuacct.usage_percpu", "100000000 23456789 \n"),
            ("cpuacct/cpuacct.stat", "user 7\nsystem 5\n"),
            (
                "memory/memory.stat",
                "cache 1\nrss 2\nhierarchical_memsw_limit 9\n",
            ),
            ("memory/memory.limit_in_bytes", "67108864\n"),
            ("memory/memory.usage_in_bytes", "4096\n"),
            ("memory/memory.max_usage_in_bytes", "8192\n"),
            ("memory/memory.failcnt", "6\n"),
            ("memory/memory.memsw.limit_in_bytes", "134217728\n"),
            ("memory/memory.kmem.usage_in_bytes", "12\n"),
            ("memory/memory.kmem.tcp.usage_in_bytes", "13\n"),
            (
                "memory/memory.oom_control",
                "oom_kill_disable 1\nunder_oom 0\noom_kill 4\n",
            ),
            ("hugetlb/hugetlb.2MB.usage_in_bytes", "2097152\n"),
            ("hugetlb/hugetlb.2MB.max_usage_in_bytes", "4194304\n"),
            ("hugetlb/hugetlb.2MB.failcnt", "1\n"),
            ("hugetlb/hugetlb.2MB.rsvd.usage_in_bytes", "5\n"),
            ("hugepages/hugepages-2048kB/x", ""),
            ("rdma/rdma.current", "mlx4_0 hca_handle=2 hca_object=3\n"),
            ("rdma/rdma.max", "mlx4_0 hca_handle=8 hca_object=max\n"),
            (
                "blkio/blkio.throttle.io_service_bytes",
                "8:0 Read 4096\n8:0 Total 4096\nTotal 4096\n",
            ),
            (
                "blkio/blkio.throttle.io_serviced",
                "8:0 Read 1\n9:9 Write 2\n",
            ),
            (
                "partitions",
                "major minor  #blocks  name\n\n   8        0  1048576 sda\n",
            ),
        ]);
        let stats = tree.stats();
        assert_eq!(
            stats.pids,
            Some(Pids {
                current: 3,
                limit: 0
            })
        );
        assert_eq!(
            stats.cpu,
            CpuV1 {
                total_ns: 123_456_789,
                kernel_ns: 50_000_000,
                user_ns: 70_000_000,
                per_cpu_ns: vec![100_000_000, 23_456_789],
                throttling: [5, 2, 77],
            }
        );
        let memory = stats.memory.unwrap();
        assert_eq!(memory.stat["hierarchical_memsw_limit"], 9);
        assert_eq!(
            memory.entries,
            [
                [67_108_864, 4_096, 8_192, 6],
                [134_217_728, 0, 0, 0],
                [0, 12, 0, 0],
                [0, 13, 0, 0]
            ]
        );
        assert_eq!(stats.oom, Some([1, 0, 4]));
        let [huge] = &stats.hugetlb[..] else {
            panic!("{:?}", stats.hugetlb)
        };
        assert_eq!(
            (huge.size.as_str(), huge.usage, huge.max, huge.failures),
            ("2MB", 2_097_152, 4_194_304, 1)
        );
        let rdma = stats.rdma.unwrap();
        let device = |handles, objects| RdmaDevice {
            device: "mlx4_0".into(),
            handles,
            objects,
        };
        assert_eq!(rdma.current, [device(2, 3)]);
        assert_eq!(rdma.limit, [device(8, u32::MAX)]);
        let blkio = stats.blkio.unwrap();
        let of = |device: &str, major, minor, operation: &str, value| Blkio {
            device: device.into(),
            major,
            minor,
            operation: operation.into(),
            value,
        };
        assert_eq!(
            blkio.service_bytes,
            [
                of("/dev/sda", 8, 0, "Read", 4_096),
                of("/dev/sda", 8, 0, "Total", 4_096)
            ]
        );
        assert_eq!(
            blkio.serviced,
            [of("/dev/sda", 8, 0, "Read", 1), of("", 9, 9, "Write", 2)]
        );
    }

    #[test]
    fn a_scheduler_that_counts_comes_before_the_throttling_layer() {
        let tree = Tree::new(&[
            ("blkio/blkio.throttle.io_serviced", "8:0 Read 1\n"),
            ("blkio/blkio.io_serviced_recursive", "8:0 Read 2\n"),
            ("blkio/blkio.time_recursive", "8:0 30\n"),
        ]);
        let blkio = tree.stats().blkio.unwrap();
        assert_eq!(blkio.serviced[0].value, 2);
        assert_eq!(
            (blkio.time[0].operation.as_str(), blkio.time[0].value),
            ("", 30)
        );
    }

    #[test]
    fn controllers_that_are_not_there_are_left_out() {
        assert_eq!(Tree::new(&[]).stats(), StatsV1::default());
        // A kernel without accounting of swap and of the kernel's memory.
        let partly = Tree::new(&[
            ("memory/memory.stat", "cache 1\n"),
            ("memory/memory.limit_in_bytes", "5\n"),
        ]);
        let stats = partly.stats();
        assert_eq!(stats.memory.unwrap().entries[0], [5, 0, 0, 0]);
        assert_eq!(stats.oom, None);
    }
}
