//! The slots of one card: one page per container, written by its owner alone and read by the others.

use std::fmt;

/// Bytes of a slot's page.
pub const PAGE_BYTES: usize = 4096;

/// What a table could not do. A governor goes on without: its own share holds, peers see it late or not.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A file operation failed.
    #[error("cannot {step} {path}")]
    Io {
        /// What was being done.
        step: &'static str,
        /// To which file.
        path: std::path::PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// The slots of one card, as one of its containers has them.
pub trait Table: fmt::Debug {
    /// Writes the container's own page.
    ///
    /// # Errors
    /// The page could not be written; the former one may stand, or be torn.
    fn publish(&mut self, page: &[u8; PAGE_BYTES]) -> Result<(), TableError>;
}
