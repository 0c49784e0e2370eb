//! The simulated runlist.

mod engine;
mod invariants;
mod native;
mod world;
