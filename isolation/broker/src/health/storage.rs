//! Whether the container's folder takes what is written there.

use std::sync::Mutex;

use sys::sync;

use super::Events;

/// What was reported last.
#[derive(Debug, Default)]
pub(crate) struct Storage(Mutex<Option<String>>);

/// Why something could not be written, and has not been since.
pub(crate) fn trouble(events: &Events) -> Option<String> {
    events.trouble().or_else(logfile::trouble)
}

impl Storage {
    /// Keeps what is known now, and gives what was known before.
    pub(crate) fn replace(&self, now: Option<String>) -> Option<String> {
        let mut last = sync::lock(&self.0);
        std::mem::replace(&mut *last, now)
    }
}
