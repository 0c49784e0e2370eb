//! Claims and a node that tests of this crate share, and what is read of the former.

use std::collections::BTreeSet;
use std::sync::Mutex;

use cards::placement::Policy;
use cards::{Card, CardRules, GpuUuid, ManagedMemory, Modes};
use host_config::config::Strength;
use proptest::prelude::*;
use serde_json::{Value, json};
use sys::sync::lock;

use super::*;
use crate::node::{Fault, Node, Reserve, Trouble, TroubleKind};

pub(crate) const UID: &str = "11111111-2222-3333-4444-555555555555";

/// Two cards of 24 GiB.
pub(crate) fn cards() -> NodeCards {
    let card = |index: u32| NodeCard {
        card: Card {
            uuid: GpuUuid::new(format!("GPU-00000000-0000-0000-0000-{index:012}")).unwrap(),
            name: "Simulated L4".to_owned(),
            memory_bytes: 24 << 30,
            minor: index,
            index,
            pci: format!("00000000:{index:02x}:00.0"),
            modes: Modes::default(),
        },
        trouble: None,
        reserved_bytes: 0,
        outside_bytes: 0,
    };
    NodeCards {
        driver_version: "570.195.03".to_owned(),
        rules: CardRules::default(),
        strength: Strength::Exact,
        order: Policy::Binpack,
        cards: vec![card(0), card(1)],
    }
}

/// A node in memory.
#[derive(Debug)]
pub(crate) struct FixtureNode {
    cards: NodeCards,
    silence: Mutex<Option<String>>,
    hung: Mutex<()>,
}

impl FixtureNode {
    pub(crate) fn new(cards: NodeCards) -> Self {
        Self {
            cards,
            silence: Mutex::default(),
            hung: Mutex::default(),
        }
    }

    /// Looks at the cards do not end before the guard does.
    pub(crate) fn hang(&self) -> std::sync::MutexGuard<'_, ()> {
        lock(&self.hung)
    }

    pub(crate) fn set_silence(&self, why: Option<&str>) {
        *lock(&self.silence) = why.map(str::to_owned);
    }
}

impl Node for FixtureNode {
    fn cards(&self) -> Result<NodeCards, Fault> {
        drop(lock(&self.hung));
        Ok(self.cards.clone())
    }

    fn silence(&self) -> Option<String> {
        lock(&self.silence).clone()
    }

    fn records(&self) -> Result<Vec<Record>, Fault> {
        Ok(Vec::new())
    }

    fn logs(&self) -> Result<Vec<(std::path::PathBuf, Option<crate::node::PodOfLog>)>, Fault> {
        Ok(Vec::new())
    }

    fn prepare(&self) -> Result<Reserve, Fault> {
        Err("a fixture".into())
    }

    fn let_in(&self, _record: &Record) -> Result<(), Fault> {
        Err("a fixture".into())
    }

    fn release(&self, _claim: &ClaimUid) -> Result<(), Fault> {
        Err("a fixture".into())
    }
}

fn device(index: usize) -> String {
    cards().cards[index].device()
}

fn result(request: &str, index: usize, share: u32) -> Value {
    json!({
        "request": request, "driver": DRIVER, "pool": "n1", "device": device(index),
        "shareID": format!("7007bb35-0000-4000-8000-{share:012}"),
        "consumedCapacity": {"memory": "8Gi", "cores": "30", "shares": "1"},
    })
}

fn claim(results: Value, config: Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team-a", "uid": UID},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-uid"}],
        },
    })
}

fn config(source: &str, requests: Value, keys: Value) -> Value {
    let mut parameters = json!({"apiVersion": "cgpu.io/v1", "kind": "VGpuConfig"});
    let fields = parameters.as_object_mut().unwrap();
    fields.extend(keys.as_object().unwrap().clone());
    json!({"source": source, "requests": requests, "opaque": {"driver": DRIVER, "parameters": parameters}})
}

pub(crate) fn plain() -> Value {
    claim(
        json!([result("vgpu", 0, 0)]),
        json!([config("FromClass", json!([]), json!({"policy": "soft"}))]),
    )
}

fn read_value(claim: &Value) -> Result<Allocation, String> {
    let claim: ResourceClaim = serde_json::from_value(claim.clone()).unwrap();
    let requested = ClaimRef {
        namespace: "team-a".to_owned(),
        name: "c".to_owned(),
        uid: ClaimUid::new(UID).unwrap(),
    };
    let node = NodeName::new("n1").unwrap();
    read(&claim, &requested, &node, &cards()).map_err(|error| error.to_string())
}

/// What the plain claim is given.
pub(crate) fn allocation() -> Allocation {
    read_value(&plain()).unwrap()
}

#[test]
fn a_claim_becomes_a_record_of_what_it_was_given() {
    let Allocation { record, devices } = allocation();
    let expected = json!({
        "version": 1,
        "claim": {"namespace": "team-a", "name": "c", "uid": UID},
        "node": "n1",
        "pods": [{"uid": "pod-uid", "name": "p"}],
        "requests": {"vgpu": {
            "shares": [{
                "id": "7007bb35-0000-4000-8000-000000000000",
                "card": "GPU-00000000-0000-0000-0000-000000000000",
                "device": device(0),
                "memory_bytes": 8_u64 << 30,
            }],
            "compute": {"policy": "soft", "percent": 30, "weight": null, "priority": "normal"},
        }},
    });
    assert_eq!(serde_json::to_value(&record).unwrap(), expected);
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].main_request(), "vgpu");
}

#[test]
fn two_cards_of_one_request_are_two_shares_with_the_same_terms() {
    let mut results = json!([result("vgpu", 0, 0), result("vgpu", 1, 1)]);
    let record = read_value(&claim(results.clone(), json!([])))
        .unwrap()
        .record;
    assert_eq!(record.requests["vgpu"].shares.len(), 2);
    results[1]["consumedCapacity"]["cores"] = json!("40");
    let error = read_value(&claim(results, json!([]))).unwrap_err();
    assert!(error.contains("different cores"), "{error}");
}

#[test]
fn a_card_that_is_not_shared_is_given_whole() {
    let results = json!([{"request": "gpu", "driver": DRIVER, "pool": "n1", "device": device(1)}]);
    let allocation = read_value(&claim(results, json!([]))).unwrap();
    let share = &allocation.record.requests["gpu"].shares[0];
    assert_eq!(
        (share.id.as_str(), share.memory_bytes),
        (device(1).as_str(), 24 << 30)
    );
    assert_eq!(allocation.devices[0].share_id, None);
}

#[test]
fn a_configuration_is_for_the_requests_that_it_names() {
    let results = json!([
        result("a", 0, 0),
        result("b/large", 0, 1),
        result("c", 1, 2)
    ]);
    let configurations = json!([
        config("FromClass", json!([]), json!({"allow": ["weight", "managed"], "policy": "weighted"})),
        config("FromClaim", json!(["a"]), json!({"weight": 3})),
        config("FromClaim", json!(["b"]), json!({"managed": "deny"})),
        config("FromClaim", json!(["b/large"]), json!({"weight": 7})),
        {"source": "FromClaim", "requests": [], "opaque": {"driver": "gpu.nvidia.com", "parameters": {"memory": "1"}}},
    ]);
    let allocation = read_value(&claim(results, configurations)).unwrap();
    let of = |name: &str| allocation.record.requests[name].clone();
    assert_eq!(of("a").compute.weight, Some(3));
    assert_eq!(of("b/large").compute.weight, Some(7));
    assert_eq!(of("b/large").managed, Some(ManagedMemory::Deny));
    assert_eq!((of("c").compute.weight, of("c").managed), (None, None));
    assert_eq!(allocation.devices[1].main_request(), "b");
}

/// Changes one thing of the plain claim.
fn changed(pointer: &str, value: Value) -> Value {
    let mut claim = plain();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = claim.pointer_mut(parent).unwrap();
    match key.parse::<usize>() {
        Ok(index) => parent[index] = value,
        Err(_) => parent[key] = value,
    }
    claim
}

#[test]
fn what_is_not_as_it_must_be_is_refused_and_named() {
    let result = "/status/allocation/devices/results/0";
    let at = |field: &str| format!("{result}/{field}");
    for (pointer, value, parts) in [
        (
            "/metadata/uid".to_owned(),
            json!("other"),
            &["uid other", "deleted and made again"][..],
        ),
        (
            "/status/allocation".to_owned(),
            Value::Null,
            &["not allocated"],
        ),
        ("/status/reservedFor".to_owned(), json!([]), &["no pod"]),
        (
            "/status/reservedFor/0/resource".to_owned(),
            json!("jobs"),
            &["no pod"],
        ),
        (at("driver"), json!("gpu.nvidia.com"), &["another driver's"]),
        (at("pool"), json!("n2"), &["\"n2\"", "\"n1\""]),
        (
            at("device"),
            json!("gpu-7"),
            &["\"gpu-7\"", "no card of this node"],
        ),
        (at("adminAccess"), json!(true), &["adminAccess"]),
        (
            at("consumedCapacity/memory"),
            json!("25Gi"),
            &["memory = 26843545600", "25769803776 bytes"],
        ),
        (at("consumedCapacity/memory"), json!("0"), &["memory = 0"]),
        (
            at("consumedCapacity/memory"),
            json!("lots"),
            &["memory = lots"],
        ),
        (
            at("consumedCapacity/cores"),
            json!("101"),
            &["cores = 101", "0 to 100"],
        ),
        (
            at("consumedCapacity/bandwidth"),
            json!("1"),
            &["bandwidth", "memory, cores and shares"],
        ),
        (
            "/status/allocation/devices/config/0".to_owned(),
            config("FromClaim", json!([]), json!({"memory": "200Gi"})),
            &["request vgpu", "sets memory", "the scheduler's"],
        ),
        (
            "/status/allocation/devices/config/0".to_owned(),
            config("FromElsewhere", json!([]), json!({})),
            &["\"FromElsewhere\""],
        ),
    ] {
        let error = read_value(&changed(&pointer, value)).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{pointer}: {part} is not in {error}");
        }
    }
}

#[test]
fn a_claim_has_thirty_two_results_at_most() {
    let results = |count: u32| (0..count).map(|n| result("vgpu", 0, n)).collect::<Value>();
    let allocation = read_value(&claim(results(32), json!([]))).unwrap();
    let ids: BTreeSet<String> = allocation
        .devices
        .into_iter()
        .map(|device| device.share)
        .collect();
    assert_eq!(ids.len(), 32);
    read_value(&claim(results(33), json!([]))).unwrap_err();
    let twice = json!([result("vgpu", 0, 0), result("vgpu", 0, 0)]);
    let error = read_value(&claim(twice, json!([]))).unwrap_err();
    assert!(error.contains("there twice"), "{error}");
}

#[test]
fn nothing_is_prepared_on_a_card_that_is_unhealthy() {
    let mut node_cards = cards();
    node_cards.cards[0].trouble = Some(Trouble {
        kind: TroubleKind::Xid(79),
        reason: "Xid 79: fallen off".to_owned(),
        since_unix_ms: 0,
    });
    node_cards.cards[1].card.modes.mig = true;
    for (index, reason) in [(0, "Xid 79: fallen off"), (1, "MIG")] {
        let claim = claim(json!([result("vgpu", index, 0)]), json!([]));
        let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
        let requested = ClaimRef {
            namespace: "team-a".to_owned(),
            name: "c".to_owned(),
            uid: ClaimUid::new(UID).unwrap(),
        };
        let node = NodeName::new("n1").unwrap();
        let error = read(&claim, &requested, &node, &node_cards)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(reason) && error.contains(&device(index)),
            "{error}"
        );
    }
}

proptest! {
    /// No allocation gives more of a card than it has, or what the scheduler did not count.
    #[test]
    fn what_is_recorded_is_what_was_counted(
        amounts in prop::collection::vec((0_usize..3, "[0-9]{1,11}(Ki|Mi|Gi|k|M|m|)", "[0-9]{1,3}"), 1..6),
    ) {
        let results: Vec<Value> = amounts.iter().zip(0..).map(|((card, memory, cores), n)| {
            let mut result = result("vgpu", (*card).min(1), n);
            result["consumedCapacity"] = json!({"memory": memory, "cores": cores});
            if *card == 2 {
                result["device"] = json!("gpu-of-nobody");
            }
            result
        }).collect();
        if let Ok(allocation) = read_value(&claim(Value::from(results), json!([]))) {
            for ((_, memory, cores), share) in amounts.iter().zip(&allocation.record.requests["vgpu"].shares) {
                let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(memory.clone());
                prop_assert_eq!(quantity::whole(&quantity), Some(share.memory_bytes));
                prop_assert!(share.memory_bytes <= 24 << 30);
                let percent = allocation.record.requests["vgpu"].compute.percent.unwrap_or(0);
                // One percent is kept for a share that has none of its own.
                let counted = cores.parse::<u32>().unwrap();
                prop_assert_eq!(if counted == 1 { 0 } else { counted }, percent);
            }
        }
    }
}
