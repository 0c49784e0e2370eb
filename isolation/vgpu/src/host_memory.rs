//! How much of the host's memory a driver may take for a container that has no limit of its own.
//!
//! A driver allocates pinned memory by itself (class `NV01_MEMORY_SYSTEM`): its pages are in no control group, so nothing but the broker's
//! ledger limits them. The limit is what the configuration says, else the container's own ([`spec::request`]), else a part of the machine's memory.

/// Of the machine's memory, for a container that has no limit of its own.
const PART: u64 = 2;

/// For a container without a limit. A machine that does not say what it has gives none.
pub(crate) fn part_of_the_machine() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    total_bytes(&text).unwrap_or_default() / PART
}

fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_reports_what_it_has() {
        assert_eq!(
            total_bytes("MemTotal:        2048 kB\nMemFree: 1 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(total_bytes("MemTotal: much\n"), None);
        assert!(part_of_the_machine() > 0);
    }
}
