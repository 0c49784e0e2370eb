//! Whether the process that makes the container's calls answers: the executor of strict mode, or the simulator.
//!
//! Calls fail with EIO, and quota and grant stay as they are. The executor of a container cannot be replaced: the driver binds the
//! container's clients to it. A simulator that is started anew has none of the container's objects, and serves it once its programs
//! have closed the files that they had open.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use control::EventKind;
use driver::Binding;
use sys::sync;

/// What was reported last.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    is_lost: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Reach {
    /// For the status: why the driver cannot be reached.
    pub(crate) fn trouble(&self) -> Option<String> {
        sync::lock(&self.why).clone()
    }

    /// Takes note of how a request to the driver ended. A change is to be reported.
    pub(super) fn take<T>(
        &self,
        binding: Binding,
        result: &Result<T, driver::Error>,
    ) -> Option<(EventKind, String)> {
        match result {
            Err(error) if error.is_unreachable() => {
                let why = sys::chain(error);
                let before = {
                    let mut reported = sync::lock(&self.why);
                    let before = reported.replace(why.clone());
                    self.is_lost.store(true, Ordering::SeqCst);
                    before
                };
                if before.is_some() {
                    return None;
                }
                let end = match binding {
                    Binding::None => "its programs are started again beside a simulator that runs",
                    Binding::Executor | Binding::Caller => "the container is started again",
                };
                let text = format!("calls fail with EIO until {end}: {why}");
                Some((EventKind::DriverUnreachable, text))
            }
            Ok(_) if self.is_lost.load(Ordering::Relaxed) => {
                let before = {
                    let mut reported = sync::lock(&self.why);
                    let before = reported.take();
                    self.is_lost.store(false, Ordering::SeqCst);
                    before
                };
                let text = format!("the driver answers again; before: {}", before?);
                Some((EventKind::DriverReachable, text))
            }
            Ok(_) | Err(_) => None,
        }
    }
}
