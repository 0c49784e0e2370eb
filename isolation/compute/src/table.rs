//! The slots of one card: one page per container, written by its owner alone and read by the others.

use std::fmt;
use std::io;
use std::path::PathBuf;

use plan::{Page, PageError};

/// What a table could not do. A governor goes on without: its own share holds, and peers see it late or not at all.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A file operation failed.
    #[error("cannot {step} {path}")]
    Io {
        /// What was being done.
        step: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another broker of the container lives.
    #[error("slot {path} has an owner")]
    Held {
        /// The slot.
        path: PathBuf,
    },
    /// A peer speaks another version, so that no layout can be agreed upon.
    #[error("cannot join beside slot {path}")]
    Version {
        /// The peer's slot.
        path: PathBuf,
        /// Which version.
        #[source]
        source: PageError,
    },
    /// A page that its owner must not publish.
    #[error("slot {key} was not published")]
    Page {
        /// Whose.
        key: String,
        /// Why.
        #[source]
        source: PageError,
    },
}

/// The process that holds a slot.
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
    /// Whether what peers count as is other than at the last look: slots came or went, or announce other claims.
    pub changes: Changes,
    /// Files of living owners that are no pages, or were torn each time that they were read.
    pub bad_pages: u64,
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

/// The slots of one card, as one of its containers has them. Dropping a table is what a crash is: its page stays, without an owner.
pub trait Table: fmt::Debug {
    /// Who holds the slot.
    fn owner(&self) -> Owner;

    /// What the last owner left in the slot.
    fn left_behind(&self) -> Option<&Page>;

    /// Writes the container's own page.
    ///
    /// # Errors
    /// The page was not written; peers go on with the former one.
    fn publish(&mut self, page: &Page) -> Result<(), TableError>;

    /// Looks at the others' pages.
    ///
    /// # Errors
    /// The folder could not be read; what is known stays.
    fn refresh(&mut self) -> Result<Seen, TableError>;

    /// The pages of those who live, as of the last look, without the container's own.
    fn peers(&self) -> &[Page];

    /// Gives up the slot.
    ///
    /// # Errors
    /// The file could not be removed; it has no owner then.
    fn withdraw(&mut self) -> Result<(), TableError>;
}

/// Whether two pages of one owner mean the same to a layout.
pub(crate) fn counts_alike(one: &Page, other: &Page) -> bool {
    one.key == other.key
        && one.join_ns == other.join_ns
        && one.now == other.now
        && one.next == other.next
}
