//! The process that makes a container's NVIDIA calls in strict mode → program `cgpu-executor`.
//!
//! It makes ioctls on duplicates of the tenant's files, as it is told, and is thereby "the process" of every client of that
//! container for the driver. It must not know layouts, quotas, containers or the simulator; it opens no file, reads no
//! tenant's memory and decides nothing: `cgpu-broker` does, and tells it what to do (`driver::executor::wire`).
//!
//! ```text
//! started as root ─ confine ─▶ an own uid, no capability, few system calls ─ serve ─▶ hung up and no broker connected ─▶ end
//!                                                                 │
//!            one thread a connection:  receive ─▶ call slot ─▶ ioctl ─▶ call slot ─▶ answer
//! ```
//!
//! A call slot (see `driver::Ticket`) remembers its last answer, so that a broker that takes over from one that was killed gets the
//! answer of a call that was under way instead of a second execution.
//!
//! Locks: the file table and the call slots, never both, and neither across an ioctl.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::expect_used,
        clippy::panic,
        clippy::wildcard_enum_match_arm,
        clippy::arithmetic_side_effects
    )
)]

pub mod call_slots;
pub mod confine;
mod error;
pub mod files;
mod filter;
pub mod near;
pub mod serve;

pub use error::Error;
