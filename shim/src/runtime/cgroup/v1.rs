//! Version 1: a folder of files for each controller. A controller without its files is left out.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use containerd_shim_protos::cgroups::metrics::{
    BlkIOEntry, BlkIOStat, CPUStat, CPUUsage, HugetlbStat, MemoryEntry, MemoryOomControl,
    MemoryStat, Metrics, PidsStat, RdmaEntry, RdmaStat, Throttle,
};
use protobuf::MessageField;

use super::Machine;
use super::files::{device, hugepage_sizes, limited, pairs, rdma};

/// What the kernel counts in a second of `cpuacct.stat`: USER_HZ, 100 on every architecture that containers run on.
const TICKS_PER_SECOND: u64 = 100;
const NS_PER_SECOND: u64 = 1_000_000_000;

pub(super) fn read(dirs: &HashMap<String, PathBuf>, machine: Machine<'_>) -> Metrics {
    let dir = |name: &str| dirs.get(name).filter(|dir| dir.exists());
    Metrics {
        hugetlb: dir("hugetlb").map_or_else(Vec::new, |dir| hugetlb(dir, machine.hugepages)),
        pids: dir("pids").and_then(|dir| pids(dir)).into(),
        cpu: MessageField::some(cpu(dir("cpuacct"), dir("cpu"))),
        memory: dir("memory").and_then(|dir| memory(dir)).into(),
        blkio: dir("blkio")
            .map(|dir| blkio(dir, machine.partitions))
            .into(),
        rdma: dir("rdma").and_then(|dir| rdma_stat(dir)).into(),
        memory_oom_control: dir("memory").and_then(|dir| oom(dir)).into(),
        ..Default::default()
    }
}

/// No limit is 0.
fn pids(dir: &Path) -> Option<PidsStat> {
    Some(PidsStat {
        current: limited(&dir.join("pids.current"))?,
        limit: limited(&dir.join("pids.max")).unwrap_or(0),
        ..Default::default()
    })
}

fn cpu(cpuacct: Option<&PathBuf>, cpu: Option<&PathBuf>) -> CPUStat {
    let ns = |ticks: u64| ticks.saturating_mul(NS_PER_SECOND / TICKS_PER_SECOND);
    let mut usage = CPUUsage::default();
    if let Some(dir) = cpuacct {
        let stat = pairs(&dir.join("cpuacct.stat")).unwrap_or_default();
        usage.user = ns(stat.of("user"));
        usage.kernel = ns(stat.of("system"));
        usage.total = limited(&dir.join("cpuacct.usage")).unwrap_or(0);
        let each = fs::read_to_string(dir.join("cpuacct.usage_percpu")).unwrap_or_default();
        let arguments = each.split_whitespace();
        usage.per_cpu = arguments
            .filter_map(|argument| argument.parse().ok())
            .collect();
    }
    let stat = cpu.and_then(|dir| pairs(&dir.join("cpu.stat")));
    let stat = stat.unwrap_or_default();
    CPUStat {
        usage: MessageField::some(usage),
        throttling: MessageField::some(Throttle {
            periods: stat.of("nr_periods"),
            throttled_periods: stat.of("nr_throttled"),
            throttled_time: stat.of("throttled_time"),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn memory(dir: &Path) -> Option<MemoryStat> {
    let stat = pairs(&dir.join("memory.stat"))?;
    let entry = |prefix: &str| {
        let of = |name: &str| limited(&dir.join(format!("{prefix}{name}"))).unwrap_or(0);
        MessageField::some(MemoryEntry {
            limit: of("limit_in_bytes"),
            usage: of("usage_in_bytes"),
            max: of("max_usage_in_bytes"),
            failcnt: of("failcnt"),
            ..Default::default()
        })
    };
    Some(counted!(MemoryStat, stat, {
        cache rss rss_huge mapped_file dirty writeback
        inactive_anon active_anon inactive_file active_file unevictable hierarchical_memory_limit
        total_cache total_rss total_rss_huge total_mapped_file total_dirty total_writeback
        total_inactive_anon total_active_anon total_inactive_file total_active_file
        total_unevictable
    },
        pg_pg_in: stat.of("pgpgin"),
        pg_pg_out: stat.of("pgpgout"),
        pg_fault: stat.of("pgfault"),
        pg_maj_fault: stat.of("pgmajfault"),
        hierarchical_swap_limit: stat.of("hierarchical_memsw_limit"),
        total_pg_pg_in: stat.of("total_pgpgin"),
        total_pg_pg_out: stat.of("total_pgpgout"),
        total_pg_fault: stat.of("total_pgfault"),
        total_pg_maj_fault: stat.of("total_pgmajfault"),
        usage: entry("memory."),
        swap: entry("memory.memsw."),
        kernel: entry("memory.kmem."),
        kernel_tcp: entry("memory.kmem.tcp.")
    ))
}

fn oom(dir: &Path) -> Option<MemoryOomControl> {
    let control = pairs(&dir.join("memory.oom_control"))?;
    Some(counted!(MemoryOomControl, control, { oom_kill_disable under_oom oom_kill }))
}

fn rdma_stat(dir: &Path) -> Option<RdmaStat> {
    let [current, limit] = rdma(dir, |device, hca_handles, hca_objects| RdmaEntry {
        device,
        hca_handles,
        hca_objects,
        ..Default::default()
    })?;
    Some(RdmaStat {
        current,
        limit,
        ..Default::default()
    })
}

fn hugetlb(dir: &Path, hugepages: &Path) -> Vec<HugetlbStat> {
    let of = |pagesize: String| {
        let count = |what: &str| limited(&dir.join(format!("hugetlb.{pagesize}.{what}")));
        Some(HugetlbStat {
            usage: count("usage_in_bytes")?,
            max: count("max_usage_in_bytes")?,
            failcnt: count("failcnt")?,
            pagesize,
            ..Default::default()
        })
    };
    let sizes = hugepage_sizes(hugepages);
    sizes.into_iter().filter_map(of).collect()
}

/// Where an I/O scheduler counts by itself (`blkio.io_serviced_recursive`) its numbers are taken, else those of the throttling
/// layer, which has the first two only.
fn blkio(dir: &Path, partitions: &Path) -> BlkIOStat {
    let devices = block_devices(partitions);
    let lines = |name: &str| blkio_lines(&dir.join(format!("blkio.{name}")), &devices);
    let scheduler = BlkIOStat {
        io_service_bytes_recursive: lines("io_service_bytes_recursive"),
        io_serviced_recursive: lines("io_serviced_recursive"),
        io_queued_recursive: lines("io_queued_recursive"),
        io_service_time_recursive: lines("io_service_time_recursive"),
        io_wait_time_recursive: lines("io_wait_time_recursive"),
        io_merged_recursive: lines("io_merged_recursive"),
        io_time_recursive: lines("time_recursive"),
        sectors_recursive: lines("sectors_recursive"),
        ..Default::default()
    };
    if scheduler != BlkIOStat::default() {
        return scheduler;
    }
    BlkIOStat {
        io_service_bytes_recursive: lines("throttle.io_service_bytes"),
        io_serviced_recursive: lines("throttle.io_serviced"),
        ..Default::default()
    }
}

/// `8:0 Read 4096` or `8:0 4096`; the last line, `Total 4096`, names no device. A device that the kernel lists no more has no path.
fn blkio_lines(path: &Path, devices: &HashMap<(u64, u64), String>) -> Vec<BlkIOEntry> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let one = |line: &str| {
        let mut arguments = line.split_whitespace();
        let (major, minor) = device(arguments.next()?)?;
        let (operation, value) = match (arguments.next()?, arguments.next()) {
            (operation, Some(value)) => (operation, value),
            (value, None) => ("", value),
        };
        Some(BlkIOEntry {
            device: devices.get(&(major, minor)).cloned().unwrap_or_default(),
            major,
            minor,
            op: operation.to_owned(),
            value: value.parse().ok()?,
            ..Default::default()
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
    use crate::runtime::cgroup::{Cgroup, Stats};

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

        fn stats(&self) -> Metrics {
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

    fn of_entry(entry: &MessageField<MemoryEntry>) -> [u64; 4] {
        [entry.limit, entry.usage, entry.max, entry.failcnt]
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
        let pids = stats.pids.unwrap();
        assert_eq!((pids.current, pids.limit), (3, 0));
        let usage = &stats.cpu.usage;
        assert_eq!(
            (usage.total, usage.kernel, usage.user),
            (123_456_789, 50_000_000, 70_000_000)
        );
        assert_eq!(usage.per_cpu, [100_000_000, 23_456_789]);
        let throttling = &stats.cpu.throttling;
        assert_eq!(
            (
                throttling.periods,
                throttling.throttled_periods,
                throttling.throttled_time
            ),
            (5, 2, 77)
        );
        let memory = stats.memory.unwrap();
        assert_eq!((memory.cache, memory.rss, memory.dirty), (1, 2, 0));
        assert_eq!(memory.hierarchical_swap_limit, 9);
        assert_eq!(
            [
                &memory.usage,
                &memory.swap,
                &memory.kernel,
                &memory.kernel_tcp
            ]
            .map(of_entry),
            [
                [67_108_864, 4_096, 8_192, 6],
                [134_217_728, 0, 0, 0],
                [0, 12, 0, 0],
                [0, 13, 0, 0]
            ]
        );
        let oom = stats.memory_oom_control.unwrap();
        assert_eq!(
            (oom.oom_kill_disable, oom.under_oom, oom.oom_kill),
            (1, 0, 4)
        );
        let [huge] = &stats.hugetlb[..] else {
            panic!("{:?}", stats.hugetlb)
        };
        assert_eq!(
            (huge.pagesize.as_str(), huge.usage, huge.max, huge.failcnt),
            ("2MB", 2_097_152, 4_194_304, 1)
        );
        let rdma = stats.rdma.unwrap();
        let device = |hca_handles, hca_objects| RdmaEntry {
            device: "mlx4_0".into(),
            hca_handles,
            hca_objects,
            ..Default::default()
        };
        assert_eq!(rdma.current, [device(2, 3)]);
        assert_eq!(rdma.limit, [device(8, u32::MAX)]);
        let blkio = stats.blkio.unwrap();
        let of = |device: &str, major, minor, operation: &str, value| BlkIOEntry {
            device: device.into(),
            major,
            minor,
            op: operation.into(),
            value,
            ..Default::default()
        };
        assert_eq!(
            blkio.io_service_bytes_recursive,
            [
                of("/dev/sda", 8, 0, "Read", 4_096),
                of("/dev/sda", 8, 0, "Total", 4_096)
            ]
        );
        assert_eq!(
            blkio.io_serviced_recursive,
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
        assert_eq!(blkio.io_serviced_recursive[0].value, 2);
        let time = &blkio.io_time_recursive[0];
        assert_eq!((time.op.as_str(), time.value), ("", 30));
    }

    #[test]
    fn controllers_that_are_not_there_are_left_out() {
        let cpu = CPUStat {
            usage: MessageField::some(CPUUsage::default()),
            throttling: MessageField::some(Throttle::default()),
            ..Default::default()
        };
        let nothing = Metrics {
            cpu: MessageField::some(cpu),
            ..Default::default()
        };
        assert_eq!(Tree::new(&[]).stats(), nothing);
        // A kernel without accounting of swap and of the kernel's memory.
        let partly = Tree::new(&[
            ("memory/memory.stat", "cache 1\n"),
            ("memory/memory.limit_in_bytes", "5\n"),
        ]);
        let stats = partly.stats();
        let memory = stats.memory.unwrap();
        assert_eq!(of_entry(&memory.usage), [5, 0, 0, 0]);
        assert!(memory.swap.is_some() && stats.memory_oom_control.is_none());
    }
}
