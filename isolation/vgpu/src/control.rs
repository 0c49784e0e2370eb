//! Asking a broker: one line of JSON to its control socket, one line back.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// A broker answers within microseconds unless it hangs; `list` must not hang with it.
const PATIENCE: Duration = Duration::from_millis(500);

/// A status is a few KiB.
const ANSWER_MAX_BYTES: u64 = 1 << 20;

/// The broker's status; nothing if it does not answer, or not in time.
pub(crate) fn status(socket: &Path) -> Option<Value> {
    ask(socket, &json!({"op": "status"}))
        .inspect_err(|error| tracing::debug!(%error, socket = %socket.display(), "no status"))
        .ok()
}

/// The broker's answer to a request.
///
/// # Errors
/// The system's; it is not known then whether the broker has done it.
pub(crate) fn ask(socket: &Path, request: &Value) -> std::io::Result<Value> {
    ask_for(socket, request, PATIENCE)
}

/// [`ask`], with another patience.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_for(
    socket: &Path,
    request: &Value,
    patience: Duration,
) -> std::io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream.take(ANSWER_MAX_BYTES)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}
