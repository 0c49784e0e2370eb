//! What a container is given, beside its slice, that leads out of it.
//!
//! The slice is held by a filter on the container's own system calls. It is worth nothing to a container that holds a
//! privilege which the driver obeys, that reaches card memory by a node without a filter rule, or that makes a process
//! outside the filter work for it. Together with a quota each of these is refused, unless the configuration lets it
//! through by name; then the grant says so.
//!
//! What is not refused, and why: CAP_MKNOD and device nodes that the device cgroup does not let open, where there is one; CAP_SYS_NICE,
//! CAP_NET_ADMIN and CAP_SYS_RESOURCE (no way to the card); the host's network (our sockets are files; what of the host's acts on cards for
//! whoever reaches a port or an abstract socket is the operator's to close, see the threat model) and IPC; an unconfined seccomp or AppArmor
//! profile (our rules do not come from them). In a user namespace of its own, without the host's root in it, a container's capabilities are no privilege.

mod annotations;
mod capabilities;
mod devices;
mod error;
mod mount;
mod mount_table;
mod mounts;
mod namespaces;
mod places;

use std::collections::BTreeSet;
use std::path::Path;

use cards::Weakness;
use host_config::config::Allow;
use host_config::host_files::HostFiles;
use host_config::own_places::OwnPlaces;
use serde_json::Value;

pub use self::devices::{MODESET_MINOR, has_a_card, is_card_s};
pub use self::error::Error;
pub use self::mount_table::unescaped;
use self::namespaces::Namespaces;
use crate::json;

/// One thing found in a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it leads to.
    pub weakness: Weakness,
    /// Where, in the spec's own words.
    pub key: String,
    /// What is there.
    pub value: String,
}

impl Finding {
    fn new(weakness: Weakness, key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            weakness,
            key: key.into(),
            value: value.into(),
        }
    }
}

/// Looks through a container's spec, before it is edited.
///
/// # Errors
/// A spec of another shape; the host's mounts cannot be read.
pub fn of_container(
    spec: &Value,
    own: &OwnPlaces,
    host: &dyn HostFiles,
) -> Result<Vec<Finding>, Error> {
    let root = json::object(spec, "")?;
    let namespaces = Namespaces::read(root, host)?;
    let mut findings = namespaces.findings();
    if let Some(process) = root.get("process").filter(|value| !value.is_null()) {
        findings.extend(capabilities::findings(
            json::object(process, "process")?,
            &namespaces,
            capabilities::has_device_group(spec)?,
        )?);
    }
    findings.extend(devices::findings(root, host)?);
    findings.extend(mounts::findings(root, &namespaces, own, host)?);
    findings.extend(annotations::findings(spec)?);
    Ok(findings)
}

/// What a file of the host leads to that is bound into a container, read-only, beside what its engine gives it.
///
/// # Errors
/// As [`of_container`].
pub fn of_file(
    spec: &Value,
    (source, target): (&Path, &Path),
    own: &OwnPlaces,
    host: &dyn HostFiles,
) -> Result<Option<Weakness>, Error> {
    let mut root = json::object(spec, "")?.clone();
    let mount = serde_json::json!({"type": "bind", "source": source, "destination": target, "options": ["bind", "ro"]});
    root.insert("mounts".to_owned(), Value::Array(vec![mount]));
    let namespaces = Namespaces::read(&root, host)?;
    let findings = mounts::findings(&root, &namespaces, own, host)?;
    // What its root is was judged with the spec.
    let found = findings.into_iter().find(|finding| finding.key == "mounts");
    Ok(found.map(|finding| finding.weakness))
}

/// Looks through the process spec of an exec. `container`: the spec that its container was made from; without one it is
/// taken to have no user namespace, and a control group, as an engine's containers have.
///
/// # Errors
/// A spec of another shape.
pub fn of_exec(
    process: &Value,
    container: Option<&Value>,
    host: &dyn HostFiles,
) -> Result<Vec<Finding>, Error> {
    let (namespaces, has_device_group) = match container {
        Some(container) => (
            Namespaces::read(json::object(container, "")?, host)?,
            capabilities::has_device_group(container)?,
        ),
        None => (Namespaces::of_the_host(), true),
    };
    let process = json::object(process, "the process spec")?;
    capabilities::findings(process, &namespaces, has_device_group)
}

/// What the findings weaken, if the configuration lets all of them through.
///
/// # Errors
/// The first that it does not; the text names every weakness that would have to be allowed.
pub fn admit(findings: &[Finding], allow: &Allow) -> Result<Vec<Weakness>, Error> {
    let found: BTreeSet<Weakness> = findings.iter().map(|finding| finding.weakness).collect();
    let Some(first) = findings
        .iter()
        .find(|finding| !allow.lets_through(finding.weakness))
    else {
        return Ok(found.into_iter().collect());
    };
    let needed: Vec<String> = found
        .iter()
        .map(|weakness| format!("{:?}", weakness.name()))
        .collect();
    Err(Error::Exposed {
        key: first.key.clone(),
        value: first.value.chars().take(VALUE_CHARS_MAX).collect(),
        reason: reason(first.weakness),
        needed: needed.join(", "),
    })
}

/// Values come from strangers and end in logs.
const VALUE_CHARS_MAX: usize = 120;

fn reason(weakness: Weakness) -> &'static str {
    match weakness {
        Weakness::CapSysAdmin => "the driver lets its holder past every limit",
        Weakness::CapSysPtrace => {
            "its holder takes over the processes that an exec brings into the container, before the filter is theirs"
        }
        Weakness::CapSysModule => "its holder loads code into the kernel",
        Weakness::CapSysRawio => "its holder reaches the card without the driver",
        Weakness::CapSysBoot => "its holder starts another kernel",
        Weakness::CapBpf => {
            "its holder reads the kernel's memory and takes away the program that decides over devices"
        }
        // perf_event_open on a processor: PERF_SAMPLE_STACK_USER has up to 64 KiB of whoever runs there.
        Weakness::CapPerfmon => "its holder samples the memory of the host's other processes",
        Weakness::CapDacReadSearch => "its holder opens every file of the host",
        Weakness::Dri => "it gives card memory that no quota counts",
        Weakness::Modeset => "it gives card memory that no quota counts",
        Weakness::NvidiaCaps => "it gives privileges over the whole card",
        Weakness::GpuDirect => "it reaches card memory past the driver's calls",
        Weakness::DriverDevices => "it is the driver's, and no rule of the filter knows its calls",
        Weakness::HostDevices => "it reaches the host's memory, disks or devices past the driver",
        Weakness::HostPid => {
            "the container could end its broker, or take over a process of another one"
        }
        Weakness::HostRoot => "the container could change what the host runs",
        Weakness::HostDev => "it holds the nodes of every card",
        Weakness::HostProc => {
            "it leads to every process of the host, or to what drivers keep for all of it"
        }
        Weakness::ProcSys => {
            "root in the container could name a program there that the kernel starts on the host"
        }
        Weakness::HostSys => "it reaches the cards' registers and memory past the driver",
        Weakness::HostCgroup => "the container could leave its control group",
        Weakness::CgpuState => "it holds the quotas and the brokers' sockets",
        Weakness::EngineSocket => "it starts containers without a quota",
        Weakness::Mps => "the MPS server allocates for it outside the filter",
        Weakness::X11 => "the X server allocates for it outside the filter",
        // A weakness that a newer `cards` knows of is at least as bad.
        _ => "it leads out of the slice",
    }
}

#[cfg(test)]
mod tests;
