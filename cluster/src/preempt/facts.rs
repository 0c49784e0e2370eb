//! What a decision rests on, as one look has read it.

use std::collections::{BTreeMap, BTreeSet};

use fit::cards::{Given, Offer, Place, Share, offers, taken};
use fit::lean;
use fit::needs::{Classes, Needs};
use fit::nodes::{self, NodeFacts};
use fit::preempt::{self, Budgets, Holder, Holders, Standing, Verdict};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::api::ListParams;
use kube::core::{Selector, SelectorExt};

use super::waiter::Waiter;
use crate::api::{Connection, LONG_PAGE, PAGE};
use crate::error::Error;
use crate::names::DRIVER;
use crate::quota;

/// Steps of all searches for one pod. A node of 8 cards in parts takes some hundred, so that there are some thousand nodes in it; a pod that takes
/// all of them takes the time of 20 nodes with a search that does not end.
const STEPS_OF_POD_MAX: usize = 1_000_000;

/// Claims of pods that wait, of one namespace; a pod with another one is not judged.
const OF_NAMESPACE_MAX: usize = 100;

/// The cluster as far as it concerns the pods that wait.
#[derive(Debug)]
pub(super) struct Cluster {
    offers: BTreeMap<String, Offer>,
    nodes: BTreeMap<String, NodeFacts>,
    classes: Classes,
    /// Of the pods that wait, by namespace and name.
    claims: BTreeMap<(String, String), ResourceClaim>,
    /// Claims that may be allocated, by namespaces with a maximum of GPU memory.
    grants: BTreeMap<String, BTreeSet<String>>,
    /// Uids that hold another driver's devices.
    foreign: BTreeSet<String>,
    pub(super) holders: Holders,
    budgets: Budgets,
}

/// Pods that have to go, on one node.
#[derive(Debug)]
pub(super) struct NodePlan {
    pub(super) node: String,
    /// Uids.
    pub(super) victims: Vec<String>,
}

/// What is to be done for a pod.
#[derive(Debug)]
pub(super) enum Decision {
    /// A node takes it, now or when pods have ended that are ending.
    Wait,
    /// One of these, the best first.
    Evict(Vec<NodePlan>),
    /// Nothing would help, or nobody can know.
    Never,
    /// There are more ways than are looked at.
    TooMany,
}

/// Nodes that a pod may come to.
type Nodes<'a> = Vec<(&'a str, &'a Offer)>;

/// What claims say, reduced as they are read.
#[derive(Debug, Default)]
struct Claims {
    shares: Vec<Vec<(Place, Share)>>,
    /// Uids that hold another driver's devices.
    foreign: BTreeSet<String>,
    of_waiting: BTreeMap<(String, String), ResourceClaim>,
    /// How many of these are of a namespace.
    of_namespaces: BTreeMap<String, usize>,
}

impl Cluster {
    /// Reads all but who has the cards: as if all of them were ending. A pod that nothing helps then is not helped by whoever they are.
    ///
    /// # Errors
    /// What the server does not answer.
    pub(super) async fn read(connection: &Connection, waiting: &[Waiter]) -> Result<Self, Error> {
        let long_page = || ListParams::default().limit(LONG_PAGE);
        let mut classes = Classes::new();
        let take = |class: DeviceClass| {
            classes.insert(class.metadata.name.clone().unwrap_or_default(), class);
        };
        connection.each("deviceclasses", long_page(), take).await?;
        let mut nodes = BTreeMap::new();
        let take = |node: Node| {
            let node = NodeFacts::of(node);
            nodes.insert(node.name.clone(), node);
        };
        connection.each("nodes", long_page(), take).await?;
        let mut grants = BTreeMap::new();
        let take = |namespace: Namespace| {
            let granted = quota::grants(&namespace.metadata);
            grants.extend(namespace.metadata.name.zip(granted));
        };
        connection.each("namespaces", long_page(), take).await?;
        let mut slices = Vec::new();
        let list = long_page().fields(&format!("spec.driver={DRIVER}"));
        let take = |slice: ResourceSlice| slices.push(slice);
        connection.each("resourceslices", list, take).await?;
        let of = |waiter: &Waiter| {
            let namespace = waiter.namespace.clone();
            let names = waiter.claims.clone().into_iter();
            names.map(move |name| (namespace.clone(), name))
        };
        let named: BTreeSet<(String, String)> = waiting.iter().flat_map(of).collect();
        let mut claims = Claims::default();
        let list = ListParams::default().limit(PAGE);
        let take = |claim| claims.add(claim, &named);
        connection.each("resourceclaims", list, take).await?;
        let shares = claims.shares.iter().flatten();
        let users = shares.flat_map(|(_, share)| &share.users);
        let ending = users.map(|uid| (uid.clone(), ending())).collect();
        Ok(Self {
            offers: offers(slices, &Given::of_all(claims.shares)),
            nodes,
            classes,
            claims: claims.of_waiting,
            grants,
            foreign: claims.foreign,
            holders: ending,
            budgets: Budgets::new(),
        })
    }

    /// Reads who has the cards: all pods of the cluster, a few at a time.
    ///
    /// # Errors
    /// What the server does not answer.
    pub(super) async fn read_holders(&mut self, connection: &Connection) -> Result<(), Error> {
        let page = || ListParams::default().limit(PAGE);
        let mut budgets = OfNamespaces::default();
        let take = |budget| budgets.add(budget);
        connection
            .each("poddisruptionbudgets", page(), take)
            .await?;
        let users = std::mem::take(&mut self.holders);
        let take = |pod: lean::Pod| {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if users.contains_key(&uid) {
                let has_other = self.foreign.contains(&uid);
                self.holders.insert(uid, holder(pod, has_other, &budgets));
            }
        };
        connection.each("pods", page(), take).await?;
        self.budgets = budgets.left;
        Ok(())
    }

    /// What is to be done for a pod.
    pub(super) fn decide(&self, waiter: &Waiter) -> Decision {
        let Some((needs, nodes)) = self.needs(waiter) else {
            return Decision::Never;
        };
        let needs: Vec<&Needs> = needs.iter().collect();
        let waiting = preempt::Waiting {
            needs: &needs,
            priority: waiter.priority,
        };
        let mut plans = Vec::new();
        let mut steps = STEPS_OF_POD_MAX;
        for (node, offer) in nodes {
            let (holders, budgets) = (&self.holders, &self.budgets);
            match preempt::judge(&waiting, offer, holders, budgets, &mut steps) {
                Verdict::Fits => return Decision::Wait,
                Verdict::Evict(victims) => {
                    let rank = preempt::rank(&victims, &self.holders);
                    let node = node.to_owned();
                    plans.push((rank, NodePlan { node, victims }));
                }
                Verdict::Never => {}
            }
        }
        if plans.is_empty() && steps == 0 {
            return Decision::TooMany;
        }
        if plans.is_empty() {
            return Decision::Never;
        }
        plans.sort_by_key(|(rank, _)| *rank);
        Decision::Evict(plans.into_iter().map(|(_, plan)| plan).collect())
    }

    /// What a pod needs that it has not, and the nodes that it may come to. `None`: not all of it can be judged here.
    fn needs<'a>(&'a self, waiter: &Waiter) -> Option<(Vec<Needs>, Nodes<'a>)> {
        let (mut open, mut bound) = (Vec::new(), Vec::new());
        for name in &waiter.claims {
            let claim = self.claims.get(&(waiter.namespace.clone(), name.clone()))?;
            if claim.metadata.deletion_timestamp.is_some() {
                return None;
            }
            let allocation = claim
                .status
                .as_ref()
                .and_then(|status| status.allocation.as_ref());
            if let Some(allocation) = allocation {
                bound.extend(allocation.node_selector.as_ref());
                continue;
            }
            // The scheduler may not allocate it, whoever goes.
            let grants = self.grants.get(&waiter.namespace);
            let uid = claim.metadata.uid.as_deref().unwrap_or_default();
            if grants.is_some_and(|granted| !granted.contains(uid)) {
                return None;
            }
            let needs = Needs::of(&claim.spec, &self.classes);
            // Of another driver it is not known whether it has what is asked of it.
            if !needs.hurdles.is_empty() || !needs.foreign.is_empty() {
                return None;
            }
            open.push(needs);
        }
        if open.iter().all(|needs| needs.requests.is_empty()) {
            return None;
        }
        let is_open = |(name, offer): &(&String, &Offer)| {
            let Some(node) = self.nodes.get(*name) else {
                return false;
            };
            offer.is_whole()
                && nodes::hurdles(&waiter.pod, node).is_empty()
                && bound
                    .iter()
                    .all(|selector| nodes::is_selected(selector, node))
        };
        let nodes = self.offers.iter().filter(is_open);
        Some((
            open,
            nodes.map(|(name, offer)| (name.as_str(), offer)).collect(),
        ))
    }
}

impl Claims {
    fn add(&mut self, claim: lean::Claim, named: &BTreeSet<(String, String)>) {
        let is_whole = claim.spec.is_some();
        let claim = ResourceClaim::from(claim);
        if let Some(shares) = taken(&claim) {
            self.shares.push(shares);
        }
        let status = claim.status.as_ref();
        let devices = status.and_then(|status| {
            status
                .allocation
                .as_ref()?
                .devices
                .as_ref()?
                .results
                .as_ref()
        });
        if devices.is_some_and(|results| results.iter().any(|result| result.driver != DRIVER)) {
            let users = status
                .into_iter()
                .flat_map(|status| status.reserved_for.iter().flatten());
            self.foreign.extend(users.map(|user| user.uid.clone()));
        }
        let key = (
            claim.metadata.namespace.clone().unwrap_or_default(),
            claim.metadata.name.clone().unwrap_or_default(),
        );
        // Of a claim that nobody can read nobody knows what would help it.
        if is_whole && named.contains(&key) {
            let count = self.of_namespaces.entry(key.0.clone()).or_default();
            if *count < OF_NAMESPACE_MAX {
                *count += 1;
                self.of_waiting.insert(key, claim);
            }
        }
    }
}

/// The budgets of all namespaces, and how many pods each lets go at present.
#[derive(Debug, Default)]
struct OfNamespaces {
    left: Vec<usize>,
    /// By namespace: which of them, and of which pods it is. `None`: it cannot be read, and is taken for one of all pods.
    selectors: BTreeMap<String, Vec<(usize, Option<Selector>)>>,
}

impl OfNamespaces {
    /// Without a selector a budget is of no pod. An empty one is of all.
    fn add(&mut self, budget: lean::Budget) {
        let selector = match budget.selector.0 {
            Some(None) => return,
            Some(Some(selector)) => selector.try_into().ok(),
            None => None,
        };
        let left = budget.status.and_then(|status| status.disruptions_allowed);
        let of_namespace = budget.metadata.namespace.unwrap_or_default();
        let of_namespace = self.selectors.entry(of_namespace).or_default();
        of_namespace.push((self.left.len(), selector));
        let left = left.and_then(|left| usize::try_from(left).ok());
        self.left.push(left.unwrap_or(0));
    }

    /// Those of a pod.
    fn of(&self, pod: &lean::Pod) -> Vec<usize> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let none = BTreeMap::new();
        let labels = pod.labels.0.as_ref();
        let labels = labels.map(|labels| labels.as_ref().unwrap_or(&none));
        let is_of = |selector: &Option<Selector>| match (selector, labels) {
            (Some(selector), Some(labels)) => selector.matches(labels),
            (None, _) | (_, None) => true,
        };
        let budgets = self.selectors.get(namespace).into_iter().flatten();
        let budgets = budgets.filter(|(_, selector)| is_of(selector));
        budgets.map(|(index, _)| *index).collect()
    }
}

/// A pod of which nothing else is known.
fn ending() -> Holder {
    Holder {
        namespace: String::new(),
        name: String::new(),
        priority: 0,
        since_unix_s: 0,
        standing: Standing::Leaves,
        budgets: Vec::new(),
    }
}

fn holder(pod: lean::Pod, has_other: bool, budgets: &OfNamespaces) -> Holder {
    let phase = pod.status.phase.as_deref();
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    let is_node_s = pod.owners.0.as_ref().is_none_or(|owners| {
        let mut kinds = owners.iter().flatten().map(|owner| owner.kind.as_str());
        kinds.any(|kind| matches!(kind, "DaemonSet" | "Node"))
    });
    let standing = if is_over || pod.metadata.deletion_timestamp.is_some() {
        Standing::Leaves
    } else if is_node_s || pod.is_mirror || has_other {
        Standing::Stays
    } else {
        Standing::Evictable
    };
    // The server lets a pod go that does not run yet, whatever its budgets.
    let counts = phase != Some("Pending");
    Holder {
        budgets: if counts { budgets.of(&pod) } else { Vec::new() },
        standing,
        priority: pod.spec.priority.unwrap_or(0),
        since_unix_s: pod
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(0, |time| time.0.as_second()),
        namespace: pod.metadata.namespace.unwrap_or_default(),
        name: pod.metadata.name.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
