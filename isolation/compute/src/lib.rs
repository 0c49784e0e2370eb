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

pub mod lever;

pub use lever::{Channel, Engine, Group, Lever, LeverError, Objects};
