//! One card as a device: attributes, capacities, taints.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
    DeviceTaint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::mode::{Mode, Switch};
use crate::node::{NodeCard, NodeCards, Trouble, TroubleKind};
use crate::quantity;
use crate::topology::Place;

/// Of a string.
const ATTRIBUTE_BYTES_MAX: usize = 64;

/// Memory is granted in steps of this, bytes.
pub(crate) const STEP_BYTES: u64 = 1 << 20;

/// What a device has of which a claim can ask for a part.
pub(crate) const CAPACITIES: [&str; 3] = ["cores", "memory", "shares"];

/// The whole of a card's time.
const WHOLE_PERCENT: u64 = 100;

/// `None`: nobody can share the card, or there is nothing to share.
pub(super) fn of(
    cards: &NodeCards,
    card: &NodeCard,
    switch: Switch,
    bus_id: Option<String>,
    place: &Place,
) -> Option<Device> {
    let is_shared = switch.mode != Mode::Whole;
    let offered_bytes = card.card.memory_bytes.saturating_sub(card.outside_bytes);
    let memory_bytes = offered_bytes / STEP_BYTES * STEP_BYTES;
    // A card of which others have a part is no whole one.
    let is_broken = !is_shared && card.outside_bytes > 0;
    if card.card.unshareable().is_some() || memory_bytes == 0 || is_broken {
        return None;
    }
    let capacity = if is_shared {
        shared(memory_bytes, u64::from(cards.rules.max_tenants))
    } else {
        BTreeMap::from([("memory".to_owned(), plain(quantity::bytes(memory_bytes)))])
    };
    let mut taints: Vec<DeviceTaint> = card.trouble.iter().map(taint).collect();
    taints.extend(switch.draining.then(draining));
    Some(Device {
        name: card.device(),
        allow_multiple_allocations: is_shared.then_some(true),
        attributes: Some(attributes(cards, card, switch.mode, bus_id, place)),
        capacity: Some(capacity),
        taints: (!taints.is_empty()).then_some(taints),
        ..Device::default()
    })
}

fn attributes(
    cards: &NodeCards,
    card: &NodeCard,
    mode: Mode,
    bus_id: Option<String>,
    place: &Place,
) -> BTreeMap<String, DeviceAttribute> {
    let kind = match mode {
        Mode::Held | Mode::Shared => "vgpu",
        Mode::Whole => "gpu",
    };
    let card = &card.card;
    let rows = [
        ("type", text(kind)),
        ("uuid", text(card.uuid.as_str())),
        ("index", number(i64::from(card.index))),
        ("minor", number(i64::from(card.minor))),
        ("productName", text(&card.name)),
        (
            "driverVersion",
            semantic(&cards.driver_version).and_then(version),
        ),
        ("policy", text(cards.rules.policy.name())),
        ("mode", text(mode.name())),
        ("strength", text(cards.strength.name())),
        (
            "resource.kubernetes.io/pciBusID",
            bus_id.as_deref().and_then(text),
        ),
        (
            "resource.kubernetes.io/pcieRoot",
            place.pcie_root.as_deref().and_then(text),
        ),
        (
            "resource.kubernetes.io/numaNode",
            place.numa_node.map(i64::from).and_then(number),
        ),
    ];
    let rows = rows.into_iter();
    rows.filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

/// Cut at what the server takes; nothing where there is nothing.
fn text(text: &str) -> Option<DeviceAttribute> {
    let mut end = text.len().min(ATTRIBUTE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let string = text.get(..end).filter(|text| !text.is_empty())?;
    Some(DeviceAttribute {
        string: Some(string.to_owned()),
        ..DeviceAttribute::default()
    })
}

#[expect(clippy::unnecessary_wraps, reason = "a row may be absent")]
fn number(int: i64) -> Option<DeviceAttribute> {
    Some(DeviceAttribute {
        int: Some(int),
        ..DeviceAttribute::default()
    })
}

#[expect(clippy::unnecessary_wraps, reason = "a row may be absent")]
fn version(version: String) -> Option<DeviceAttribute> {
    Some(DeviceAttribute {
        version: Some(version),
        ..DeviceAttribute::default()
    })
}

/// A driver's release as a semantic version: three numbers without leading zeros. `None`: it has another shape.
pub(super) fn semantic(release: &str) -> Option<String> {
    let parts: Vec<u32> = release
        .split('.')
        .map(|part| {
            let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| part.parse().ok()).flatten()
        })
        .collect::<Option<_>>()?;
    match *parts.as_slice() {
        [major] => Some(format!("{major}.0.0")),
        [major, minor] => Some(format!("{major}.{minor}.0")),
        [major, minor, patch, ..] => Some(format!("{major}.{minor}.{patch}")),
        [] => None,
    }
}

fn shared(memory_bytes: u64, tenants_max: u64) -> BTreeMap<String, DeviceCapacity> {
    let range = |default: Quantity, min: Quantity, step: Quantity, max: Quantity| DeviceCapacity {
        value: max.clone(),
        request_policy: Some(CapacityRequestPolicy {
            default: Some(default),
            valid_range: Some(CapacityRequestPolicyRange {
                min,
                step: Some(step),
                max: Some(max),
            }),
            valid_values: None,
        }),
    };
    let memory = quantity::bytes(memory_bytes);
    let step = quantity::bytes(STEP_BYTES);
    let one = || quantity::count(1);
    // Beside a container with a share of its own the card keeps one percent for each that has none: the scheduler has to know.
    let cores = range(one(), one(), one(), quantity::count(WHOLE_PERCENT));
    let shares = DeviceCapacity {
        value: quantity::count(tenants_max.max(1)),
        request_policy: Some(CapacityRequestPolicy {
            default: Some(one()),
            valid_range: None,
            valid_values: Some(vec![one()]),
        }),
    };
    BTreeMap::from([
        (
            "memory".to_owned(),
            range(memory.clone(), step.clone(), step, memory),
        ),
        ("cores".to_owned(), cores),
        ("shares".to_owned(), shares),
    ])
}

fn plain(value: Quantity) -> DeviceCapacity {
    DeviceCapacity {
        value,
        request_policy: None,
    }
}

/// A lost card takes its pods with it, wherever they can be started again; from other cards nothing is taken, since work on them may go on.
fn taint(trouble: &Trouble) -> DeviceTaint {
    let (key, value, effect) = match trouble.kind {
        TroubleKind::Xid(number) => ("xid", Some(format!("xid-{number}")), "NoSchedule"),
        TroubleKind::Lost => ("gpu-lost", None, "NoExecute"),
        TroubleKind::Unmonitored => ("unmonitored", None, "NoSchedule"),
    };
    let since_s = i64::try_from(trouble.since_unix_ms / 1000).unwrap_or(i64::MAX);
    DeviceTaint {
        key: format!("{}/{key}", crate::names::DRIVER),
        value,
        effect: effect.to_owned(),
        // Without it the server writes a new time with each apply.
        time_added: Timestamp::from_second(since_s).ok().map(Time),
    }
}

fn draining() -> DeviceTaint {
    DeviceTaint {
        key: format!("{}/mode-change", crate::names::DRIVER),
        value: None,
        effect: "NoSchedule".to_owned(),
        time_added: Some(Time(Timestamp::UNIX_EPOCH)),
    }
}
