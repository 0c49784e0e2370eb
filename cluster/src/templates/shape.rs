//! The shape of a claim that a classic pod becomes, in its template's name: `cgpu-m4-c30-x2` is 4 GiB and 30 percent of each of two cards.
//!
//! The names are written by `cluster/policies/classic.yaml`. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, CapacityRequirements, DeviceClaim, DeviceConstraint, DeviceRequest,
    DeviceSelector, DeviceSubRequest, ExactDeviceRequest, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::names::DRIVER;
use crate::quantity;

/// The one request of a claim.
const REQUEST: &str = "vgpu";
/// Results that a claim can have.
const CARDS_MAX: u64 = 32;
/// 65536 GiB: what the policies allow.
const MIB_MAX: u64 = 65536 << 10;
/// Alternatives that a request can have.
const ALTERNATIVES_MAX: usize = 8;

/// Memory of each card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Mib(u64),
    Percent(u64),
    Whole,
}

/// Before whom the claim is served on its cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    High,
    Normal,
    Low,
}

impl Level {
    const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The class of `cluster/policies/classes.yaml` that the claim is of.
    fn class(self) -> &'static str {
        match self {
            Self::High => "vgpu-high.cgpu.io",
            Self::Normal => "vgpu.cgpu.io",
            Self::Low => "vgpu-low.cgpu.io",
        }
    }

    /// How a template's name ends.
    fn suffix(self) -> &'static str {
        match self {
            Self::High => "-high",
            Self::Normal => "",
            Self::Low => "-low",
        }
    }
}

/// What a claim has of each of its cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    memory: Memory,
    /// Percent of a card's time.
    cores: u64,
    cards: u64,
    level: Level,
}

impl Shape {
    /// The shape that a template's name has; `None`: the name is none of the policies'.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.split('-').collect();
        let ["cgpu", memory, cores, cards, suffix @ ..] = parts.as_slice() else {
            return None;
        };
        let suffix = suffix
            .iter()
            .fold(String::new(), |all, one| all + "-" + one);
        let level = Level::ALL
            .into_iter()
            .find(|level| level.suffix() == suffix)?;
        let number = |text: &str, letter: char| text.strip_prefix(letter)?.parse::<u64>().ok();
        let memory = match (*memory, memory.strip_suffix("mi")) {
            ("whole", _) => Memory::Whole,
            (_, Some(mib)) => Memory::Mib(number(mib, 'm')?),
            (text, None) if text.starts_with('m') => {
                Memory::Mib(number(text, 'm')?.checked_mul(1 << 10)?)
            }
            (text, None) => Memory::Percent(number(text, 'p')?),
        };
        let shape = Self {
            memory,
            cores: number(cores, 'c')?,
            cards: number(cards, 'x')?,
            level,
        };
        // One shape has one name.
        (shape.is_allowed() && shape.name() == name).then_some(shape)
    }

    fn is_allowed(self) -> bool {
        let memory = match self.memory {
            Memory::Mib(mib) => (1..=MIB_MAX).contains(&mib),
            Memory::Percent(percent) => (1..100).contains(&percent),
            Memory::Whole => true,
        };
        // Percent of a card's time are reserved, and have no priority.
        let most = if self.level == Level::Normal { 100 } else { 0 };
        memory && self.cores <= most && (1..=CARDS_MAX).contains(&self.cards)
    }

    fn name(self) -> String {
        let memory = match self.memory {
            Memory::Mib(mib) if mib.is_multiple_of(1 << 10) => format!("m{}", mib >> 10),
            Memory::Mib(mib) => format!("m{mib}mi"),
            Memory::Percent(percent) => format!("p{percent}"),
            Memory::Whole => "whole".to_owned(),
        };
        let suffix = self.level.suffix();
        format!("cgpu-{memory}-c{}-x{}{suffix}", self.cores, self.cards)
    }

    /// Whether the claim depends on which cards the cluster has.
    pub(super) fn is_part(self) -> bool {
        matches!(self.memory, Memory::Percent(_))
    }

    /// The claim. `sizes`: bytes that cards of the cluster have, and how many cards; a part of a card is an alternative for each of those that most
    /// cards have. `None`: no card is known of which it could be a part.
    pub(super) fn claim(self, sizes: &BTreeMap<u64, usize>) -> Option<ResourceClaimSpec> {
        let mut request = DeviceRequest {
            name: REQUEST.to_owned(),
            ..DeviceRequest::default()
        };
        match self.memory {
            Memory::Whole => request.exactly = Some(self.exactly(None)),
            Memory::Mib(mib) => request.exactly = Some(self.exactly(Some(mib << 20))),
            Memory::Percent(percent) => {
                // The smallest card first: larger ones stay free for those who need them.
                let alternatives: Vec<DeviceSubRequest> = of_most_cards(sizes)
                    .into_iter()
                    .enumerate()
                    .map(|(index, size)| self.alternative(index, size, percent))
                    .collect();
                if alternatives.is_empty() {
                    return None;
                }
                request.first_available = Some(alternatives);
            }
        }
        let constraint = DeviceConstraint {
            requests: Some(vec![REQUEST.to_owned()]),
            distinct_attribute: Some(format!("{DRIVER}/uuid")),
            ..DeviceConstraint::default()
        };
        Some(ResourceClaimSpec {
            devices: Some(DeviceClaim {
                requests: Some(vec![request]),
                constraints: (self.cards > 1).then(|| vec![constraint]),
                ..DeviceClaim::default()
            }),
        })
    }

    fn exactly(self, bytes: Option<u64>) -> ExactDeviceRequest {
        ExactDeviceRequest {
            device_class_name: self.level.class().to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: i64::try_from(self.cards).ok(),
            capacity: Some(self.capacity(bytes)),
            ..ExactDeviceRequest::default()
        }
    }

    fn alternative(self, index: usize, size: u64, percent: u64) -> DeviceSubRequest {
        let expression = format!(
            "device.capacity[\"{DRIVER}\"].memory.compareTo(quantity(\"{}\")) == 0",
            quantity::bytes(size).0
        );
        // The slices' step, and never nothing.
        let bytes = ((size >> 20) * percent / 100).max(1) << 20;
        DeviceSubRequest {
            name: format!("size-{index}"),
            device_class_name: self.level.class().to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: i64::try_from(self.cards).ok(),
            selectors: Some(vec![DeviceSelector {
                cel: Some(CELDeviceSelector { expression }),
            }]),
            capacity: Some(self.capacity(Some(bytes))),
            ..DeviceSubRequest::default()
        }
    }

    fn capacity(self, bytes: Option<u64>) -> CapacityRequirements {
        let mut requests: BTreeMap<String, Quantity> = BTreeMap::new();
        if let Some(bytes) = bytes {
            requests.insert("memory".to_owned(), quantity::bytes(bytes));
        }
        if self.cores > 0 {
            requests.insert("cores".to_owned(), quantity::count(self.cores));
        }
        CapacityRequirements {
            requests: Some(requests),
        }
    }
}

/// As many sizes as there can be alternatives. What others use of a card makes it one of a size of its own, so that there may be many.
fn of_most_cards(sizes: &BTreeMap<u64, usize>) -> BTreeSet<u64> {
    let mut all: Vec<(u64, usize)> = sizes.iter().map(|(size, cards)| (*size, *cards)).collect();
    all.sort_by_key(|(_, cards)| Reverse(*cards));
    let most = all.into_iter().take(ALTERNATIVES_MAX);
    most.map(|(size, _)| size).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of cards of these sizes.
    fn claim(name: &str, cards: &[u64]) -> Option<serde_json::Value> {
        let mut sizes = BTreeMap::new();
        for size in cards {
            *sizes.entry(*size).or_default() += 1;
        }
        let claim = Shape::of_name(name).unwrap().claim(&sizes)?;
        Some(serde_json::to_value(claim).unwrap()["devices"].clone())
    }

    #[test]
    fn a_name_is_a_claim_of_each_card() {
        let two = claim("cgpu-m4-c30-x2", &[]).unwrap();
        let exactly = &two["requests"][0]["exactly"];
        assert_eq!(exactly["count"], 2);
        assert_eq!(
            exactly["capacity"]["requests"],
            serde_json::json!({"cores": "30", "memory": "4Gi"})
        );
        assert_eq!(
            two["constraints"][0]["distinctAttribute"],
            "gpu.cgpu.io/uuid"
        );
        let mib = claim("cgpu-m3000mi-c0-x1", &[]).unwrap();
        assert_eq!(
            mib["requests"][0]["exactly"]["capacity"]["requests"],
            serde_json::json!({"memory": "3000Mi"})
        );
        assert!(mib["constraints"].is_null());
        let whole = claim("cgpu-whole-c50-x1", &[]).unwrap();
        assert_eq!(
            whole["requests"][0]["exactly"]["capacity"]["requests"],
            serde_json::json!({"cores": "50"})
        );
    }

    #[test]
    fn a_part_is_an_alternative_for_each_size_from_the_smallest_on() {
        let sizes = [80 << 30, 24 << 30, 1 << 20];
        let half = claim("cgpu-p50-c0-x1", &sizes).unwrap();
        let alternatives = half["requests"][0]["firstAvailable"]
            .as_array()
            .unwrap()
            .clone();
        let memory: Vec<&str> = alternatives
            .iter()
            .map(|one| one["capacity"]["requests"]["memory"].as_str().unwrap())
            .collect();
        assert_eq!(memory, ["1Mi", "12Gi", "40Gi"]);
        let selector = alternatives[1]["selectors"][0]["cel"]["expression"]
            .as_str()
            .unwrap();
        assert!(selector.contains("quantity(\"24Gi\")"), "{selector}");
        assert_eq!(claim("cgpu-p50-c0-x1", &[]), None);
    }

    #[test]
    fn of_many_sizes_a_part_is_of_those_that_most_cards_have() {
        // Cards of which somebody else uses a little, each of a size of its own, and the rest of the cluster.
        let mut cards: Vec<u64> = (1..40).map(|mib| (24 << 30) - (mib << 20)).collect();
        cards.extend([141 << 30, 80 << 30, 80 << 30, 141 << 30]);
        let tenth = claim("cgpu-p10-c0-x1", &cards).unwrap();
        let alternatives = tenth["requests"][0]["firstAvailable"].as_array().unwrap();
        let of = |one: &serde_json::Value| {
            let memory = one["capacity"]["requests"]["memory"].as_str().unwrap();
            quantity::whole(&Quantity(memory.to_owned())).unwrap() >> 30
        };
        let gib: Vec<u64> = alternatives.iter().map(of).collect();
        assert_eq!(gib, [2, 2, 2, 2, 2, 2, 8, 14], "the smallest first");
    }

    #[test]
    fn a_name_that_no_policy_writes_has_no_shape() {
        for name in [
            "",
            "cgpu",
            "cgpu-m4-c30",
            "cgpu-m4-c30-x2-y",
            "cgpu-m04-c30-x2",
            "cgpu-m+4-c30-x2",
            "cgpu-m4-c101-x1",
            "cgpu-m4-c0-x0",
            "cgpu-m4-c0-x33",
            "cgpu-m0-c0-x1",
            "cgpu-m65537-c0-x1",
            "cgpu-m1024mi-c0-x1",
            "cgpu-p0-c0-x1",
            "cgpu-p100-c0-x1",
            "cgpu-m99999999999999999999-c0-x1",
            "cgpu-m18014398509481984-c0-x1",
            "vgpu-m4-c0-x1",
            "cgpu-whole-c-x1",
            "cgpu-m-c0-x1",
            "cgpu-m8-c30-x1-high",
            "cgpu-m8-c1-x1-low",
            "cgpu-m8-c0-x1-normal",
            "cgpu-m8-c0-x1-high-low",
            "cgpu-m8-c0-x1-",
        ] {
            assert_eq!(Shape::of_name(name), None, "{name}");
        }
        for name in [
            "cgpu-m65536-c100-x32",
            "cgpu-m1mi-c0-x1",
            "cgpu-p99-c1-x2",
            "cgpu-whole-c0-x1",
        ] {
            Shape::of_name(name).unwrap();
        }
    }

    #[test]
    fn a_priority_is_a_class() {
        for (name, class) in [
            ("cgpu-m8-c0-x1-high", "vgpu-high.cgpu.io"),
            ("cgpu-m8-c0-x1", "vgpu.cgpu.io"),
            ("cgpu-m8-c0-x1-low", "vgpu-low.cgpu.io"),
        ] {
            let claim = claim(name, &[]).unwrap();
            assert_eq!(claim["requests"][0]["exactly"]["deviceClassName"], class);
        }
        let part = claim("cgpu-p50-c0-x1-low", &[24 << 30]).unwrap();
        let alternative = &part["requests"][0]["firstAvailable"][0];
        assert_eq!(alternative["deviceClassName"], "vgpu-low.cgpu.io");
    }

    fn level() -> impl Strategy<Value = Level> {
        proptest::sample::select(Level::ALL.to_vec())
    }

    fn memory() -> impl Strategy<Value = Memory> {
        prop_oneof![
            (0..=MIB_MAX + 1).prop_map(Memory::Mib),
            (0..=101_u64).prop_map(Memory::Percent),
            Just(Memory::Whole),
        ]
    }

    proptest! {
        /// Every allowed shape has one name, which is its own, and no other shape has any.
        #[test]
        fn a_shape_is_its_name(memory in memory(), cores in 0..=101_u64, cards in 0..=33_u64, level in level()) {
            let shape = Shape { memory, cores, cards, level };
            let read = Shape::of_name(&shape.name());
            prop_assert_eq!(read, shape.is_allowed().then_some(shape));
        }

        #[test]
        fn a_name_is_read_as_written(name in "cgpu-(m|p)[0-9]{1,3}(mi)?-c[0-9]{1,3}-x[0-9]{1,2}(-high|-low|-normal|-)?") {
            if let Some(shape) = Shape::of_name(&name) {
                prop_assert_eq!(shape.name(), name);
            }
        }
    }
}
