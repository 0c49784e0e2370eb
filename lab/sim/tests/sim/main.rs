//! The simulated driver as its clients see it: one executable, since each would link the whole simulator.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is its failure")]

mod accounting;
mod calls;
mod controls;
mod exports;
mod generations;
mod hostile;
mod incidents;
mod managed;
mod pages;
mod rings;
mod server;
mod sharing;
mod tenant;
mod tickets;
mod tree;
mod wedge;
mod wire;
