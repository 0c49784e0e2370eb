//! Annotations that runtimes obey. By some of them crun, and systemd for any runtime, do what the rest of the spec does not say: another
//! control group than the one whose devices are decided over, files of the host that root opens, properties of units, programs
//! that a checkpoint runs (crun's manual page and `src/libcrun/cgroup-systemd.c`, runc's `docs/systemd.md`, by reading).

use cards::Weakness;
use serde_json::Value;

use super::{Error, Finding};
use crate::json;

/// How they begin.
const OBEYED: [&str; 5] = [
    "run.oci.",
    "org.systemd.property.",
    "org.criu.",
    "krun.",
    "module.wasm",
];

/// What engines write, and what harms nobody.
const HARMLESS: [&str; 13] = [
    "org.systemd.property.After",
    "org.systemd.property.CollectMode",
    "org.systemd.property.DefaultDependencies",
    "org.systemd.property.Delegate",
    "org.systemd.property.KillMode",
    "org.systemd.property.KillSignal",
    "org.systemd.property.RuntimeMaxUSec",
    "org.systemd.property.SendSIGKILL",
    "org.systemd.property.TimeoutStopSec",
    "org.systemd.property.TimeoutStopUSec",
    "run.oci.keep_original_groups",
    "run.oci.mount_context_type",
    "run.oci.seccomp_fail_unknown_syscall",
];

/// The group below the container's scope that its processes are put in. CRI-O writes none.
const SUBGROUP: &str = "run.oci.systemd.subgroup";

pub(super) fn findings(spec: &Value) -> Result<Vec<Finding>, Error> {
    let annotations = json::annotations(spec)?.into_iter();
    let leads_out = |(key, value): &(&str, &str)| {
        OBEYED.iter().any(|begin| key.starts_with(begin))
            && !HARMLESS.contains(key)
            && !(*key == SUBGROUP && !value.contains('/') && *value != "..")
    };
    let found = annotations.filter(leads_out).map(|(key, value)| {
        let weakness = match key {
            SUBGROUP | "run.oci.delegate-cgroup" => Weakness::HostCgroup,
            _ => Weakness::HostRoot,
        };
        Finding::new(weakness, format!("annotations.{key}"), value)
    });
    Ok(found.collect())
}
