//! NVIDIA's own code as the referee of the simulated driver.
//!
//! What it does: compiles RM's resource server, unchanged, for user space; draws sequences of calls; plays each through it and through
//! the simulator; compares every status and the trees of objects at the end; shortens a sequence that differs.
//!
//! What it must not have: any of NVIDIA's text. The source tree is Debian's source package, fetched when the tests run, or one that
//! `CGPU_REFEREE_SOURCE` names. The programs in `harness/` are ours.
//!
//! ```text
//!   tree (Debian, or at hand) ─► gcc with harness/*.c ─► ResourceServer ┐
//!   Draw (seed, number) ─► Sequence ─────────────────────┬──────────────┤ lines equal?
//!                                                        └─► simulator  ┘    └─ no: shorten
//! ```
//!
//! [`Core`] is the same with the whole of RM's core, which takes minutes to compile and judges what is asked before anything of a card.
//!
//! Judged by the resource server is what it does by itself. Ours on both sides, and so not judged: the classes and which may be below which, that a
//! client is its file's (whether a call asks is judged), the rule of a policy by process, whose process a mapping is found for, and which objects a mapping may name as its device.
#![forbid(unsafe_code)]

mod compile;
mod contest;
mod core;
mod resource_server;
mod sequence;
mod simulator;
mod source;
mod talk;
mod tree;

pub use contest::{Contest, Difference, Referee, Tally};
pub use core::{
    CHIPS, Chip, Core, CoreWithCard, Device, Given, Kind, Made, Request, Requested, Size,
};
pub use resource_server::ResourceServer;
pub use sequence::{Call, Class, Handle, Sequence, What};
pub use source::{CORE_VARIABLE, Debian, SOURCE_VARIABLE, Tree};
