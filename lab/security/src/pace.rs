//! How long an attack goes on.

use std::time::{Duration, Instant};

/// How long an attack waits for what comes at once on a quiet machine: the machine may be busy, and what never comes fails later.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long two sides race, and for how many calls at least: each side is met by some.
const RACE: Duration = Duration::from_millis(400);
const CALLS_LEAST: u64 = 20;

/// A time, and more of it where the machine is so slow that the time brings nothing to judge.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    began: Instant,
    least: Duration,
    enough: u64,
}

impl Pace {
    /// Begins now: for `least`, and until there are `enough`.
    pub(crate) fn new(least: Duration, enough: u64) -> Self {
        let began = Instant::now();
        Self {
            began,
            least,
            enough,
        }
    }

    /// Begins a race, which is judged by its calls.
    pub(crate) fn race() -> Self {
        Self::new(RACE, CALLS_LEAST)
    }

    /// Whether to go on after so many. Where even so few take longer than [`PATIENCE`], the attack is judged by what it has.
    pub(crate) fn goes_on(&self, done: u64) -> bool {
        let took = self.began.elapsed();
        took < self.least || (done < self.enough && took < PATIENCE)
    }
}
