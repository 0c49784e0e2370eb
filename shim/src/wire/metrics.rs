//! What control groups count, as containerd's two metrics messages.

use std::collections::HashMap;

use containerd_shim_protos::{cgroups, cgroups_v2};
use protobuf::well_known_types::any::Any;
use protobuf::{Message, MessageField};

use crate::error::{Error, Result};
use crate::runtime::{Blkio, Stats, StatsV1, StatsV2};

/// Encodes numbers under their type's name.
pub(super) fn metrics(stats: &Stats) -> Result<Any> {
    let (kind, value) = match stats {
        Stats::V1(stats) => (
            "io.containerd.cgroups.v1.Metrics",
            v1(stats).write_to_bytes(),
        ),
        Stats::V2(stats) => (
            "io.containerd.cgroups.v2.Metrics",
            v2(stats).write_to_bytes(),
        ),
    };
    let value = value.map_err(|source| Error::Protobuf {
        what: "metrics",
        source,
    })?;
    Ok(Any {
        type_url: kind.to_owned(),
        value,
        ..Any::default()
    })
}

fn v1(stats: &StatsV1) -> cgroups::metrics::Metrics {
    use cgroups::metrics::{
        BlkIOEntry, BlkIOStat, CPUStat, CPUUsage, HugetlbStat, MemoryEntry, MemoryOomControl,
        MemoryStat, Metrics, PidsStat, Throttle,
    };
    let of = |name: &str| stats.memory.stat.get(name).copied().unwrap_or(0);
    let entry = |[limit, usage, max, failcnt]: [u64; 4]| {
        MessageField::some(MemoryEntry {
            limit,
            usage,
            max,
            failcnt,
            ..Default::default()
        })
    };
    let [usage, swap, kernel, kernel_tcp] = stats.memory.entries;
    let memory = MemoryStat {
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
    };
    let blkio = |entry: &Blkio| BlkIOEntry {
        op: entry.operation.clone(),
        major: entry.major,
        minor: entry.minor,
        value: entry.value,
        ..Default::default()
    };
    let [periods, throttled_periods, throttled_time] = stats.cpu.throttling;
    let [oom_kill_disable, under_oom, oom_kill] = stats.memory.oom;
    Metrics {
        hugetlb: stats
            .hugetlb
            .iter()
            .map(|(size, [usage, max, failcnt])| HugetlbStat {
                usage: *usage,
                max: *max,
                failcnt: *failcnt,
                pagesize: size.clone(),
                ..Default::default()
            })
            .collect(),
        pids: MessageField::some(PidsStat {
            current: stats.pids.0,
            limit: stats.pids.1,
            ..Default::default()
        }),
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
        memory: MessageField::some(memory),
        blkio: MessageField::some(BlkIOStat {
            io_service_bytes_recursive: stats.bytes.iter().map(blkio).collect(),
            io_serviced_recursive: stats.operations.iter().map(blkio).collect(),
            ..Default::default()
        }),
        memory_oom_control: MessageField::some(MemoryOomControl {
            oom_kill_disable,
            under_oom,
            oom_kill,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn v2(stats: &StatsV2) -> cgroups_v2::metrics::Metrics {
    use cgroups_v2::metrics::{
        CPUStat, IOEntry, IOStat, MemoryEvents, MemoryStat, Metrics, PidsStat,
    };
    fn reader(map: &HashMap<String, u64>) -> impl Fn(&str) -> u64 {
        |name| map.get(name).copied().unwrap_or(0)
    }
    let (cpu, of, events) = (
        reader(&stats.cpu),
        reader(&stats.memory.stat),
        reader(&stats.memory.events),
    );
    let [usage, usage_limit, max_usage] = stats.memory.memory;
    let [swap_usage, swap_limit, swap_max_usage] = stats.memory.swap;
    let memory = MemoryStat {
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
        workingset_refault: of("workingset_refault_anon") + of("workingset_refault_file"),
        workingset_activate: of("workingset_activate_anon") + of("workingset_activate_file"),
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
        ..Default::default()
    };
    let io = |(major, minor, keys): &(u64, u64, HashMap<String, u64>)| {
        let of = reader(keys);
        let (rbytes, wbytes, rios, wios) = (of("rbytes"), of("wbytes"), of("rios"), of("wios"));
        IOEntry {
            major: *major,
            minor: *minor,
            rbytes,
            wbytes,
            rios,
            wios,
            ..Default::default()
        }
    };
    Metrics {
        pids: MessageField::some(PidsStat {
            current: stats.pids.0,
            limit: stats.pids.1,
            ..Default::default()
        }),
        cpu: MessageField::some(CPUStat {
            usage_usec: cpu("usage_usec"),
            user_usec: cpu("user_usec"),
            system_usec: cpu("system_usec"),
            nr_periods: cpu("nr_periods"),
            nr_throttled: cpu("nr_throttled"),
            throttled_usec: cpu("throttled_usec"),
            ..Default::default()
        }),
        memory: MessageField::some(memory),
        io: MessageField::some(IOStat {
            usage: stats.io.iter().map(io).collect(),
            ..Default::default()
        }),
        memory_events: MessageField::some(MemoryEvents {
            low: events("low"),
            high: events("high"),
            max: events("max"),
            oom: events("oom"),
            oom_kill: events("oom_kill"),
            ..Default::default()
        }),
        ..Default::default()
    }
}
