//! A vGPU's life around its container: request → grant → spec edits → broker. Every frontend calls this crate.
//!
//! - [`config`]: the host's configuration.
//! - [`request`]: annotations and environment → one typed [`Request`].
//! - `escape_checks`: what a container is given that leads out of its slice, and is refused.
//! - [`edit`]: what is changed in the engine's `config.json`.
//! - [`driver_libraries`]: the driver's libraries in a container of real cards.
//! - [`backend`]: who holds a container to its memory, and the choice.
//! - [`broker`]: starts and stops `cgpu-broker`.
//! - [`uvm_module`]: the kernel module that CUDA needs, loaded before a container starts.
//! - [`events`]: what a frontend adds to the container's log.
//! - [`strict_json`]: reads JSON of others so that nobody can read it differently.
//!
//! This crate must not know of containerd, of docker, or of a driver's calls: a frontend hands it a bundle and a name.
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
pub mod capabilities;
mod chain;
pub mod config;
mod container;
pub mod driver_libraries;
pub mod drivers;
pub mod edit;
mod error;
pub mod escape_checks;
pub mod events;
mod host;
pub mod host_files;
mod host_memory;
pub mod host_nodes;
pub mod json;
mod lifecycle;
mod mount;
pub mod nodes;
mod own_group;
pub mod own_places;
mod pod_record;
pub mod rdma;
pub mod request;
mod resize;
pub mod runc;
pub mod slice_record;
pub mod sockets;
mod state;
pub mod strict_json;
pub mod terms;
pub mod trusted;
pub mod upgrade;
pub mod uvm_module;
pub mod walk;

pub use bundle::read_spec;
pub use cards::{CardGrant, ContainerKey, FrontendKind, GpuUuid, Grant};
pub use chain::chain;
pub use config::Config;
pub use container::Container;
pub use error::{Error, Fault, WhyNot};
pub use lifecycle::{
    BrokerState, Create, Created, Ended, Life, Prepared, Rejected, Running, Source, VgpuState,
    asks_for_nothing, create, list, reclaim,
};
pub use own_group::OwnUsage;
pub use request::Request;
pub use resize::{
    Changed, Requested, Reshared, Resized, RulesChanged, RulesRequested, change, set_rules,
};
