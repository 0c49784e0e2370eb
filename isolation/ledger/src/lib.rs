//! The exact account of one container's GPU memory.
//!
//! The broker tells the ledger what the driver has done for the container (objects made, duplicated,
//! mapped, exported, freed); the ledger knows at every moment how many bytes of each card the container
//! holds, and says before a call whether what it asks for still fits. It does no I/O, knows no time, no
//! driver number and no system call, and never panics on what a tenant can make the broker say.
//!
//! # What is counted
//!
//! ```text
//! file ──owns──▶ client ──▶ object tree ──┐
//! file (uvm) ──▶ external mappings ───────┼──reference──▶ allocation {card, bytes, references}
//! file (uvm) ──▶ managed memory ──────────┤
//! file ────────▶ exports ─────────────────┤
//! file (uvm) ──▶ registrations ───────────┤
//! broker ──────▶ pins (calls under way) ──┘
//! broker ──────▶ reservations (calls under way) ──▶ bytes of a card, one slot of a kind
//! ```
//!
//! Memory is charged once, when it is allocated, and released with its last reference: freeing the handle
//! does not uncharge what a duplicate, a mapping, an export or a registration still holds. Context memory (what the driver
//! takes for a channel group, a channel or a VA space) is an allocation of a flat size and follows the same
//! rule. All of it hangs on *files*, not on processes, because the driver frees when the last descriptor of
//! a file goes; the allocating process is remembered for reports only.
//!
//! # One call
//!
//! ```text
//! reserve ──▶ the driver executes ──┬─ success ─▶ add_object / open_client   (exact bytes)
//!    │                              └─ failure ─▶ roll_back
//!    └─ Refusal: answer the tenant, execute nothing
//!
//! pin ──────▶ the driver executes ──┬─ success ─▶ duplicate / map_external / export
//!    │                              └─ failure ─▶ unpin
//!    └─ Refusal: answer the tenant, execute nothing
//! ```
//!
//! A reservation keeps two concurrent allocations from passing the quota together; a pin keeps memory
//! charged while a second reference to it is being made and a third thread frees the first. Both are
//! plain tokens: the ledger cannot see one being dropped, so every path of the caller must hand it back.
//!
//! # Order
//!
//! Calls that change the handles of one client (alloc, dup into it, free) and the ranges of one uvm file
//! (map, unmap) must reach the ledger in the order in which the driver executed them: a free that is
//! recorded after the handle was made anew would uncharge the new object. The caller therefore holds one
//! lock per client and per uvm file (or one per container) from execution to record. Only *success of the
//! driver* may be recorded; a record made of a tenant's words alone could uncharge what is still held. The
//! one exception is [`Ledger::add_unconfirmed`], which can only add an uncharged object.
//!
//! # As data
//!
//! Every change is also an [`Operation`], a value that can be written down: [`Ledger::apply`] does what the
//! method of the same name does. The same operations in the same order make the same ledger, token for
//! token, and the whole ledger can be written down as well (serde), so a log of both is enough to have it
//! back after its owner was killed.
//!
//! When a record contradicts what is held (a handle that exists already), the driver is right: the old
//! object must be gone, and it is freed from the ledger first.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![deny(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm
)]

mod accounts;
mod charge;
mod counting;
mod counts;
mod held;
mod identity;
mod invariants;
mod kinds;
mod ledger;
mod lookups;
mod managed;
mod managed_pieces;
mod mappings;
mod objects;
mod operations;
mod references;
mod refusal;
mod registrations;
mod snapshot;
pub mod steps;
mod tree;
mod usage;

pub use accounts::Allocation;
pub use charge::{Demand, Purpose};
pub use counts::Limits;
pub use held::{Registered, Unregistered};
pub use identity::{AllocationId, CardSlot, ClientHandle, FileId, ObjectHandle, ProcessId};
pub use invariants::Discrepancy;
pub use kinds::{Counted, ObjectKind};
pub use ledger::{Freed, Ledger, Pin, PinFor, Reservation};
pub use managed::ManagedSpan;
pub use mappings::Span;
pub use objects::{Actual, NewObject, Place, Recorded};
pub use operations::{Applied, Operation, PinToken, ReservationToken};
pub use references::{Adopted, Exported};
pub use refusal::Refusal;
pub use snapshot::{CardUsage, Snapshot};
pub use tree::Object;
pub use usage::ProcessUsage;
