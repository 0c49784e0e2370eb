//! Version 2: one folder. What a controller that is not enabled would count is 0.

use std::fs;
use std::path::Path;

use containerd_shim_protos::cgroups_v2::metrics::{
    CPUStat, HugeTlbStat, IOEntry, IOStat, MemoryEvents, MemoryStat, Metrics, PSIData, PSIStats,
    PidsStat, RdmaEntry, RdmaStat,
};
use protobuf::MessageField;

use super::Machine;
use super::files::{counts, device, hugepage_sizes, number, pairs, rdma};

/// No limit is the greatest number. Without a controller's statistics its other numbers are left out too.
pub(super) fn read(dir: &Path, machine: Machine<'_>) -> Metrics {
    let number = |name: &str| number(&dir.join(name));
    Metrics {
        pids: MessageField::some(PidsStat {
            current: number("pids.current"),
            limit: number("pids.max"),
            ..Default::default()
        }),
        cpu: MessageField::some(cpu(dir).unwrap_or_default()),
        memory: MessageField::some(memory(dir).unwrap_or_default()),
        rdma: MessageField::some(rdma_stat(dir).unwrap_or_default()),
        io: MessageField::some(IOStat {
            usage: fs::read_to_string(dir.join("io.stat"))
                .unwrap_or_default()
                .lines()
                .filter_map(io_line)
                .collect(),
            psi: pressures(&dir.join("io.pressure")),
            ..Default::default()
        }),
        hugetlb: hugetlb(dir, machine.hugepages),
        memory_events: pairs(&dir.join("memory.events"))
            .map(|events| {
                counted!(MemoryEvents, events, { low high max oom oom_kill oom_group_kill })
            })
            .into(),
        ..Default::default()
    }
}

fn cpu(dir: &Path) -> Option<CPUStat> {
    let stat = pairs(&dir.join("cpu.stat"))?;
    Some(counted!(CPUStat, stat, {
        usage_usec user_usec system_usec nr_periods nr_throttled throttled_usec nr_bursts burst_usec
    }, psi: pressures(&dir.join("cpu.pressure"))))
}

/// Fields of containerd's message that are newer than the generated code, by number: what replaces
/// `workingset_refault` and `workingset_activate`, which Linux has not counted since 5.9.
const WORKINGSET: [(u32, &str); 4] = [
    (39, "workingset_refault_anon"),
    (40, "workingset_refault_file"),
    (41, "workingset_activate_anon"),
    (42, "workingset_activate_file"),
];

fn memory(dir: &Path) -> Option<MemoryStat> {
    let stat = pairs(&dir.join("memory.stat"))?;
    let number = |name: &str| number(&dir.join(name));
    let mut message = counted!(MemoryStat, stat, {
        anon file kernel_stack slab sock shmem file_mapped file_dirty file_writeback anon_thp
        inactive_anon active_anon inactive_file active_file unevictable
        slab_reclaimable slab_unreclaimable pgfault pgmajfault
        workingset_refault workingset_activate workingset_nodereclaim
        pgrefill pgscan pgsteal pgactivate pgdeactivate pglazyfree pglazyfreed
        thp_fault_alloc thp_collapse_alloc
    },
        usage: number("memory.current"),
        usage_limit: number("memory.max"),
        max_usage: number("memory.peak"),
        swap_usage: number("memory.swap.current"),
        swap_limit: number("memory.swap.max"),
        swap_max_usage: number("memory.swap.peak"),
        psi: pressures(&dir.join("memory.pressure"))
    );
    for (number, name) in WORKINGSET {
        if let count @ 1.. = stat.of(name) {
            let unknown = message.special_fields.mut_unknown_fields();
            unknown.add_varint(number, count);
        }
    }
    Some(message)
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

fn hugetlb(dir: &Path, hugepages: &Path) -> Vec<HugeTlbStat> {
    let of = |pagesize: String| {
        let at = |what: &str| dir.join(format!("hugetlb.{pagesize}.{what}"));
        HugeTlbStat {
            current: number(&at("current")),
            max: number(&at("max")),
            failcnt: pairs(&at("events")).unwrap_or_default().of("max"),
            pagesize,
            ..Default::default()
        }
    };
    hugepage_sizes(hugepages).into_iter().map(of).collect()
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn io_line(line: &str) -> Option<IOEntry> {
    let (numbers, rest) = line.split_once(' ')?;
    let (major, minor) = device(numbers)?;
    let counts = counts(rest.split_whitespace(), '=');
    Some(counted!(IOEntry, counts, { rbytes wbytes rios wios }, major: major, minor: minor))
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and the same of `full`; nothing where the kernel does not count it.
fn pressures(path: &Path) -> MessageField<PSIStats> {
    let read = |text: String| {
        let mut read = PSIStats::default();
        for line in text.lines() {
            let Some((name, rest)) = line.split_once(' ') else {
                continue;
            };
            match name {
                "some" => read.some = MessageField::some(pressure(rest)?),
                "full" => read.full = MessageField::some(pressure(rest)?),
                _ => {}
            }
        }
        Some(read)
    };
    fs::read_to_string(path).ok().and_then(read).into()
}

fn pressure(fields: &str) -> Option<PSIData> {
    let mut read = PSIData::default();
    for field in fields.split_whitespace() {
        let (key, value) = field.split_once('=')?;
        match key {
            "avg10" => read.avg10 = value.parse().ok()?,
            "avg60" => read.avg60 = value.parse().ok()?,
            "avg300" => read.avg300 = value.parse().ok()?,
            "total" => read.total = value.parse().ok()?,
            _ => {}
        }
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use protobuf::Message;

    use super::*;
    use crate::runtime::cgroup::{Cgroup, Stats};

    fn stats(files: &[(&str, &str)]) -> Metrics {
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
        assert_eq!((stats.pids.current, stats.pids.limit), (3, u64::MAX));
        let cpu = stats.cpu.unwrap();
        assert_eq!((cpu.usage_usec, cpu.user_usec, cpu.nr_bursts), (12, 7, 1));
        let some = &cpu.psi.some;
        assert_eq!(
            (some.avg10, some.avg60, some.avg300, some.total),
            (1.5, 0.25, 0.0, 99)
        );
        assert_eq!(cpu.psi.full.as_ref().unwrap().total, 7);
        let memory = stats.memory.unwrap();
        assert_eq!((memory.anon, memory.file, memory.slab), (10, 20, 0));
        assert_eq!(
            (memory.usage, memory.usage_limit, memory.max_usage),
            (4_096, 67_108_864, 8_192)
        );
        assert_eq!(
            (memory.swap_usage, memory.swap_limit, memory.swap_max_usage),
            (0, u64::MAX, 0)
        );
        assert!(memory.psi.is_none(), "not what a pressure file says");
        let events = stats.memory_events.unwrap();
        assert_eq!(
            (events.low, events.high, events.max, events.oom),
            (0, 1, 2, 3)
        );
        assert_eq!((events.oom_kill, events.oom_group_kill), (4, 5));
        let [io, without_counts] = &stats.io.usage[..] else {
            panic!("{:?}", stats.io)
        };
        assert_eq!((io.major, io.minor), (8, 0));
        assert_eq!((io.rbytes, io.wbytes, io.rios, io.wios), (1, 2, 3, 4));
        assert_eq!((without_counts.minor, without_counts.wbytes), (16, 0));
        let [huge] = &stats.hugetlb[..] else {
            panic!("{:?}", stats.hugetlb)
        };
        assert_eq!(
            (huge.pagesize.as_str(), huge.current, huge.max, huge.failcnt),
            ("2MB", 0, u64::MAX, 6)
        );
        let current = &stats.rdma.current[0];
        assert_eq!((current.hca_handles, current.hca_objects), (2, 3));
        assert_eq!(stats.rdma.limit[0].hca_handles, u32::MAX);
    }

    #[test]
    fn a_group_without_controllers_counts_nothing() {
        let stats = stats(&[("memory.current", "4096\n")]);
        assert_eq!(stats.memory, MessageField::some(MemoryStat::default()));
        assert_eq!(stats.cpu, MessageField::some(CPUStat::default()));
        assert!(stats.memory_events.is_none());
        assert_eq!(stats.hugetlb[0].max, 0);
    }

    #[test]
    fn newer_fields_travel_under_their_numbers() {
        let stats = stats(&[("memory.stat", "workingset_refault_file 300\n")]);
        let bytes = stats.memory.write_to_bytes().unwrap();
        // Field 40, varint: tag 0xc0 0x02; 300 is 0xac 0x02.
        assert_eq!(bytes, [0xc0, 0x02, 0xac, 0x02]);
    }
}
