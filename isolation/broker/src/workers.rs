//! The threads that wait on listeners.
//!
//! Every listener (one for the container's init, one for each exec) has as many threads as it has calls under way, one more that
//! waits, and one that rests: the thread that takes a call is the one that answers it, so no hand-over between threads is paid, and
//! a call that blocks in the driver never keeps another waiting for long. Each thread has a call slot of the shared state, where the kernel
//! writes its calls.
//!
//! The kernel wakes every thread that waits on a listener for every call (`recv_wait_event`, kernel/seccomp.c, has no exclusive
//! wait), on the caller's own CPU, and all but one in vain: a second one costs each call as much as the answer does, and most of
//! what the slowest hundredth waits. So one waits, and nobody is woken to wait in its place while it serves: most calls are over
//! sooner. The one that rests looks after it, at the first tick after a call was taken:
//!
//! ```text
//!           call ─▶ waits ─▶ serves ─▶ waits …
//!                     │ first call for a while: wakes
//!           rests ─▶ looks each tick ──▶ nobody waits, and the same call is served or another is there: waits
//!             ▲           └─ a tick without a call ─┐
//!             └─────────────────────────────────────┘
//! ```
//!
//! Where calls were found to wait for a thread, the program calls from several at once, and as many wait for a while.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::thread;
use std::time::Duration;

use journal::limits::MOST_CALLS;
use journal::shared_state::CallSlot;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::seccomp::{Listener, Notification};

use crate::call::NotifiedCall;
use crate::container::Container;
use crate::health::Lack;
use crate::reaper::Reaper;

mod resting;
mod threads;

use resting::{Rest, Resting};
use threads::{AtWork, Begun, Threads};

/// Interrupts a thread that waits on a listener whose processes have all gone (older kernels do not wake it themselves).
pub const WAKE_SIGNAL: i32 = nix::sys::signal::Signal::SIGUSR1 as i32;

/// Deepest frame: a copied UVM struct (9 KiB) twice, and the formatter.
const STACK_BYTES: usize = 128 * 1024;
/// One container cannot have more calls under way, at all its listeners together; further ones wait their turn. Those that hold up a
/// refusal ([`crate::health::Throttle`]) are not among them, since they must not keep other calls waiting; with them there are [`MOST_CALLS`].
const MOST_THREADS: usize = 64;
/// How long a call can wait for a thread while another blocks: one tick, and what is left of the one in which that began.
const TICK: Duration = Duration::from_millis(1);
/// The same where no call was found to wait for [`BUSY_TICKS`]. Who looks interrupts the calls: as often as [`TICK`] says this would
/// be one of a hundred short calls, which then takes several times as long.
const CALM_TICK: Duration = Duration::from_millis(4);
/// No more wait at once, however many calls were found to.
const MOST_WAITING: usize = 4;
/// A program that calls from several threads at once has the caller alternate more often within a tick.
const ALTERNATES: usize = 2;
/// For so many ticks after a call was found to wait.
const BUSY_TICKS: u32 = 100;
/// Resting threads beyond this end themselves. To start one costs the tenant more than a call does; one that rests keeps a few pages
/// and a call slot.
const MOST_RESTING: usize = 8;

/// One listener and its threads.
pub struct Session {
    listener: Listener,
    token: u64,
    dead: AtomicBool,
    waiting: AtomicUsize,
    /// So many are to wait at once.
    needed: AtomicUsize,
    /// Calls ever taken; it may wrap.
    taken: AtomicUsize,
    /// The thread that made the last of them.
    last_caller: AtomicI32,
    /// How often it was another one than before; it may wrap.
    alternated: AtomicUsize,
    resting: Resting,
    threads: Arc<Threads>,
    container: Arc<Container>,
    reaper: Arc<Reaper>,
}

impl Session {
    /// A listener that nobody serves yet. The token names it in the shared state.
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
            needed: AtomicUsize::new(1),
            taken: AtomicUsize::new(0),
            last_caller: AtomicI32::new(0),
            alternated: AtomicUsize::new(0),
            resting: Resting::default(),
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

    /// A call of this listener's.
    pub(crate) fn call<'a>(
        &'a self,
        call_slot: &'a CallSlot,
        notification: &'a Notification,
    ) -> NotifiedCall<'a> {
        NotifiedCall {
            container: &self.container,
            reaper: &self.reaper,
            listener: &self.listener,
            call_slot,
            notification,
        }
    }

    /// Takes calls from now on.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve(self: &Arc<Self>) -> std::io::Result<()> {
        self.spawn()?;
        self.spawn_resting()
    }

    /// Starts a thread that does something first, with a call slot in which a former broker has left a call, and then takes calls.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve_after(
        self: &Arc<Self>,
        call_slot: CallSlot,
        first: impl FnOnce(&Self, &CallSlot) + Send + 'static,
    ) -> std::io::Result<()> {
        self.spawn_with(call_slot, Begins::After(first))
    }

    /// The listener's name in the shared state.
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
        self.resting.end();
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

    /// Starts the threads that could not be started when they were due. Called from time to time.
    pub fn revive(self: &Arc<Self>) {
        if self.dead.load(Ordering::SeqCst) || !self.may_have_another() || self.has_hung_up() {
            return;
        }
        if self.waiting.load(Ordering::SeqCst) == 0 {
            self.tell(self.spawn());
        }
        self.have_one_rest();
    }

    /// Without a thread that waits the next call waits until one is free, or one can be started.
    fn tell(&self, started: std::io::Result<()>) {
        let shortage = &self.container.health.shortage;
        match started {
            Ok(()) => shortage.is_over(Lack::Thread),
            Err(error) => shortage.met(Lack::Thread, &error),
        }
    }

    fn spawn(self: &Arc<Self>) -> std::io::Result<()> {
        self.spawn_with(self.call_slot()?, Begins::<fn(&Self, &CallSlot)>::Waiting)
    }

    /// Starts one that rests. It counts from here on, so that nobody starts another.
    fn spawn_resting(self: &Arc<Self>) -> std::io::Result<()> {
        self.resting.state().one_more_rests();
        let call_slot = self.call_slot();
        let spawned = call_slot.and_then(|call_slot| {
            self.spawn_with(call_slot, Begins::<fn(&Self, &CallSlot)>::Resting)
        });
        if spawned.is_err() {
            self.resting.state().one_less_rests();
        }
        spawned
    }

    /// Somebody looks after those that wait, whoever has left his rest.
    fn have_one_rest(self: &Arc<Self>) {
        if self.resting.state().resting == 0 {
            self.tell(self.spawn_resting());
        }
    }

    fn call_slot(&self) -> std::io::Result<CallSlot> {
        let call_slot = self.container.shared_state.call_slot(self.token);
        call_slot.ok_or_else(|| std::io::ErrorKind::QuotaExceeded.into())
    }

    fn spawn_with(
        self: &Arc<Self>,
        call_slot: CallSlot,
        begins: Begins<impl FnOnce(&Self, &CallSlot) + Send + 'static>,
    ) -> std::io::Result<()> {
        let session = Arc::clone(self);
        let begun = Threads::begin(&self.threads);
        // It counts from here on, so that nobody else has another one wait.
        let waits = usize::from(!matches!(begins, Begins::Resting));
        self.waiting.fetch_add(waits, Ordering::SeqCst);
        let spawned = thread::Builder::new()
            .name("calls".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || session.run(begun, &call_slot, begins));
        if let Err(error) = spawned {
            self.waiting.fetch_sub(waits, Ordering::SeqCst);
            return Err(error);
        }
        Ok(())
    }

    fn run(
        self: Arc<Self>,
        mut begun: Begun,
        call_slot: &CallSlot,
        begins: Begins<impl FnOnce(&Self, &CallSlot)>,
    ) {
        begun.enter();
        match begins {
            Begins::Waiting => {}
            Begins::Resting if self.rest_until_due(self.resting.state()) => {}
            Begins::Resting => return,
            Begins::After(first) => {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                let at_work = AtWork::begin(&self.container.at_work);
                first(&self, call_slot);
                call_slot.clear();
                drop(at_work);
                self.waiting.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.wait_and_serve(call_slot);
    }

    fn wait_and_serve(self: &Arc<Self>, call_slot: &CallSlot) {
        let is_needed = || !self.dead.load(Ordering::SeqCst);
        // Whoever came because a call waited looks whether it was the only one.
        let mut is_relief = true;
        loop {
            // A call that waits meanwhile waits in the kernel, and is nobody's yet.
            self.container.cpu_time.wait(Duration::MAX, is_needed);
            if !is_needed() {
                break;
            }
            let Some(words) = call_slot.for_next_call() else {
                break;
            };
            let call = match self.listener.receive_into(words) {
                Ok(call) => call,
                Err(error) => {
                    let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
                    // Without a call: the caller gave up, or nobody has the filter any more.
                    let goes_on =
                        errno == Errno::EINTR || errno == Errno::ENOENT && !self.has_hung_up();
                    if goes_on {
                        continue;
                    }
                    break;
                }
            };
            let at_work = AtWork::begin(&self.container.at_work);
            self.taken.fetch_add(1, Ordering::SeqCst);
            if self.last_caller.swap(call.tid, Ordering::Relaxed) != call.tid {
                self.alternated.fetch_add(1, Ordering::Relaxed);
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            self.resting.wake();
            if is_relief && self.has_call() {
                self.call_one();
            }
            self.call(call_slot, &call).serve();
            call_slot.clear();
            drop(at_work);
            is_relief = false;
            let needed = self.needed.load(Ordering::SeqCst);
            if self.waiting.fetch_add(1, Ordering::SeqCst) >= needed {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                if !self.rest() {
                    return;
                }
                is_relief = true;
            }
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Rests until the thread is to wait, for which it counts then; false where it is to end instead.
    fn rest(self: &Arc<Self>) -> bool {
        let mut state = self.resting.state();
        if state.resting >= MOST_RESTING {
            return false;
        }
        state.one_more_rests();
        self.rest_until_due(state)
    }

    /// The same for one that counts as resting.
    fn rest_until_due(self: &Arc<Self>, mut state: MutexGuard<'_, Rest>) -> bool {
        let is_due = loop {
            if self.dead.load(Ordering::SeqCst) {
                break false;
            }
            if let Some(others) = state.called.checked_sub(1) {
                state.called = others;
                break true;
            }
            if state.looks || !self.resting.is_awake.load(Ordering::SeqCst) {
                state = self.resting.wait(state);
                continue;
            }
            state.looks = true;
            let before = self.taken.load(Ordering::SeqCst);
            let alternated = self.alternated.load(Ordering::Relaxed);
            let tick = if state.calm < BUSY_TICKS {
                TICK
            } else {
                CALM_TICK
            };
            state = self.resting.wait_for(state, tick);
            state.looks = false;
            // A thread that calls again and again has its next call wait for a moment, and no need of a second thread.
            let alternates = self
                .alternated
                .load(Ordering::Relaxed)
                .wrapping_sub(alternated)
                > ALTERNATES;
            if state.called == 0 && self.is_one_due(before, alternates, &mut state.calm) {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                break true;
            }
        };
        state.one_less_rests();
        drop(state);
        if is_due {
            self.have_one_rest();
            // Whoever has left may have been the one that looks.
            self.resting.changed.notify_one();
        }
        is_due
    }

    /// What one that rests finds a tick after `before` calls were taken: whether it is to wait. Where nothing happens any more, nobody
    /// looks until the next call.
    fn is_one_due(&self, before: usize, alternates: bool, calm: &mut u32) -> bool {
        let taken = self.taken.load(Ordering::SeqCst);
        let is_same = taken == before;
        if *calm >= BUSY_TICKS {
            self.needed.store(1, Ordering::SeqCst);
        }
        *calm = calm.saturating_add(1);
        if self.waiting.load(Ordering::SeqCst) > 0 || self.has_hung_up() {
            if is_same {
                let is_awake = &self.resting.is_awake;
                is_awake.store(false, Ordering::SeqCst);
                // One that was taken before this has not woken anybody.
                if self.taken.load(Ordering::SeqCst) != taken {
                    is_awake.store(true, Ordering::SeqCst);
                }
            }
            return false;
        }
        if !self.may_have_another() {
            return false;
        }
        let finds_call = (is_same || alternates) && self.has_call();
        if finds_call {
            *calm = 0;
        }
        if finds_call && !is_same {
            let needed = self.needed.load(Ordering::SeqCst);
            self.needed
                .store(needed.saturating_add(1).min(MOST_WAITING), Ordering::SeqCst);
        }
        is_same || finds_call
    }

    /// Has one more wait: one that rests, or a new one.
    fn call_one(self: &Arc<Self>) {
        let mut state = self.resting.state();
        if state.resting > state.called {
            state.called = state.called.saturating_add(1);
            // It counts from here on, so that nobody else has another one wait.
            self.waiting.fetch_add(1, Ordering::SeqCst);
            drop(state);
            // Also whoever looks must see it, and one of several that wait on this may be that one.
            self.resting.changed.notify_all();
        } else if self.may_have_another() {
            drop(state);
            self.tell(self.spawn());
        }
    }

    /// Every listener keeps the one thread that it has, whatever the others do.
    fn may_have_another(&self) -> bool {
        let at_work = self.container.at_work.load(Ordering::SeqCst);
        let held_up = [
            self.container.health.throttle.waiting(),
            self.container.share.waiting(),
            self.container.managed.waiting(),
            self.reaper.waiting(),
        ];
        let goes_on = held_up.into_iter().fold(at_work, usize::saturating_sub);
        goes_on < MOST_THREADS && at_work < MOST_CALLS
    }

    fn has_hung_up(&self) -> bool {
        self.is_ready(PollFlags::POLLHUP).unwrap_or(true)
    }

    /// Whether a call waits for a thread.
    fn has_call(&self) -> bool {
        self.is_ready(PollFlags::POLLIN).unwrap_or(false)
    }

    fn is_ready(&self, needed: PollFlags) -> nix::Result<bool> {
        let mut fds = [PollFd::new(self.listener.as_fd(), needed)];
        poll(&mut fds, PollTimeout::ZERO)?;
        let [fd] = fds;
        Ok(fd.revents().is_some_and(|events| events.contains(needed)))
    }
}

/// What a started thread does before it waits.
enum Begins<F> {
    Waiting,
    Resting,
    /// It serves what a former broker has left.
    After(F),
}

#[cfg(test)]
mod tests;
