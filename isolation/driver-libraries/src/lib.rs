//! The files, modules and nodes of NVIDIA's driver on this host.
//!
//! - [`prepare`], [`survey`]: its user libraries, as a container gets them (`libraries`).
//! - [`drivers`]: by which release its calls are decoded.
//! - [`uvm_module`]: the kernel module that CUDA needs, loaded before a container starts.
//! - [`host_nodes`]: its device nodes in the host's own `/dev`.
//!
//! This crate must not know of the state folder, of brokers, or of a driver's calls.
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

mod catalogue;
mod cdi;
mod discover;
pub mod drivers;
mod elf;
mod error;
#[cfg(any(test, feature = "fake"))]
#[path = "tests/fake.rs"]
pub mod fake;
pub mod host_nodes;
mod image;
mod libraries;
mod linker_cache;
mod tree;
pub mod uvm_module;

pub use error::Error;
pub use libraries::{Context, DriverLibraries, Survey, prepare, survey};

#[cfg(test)]
mod tests;
