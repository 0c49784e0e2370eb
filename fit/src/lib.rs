//! Whether claims fit the cards of a cluster's nodes, as the scheduler's allocator would have it, and whose pods would have to go for them.
//!
//! ```text
//!   ResourceSlices, allocations ──▶ cards ─┐
//!   claims, classes ──▶ needs ─────────────┼──▶ search: card by card ──▶ preempt: the fewest pods of lower priority
//!   nodes ─────────────────────────────────┘
//! ```
//!
//! Pure: objects in, verdicts out; of objects that tenants write what counts ([`lean`]). The plugin of `kubectl` explains by it, and the cluster's controller evicts by it. It must not know of a
//! connection, of a clock, or of a node's programs.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

pub mod cards;
pub mod lack;
pub mod lean;
pub mod needs;
pub mod nodes;
pub mod preempt;
pub mod search;
mod selector;
pub mod text;
mod toleration;

pub use toleration::tolerates;
