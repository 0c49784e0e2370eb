//! What is asked and answered: one JSON document each way.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A hard limit that limits nothing: the value of `NVML_DEVICE_MEMORY_LIMIT_MAX`.
pub const UNLIMITED_BYTES: u64 = u64::MAX;

/// One question to the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The library; absent: what the linker finds for `libnvidia-ml.so.1`.
    pub library: Option<PathBuf>,
    /// What is to be done.
    pub what: What,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum What {
    /// Says whether limits could be set on these cards. Changes nothing.
    Probe {
        /// The cards' UUIDs.
        cards: Vec<String>,
    },
    /// Sets limits, and reads each back.
    Set {
        /// Full path of the cgroup's folder.
        cgroup: PathBuf,
        /// One a card.
        cards: Vec<CardLimit>,
    },
    /// Reads limits.
    Get {
        /// Full path of the cgroup's folder.
        cgroup: PathBuf,
        /// The cards' UUIDs.
        cards: Vec<String>,
    },
}

/// A card's limits for one cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardLimit {
    /// `GPU-…`
    pub uuid: String,
    /// Guaranteed.
    pub soft_bytes: u64,
    /// The most; [`UNLIMITED_BYTES`]: no limit.
    pub hard_bytes: u64,
}

/// A card's limits as they stand, and what is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardUse {
    /// The limits; none: soft 0, hard [`UNLIMITED_BYTES`].
    pub limit: CardLimit,
    /// Held now, by the driver's own count.
    pub used_bytes: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Limits can be set.
    Offered {
        /// The driver that would hold them.
        driver_version: String,
    },
    /// The limits stand as asked: each was read back.
    Set,
    /// The limits as they stand.
    Found {
        /// In the order of the question.
        cards: Vec<CardUse>,
    },
    /// It was not done.
    Refused {
        /// Why.
        refusal: Refusal,
    },
}

/// Why it was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// Only root may set limits.
    #[error("only root may set the driver's memory limits")]
    NotRoot,
    /// A library that others can change: it would run as root.
    #[error("{} must be an absolute path to a file of root's that no other can write", path.display())]
    Untrusted {
        /// The library.
        path: PathBuf,
    },
    /// It cannot be loaded, or does not start.
    #[error("{library} cannot be used: {reason}")]
    Library {
        /// Which.
        library: String,
        /// The linker's words, or NVML's.
        reason: String,
    },
    /// The library is older than the interface.
    #[error(
        "not offered by this driver: version {driver_version} has no {function} (R615 and later do)"
    )]
    NoFunction {
        /// The loaded driver.
        driver_version: String,
        /// What it lacks.
        function: String,
    },
    /// No such card.
    #[error("no card {uuid}: {reason}")]
    NoCard {
        /// `GPU-…`
        uuid: String,
        /// NVML's words.
        reason: String,
    },
    /// The driver has no limits for parts of a card.
    #[error("card {uuid} is divided by MIG: the driver limits whole cards only")]
    Mig {
        /// `GPU-…`
        uuid: String,
    },
    /// A path that no call can carry.
    #[error("{} is no path of a cgroup", path.display())]
    Cgroup {
        /// The path.
        path: PathBuf,
    },
    /// The driver did not set it. Limits of cards named earlier may stand.
    #[error("the driver does not set the limit of card {uuid} on {}: {reason}", cgroup.display())]
    Set {
        /// `GPU-…`
        uuid: String,
        /// The cgroup.
        cgroup: PathBuf,
        /// NVML's words.
        reason: String,
    },
    /// The driver does not say what is set.
    #[error("the driver does not say the limit of card {uuid} on {}: {reason}", cgroup.display())]
    Get {
        /// `GPU-…`
        uuid: String,
        /// The cgroup.
        cgroup: PathBuf,
        /// NVML's words.
        reason: String,
    },
    /// The driver set something else.
    #[error(
        "the driver took soft {} and hard {} bytes for card {} on {} and holds soft {} and hard {}",
        requested.soft_bytes, requested.hard_bytes, requested.uuid, cgroup.display(), found.soft_bytes, found.hard_bytes
    )]
    ReadBack {
        /// The cgroup.
        cgroup: PathBuf,
        /// What was asked for.
        requested: CardLimit,
        /// What stands.
        found: CardLimit,
    },
}
