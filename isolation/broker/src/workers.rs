//! The threads that wait on listeners.
//!
//! Every listener (one for the container's init, one for each exec) has as many threads as it has calls under way, and one
//! more that waits: the thread that takes a call is the one that answers it, so no hand-over between threads is paid, and a
//! call that blocks in the driver never keeps another waiting. Each thread has a lane of the board, where the kernel writes its
//! calls.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::seccomp::Listener;
use sys::signal::ThreadId;

use crate::board::Lane;
use crate::container::Container;
use crate::health::Lack;
use crate::reaper::Reaper;
use crate::serve;

/// Interrupts a thread that waits on a listener whose processes have all gone (older kernels do not wake it themselves).
pub const WAKE_SIGNAL: i32 = nix::sys::signal::Signal::SIGUSR1 as i32;

/// Deepest frame: a copied UVM struct (9 KiB) twice, and the formatter.
const STACK_BYTES: usize = 128 * 1024;
/// One container cannot have more calls under way, at all its listeners together; further ones wait their turn.
const MOST_THREADS: usize = 64;
/// With those that hold up a refusal ([`crate::health::Throttle`]), which must not keep other calls waiting.
pub(crate) const MOST_WITH_HELD_UP: usize = 256;
/// Waiting threads beyond this end themselves.
const MOST_WAITING: usize = 2;

/// One listener and its threads.
pub struct Session {
    listener: Listener,
    token: u64,
    dead: AtomicBool,
    waiting: AtomicUsize,
    threads: Arc<Threads>,
    container: Arc<Container>,
    reaper: Arc<Reaper>,
}

impl Session {
    /// A listener that nobody serves yet. The token names it on the board.
    #[must_use]
    pub fn new(
        listener: OwnedFd,
        token: u64,
        container: Arc<Container>,
        reaper: Arc<Reaper>,
    ) -> Arc<Self> {
        let listener = Listener::from(listener);
        // An old kernel does not know it, and is slower.
        let _unknown = listener.wake_on_same_cpu();
        Arc::new(Self {
            listener,
            token,
            dead: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            threads: Arc::default(),
            container,
            reaper,
        })
    }

    /// Serves a listener from now on.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        listener: OwnedFd,
        token: u64,
        container: Arc<Container>,
        reaper: Arc<Reaper>,
    ) -> std::io::Result<Arc<Self>> {
        let session = Self::new(listener, token, container, reaper);
        session.serve()?;
        Ok(session)
    }

    /// Takes calls from now on.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve(self: &Arc<Self>) -> std::io::Result<()> {
        self.spawn()
    }

    /// Starts a thread that does something first, with a lane in which a former broker has left a call, and then takes calls.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve_after(
        self: &Arc<Self>,
        lane: Lane,
        first: impl FnOnce(&Self, &Lane) + Send + 'static,
    ) -> std::io::Result<()> {
        self.spawn_with(lane, Some(first))
    }

    /// The listener's name on the board.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The container that it belongs to.
    #[must_use]
    pub fn container(&self) -> &Arc<Container> {
        &self.container
    }

    /// The reaper of that container.
    #[must_use]
    pub fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// The listener, to be watched for its end (`EPOLLHUP`).
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// No process has the filter any more: its threads end.
    pub fn end(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.threads.wake();
    }

    /// Whether all threads have ended; one that was between two waits when [`Session::end`] woke it is woken again.
    pub fn is_over(&self) -> bool {
        if self.threads.count() == 0 {
            return true;
        }
        if self.dead.load(Ordering::SeqCst) {
            self.end();
        }
        false
    }

    /// Starts the thread that could not be started when it was due. Called from time to time.
    pub fn revive(self: &Arc<Self>) {
        let nobody_waits = self.waiting.load(Ordering::SeqCst) == 0;
        if nobody_waits
            && self.may_have_another()
            && !self.dead.load(Ordering::SeqCst)
            && !self.has_hung_up()
        {
            self.spawn_if_possible();
        }
    }

    /// Without one the next call waits until a thread is free, or one can be started.
    fn spawn_if_possible(self: &Arc<Self>) {
        let health = &self.container.health;
        match self.spawn() {
            Ok(()) => health.shortage.is_over(Lack::Thread),
            Err(error) => health.shortage.met(Lack::Thread, &error),
        }
    }

    fn spawn(self: &Arc<Self>) -> std::io::Result<()> {
        let lane = self.container.board.lane(self.token);
        let lane = lane.ok_or(std::io::ErrorKind::QuotaExceeded)?;
        self.spawn_with(lane, None::<fn(&Self, &Lane)>)
    }

    fn spawn_with(
        self: &Arc<Self>,
        lane: Lane,
        first: Option<impl FnOnce(&Self, &Lane) + Send + 'static>,
    ) -> std::io::Result<()> {
        let session = Arc::clone(self);
        let begun = Threads::begin(&self.threads);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let spawned = thread::Builder::new()
            .name("calls".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || session.run(begun, &lane, first));
        if let Err(error) = spawned {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(error);
        }
        Ok(())
    }

    fn run(
        self: Arc<Self>,
        mut begun: Begun,
        lane: &Lane,
        first: Option<impl FnOnce(&Self, &Lane)>,
    ) {
        begun.enter();
        if let Some(first) = first {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            let at_work = AtWork::begin(&self.container.at_work);
            first(&self, lane);
            lane.clear();
            drop(at_work);
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
        self.wait_and_serve(lane);
    }

    fn wait_and_serve(self: &Arc<Self>, lane: &Lane) {
        let is_wanted = || !self.dead.load(Ordering::SeqCst);
        loop {
            // A call that waits meanwhile waits in the kernel, and is nobody's yet.
            self.container.cpu_time.wait(Duration::MAX, is_wanted);
            if !is_wanted() {
                break;
            }
            let Some(words) = lane.for_next_call() else {
                break;
            };
            let call = match self.listener.receive_into(words) {
                Ok(call) => call,
                Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or_default()) {
                    Errno::EINTR => continue,
                    // The caller gave up, or nobody has the filter any more.
                    Errno::ENOENT if !self.has_hung_up() => continue,
                    _ => break,
                },
            };
            let at_work = AtWork::begin(&self.container.at_work);
            let others = self.waiting.fetch_sub(1, Ordering::SeqCst) - 1;
            if others == 0 && self.may_have_another() && !self.dead.load(Ordering::SeqCst) {
                self.spawn_if_possible();
            }
            serve::serve(&self.container, &self.reaper, &self.listener, lane, &call);
            lane.clear();
            drop(at_work);
            if self.waiting.fetch_add(1, Ordering::SeqCst) >= MOST_WAITING {
                break;
            }
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Every listener keeps the one thread that it has, whatever the others do.
    fn may_have_another(&self) -> bool {
        let at_work = self.container.at_work.load(Ordering::SeqCst);
        let held_up = self.container.health.throttle.waiting()
            + self.container.share.waiting()
            + self.container.managed.waiting()
            + self.reaper.waiting();
        at_work.saturating_sub(held_up) < MOST_THREADS && at_work < MOST_WITH_HELD_UP
    }

    fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(self.listener.as_fd(), PollFlags::empty())];
        let polled = poll(&mut fds, PollTimeout::ZERO);
        let [fd] = fds;
        polled.is_err()
            || fd
                .revents()
                .is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }
}

/// One of the threads that serve a call, until it is dropped.
struct AtWork<'a>(&'a AtomicUsize);

impl<'a> AtWork<'a> {
    fn begin(at_work: &'a AtomicUsize) -> Self {
        at_work.fetch_add(1, Ordering::SeqCst);
        Self(at_work)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The threads of a session. One counts from the moment that it is asked for: on a busy machine it takes its first step late, and
/// a session must not pass for one that is over meanwhile.
#[derive(Debug, Default)]
struct Threads {
    begun: AtomicUsize,
    /// Those that have taken their first step.
    entered: Mutex<Vec<ThreadId>>,
}

/// A thread's place in the count, until it is dropped with the thread.
#[derive(Debug)]
struct Begun {
    threads: Arc<Threads>,
    id: Option<ThreadId>,
}

impl Threads {
    fn begin(threads: &Arc<Self>) -> Begun {
        threads.begun.fetch_add(1, Ordering::SeqCst);
        Begun {
            threads: Arc::clone(threads),
            id: None,
        }
    }

    fn count(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        for thread in self.entered().iter() {
            // A thread that has just ended needs no waking.
            let _ended = thread.signal(WAKE_SIGNAL);
        }
    }

    fn entered(&self) -> MutexGuard<'_, Vec<ThreadId>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Begun {
    fn enter(&mut self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_counts_before_its_first_step_and_until_its_last() {
        let threads = Arc::new(Threads::default());
        let mut begun = Threads::begin(&threads);
        assert_eq!((threads.count(), threads.entered().len()), (1, 0));
        let ended = thread::spawn({
            let threads = Arc::clone(&threads);
            move || {
                begun.enter();
                assert_eq!((threads.count(), threads.entered().len()), (1, 1));
            }
        });
        ended.join().unwrap();
        assert_eq!((threads.count(), threads.entered().len()), (0, 0));
        // One that could not be started gives its place back.
        drop(Threads::begin(&threads));
        assert_eq!(threads.count(), 0);
    }
}
