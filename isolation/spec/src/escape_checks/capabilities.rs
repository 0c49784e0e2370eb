//! `process.capabilities`: every set counts. What is only in the bounding set is one setuid program away.

use cards::Weakness;
use serde_json::{Map, Value};

use super::Error;
use super::Finding;
use super::namespaces::Namespaces;
use crate::json::{self, ShapeError};

const SETS: [&str; 5] = [
    "bounding",
    "effective",
    "permitted",
    "inheritable",
    "ambient",
];

const DANGEROUS: [(&str, Weakness); 8] = [
    ("SYS_ADMIN", Weakness::CapSysAdmin),
    ("SYS_PTRACE", Weakness::CapSysPtrace),
    ("SYS_MODULE", Weakness::CapSysModule),
    ("SYS_RAWIO", Weakness::CapSysRawio),
    ("SYS_BOOT", Weakness::CapSysBoot),
    ("BPF", Weakness::CapBpf),
    ("PERFMON", Weakness::CapPerfmon),
    ("DAC_READ_SEARCH", Weakness::CapDacReadSearch),
];

/// Makes nodes, which the device cgroup lets nobody open. Where there is none, they are the host's devices.
const MAKES_NODES: &str = "MKNOD";

/// Whether the container's devices are decided over. A spec without a path of a control group is podman's for `--cgroups=disabled`, for
/// which crun makes no group and holds none of the spec's rules.
pub(super) fn has_device_group(spec: &Value) -> Result<bool, Error> {
    let path = json::control_group(spec)?;
    Ok(path.is_some_and(|path| !path.is_empty()))
}

/// One finding a capability, at the first set that has it.
pub(super) fn findings(
    process: &Map<String, Value>,
    namespaces: &Namespaces,
    has_device_group: bool,
) -> Result<Vec<Finding>, Error> {
    let Some(sets) = process.get("capabilities").filter(|sets| !sets.is_null()) else {
        return Ok(Vec::new());
    };
    let sets = json::object(sets, "process.capabilities")?;
    let mut findings: Vec<Finding> = Vec::new();
    for set in SETS {
        let Some(names) = sets.get(set).filter(|names| !names.is_null()) else {
            continue;
        };
        let field = format!("process.capabilities.{set}");
        let wrong = || ShapeError {
            field: field.clone(),
            expected: "an array of strings",
        };
        for name in names.as_array().ok_or_else(wrong)? {
            let name = name.as_str().ok_or_else(wrong)?;
            let bare = bare(name);
            let makes_nodes = bare == MAKES_NODES && !has_device_group;
            let (weakness, shown) = match weakness(&bare) {
                Some(weakness) => (weakness, name.to_owned()),
                None if makes_nodes => (
                    Weakness::HostDevices,
                    format!("{name} without linux.cgroupsPath"),
                ),
                None => continue,
            };
            // The driver tells a user namespace's root from the host's. Who is the host's root in one still has its files, and with
            // CAP_SYS_ADMIN over its own mounts nothing keeps them from it: `/proc/sys`, `/sys`.
            if !namespaces.shields_root_s_files()
                && !findings.iter().any(|found| found.weakness == weakness)
            {
                findings.push(Finding::new(weakness, field.clone(), shown));
            }
        }
    }
    Ok(findings)
}

/// Engines write `CAP_SYS_ADMIN`; runtimes take other spellings as well.
fn bare(name: &str) -> String {
    let name = name.trim().to_ascii_uppercase();
    name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
}

fn weakness(bare: &str) -> Option<Weakness> {
    DANGEROUS
        .iter()
        .find(|(dangerous, _)| *dangerous == bare)
        .map(|(_, weakness)| *weakness)
}
