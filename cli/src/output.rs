//! Standard output.

use std::io::{self, Write};

/// Writes a text and a line feed. A reader that has gone (`| head`) has seen what it wanted and is no error.
///
/// # Errors
/// The system's.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
