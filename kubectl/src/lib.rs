//! `kubectl-cgpu`, a plugin of `kubectl`: what a cluster's nodes have of cgpu's cards, who has them, and why a pod gets none.
//!
//! ```text
//!   API server ──lists, page by page──▶ api ──▶ fit::cards: slices + allocations ──▶ inspect
//!                                        │                  │
//!                                        └─▶ fit::needs: a pod's claims + classes ──▶ fit: verdicts ──▶ explain
//! ```
//!
//! All but [`api`] and the two commands is pure: objects in, verdicts out. The plugin only reads. It has nothing of the node's programs in it, so
//! that it runs where `kubectl` does.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod options;

pub use options::{
    ClusterOptions, Command, ExplainOptions, Format, INSPECT_NAME, InspectAlone, InspectOptions,
    Options, OutputOptions,
};

#[cfg(feature = "client")]
mod api;
#[cfg(feature = "client")]
mod explain;
#[cfg(feature = "client")]
mod inspect;
#[cfg(feature = "client")]
mod program;
#[cfg(feature = "client")]
mod text;

#[cfg(feature = "client")]
pub use program::main;
