//! How long to wait before something is tried again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Waits that double, each with a random part, so that the agents of a cluster do not come back all at once.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It worked.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// It failed once more: waits so long before the next try.
    pub(crate) fn next(&mut self) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(6)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let random = RandomState::new().hash_one(self.failures) % 500;
        doubled / 2 + doubled * u32::try_from(random).unwrap_or(0) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_start_anew() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..20).map(|_try| backoff.next()).collect();
        assert!(waits[0] >= FIRST / 2 && waits[0] <= FIRST, "{waits:?}");
        assert!(
            waits[19] >= LONGEST / 2 && waits[19] <= LONGEST,
            "{waits:?}"
        );
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
