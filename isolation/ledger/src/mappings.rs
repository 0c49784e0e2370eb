//! External mappings of one uvm file on one card: disjoint pieces of address space, each with a reference.

use std::collections::BTreeMap;

use crate::identity::AllocationId;
use crate::steps::Stepped;

/// A piece of address space that is not empty and does not pass the end of it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Span {
    base: u64,
    last: u64,
}

impl Span {
    /// None when `length_bytes` is 0 or the span would wrap: refuse such a call before it is executed.
    #[must_use]
    pub fn new(base: u64, length_bytes: u64) -> Option<Self> {
        let last = base.checked_add(length_bytes.checked_sub(1)?)?;
        Some(Self { base, last })
    }

    /// From one address to another, both within the span.
    pub(crate) fn between(base: u64, last: u64) -> Option<Self> {
        (base <= last).then_some(Self { base, last })
    }

    /// The first address.
    #[must_use]
    pub fn base(self) -> u64 {
        self.base
    }

    /// The last address, itself within the span.
    #[must_use]
    pub fn last(self) -> u64 {
        self.last
    }

    /// How long it is, bytes.
    #[must_use]
    pub fn length_bytes(self) -> u64 {
        self.last.saturating_sub(self.base).saturating_add(1)
    }
}

/// What a change of pieces does to references. All of `Retain` come before any `Release` of the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Retain(AllocationId),
    Release(AllocationId),
}

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Piece {
    pub(crate) last: u64,
    /// None for memory that is not on a card: it takes its place but holds nothing.
    pub(crate) allocation: Option<AllocationId>,
}

/// Pieces by first address; no two overlap.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Pieces(BTreeMap<u64, Piece>);

impl Pieces {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Piece)> {
        self.0.iter().map(|(base, piece)| (*base, piece))
    }

    /// The piece that starts at `base`, as a span.
    pub(crate) fn starting_at(&self, base: u64) -> Option<Span> {
        self.0.get(&base).map(|piece| Span {
            base,
            last: piece.last,
        })
    }

    /// Puts a piece in. The caller has cut its span out.
    pub(crate) fn insert(&mut self, span: Span, allocation: Option<AllocationId>) {
        self.0.insert(
            span.base,
            Piece {
                last: span.last,
                allocation,
            },
        );
    }

    /// Whether taking a span out leaves one piece more than there is.
    pub(crate) fn is_split_by(&self, span: Span) -> bool {
        let below = self.0.range(..span.base).next_back();
        below.is_some_and(|(_, piece)| piece.last > span.last)
    }

    /// Takes a span out: pieces within it go, pieces that reach over an edge of it are shortened, and one
    /// that reaches over both is split, each half with a reference of its own.
    pub(crate) fn cut(&mut self, span: Span) -> Vec<Change> {
        let touched: Vec<(u64, Piece)> = self
            .0
            .range(..=span.last)
            .rev()
            .take_while(|(_, piece)| piece.last >= span.base)
            .map(|(base, piece)| (*base, *piece))
            .stepped()
            .collect();
        let mut changes = Vec::new();
        for (base, piece) in touched {
            self.0.remove(&base);
            let mut left = 0_u8;
            if base < span.base {
                let last = span.base.saturating_sub(1);
                self.0.insert(base, Piece { last, ..piece });
                left = left.saturating_add(1);
            }
            if piece.last > span.last {
                self.0.insert(span.last.saturating_add(1), piece);
                left = left.saturating_add(1);
            }
            if let Some(id) = piece.allocation {
                match left {
                    0 => changes.push(Change::Release(id)),
                    1 => {}
                    _ => changes.push(Change::Retain(id)),
                }
            }
        }
        changes
    }
}
