//! Loads that allocate and hold.

use nix::sys::signal::{SigSet, Signal};
use rmclient::{Card, Form, Status};
use rmprogram::{Allocation, CardHeap, CardMemory, Error};
use serde_json::json;

use super::arguments::Path;
use super::{NO_MEMORY, Outcome};
use crate::JSON_VERSION;
use crate::size::human;

/// What to allocate.
#[derive(Debug, Clone, Copy)]
pub struct Needed {
    /// In all, bytes.
    pub total_bytes: u64,
    /// In pieces of so many bytes.
    pub chunk_bytes: u64,
    /// By which call.
    pub path: Path,
}

/// One allocation by the path asked for.
pub(crate) fn allocate_by(
    card: &Card<'_>,
    path: Path,
    size_bytes: u64,
) -> Result<Allocation, Error> {
    match path {
        Path::Short => card.allocate(Form::Short, size_bytes),
        Path::Long => card.allocate(Form::Long, size_bytes),
        Path::Heap => card.heap_allocate(size_bytes),
    }
}

/// Allocates until the whole is there or a piece is refused. The memory stays with the card's client.
#[must_use]
pub fn allocate(card: &Card<'_>, needed: &Needed) -> Outcome {
    let mut got = Got::default();
    while got.requested_bytes < needed.total_bytes && got.refused.is_none() {
        let left = needed.total_bytes - got.requested_bytes;
        got.take(card, needed.path, left.min(needed.chunk_bytes.max(1)));
    }
    got.outcome("alloc", Some(needed.total_bytes))
}

/// Allocates pieces until one is refused, then halves of it down to `smallest_bytes`.
#[must_use]
pub fn fill(card: &Card<'_>, chunk_bytes: u64, smallest_bytes: u64, path: Path) -> Outcome {
    let mut got = Got::default();
    let mut piece = chunk_bytes.max(1);
    loop {
        got.take(card, path, piece);
        match &got.refused {
            None => {}
            Some(error) if error.is_no_memory() && piece / 2 >= smallest_bytes.max(1) => {
                got.refused = None;
                piece /= 2;
            }
            Some(_) => break,
        }
    }
    let full = got.refused.as_ref().is_some_and(Error::is_no_memory);
    let mut outcome = got.outcome("fill", None);
    if full {
        outcome.code = 0;
    }
    outcome
}

/// SIGTERM and SIGINT, blocked so that they can be waited for.
///
/// # Errors
/// The system's.
pub fn ending_signals() -> nix::Result<SigSet> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block()?;
    Ok(signals)
}

#[derive(Debug, Default)]
struct Got {
    requested_bytes: u64,
    got_bytes: u64,
    pieces: u64,
    refused: Option<Error>,
}

impl Got {
    fn take(&mut self, card: &Card<'_>, path: Path, size_bytes: u64) {
        match allocate_by(card, path, size_bytes) {
            Ok(allocation) => {
                self.requested_bytes += size_bytes;
                self.got_bytes += allocation.bytes;
                self.pieces += 1;
            }
            Err(error) => self.refused = Some(error),
        }
    }

    fn outcome(self, load: &str, requested_bytes: Option<u64>) -> Outcome {
        let status = match &self.refused {
            None => Some(Status::OK),
            Some(error) => error.status(),
        };
        let error = self.refused.as_ref().map(ToString::to_string);
        let code = match &self.refused {
            None => 0,
            Some(error) if error.is_no_memory() => NO_MEMORY,
            Some(_) => 1,
        };
        let held = format!(
            "{load}: {} ({} bytes) in {} pieces",
            human(self.got_bytes),
            self.got_bytes,
            self.pieces
        );
        Outcome {
            text: match &error {
                None => held,
                Some(error) => format!("{held}, then {error}"),
            },
            json: json!({
                "version": JSON_VERSION,
                "load": load,
                "requested_bytes": requested_bytes,
                "got_bytes": self.got_bytes,
                "pieces": self.pieces,
                "status": status.and_then(Status::name),
                "status_code": status.map(|status| status.0),
                "error": error,
            }),
            code,
        }
    }
}
