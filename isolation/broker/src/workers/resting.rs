//! How threads rest, and are called.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use sys::sync;

use super::BUSY_TICKS;

/// Threads that have nothing to do until a call blocks, or there is more at once.
#[derive(Debug, Default)]
pub(super) struct Resting {
    state: Mutex<Rest>,
    pub(super) changed: Condvar,
    /// Whether one of them looks at each tick.
    pub(super) is_awake: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Rest {
    pub(super) resting: usize,
    /// So many of them are to wait, and count for it.
    pub(super) called: usize,
    /// Whether one of them looks, for all.
    pub(super) looks: bool,
    /// Ticks since a call was found to wait.
    pub(super) calm: u32,
}

impl Rest {
    pub(super) fn one_more_rests(&mut self) {
        self.resting = self.resting.saturating_add(1);
    }

    pub(super) fn one_less_rests(&mut self) {
        self.resting = self.resting.saturating_sub(1);
    }
}

/// Nobody is expected to wait before somebody did.
impl Default for Rest {
    fn default() -> Self {
        Self {
            resting: 0,
            called: 0,
            looks: false,
            calm: BUSY_TICKS,
        }
    }
}

impl Resting {
    /// Has one of them look; it costs the call something only where none did for a while.
    pub(super) fn wake(&self) {
        if !self.is_awake.load(Ordering::SeqCst) && !self.is_awake.swap(true, Ordering::SeqCst) {
            // One that has just found nothing to do holds this until it waits.
            drop(self.state());
            self.changed.notify_one();
        }
    }

    /// The session is marked as dead before.
    pub(super) fn end(&self) {
        drop(self.state());
        self.changed.notify_all();
    }

    pub(super) fn state(&self) -> MutexGuard<'_, Rest> {
        sync::lock(&self.state)
    }

    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, Rest>) -> MutexGuard<'a, Rest> {
        sync::wait(&self.changed, state)
    }

    pub(super) fn wait_for<'a>(
        &self,
        state: MutexGuard<'a, Rest>,
        most: Duration,
    ) -> MutexGuard<'a, Rest> {
        sync::wait_for(&self.changed, state, most)
    }
}
