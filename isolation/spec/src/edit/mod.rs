//! What is changed in the engine's `config.json`: one ordered list of small edits over the JSON value.
//!
//! Never a round trip through typed specs: they drop what they do not know. Every edit is pure and idempotent; the last
//! one leaves a mark, so that a second frontend (a runtime wrapper below a shim) finds the work done.
//!
//! runc does the mounts and makes the device nodes. No hook is added: a hook inside the container runs with the image's
//! environment (CVE-2025-23266).

mod devices;
mod environment;
mod error;
mod hooks;
mod mount;
mod plain;
mod procfs;
mod seccomp;
mod time_zones;

use std::path::Path;

use cards::{ContainerKey, Grant};
use host_config::config::OtherCards;
use host_config::terms::{APPLIED_KEY, ISOLATION_KEY};
use serde_json::{Map, Value};

pub use self::error::Error;
pub use self::mount::Mount;
pub use self::plain::{OtherWays, closed_to_driver};
pub use self::seccomp::Rules as SeccompRules;
use crate::json::{self, ShapeError};
use crate::nodes::Node;

/// What a real driver's libraries need beside mounts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Additions {
    /// `NAME=value`, in the place of what the container has of these names.
    pub environment: Vec<String>,
    /// What procfs shows of cards that are not the container's.
    pub masked_paths: Vec<String>,
}

/// What the edits need to know.
#[derive(Debug)]
pub struct Plan<'a> {
    /// What was granted.
    pub grant: &'a Grant,
    /// Files bound into the container: simulated device nodes, tools.
    pub mounts: &'a [Mount],
    /// What the driver's libraries need.
    pub additions: &'a Additions,
    /// The device nodes that are made; only the kernel's driver has any.
    pub nodes: &'a [Node],
    /// Major number of `/dev/nvidia-uvm`; only the kernel's driver has one.
    pub uvm_major: Option<u32>,
    /// Where runc sends the listener.
    pub listener: &'a Path,
    /// Which calls are the broker's.
    pub seccomp: &'a SeccompRules,
    /// What happens to nodes of cards that are not granted.
    pub other_cards: OtherCards,
}

type Edit = fn(&mut Map<String, Value>, &Plan<'_>) -> Result<(), Error>;

/// In order. Later edits may rely on earlier ones; each is safe to repeat.
const EDITS: [Edit; 11] = [
    devices::remove_foreign,
    environment::add,
    environment::hide_from_other_hooks,
    hooks::remove_nvidia_s,
    devices::add_nodes,
    devices::add_mounts,
    time_zones::protect,
    procfs::mask,
    procfs::protect,
    seccomp::install,
    annotate,
];

/// Applies all edits.
///
/// # Errors
/// A spec of the wrong shape, or one that cannot be made safe; the value is then half edited and must be dropped.
pub fn apply(spec: &mut Value, plan: &Plan<'_>) -> Result<(), Error> {
    let root = spec.as_object_mut().ok_or_else(|| ShapeError {
        field: "the spec".to_owned(),
        expected: "an object",
    })?;
    EDITS.iter().try_for_each(|edit| edit(root, plan))
}

/// Edits the process spec of an exec. Mounts, devices and the filter are the container's; only the environment is new.
///
/// # Errors
/// A process spec of the wrong shape.
pub fn apply_to_exec(process: &mut Value) -> Result<(), Error> {
    let process = process.as_object_mut().ok_or_else(|| ShapeError {
        field: "the process spec".to_owned(),
        expected: "an object",
    })?;
    environment::hide_in_process(process)
}

/// Edits the resources of an update (`LinuxResources`). Engines send their own list of devices along, without the cards' nodes; runc passes
/// over it, and crun puts it in the place of the container's rules. These rules, of the edited `spec`, take the list's place: without any,
/// crun 1.18 to 1.18.2 has systemd leave the default devices alone. Without a spec the list goes.
pub fn apply_to_update(resources: &mut Value, spec: Option<&Value>) {
    let Some(resources) = resources.as_object_mut() else {
        return;
    };
    if resources.remove("devices").is_none() {
        return;
    }
    if let Some(rules) = spec.and_then(|spec| spec.pointer("/linux/resources/devices")) {
        resources.insert("devices".to_owned(), rules.clone());
    }
}

/// Whose `cgpu.io/applied` the spec carries.
///
/// # Errors
/// A spec of the wrong shape, or an annotation that is no container's name.
pub fn applied_for(spec: &Value) -> Result<Option<ContainerKey>, Error> {
    let annotations = json::annotations(spec)?;
    let applied = annotations.iter().find(|(key, _)| *key == APPLIED_KEY);
    applied
        .map(|(_, value)| value.parse().map_err(Error::Name))
        .transpose()
}

fn annotate(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    let annotations = json::child_object(root, "annotations")?;
    annotations.insert(
        APPLIED_KEY.to_owned(),
        Value::String(plan.grant.key.to_string()),
    );
    if !plan.grant.isolation.weakened.is_empty() {
        annotations.insert(
            ISOLATION_KEY.to_owned(),
            Value::String(plan.grant.isolation.summary()),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
