//! The cards that nodes offer, and what of them is given: from ResourceSlices and the allocations of ResourceClaims. Pure.

use std::collections::BTreeMap;

use dra::{CORES, DRIVER, MEMORY, SHARES, quantity};
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    Device, DeviceAttribute, DeviceCapacity, DeviceTaint, ResourceClaim, ResourceSlice,
};

/// Pods of a claim that are named; the rest is counted. The API has 256 at most.
const PODS_MAX: usize = 256;

/// A part of a card, or a whole one, that a claim was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub claim: String,
    /// The request of the claim that it was given for.
    pub request: String,
    /// Names of the pods that the claim is reserved for.
    pub pods: Vec<String>,
    /// Uids of all that the claim is reserved for: it is given back when they are gone.
    pub users: Vec<String>,
    /// By capacity; `None`: the card as a whole, which no capacity was taken of.
    pub consumed: Option<BTreeMap<String, u64>>,
}

/// Pool and device.
pub type Place = (String, String);

/// What claims were given, by card.
#[derive(Debug, Clone, Default)]
pub struct Given(BTreeMap<Place, Vec<Share>>);

/// A card as its node's slice has it, and what is given of it.
#[derive(Debug, Clone)]
pub struct Card {
    /// The pool: two nodes may have devices of one name.
    pub pool: String,
    /// The device of the slice.
    pub device: Device,
    /// What claims have of it.
    pub shares: Vec<Share>,
}

/// A node that offers cards.
#[derive(Debug, Clone, Default)]
pub struct Offer {
    /// In the order of its slice, which is the scheduler's.
    pub cards: Vec<Card>,
    /// Slices that belong to the pool, and those that are there: the scheduler waits until both are the same.
    pub slices: (usize, usize),
}

/// What a claim was given by this driver; `None`: nothing. A claim that only looks at a card (`adminAccess`) takes nothing of it.
pub fn taken(claim: &ResourceClaim) -> Option<Vec<(Place, Share)>> {
    let status = claim.status.as_ref()?;
    let results = status
        .allocation
        .as_ref()?
        .devices
        .as_ref()?
        .results
        .as_ref()?;
    let users = status.reserved_for.iter().flatten();
    let users: Vec<String> = users.map(|user| user.uid.clone()).collect();
    let ours = results
        .iter()
        .filter(|result| result.driver == DRIVER && result.admin_access != Some(true));
    let shares = ours.map(|result| {
        let pods = status.reserved_for.iter().flatten();
        let pods = pods.filter(|user| user.resource == "pods");
        let consumed = result.consumed_capacity.as_ref().map(|all| {
            let amounts = all.iter();
            amounts
                .map(|(name, amount)| (name.clone(), quantity::whole(&amount.0).unwrap_or(0)))
                .collect()
        });
        let share = Share {
            namespace: claim.metadata.namespace.clone().unwrap_or_default(),
            claim: claim.metadata.name.clone().unwrap_or_default(),
            request: result.request.clone(),
            pods: pods.take(PODS_MAX).map(|pod| pod.name.clone()).collect(),
            users: users.clone(),
            consumed,
        };
        ((result.pool.clone(), result.device.clone()), share)
    });
    Some(shares.collect()).filter(|shares: &Vec<_>| !shares.is_empty())
}

impl Given {
    /// What all claims were given.
    pub fn of_all(claims: Vec<Vec<(Place, Share)>>) -> Self {
        let mut given = Self::default();
        for (place, share) in claims.into_iter().flatten() {
            given.0.entry(place).or_default().push(share);
        }
        given
    }

    /// What is given of a card.
    fn of(&self, pool: &str, device: &str) -> Vec<Share> {
        let place = (pool.to_owned(), device.to_owned());
        let mut shares = self.0.get(&place).cloned().unwrap_or_default();
        shares.sort_by(|a, b| (&a.namespace, &a.claim).cmp(&(&b.namespace, &b.claim)));
        shares
    }
}

/// What nodes offer, by their names. Of a pool the newest generation holds.
pub fn offers(slices: Vec<ResourceSlice>, given: &Given) -> BTreeMap<String, Offer> {
    let mut pools: BTreeMap<String, Vec<ResourceSlice>> = BTreeMap::new();
    for slice in slices {
        // Cards of ours are always one node's.
        if slice.spec.driver == DRIVER && slice.spec.node_name.is_some() {
            pools
                .entry(slice.spec.pool.name.clone())
                .or_default()
                .push(slice);
        }
    }
    let mut offers: BTreeMap<String, Offer> = BTreeMap::new();
    for (pool, mut slices) in pools {
        let newest = slices.iter().map(|slice| slice.spec.pool.generation).max();
        slices.retain(|slice| Some(slice.spec.pool.generation) == newest);
        slices.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let announced = slices
            .first()
            .map(|slice| slice.spec.pool.resource_slice_count);
        let announced = announced
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(0);
        let there = slices.len();
        for slice in slices {
            let Some(node) = slice.spec.node_name else {
                continue;
            };
            let offer = offers.entry(node).or_default();
            offer.slices = (announced, there);
            let devices = slice.spec.devices.into_iter().flatten();
            offer.cards.extend(devices.map(|device| Card {
                shares: given.of(&pool, &device.name),
                pool: pool.clone(),
                device,
            }));
        }
    }
    offers
}

impl Offer {
    /// Whether the scheduler has all of the node's slices.
    pub fn is_whole(&self) -> bool {
        self.slices.0 == self.slices.1
    }
}

impl Card {
    fn attribute(&self, name: &str) -> Option<&DeviceAttribute> {
        self.device.attributes.as_ref()?.get(name)
    }

    /// A string attribute.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.attribute(name)?.string.as_deref()
    }

    /// The card's UUID; its name as a device where its node does not publish one.
    pub fn uuid(&self) -> &str {
        self.text(dra::UUID).unwrap_or(&self.device.name)
    }

    /// Its number on its node, as `cgpu cards` has it.
    pub fn index(&self) -> Option<i64> {
        self.attribute("index")
            .or_else(|| self.attribute("minor"))?
            .int
    }

    /// Whether it is given in parts.
    pub fn is_shared(&self) -> bool {
        self.device.allow_multiple_allocations == Some(true)
    }

    /// A capacity.
    pub fn capacity(&self, name: &str) -> Option<&DeviceCapacity> {
        self.device.capacity.as_ref()?.get(name)
    }

    /// All of a capacity; 0: it has none.
    pub fn total(&self, name: &str) -> u64 {
        let capacity = self.capacity(name);
        capacity
            .and_then(|capacity| quantity::whole(&capacity.value.0))
            .unwrap_or(0)
    }

    /// What claims have of a capacity. A card that is given as a whole is given with all of it.
    pub fn given(&self, name: &str) -> u64 {
        let of = |share: &Share| share.amount(name, self);
        self.shares.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Containers that have a part of it, and how many may; a card that is given as a whole takes one.
    pub fn places(&self) -> (u64, u64) {
        match self.total(SHARES) {
            0 => (u64::try_from(self.shares.len()).unwrap_or(u64::MAX), 1),
            most => (self.given(SHARES), most),
        }
    }

    /// What keeps claims away or evicts them.
    pub fn taints(&self) -> &[DeviceTaint] {
        self.device.taints.as_deref().unwrap_or_default()
    }

    /// `ok`, or its taints.
    pub fn state(&self) -> String {
        let taints: Vec<String> = self.taints().iter().map(taint).collect();
        if taints.is_empty() {
            "ok".to_owned()
        } else {
            taints.join(", ")
        }
    }
}

impl Share {
    /// What it has of a capacity of its card.
    pub fn amount(&self, name: &str, card: &Card) -> u64 {
        match &self.consumed {
            Some(consumed) => consumed.get(name).copied().unwrap_or(0),
            None if name == CORES => WHOLE_PERCENT,
            None => card.total(name),
        }
    }

    /// Memory of its card, bytes.
    pub fn memory(&self, card: &Card) -> u64 {
        self.amount(MEMORY, card)
    }
}

/// The whole of a card's time.
const WHOLE_PERCENT: u64 = 100;

/// As `kubectl` writes taints: `key=value:Effect`.
pub fn taint(taint: &DeviceTaint) -> String {
    let value = taint.value.as_deref().unwrap_or_default();
    let equals = if value.is_empty() { "" } else { "=" };
    format!("{}{equals}{value}:{}", taint.key, taint.effect)
}

/// The node that an allocation is bound to. `None`: to none, or by more than a name.
pub fn node_of(selector: &NodeSelector) -> Option<&str> {
    let [term] = selector.node_selector_terms.as_slice() else {
        return None;
    };
    let fields = term.match_fields.iter().flatten();
    let mut names = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    match names.next()?.values.as_deref()? {
        [name] => Some(name),
        _ => None,
    }
}
