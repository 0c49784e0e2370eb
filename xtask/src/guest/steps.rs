//! What is run on each kind of host, one after the other.

use super::packages;

/// A part of a run. Its name is a key of docs/reports/hosts.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A row of `cargo xtask engines`, and those of its checks whose names contain one of these; all, if there is none.
    Row(&'static str, &'static [&'static str]),
    /// The same row under the engine's own shim and runc, without cgpu.
    Plain(&'static str, &'static [&'static str]),
    /// Tests of an executable by package and name, whose names contain one of these; all, if there is none.
    Tests(&'static str, &'static [&'static str]),
    /// So many pairs of starts, with a vGPU and without cgpu.
    Starts(usize),
    /// A script by its name, and what its output must have.
    Script(&'static str, &'static str, &'static [&'static str]),
    /// The same in a guest with a disk, which it boots again.
    Reboots(&'static str, &'static str, &'static [&'static str]),
}

impl Step {
    pub(super) fn name(self) -> String {
        match self {
            Self::Row(name, _)
            | Self::Tests(name, _)
            | Self::Script(name, ..)
            | Self::Reboots(name, ..) => name.to_owned(),
            Self::Plain(name, _) => format!("{name}, without cgpu"),
            Self::Starts(_) => "cost of a start".to_owned(),
        }
    }

    /// What it writes is to be there after a boot.
    pub(super) fn needs_disk(self) -> bool {
        matches!(self, Self::Reboots(..))
    }

    pub(super) fn installs_packages(self) -> bool {
        OF_SYSTEMD.contains(&self)
    }
}

/// containerd of Debian 12 with the shim, on this machine's cgroups and on the guest's.
const CONTAINERD: &str = "containerd (ctr)/host/shim by type/HostRunc";
const DOCKER: &str = "docker/host/wrapper/HostRunc";
const PODMAN: &str = "podman/host/hook/HostRunc";
/// As `cgpu install` writes it. The driver of its control groups is systemd's where systemd is.
const PODS: &str = "CRI (containerd, crictl)/newer/shim by configuration/NewerRunc";

/// What control groups have to do with: a minute on two cores.
pub(super) const SHORT: &[Step] = &[
    Step::Row(CONTAINERD, &["stats", "pause", "OOM", "vGPU"]),
    Step::Tests("integration own_group", &["own_processes_pay"]),
];

/// Every check but that of fifty containers: ten that start at a time have no broker ready within the five seconds that a frontend
/// waits for it.
const ALL_BUT_FIFTY: &[&str] = &[
    "run",
    "exit codes",
    "logs",
    "exec",
    "stats",
    "top",
    "pause",
    "update",
    "kill",
    "OOM",
    "restart",
    "health",
    "vGPU",
    "upgrade",
    "live",
    "pod:",
];

/// Of one's own interest where an engine itself may do otherwise on such a host.
const OF_THE_KERNEL: &[&str] = &["stats", "pause", "update", "kill", "OOM"];

/// What some hours have time for. Brokers that are killed under load are not among it: the test wants more kills in its time than such
/// a machine comes to.
pub(super) const LONG: &[Step] = &[
    Step::Row(CONTAINERD, ALL_BUT_FIFTY),
    Step::Plain(CONTAINERD, OF_THE_KERNEL),
    Step::Row(DOCKER, ALL_BUT_FIFTY),
    Step::Plain(DOCKER, OF_THE_KERNEL),
    Step::Row(PODMAN, ALL_BUT_FIFTY),
    Step::Plain(PODMAN, OF_THE_KERNEL),
    Step::Row(PODS, ALL_BUT_FIFTY),
    Step::Plain(PODS, ALL_BUT_FIFTY),
    Step::Tests("integration own_group", &[]),
    Step::Tests("integration own_group_kills", &[]),
    Step::Tests("integration systemd_units", &[]),
    Step::Tests(
        "integration resources_limits",
        &["limits_are_shown", "who_goes_beyond"],
    ),
    Step::Tests(
        "integration resources_stats",
        &[
            "host::two_shims_count_the_same",
            "two_shims_tell_the_same_of_a_pod",
        ],
    ),
    Step::Tests("integration podman_slices", &["helpers_under_runc_alone"]),
    Step::Tests(
        "integration slices",
        &["every_path_to_memory", "deletion_returns"],
    ),
    Step::Tests("integration apparmor", &[]),
    Step::Tests("cli driver_limit", &[]),
    Step::Tests("hook driver_limit", &[]),
    Step::Starts(15),
];

/// What is asked of a whole host with systemd, after [`LONG`].
pub(super) const OF_SYSTEMD: &[Step] = &[packages::UNDER_SYSTEMD, packages::REBOOTS];

/// What Ubuntu's kernel does otherwise than Debian's.
pub(super) const OF_UBUNTU: &[Step] = &[Step::Tests("integration apparmor", &[])];

#[cfg(test)]
mod tests {
    use integration::matrix::ROWS;

    use super::*;

    #[test]
    fn every_step_has_its_own_name_and_its_row() {
        for (number, step) in LONG.iter().enumerate() {
            let same = LONG.iter().filter(|other| other.name() == step.name());
            assert_eq!(same.count(), 1, "step {number}, {}", step.name());
            if let Step::Row(key, _) | Step::Plain(key, _) = step {
                assert!(ROWS.iter().any(|row| row.key() == *key), "{key}");
            }
        }
    }
}
