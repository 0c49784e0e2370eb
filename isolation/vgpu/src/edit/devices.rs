//! Device nodes: those of the granted cards and of nothing else.
//!
//! The kernel's driver: entries of `linux.devices`, which runc makes, and rules of the device cgroup. The simulated one:
//! plain files, bound where the nodes would be.

use serde_json::{Map, Value, json};

use super::{Plan, has_real_nodes};
use crate::{Error, spec};

/// `/dev/nvidia*`, the driver's static major (`NV_MAJOR_DEVICE_NUMBER`).
pub(crate) const NVIDIA_MAJOR: u32 = 195;

/// Minor of `/dev/nvidiactl` (`NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE`).
const CONTROL_MINOR: u32 = 255;

/// What an engine or another hook put there before us: `--device`, `--gpus`, CDI. A card that is not granted must not be
/// reachable, and a granted one only through our entries.
pub(super) fn remove_foreign(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    if let Some(mounts) = array_at(root, &["mounts"])? {
        mounts.retain(|mount| !text_at(mount, "destination").is_some_and(is_card_node));
    }
    if let Some(devices) = array_at(root, &["linux", "devices"])? {
        devices.retain(|device| {
            !text_at(device, "path").is_some_and(is_card_node) && !has_card_major(device, plan)
        });
    }
    if let Some(rules) = array_at(root, &["linux", "resources", "devices"])? {
        rules.retain(|rule| !has_card_major(rule, plan));
    }
    Ok(())
}

/// Nodes of the kernel's driver.
pub(super) fn add_nodes(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    if !has_real_nodes(plan.grant) {
        return Ok(());
    }
    let nodes = nodes(plan);
    let linux = spec::child_object(root, "linux")?;
    spec::child_array(linux, "devices")?.extend(nodes.iter().map(|node| {
        json!({"path": node.path, "type": "c", "major": node.major, "minor": node.minor, "fileMode": 0o666, "uid": 0, "gid": 0})
    }));
    let resources = spec::child_object(linux, "resources")?;
    spec::child_array(resources, "devices")?.extend(
        nodes.iter().map(|node| json!({"allow": true, "type": "c", "major": node.major, "minor": node.minor, "access": "rw"})),
    );
    Ok(())
}

/// Files bound into the container.
pub(super) fn add_mounts(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    let mounts = spec::child_array(root, "mounts")?;
    for mount in plan.mounts {
        let target = mount.target.display().to_string();
        mounts.retain(|other| text_at(other, "destination") != Some(target.as_str()));
        mounts.push(json!({
            "destination": target,
            "type": "bind",
            "source": mount.source.display().to_string(),
            "options": mount.options,
        }));
    }
    Ok(())
}

struct Node {
    path: String,
    major: u32,
    minor: u32,
}

fn nodes(plan: &Plan<'_>) -> Vec<Node> {
    let node = |path: &str, major, minor| Node {
        path: path.to_owned(),
        major,
        minor,
    };
    let mut nodes = vec![node("/dev/nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR)];
    nodes.extend(plan.grant.cards.iter().map(|card| {
        node(
            &format!("/dev/nvidia{}", card.minor),
            NVIDIA_MAJOR,
            card.minor,
        )
    }));
    if let Some(major) = plan.uvm_major {
        // `NVIDIA_UVM_PRIMARY_MINOR_NUMBER` and `NVIDIA_UVM_TOOLS_MINOR_NUMBER`.
        nodes.push(node("/dev/nvidia-uvm", major, 0));
        nodes.push(node("/dev/nvidia-uvm-tools", major, 1));
    }
    nodes
}

fn is_card_node(path: &str) -> bool {
    // Engines pass paths as people wrote them; runc cleans them later.
    let mut parts = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    parts.next() == Some("dev") && parts.next().is_some_and(|name| name.starts_with("nvidia"))
}

fn has_card_major(entry: &Value, plan: &Plan<'_>) -> bool {
    let major = entry.get("major").and_then(Value::as_u64);
    let is_block = text_at(entry, "type") == Some("b");
    !is_block
        && major.is_some()
        && (major == Some(u64::from(NVIDIA_MAJOR)) || major == plan.uvm_major.map(u64::from))
}

fn text_at<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// The array at a path, if it is there; nothing is created.
fn array_at<'a>(
    root: &'a mut Map<String, Value>,
    path: &[&str],
) -> Result<Option<&'a mut Vec<Value>>, Error> {
    let shape = |expected| Error::SpecShape {
        field: path.join("."),
        expected,
    };
    let Some((last, parents)) = path.split_last() else {
        return Ok(None);
    };
    let mut object = root;
    for key in parents {
        match object.get_mut(*key) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => {
                object = value
                    .as_object_mut()
                    .ok_or_else(|| shape("below an object"))?
            }
        }
    }
    match object.get_mut(*last) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_array_mut()
            .map(Some)
            .ok_or_else(|| shape("an array")),
    }
}
