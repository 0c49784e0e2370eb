//! What control groups count, as containerd's two metrics messages. A message is left out where containerd's own shim
//! leaves it out.

use std::collections::HashMap;

use containerd_shim_protos::{cgroups, cgroups_v2};
use protobuf::MessageField;
use protobuf::well_known_types::any::Any;

use super::any;
use crate::error::Result;
use crate::runtime::{
    Blkio, BlkioV1, HugetlbV1, HugetlbV2, IoV2, MemoryV1, MemoryV2, Pressure, Pressures,
    RdmaDevice, Stats, StatsV1, StatsV2,
};

/// Encodes numbers under their type's name.
pub(super) fn metrics(stats: &Stats) -> Result<Any> {
    match stats {
        Stats::V1(stats) => any::pack("metrics", "io.containerd.cgroups.v1", &v1(stats)),
        Stats::V2(stats) => any::pack("metrics", "io.containerd.cgroups.v2", &v2(stats)),
    }
}

fn reader(map: &HashMap<String, u64>) -> impl Fn(&str) -> u64 {
    |name| map.get(name).copied().unwrap_or(0)
}

fn v1(stats: &StatsV1) -> cgroups::metrics::Metrics {
    use cgroups::metrics::{
        CPUStat, CPUUsage, MemoryOomControl, Metrics, PidsStat, RdmaEntry, RdmaStat, Throttle,
    };
    let [periods, throttled_periods, throttled_time] = stats.cpu.throttling;
    let oom = |[oom_kill_disable, under_oom, oom_kill]: [u64; 3]| MemoryOomControl {
        oom_kill_disable,
        under_oom,
        oom_kill,
        ..Default::default()
    };
    let rdma_entry = |entry: &RdmaDevice| RdmaEntry {
        device: entry.device.clone(),
        hca_handles: entry.handles,
        hca_objects: entry.objects,
        ..Default::default()
    };
    Metrics {
        hugetlb: stats.hugetlb.iter().map(hugetlb_v1).collect(),
        pids: stats
            .pids
            .map(|pids| PidsStat {
                current: pids.current,
                limit: pids.limit,
                ..Default::default()
            })
            .into(),
        cpu: MessageField::some(CPUStat {
            usage: MessageField::some(CPUUsage {
                total: stats.cpu.total_ns,
                kernel: stats.cpu.kernel_ns,
                user: stats.cpu.user_ns,
                per_cpu: stats.cpu.per_cpu_ns.clone(),
                ..Default::default()
            }),
            throttling: MessageField::some(Throttle {
                periods,
                throttled_periods,
                throttled_time,
                ..Default::default()
            }),
            ..Default::default()
        }),
        memory: stats.memory.as_ref().map(memory_v1).into(),
        blkio: stats.blkio.as_ref().map(blkio_v1).into(),
        rdma: stats
            .rdma
            .as_ref()
            .map(|rdma| RdmaStat {
                current: rdma.current.iter().map(rdma_entry).collect(),
                limit: rdma.limit.iter().map(rdma_entry).collect(),
                ..Default::default()
            })
            .into(),
        memory_oom_control: stats.oom.map(oom).into(),
        ..Default::default()
    }
}

fn hugetlb_v1(size: &HugetlbV1) -> cgroups::metrics::HugetlbStat {
    cgroups::metrics::HugetlbStat {
        usage: size.usage,
        max: size.max,
        failcnt: size.failures,
        pagesize: size.size.clone(),
        ..Default::default()
    }
}

fn blkio_v1(blkio: &BlkioV1) -> cgroups::metrics::BlkIOStat {
    use cgroups::metrics::{BlkIOEntry, BlkIOStat};
    let entry = |entry: &Blkio| BlkIOEntry {
        op: entry.operation.clone(),
        device: entry.device.clone(),
        major: entry.major,
        minor: entry.minor,
        value: entry.value,
        ..Default::default()
    };
    let entries = |of: &[Blkio]| of.iter().map(entry).collect();
    BlkIOStat {
        io_service_bytes_recursive: entries(&blkio.service_bytes),
        io_serviced_recursive: entries(&blkio.serviced),
        io_queued_recursive: entries(&blkio.queued),
        io_service_time_recursive: entries(&blkio.service_time),
        io_wait_time_recursive: entries(&blkio.wait_time),
        io_merged_recursive: entries(&blkio.merged),
        io_time_recursive: entries(&blkio.time),
        sectors_recursive: entries(&blkio.sectors),
        ..Default::default()
    }
}

fn memory_v1(memory: &MemoryV1) -> cgroups::metrics::MemoryStat {
    use cgroups::metrics::{MemoryEntry, MemoryStat};
    let of = reader(&memory.stat);
    let entry = |[limit, usage, max, failcnt]: [u64; 4]| {
        MessageField::some(MemoryEntry {
            limit,
            usage,
            max,
            failcnt,
            ..Default::default()
        })
    };
    let [usage, swap, kernel, kernel_tcp] = memory.entries;
    MemoryStat {
        cache: of("cache"),
        rss: of("rss"),
        rss_huge: of("rss_huge"),
        mapped_file: of("mapped_file"),
        dirty: of("dirty"),
        writeback: of("writeback"),
        pg_pg_in: of("pgpgin"),
        pg_pg_out: of("pgpgout"),
        pg_fault: of("pgfault"),
        pg_maj_fault: of("pgmajfault"),
        inactive_anon: of("inactive_anon"),
        active_anon: of("active_anon"),
        inactive_file: of("inactive_file"),
        active_file: of("active_file"),
        unevictable: of("unevictable"),
        hierarchical_memory_limit: of("hierarchical_memory_limit"),
        hierarchical_swap_limit: of("hierarchical_memsw_limit"),
        total_cache: of("total_cache"),
        total_rss: of("total_rss"),
        total_rss_huge: of("total_rss_huge"),
        total_mapped_file: of("total_mapped_file"),
        total_dirty: of("total_dirty"),
        total_writeback: of("total_writeback"),
        total_pg_pg_in: of("total_pgpgin"),
        total_pg_pg_out: of("total_pgpgout"),
        total_pg_fault: of("total_pgfault"),
        total_pg_maj_fault: of("total_pgmajfault"),
        total_inactive_anon: of("total_inactive_anon"),
        total_active_anon: of("total_active_anon"),
        total_inactive_file: of("total_inactive_file"),
        total_active_file: of("total_active_file"),
        total_unevictable: of("total_unevictable"),
        usage: entry(usage),
        swap: entry(swap),
        kernel: entry(kernel),
        kernel_tcp: entry(kernel_tcp),
        ..Default::default()
    }
}

fn v2(stats: &StatsV2) -> cgroups_v2::metrics::Metrics {
    use cgroups_v2::metrics::{
        CPUStat, HugeTlbStat, IOEntry, IOStat, MemoryEvents, Metrics, PidsStat, RdmaEntry, RdmaStat,
    };
    let cpu = reader(&stats.cpu);
    let io = |device: &IoV2| {
        let of = reader(&device.counts);
        IOEntry {
            major: device.major,
            minor: device.minor,
            rbytes: of("rbytes"),
            wbytes: of("wbytes"),
            rios: of("rios"),
            wios: of("wios"),
            ..Default::default()
        }
    };
    let rdma = |entry: &RdmaDevice| RdmaEntry {
        device: entry.device.clone(),
        hca_handles: entry.handles,
        hca_objects: entry.objects,
        ..Default::default()
    };
    let hugetlb = |size: &HugetlbV2| HugeTlbStat {
        current: size.current,
        max: size.max,
        pagesize: size.size.clone(),
        failcnt: size.failures,
        ..Default::default()
    };
    let events = |events: &HashMap<String, u64>| {
        let of = reader(events);
        MemoryEvents {
            low: of("low"),
            high: of("high"),
            max: of("max"),
            oom: of("oom"),
            oom_kill: of("oom_kill"),
            oom_group_kill: of("oom_group_kill"),
            ..Default::default()
        }
    };
    Metrics {
        pids: MessageField::some(PidsStat {
            current: stats.pids.current,
            limit: stats.pids.limit,
            ..Default::default()
        }),
        cpu: MessageField::some(CPUStat {
            usage_usec: cpu("usage_usec"),
            user_usec: cpu("user_usec"),
            system_usec: cpu("system_usec"),
            nr_periods: cpu("nr_periods"),
            nr_throttled: cpu("nr_throttled"),
            throttled_usec: cpu("throttled_usec"),
            nr_bursts: cpu("nr_bursts"),
            burst_usec: cpu("burst_usec"),
            psi: stats.cpu_pressure.as_ref().map(pressures).into(),
            ..Default::default()
        }),
        memory: MessageField::some(memory_v2(&stats.memory)),
        rdma: MessageField::some(RdmaStat {
            current: stats.rdma.current.iter().map(rdma).collect(),
            limit: stats.rdma.limit.iter().map(rdma).collect(),
            ..Default::default()
        }),
        io: MessageField::some(IOStat {
            usage: stats.io.iter().map(io).collect(),
            psi: stats.io_pressure.as_ref().map(pressures).into(),
            ..Default::default()
        }),
        hugetlb: stats.hugetlb.iter().map(hugetlb).collect(),
        memory_events: stats.events.as_ref().map(events).into(),
        ..Default::default()
    }
}

fn pressures(pressures: &Pressures) -> cgroups_v2::metrics::PSIStats {
    use cgroups_v2::metrics::{PSIData, PSIStats};
    let data = |pressure: &Pressure| {
        let [avg10, avg60, avg300] = pressure.averages;
        PSIData {
            avg10,
            avg60,
            avg300,
            total: pressure.total_us,
            ..Default::default()
        }
    };
    PSIStats {
        some: pressures.some.as_ref().map(data).into(),
        full: pressures.full.as_ref().map(data).into(),
        ..Default::default()
    }
}

/// Fields of containerd's message that are newer than the generated code, by number: what replaces
/// `workingset_refault` and `workingset_activate`, which Linux has not counted since 5.9.
const WORKINGSET: [(u32, &str); 4] = [
    (39, "workingset_refault_anon"),
    (40, "workingset_refault_file"),
    (41, "workingset_activate_anon"),
    (42, "workingset_activate_file"),
];

fn memory_v2(memory: &MemoryV2) -> cgroups_v2::metrics::MemoryStat {
    let of = reader(&memory.stat);
    let [usage, usage_limit, max_usage] = memory.memory;
    let [swap_usage, swap_limit, swap_max_usage] = memory.swap;
    let mut message = cgroups_v2::metrics::MemoryStat {
        anon: of("anon"),
        file: of("file"),
        kernel_stack: of("kernel_stack"),
        slab: of("slab"),
        sock: of("sock"),
        shmem: of("shmem"),
        file_mapped: of("file_mapped"),
        file_dirty: of("file_dirty"),
        file_writeback: of("file_writeback"),
        anon_thp: of("anon_thp"),
        inactive_anon: of("inactive_anon"),
        active_anon: of("active_anon"),
        inactive_file: of("inactive_file"),
        active_file: of("active_file"),
        unevictable: of("unevictable"),
        slab_reclaimable: of("slab_reclaimable"),
        slab_unreclaimable: of("slab_unreclaimable"),
        pgfault: of("pgfault"),
        pgmajfault: of("pgmajfault"),
        workingset_refault: of("workingset_refault"),
        workingset_activate: of("workingset_activate"),
        workingset_nodereclaim: of("workingset_nodereclaim"),
        pgrefill: of("pgrefill"),
        pgscan: of("pgscan"),
        pgsteal: of("pgsteal"),
        pgactivate: of("pgactivate"),
        pgdeactivate: of("pgdeactivate"),
        pglazyfree: of("pglazyfree"),
        pglazyfreed: of("pglazyfreed"),
        thp_fault_alloc: of("thp_fault_alloc"),
        thp_collapse_alloc: of("thp_collapse_alloc"),
        usage,
        usage_limit,
        max_usage,
        swap_usage,
        swap_limit,
        swap_max_usage,
        psi: memory.pressure.as_ref().map(pressures).into(),
        ..Default::default()
    };
    for (number, name) in WORKINGSET {
        if let count @ 1.. = of(name) {
            let unknown = message.special_fields.mut_unknown_fields();
            unknown.add_varint(number, count);
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use protobuf::Message;

    use super::*;

    #[test]
    fn what_is_not_counted_on_v1_is_left_out() {
        let message = v1(&StatsV1::default());
        assert!(message.pids.is_none() && message.memory.is_none() && message.blkio.is_none());
        assert!(message.memory_oom_control.is_none() && message.rdma.is_none());
        assert!(message.cpu.usage.is_some() && message.cpu.throttling.is_some());
    }

    #[test]
    fn newer_fields_travel_under_their_numbers() {
        let stat = HashMap::from([("workingset_refault_file".to_owned(), 300)]);
        let message = memory_v2(&MemoryV2 {
            stat,
            ..MemoryV2::default()
        });
        let bytes = message.write_to_bytes().unwrap();
        // Field 40, varint: tag 0xc0 0x02; 300 is 0xac 0x02.
        assert_eq!(bytes, [0xc0, 0x02, 0xac, 0x02]);
    }
}
