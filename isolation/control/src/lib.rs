//! A broker's control socket: what it is asked, what it answers, and how a frontend or a command asks.
//!
//! - [`Request`], and the answers to each, in `request`;
//! - [`Status`], the answer to [`Request::Status`], in `status`, `compute`, `processes` and `health`;
//! - [`ExportsOf`] and [`PeerExports`], one broker's question to another, in `exports`;
//! - [`client`]: one line of JSON there, one line back;
//! - [`slice_record`]: what a container reads of its share without asking.
//!
//! The broker fills these types in, and whoever asks reads the same ones: a field has one name and one meaning. An answer of an
//! older or newer broker is read as far as it goes: a field that it lacks has its default, one that is not known is left out.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::expect_used,
        clippy::panic,
        clippy::wildcard_enum_match_arm
    )
)]

pub mod client;
mod compute_status;
mod exports;
mod health;
mod processes;
mod request;
pub mod slice_record;
mod status;

pub use client::AskError;
pub use compute_status::ComputeStatus;
pub use exports::{ExportsOf, HOST, PeerExport, PeerExports, PeerMemory};
pub use health::{Drift, Event, EventKind, HealthStatus, IncidentCounts, Watching};
pub use processes::{Folded, FoldedCard, ProcessCard, ProcessStatus};
pub use request::{NewQuota, NewShares, NewTerms, Quota, Quotas, Request, Upgraded};
pub use status::{
    BrokerStatus, CallCounts, CallDurations, CardStatus, CpuTimeStatus, DurationBucket,
    HostMemoryStatus, Status, VERSION,
};
