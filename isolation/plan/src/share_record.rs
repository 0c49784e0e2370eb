//! One broker's record in the table of a card: what its peers must know of it, as 4 KiB of bytes.
//!
//! Its owner alone writes it. A reader takes a copy and believes nothing: a record that was caught between two states, is of another
//! version, or says what cannot be, is an error about that record and about no other.

use serde::{Deserialize, Serialize};

use crate::enforcement_level::EnforcementLevel;
use crate::layout::{Gang, Tenant};
use crate::terms::{Terms, TermsError};

mod bytes;

/// Bytes of a record.
pub const SIZE_BYTES: usize = 4096;
/// Version of the format.
pub const VERSION: u32 = 1;
/// The longest key, bytes: a file name.
pub const KEY_MAX_BYTES: usize = 255;
/// The most RM clients that a record can name.
pub const CLIENTS_MAX: usize = 40;
/// The most channels that a record can name. A container with more cannot be gated: no one could open it again.
pub const CHANNELS_MAX: usize = 256;
/// The most channel groups that a record may claim.
pub const GROUPS_MAX: u32 = 4096;

/// Everything that a broker says about its container on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareRecord {
    /// Which container: the name of the record's file.
    pub key: String,
    /// Rises with every broker that holds the record.
    pub generation: u64,
    /// The broker.
    pub pid: u32,
    /// When that process started, clock ticks since boot: a pid alone may be another's by now.
    pub start_time: u64,
    /// When the record was first taken.
    pub join_ns: u64,
    /// What the container counts as; `None` while it does not count yet.
    pub now: Option<Claim>,
    /// What it will count as.
    pub next: Option<Next>,
    /// Published before the gate is touched.
    pub gate: GateState,
    /// Since when.
    pub gate_since_ns: u64,
    /// Until when the container is known to have work; `None` where nothing senses it.
    pub busy_until_ns: Option<u64>,
    /// What the card's account says of the container at [`ShareRecord::used_at_ns`], where its share was even; `None` without an account. What it
    /// has had since, less what it was promised, is what a successor finds it ahead or behind by.
    pub used_ns: Option<u64>,
    /// `None` before it was probed.
    pub enforcement_level: Option<EnforcementLevel>,
    /// Measured time of one knob call.
    pub latency_ns: u64,
    /// What opens the gate if the broker dies.
    pub recovery: Recovery,
    /// When [`ShareRecord::used_ns`] was counted; 0 without an account.
    pub used_at_ns: u64,
    /// [`crate::DriftCorrection::bias_ns`], for a successor to go on with.
    pub bias_ns: i64,
}

/// What a container counts as in a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// What it was promised.
    pub terms: Terms,
    /// Its live channel groups on the graphics engine: 0 where it is not present.
    pub groups: u32,
    /// Where it has several cards.
    pub gang: Option<Gang>,
    /// See [`Tenant::place_ppm`].
    pub place_ppm: Option<u32>,
}

/// What a container will count as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// From this time on.
    pub at_ns: u64,
    /// As this.
    pub claim: Claim,
}

/// What a broker has last done to its container's channels, or is about to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateState {
    /// They run.
    #[default]
    Open = 0,
    /// They are kept off.
    Closed = 1,
    /// A knob did not answer.
    Unknown = 2,
}

/// Whom to open the gate for, and how to reach it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The container's first process.
    pub init_pid: u32,
    /// When it started, clock ticks since boot.
    pub init_start_time: u64,
    /// Its RM clients with channels on the card.
    pub clients: Vec<RecoveryClient>,
    /// Its channels on the graphics engine.
    pub channels: Vec<RecoveryChannel>,
}

/// An RM client and the open file that it came through. Process and file are hints, to be checked before use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecoveryClient {
    /// Handle of the client.
    pub client: u32,
    /// Handle of its subdevice object for the card, which gate calls go to.
    pub subdevice: u32,
    /// A process that has the file open.
    pub pid: u32,
    /// When it started, clock ticks since boot.
    pub start_time: u64,
    /// Its number there.
    pub fd: u32,
}

/// A channel to be enabled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecoveryChannel {
    /// Handle of its client.
    pub client: u32,
    /// Handle of the channel.
    pub handle: u32,
}

impl Claim {
    /// The container with this key and this claim.
    #[must_use]
    pub fn tenant(&self, key: &str, join_ns: u64) -> Tenant {
        Tenant {
            key: key.to_owned(),
            join_ns,
            gang: self.gang,
            terms: self.terms,
            groups: self.groups,
            place_ppm: self.place_ppm,
        }
    }
}

impl ShareRecord {
    /// A record that claims nothing yet.
    #[must_use]
    pub fn new(key: &str, pid: u32, start_time: u64, join_ns: u64) -> Self {
        Self {
            key: key.to_owned(),
            generation: 1,
            pid,
            start_time,
            join_ns,
            now: None,
            next: None,
            gate: GateState::Open,
            gate_since_ns: join_ns,
            busy_until_ns: None,
            used_ns: None,
            enforcement_level: None,
            latency_ns: 0,
            recovery: Recovery::default(),
            used_at_ns: 0,
            bias_ns: 0,
        }
    }

    /// What the container counts as at a time.
    #[must_use]
    pub fn claim_at(&self, at_ns: u64) -> Option<&Claim> {
        match &self.next {
            Some(next) if next.at_ns <= at_ns => Some(&next.claim),
            _ => self.now.as_ref(),
        }
    }

    /// The container at a time; `None` while it does not count yet.
    #[must_use]
    pub fn tenant_at(&self, at_ns: u64) -> Option<Tenant> {
        Some(self.claim_at(at_ns)?.tenant(&self.key, self.join_ns))
    }

    /// Whether the container is known to have work at this time; `None` where nothing senses it.
    #[must_use]
    pub fn busy_at(&self, at_ns: u64) -> Option<bool> {
        self.busy_until_ns.map(|until_ns| at_ns < until_ns)
    }

    /// Announces what the container will count as from `at_ns` on. What was announced before and has come about is what it
    /// counts as until then.
    ///
    /// # Errors
    /// Something else was announced and has not come about: peers reckon with it, so it stands.
    pub fn announce(&mut self, now_ns: u64, at_ns: u64, claim: Claim) -> Result<(), Pending> {
        if let Some(next) = self.next {
            if next.at_ns > now_ns {
                return Err(Pending { at_ns: next.at_ns });
            }
            self.now = Some(next.claim);
        }
        self.next = Some(Next { at_ns, claim });
        Ok(())
    }

    /// The record as it is in its file. `seq` is even and rises with every writing.
    ///
    /// # Errors
    /// Something does not fit: the key, or the number of clients, channels or groups.
    pub fn encode(&self, seq: u64) -> Result<Box<[u8; SIZE_BYTES]>, ShareRecordError> {
        bytes::encode(self, seq)
    }

    /// The record that these bytes are, and its `seq`.
    ///
    /// # Errors
    /// [`ShareRecordError::Torn`]: read again. All else: the record is none.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u64), ShareRecordError> {
        bytes::decode(bytes)
    }
}

/// A change that was announced before has not come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another change is announced for {at_ns}")]
pub struct Pending {
    /// When it will have.
    pub at_ns: u64,
}

/// Bytes that are no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShareRecordError {
    /// Not a record's size.
    #[error("{bytes} bytes; a share record has {SIZE_BYTES}")]
    Size {
        /// How many there are.
        bytes: usize,
    },
    /// Not made by cgpu.
    #[error("not a share record")]
    Foreign,
    /// Made by another cgpu: whoever joins beside it cannot know its layout.
    #[error("a share record of version {found}; this cgpu knows version {VERSION}")]
    Version {
        /// Theirs.
        found: u32,
    },
    /// Caught between two states, or damaged.
    #[error("a torn share record")]
    Torn,
    /// A field that cannot be.
    #[error("a share record with {field} = {value}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// Terms that cannot be.
    #[error("a share record with terms that cannot be: {0}")]
    Terms(TermsError),
    /// The key is not text, or empty.
    #[error("a share record without a name")]
    Name,
}
