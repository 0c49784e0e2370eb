//! The process that outlives every broker of a container, and what it and a broker say to each other.
//!
//! - [`Supervisor`]: starts one broker after the other, and holds what must not go with one.
//! - [`succession`]: the other way round, a broker starts the next supervisor.
//! - [`link`]: the messages between the two, with descriptors beside them; [`listener_socket`]: where runc sends listeners.
//! - [`grant`]: the container's folder; [`topology`]: where its cards are in the host; [`scarce`]: what both do without descriptors.
//!
//! This crate must not know of calls, of the account, or of what a driver shows: it reads nothing that a tenant wrote.

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

#[cfg(test)]
mod forms;
pub mod grant;
pub mod link;
pub mod listener_socket;
pub mod scarce;
pub mod succession;
mod supervisor;
pub mod topology;

pub use supervisor::{
    Abandonment, Error, LONGEST_CALL, Supervisor, accept_listener, name_of, record_identity,
    set_capabilities, why_replaced,
};
