//! Calls that were looked for and whose refusal nobody has seen yet.
//!
//! Before memory is refused, the broker looks for what the tenant has given up, and the call waits for that look: longer than a
//! timer's signals are apart. The program then repeats the call. If each repetition waited for a look of its own, the
//! program would never be told. So a call is looked for once, until its refusal is delivered.

use std::collections::HashSet;
use std::sync::Mutex;

use journal::state::CallKey;
use sys::sync;

/// Of threads that have ended one each may stay. Beyond these all are forgotten, and looked for again.
const MOST: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Looked(Mutex<HashSet<CallKey>>);

impl Looked {
    /// Whether a look for this call has ended, and its refusal has not been delivered since.
    #[must_use]
    pub fn has(&self, call: CallKey) -> bool {
        sync::lock(&self.0).contains(&call)
    }

    /// A look for this call has ended.
    pub fn record(&self, call: CallKey) {
        let mut calls = sync::lock(&self.0);
        if calls.len() >= MOST {
            calls.clear();
        }
        calls.insert(call);
    }

    /// The call has its answer: the next one of the same registers is another.
    pub fn forget(&self, call: CallKey) {
        let mut calls = sync::lock(&self.0);
        if !calls.is_empty() {
            calls.remove(&call);
        }
    }
}
