//! What a container asks for, in one form whatever the dialect.

use cards::ComputeTerms;
use cards::placement::Wish;

/// A request, before cards are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Memory, cards, and how they are chosen.
    pub wish: Wish,
    /// Share of the cards' time.
    pub compute: ComputeTerms,
}
