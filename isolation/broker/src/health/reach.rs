//! Whether the process that makes the container's calls answers.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

/// What was reported last.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    pub(crate) is_lost: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Reach {
    /// For the status: why the driver cannot be reached.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.lock().clone()
    }

    /// Why.
    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
