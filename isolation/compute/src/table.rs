//! The records of one card: one record per container, written by its owner alone and read by the others.

use std::fmt;
use std::path::PathBuf;

use plan::{ShareRecord, ShareRecordError};

/// What a table could not do. A governor goes on without: its own share holds, and peers see it late or not at all.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] sys::FileError),
    /// Another broker of the container lives.
    #[error("share record {path} has an owner")]
    Held {
        /// The record.
        path: PathBuf,
    },
    /// A peer speaks another version, so that no layout can be agreed upon.
    #[error("cannot join beside share record {path}")]
    Version {
        /// The peer's record.
        path: PathBuf,
        /// Which version.
        #[source]
        source: ShareRecordError,
    },
    /// A record that its owner must not publish.
    #[error("share record {key} was not published")]
    ShareRecord {
        /// Whose.
        key: String,
        /// Why.
        #[source]
        source: ShareRecordError,
    },
}

/// The process that holds a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its pid.
    pub pid: u32,
    /// When it started, clock ticks since boot.
    pub start_time: u64,
}

/// What a look at the table has shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether what peers count as is other than at the last look: records came or went, or announce other claims.
    pub changes: Changes,
    /// Files of living owners that are no records, or were torn each time that they were read.
    pub bad_records: u64,
}

/// Whether something changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Changes {
    /// Something did.
    Some,
    /// Nothing did.
    #[default]
    None,
}

/// The records of one card, as one of its containers has them. Dropping a table is what a crash is: its record stays, without an owner.
pub trait Table: fmt::Debug {
    /// Who holds the record.
    fn owner(&self) -> Owner;

    /// What the last owner left in the record.
    fn left_behind(&self) -> Option<&ShareRecord>;

    /// Writes the container's own record.
    ///
    /// # Errors
    /// The record was not written; peers go on with the former one.
    fn publish(&mut self, record: &ShareRecord) -> Result<(), TableError>;

    /// Looks at the others' records.
    ///
    /// # Errors
    /// The folder could not be read; what is known stays.
    fn refresh(&mut self) -> Result<Seen, TableError>;

    /// The records of those who live, as of the last look, without the container's own.
    fn peers(&self) -> &[ShareRecord];

    /// Gives up the record.
    ///
    /// # Errors
    /// The file could not be removed; it has no owner then.
    fn withdraw(&mut self) -> Result<(), TableError>;
}

/// Whether two records of one owner mean the same to a layout.
#[must_use]
pub fn counts_alike(one: &ShareRecord, other: &ShareRecord) -> bool {
    one.key == other.key
        && one.join_ns == other.join_ns
        && one.now == other.now
        && one.next == other.next
}
