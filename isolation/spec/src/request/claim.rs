//! What a cluster's scheduler gave a pod's container.
//!
//! The kubelet adds a variable for each share that the container may use, `CGPU_CLAIM_…=<uid of the claim>/<request>/<share>` (the claim's
//! CDI devices, which `cgpu-agent` writes). Anybody can write such a variable: it is a pointer and no amount. It is believed as far as
//! the claim's record, which root alone on the node can write, names the pod that the engine says the container is in. What the pod's
//! author could write gains him what his pod has been given anyway.
//!
//! Beside a claim the author's annotations may hold the container more strictly and ask for nothing; cGPU's variables, which may be an
//! image's, are not read.

use std::collections::BTreeMap;
use std::path::Path;

use cards::NameError;
use cards::claims::{self, Claims, Given, Pointer, Record, Share};
use cards::grant::ComputeTerms;
use cards::placement::{Amount, CardName, Choice, RequestedCards};
use host_config::config::Config;
use host_config::terms::{Annotated, MANAGED_KEY, ON_VIOLATION_KEY, PREFIX, QUOTED_CHARS_MAX};

use super::{Error, Request, engine, isolation};

/// With which each of the variables begins.
pub(super) const VARIABLE: &str = "CGPU_CLAIM_";

/// A claim has at most 32 shares, and a container names few claims.
const POINTERS_MAX: usize = 128;

/// Why a pointer is not followed. As text it goes on from the variable and its value.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// It is none.
    #[error(transparent)]
    Pointer(#[from] NameError),
    /// More than any container needs.
    #[error("a container can have at most {POINTERS_MAX} shares of claims")]
    TooMany,
    /// The engine does not say in which pod the container is.
    #[error(
        "a share of a claim is for a container of a pod, and this container's engine names no pod's uid (the CRI of containerd and CRI-O do)"
    )]
    NoPod,
    /// It is another pod's.
    #[error("claim {claim} is reserved for other pods: pod {pod} is none of them")]
    ForeignClaim {
        /// The claim's namespace and name.
        claim: String,
        /// The uid of the container's pod, cut.
        pod: String,
    },
    /// The node has no such share, or its record cannot be read.
    #[error(transparent)]
    Record(#[from] cards::Error),
}

/// Whether the variables name a share of any claim.
pub(super) fn asks(variables: &[(&str, &str)]) -> bool {
    variables.iter().any(|(key, _)| key.starts_with(VARIABLE))
}

/// What a container's claims give it; `None`: it names none.
///
/// # Errors
/// [`Error::Claim`] for a pointer that is not followed; [`Error::BesideClaim`] for an annotation that asks for more; shares of different terms.
pub(super) fn request(
    config: &Config,
    annotations: &[(&str, &str)],
    own_terms: &[(&str, &str)],
    variables: &[(&str, &str)],
) -> Result<Option<Request>, Error> {
    let pointing = variables
        .iter()
        .filter(|(key, _)| key.starts_with(VARIABLE));
    let pod = engine::pod_uid(annotations)?;
    let mut shares = Shares::of(&config.state_dir);
    for (key, value) in pointing {
        shares.follow(pod, value).map_err(|source| Error::Claim {
            key: key.chars().take(QUOTED_CHARS_MAX).collect(),
            value: value.chars().take(QUOTED_CHARS_MAX).collect(),
            source: Box::new(source),
        })?;
    }
    let Some(claim) = shares.names().next().map(str::to_owned) else {
        return Ok(None);
    };
    let tightening = tightening(own_terms, &claim)?;
    shares.request(config, tightening).map(Some)
}

/// The annotations' terms that stand beside a claim.
fn tightening(own_terms: &[(&str, &str)], claim: &str) -> Result<Annotated, Error> {
    let mut asking = own_terms.iter().filter(|(key, _)| {
        key.starts_with(PREFIX) && ![MANAGED_KEY, ON_VIOLATION_KEY].contains(key)
    });
    if let Some((key, value)) = asking.next() {
        return Err(Error::BesideClaim {
            key: key.chars().take(QUOTED_CHARS_MAX).collect(),
            value: value.chars().take(QUOTED_CHARS_MAX).collect(),
            claim: claim.to_owned(),
        });
    }
    Ok(Annotated::read(own_terms.iter().copied())?.unwrap_or_default())
}

/// The shares that were found so far.
struct Shares {
    claims: Claims,
    /// By the claim's uid; each is read once.
    records: BTreeMap<String, Record>,
    pointers: Vec<Pointer>,
    shares: Vec<Share>,
    /// What was given with the first of them, and its pointer.
    given: Option<(Pointer, Given)>,
    /// One that was given otherwise.
    other: Option<Pointer>,
}

impl Shares {
    fn of(state_dir: &Path) -> Self {
        Self {
            claims: Claims::of(state_dir),
            records: BTreeMap::new(),
            pointers: Vec::new(),
            shares: Vec::new(),
            given: None,
            other: None,
        }
    }

    /// Takes the share that a pointer names.
    fn follow(&mut self, pod: Option<&str>, text: &str) -> Result<(), ClaimError> {
        let pointer: Pointer = text.parse()?;
        let pod = pod.ok_or(ClaimError::NoPod)?;
        if self.pointers.contains(&pointer) {
            return Ok(());
        }
        if self.pointers.len() >= POINTERS_MAX {
            return Err(ClaimError::TooMany);
        }
        let uid = pointer.claim.as_str().to_owned();
        if !self.records.contains_key(&uid) {
            let read = self.claims.read(&pointer.claim)?;
            let record = read.ok_or_else(|| cards::Error::NoClaim { claim: uid.clone() })?;
            self.records.insert(uid.clone(), record);
        }
        let Some(record) = self.records.get(&uid) else {
            return Ok(());
        };
        if !record.is_for(pod) {
            return Err(ClaimError::ForeignClaim {
                claim: record.claim.to_string(),
                pod: pod.chars().take(QUOTED_CHARS_MAX).collect(),
            });
        }
        let share = record.share(&pointer);
        let (share, given) = share.ok_or_else(|| cards::Error::NoShare {
            claim: record.claim.to_string(),
            pointer: Box::new(pointer.clone()),
        })?;
        self.shares.push(share.clone());
        match &self.given {
            None => {
                let bare = Given {
                    shares: Vec::new(),
                    ..given.clone()
                };
                self.given = Some((pointer.clone(), bare));
            }
            Some((_, first)) => {
                let agrees = first.compute == given.compute
                    && first.managed == given.managed
                    && first.share_group == given.share_group;
                if !agrees {
                    self.other.get_or_insert_with(|| pointer.clone());
                }
            }
        }
        self.pointers.push(pointer);
        Ok(())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.records.values().map(|record| &record.claim);
        names.map(|claim| claim.name.as_str())
    }

    fn request(self, config: &Config, mut tightening: Annotated) -> Result<Request, Error> {
        let (first, given) = self.given.ok_or_else(|| Error::Contradiction {
            one: VARIABLE.to_owned(),
            other: "a claim without a share".to_owned(),
        })?;
        // A container has one set of terms, whatever the number of its cards.
        if let Some(other) = self.other {
            return Err(Error::Contradiction {
                one: format!("request {:?} of claim {},", first.request, first.claim),
                other: format!(
                    "request {:?} of claim {}, which has other terms (cores, policy, weight, priority, managed, shareGroup): a container's requests have the same",
                    other.request, other.claim
                ),
            });
        }
        let of_claim = Annotated {
            managed: given.managed,
            share_group: given.share_group,
            ..Annotated::default()
        };
        let mut isolation = isolation::terms(&config.isolation, &of_claim)?;
        tightening.share_group.clone_from(&isolation.share_group);
        let mut as_claimed = config.isolation.clone();
        as_claimed.managed = isolation.managed;
        isolation = isolation::terms(&as_claimed, &tightening)?;
        let parts = claims::by_card(&self.shares);
        let named = parts.iter().map(|(card, _)| CardName::Uuid(card.clone()));
        Ok(Request {
            request: RequestedCards {
                cards: Choice::Named(named.collect()),
                amount: Amount::PerCard(parts),
                among: None,
                policy: config.placement.policy,
            },
            compute: ComputeTerms {
                mode: config.compute.mode,
                fail: config.compute.fail,
                ..given.compute
            },
            isolation,
            pod_namespace: None,
            pod: None,
            claims: self.pointers,
        })
    }
}

#[cfg(test)]
mod tests;
