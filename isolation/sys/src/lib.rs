//! Every unsafe block of the product, behind safe functions that own their descriptors.
//!
//! One module a kernel facility, each opened by a note why it needs `unsafe`. This crate knows system calls only: no
//! ioctl number of a driver, no quota, no path of cgpu.
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
#![expect(
    unsafe_code,
    reason = "this crate exists to hold it; every other crate of the product forbids it"
)]

pub mod clock;
pub mod control_group;
pub mod descriptors;
mod error;
pub mod fd_passing;
pub mod ioctl;
pub mod kcmp;
pub mod lock;
pub mod memory;
pub mod mounts;
pub mod numa;
#[cfg(feature = "nvml")]
pub mod nvml;
pub mod open_files;
pub mod pidfd;
pub mod proc;
pub mod seccomp;
pub mod shared;
pub mod signal;
pub mod sync;
pub mod traced;
pub mod user_namespace;

pub use error::{FileError, absent_is_fine, absent_is_none, chain, entries, failed};
