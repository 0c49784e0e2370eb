//! What is judged here against the scheduler's own allocator, at random: nodes, pods that come with one or two claims, pods that end.

use std::cell::RefCell;

use integration::cluster::{Allocator, Situation};
use integration::skip;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};

use super::*;
use crate::cards::{Given, offers};
use crate::needs::Classes;

const NODE: &str = "n1";

/// What happens next.
#[derive(Debug, Clone)]
enum Step {
    /// A pod comes, with the devices of its claims.
    Comes(Vec<Value>),
    /// The oldest, the second oldest, … claim is released.
    Ends(usize),
}

fn a_card() -> impl Strategy<Value = Value> {
    let memory = prop_oneof![Just("16Gi"), Just("24Gi"), Just("6Gi"), Just("1536Mi")];
    let taint = prop_oneof![
        6 => Just(None),
        1 => Just(Some(("NoSchedule", "xid-79"))),
        1 => Just(Some(("NoExecute", ""))),
        1 => Just(Some(("None", "xid-31"))),
    ];
    let root = prop_oneof![Just("pci0000:00"), Just("pci0000:80")];
    let shared = prop::bool::weighted(0.85);
    (memory, taint, root, shared).prop_map(|(memory, taint, root, shared)| {
        let mut card = json!({
            "allowMultipleAllocations": shared,
            "attributes": {"resource.kubernetes.io/pcieRoot": {"string": root}},
            "capacity": {"memory": {"value": memory}, "cores": {"value": "100"}, "shares": {"value": "3"}},
        });
        if shared {
            let range = |step: &str, max: &str, default: &str, min: &str| {
                json!({"default": default, "validRange": {"min": min, "step": step, "max": max}})
            };
            card["capacity"]["memory"]["requestPolicy"] = range("1Mi", memory, memory, "1Mi");
            card["capacity"]["cores"]["requestPolicy"] = range("1", "100", "1", "1");
            card["capacity"]["shares"]["requestPolicy"] = json!({"default": "1", "validValues": ["1"]});
        }
        if let Some((effect, value)) = taint {
            card["taints"] = json!([{"key": "gpu.cgpu.io/xid", "value": value, "effect": effect}]);
        }
        card
    })
}

/// What names a class and amounts, with no name of its own yet.
fn a_way() -> impl Strategy<Value = Value> {
    let class = prop_oneof![4 => Just("vgpu.cgpu.io"), 1 => Just("any")];
    let memory = prop_oneof![
        Just(None),
        Just(Some("1Gi")),
        Just(Some("5Gi")),
        Just(Some("12Gi")),
        Just(Some("1572864")),
        Just(Some("40Gi")),
    ];
    let cores = prop_oneof![Just(None), Just(Some("30")), Just(Some("60"))];
    let count =
        prop_oneof![5 => Just(Some(1)), 2 => Just(Some(2)), 1 => Just(Some(3)), 1 => Just(None)];
    let tolerates = prop_oneof![
        4 => Just(None),
        1 => Just(Some(json!([{"operator": "Exists"}]))),
        1 => Just(Some(json!([{"key": "gpu.cgpu.io/xid", "operator": "Equal", "value": "xid-79", "effect": "NoSchedule"}]))),
    ];
    (class, memory, cores, count, tolerates).prop_map(|(class, memory, cores, count, tolerates)| {
        let mut way = json!({"deviceClassName": class});
        match count {
            Some(count) => {
                way["allocationMode"] = json!("ExactCount");
                way["count"] = json!(count);
            }
            None => way["allocationMode"] = json!("All"),
        }
        for (name, amount) in [("memory", memory), ("cores", cores)] {
            if let Some(amount) = amount {
                way["capacity"]["requests"][name] = json!(amount);
            }
        }
        if let Some(tolerations) = tolerates {
            way["tolerations"] = tolerations;
        }
        way
    })
}

fn a_request() -> impl Strategy<Value = Value> {
    let exactly = a_way().prop_map(|way| json!({"exactly": way}));
    let alternatives = prop::collection::vec(a_way(), 1..3).prop_map(|mut ways| {
        for (index, way) in ways.iter_mut().enumerate() {
            way["name"] = json!(format!("way-{index}"));
        }
        json!({"firstAvailable": ways})
    });
    prop_oneof![4 => exactly, 1 => alternatives]
}

/// The allocator of 1.36 remembers, for `distinctAttribute`, only the last card of each request: two requests can get one card if one of
/// them asks for several. Here that is not judged so.
fn ask_for_one_card(request: &mut Value) {
    let alternatives = request["firstAvailable"].as_array_mut();
    let alternatives = alternatives.into_iter().flatten();
    for way in alternatives {
        way["allocationMode"] = json!("ExactCount");
        way["count"] = json!(1);
    }
    if let Some(way) = request.get_mut("exactly") {
        way["allocationMode"] = json!("ExactCount");
        way["count"] = json!(1);
    }
}

fn devices() -> impl Strategy<Value = Value> {
    let constraint = prop_oneof![
        4 => Just(None),
        1 => Just(Some(json!({"distinctAttribute": "gpu.cgpu.io/uuid"}))),
        1 => Just(Some(json!({"matchAttribute": "resource.kubernetes.io/pcieRoot"}))),
        1 => Just(Some(json!({"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["r0"]}))),
    ];
    (prop::collection::vec(a_request(), 1..3), constraint).prop_map(|(mut requests, constraint)| {
        for (index, request) in requests.iter_mut().enumerate() {
            request["name"] = json!(format!("r{index}"));
        }
        let is_distinct = constraint
            .as_ref()
            .is_some_and(|constraint| constraint.get("distinctAttribute").is_some());
        if is_distinct {
            requests.iter_mut().for_each(ask_for_one_card);
        }
        let mut devices = json!({"requests": requests});
        if let Some(constraint) = constraint {
            devices["constraints"] = json!([constraint]);
        }
        devices
    })
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(devices(), 1..3).prop_map(Step::Comes),
        1 => (0..4_usize).prop_map(Step::Ends),
    ]
}

/// The node's slice.
fn slice(cards: &[Value]) -> Value {
    let cards = cards.iter().enumerate().map(|(index, card)| {
        let mut card = card.clone();
        card["name"] = json!(format!("gpu-{index}"));
        card["attributes"]["uuid"] = json!({"string": format!("GPU-{index}")});
        card
    });
    json!({
        "metadata": {"name": "n1-gpu.cgpu.io-00"},
        "spec": {
            "driver": dra::DRIVER, "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": cards.collect::<Vec<_>>(),
        },
    })
}

fn class(name: &str, expression: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
}

fn parsed<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// The allocator's way: request and device of each result, claim by claim.
fn results(allocations: &[Value]) -> Vec<(String, String)> {
    let results = allocations.iter().flat_map(|allocation| {
        allocation["devices"]["results"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    });
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    results
        .map(|result| (text(&result["request"]), text(&result["device"])))
        .collect()
}

/// A life of a node, step by step, judged by both.
fn live(allocator: &mut Allocator, cards: &[Value], steps: &[Step]) -> Result<(), TestCaseError> {
    let slices = [slice(cards)];
    let shared = "device.driver == \"gpu.cgpu.io\" && device.allowMultipleAllocations";
    let classes = [
        class("vgpu.cgpu.io", shared),
        class("any", "device.driver == \"gpu.cgpu.io\""),
    ];
    let by_name: Classes = classes
        .iter()
        .map(|class| {
            let class: DeviceClass = parsed(class);
            (class.metadata.name.clone().unwrap(), class)
        })
        .collect();
    let mut allocated: Vec<Value> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let all_devices = match step {
            Step::Ends(index) => {
                if *index < allocated.len() {
                    allocated.remove(*index);
                }
                continue;
            }
            Step::Comes(devices) => devices,
        };
        let claims: Vec<Value> = all_devices
            .iter()
            .enumerate()
            .map(|(index, devices)| {
                let name = format!("c-{number}-{index}");
                json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"devices": devices}})
            })
            .collect();
        let given = allocated
            .iter()
            .filter_map(|claim| crate::cards::taken(&parsed::<ResourceClaim>(claim)));
        let given = Given::of_all(given.collect());
        let offers = offers(slices.iter().map(parsed::<ResourceSlice>).collect(), &given);
        let needs: Vec<Needs> = claims
            .iter()
            .map(|claim| Needs::of(&parsed::<ResourceClaim>(claim).spec, &by_name))
            .collect();
        let judged = search(&needs.iter().collect::<Vec<_>>(), &offers[NODE].cards);
        let situation = Situation {
            slices: &slices,
            classes: &classes,
            allocated: &allocated,
            node: NODE,
        };
        let allocations = match allocator.allocate(situation, &claims) {
            // To the scheduler an error is as good as a node that does not fit.
            Err(error)
                if error
                    .to_string()
                    .contains("constraint would not be satisfied") =>
            {
                None
            }
            other => other.map_err(|error| TestCaseError::fail(format!("{error:#}")))?,
        };
        let here = match judged {
            Outcome::Fits { given, unknown } => {
                prop_assert!(unknown.is_empty());
                let device = |index: usize| offers[NODE].cards[index].device.name.clone();
                let given = given.into_iter();
                let given = given.map(|(request, index)| (request, device(index)));
                Some(given.collect::<Vec<_>>())
            }
            Outcome::Not => None,
            Outcome::TooMany => return Err(TestCaseError::reject("too many ways")),
        };
        let there = allocations.as_deref().map(results);
        prop_assert_eq!(&here, &there, "step {}: {:?}", number, step);
        for (mut claim, allocation) in claims.into_iter().zip(allocations.unwrap_or_default()) {
            claim["status"]["allocation"] = allocation;
            allocated.push(claim);
        }
    }
    Ok(())
}

#[test]
fn the_scheduler_s_allocator_judges_the_same() -> anyhow::Result<()> {
    let test = "the_scheduler_s_allocator_judges_the_same";
    let allocator = match Allocator::start() {
        Ok(allocator) => RefCell::new(allocator),
        Err(reason) => skip!(test, "{reason:#}"),
    };
    let mut runner = TestRunner::new(Config {
        // The usual 256, or as PROPTEST_CASES has it.
        failure_persistence: None,
        ..Config::default()
    });
    let lives = (
        prop::collection::vec(a_card(), 1..4),
        prop::collection::vec(a_step(), 1..8),
    );
    let judged = runner.run(&lives, |(cards, steps)| {
        live(&mut allocator.borrow_mut(), &cards, &steps)
    });
    judged.map_err(|error| anyhow::anyhow!("{error}"))
}
