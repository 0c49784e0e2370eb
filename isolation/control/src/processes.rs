//! Who of a container holds how much.

use serde::{Deserialize, Serialize};

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// In the host's pid namespace.
    pub pid: i32,
    /// The program's name.
    pub name: String,
    /// By card.
    pub cards: Vec<ProcessCard>,
}

/// What a process has allocated on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessCard {
    /// `GPU-…`
    pub uuid: String,
    /// Bytes.
    pub used_bytes: u64,
}

/// What is held by processes that are not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Folded {
    /// Processes that live.
    pub living: Vec<FoldedCard>,
    /// Processes that have ended: others have their files. And those that were not looked up.
    pub ended: Vec<FoldedCard>,
}

/// What several processes hold of a card.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldedCard {
    /// `GPU-…`
    pub uuid: String,
    /// Bytes.
    pub used_bytes: u64,
    /// How many.
    pub processes: u64,
}
