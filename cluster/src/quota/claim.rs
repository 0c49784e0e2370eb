//! What a claim counts for: what it was given, or what it may be given at most. Pure.

use std::sync::Arc;

use fit::lean;
use k8s_openapi::api::resource::v1::{CapacityRequirements, DeviceAllocationResult, DeviceRequest};

use crate::names::DRIVER;
use crate::{quantity, slice};

/// Classes with this end are of our driver; by others nothing is allocated in a namespace with a maximum.
const CLASSES: &str = ".cgpu.io";

/// A claim has so many results at most, which `allocationMode: All` may all take.
const RESULTS_MAX: u64 = 32;

/// What is kept of a claim. A namespace may have very many, so nothing is kept as large as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) uid: Arc<str>,
    /// Seconds since 1970.
    pub(super) created_s: i64,
    pub(super) is_allocated: bool,
    /// Of each request or result.
    parts: Box<[Most]>,
}

/// What a request or a result counts for: the larger of both, by its alternatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Most {
    bytes: u64,
    whole_cards: u64,
}

impl Most {
    /// So much of each of so many cards. `None`: all that a card has.
    fn of(cards: u64, memory_bytes: Option<u64>) -> Self {
        match memory_bytes {
            Some(bytes) => Self {
                bytes: cards.saturating_mul(stepped(bytes)),
                whole_cards: 0,
            },
            None => Self {
                bytes: 0,
                whole_cards: cards,
            },
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            whole_cards: self.whole_cards.max(other.whole_cards),
        }
    }

    fn where_the_largest_has(self, card_bytes: u64) -> u64 {
        self.bytes.max(self.whole_cards.saturating_mul(card_bytes))
    }
}

impl Claim {
    /// Its namespace, and what is kept of it.
    pub(super) fn of(claim: lean::Claim) -> (String, Self) {
        let created = claim.metadata.creation_timestamp;
        let allocation = claim.status.and_then(|status| status.allocation);
        let parts = match &allocation {
            Some(allocation) => {
                let parts = allocation.devices.as_ref().map(given);
                parts.unwrap_or_default()
            }
            None => match claim.spec {
                Some(spec) => {
                    let devices = spec.devices.unwrap_or_default();
                    requested(devices.requests.unwrap_or_default())
                }
                // Nobody writes so long a claim. It is never granted.
                None => Box::new([Most::of(u64::MAX, Some(u64::MAX))]),
            },
        };
        let kept = Self {
            uid: claim.metadata.uid.unwrap_or_default().into(),
            created_s: created.map_or(0, |time| time.0.as_second()),
            is_allocated: allocation.is_some(),
            parts,
        };
        (claim.metadata.namespace.unwrap_or_default(), kept)
    }

    /// Whether it has or asks for anything of ours.
    pub(super) fn is_ours(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Bytes that it counts for, where the largest card has so many.
    pub(super) fn bytes(&self, largest_bytes: u64) -> u64 {
        let parts = self.parts.iter();
        parts
            .map(|part| part.where_the_largest_has(largest_bytes))
            .fold(0, u64::saturating_add)
    }
}

/// What the scheduler gave. A device that is not shared is a whole card.
fn given(devices: &DeviceAllocationResult) -> Box<[Most]> {
    let results = devices.results.iter().flatten();
    let ours = results.filter(|result| result.driver == DRIVER);
    ours.map(|result| {
        let consumed = result.consumed_capacity.as_ref();
        let memory = consumed.and_then(|capacity| capacity.get("memory"));
        Most::of(
            1,
            memory.map(|memory| quantity::whole(memory).unwrap_or(u64::MAX)),
        )
    })
    .collect()
}

/// One way to meet a request.
struct Way {
    class: String,
    mode: Option<String>,
    count: Option<i64>,
    capacity: Option<CapacityRequirements>,
}

impl Way {
    fn all_of(request: DeviceRequest) -> Vec<Self> {
        let exactly = request.exactly.map(|one| Self {
            class: one.device_class_name,
            mode: one.allocation_mode,
            count: one.count,
            capacity: one.capacity,
        });
        let alternatives = request.first_available.into_iter().flatten();
        let alternatives = alternatives.map(|one| Self {
            class: one.device_class_name,
            mode: one.allocation_mode,
            count: one.count,
            capacity: one.capacity,
        });
        exactly.into_iter().chain(alternatives).collect()
    }

    fn is_ours(&self) -> bool {
        self.class.ends_with(CLASSES)
    }

    fn most(&self) -> Most {
        let cards = match self.mode.as_deref() {
            Some("All") => RESULTS_MAX,
            _ => u64::try_from(self.count.unwrap_or(1)).unwrap_or(u64::MAX),
        };
        Most::of(cards, memory(self.capacity.as_ref()))
    }
}

/// What requests may be given of ours.
fn requested(requests: Vec<DeviceRequest>) -> Box<[Most]> {
    let of_one = |request| -> Option<Most> {
        let ways = Way::all_of(request).into_iter().filter(Way::is_ours);
        ways.map(|way| way.most()).reduce(Most::or)
    };
    requests.into_iter().filter_map(of_one).collect()
}

/// What the scheduler gives for an amount of memory.
fn stepped(bytes: u64) -> u64 {
    let step = slice::STEP_BYTES;
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}

fn memory(capacity: Option<&CapacityRequirements>) -> Option<u64> {
    let memory = capacity?.requests.as_ref()?.get("memory")?;
    Some(quantity::whole(memory).unwrap_or(u64::MAX))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GIB: u64 = 1 << 30;

    impl Claim {
        pub(crate) fn allocate(&mut self, bytes: u64) {
            self.is_allocated = true;
            self.parts = Box::new([Most::of(1, Some(bytes))]);
        }
    }

    pub(crate) fn claim(uid: &str, spec: &Value, status: &Value) -> Claim {
        let claim = json!({
            "metadata": {"namespace": "team", "name": uid, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"devices": {"requests": spec}}, "status": status,
        });
        Claim::of(serde_json::from_value(claim).unwrap()).1
    }

    fn gib(spec: &Value, status: &Value) -> u64 {
        claim("c", spec, status).bytes(24 * GIB) / GIB
    }

    #[test]
    fn a_claim_counts_for_what_it_may_be_given_at_most() {
        let exactly = |class: &str, fields: Value| {
            let mut fields = fields;
            fields["deviceClassName"] = json!(class);
            json!([{"name": "r", "exactly": fields}])
        };
        let memory = |memory: &str| json!({"requests": {"memory": memory}});
        for (spec, expected) in [
            (
                exactly("vgpu.cgpu.io", json!({"capacity": memory("8Gi")})),
                8,
            ),
            (
                exactly(
                    "vgpu.cgpu.io",
                    json!({"count": 2, "capacity": memory("8Gi")}),
                ),
                16,
            ),
            (exactly("own.cgpu.io", json!({})), 24),
            (exactly("card.cgpu.io", json!({"count": 3})), 72),
            (
                exactly("card.cgpu.io", json!({"allocationMode": "All"})),
                32 * 24,
            ),
            (exactly("nic.example.com", json!({"count": 3})), 0),
            (json!([]), 0),
            (Value::Null, 0),
            (
                json!([{"name": "r", "firstAvailable": [
                    {"name": "a", "deviceClassName": "vgpu.cgpu.io", "count": 2, "capacity": memory("4Gi")},
                    {"name": "b", "deviceClassName": "vgpu.cgpu.io", "capacity": memory("12Gi")},
                    {"name": "c", "deviceClassName": "nic.example.com", "count": 9},
                ]}]),
                12,
            ),
        ] {
            assert_eq!(gib(&spec, &Value::Null), expected, "{spec}");
        }
        let broken = exactly(
            "vgpu.cgpu.io",
            json!({"count": 2, "capacity": memory("much")}),
        );
        assert_eq!(claim("c", &broken, &Value::Null).bytes(1), u64::MAX);
        // The scheduler gives whole steps.
        for (amount, mib) in [("0", 2), ("1", 2), ("1Mi", 2), ("1048577", 4)] {
            let small = exactly(
                "vgpu.cgpu.io",
                json!({"count": 2, "capacity": memory(amount)}),
            );
            let bytes = claim("c", &small, &Value::Null).bytes(GIB);
            assert_eq!(bytes, mib << 20, "{amount}");
        }
    }

    #[test]
    fn of_a_claim_its_amounts_are_kept_and_nothing_that_it_was_read_from() {
        let exactly =
            json!({"deviceClassName": "vgpu.cgpu.io", "capacity": {"requests": {"memory": "1Gi"}}});
        let ways = json!([
            {"name": "a", "deviceClassName": "vgpu.cgpu.io"},
            {"name": "b", "deviceClassName": "vgpu.cgpu.io", "count": 2, "capacity": {"requests": {"memory": "16Gi"}}},
        ]);
        let request = |number: usize| match number {
            0..16 => json!({"name": format!("r{number}"), "exactly": exactly}),
            _ => json!({"name": format!("r{number}"), "firstAvailable": ways}),
        };
        let spec: Value = (0..32).map(request).collect();
        let large = claim("c", &spec, &Value::Null);
        let kept = size_of::<Claim>() + size_of_val(&*large.parts) + large.uid.len();
        assert!(kept < 1024, "{kept} bytes");
        assert_eq!(gib(&spec, &Value::Null), 16 + 16 * 32);
        assert_eq!(large.bytes(48 * GIB) / GIB, 16 + 16 * 48);
    }

    #[test]
    fn an_allocated_claim_counts_for_what_it_has() {
        let spec = json!([{"name": "r", "exactly": {"deviceClassName": "own.example.com"}}]);
        let result = |driver: &str, consumed: Value| json!({"request": "r", "driver": driver, "pool": "n", "device": "d", "consumedCapacity": consumed});
        let status = |results: Value| json!({"allocation": {"devices": {"results": results}}});
        let two = status(json!([
            result("gpu.cgpu.io", json!({"memory": "4Gi"})),
            result("gpu.cgpu.io", json!({"memory": "5Gi", "cores": "3"})),
            result("nic.example.com", json!({"memory": "9Gi"})),
        ]));
        assert_eq!(gib(&spec, &two), 9);
        let whole = status(json!([result("gpu.cgpu.io", Value::Null)]));
        assert_eq!(gib(&spec, &whole), 24, "a card that is not shared");
        let other = claim(
            "c",
            &spec,
            &status(json!([result("nic.example.com", json!({}))])),
        );
        assert!(!other.is_ours() && other.is_allocated);
    }
}
