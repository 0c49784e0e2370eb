//! Cards and who holds which part of them.
//!
//! - [`inventory`]: the cards of this host, real (NVML) or simulated (a file that `cgpu-sim` writes).
//! - [`placement`]: which cards a request gets; pure.
//! - [`reservations`]: the durable account of every card's grants.
//! - [`grant`]: one container's placed request, which its broker is started from.
//! - [`reserved_time`]: what of a card's time is promised; [`rules`]: how it is divided.
//! - [`health`]: the cards that nothing may be placed on; [`modes`]: those that are set so that nobody can share them.
//! - [`events`]: what happened around containers and cards, for people; [`names`]: what people call a container.
//! - [`sockets`]: where a container's sockets are.
//! - [`store`]: the few file operations that durability needs, behind a trait so that tests can fail each of them.
//!
//! This crate must not know of engines, bundles, annotations or seccomp: a request arrives here as bytes and card names.
//!
//! A grant's life on disk, all under the one lock of [`lock::StateLock`]:
//!
//! ```text
//!   (nothing) --grant.json--> granted, not reserved --reserve--> reserved --roll back--> granted, not reserved --rmdir--> (nothing)
//! ```
//!
//! Reservations therefore never hold an entry whose container folder was not written first; what a crash leaves behind is
//! found by walking the folders and the reservations.
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

pub mod called;
mod checked_text;
pub mod claims;
pub mod cpu_time;
mod digest;
mod error;
pub mod events;
pub mod grant;
pub mod health;
pub mod identity;
pub mod inventory;
pub mod lock;
pub mod modes;
pub mod names;
pub mod names_file;
pub mod placement;
pub mod refusal;
pub mod reservations;
pub mod reserved_time;
pub mod rules;
pub mod sockets;
pub mod store;

pub use called::Called;
pub use cpu_time::CpuTime;
pub use digest::{digest, hexadecimal};
pub use error::Error;
pub use grant::{
    Backend, Capability, CardFigures, CardGrant, ComputeMode, ComputeTerms, DriverSpec, Frontend,
    FrontendKind, Grant, IoUring, Isolation, ManagedMemory, Mode, OnShareLost, OnViolation,
    RegisteredMemory, Watch, Weakness,
};
pub use health::CardHealth;
pub use identity::{ContainerKey, GpuUuid, NameError};
pub use inventory::{Card, Inventory, SimulatedInventory};
pub use modes::{Modes, Programs};
pub use names::{Name, Names, PodNames};
pub use plan::CardKind;
pub use reserved_time::{ReservedTime, TimeRefusal};
pub use rules::CardRules;
