//! Standard output.

use std::io::{self, Write};

/// Who reads standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Whoever it is, is there.
    There,
    /// It has seen what it wanted (`| head`), and nothing more is to be written.
    Gone,
}

/// Writes a text and a line feed. A reader that has gone is no error.
///
/// # Errors
/// The system's.
pub fn print(text: &str) -> io::Result<Reader> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        other => other.map(|()| Reader::There),
    }
}
