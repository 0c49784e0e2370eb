//! What the node's agent and the plugin of `kubectl` both know of cgpu's objects in a cluster: their names, how amounts are written, and which
//! characters of other people's text are shown.
//!
//! Pure. It must not know of Kubernetes' API: the plugin has no part of the agent in it, and the agent none of the plugin.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

pub mod quantity;
pub mod text;

/// The DRA driver.
pub const DRIVER: &str = "gpu.cgpu.io";

/// The capacity of a device that is the card's memory, bytes.
pub const MEMORY: &str = "memory";

/// The capacity that is the card's time, percent.
pub const CORES: &str = "cores";

/// The capacity that is the number of containers that the card takes.
pub const SHARES: &str = "shares";

/// The attribute that has a card's UUID.
pub const UUID: &str = "uuid";
