//! Why a claim is not prepared.

use crate::configuration;

/// Why a claim is not prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "it has the uid {found} now, and the kubelet means {requested}: it was deleted and made again"
    )]
    Replaced { requested: String, found: String },
    #[error("it is not allocated")]
    NotAllocated,
    #[error(
        "nothing of its allocation is of the driver gpu.cgpu.io: its DeviceClass is another driver's"
    )]
    NothingOfOurs,
    #[error("its allocation has {found} devices of gpu.cgpu.io: 32 are allowed")]
    TooMany { found: usize },
    #[error("it is reserved for no pod")]
    NoPod,
    #[error("it is reserved for {found} pods: 256 are allowed")]
    TooManyPods { found: usize },
    #[error(
        "request {request}: adminAccess is not offered by gpu.cgpu.io, whose devices are held by what claims are given"
    )]
    AdminAccess { request: String },
    #[error("it was allocated from the pool {pool:?}, and this node's is {node:?}")]
    OtherPool { pool: String, node: String },
    #[error("device {device:?} is no card of this node any more")]
    NoSuchDevice { device: String },
    #[error("device {device:?}, card {card}, is unhealthy: {reason}")]
    Unhealthy {
        device: String,
        card: u32,
        reason: String,
    },
    #[error("request {request}: {capacity} = {value} is not allowed: {allowed}")]
    Amount {
        request: String,
        capacity: String,
        value: String,
        allowed: String,
    },
    #[error("request {request}: its devices have different cores")]
    UnequalCores { request: String },
    #[error("request {request}: share {share} is there twice")]
    SameShare { request: String, share: String },
    #[error("a configuration is from {found:?}: FromClass and FromClaim are known")]
    Source { found: String },
    #[error("request {request}: {source}")]
    Configuration {
        request: String,
        source: configuration::Error,
    },
}
