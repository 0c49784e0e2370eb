//! Requests that cannot be read, or contradict themselves.

use host_config::terms;

use super::{ClaimError, NearMiss};
use crate::json::ShapeError;
use crate::{capabilities, escape_checks};

/// What is wrong with what a container asks for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A single term.
    #[error(transparent)]
    Terms(#[from] terms::Error),
    /// The spec has another shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// What it asks of the driver's libraries.
    #[error(transparent)]
    Capabilities(#[from] capabilities::Error),
    /// What it is given leads out of a slice.
    #[error(transparent)]
    EscapeChecks(#[from] escape_checks::Error),
    /// A variable without which another one says nothing.
    #[error("{key} is missing: {beside} needs it, and it is {is}")]
    Missing {
        /// The variable.
        key: &'static str,
        /// The one that is there.
        beside: String,
        /// What it says.
        is: &'static str,
    },
    /// Two parts of a request that cannot both hold.
    #[error("{one} contradicts {other}")]
    Contradiction {
        /// The one.
        one: String,
        /// The other.
        other: String,
    },
    /// Annotations that no single engine writes.
    #[error(
        "the annotations are of two engines: {one} is containerd's and {other} is CRI-O's; whoever wrote one of them by hand must leave it out"
    )]
    TwoEngines {
        /// A key of containerd's.
        one: &'static str,
        /// A key of CRI-O's.
        other: &'static str,
    },
    /// An engine's annotation that its engine did not write, on a container that asks for a vGPU.
    #[error(
        "{key} = {value:?} is not true of this container: {why}; a container that asks for a vGPU is not started like this"
    )]
    ForgedRole {
        /// The annotation.
        key: &'static str,
        /// Its value, cut.
        value: String,
        /// What speaks against it.
        why: &'static str,
    },
    /// A request of a pod's author, on a node whose pods get vGPUs by claims alone.
    #[error(
        "{key} = {value:?} asks for a vGPU in a pod, whose author cannot: {why}, so pods get theirs by claims alone, which the scheduler counts. On a node of one user, `[kubernetes] authority = \"annotations\"` in cgpu.toml lets pods' authors ask"
    )]
    PodAuthor {
        /// The annotation or variable.
        key: String,
        /// Its value, cut.
        value: String,
        /// Why the author cannot.
        why: String,
    },
    /// A share of a claim that the container cannot have.
    #[error("{key} = {value:?}")]
    Claim {
        /// The variable.
        key: String,
        /// Its value, cut.
        value: String,
        /// Why not.
        #[source]
        source: Box<ClaimError>,
    },
    /// A request of a pod's author beside what the scheduler gave.
    #[error(
        "{key} = {value:?} asks for something beside claim {claim:?}, which alone says what the container gets: allowed there are cgpu.io/managed and cgpu.io/on-violation, as strict as the claim and the host, or stricter"
    )]
    BesideClaim {
        /// The annotation.
        key: String,
        /// Its value, cut.
        value: String,
        /// The claim.
        claim: String,
    },
    /// A container that makes no request and says what is nearly one, on a host that refuses those.
    #[error(
        "the container requests no vGPU, but {near_miss}. `[request] strict = true` in cgpu.toml refuses such a container; CGPU_DISABLE=1 in its environment starts it without a card"
    )]
    Missed {
        /// What it says.
        near_miss: NearMiss,
    },
    /// A container that asks for nothing, and cannot have what the host gives it then.
    #[error(
        "the container requests no vGPU, so it gets the one of `[request] default` in cgpu.toml (CGPU_DISABLE=1 in its environment starts it without one)"
    )]
    Default {
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The cluster's scheduler found no card and said so in its only way.
    #[error("the scheduler found no card for this container: {value}")]
    Unscheduled {
        /// The variable that says so.
        value: String,
    },
    /// An annotation that would loosen what the configuration says.
    #[error(
        "{key} = {value:?} would loosen `[isolation] {setting} = {configured:?}` of cgpu.toml: allowed are {allowed}"
    )]
    Loosens {
        /// The annotation.
        key: &'static str,
        /// Its value.
        value: &'static str,
        /// The configuration's key.
        setting: &'static str,
        /// The configuration's value.
        configured: &'static str,
        /// As strict or stricter values.
        allowed: String,
    },
}

impl Error {
    /// Of a request that nobody but the host's configuration has made.
    #[must_use]
    pub fn of_default(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Default {
            source: Box::new(source),
        }
    }
}
