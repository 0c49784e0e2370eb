//! `linux.devices` and `linux.resources.devices`: nodes by name and by number, and what the device cgroup lets open.
//!
//! Cards' own nodes (`nvidia<N>`, `nvidiactl`, `nvidia-uvm`, `nvidia-uvm-tools`) are not judged here: the edits put the
//! granted ones in their place.

use std::path::Path;

use cards::Weakness;
use host_config::host_files::{HostFiles, Node, NodeKind};
use host_config::walk::cleaned;
use serde_json::{Map, Value};

use super::Error;
use super::Finding;
use crate::json;
use crate::nodes::NVIDIA_MAJOR;

/// Minor of `/dev/nvidia-modeset` (`NV_MINOR_DEVICE_NUMBER_MODESET_DEVICE`).
pub const MODESET_MINOR: u64 = 254;

/// Character devices of fixed numbers (`Documentation/admin-guide/devices.txt`), `None`: every minor.
const CHARACTER: [(u64, Option<u64>, Weakness); 11] = [
    (NVIDIA_MAJOR as u64, Some(MODESET_MINOR), Weakness::Modeset),
    (226, None, Weakness::Dri),
    // mem, kmem, port
    (1, Some(1), Weakness::HostDevices),
    (1, Some(2), Weakness::HostDevices),
    (1, Some(4), Weakness::HostDevices),
    // vfio, device-mapper, loop-control
    (10, Some(196), Weakness::HostDevices),
    (10, Some(236), Weakness::HostDevices),
    (10, Some(237), Weakness::HostDevices),
    // SCSI generic, raw disks, machine registers of the processor
    (21, None, Weakness::HostDevices),
    (162, None, Weakness::HostDevices),
    (202, None, Weakness::HostDevices),
];

/// Names in `/proc/devices` of modules whose major is chosen at load; the first prefix that fits counts.
const BY_MODULE: [(&str, Weakness); 9] = [
    ("nvidia-caps", Weakness::NvidiaCaps),
    ("nvidia-fs", Weakness::GpuDirect),
    ("gdrdrv", Weakness::GpuDirect),
    ("nvidia-nv", Weakness::DriverDevices),
    ("nvidia-vgpu", Weakness::DriverDevices),
    ("nvme", Weakness::HostDevices),
    ("bsg", Weakness::HostDevices),
    ("vfio", Weakness::HostDevices),
    ("drm", Weakness::Dri),
];

/// Names below `/dev`; the first prefix that fits counts.
const BY_NAME: [(&str, Weakness); 14] = [
    ("dri", Weakness::Dri),
    ("nvidia-modeset", Weakness::Modeset),
    ("nvidia-caps", Weakness::NvidiaCaps),
    ("nvidia-fs", Weakness::GpuDirect),
    ("gdrdrv", Weakness::GpuDirect),
    ("nvidia", Weakness::DriverDevices),
    ("nvmap", Weakness::DriverDevices),
    ("nvhost", Weakness::DriverDevices),
    ("nvgpu", Weakness::DriverDevices),
    ("mem", Weakness::HostDevices),
    ("kmem", Weakness::HostDevices),
    ("port", Weakness::HostDevices),
    ("vfio", Weakness::HostDevices),
    ("mapper", Weakness::HostDevices),
];

pub(super) fn findings(
    root: &Map<String, Value>,
    host: &dyn HostFiles,
) -> Result<Vec<Finding>, Error> {
    let Some(linux) = root.get("linux").filter(|linux| !linux.is_null()) else {
        return Ok(Vec::new());
    };
    let linux = json::object(linux, "linux")?;
    let modules = Modules::read(&host.devices());
    let mut findings = Vec::new();
    for device in json::list(linux, "linux", "devices")? {
        let path = device.get("path").and_then(Value::as_str).unwrap_or("");
        let weakness = by_name(Path::new(path)).or_else(|| by_number(&node(device)?, &modules));
        findings.extend(weakness.map(|weakness| Finding::new(weakness, "linux.devices", path)));
    }
    if let Some(resources) = linux.get("resources").filter(|value| !value.is_null()) {
        let resources = json::object(resources, "linux.resources")?;
        let rules = json::list(resources, "linux.resources", "devices")?;
        findings.extend(opened(rules, &modules));
    }
    Ok(findings)
}

/// What a bound file or folder is; cards' own nodes are nothing.
pub(super) fn of_file(path: &Path, host: &dyn HostFiles) -> Option<Weakness> {
    by_name(path).or_else(|| by_number(&host.node(path)?, &Modules::read(&host.devices())))
}

/// `None` also for what is not below `/dev`.
fn by_name(path: &Path) -> Option<Weakness> {
    let path = cleaned(path);
    let name = path.strip_prefix("/dev").ok()?.to_str()?;
    if is_card_s(name) {
        return None;
    }
    // A short name is the whole of a component, `nvidia…` the beginning of one.
    BY_NAME
        .iter()
        .find(|(prefix, _)| match name.strip_prefix(prefix) {
            Some(rest) => rest.is_empty() || rest.starts_with('/') || prefix.starts_with("nv"),
            None => false,
        })
        .map(|(_, weakness)| *weakness)
}

/// Nodes that the edits put there themselves.
pub fn is_card_s(name: &str) -> bool {
    matches!(name, "nvidiactl" | "nvidia-uvm" | "nvidia-uvm-tools")
        || name.strip_prefix("nvidia").is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// Whether a container is given a node of a card's, by name, by number or by a mount.
pub fn has_a_card(spec: &Value) -> Result<bool, Error> {
    let is_card = |path: &str| {
        let path = cleaned(Path::new(path));
        path.strip_prefix("/dev")
            .is_ok_and(|name| name.to_str().is_some_and(|name| name.starts_with("nvidia")))
    };
    let root = json::object(spec, "")?;
    let text = |value: &Value, key: &str| {
        let text = value.get(key).and_then(Value::as_str);
        text.is_some_and(is_card)
    };
    let mut mounts = json::list(root, "", "mounts")?.iter();
    if mounts.any(|mount| text(mount, "source") || text(mount, "destination")) {
        return Ok(true);
    }
    let Some(linux) = root.get("linux").filter(|linux| !linux.is_null()) else {
        return Ok(false);
    };
    let linux = json::object(linux, "linux")?;
    let mut devices = json::list(linux, "linux", "devices")?.iter();
    Ok(devices.any(|device| {
        let major = device.get("major").and_then(Value::as_u64);
        text(device, "path") || major == Some(NVIDIA_MAJOR.into())
    }))
}

/// `None`: a pipe. What is no type for one runtime is a character device for another, which reads the first letter alone.
fn node(device: &Value) -> Option<Node> {
    // Absent is 0, as for Go; what is no number of a device, no number at all or a negative one is more than any.
    let number = |key| match device.get(key) {
        None | Some(Value::Null) => 0,
        Some(number) => number.as_u64().unwrap_or(u64::MAX),
    };
    let kind = device.get("type").and_then(Value::as_str).unwrap_or("");
    let kind = match kind.as_bytes().first() {
        Some(b'p') => return None,
        Some(b'b') => NodeKind::Block,
        Some(_) | None => NodeKind::Character,
    };
    Some(Node {
        kind,
        major: number("major"),
        minor: number("minor"),
    })
}

/// The kernel's numbers have 12 and 20 bits. Runtimes cut a larger one, to one that nobody judged.
const MAJOR_MAX: u64 = (1 << 12) - 1;
const MINOR_MAX: u64 = (1 << 20) - 1;

fn by_number(node: &Node, modules: &Modules) -> Option<Weakness> {
    if node.major > MAJOR_MAX || node.minor > MINOR_MAX {
        return Some(Weakness::HostDevices);
    }
    match node.kind {
        // A whole disk cannot be told from a harmless one by its number.
        NodeKind::Block => Some(Weakness::HostDevices),
        NodeKind::Character => of_characters(node.major, Some(node.minor), modules),
    }
}

/// The worst that is among a major's devices, or among those of one minor.
fn of_characters(major: u64, minor: Option<u64>, modules: &Modules) -> Option<Weakness> {
    CHARACTER
        .iter()
        .find(|(known, of_minor, _)| {
            *known == major
                && match (of_minor, minor) {
                    (Some(known), Some(minor)) => *known == minor,
                    _ => true,
                }
        })
        .map(|(_, _, weakness)| *weakness)
        .or_else(|| modules.of(major))
}

/// Majors that were chosen when their modules were loaded.
struct Modules(Vec<(u64, Weakness)>);

impl Modules {
    fn read(devices: &str) -> Self {
        let characters = devices.split("Block devices:").next().unwrap_or("");
        Self(
            characters
                .lines()
                .filter_map(|line| {
                    let (major, name) = line.trim().split_once(' ')?;
                    let (_, weakness) = BY_MODULE
                        .iter()
                        .find(|(prefix, _)| name.trim().starts_with(prefix))?;
                    Some((major.parse().ok()?, *weakness))
                })
                .collect(),
        )
    }

    fn of(&self, major: u64) -> Option<Weakness> {
        self.0
            .iter()
            .find(|(known, _)| *known == major)
            .map(|(_, weakness)| *weakness)
    }
}

/// What the rules of the device cgroup let a container open, beyond what every container may. runc reads them in order; a
/// rule on all devices forgets those before it. A later denial of part of an allowance is not counted for it.
fn opened(rules: &[Value], modules: &Modules) -> Vec<Finding> {
    const KEY: &str = "linux.resources.devices";
    let mut findings: Vec<Finding> = Vec::new();
    for rule in rules {
        let is_allowed = rule.get("allow").and_then(Value::as_bool).unwrap_or(false);
        let kind = rule.get("type").and_then(Value::as_str).unwrap_or("a");
        // -1 is every number, as is none.
        let number = |key| rule.get(key).and_then(Value::as_u64);
        let access = rule.get("access").and_then(Value::as_str).unwrap_or("rwm");
        let is_of_all = !matches!(kind, "b" | "c" | "u" | "p");
        let is_everything = matches!(kind, "" | "a");
        let is_whole = ["major", "minor"]
            .into_iter()
            .all(|key| number(key).is_none())
            && ['r', 'w', 'm'].into_iter().all(|one| access.contains(one));
        // Of a rule on all devices the kernel and runc's filter leave numbers and access out, and crun's does not.
        if is_everything && is_whole {
            findings.clear();
        }
        // Making a node that cannot be opened harms nobody; engines allow it.
        let opens = is_everything || access.contains(['r', 'w']);
        if !is_allowed || !opens || kind == "p" {
            continue;
        }
        let is_cut = |key, max| number(key).is_some_and(|number| number > max);
        let is_none_s = is_cut("major", MAJOR_MAX) || is_cut("minor", MINOR_MAX);
        let weakness = match (is_of_all || is_none_s || kind == "b", number("major")) {
            (true, _) | (false, None) => Some(Weakness::HostDevices),
            (false, Some(major)) => of_characters(major, number("minor"), modules),
        };
        findings.extend(weakness.map(|weakness| {
            let shown =
                |number: Option<u64>| number.map_or_else(|| "*".to_owned(), |n| n.to_string());
            Finding::new(
                weakness,
                KEY,
                format!(
                    "{kind} {}:{} {access}",
                    shown(number("major")),
                    shown(number("minor"))
                ),
            )
        }));
    }
    findings
}
