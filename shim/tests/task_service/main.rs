//! The program itself, driven as containerd drives it: `start`, then the Task service over ttrpc, with the real runc.

mod engine;
mod exits;
mod faults;
#[path = "../harness/mod.rs"]
mod harness;
mod life;
#[path = "../harness/refusal.rs"]
mod refusal;
mod soak;
mod start;
mod streams;

/// The program under test.
const SHIM: &str = env!("CARGO_BIN_EXE_containerd-shim-cgpu-v2");
