//! The thread that reads the rings of one session.
//!
//! A doorbell is a plain store to shared memory, which wakes nobody, so rings are looked at again and again: at once
//! after work, less and less often while there is none. Without a channel the thread sleeps for good. The end of work that an
//! engine has wakes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;

use super::{Channel, Step};
use crate::card::SimCard;
use crate::clock::monotonic_ns;
use crate::locked;

/// Stack of a ring thread.
const STACK_BYTES: usize = 256 << 10;
/// How long to rest between looks, by how long there has been no work.
const RESTS: &[(Duration, Duration)] = &[
    (Duration::from_millis(2), Duration::from_micros(50)),
    (Duration::from_millis(50), Duration::from_micros(250)),
    (Duration::from_secs(1), Duration::from_millis(1)),
];
/// At least, while an engine works for the session: what is written meanwhile can wait behind that.
const REST_AT_WORK: Duration = Duration::from_millis(1);
/// After the last of these.
const LONGEST_REST: Duration = Duration::from_millis(5);

/// Reads the rings of one session.
#[derive(Debug)]
pub(crate) struct Runner {
    session: Arc<str>,
    state: Mutex<State>,
    wake: Condvar,
    /// The thread rests for long enough that waking it is worth a call.
    dozing: AtomicBool,
    watchers: Mutex<Vec<Watcher>>,
}

#[derive(Debug, Default)]
struct State {
    channels: Vec<Arc<Channel>>,
    thread: Thread,
    looks: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Thread {
    #[default]
    NotStarted,
    Running,
    Stopped,
}

/// An event object and where it reports to.
#[derive(Debug)]
struct Watcher {
    client: u32,
    object: u32,
    fd: Arc<EventFd>,
}

impl Runner {
    pub(crate) fn new(session: &Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            session: session.clone(),
            state: Mutex::default(),
            wake: Condvar::new(),
            dozing: AtomicBool::new(false),
            watchers: Mutex::default(),
        })
    }

    pub(crate) fn add(self: &Arc<Self>, channel: Arc<Channel>) {
        let mut state = locked(&self.state);
        state.channels.push(channel);
        if state.thread == Thread::NotStarted {
            let runner = self.clone();
            let thread = std::thread::Builder::new()
                .name("ring".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || runner.run());
            match thread {
                Ok(_detached) => state.thread = Thread::Running,
                Err(error) => {
                    tracing::error!(session = &*self.session, %error, "no thread for the rings: channels do not run")
                }
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    /// A fault of a card ends the channels on it.
    pub(crate) fn fail(&self, card: &SimCard, xid: u32) {
        let channels = locked(&self.state).channels.clone();
        for channel in channels.iter().filter(|channel| channel.is_on(card)) {
            channel.die(xid, monotonic_ns());
        }
    }

    pub(crate) fn remove(&self, channel: &Arc<Channel>) {
        channel.remove();
        locked(&self.state)
            .channels
            .retain(|other| !Arc::ptr_eq(other, channel));
    }

    /// Work of a channel has ended: look at once.
    pub(crate) fn work_ended(&self) {
        locked(&self.state).looks += 1;
        self.wake.notify_one();
    }

    /// Something may have been written: look soon.
    pub(crate) fn look(&self) {
        if self.dozing.load(Ordering::Acquire) {
            locked(&self.state).looks += 1;
            self.wake.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        let mut state = locked(&self.state);
        let channels = std::mem::take(&mut state.channels);
        state.thread = Thread::Stopped;
        drop(state);
        // Without the lock: their engine may have news for this session.
        for channel in channels {
            channel.remove();
        }
        locked(&self.watchers).clear();
        self.wake.notify_one();
    }

    /// An event object reports to a descriptor.
    pub(crate) fn watch(&self, client: u32, object: u32, fd: Arc<EventFd>) {
        locked(&self.watchers).push(Watcher { client, object, fd });
    }

    pub(crate) fn unwatch(&self, client: u32, object: u32) {
        locked(&self.watchers)
            .retain(|watcher| (watcher.client, watcher.object) != (client, object));
    }

    pub(crate) fn forget_event(&self, fd: &Arc<EventFd>) {
        locked(&self.watchers).retain(|watcher| !Arc::ptr_eq(&watcher.fd, fd));
    }

    /// Steps every channel once.
    fn round(&self, channels: &[Arc<Channel>]) -> Round {
        let mut round = Round::default();
        let mut interrupts = 0_u32;
        for channel in channels {
            match channel.step(&monotonic_ns) {
                Step::Progress => round.progress = true,
                Step::Working => round.at_work = true,
                Step::Idle | Step::Stalled => {}
            }
            interrupts = interrupts.saturating_add(channel.take_interrupts());
        }
        if interrupts > 0 {
            for watcher in locked(&self.watchers).iter() {
                // A counter that is full is readable already.
                if let Err(error) = watcher.fd.write(1) {
                    tracing::debug!(%error, "event not counted");
                }
            }
        }
        round
    }

    fn run(&self) {
        let mut last_work = Instant::now();
        let mut seen = 0;
        loop {
            let mut state = locked(&self.state);
            while state.channels.is_empty() && state.thread != Thread::Stopped {
                state = self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                last_work = Instant::now();
            }
            if state.thread == Thread::Stopped {
                return;
            }
            let channels = state.channels.clone();
            if state.looks != seen {
                seen = state.looks;
                last_work = Instant::now();
            }
            drop(state);
            let Round { progress, at_work } = self.round(&channels);
            drop(channels);
            if progress {
                last_work = Instant::now();
                continue;
            }
            let idle = last_work.elapsed();
            let rest = RESTS
                .iter()
                .find(|(until, _rest)| idle < *until)
                .map_or(LONGEST_REST, |(_until, rest)| *rest);
            let rest = if at_work {
                rest.max(REST_AT_WORK)
            } else {
                rest
            };
            let state = locked(&self.state);
            if state.looks != seen || state.thread == Thread::Stopped {
                continue;
            }
            self.dozing
                .store(rest >= Duration::from_millis(1), Ordering::Release);
            drop(
                self.wake
                    .wait_timeout(state, rest)
                    .unwrap_or_else(PoisonError::into_inner),
            );
            self.dozing.store(false, Ordering::Release);
        }
    }
}

#[derive(Debug, Default)]
struct Round {
    progress: bool,
    /// An engine has work of a channel.
    at_work: bool,
}
