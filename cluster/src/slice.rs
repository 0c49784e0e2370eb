//! A node's cards as ResourceSlices: what the scheduler places claims by.
//!
//! `default` of a capacity is what a claim takes that does not name it: the whole memory, so that a claim which forgets it gets a card for
//! itself, and no part of the card's time.

mod device;
mod generation;
mod mode;
mod placement;

use std::path::Path;

use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use cards::placement::Policy;

use crate::names::{DRIVER, NodeName};
use crate::node::{NodeCard, NodeCards};
use crate::topology;

pub(crate) use self::device::{CAPACITIES, STEP_BYTES};
pub(crate) use self::generation::{Published, generation};
pub(crate) use self::mode::{LABEL as MODE_LABEL, Mode, Switch};
pub(crate) use self::placement::{LABEL as PLACEMENT_LABEL, of_label as placement_of_label};

/// Kubernetes takes 128 devices in a slice, and 64 where any has a taint; each of ours may have one at any time.
const DEVICES_MAX: usize = 64;

/// The longest name of an object.
const NAME_CHARS_MAX: usize = 253;

/// What the slices are made of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Offer {
    /// The devices, first placed on first.
    pub(crate) devices: Vec<Device>,
}

impl Offer {
    /// What a node offers. Cards that nobody can share are left out.
    pub(crate) fn of(cards: &NodeCards, switch: Switch, sysfs: &Path) -> Self {
        let devices = ordered(cards)
            .into_iter()
            .filter_map(|card| {
                let bus_id = topology::bus_id(&card.card.pci);
                let place = bus_id
                    .as_deref()
                    .map(|bus_id| topology::place(sysfs, bus_id));
                device::of(cards, card, switch, bus_id, &place.unwrap_or_default())
            })
            .collect();
        Self { devices }
    }

    /// The devices of each slice, in order.
    fn parts(&self) -> impl ExactSizeIterator<Item = &[Device]> {
        self.devices.chunks(DEVICES_MAX)
    }
}

/// The scheduler takes the first device that fits, in the order of the list: the fullest first keeps whole cards free, the emptiest first
/// keeps neighbours few.
fn ordered(cards: &NodeCards) -> Vec<&NodeCard> {
    let mut ordered: Vec<&NodeCard> = cards.cards.iter().collect();
    let free = |card: &NodeCard| card.card.memory_bytes.saturating_sub(card.reserved_bytes);
    match cards.order {
        Policy::Binpack => ordered.sort_by_key(|card| (free(card), card.card.index)),
        Policy::Spread => {
            ordered.sort_by_key(|card| (std::cmp::Reverse(free(card)), card.card.index));
        }
    }
    ordered
}

/// The objects, by name. A node without a card has none.
pub(crate) fn slices(
    offer: &Offer,
    node: &NodeName,
    node_uid: &str,
    generation: i64,
) -> Vec<ResourceSlice> {
    let parts = offer.parts();
    let count = i64::try_from(parts.len()).unwrap_or(i64::MAX);
    parts
        .enumerate()
        .map(|(index, devices)| ResourceSlice {
            metadata: ObjectMeta {
                name: Some(name(node, index)),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: node.to_string(),
                    uid: node_uid.to_owned(),
                    controller: Some(true),
                    block_owner_deletion: None,
                }]),
                ..ObjectMeta::default()
            },
            spec: ResourceSliceSpec {
                driver: DRIVER.to_owned(),
                node_name: Some(node.to_string()),
                pool: ResourcePool {
                    name: node.to_string(),
                    generation,
                    resource_slice_count: count,
                },
                devices: Some(devices.to_vec()),
                ..ResourceSliceSpec::default()
            },
        })
        .collect()
}

/// The mode by which slices were made; `None`: they have no device that says it.
pub(crate) fn mode_of(slices: &[ResourceSlice]) -> Option<Mode> {
    let mut devices = slices
        .iter()
        .flat_map(|slice| slice.spec.devices.iter().flatten());
    let device = devices.next()?;
    let text = |name: &str| device.attributes.as_ref()?.get(name)?.string.as_deref();
    match (text("mode"), text("type")?, text("strength")?) {
        (Some(mode), _, _) => Mode::of_name(mode),
        // Of an agent that did not say it.
        (None, "gpu", _) => Some(Mode::Whole),
        // Nothing holds parts of such a node's cards in any mode.
        (None, _, "none") => None,
        (None, _, _) => Some(Mode::Held),
    }
}

/// A slice's name, which its driver can find again: `<node>-gpu.cgpu.io-<n>`. The scheduler goes through slices by name.
fn name(node: &NodeName, index: usize) -> String {
    let suffix = format!("-{DRIVER}-{index:02}");
    let whole = format!("{node}{suffix}");
    if whole.len() <= NAME_CHARS_MAX {
        return whole;
    }
    let digest = cards::digest(node.as_str());
    let kept: String = node
        .as_str()
        .chars()
        .take(NAME_CHARS_MAX - suffix.len() - 17)
        .collect();
    // What is cut may end in a dot, which would be followed by a hyphen.
    format!("{}-{digest:.16}{suffix}", kept.trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests;
