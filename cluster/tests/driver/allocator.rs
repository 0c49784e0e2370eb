//! What the scheduler's own allocator gives of the slice that the node publishes, the node prepares, and nothing else has to be known of
//! each other: random pods come and go.

use std::collections::BTreeMap;

use integration::cluster::{Allocator, Situation, objects};
use integration::skip;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::fixture::{Fixture, SLICE, claim_path, soon, uid, uuid};

const CARDS: u32 = 3;
const CARD_BYTES: u64 = 24 << 30;
const STEPS: u32 = 150;

fn one_of<'a, T>(random: &mut Xoshiro256PlusPlus, from: &'a [T]) -> &'a T {
    let count = u64::try_from(from.len()).unwrap();
    &from[usize::try_from(random.next_u64() % count).unwrap()]
}

/// The devices of a claim: one or two requests of the shipped classes.
fn devices(random: &mut Xoshiro256PlusPlus) -> Value {
    let requests = 1 + random.next_u64() % 2;
    let requests = (0..requests).map(|index| {
        let amounts = [
            json!({"memory": "512Mi"}),
            json!({"memory": "1572864"}),
            json!({"memory": "3Gi", "cores": "25"}),
            json!({"memory": "9Gi", "cores": "40"}),
            json!({"cores": "60"}),
            json!({}),
        ];
        let class = one_of(random, &["vgpu.cgpu.io", "vgpu.cgpu.io", "card.cgpu.io"]);
        json!({"name": format!("r{index}"), "exactly": {
            "deviceClassName": class, "allocationMode": "ExactCount", "count": one_of(random, &[1, 1, 2]),
            "capacity": {"requests": one_of(random, &amounts)},
        }})
    });
    json!({"requests": requests.collect::<Vec<_>>()})
}

/// Memory of each card by the scheduler's account: the consumed capacities of the claims.
fn given(claims: &BTreeMap<u32, Value>) -> BTreeMap<String, u64> {
    let mut given = BTreeMap::new();
    for claim in claims.values() {
        let results = claim["status"]["allocation"]["devices"]["results"]
            .as_array()
            .unwrap();
        for result in results {
            let amount = result["consumedCapacity"]["memory"].as_str().unwrap();
            let card = result["device"].as_str().unwrap().to_owned();
            *given.entry(card).or_default() += dra::quantity::whole(amount).unwrap();
        }
    }
    given
}

/// The same by the node's records.
fn reserved(fixture: &Fixture, claims: &BTreeMap<u32, Value>) -> BTreeMap<String, u64> {
    let mut reserved = BTreeMap::new();
    for number in claims.keys() {
        let record = fixture
            .record(&uid(*number))
            .unwrap_or_else(|| panic!("no record of claim {number}"));
        for request in record["requests"].as_object().unwrap().values() {
            for share in request["shares"].as_array().unwrap() {
                let card = share["card"].as_str().unwrap().to_lowercase();
                *reserved.entry(card).or_default() += share["memory_bytes"].as_u64().unwrap();
            }
        }
    }
    reserved
}

#[tokio::test]
async fn what_the_allocator_gives_the_node_prepares() -> anyhow::Result<()> {
    let test = "what_the_allocator_gives_the_node_prepares";
    let mut allocator = match Allocator::start() {
        Ok(allocator) => allocator,
        Err(reason) => skip!(test, "{reason:#}"),
    };
    let is_class = |object: &Value| object["kind"] == "DeviceClass";
    let classes: Vec<Value> = objects()?.into_iter().filter(is_class).collect();
    let fixture = Fixture::new().await;
    fixture.set_cards(CARDS);
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    soon("a slice", || fixture.devices().len() == CARDS as usize).await;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut claims: BTreeMap<u32, Value> = BTreeMap::new();
    let (mut placed, mut waits) = (0, 0);
    for number in 1..=STEPS {
        if random.next_u64().is_multiple_of(3)
            && let Some(ended) = claims.keys().next().copied()
        {
            let name = format!("c{ended}");
            assert_eq!(kubelet.unprepare(&name, &uid(ended)).await, "");
            fixture.api.remove(&claim_path(&name));
            claims.remove(&ended);
        }
        let name = format!("c{number}");
        let mut claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "team-a", "uid": uid(number)},
            "spec": {"devices": devices(&mut random)},
        });
        let allocated: Vec<Value> = claims.values().cloned().collect();
        let slices = [fixture.api.get(SLICE).unwrap()];
        let situation = Situation {
            slices: &slices,
            classes: &classes,
            allocated: &allocated,
            node: "n1",
        };
        let Some(allocations) = allocator.allocate(situation, std::slice::from_ref(&claim))? else {
            waits += 1;
            continue;
        };
        claim["status"] = json!({
            "allocation": allocations[0],
            "reservedFor": [{"resource": "pods", "name": name, "uid": format!("pod-{number}")}],
        });
        fixture.claim(&name, claim.clone());
        let error = kubelet.prepare_one(&name, &uid(number)).await;
        assert_eq!(error, "", "step {number}: {claim}\n{claims:?}");
        placed += 1;
        claims.insert(number, claim);
        let by_scheduler = given(&claims);
        assert_eq!(by_scheduler, reserved(&fixture, &claims), "step {number}");
        for card in 0..CARDS {
            let taken = by_scheduler.get(&uuid(card).to_lowercase());
            assert!(taken.is_none_or(|taken| *taken <= CARD_BYTES));
        }
    }
    // Both happened, or nothing was compared.
    assert!(placed > 30 && waits > 30, "{placed} placed, {waits} waited");
    Ok(())
}
