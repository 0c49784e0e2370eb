//! A vGPU's life around its container: request → grant → spec edits → broker. Every door calls this crate.
//!
//! - [`config`]: the host's configuration.
//! - [`request`]: annotations and environment → one typed [`Request`].
//! - [`edit`]: what is changed in the engine's `config.json`.
//! - [`broker`]: starts and stops `cgpu-broker`.
//!
//! This crate must not know of containerd, of docker, or of a driver's calls: a door hands it a bundle and a name.
//!
//! ```text
//!             create                          door and broker dead
//!   (nothing) ------> granted, edited, broker --------------------> stale --reclaim--> (nothing)
//!                     ready  |                                              (next create, or doctor)
//!                            +--release--> (nothing)
//! ```
//!
//! Whatever fails in `create` is undone in reverse order before the error is returned. What a killed door leaves behind is
//! undone by [`reclaim`]: a container's folder whose `door.lock` and `broker.lock` nobody holds.
#![forbid(unsafe_code)]

pub mod broker;
mod bundle;
pub mod config;
mod control;
pub mod edit;
mod error;
mod host;
mod lifecycle;
pub mod request;
mod resize;
pub mod runc;
pub mod sockets;
mod spec;
mod state;

pub use cards::{CardGrant, ContainerKey, DoorKind, GpuUuid, Grant};
pub use config::Config;
pub use error::{Error, chain};
pub use lifecycle::{
    BrokerState, Mount, Vgpu, VgpuState, create, create_plain, edit_exec, edit_exec_file, list,
    reclaim, release, release_if,
};
pub use request::Request;
pub use resize::{Resized, resize_memory};
