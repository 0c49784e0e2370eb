//! Create, verify, release, reclaim, list.
//!
//! ```text
//!   create ──▶ Prepared ──verify_filter──▶ Running ──ended──▶ Ended ──release──▶ (nothing)
//!                 └─────── ended, or the filter does not hold ──▲
//! ```
//!
//! A value of each type is what its frontend may do next: only a [`Running`] is followed at its start and has execs, and only an
//! [`Ended`] is released. A process that knows no more than a container's name reopens what another has left
//! ([`Container::reopen`](crate::Container::reopen)).

mod applied;
mod create;
mod equip;
mod exec;
mod list;
mod making;
mod place;
pub(crate) mod pod;
mod prepared;
mod release;
mod reopen;
mod running;

pub use create::{Create, Source, asks_for_nothing, create};
pub use list::{BrokerState, Life, Listed, VgpuState, list, list_each, named, names_of};
pub use prepared::{Created, Prepared, Rejected};
pub use release::reclaim;
pub(crate) use release::{reclaim_locked, sweep_sockets};
pub use running::{Brokers, Ended, Running, Unheld};

#[cfg(test)]
pub(crate) mod tests;
