//! How errors are written for people, that of a file operation, and one that is none.

use std::error::Error;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct FileError {
    /// The verb: read, write, create, remove, lock.
    pub operation: &'static str,
    /// On what.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl FileError {
    /// Whether there is no such file.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// For `map_err` of a file operation.
pub fn failed(
    operation: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> FileError {
    move |source| FileError {
        operation,
        path: path.into(),
        source,
    }
}

/// An error and its sources on one line, as frontends hand it to their engines and as logs have it.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// What is not there need not be removed.
///
/// # Errors
/// Any other.
pub fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    absent_is_none(removed).map(|_removed| ())
}

/// What is not there is none.
///
/// # Errors
/// Any other.
pub fn absent_is_none<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// What is in a folder; nothing where the folder is absent.
///
/// # Errors
/// Any other.
pub fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    match absent_is_none(fs::read_dir(folder))? {
        Some(entries) => entries.collect(),
        None => Ok(Vec::new()),
    }
}
