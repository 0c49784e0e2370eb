//! What machine this is, for numbers that are compared later.

use std::fs;

/// Processor, its count, memory and kernel, in one line.
pub(crate) fn describe() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let memory_gib = fs::read_to_string("/proc/meminfo")
        .unwrap_or_default()
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?
                .trim()
                .strip_suffix(" kB")?
                .parse::<u64>()
                .ok()
        })
        .map_or(0, |kib| kib.div_ceil(1 << 20));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // What a builder has appended says nothing about numbers.
    let version = kernel.trim().split('-').next().unwrap_or_default();
    format!("{model}, {count} CPUs, {memory_gib} GiB, Linux {version}")
}
