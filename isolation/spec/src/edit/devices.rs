//! Device nodes: those of the granted cards and of nothing else.
//!
//! The kernel's driver: entries of `linux.devices`, which runc makes, and rules of the device cgroup. The simulated one:
//! plain files, bound where the nodes would be.

use std::path::Path;

use cards::Weakness;
use host_config::config::OtherCards;
use host_config::host_files::{HostFiles, NodeKind, ThisHost};
use host_config::walk::cleaned;
use serde_json::{Map, Value, json};

use super::Error;
use super::Plan;
use crate::escape_checks::{MODESET_MINOR, is_card_s};
use crate::json::{self, ShapeError};
use crate::nodes::{CONTROL_MINOR, NVIDIA_MAJOR};

/// What an engine or another hook put there before us: `--device`, `--gpus`, CDI. A granted card is reachable only through
/// our entries. A card that is not granted is refused, or left out where the configuration says so, or where the
/// container is let have all of the host's devices, which name no card by choice.
pub(super) fn remove_foreign(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    if let Some(mounts) = array_at(root, &["mounts"])? {
        retain(mounts, plan, "mounts", |mount| {
            let is_bind = text_at(mount, "type") != Some("proc");
            let source = text_at(mount, "source").filter(|_| is_bind);
            text_at(mount, "destination")
                .and_then(card_by_name)
                .or_else(|| source.and_then(card_by_name))
                .or_else(|| source.and_then(|source| card_behind(source, plan)))
        })?;
    }
    if let Some(devices) = array_at(root, &["linux", "devices"])? {
        retain(devices, plan, "linux.devices", |device| {
            text_at(device, "path")
                .and_then(card_by_name)
                .or_else(|| card_by_number(device, plan))
        })?;
    }
    if let Some(rules) = array_at(root, &["linux", "resources", "devices"])? {
        retain(rules, plan, "linux.resources.devices", |rule| {
            let lets_open = rule.get("allow").and_then(Value::as_bool) == Some(true)
                && text_at(rule, "access").is_none_or(|access| access.contains(['r', 'w']));
            match card_by_number(rule, plan) {
                Some(_) if !lets_open => Some(CardNode::Shared),
                other => other,
            }
        })?;
    }
    Ok(())
}

/// A node of the driver's that our entries take the place of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CardNode {
    /// `nvidiactl`, `nvidia-uvm`, `nvidia-uvm-tools`: every card's.
    Shared,
    /// `nvidia<N>`
    One(u64),
    /// A rule on every card's number.
    All,
}

/// Drops the entries that are cards' nodes, if the cards are the container's.
fn retain(
    entries: &mut Vec<Value>,
    plan: &Plan<'_>,
    key: &'static str,
    card: impl Fn(&Value) -> Option<CardNode>,
) -> Result<(), Error> {
    let has_all_devices = plan
        .grant
        .isolation
        .weakened
        .contains(&Weakness::HostDevices);
    let is_granted = |node: CardNode| match node {
        CardNode::Shared => true,
        CardNode::One(minor) => plan
            .grant
            .cards
            .iter()
            .any(|card| u64::from(card.minor) == minor),
        CardNode::All => false,
    };
    if plan.other_cards == OtherCards::Refuse
        && !has_all_devices
        && let Some(other) = entries
            .iter()
            .find(|entry| card(entry).is_some_and(|node| !is_granted(node)))
    {
        let granted: Vec<String> = plan
            .grant
            .cards
            .iter()
            .map(|card| format!("/dev/nvidia{}", card.minor))
            .collect();
        return Err(Error::OtherCard {
            key,
            value: shown(other),
            granted: granted.join(", "),
        });
    }
    entries.retain(|entry| card(entry).is_none());
    Ok(())
}

/// An entry's own name for what it is, cut.
fn shown(entry: &Value) -> String {
    const CHARS_MAX: usize = 120;
    let text = ["path", "destination"]
        .iter()
        .find_map(|key| text_at(entry, key).map(str::to_owned))
        .unwrap_or_else(|| {
            let number = |key| {
                entry
                    .get(key)
                    .and_then(Value::as_u64)
                    .map_or_else(|| "*".to_owned(), |number| number.to_string())
            };
            format!("c {}:{}", number("major"), number("minor"))
        });
    text.chars().take(CHARS_MAX).collect()
}

/// Nodes of the kernel's driver.
pub(super) fn add_nodes(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    if plan.nodes.is_empty() {
        return Ok(());
    }
    let linux = json::child_object(root, "linux")?;
    json::child_array(linux, "devices")?.extend(plan.nodes.iter().map(|node| {
        json!({"path": format!("/dev/{}", node.name), "type": "c", "major": node.major, "minor": node.minor, "fileMode": node.mode, "uid": node.uid, "gid": node.gid})
    }));
    let resources = json::child_object(linux, "resources")?;
    json::child_array(resources, "devices")?.extend(
        plan.nodes.iter().map(|node| json!({"allow": true, "type": "c", "major": node.major, "minor": node.minor, "access": "rw"})),
    );
    Ok(())
}

/// Files bound into the container.
pub(super) fn add_mounts(root: &mut Map<String, Value>, plan: &Plan<'_>) -> Result<(), Error> {
    let mounts = json::child_array(root, "mounts")?;
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

/// Engines pass paths as people wrote them; runc cleans them later. Other nodes of the driver's are judged before the
/// edits: what of them is here was let through.
fn card_by_name(path: &str) -> Option<CardNode> {
    let path = cleaned(Path::new(path));
    let name = path.strip_prefix("/dev").ok()?.to_str()?;
    if !is_card_s(name) {
        return None;
    }
    let number = name.strip_prefix("nvidia")?.parse();
    Some(number.map_or(CardNode::Shared, CardNode::One))
}

/// A card's node by another name: a link to it, or a node of the same numbers.
fn card_behind(source: &str, plan: &Plan<'_>) -> Option<CardNode> {
    let source = Path::new(source);
    if !source.is_absolute() {
        return None;
    }
    let real = ThisHost.resolve(source);
    let by_name = real.to_str().and_then(card_by_name);
    by_name.or_else(|| {
        let node = ThisHost.node(&real)?;
        let is_character = node.kind == NodeKind::Character;
        is_character.then(|| card_of(node.major, Some(node.minor), plan))?
    })
}

fn card_by_number(entry: &Value, plan: &Plan<'_>) -> Option<CardNode> {
    if matches!(text_at(entry, "type"), Some("b" | "p")) {
        return None;
    }
    let number = |key| entry.get(key).and_then(Value::as_u64);
    card_of(number("major")?, number("minor"), plan)
}

fn card_of(major: u64, minor: Option<u64>, plan: &Plan<'_>) -> Option<CardNode> {
    if Some(major) == plan.uvm_major.map(u64::from) {
        return Some(CardNode::Shared);
    }
    if major != u64::from(NVIDIA_MAJOR) {
        return None;
    }
    match minor {
        None => Some(CardNode::All),
        Some(minor) if minor == u64::from(CONTROL_MINOR) => Some(CardNode::Shared),
        Some(minor) if minor == MODESET_MINOR => None,
        Some(minor) => Some(CardNode::One(minor)),
    }
}

fn text_at<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// The array at a path, if it is there; nothing is created.
fn array_at<'a>(
    root: &'a mut Map<String, Value>,
    path: &[&str],
) -> Result<Option<&'a mut Vec<Value>>, ShapeError> {
    let shape = |expected| ShapeError {
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
