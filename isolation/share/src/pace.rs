//! How long a container's calls may hold the driver's locks to make contexts, and to free trees of objects: gates wait for the same locks, its
//! neighbours' too.
//!
//! ```text
//! take ──▶ a call's usual time is taken off the allowance ──▶ the driver ──▶ drop: what it really took is
//!   │ nothing is left: the call waits
//! ```
//! Time is counted, not calls. A call is let through with whatever is left, so one may go beyond the allowance; several at once
//! each take their part first. A call that takes long waits for others' calls or for a driver that hangs: it counts as [`MOST`], and
//! whatever was spent, the next call is let through within [`LONGEST`].
//!
//! What frees never waits, so that nothing is kept from being given back. Its time is counted in an allowance of its own, and what makes trees
//! long waits for that: contexts do not, which have been paid for when they were made, and a job that ends and begins anew makes both.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use sys::sync;

/// As much at once: a few processes that start together, or one on each of several cards.
const BURST: Duration = Duration::from_millis(1_200);
/// And of frees: eight processes with contexts that end together.
const BURST_OF_FREES: Duration = Duration::from_millis(2_400);
/// And of each second afterwards, milliseconds: 1.5 %.
const PER_SECOND: u32 = 15;
/// What a context may take.
const USUAL: Duration = Duration::from_millis(150);
/// Calls that take no longer cost nothing: gates are late by as much all the time.
const FREE: Duration = Duration::from_millis(5);
/// As much counts of one call. It is what [`LONGEST`] gives back.
const MOST: Duration = Duration::from_millis(450);
/// No call waits longer: one that makes a context gets NV_ERR_TIMEOUT then.
const LONGEST: Duration = Duration::from_secs(30);
/// Between two looks whether the caller still waits.
const LOOK: Duration = Duration::from_millis(50);

/// The allowance of one container.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    contexts: Spent,
    frees: Spent,
    /// Calls that are with the driver and make a context.
    under_way: u32,
}

/// What has been spent.
#[derive(Debug, Default)]
struct Spent {
    /// When all of it will be there again; `None`: it is.
    full_at: Option<Instant>,
}

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    MakesAContext,
    Frees,
}

/// A call that is counted, from when it was let through until it is back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Paced<'a> {
    pace: &'a Pace,
    pub(crate) since: Instant,
    does: Does,
}

/// Nobody waits for the call any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GivenUp;

/// Why a call was not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// Nobody waits for it any more.
    GivenUp,
    /// It has waited for too long.
    TooLong,
}

impl Pace {
    /// Lets a call through once something is left.
    pub(crate) fn take(&self, still_waits: &dyn Fn() -> bool) -> Result<Paced<'_>, Held> {
        let until = Instant::now() + LONGEST;
        let mut inner = sync::lock(&self.inner);
        loop {
            let now = Instant::now();
            let wait = inner.wait(now);
            if wait.is_zero() {
                inner.under_way = inner.under_way.saturating_add(1);
                return Ok(Paced {
                    pace: self,
                    since: now,
                    does: Does::MakesAContext,
                });
            }
            if now >= until {
                return Err(Held::TooLong);
            }
            drop(sync::wait_for(&self.changed, inner, wait.min(LOOK)));
            if !still_waits() {
                return Err(Held::GivenUp);
            }
            inner = sync::lock(&self.inner);
        }
    }

    /// Counts what a call takes that frees: whatever is left, it goes on.
    pub(crate) fn count(&self) -> Paced<'_> {
        Paced {
            pace: self,
            since: Instant::now(),
            does: Does::Frees,
        }
    }

    /// Waits for what frees have taken, [`LONGEST`] at most: some calls that are let through too early make no long tree.
    pub(crate) fn wait_for_frees(&self, still_waits: &dyn Fn() -> bool) -> Result<(), GivenUp> {
        let until = Instant::now() + LONGEST;
        loop {
            let now = Instant::now();
            let inner = sync::lock(&self.inner);
            let wait = inner.wait_for_frees(now);
            if wait.is_zero() || now >= until {
                return Ok(());
            }
            drop(sync::wait_for(&self.changed, inner, wait.min(LOOK)));
            if !still_waits() {
                return Err(GivenUp);
            }
        }
    }
}

impl Paced<'_> {
    /// What it has waited for until now was none of the driver's time.
    pub(crate) fn begins_now(self) -> Self {
        let mut paced = self;
        paced.since = Instant::now();
        paced
    }
}

impl Inner {
    /// How long a call of this moment that makes a context has to wait until something is left.
    fn wait(&self, now: Instant) -> Duration {
        let under_way = refill(USUAL.saturating_mul(self.under_way));
        let filling = self.contexts.filling(now).saturating_add(under_way);
        filling.saturating_sub(refill(BURST))
    }

    /// And one that makes what trees are made of.
    fn wait_for_frees(&self, now: Instant) -> Duration {
        let filling = self.frees.filling(now);
        filling.saturating_sub(refill(BURST_OF_FREES))
    }
}

impl Spent {
    fn filling(&self, now: Instant) -> Duration {
        let full_at = self.full_at;
        full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    fn spend(&mut self, now: Instant, took: Duration, burst: Duration) {
        if took > FREE {
            let from = self.full_at.map_or(now, |at| at.max(now));
            let latest = now + refill(burst) + LONGEST;
            self.full_at = Some(latest.min(from + refill(took.min(MOST))));
        }
    }
}

impl Drop for Paced<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut inner = sync::lock(&self.pace.inner);
        let took = now.saturating_duration_since(self.since);
        match self.does {
            Does::MakesAContext => {
                inner.under_way = inner.under_way.saturating_sub(1);
                inner.contexts.spend(now, took, BURST);
            }
            Does::Frees => inner.frees.spend(now, took, BURST_OF_FREES),
        }
        drop(inner);
        self.pace.changed.notify_all();
    }
}

/// In which time so much is allowed.
fn refill(spent: Duration) -> Duration {
    let thousandfold = spent.saturating_mul(1_000);
    thousandfold
        .checked_div(PER_SECOND)
        .unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_in_a_loop_hold_the_locks_for_a_small_part_of_the_time() {
        let mut inner = Inner::default();
        let start = Instant::now();
        let (mut now, mut held) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(600) {
            now += inner.wait(now) + USUAL;
            inner.contexts.spend(now, USUAL, BURST);
            held += USUAL;
        }
        let most = BURST + USUAL * 2 + Duration::from_millis(u64::from(PER_SECOND)) * 600;
        assert!(held <= most && held >= most - USUAL * 4, "{held:?}");
    }

    #[test]
    fn many_at_once_are_no_way_around_it() {
        let pace = Pace::default();
        let now = Instant::now();
        let through: Vec<_> = (0..9).map_while(|_| pace.take(&|| true).ok()).collect();
        assert_eq!(
            through.len(),
            9,
            "the burst, and the one that goes beyond it"
        );
        assert!(!sync::lock(&pace.inner).wait(now).is_zero());
        assert_eq!(pace.take(&|| false).err(), Some(Held::GivenUp));
        drop(through);
        assert_eq!(sync::lock(&pace.inner).under_way, 0);
    }

    #[test]
    fn waiting_for_a_gate_is_not_counted() {
        let pace = Pace::default();
        let mut paced = pace.take(&|| true).unwrap();
        paced.since = paced.since.checked_sub(USUAL).unwrap();
        let now = Instant::now();
        drop(paced.begins_now());
        let full_at = sync::lock(&pace.inner).contexts.full_at;
        assert!(full_at.is_none_or(|at| at < now + refill(USUAL)));
        let mut paced = pace.take(&|| true).unwrap();
        paced.since = paced.since.checked_sub(USUAL).unwrap();
        drop(paced);
        let full_at = sync::lock(&pace.inner).contexts.full_at;
        assert!(full_at.is_some_and(|at| at >= now + refill(USUAL)));
    }

    #[test]
    fn a_call_that_others_held_up_shuts_nobody_out() {
        let mut inner = Inner::default();
        let now = Instant::now();
        let hung = Duration::from_secs(3_600);
        inner.contexts.spend(now, hung, BURST);
        assert_eq!(inner.wait(now), Duration::ZERO, "half of the burst is left");
        assert_eq!(inner.contexts.full_at, Some(now + refill(MOST)));
        for _ in 0..100 {
            inner.contexts.spend(now, hung, BURST);
        }
        assert_eq!(inner.wait(now), LONGEST);
        let later = now + LONGEST;
        assert_eq!(inner.wait(later), Duration::ZERO);
        inner.contexts.spend(later, hung, BURST);
        assert_eq!(inner.wait(later), LONGEST, "whoever goes on waits again");
    }

    #[test]
    fn what_frees_have_taken_keeps_no_context_waiting() {
        let pace = Pace::default();
        let free = |took: Duration| {
            let mut paced = pace.count();
            paced.since = paced.since.checked_sub(took).unwrap();
        };
        // Eight processes end, and eight begin.
        for _ in 0..8 {
            free(2 * USUAL - FREE);
        }
        assert_eq!(pace.wait_for_frees(&|| false), Ok(()));
        for _ in 0..100 {
            free(MOST);
        }
        assert_eq!(pace.wait_for_frees(&|| false), Err(GivenUp));
        let through = (0..9).map_while(|_| pace.take(&|| true).ok());
        assert_eq!(through.collect::<Vec<_>>().len(), 9);
    }

    #[test]
    fn short_calls_do_not_wait() {
        let mut inner = Inner::default();
        let now = Instant::now();
        for _ in 0..100_000 {
            inner.contexts.spend(now, FREE, BURST);
        }
        assert_eq!(inner.wait(now), Duration::ZERO);
    }
}
