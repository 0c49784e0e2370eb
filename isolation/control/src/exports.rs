//! One broker's question to another broker of its share group, and the answer.

use serde::{Deserialize, Serialize};

/// What a broker asks another one: what its container has exported by the file that is under a number in the asking process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportsOf {
    /// The asking process's number.
    pub fd: i32,
    /// The share group that its container names.
    pub group: String,
}

/// The answer to [`ExportsOf`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerExports {
    /// Empty: the file is none by which the container has exported, or the group is another.
    pub exports: Vec<PeerExport>,
}

/// An object that a container has exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerExport {
    /// The place in the file's list.
    pub index: u32,
    /// The driver's class number.
    pub class: u32,
    /// The memory; `None` for what is on no card.
    pub memory: Option<PeerMemory>,
    /// By which the exporter knows it; never used again for other memory.
    pub origin: u64,
}

/// In the place of a card: the host's memory.
pub const HOST: &str = "host";

/// Card memory of another container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerMemory {
    /// `GPU-…`, or [`HOST`].
    pub card: String,
    /// Bytes.
    pub bytes: u64,
}
