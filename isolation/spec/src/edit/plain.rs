//! A container that asks for nothing, beside one with a quota.
//!
//! A quota is held by the filter of the container that has it. An open driver file can be handed on, through a socket in a network namespace
//! that both are in, by `pidfd_getfd` in a common pid namespace, or in a volume of a pod; the device cgroup acts at open alone. Whoever gets
//! the file would make clients and memory of its own on it, which no broker hears of. So a plain container that can be reached in such a way
//! has a profile in which the driver's calls fail.
//!
//! The driver's mappings need no rule: what is mapped was made ready by a call on the same file, and nvidia-uvm maps nothing for another
//! address space than the one that was initialised, by a call.

use serde_json::{Map, Value};

use super::Error;
use super::seccomp::plain as profile;
use crate::json;
use crate::nodes::NVIDIA_MAJOR;
use crate::request::{self, Toolkit};

/// Namespaces in which a process can hand an open file to one of another container.
const MEETING_PLACES: [&str; 3] = ["network", "pid", "ipc"];

/// How containers of this host are given the driver by others than cgpu. All of it is the host's word: what a tenant chooses (the path of
/// a node, a variable) opens nothing.
#[derive(Debug, Clone)]
pub struct OtherWays {
    /// The majors of the driver's character devices that are chosen when its modules are loaded.
    pub majors: Vec<u32>,
    /// Whose word NVIDIA's hook takes.
    pub toolkit: Toolkit,
}

/// The spec of a container that asks for nothing, with the driver's calls closed where that matters, and open again where an earlier start of
/// the same bundle had closed them. `None`: it is right as it is. `id`: the container's name in its engine. `ways` is asked where it matters.
///
/// # Errors
/// A spec of another shape, or a seccomp profile that cannot be kept exactly.
pub fn closed_to_driver(
    spec: &Value,
    id: Option<&str>,
    ways: impl FnOnce() -> OtherWays,
) -> Result<Option<Value>, Error> {
    // Engines write no spec without it.
    let Some(linux) = spec.get("linux").filter(|linux| !linux.is_null()) else {
        return Ok(None);
    };
    let linux = json::object(linux, "linux")?;
    let is_reached = request::is_in_company(&json::annotations(spec)?, id) || meets_others(linux)?;
    let is_closed = is_reached && {
        let ways = ways();
        !has_driver(linux, &ways.majors)? && !request::has_hook(spec, ways.toolkit)?
    };
    if !is_closed && linux.get("seccomp").is_none_or(Value::is_null) {
        return Ok(None);
    }
    let mut edited = linux.clone();
    let is_changed = if is_closed {
        profile::close(&mut edited)?
    } else {
        profile::reopen(&mut edited)?
    };
    Ok(is_changed.then(|| {
        let mut spec = spec.clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.insert("linux".to_owned(), Value::Object(edited));
        }
        spec
    }))
}

/// Whether a container is in a namespace of the host's or of another container's.
fn meets_others(linux: &Map<String, Value>) -> Result<bool, Error> {
    let namespaces = json::list(linux, "linux", "namespaces")?;
    let text = |entry: &Value, key: &str| {
        let text = entry.get(key).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let has_own = |kind: &&str| {
        let mut own = namespaces.iter();
        own.any(|entry| text(entry, "type") == **kind && text(entry, "path").is_empty())
    };
    Ok(!MEETING_PLACES.iter().all(has_own))
}

/// Whether a container is given the driver itself, by a node or by the device cgroup: its calls are its own affair then.
///
/// What a mount or a node is called proves nothing: a mount gives no device that the cgroup does not let open, and engines let a pod's
/// author choose what a harmless device is called (`io.kubernetes.cri-o.Devices`).
fn has_driver(linux: &Map<String, Value>, majors: &[u32]) -> Result<bool, Error> {
    let is_the_driver_s = |major: u64| {
        let mut known = majors.iter().copied().chain([NVIDIA_MAJOR]);
        known.any(|known| u64::from(known) == major)
    };
    let is_node = |device: &Value| {
        let kind = device.get("type").and_then(Value::as_str).unwrap_or("c");
        let major = device.get("major").and_then(Value::as_u64);
        // A block device's numbers are other drivers'.
        !is_other_kind(kind) && major.is_some_and(is_the_driver_s)
    };
    if json::list(linux, "linux", "devices")?.iter().any(is_node) {
        return Ok(true);
    }
    let Some(resources) = linux.get("resources").filter(|value| !value.is_null()) else {
        return Ok(false);
    };
    let resources = json::object(resources, "linux.resources")?;
    let rules = json::list(resources, "linux.resources", "devices")?;
    Ok(rules.iter().fold(false, opens_driver))
}

/// Block devices and pipes: runtimes read the first letter alone.
fn is_other_kind(kind: &str) -> bool {
    matches!(kind.as_bytes().first(), Some(b'b' | b'p'))
}

/// Whether the driver's nodes can be opened after one more rule of the device cgroup; the last that is about all of them counts.
fn opens_driver(before: bool, rule: &Value) -> bool {
    let is_allowed = rule.get("allow").and_then(Value::as_bool).unwrap_or(false);
    let kind = rule.get("type").and_then(Value::as_str).unwrap_or("a");
    // -1 is every number, as is none.
    let number = |key| rule.get(key).and_then(Value::as_u64);
    if is_allowed && matches!(kind, "" | "a") {
        // Of all of them, whatever access and numbers it has: to the kernel and to runc.
        return true;
    }
    let access = rule.get("access").and_then(Value::as_str).unwrap_or("rwm");
    let is_about_it = !is_other_kind(kind)
        && number("major").is_none_or(|major| major == u64::from(NVIDIA_MAJOR))
        && access.contains(['r', 'w']);
    // A denial of one node leaves the others.
    let is_whole = number("minor").is_none() && access.contains('r') && access.contains('w');
    match (is_about_it, is_allowed) {
        (false, _) => before,
        (true, true) => true,
        (true, false) => before && !is_whole,
    }
}

#[cfg(test)]
mod tests;
