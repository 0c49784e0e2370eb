//! Whether the process that makes the container's calls answers: the executor of strict mode, or the simulator.
//!
//! Calls fail with EIO, and quota and grant stay as they are. Neither can be replaced for a container that runs: the driver binds the
//! container's clients to the executor, and a simulator that is started anew has none of its objects.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{EventKind, told};
use crate::container::Container;

/// What was reported last.
#[derive(Debug, Default)]
pub(super) struct Reach {
    is_lost: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Reach {
    /// For the status: why the driver cannot be reached.
    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes note of how a request to the driver ended, and reports a change.
pub(super) fn take<T>(container: &Container, result: &Result<T, driver::Error>) {
    let reach = &container.health.reach;
    match result {
        Err(error) if error.is_unreachable() => {
            let why = told(error);
            let mut reported = reach.lock();
            let before = reported.replace(why.clone());
            reach.is_lost.store(true, Ordering::SeqCst);
            drop(reported);
            if before.is_none() {
                let text =
                    format!("calls fail with EIO until the container is started again: {why}");
                let health = &container.health;
                health.tell(container, EventKind::DriverUnreachable, text);
            }
        }
        Ok(_) if reach.is_lost.load(Ordering::Relaxed) => {
            let mut reported = reach.lock();
            let before = reported.take();
            reach.is_lost.store(false, Ordering::SeqCst);
            drop(reported);
            if let Some(why) = before {
                let text = format!("the driver answers again; before: {why}");
                let health = &container.health;
                health.tell(container, EventKind::DriverReachable, text);
            }
        }
        Ok(_) | Err(_) => {}
    }
}
