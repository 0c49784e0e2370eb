//! How errors are written for people, and one that is none.

use std::error::Error;
use std::io;

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
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
