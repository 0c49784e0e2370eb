//! Calls that do not come back from the driver.
//!
//! Every thread writes in the shared state when its call goes to the driver. A call that has been there for too long is reported once, in
//! whichever broker's life, and its end as well. Nothing else comes of it: other calls have threads of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use journal::Journal;
use journal::shared_state::{AtDriver, SharedState, now_ms};
use nvabi::Release;
use sys::sync;

use crate::files::surface;

/// The calls that hang.
#[derive(Debug)]
pub(crate) struct Hung {
    shared_state: Arc<SharedState>,
    journal: Arc<Journal>,
    release: Release,
    /// By call slot.
    known: Mutex<HashMap<u32, Known>>,
}

/// A call that hangs.
#[derive(Debug)]
struct Known {
    since_ms: u64,
    what: String,
}

/// What is to be reported of a call.
#[derive(Debug)]
pub(super) enum Change {
    /// It has been at the driver for too long.
    Hangs(String),
    /// It has come back.
    IsBack(String),
}

impl Hung {
    /// The calls of a container that hang; none is known yet.
    pub(super) fn new(
        shared_state: Arc<SharedState>,
        journal: Arc<Journal>,
        release: Release,
    ) -> Self {
        Self {
            shared_state,
            journal,
            release,
            known: Mutex::default(),
        }
    }

    /// How many.
    pub(crate) fn count(&self) -> u64 {
        u64::try_from(sync::lock(&self.known).len()).unwrap_or(u64::MAX)
    }

    /// Looks for calls that have been at the driver for so long, and for the end of those that are known.
    pub(super) fn look(&self, limit: Duration) -> Vec<Change> {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let now_ms = now_ms();
        let hanging: Vec<AtDriver> = self
            .shared_state
            .at_driver()
            .into_iter()
            .filter(|call| now_ms.saturating_sub(call.since_ms) >= limit_ms)
            .collect();
        let mut known = sync::lock(&self.known);
        let over: Vec<u32> = known
            .iter()
            .filter(|(call_slot, known)| {
                let is_same = |call: &AtDriver| {
                    call.call_slot == **call_slot && call.since_ms == known.since_ms
                };
                !hanging.iter().any(is_same)
            })
            .map(|(call_slot, _)| *call_slot)
            .collect();
        let mut reported = Vec::new();
        for call_slot in over {
            if let Some(Known { since_ms, what }) = known.remove(&call_slot) {
                reported.push(Change::IsBack(over_text(&what, since_ms)));
            }
        }
        for call in hanging {
            if known.contains_key(&call.call_slot) {
                continue;
            }
            let what = self.name_of(call.call_slot);
            if !call.is_reported {
                self.shared_state
                    .set_reported(call.call_slot, call.since_ms);
                let ms = now_ms.saturating_sub(call.since_ms);
                let text = format!("{what} has not come back from the driver for {ms} ms");
                reported.push(Change::Hangs(text));
            }
            let since_ms = call.since_ms;
            known.insert(call.call_slot, Known { since_ms, what });
        }
        reported
    }

    /// A call slot's call has come back. The text, where somebody was told of it, maybe by a former broker.
    pub(super) fn is_back(&self, call_slot: u32) -> Option<String> {
        let since_ms = self.shared_state.is_back(call_slot)?;
        let known = {
            let mut known = sync::lock(&self.known);
            known.remove(&call_slot)
        };
        let what = known.map_or_else(|| self.name_of(call_slot), |known| known.what);
        Some(over_text(&what, since_ms))
    }

    fn name_of(&self, call_slot: u32) -> String {
        let change = self.journal.change();
        match change.open_in(call_slot) {
            Some(open) => {
                let begun = &open.begun;
                let op = verdict::op(surface(begun.kind), begun.cmd, self.release);
                let name = op.map_or_else(
                    |_unknown| format!("ioctl {:#x}", begun.cmd),
                    |op| op.name().to_owned(),
                );
                format!("{name} of process {}", begun.caller.tgid)
            }
            None => "a call".to_owned(),
        }
    }
}

fn over_text(what: &str, since_ms: u64) -> String {
    let ms = now_ms().saturating_sub(since_ms);
    format!("{what} has come back from the driver after {ms} ms")
}
