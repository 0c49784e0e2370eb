//! Holds one container to its share of its cards' time: the governor, the levers it pulls, and the table it shares with its peers.
//!
//! ```text
//! slots of all live containers ──▶ plan ──▶ governor ──Action──▶ whoever has a clock and a driver
//!                                             ▲  └───────────── Event ◀──────────┘
//! ```
//!
//! The governor does no I/O and reads no clock: the broker runs it in real time with the driver behind it, the experiments in
//! virtual time with a simulated card. It must not know ioctls, handles' meanings or containers.

#![forbid(unsafe_code)]

pub mod governor;
pub mod lever;
pub mod status;
pub mod table;
pub mod tier;
pub mod world;

pub use governor::{Fail, Governor, Setup};
pub use lever::{Channel, Engine, Group, Lever, LeverError, Objects};
pub use status::{Counts, Gate, Latency, Status};
pub use table::{Table, TableError};
pub use tier::{Reason, Tier};
pub use world::{Action, Event, Surroundings, Used};

/// No gate stays closed for longer, whatever the table says.
pub const CLOSED_MAX_NS: u64 = 2_000_000_000;
