//! The calls that do not come back from the driver.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The calls that hang, by call slot.
#[derive(Debug, Default)]
pub(crate) struct Hung(Mutex<HashMap<u32, Known>>);

/// A call that hangs.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) since_ms: u64,
    pub(crate) what: String,
}

impl Hung {
    /// How many.
    pub(crate) fn count(&self) -> u64 {
        u64::try_from(self.lock().len()).unwrap_or(u64::MAX)
    }

    /// All of them.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<u32, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
