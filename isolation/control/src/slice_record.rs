//! What a container can know of its share: the note that the host writes and a program inside reads.

use std::path::Path;

use plan::Terms;
use serde::{Deserialize, Serialize};

/// The newest note that is understood.
const VERSION: u32 = 1;

/// What the host says to a slice of its cards' time; the file is bound in beside the cards' nodes. One without cards says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRecord {
    version: u32,
    /// By card.
    pub cards: Vec<RecordedCard>,
}

/// What holds of one card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedCard {
    /// `GPU-…`
    pub uuid: String,
    /// What the container was promised of it.
    pub terms: Terms,
}

impl SliceRecord {
    /// The note of these cards.
    #[must_use]
    pub fn of(cards: Vec<RecordedCard>) -> Self {
        Self {
            version: VERSION,
            cards,
        }
    }

    /// Reads the note; a slice without one, and one that is not understood, say nothing. The host writes over it: a note that is
    /// read at that moment is read again.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let attempt = || -> Option<Self> {
            let text = std::fs::read(path).ok()?;
            serde_json::from_slice(&text).ok()
        };
        attempt()
            .or_else(attempt)
            .filter(|record| record.version == VERSION)
            .unwrap_or_default()
    }

    /// What holds of a card.
    #[must_use]
    pub fn terms(&self, uuid: &str) -> Option<&Terms> {
        let card = self.cards.iter().find(|card| card.uuid == uuid)?;
        Some(&card.terms)
    }
}
