//! How much of a processor's time may be spent on looking at what a tenant has.
//!
//! What a look costs is the tenant's choice: it decides how many processes, descriptors and mappings there are. So looks are
//! paid from an allowance that fills slowly, and what waits for one is the tenant's own call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use sys::sync;

/// What is there at most: a look at an honest container takes a few milliseconds.
const MOST: Duration = Duration::from_millis(250);
/// Of the time that passes, one part in so many is for looking.
const ONE_IN: u32 = 10;

/// An allowance of time.
#[derive(Debug)]
pub(crate) struct Pace {
    /// When the whole allowance will be there again; the past, where it is.
    full_at: Mutex<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            full_at: Mutex::new(Instant::now()),
        }
    }
}

impl Pace {
    /// For how long nothing may be done; `None`: something may.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait_at(Instant::now())
    }

    /// Waits until something may be done; `false`: not within this time.
    pub(crate) fn wait_for_turn(&self, most: Duration) -> bool {
        let end = Instant::now().checked_add(most);
        while let Some(wait) = self.wait() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let left = left.unwrap_or(most);
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(wait.min(left));
        }
        true
    }

    /// Work was done for so long.
    pub(crate) fn spent(&self, time: Duration) {
        self.spent_at(Instant::now(), time);
    }

    fn wait_at(&self, now: Instant) -> Option<Duration> {
        let lacking = sync::lock(&self.full_at).saturating_duration_since(now);
        let beyond = lacking.saturating_sub(MOST.saturating_mul(ONE_IN));
        (!beyond.is_zero()).then_some(beyond)
    }

    fn spent_at(&self, now: Instant, time: Duration) {
        let mut full_at = sync::lock(&self.full_at);
        let refill = time.saturating_mul(ONE_IN);
        // Beyond what an `Instant` holds nothing is owed.
        *full_at = (*full_at).max(now).checked_add(refill).unwrap_or(now);
    }
}

/// A call that asks waits no longer.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Work that calls ask for, done once for all that have asked before it, as far as the allowance goes.
#[derive(Debug, Default)]
pub(crate) struct Requested {
    pace: Pace,
    runs: Mutex<Runs>,
    ended: Condvar,
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Runs {
    begun: u64,
    done: u64,
    /// The last that has found something.
    found_in: u64,
    is_running: bool,
}

impl Requested {
    /// Has the work done once from beginning to end after this moment, by this thread or by another; whether it has found
    /// anything since. Not at all, where that would take too long.
    pub(crate) fn share(&self, work: impl Fn() -> bool) -> bool {
        self.share_until(Instant::now() + LONGEST_WAIT, work)
    }

    /// How many calls wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    fn share_until(&self, deadline: Instant, work: impl Fn() -> bool) -> bool {
        let mut runs = sync::lock(&self.runs);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let needed = runs.begun.saturating_add(1);
        let found = loop {
            if runs.done >= needed {
                break runs.found_in >= needed;
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                break false;
            };
            let wait = if runs.is_running {
                Some(left)
            } else {
                self.pace.wait()
            };
            if let Some(wait) = wait {
                runs = sync::wait_for(&self.ended, runs, wait.min(left));
                continue;
            }
            runs.begun = runs.begun.saturating_add(1);
            runs.is_running = true;
            let run = runs.begun;
            drop(runs);
            let begun = Instant::now();
            let found = work();
            self.pace.spent(begun.elapsed());
            runs = sync::lock(&self.runs);
            runs.is_running = false;
            runs.done = run;
            if found {
                runs.found_in = run;
            }
            self.ended.notify_all();
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_beyond_the_allowance_is_waited_for() {
        let pace = Pace::default();
        let start = Instant::now() + Duration::from_secs(1);
        let ms = Duration::from_millis;
        assert_eq!(pace.wait_at(start), None);
        pace.spent_at(start, ms(250));
        assert_eq!(pace.wait_at(start), None, "a burst");
        pace.spent_at(start, ms(10));
        assert_eq!(pace.wait_at(start), Some(ms(100)));
        assert_eq!(pace.wait_at(start + ms(99)), Some(ms(1)));
        assert_eq!(pace.wait_at(start + ms(100)), None);
        // Over a long time one part in ten is spent, whatever one piece of work takes.
        let (mut now, mut worked) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(100) {
            match pace.wait_at(now) {
                Some(wait) => now += wait,
                None => {
                    now += ms(60);
                    worked += ms(60);
                    pace.spent_at(now, ms(60));
                }
            }
        }
        assert!(worked < Duration::from_secs(11), "{worked:?}");
    }

    /// Sixty-four calls at once, and as many more while the first run goes on: two runs serve them all.
    #[test]
    fn one_run_serves_all_that_came_before_it() {
        const CALLS: usize = 64;
        let requested = Requested::default();
        let (runs, go) = (AtomicUsize::new(0), std::sync::Barrier::new(CALLS));
        let work = || {
            runs.fetch_add(1, Ordering::SeqCst);
            // The first ends when everybody has asked.
            while requested.waiting() < CALLS && runs.load(Ordering::SeqCst) == 1 {
                std::thread::yield_now();
            }
            true
        };
        std::thread::scope(|scope| {
            for _ in 0..CALLS {
                scope.spawn(|| {
                    go.wait();
                    let far = Instant::now() + Duration::from_secs(600);
                    assert!(requested.share_until(far, work));
                });
            }
        });
        assert_eq!(runs.load(Ordering::SeqCst), 2);
        assert_eq!(requested.waiting(), 0);
    }
}
