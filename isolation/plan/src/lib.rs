//! What share of a card's time each container gets: the terms of all live containers → timeslices and wheel segments.
//!
//! Pure functions of what the slots say and of the time: every broker computes the same layout for itself, and no one leads.
//! It must not know drivers, files or clocks. Times are nanoseconds of one clock (CLOCK_MONOTONIC, or virtual time).

#![forbid(unsafe_code)]

pub mod rules;
pub mod terms;

pub use rules::{CardRules, Idle};
pub use terms::{Policy, Priority, Terms};
