//! A card's memory as units that the kubelet can count: a device for each GiB. Pure.

use std::collections::BTreeMap;

use cards::GpuUuid;
use cards::claims::{ClaimName, ClaimUid, Given, Record, Share, VERSION};
use cards::grant::ComputeTerms;
use cards::placement::Policy;

use crate::error::Error;
use crate::names::{self, NodeName};
use crate::node::NodeCards;

/// Memory of one unit.
const UNIT_BYTES: u64 = 1 << 30;

/// Between a card and the number of a unit: as NVIDIA's plugin has it for shared cards, so that dcgm-exporter finds the card.
const SEPARATOR: &str = "::";

/// The kubelet's limit.
const ID_CHARS_MAX: usize = 63;

/// How the uid of a record begins that a device plugin made. The API server's are UUIDs, which have no such letters.
const UID_PREFIX: &str = "units-";

/// The one request of such a record, and its one share.
const REQUEST: &str = "memory";
const SHARE: &str = "0";

/// The name of a counted resource, for example `aliyun.com/gpu-mem`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceName(String);

impl ResourceName {
    /// Checks the spelling: a domain of somebody's and a name.
    ///
    /// # Errors
    /// [`Error::Name`] has the text and what is allowed.
    pub fn new(text: impl Into<String>) -> Result<Self, Error> {
        let text = text.into();
        let is_name = |name: &str| {
            let plain = name.replace(['_', '.'], "-").to_ascii_lowercase();
            names::is_label(&plain)
        };
        let is_ok = text.split_once('/').is_some_and(|(domain, name)| {
            let is_domain = domain.contains('.') && domain.split('.').all(names::is_label);
            let is_kubernetes = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
            is_domain && !is_kubernetes && is_name(name)
        });
        if is_ok && text.len() <= names::NAME_CHARS_MAX {
            return Ok(Self(text));
        }
        Err(Error::Name {
            what: "device plugin's resource",
            text: text.chars().take(names::NAME_CHARS_MAX).collect(),
            allowed: "a domain and a name such as aliyun.com/gpu-mem, and no domain of Kubernetes' own",
        })
    }
}

cards::checked_text!(ResourceName);

/// A unit that the kubelet may give away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offered {
    pub(super) id: String,
    pub(super) is_healthy: bool,
    /// The PCI address of its card.
    pub(super) pci: String,
}

/// The units of a node. What others than pods have of a card is no unit, and neither is a rest below a whole one.
pub(super) fn offered(cards: &NodeCards) -> Vec<Offered> {
    let mut units = Vec::new();
    for card in &cards.cards {
        let free_bytes = card.card.memory_bytes.saturating_sub(card.outside_bytes);
        if card.card.unshareable().is_some() {
            continue;
        }
        for number in 0..free_bytes / UNIT_BYTES {
            let id = format!("{}{SEPARATOR}{number}", card.card.uuid);
            // A longer one would have the kubelet refuse all of them.
            if id.len() > ID_CHARS_MAX {
                break;
            }
            units.push(Offered {
                id,
                is_healthy: card.trouble.is_none(),
                pci: card.card.pci.clone(),
            });
        }
    }
    units
}

/// Units of one card, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selection {
    card: GpuUuid,
    numbers: Vec<u32>,
}

impl Selection {
    /// What the kubelet chose for a container.
    ///
    /// # Errors
    /// No unit, units of several cards, or what is no unit: for the pod's author.
    pub(super) fn of(ids: &[String], resource: &ResourceName) -> Result<Self, String> {
        let mut by_card: BTreeMap<GpuUuid, Vec<u32>> = BTreeMap::new();
        for id in ids {
            let (card, number) = parse(id).ok_or_else(|| {
                let id: String = id.chars().take(ID_CHARS_MAX).collect();
                format!("{resource}: {id:?} is no unit of a card here")
            })?;
            by_card.entry(card).or_default().push(number);
        }
        if by_card.len() > 1 {
            let parts: Vec<String> = by_card
                .iter()
                .map(|(card, numbers)| format!("{card}: {}", numbers.len()))
                .collect();
            return Err(format!(
                "{resource}: {}: no card of this node has that much free, and a container's memory is on one card here: the kubelet took units \
                 of several ({}); ask for less, or use claims (Kubernetes 1.36 and later), which say of how many cards a container has a part",
                ids.len(),
                parts.join(", ")
            ));
        }
        let first = by_card.into_iter().next();
        let (card, mut numbers) = first.ok_or_else(|| format!("{resource}: no unit"))?;
        numbers.sort_unstable();
        numbers.dedup();
        Ok(Self { card, numbers })
    }

    /// Whether one unit is in both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let mut numbers = self.numbers.iter();
        self.card == other.card && numbers.any(|number| other.numbers.contains(number))
    }

    pub(super) fn count(&self) -> usize {
        self.numbers.len()
    }

    /// The uid of their record: the same units have the same one, whatever agent is asked.
    pub(super) fn uid(&self, resource: &ResourceName) -> ClaimUid {
        let numbers = self.numbers.iter().map(|number| format!("{number}\n"));
        let digest = cards::digest(format!(
            "{resource}\n{}\n{}",
            self.card,
            numbers.collect::<String>()
        ));
        let uid = ClaimUid::new(format!("{UID_PREFIX}{digest:.32}"));
        uid.unwrap_or_else(|error| unreachable!("hexadecimal digits: {error}"))
    }

    /// What is reserved with them. Which pod has them, the kubelet says only later.
    pub(super) fn record(
        &self,
        resource: &ResourceName,
        node: &NodeName,
        cards: &NodeCards,
    ) -> Result<Record, String> {
        let mut of_node = cards.cards.iter();
        let card = of_node
            .find(|card| card.card.uuid == self.card)
            .ok_or_else(|| format!("{resource}: card {} is not on this node", self.card))?;
        let uid = self.uid(resource);
        let (domain, name) = resource.0.split_once('/').unwrap_or((&resource.0, ""));
        let digits = uid.as_str().trim_start_matches(UID_PREFIX);
        let share = Share {
            id: SHARE.to_owned(),
            card: self.card.clone(),
            device: card.device(),
            memory_bytes: u64::try_from(self.numbers.len())
                .unwrap_or(u64::MAX)
                .saturating_mul(UNIT_BYTES),
        };
        let given = Given {
            shares: vec![share],
            compute: ComputeTerms::default(),
            managed: None,
            share_group: None,
        };
        Ok(Record {
            version: VERSION,
            claim: ClaimName {
                namespace: domain.to_owned(),
                name: format!("{name}-{}", digits.get(..8).unwrap_or(digits)),
                uid,
            },
            node: node.to_string(),
            pods: Vec::new(),
            requests: BTreeMap::from([(REQUEST.to_owned(), given)]),
        })
    }
}

/// Whether a record is a device plugin's.
pub(crate) fn is_ours(uid: &ClaimUid) -> bool {
    uid.as_str().starts_with(UID_PREFIX)
}

fn parse(id: &str) -> Option<(GpuUuid, u32)> {
    let (card, number) = id.rsplit_once(SEPARATOR)?;
    let is_plain = number == "0" || !number.starts_with(['0', '+']);
    let number = number.parse().ok().filter(|_| is_plain)?;
    Some((GpuUuid::new(card).ok()?, number))
}

/// Which units a container had best: all of one card. Empty where no card has as many; the kubelet then chooses for itself, and
/// [`Selection::of`] refuses that.
pub(super) fn preferred(
    available: &[String],
    included: &[String],
    count: usize,
    order: Policy,
) -> Vec<String> {
    let mut by_card: BTreeMap<GpuUuid, Vec<(u32, &String)>> = BTreeMap::new();
    for id in available {
        if let Some((card, number)) = parse(id) {
            by_card.entry(card).or_default().push((number, id));
        }
    }
    let included_card = included.iter().find_map(|id| Some(parse(id)?.0));
    let mut fitting: Vec<(GpuUuid, Vec<(u32, &String)>)> = by_card
        .into_iter()
        .filter(|(card, units)| {
            let is_named = included_card.as_ref().is_none_or(|named| named == card);
            is_named && units.len() >= count
        })
        .collect();
    // The fullest that has enough keeps whole cards free; the emptiest keeps neighbours few.
    fitting.sort_by_key(|(_, units)| units.len());
    let chosen = match order {
        Policy::Binpack => fitting.into_iter().next(),
        Policy::Spread => fitting.into_iter().next_back(),
    };
    let Some((_, mut units)) = chosen else {
        return Vec::new();
    };
    units.sort_by_key(|(number, id)| (!included.contains(id), *number));
    let units = units.into_iter().take(count);
    units.map(|(_, id)| id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::allocation::tests::cards;

    fn resource() -> ResourceName {
        ResourceName::new("aliyun.com/gpu-mem").unwrap()
    }

    fn ids(card: &str, numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
        let numbers = numbers.into_iter();
        numbers.map(|number| format!("{card}::{number}")).collect()
    }

    #[test]
    fn a_resource_has_a_domain_and_a_name() {
        for name in ["aliyun.com/gpu-mem", "cgpu.io/memory", "a.b/X_y.z"] {
            assert_eq!(ResourceName::new(name).unwrap().as_str(), name);
        }
        for name in [
            "",
            "gpu-mem",
            "aliyun.com/",
            "/gpu",
            "a.b/c/d",
            "kubernetes.io/gpu",
            "x.kubernetes.io/gpu",
            "local/gpu",
            "A.b/gpu",
            "a.b/g u",
            &format!("a.b/{}", "x".repeat(300)),
        ] {
            let error = ResourceName::new(name).unwrap_err().to_string();
            assert!(error.contains("aliyun.com/gpu-mem"), "{error}");
        }
    }

    #[test]
    fn a_card_has_a_unit_for_each_whole_gibibyte_that_pods_can_have() {
        let mut cards = cards();
        let [first, second] = cards.cards.as_mut_slice() else {
            panic!("two cards")
        };
        first.card.memory_bytes = (4 << 30) + 5;
        second.card.memory_bytes = 4 << 30;
        second.outside_bytes = 1;
        second.trouble = Some(crate::Trouble {
            kind: crate::TroubleKind::Lost,
            reason: "lost".to_owned(),
            since_unix_ms: 1,
        });
        let [first, second] = [&first.card.uuid, &second.card.uuid].map(ToString::to_string);
        let units = offered(&cards);
        let (healthy, other): (Vec<_>, Vec<_>) = units.iter().partition(|unit| unit.is_healthy);
        let names = |units: Vec<&Offered>| -> Vec<String> {
            units.into_iter().map(|unit| unit.id.clone()).collect()
        };
        assert_eq!(names(healthy), ids(&first, 0..4));
        assert_eq!(names(other), ids(&second, 0..3));
    }

    #[test]
    fn units_of_two_cards_are_refused_with_what_each_has() {
        let mut both = ids("GPU-a", 0..3);
        both.extend(ids("GPU-b", [7]));
        let why = Selection::of(&both, &resource()).unwrap_err();
        for part in ["aliyun.com/gpu-mem: 4", "GPU-a: 3", "GPU-b: 1", "one card"] {
            assert!(why.contains(part), "{why}");
        }
        for wrong in [
            "GPU-a",
            "GPU-a::",
            "GPU-a::x",
            "GPU-a::-1",
            "GPU-a::+1",
            "GPU-a::01",
            "x::1",
            "GPU-a:1",
        ] {
            let why = Selection::of(&[wrong.to_owned()], &resource()).unwrap_err();
            assert!(why.contains("no unit"), "{why}");
        }
        Selection::of(&[], &resource()).unwrap_err();
    }

    #[test]
    fn a_record_is_named_by_its_units_and_lets_nobody_in_yet() {
        let cards = cards();
        let card = cards.cards[0].card.uuid.to_string();
        let node = NodeName::new("n1").unwrap();
        let selection = Selection::of(&ids(&card, [3, 1, 2]), &resource()).unwrap();
        let record = selection.record(&resource(), &node, &cards).unwrap();
        assert!(is_ours(&record.claim.uid) && record.pods.is_empty());
        assert_eq!(record.requests[REQUEST].shares[0].memory_bytes, 3 << 30);
        let again = Selection::of(&ids(&card, [2, 3, 1]), &resource()).unwrap();
        assert_eq!(again.record(&resource(), &node, &cards).unwrap(), record);
        let other = Selection::of(&ids(&card, [1, 2]), &resource()).unwrap();
        assert_ne!(other.uid(&resource()), record.claim.uid);
        assert!(other.overlaps(&selection));
        // The pointer is one that the shim reads.
        let (pointer, _, _) = record.shares().next().unwrap();
        assert_eq!(pointer.to_string().parse(), Ok(pointer));
        let uid = "11111111-2222-3333-4444-555555555555";
        assert!(!is_ours(&ClaimUid::new(uid).unwrap()));
        let foreign = Selection::of(&ids("GPU-other", [1]), &resource()).unwrap();
        foreign.record(&resource(), &node, &cards).unwrap_err();
    }

    proptest! {
        /// Of what is free, one card's units are chosen, the ones that must be in it among them, whenever any card has enough.
        #[test]
        fn what_is_preferred_is_of_one_card_wherever_that_can_be(
            free in prop::collection::vec(0_u32..9, 1..5),
            count in 1_usize..9,
            is_spread: bool,
            keep in 0_usize..3,
        ) {
            let available: Vec<String> = free
                .iter()
                .enumerate()
                .flat_map(|(card, free)| ids(&format!("GPU-{card}"), 0..*free))
                .collect();
            let order = if is_spread { Policy::Spread } else { Policy::Binpack };
            // The kubelet has these for the container already.
            let enough = free.iter().position(|free| *free as usize >= count);
            let included = match enough {
                Some(card) => ids(&format!("GPU-{card}"), 0..u32::try_from(keep.min(count)).unwrap()),
                None => Vec::new(),
            };
            let chosen = preferred(&available, &included, count, order);
            let sizes = free.iter().map(|free| *free as usize);
            let most = sizes.clone().max().unwrap_or(0);
            prop_assert_eq!(chosen.len(), if most >= count { count } else { 0 });
            if !chosen.is_empty() {
                let selection = Selection::of(&chosen, &resource());
                prop_assert_eq!(selection.as_ref().map(Selection::count), Ok(count));
                prop_assert!(chosen.iter().all(|id| available.contains(id)));
                prop_assert!(included.iter().all(|id| chosen.contains(id)));
                if included.is_empty() {
                    let card = selection.unwrap().card;
                    let of_card = available.iter().filter(|id| id.starts_with(&format!("{card}::"))).count();
                    let fitting = sizes.filter(|free| *free >= count);
                    let expected = if is_spread { fitting.max() } else { fitting.min() };
                    prop_assert_eq!(Some(of_card), expected);
                }
            }
        }
    }
}
