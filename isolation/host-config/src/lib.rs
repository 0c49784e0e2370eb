//! What the host's administrator has decided, and whether it was the administrator who did.
//!
//! - [`config`]: the file `cgpu.toml`.
//! - [`terms`]: the words, numbers and amounts that it has in common with annotations and options.
//! - [`trusted`]: whether a program or a file is the administrator's alone.
//! - [`programs`]: where cgpu's own programs are.
//! - [`own_places`]: what of the host is cgpu's own.
//! - [`host_files`]: what is looked up on the host, behind a trait; [`walk`] follows a path as the kernel does.
//!
//! This crate must not know of containers, of their specs, or of a driver.
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

pub mod config;
pub mod host_files;
pub mod own_places;
pub mod programs;
pub mod terms;
pub mod trusted;
pub mod user_namespace;
pub mod walk;

pub use config::Config;
pub use sys::chain;
