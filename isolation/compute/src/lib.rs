//! Holds one container to its share of its cards' time: the governor, the knobs it pulls, and the table it shares with its peers.
//!
//! ```text
//! records of all live containers ──▶ plan ──▶ governor ──Action──▶ whoever has a clock and a driver
//!                                             ▲  └───────────── Event ◀──────────┘
//! ```
//!
//! The governor does no I/O and reads no clock: the broker runs it in real time with the driver behind it, the experiments in
//! virtual time with a simulated card. It must not know ioctls, handles' meanings or containers.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

mod appeal;
pub mod breaker;
mod card;
mod carry_over;
mod channel_states;
mod cycle;
pub mod file_table;
pub mod files;
pub mod governor;
pub mod knob;
pub mod latency;
mod lateness;
mod peers;
pub mod probe;
pub mod reason;
mod roster;
mod settings;
pub mod setup;
pub mod status;
pub mod table;
#[cfg(test)]
mod tests;
mod usage;
mod view;
pub mod watchdog;
pub mod world;

pub use file_table::FileTable;
pub use governor::Governor;
pub use knob::{Answer, Channel, Engine, Group, Knob, KnobError, Objects, Spent};
pub use plan::EnforcementLevel;
pub use probe::{Found, try_knobs};
pub use reason::Reason;
pub use setup::{Fail, Setup};
pub use status::{Counts, GateStatus, Latency, Status};
pub use table::{Changes, Owner, Seen, Table, TableError, counts_alike};
pub use world::{Action, Confirmed, Environment, Event, Used};

/// No gate stays closed for longer, whatever the table says.
pub const CLOSED_MAX_NS: u64 = 2_000_000_000;
