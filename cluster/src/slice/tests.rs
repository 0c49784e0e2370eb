use std::collections::BTreeSet;
use std::path::PathBuf;

use cards::{Card, CardRules, GpuUuid, Modes};
use host_config::config::Strength;
use proptest::prelude::*;

use super::*;
use crate::names::is_label;
use crate::node::{Trouble, TroubleKind};
use crate::quantity::whole;

fn card(index: u32, memory_bytes: u64, reserved_bytes: u64) -> NodeCard {
    NodeCard {
        card: Card {
            uuid: GpuUuid::new(format!("GPU-00000000-0000-0000-0000-{index:012}")).unwrap(),
            name: "NVIDIA H200".to_owned(),
            memory_bytes,
            minor: index,
            index,
            pci: format!("00000000:{:02X}:00.0", index % 256),
            modes: Modes::default(),
        },
        trouble: None,
        reserved_bytes,
        outside_bytes: 0,
    }
}

fn cards(order: Policy, cards: Vec<NodeCard>) -> NodeCards {
    NodeCards {
        driver_version: "570.195.03".to_owned(),
        rules: CardRules::default(),
        strength: Strength::Exact,
        order,
        cards,
    }
}

fn offer(cards: &NodeCards, mode: Mode) -> Offer {
    let switch = Switch {
        mode,
        draining: false,
    };
    Offer::of(cards, switch, &PathBuf::from("/nonexistent"))
}

fn node() -> NodeName {
    NodeName::new("n1").unwrap()
}

fn trouble(kind: TroubleKind) -> Option<Trouble> {
    Some(Trouble {
        kind,
        reason: "seen".to_owned(),
        since_unix_ms: 1_700_000_000_123,
    })
}

#[test]
fn a_card_is_a_device_with_its_memory_and_time() {
    let node_cards = cards(Policy::Binpack, vec![card(0, (24 << 30) + 4096, 0)]);
    let slices = slices(&offer(&node_cards, Mode::Held), &node(), "node-uid", 3);
    let [slice] = slices.as_slice() else {
        panic!("{slices:?}");
    };
    let json = serde_json::to_value(slice).unwrap();
    let expected = serde_json::json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": "n1-gpu.cgpu.io-00",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": true}],
        },
        "spec": {
            "driver": "gpu.cgpu.io",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 3, "resourceSliceCount": 1},
            "devices": [{
                "name": "gpu-00000000-0000-0000-0000-000000000000",
                "allowMultipleAllocations": true,
                "attributes": {
                    "type": {"string": "vgpu"},
                    "uuid": {"string": "GPU-00000000-0000-0000-0000-000000000000"},
                    "index": {"int": 0},
                    "minor": {"int": 0},
                    "productName": {"string": "NVIDIA H200"},
                    "driverVersion": {"version": "570.195.3"},
                    "policy": {"string": CardRules::default().policy.name()},
                    "mode": {"string": "held"},
                    "strength": {"string": "exact"},
                    "resource.kubernetes.io/pciBusID": {"string": "0000:00:00.0"},
                },
                "capacity": {
                    "memory": {"value": "24Gi", "requestPolicy": {
                        "default": "24Gi", "validRange": {"min": "1Mi", "step": "1Mi", "max": "24Gi"}}},
                    "cores": {"value": "100", "requestPolicy": {
                        "default": "1", "validRange": {"min": "1", "step": "1", "max": "100"}}},
                    "shares": {"value": CardRules::default().max_tenants.to_string(), "requestPolicy": {
                        "default": "1", "validValues": ["1"]}},
                },
            }],
        },
    });
    assert_eq!(json, expected);
}

#[test]
fn taints_follow_health() {
    let mut lost = card(0, 24 << 30, 0);
    lost.trouble = trouble(TroubleKind::Lost);
    let mut xid = card(1, 24 << 30, 0);
    xid.trouble = trouble(TroubleKind::Xid(79));
    let mut silent = card(2, 24 << 30, 0);
    silent.trouble = trouble(TroubleKind::Unmonitored);
    let node_cards = cards(
        Policy::Binpack,
        vec![lost, xid, silent, card(3, 24 << 30, 0)],
    );
    let taints: Vec<serde_json::Value> = offer(&node_cards, Mode::Held)
        .devices
        .iter()
        .map(|device| serde_json::to_value(&device.taints).unwrap())
        .collect();
    let time = "2023-11-14T22:13:20Z";
    assert_eq!(
        taints,
        [
            serde_json::json!([{"key": "gpu.cgpu.io/gpu-lost", "effect": "NoExecute", "timeAdded": time}]),
            serde_json::json!([{"key": "gpu.cgpu.io/xid", "value": "xid-79", "effect": "NoSchedule", "timeAdded": time}]),
            serde_json::json!([{"key": "gpu.cgpu.io/unmonitored", "effect": "NoSchedule", "timeAdded": time}]),
            serde_json::Value::Null,
        ]
    );
}

#[test]
fn cards_that_nobody_can_share_are_not_offered() {
    let mut mig = card(0, 24 << 30, 0);
    mig.card.modes.mig = true;
    let node_cards = cards(
        Policy::Binpack,
        vec![mig, card(1, 1 << 19, 0), card(2, 1 << 30, 0)],
    );
    let offer = offer(&node_cards, Mode::Held);
    assert_eq!(offer.devices.len(), 1);
    assert!(offer.devices[0].name.ends_with("2"));
}

#[test]
fn what_containers_outside_of_the_cluster_have_is_not_offered() {
    let mut shared = card(0, 24 << 30, 6 << 30);
    shared.outside_bytes = 6 << 30;
    let mut full = card(1, 24 << 30, 24 << 30);
    full.outside_bytes = 24 << 30;
    let node_cards = cards(Policy::Spread, vec![shared, full]);
    let held = offer(&node_cards, Mode::Held).devices;
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].capacity.as_ref().unwrap()["memory"].value.0, "18Gi");
    assert_eq!(offer(&node_cards, Mode::Whole).devices, []);
}

#[test]
fn a_node_of_whole_cards_offers_each_once() {
    let node_cards = cards(Policy::Binpack, vec![card(0, 24 << 30, 0)]);
    let devices = offer(&node_cards, Mode::Whole).devices;
    assert_eq!(devices[0].allow_multiple_allocations, None);
    let capacity = devices[0].capacity.as_ref().unwrap();
    assert_eq!(capacity.keys().collect::<Vec<_>>(), ["memory"]);
    assert_eq!(capacity["memory"].request_policy, None);
    let strength = |mode: Mode| {
        let devices = offer(&node_cards, mode).devices;
        devices[0].attributes.as_ref().unwrap()["strength"]
            .string
            .clone()
    };
    // The label changes nothing about how parts are held.
    assert_eq!(strength(Mode::Shared).as_deref(), Some("exact"));
    assert_eq!(strength(Mode::Held).as_deref(), Some("exact"));
}

/// After a restart, on whatever node: one whose strength is none is not one of mode shared.
#[test]
fn the_mode_is_read_from_what_is_published() {
    for strength in [Strength::None, Strength::Exact] {
        let mut node_cards = cards(Policy::Binpack, vec![card(0, 24 << 30, 0)]);
        node_cards.strength = strength;
        for mode in [Mode::Held, Mode::Shared, Mode::Whole] {
            let node = NodeName::new("n1").unwrap();
            let mut slices = slices(&offer(&node_cards, mode), &node, "uid", 1);
            assert_eq!(mode_of(&slices), Some(mode), "{strength:?}");
            // As an agent of before published it.
            let devices = slices[0].spec.devices.as_mut().unwrap();
            let attributes = devices[0].attributes.as_mut().unwrap();
            attributes.remove("mode");
            if mode == Mode::Shared {
                attributes.get_mut("strength").unwrap().string = Some("none".to_owned());
            }
            let before = mode_of(&slices);
            assert!(before.is_none_or(|it| it == mode), "{mode:?}: {before:?}");
        }
    }
}

#[test]
fn a_draining_node_takes_nothing_new() {
    let node_cards = cards(Policy::Binpack, vec![card(0, 24 << 30, 0)]);
    let switch = Switch {
        mode: Mode::Held,
        draining: true,
    };
    let offer = Offer::of(&node_cards, switch, &PathBuf::from("/nonexistent"));
    let taints = offer.devices[0].taints.clone().unwrap();
    assert_eq!(taints[0].key, "gpu.cgpu.io/mode-change");
    assert_eq!(taints[0].effect, "NoSchedule");
}

fn indices(order: Policy) -> Vec<String> {
    let all = vec![
        card(0, 10 << 30, 1 << 30),
        card(1, 10 << 30, 0),
        card(2, 10 << 30, 5 << 30),
    ];
    let devices = offer(&cards(order, all), Mode::Held).devices;
    devices
        .iter()
        .map(|device| device.name[device.name.len() - 1..].to_owned())
        .collect()
}

#[test]
fn the_fullest_or_the_emptiest_card_comes_first() {
    assert_eq!(indices(Policy::Binpack), ["2", "0", "1"]);
    assert_eq!(indices(Policy::Spread), ["1", "0", "2"]);
}

#[test]
fn a_driver_s_release_becomes_a_semantic_version() {
    for (release, version) in [
        ("570.195.03", Some("570.195.3")),
        ("580.05", Some("580.5.0")),
        ("600", Some("600.0.0")),
        ("535.261.03.01", Some("535.261.3")),
        ("570.195.03-beta", None),
        ("", None),
        ("1..2", None),
    ] {
        assert_eq!(device::semantic(release).as_deref(), version, "{release}");
    }
}

#[test]
fn the_generation_follows_the_devices_alone() {
    let two = cards(
        Policy::Binpack,
        vec![card(0, 10 << 30, 0), card(1, 10 << 30, 0)],
    );
    let first = offer(&two, Mode::Held);
    let of = |offer: &Offer| generation(&Published::default(), offer);
    assert_eq!(of(&first), 1);
    let published = Published::of(&slices(&first, &node(), "u", 7));
    let mut changed = two.clone();
    changed.cards[1].reserved_bytes = 1 << 30;
    changed.cards[0].trouble = trouble(TroubleKind::Xid(48));
    let again = offer(&changed, Mode::Held);
    assert_ne!(again, first);
    assert_eq!(generation(&published, &again), 7);
    changed.cards.pop();
    assert_eq!(generation(&published, &offer(&changed, Mode::Held)), 8);
    changed.cards.clear();
    assert_eq!(generation(&published, &offer(&changed, Mode::Held)), 8);
}

#[test]
fn a_long_node_name_is_cut_and_stays_its_own() {
    let long = |last: &str| {
        NodeName::new(format!("{}.{last}", vec!["a".repeat(60); 4].join("."))).unwrap()
    };
    let names = [name(&long("b"), 0), name(&long("c"), 0)];
    assert_ne!(names[0], names[1]);
    for name in names {
        NodeName::new(name).unwrap();
    }
}

fn any_card() -> impl Strategy<Value = NodeCard> {
    let kind = prop_oneof![
        Just(None),
        Just(trouble(TroubleKind::Lost)),
        any::<u32>().prop_map(|number| trouble(TroubleKind::Xid(number))),
    ];
    (any::<u64>(), any::<u64>(), ".{0,90}", ".{0,20}", kind).prop_map(
        |(memory, reserved, name, pci, trouble)| {
            let mut card = card(0, memory, reserved);
            card.card.name = name;
            card.card.pci = pci;
            card.trouble = trouble;
            card
        },
    )
}

proptest! {
    /// The server's own rules: `validateDevice` of resource.k8s.io.
    #[test]
    fn every_slice_is_valid(
        all in prop::collection::vec(any_card(), 0..150),
        release in "[0-9.]{0,12}",
        tenants in any::<u32>(),
    ) {
        let mut node_cards = cards(Policy::Spread, all);
        for (index, card) in node_cards.cards.iter_mut().enumerate() {
            card.card.index = u32::try_from(index).unwrap();
            card.card.uuid = GpuUuid::new(format!("GPU-{index}")).unwrap();
        }
        node_cards.driver_version = release;
        node_cards.rules.max_tenants = tenants;
        let slices = slices(&offer(&node_cards, Mode::Held), &node(), "u", 1);
        let mut names = BTreeSet::new();
        for slice in &slices {
            prop_assert_eq!(usize::try_from(slice.spec.pool.resource_slice_count).unwrap(), slices.len());
            let devices = slice.spec.devices.as_deref().unwrap();
            prop_assert!(devices.len() <= 64);
            for device in devices {
                prop_assert!(is_label(&device.name) && names.insert(device.name.clone()));
                let attributes = device.attributes.as_ref().unwrap();
                let capacity = device.capacity.as_ref().unwrap();
                prop_assert!(attributes.len() + capacity.len() <= 32);
                for (name, attribute) in attributes {
                    let id = name.rsplit('/').next().unwrap();
                    prop_assert!(id.len() <= 32);
                    let text = attribute.string.as_ref().or(attribute.version.as_ref());
                    prop_assert!(text.is_none_or(|text| !text.is_empty() && text.len() <= 64));
                }
                let memory = &capacity["memory"];
                let policy = memory.request_policy.as_ref().unwrap();
                let range = policy.valid_range.as_ref().unwrap();
                let number = |quantity| whole(quantity).unwrap();
                let (min, step) = (number(&range.min), number(range.step.as_ref().unwrap()));
                for amount in [policy.default.as_ref().unwrap(), range.max.as_ref().unwrap()] {
                    prop_assert_eq!((number(amount) - min) % step, 0);
                    prop_assert!(number(amount) <= number(&memory.value));
                }
                prop_assert!(device.taints.iter().flatten().count() <= 16);
            }
        }
    }
}
