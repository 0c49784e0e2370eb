//! What a tenant's call may do: pure functions from a decoded call to a verdict.
//!
//! Follow one ioctl: [`op`] names it by file and command, [`blocks`] says which further memory belongs to it, and
//! [`decide`] gives the [`Verdict`]. [`managed`] is for the one `mmap` that counts, [`share`] and [`exports`] for what one client
//! hands to another, [`schedule`] for when its work may run; [`names`] says which handles a call names and who checks them. `tests/paths/table.rs` lists every way to card memory with what becomes of it. [`filter`] holds the seccomp rules that bring calls here, [`filter_check`]
//! says whether a filter that is in force does, [`view`] rewrites answers so that a tenant sees its slice. This crate reads no memory, keeps no account and knows no process: the broker does.
//!
//! Deny by default: a number, class or control without a row is refused as the driver itself would refuse it.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::expect_used, clippy::panic)
)]
#![deny(clippy::wildcard_enum_match_arm)]

mod address_space;
pub mod blocks;
pub mod cards;
mod cleared;
pub mod decide;
pub mod effect;
pub mod exports;
pub mod filter;
pub mod filter_check;
pub mod managed;
pub mod names;
pub mod op;
pub mod page_size;
pub mod page_tables;
pub mod policy;
pub mod schedule;
pub mod share;
pub mod unknown;
pub mod view;

pub use cleared::{Mapping, cleared};
pub use decide::{REGISTERED_FOR_A_BYTE, decide, decide_under};
pub use effect::{
    Effect, Export, Import, Memory, Pages, Registered, Schedule, Switch, TakenOut, Unregistered,
    Verdict, Whose,
};
pub use op::{Op, Surface, op};
pub use policy::Policy;
pub use share::{narrow, own_space};
pub use unknown::Unknown;

/// How a refused call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The ioctl fails with this errno.
    Errno(i32),
    /// The ioctl returns 0 and this `NV_STATUS` is in the struct, at this offset.
    Status {
        /// The status.
        status: u32,
        /// Offset of the field in the ioctl's struct.
        at: usize,
    },
}
