//! The thread that a card has: it sleeps until something is due on a runlist.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::Shared;
use super::state::State;
use crate::clock::monotonic_ns;
use crate::locked;

/// Stack of the thread.
const STACK_BYTES: usize = 128 << 10;
/// How late the system may wake the thread for its own convenience, ns; 50 µs without being told.
const TIMER_SLACK_NS: u64 = 1;

/// What the thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thread {
    /// There is none: nothing has been due yet.
    NotStarted,
    /// It sleeps until this time, or without end.
    Sleeps(Option<u64>),
    /// It will look at the state before it sleeps.
    Awake,
}

/// Lets go of the state, with the thread waking in time for what is due next.
pub(super) fn see_to(shared: &Arc<Shared>, mut state: MutexGuard<'_, State>) {
    let Some(next_ns) = state.next_event() else {
        return;
    };
    match state.thread {
        Thread::Awake => {}
        Thread::Sleeps(Some(until_ns)) if until_ns <= next_ns => {}
        Thread::Sleeps(_) => {
            state.thread = Thread::Awake;
            drop(state);
            shared.due.notify_one();
        }
        Thread::NotStarted => {
            let own = shared.clone();
            let thread = std::thread::Builder::new()
                .name("card".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || run(&own));
            match thread {
                Ok(_detached) => state.thread = Thread::Awake,
                Err(error) => {
                    tracing::error!(card = shared.name, %error, "no thread for the card: kernels end late");
                }
            }
        }
    }
}

fn run(shared: &Shared) {
    if let Err(errno) = nix::sys::prctl::set_timerslack(TIMER_SLACK_NS) {
        tracing::warn!(card = shared.name, %errno, "the card's thread wakes late");
    }
    let mut state = locked(&shared.state);
    while !state.stopped {
        state.thread = Thread::Awake;
        state.pass(monotonic_ns());
        let ended = state.ended();
        if !ended.is_empty() {
            drop(state);
            for ended in ended {
                ended.tell();
            }
            state = locked(&shared.state);
            continue;
        }
        let next_ns = state.next_event();
        state.thread = Thread::Sleeps(next_ns);
        state = match next_ns {
            None => shared
                .due
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
            Some(next_ns) => {
                let rest = Duration::from_nanos(next_ns.saturating_sub(monotonic_ns()));
                shared
                    .due
                    .wait_timeout(state, rest)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        shared.wake_ups.fetch_add(1, Ordering::Relaxed);
    }
}
