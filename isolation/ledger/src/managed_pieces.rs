//! Pieces of managed memory, and what they are charged as.

use std::collections::BTreeMap;

use crate::charge::{Charge, Purpose};
use crate::identity::{CardSet, ProcessId};
use crate::mappings::Span;

/// Pieces by first address; no two overlap.
pub(crate) type ManagedPieces = BTreeMap<u64, ManagedPiece>;

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct ManagedPiece {
    pub(crate) last: u64,
    pub(crate) process: ProcessId,
    /// The cards that it may be on: it is charged on each of them.
    pub(crate) cards: CardSet,
}

impl ManagedPiece {
    /// What a piece that begins at `base` is charged as.
    pub(crate) fn charges(self, base: u64) -> impl Iterator<Item = Charge> {
        let bytes = Span::between(base, self.last).map_or(0, length);
        let charge = move |card| Charge {
            card,
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            purpose: Purpose::Context,
            process: self.process,
        };
        self.cards.iter().map(charge)
    }
}

pub(crate) fn length(span: Span) -> u128 {
    u128::from(span.last().saturating_sub(span.base())).saturating_add(1)
}
