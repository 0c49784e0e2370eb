//! What an engine writes of a container, `config.json`: read, judged and edited as the JSON value that it is.
//!
//! - [`strict_json`]: reads JSON of others so that nobody can read it differently.
//! - [`json`]: fields of a spec, of whatever shape it is.
//! - [`request`]: annotations and environment → one typed [`Request`].
//! - [`capabilities`]: which of the driver's libraries it wants, by `NVIDIA_DRIVER_CAPABILITIES`.
//! - [`escape_checks`]: what a container is given that leads out of its slice, and is refused.
//! - [`nodes`], [`rdma`]: the device nodes that it gets, and those that are of no use to it.
//! - [`edit`]: what is changed.
//!
//! Nothing is written and no process is started here. What a path of a spec leads to on this host is asked through
//! [`host_config::host_files::HostFiles`]. This crate must not know of the state folder, of brokers, or of an OCI runtime.
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

pub mod capabilities;
pub mod edit;
pub mod escape_checks;
pub mod json;
pub mod nodes;
pub mod rdma;
pub mod request;
pub mod strict_json;
mod time_zone;

pub use request::Request;
