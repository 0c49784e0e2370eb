//! The calls that a broker finishes before it hands over.
//!
//! An executor and a simulator remember what they have answered, so that a successor asks for a call again and it is made once. In compat mode
//! the broker's own thread makes the call, and the driver's answer ends with the thread: a successor could only make it again. So such a broker
//! begins no further call once it hands over, and waits for those that it has begun.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use driver::Binding;
use journal::{Change, Journal};
use supervisor::LONGEST_CALL;

/// How often it is looked whether calls have ended.
const LOOK: Duration = Duration::from_micros(200);
/// How often a call that may not begin looks whether it may.
const HELD_UP: Duration = Duration::from_millis(20);

/// Whether calls still begin.
#[derive(Debug, Default)]
pub(crate) struct LastCalls {
    has_begun_its_last: AtomicBool,
}

impl LastCalls {
    /// The journal, for a call that is about to begin. Once the last call has begun it comes back only where this broker serves on
    /// ([`LastCalls::go_on`]): what has not begun is served by the next broker as if nobody had taken it, and this process ends.
    pub(crate) fn begin<'a>(&self, journal: &'a Journal) -> Change<'a> {
        loop {
            let change = journal.change();
            // Set before it was looked, under the journal's lock, what is under way.
            if !self.has_begun_its_last.load(Ordering::SeqCst) {
                return change;
            }
            drop(change);
            std::thread::sleep(HELD_UP);
        }
    }

    /// Calls begin again.
    pub(crate) fn go_on(&self) {
        self.has_begun_its_last.store(false, Ordering::SeqCst);
    }

    /// Waits for calls under way for so long; where this process makes them, for those that were begun as long as an upgrade waits for any, and no
    /// other begins then.
    pub(crate) fn finish(
        &self,
        (journal, binding): (&Journal, Binding),
        patience: Duration,
        are_busy: impl Fn() -> bool,
    ) {
        let makes_calls = binding == Binding::Caller;
        if makes_calls {
            self.has_begun_its_last.store(true, Ordering::SeqCst);
        }
        let began = Instant::now();
        loop {
            let is_busy = are_busy();
            // Of a former broker's call there may be no session.
            let most = match makes_calls && has_unfinished(journal) {
                true => LONGEST_CALL,
                false if is_busy => patience,
                false => return,
            };
            if began.elapsed() >= most {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Whether the driver has a call, or is about to, whose answer is not in the journal.
fn has_unfinished(journal: &Journal) -> bool {
    let state = journal.change();
    state.open().any(|(_, open)| open.finished.is_none())
}
