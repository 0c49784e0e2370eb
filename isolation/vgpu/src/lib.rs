//! A vGPU's life around its container: backend → grant → broker → release. Every frontend calls this crate.
//!
//! - `lifecycle`: create, verify, release, reclaim, list.
//! - [`backend`]: who holds a container to its memory, and the choice.
//! - [`broker`]: starts and stops `cgpu-broker`; [`upgrade`] replaces one that serves.
//! - `own_group`: the control group of a vGPU's own processes.
//! - [`claims`]: what a cluster's scheduler gave, before there is a container.
//! - `resize`: other quotas and terms for a running container.
//! - [`plain`]: containers that ask for nothing; `other_ways`: how this host gives them the driver all the same.
//! - [`events`]: what a frontend adds to the container's log; `names`: what people call the container.
//! - [`sockets`]: where a frontend's server listens.
//!
//! What a container asks for and what is changed in its `config.json` is the crate `spec`, the host's configuration the crate
//! `host_config`, and a real driver's files the crate `driver_libraries`.
//!
//! This crate must not know of containerd, of docker, or of a driver's calls: a frontend hands it a bundle and a name. `names` alone knows
//! where engines keep what they call a container.
//!
//! A vGPU's life by the types of its frontend is in [`Running`]'s module, `lifecycle`; by what is on disk:
//!
//! ```text
//!             create                          frontend, broker and (without a broker) init dead
//!   (nothing) ------> granted, edited, broker --------------------> stale --reclaim--> (nothing)
//!                     ready  |                                              (next create, or doctor)
//!                            +--release--> (nothing)
//! ```
//!
//! Whatever fails in `create` is undone in reverse order before the error is returned. What a killed frontend leaves behind is
//! undone by [`reclaim`]: a container's folder whose `frontend.lock` and `broker.lock` nobody holds, and whose init, where it has
//! no broker, has ended.
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

pub mod backend;
pub mod broker;
mod bundle;
pub mod claims;
pub mod configured;
mod container;
mod error;
pub mod events;
pub mod explain;
mod host;
mod host_memory;
mod lifecycle;
mod mount;
mod names;
mod other_ways;
mod own_group;
pub mod plain;
mod pod_record;
mod process;
mod resize;
pub mod runc;
pub mod slice_record;
pub mod sockets;
mod state;
pub mod upgrade;

pub use bundle::read_spec;
pub use cards::{Name, Names, PodNames};
pub use container::{Container, Logs};
pub use error::{Error, Fault, WhyNot};
pub use lifecycle::{
    BrokerState, Brokers, Create, Created, Ended, Life, Listed, Prepared, Rejected, Running,
    Source, Unheld, VgpuState, asks_for_nothing, create, list, list_each, named, names_of, reclaim,
};
pub use own_group::OwnUsage;
pub use resize::{
    Changed, Requested, Reshared, Resized, RulesChanged, RulesRequested, change, set_rules,
};
