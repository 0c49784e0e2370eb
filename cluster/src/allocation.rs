//! A claim as the API server has it → the record of what it was given on this node. Pure: what is refused is refused here, before anything is
//! reserved.

mod error;

use std::collections::BTreeMap;

use cards::claims::{ClaimName, ClaimUid, Given, PodOfClaim, Record, Share, VERSION};
use cards::grant::ComputeTerms;
use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
    ResourceClaimConsumerReference,
};

use crate::configuration::{self, Author, Terms};
use crate::names::{DRIVER, NodeName};
use crate::node::{NodeCard, NodeCards};
use crate::quantity;
use crate::slice::CAPACITIES;

pub(crate) use self::error::Error;

/// Kubernetes' own limits of a claim.
const RESULTS_MAX: usize = 32;
const PODS_MAX: usize = 256;

/// The whole of a card's time.
const PERCENT_MAX: u64 = 100;

/// A claim as the kubelet names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: ClaimUid,
}

impl ClaimRef {
    /// As the API server names it where it is not there.
    pub(crate) fn object(&self) -> String {
        format!("resourceclaims/{}", self.name)
    }
}

/// What the kubelet is answered, and what is written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) record: Record,
    pub(crate) devices: Vec<PreparedDevice>,
}

/// One result of the claim's allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreparedDevice {
    /// As the record has it; a request of alternatives has a slash in it.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    /// The scheduler's id; `None`: the device is not shared.
    pub(crate) share_id: Option<String>,
    /// The record's, which always has one.
    pub(crate) share: String,
}

impl PreparedDevice {
    /// The request as a pod names it: of alternatives, what they have in common.
    pub(crate) fn main_request(&self) -> &str {
        main_request(&self.request)
    }
}

/// Reads a claim.
///
/// # Errors
/// Why nothing of it is prepared here.
pub(crate) fn read(
    claim: &ResourceClaim,
    requested: &ClaimRef,
    node: &NodeName,
    cards: &NodeCards,
) -> Result<Allocation, Error> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if uid != requested.uid.as_str() {
        return Err(Error::Replaced {
            requested: requested.uid.to_string(),
            found: uid.to_owned(),
        });
    }
    let status = claim.status.as_ref();
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let allocated = allocation.ok_or(Error::NotAllocated)?.devices.as_ref();
    let results: Vec<&DeviceRequestAllocationResult> = allocated
        .and_then(|devices| devices.results.as_ref())
        .into_iter()
        .flatten()
        .filter(|result| result.driver == DRIVER)
        .collect();
    match results.len() {
        0 => return Err(Error::NothingOfOurs),
        found if found > RESULTS_MAX => return Err(Error::TooMany { found }),
        _ => {}
    }
    let configurations = allocated
        .and_then(|devices| devices.config.as_deref())
        .unwrap_or_default();
    let reserved_for = status.and_then(|status| status.reserved_for.as_deref());
    let record = Record {
        version: VERSION,
        claim: ClaimName {
            namespace: requested.namespace.clone(),
            name: requested.name.clone(),
            uid: requested.uid.clone(),
        },
        node: node.to_string(),
        pods: pods(reserved_for.unwrap_or_default())?,
        requests: requests(&results, configurations, node, cards)?,
    };
    let devices = results.iter().map(|result| PreparedDevice {
        request: result.request.clone(),
        pool: result.pool.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        share: share_id(result).to_owned(),
    });
    Ok(Allocation {
        devices: devices.collect(),
        record,
    })
}

/// The pods that the claim is reserved for; others than pods cannot use it here.
///
/// # Errors
/// None, or too many.
pub(crate) fn pods(
    reserved_for: &[ResourceClaimConsumerReference],
) -> Result<Vec<PodOfClaim>, Error> {
    let pods: Vec<PodOfClaim> = reserved_for
        .iter()
        .filter(|user| {
            user.resource == "pods" && user.api_group.as_deref().unwrap_or("").is_empty()
        })
        .map(|user| PodOfClaim {
            uid: user.uid.clone(),
            name: user.name.clone(),
        })
        .collect();
    match pods.len() {
        0 => Err(Error::NoPod),
        found if found > PODS_MAX => Err(Error::TooManyPods { found }),
        _ => Ok(pods),
    }
}

fn requests(
    results: &[&DeviceRequestAllocationResult],
    configurations: &[DeviceAllocationConfiguration],
    node: &NodeName,
    cards: &NodeCards,
) -> Result<BTreeMap<String, Given>, Error> {
    let mut requests: BTreeMap<String, Given> = BTreeMap::new();
    for result in results {
        let (share, percent) = share(result, node, cards)?;
        let given = match requests.get_mut(&result.request) {
            Some(given) => given,
            None => {
                let terms = terms(configurations, &result.request)?;
                let given = given(terms, percent);
                requests.entry(result.request.clone()).or_insert(given)
            }
        };
        if given.compute.percent != percent {
            return Err(Error::UnequalCores {
                request: result.request.clone(),
            });
        }
        if given.shares.iter().any(|other| other.id == share.id) {
            return Err(Error::SameShare {
                request: result.request.clone(),
                share: share.id,
            });
        }
        given.shares.push(share);
    }
    Ok(requests)
}

fn given(terms: Terms, percent: Option<u32>) -> Given {
    Given {
        shares: Vec::new(),
        compute: ComputeTerms {
            policy: terms.policy,
            percent,
            weight: terms.weight,
            priority: terms.priority.unwrap_or_default(),
            ..ComputeTerms::default()
        },
        managed: terms.managed,
        share_group: terms.share_group,
    }
}

/// One result: its part of a card, and of the card's time.
fn share(
    result: &DeviceRequestAllocationResult,
    node: &NodeName,
    cards: &NodeCards,
) -> Result<(Share, Option<u32>), Error> {
    if result.admin_access == Some(true) {
        return Err(Error::AdminAccess {
            request: result.request.clone(),
        });
    }
    if result.pool != node.as_str() {
        return Err(Error::OtherPool {
            pool: result.pool.clone(),
            node: node.to_string(),
        });
    }
    let card = healthy(result, cards)?;
    let whole_bytes = card.card.memory_bytes;
    let (memory_bytes, percent) = match &result.consumed_capacity {
        // A device that is not shared is given as it is.
        None => (whole_bytes, None),
        Some(capacity) => {
            let unknown = |name: &&String| !CAPACITIES.contains(&name.as_str());
            if let Some(name) = capacity.keys().find(unknown) {
                return Err(wrong(result, name, &"there", "memory, cores and shares"));
            }
            let amount = |name: &str| -> Result<Option<u64>, Error> {
                let Some(quantity) = capacity.get(name) else {
                    return Ok(None);
                };
                let whole = quantity::whole(quantity);
                let wrong = || wrong(result, name, &quantity.0, "a whole number");
                whole.ok_or_else(wrong).map(Some)
            };
            let memory_bytes = amount("memory")?.unwrap_or(whole_bytes);
            if !(1..=whole_bytes).contains(&memory_bytes) {
                let allowed = format!("1 to the card's {whole_bytes} bytes");
                return Err(wrong(result, "memory", &memory_bytes, &allowed));
            }
            let cores = amount("cores")?.unwrap_or(0);
            let percent = u32::try_from(cores).ok().filter(|_| cores <= PERCENT_MAX);
            let percent = percent.ok_or_else(|| wrong(result, "cores", &cores, "0 to 100"))?;
            // What a claim takes that names none is 1, of slices of an older agent 0: no share of its own.
            (memory_bytes, (percent > 1).then_some(percent))
        }
    };
    let share = Share {
        id: share_id(result).to_owned(),
        card: card.card.uuid.clone(),
        device: result.device.clone(),
        memory_bytes,
    };
    Ok((share, percent))
}

fn wrong(
    result: &DeviceRequestAllocationResult,
    capacity: &str,
    value: &dyn std::fmt::Display,
    allowed: &str,
) -> Error {
    Error::Amount {
        request: result.request.clone(),
        capacity: capacity.chars().take(64).collect(),
        value: value.to_string().chars().take(64).collect(),
        allowed: allowed.to_owned(),
    }
}

/// The card behind a result's device, as long as it serves.
fn healthy<'a>(
    result: &DeviceRequestAllocationResult,
    cards: &'a NodeCards,
) -> Result<&'a NodeCard, Error> {
    let mut offered = cards.cards.iter();
    let card = offered.find(|card| card.device() == result.device);
    let card = card.ok_or_else(|| Error::NoSuchDevice {
        device: result.device.clone(),
    })?;
    if let Some(obstacle) = card.card.unshareable() {
        return Err(Error::Unhealthy {
            device: result.device.clone(),
            card: card.card.index,
            reason: obstacle.to_string(),
        });
    }
    match &card.trouble {
        None => Ok(card),
        Some(trouble) => Err(Error::Unhealthy {
            device: result.device.clone(),
            card: card.card.index,
            reason: trouble.reason.clone(),
        }),
    }
}

/// The scheduler's id of a share; a device that is not shared has its own name.
fn share_id(result: &DeviceRequestAllocationResult) -> &str {
    result.share_id.as_deref().unwrap_or(&result.device)
}

/// Of a request of alternatives, `main/chosen`, the main one.
fn main_request(request: &str) -> &str {
    request.split_once('/').map_or(request, |(main, _)| main)
}

/// What class and claim say of one request.
fn terms(configurations: &[DeviceAllocationConfiguration], request: &str) -> Result<Terms, Error> {
    let concerns = |of: &DeviceAllocationConfiguration| {
        let names = of.requests.as_deref().unwrap_or_default();
        let is_named = |name: &String| *name == request || *name == main_request(request);
        names.is_empty() || names.iter().any(is_named)
    };
    let mut parameters = Vec::new();
    for configuration in configurations.iter().filter(|of| concerns(of)) {
        let Some(opaque) = configuration
            .opaque
            .as_ref()
            .filter(|opaque| opaque.driver == DRIVER)
        else {
            continue;
        };
        let author = match configuration.source.as_str() {
            "FromClass" => Author::Class,
            "FromClaim" => Author::Claim,
            other => {
                return Err(Error::Source {
                    found: other.chars().take(64).collect(),
                });
            }
        };
        parameters.push((author, &opaque.parameters.0));
    }
    configuration::terms(parameters).map_err(|source| Error::Configuration {
        request: request.to_owned(),
        source,
    })
}

#[cfg(test)]
pub(crate) mod tests;
