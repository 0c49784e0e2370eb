//! How many threads a listener has, and which.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use sys::signal::ThreadId;
use sys::sync;

use super::{Session, WAKE_SIGNAL};

/// The threads of a session. One counts from the moment that it is asked for: on a busy machine it takes its first step late, and
/// a session must not pass for one that is over meanwhile.
#[derive(Debug, Default)]
pub(super) struct Threads {
    begun: AtomicUsize,
    /// Those that have taken their first step.
    entered: Mutex<Vec<ThreadId>>,
}

impl Session {
    /// Takes calls again after [`Session::end`], whatever threads have noticed that; not where nobody has the filter any more.
    pub(crate) fn go_on(self: &Arc<Self>) {
        if self.has_hung_up() {
            return;
        }
        self.dead.store(false, Ordering::SeqCst);
        self.tell(self.serve());
    }
}

/// A thread's place in the count, until it is dropped with the thread.
#[derive(Debug)]
pub(super) struct Begun {
    threads: Arc<Threads>,
    id: Option<ThreadId>,
}

impl Threads {
    pub(super) fn begin(threads: &Arc<Self>) -> Begun {
        threads.begun.fetch_add(1, Ordering::SeqCst);
        Begun {
            threads: Arc::clone(threads),
            id: None,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    pub(super) fn wake(&self) {
        for thread in self.entered().iter() {
            // A thread that has just ended needs no waking.
            let _ended = thread.signal(WAKE_SIGNAL);
        }
    }

    pub(super) fn entered(&self) -> MutexGuard<'_, Vec<ThreadId>> {
        sync::lock(&self.entered)
    }
}

impl Begun {
    pub(super) fn enter(&mut self) {
        let id = ThreadId::current();
        self.threads.entered().push(id);
        self.id = Some(id);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.threads.entered().retain(|other| *other != id);
        }
        self.threads.begun.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One of the threads that serve a call, until it is dropped.
pub(super) struct AtWork<'a>(&'a AtomicUsize);

impl<'a> AtWork<'a> {
    pub(super) fn begin(at_work: &'a AtomicUsize) -> Self {
        at_work.fetch_add(1, Ordering::SeqCst);
        Self(at_work)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
