//! What outlives a broker: the journal with the state that it describes, and the shared state beside it.
//!
//! - [`state`]: what is durable, as one value that changes by ops only; [`reservation`]: what the account holds ready for a call under way.
//! - [`Journal`]: every change of the state, in a memfd that the next broker reads.
//! - [`shared_state`]: which calls were received, the heartbeat and the [`counters`], in another memfd that needs no lock.
//! - [`limits`]: how much of anything there may be, so that the state at all limits fits into the journal.
//!
//! This crate must not know what a call means, who makes it or who executes it: it keeps what it is given.

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

pub mod counters;
mod journal;
pub mod limits;
pub mod reservation;
mod segments;
pub mod shared_state;
pub mod state;

pub use journal::{Change, Error, Journal, VERSION};
