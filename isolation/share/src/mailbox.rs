//! What the rest of the broker tells the governor's thread.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use compute::Event;
use sys::clock::now_ns;
use sys::sync;

/// What the rest of the broker tells the thread.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    reported: Mutex<Reported>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Reported {
    objects: bool,
    terms: bool,
    stopping: bool,
    ending: bool,
    handing_over: bool,
    ended: bool,
}

/// A message to the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    Objects,
    Terms,
    Stop,
    End,
    HandOver,
}

impl Mailbox {
    pub(crate) fn tell(&self, what: Tell) {
        let mut reported = sync::lock(&self.reported);
        match what {
            Tell::Objects => reported.objects = true,
            Tell::Terms => reported.terms = true,
            Tell::Stop => reported.stopping = true,
            Tell::End => reported.ending = true,
            Tell::HandOver => reported.handing_over = true,
        }
        drop(reported);
        self.changed.notify_all();
    }

    /// Waits until the thread has ended; says whether it has.
    pub(crate) fn wait_for_end(&self, longest: Duration) -> bool {
        let until = Instant::now() + longest;
        let mut reported = sync::lock(&self.reported);
        while !reported.ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            reported = self.wait(reported, left);
        }
        true
    }

    pub(crate) fn is_handing_over(&self) -> bool {
        sync::lock(&self.reported).handing_over
    }

    /// The next event, no later than the time that is asked for.
    pub(crate) fn next(&self, at_ns: u64) -> Event {
        let mut reported = sync::lock(&self.reported);
        loop {
            if reported.handing_over {
                return Event::Woke;
            }
            if std::mem::take(&mut reported.stopping) {
                return Event::Stopping;
            }
            if std::mem::take(&mut reported.ending) {
                return Event::Ending;
            }
            if std::mem::take(&mut reported.terms) {
                return Event::TermsChanged;
            }
            if std::mem::take(&mut reported.objects) {
                return Event::ObjectsChanged;
            }
            let left = Duration::from_nanos(at_ns.saturating_sub(now_ns()));
            if left.is_zero() {
                return Event::Woke;
            }
            reported = self.wait(reported, left);
        }
    }

    pub(crate) fn end(&self) {
        sync::lock(&self.reported).ended = true;
        self.changed.notify_all();
    }

    fn wait<'a>(
        &'a self,
        reported: MutexGuard<'a, Reported>,
        longest: Duration,
    ) -> MutexGuard<'a, Reported> {
        sync::wait_for(&self.changed, reported, longest)
    }
}
