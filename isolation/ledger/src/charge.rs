//! Bytes of a card, and what they are for.

use crate::identity::{CardSlot, ProcessId};

/// What an allocation is for; the driver's own per-process figures contain the first only.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum Purpose {
    /// Memory that the tenant asked for by size.
    Memory,
    /// Memory that the driver takes by itself (context buffers, instance memory, pages of managed memory).
    Context,
}

/// Device memory that a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Demand {
    /// The card it comes from.
    pub card: CardSlot,
    /// How much, rounded up as the driver would.
    pub bytes: u64,
    /// What it is for.
    pub purpose: Purpose,
}

/// What is held of a card, and on whose behalf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    pub(crate) card: CardSlot,
    pub(crate) bytes: u64,
    pub(crate) purpose: Purpose,
    pub(crate) process: ProcessId,
}

/// A wide sum as the interface shows it: at the type's end where it does not fit.
pub(crate) fn narrow(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
