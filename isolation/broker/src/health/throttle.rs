//! A tenant that is refused all the time waits for its refusals.
//!
//! The cost of a refusal is the broker's and so the host's: without a limit one tenant's useless calls take the processors from
//! its neighbours. Honest programs are refused now and then, and never notice.
//!
//! A bucket of [`BURST`] tokens is refilled with [`PER_SECOND`]; a refusal takes one, and waits until there is one. The waiting
//! threads do not count among those that a container may have at work ([`crate::workers`]), so that its other calls find one.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sys::sync;

/// Refusals that cost no waiting, at once.
const BURST: u32 = 2_000;
/// And further ones in a second.
const PER_SECOND: u32 = 2_000;
/// In which one comes.
const TOKEN: Duration = Duration::from_nanos(1_000_000_000 / PER_SECOND as u64);
/// No refusal waits longer, however many wait.
const LONGEST: Duration = Duration::from_millis(250);

/// The bucket of one container.
#[derive(Debug, Default)]
pub struct Throttle {
    /// When the bucket will be full again; `None`: it is.
    full_at: Mutex<Option<Instant>>,
    waiting: AtomicUsize,
}

impl Throttle {
    /// Takes a token, and waits for it; says whether it had to.
    pub fn hold_up(&self) -> bool {
        let wait = self.take(Instant::now());
        if wait.is_zero() {
            return false;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(wait);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        true
    }

    /// How many threads wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// For how long a refusal of this moment has to wait.
    fn take(&self, now: Instant) -> Duration {
        let mut full_at = sync::lock(&self.full_at);
        let filling = full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        // Beyond the longest wait nothing is owed: those calls have waited for it already.
        let burst = TOKEN.saturating_mul(BURST);
        let most = burst.saturating_add(LONGEST);
        let filling = filling.saturating_add(TOKEN).min(most);
        *full_at = Some(now + filling);
        filling.saturating_sub(burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_then_every_refusal_waits_for_its_token() {
        let throttle = Throttle::default();
        let start = Instant::now();
        for _ in 0..BURST {
            assert_eq!(throttle.take(start), Duration::ZERO);
        }
        assert_eq!(throttle.take(start), TOKEN);
        assert_eq!(throttle.take(start), TOKEN * 2);
        // Half a second later half of the bucket is there again.
        let later = start + Duration::from_millis(500);
        for _ in 0..BURST / 2 - 2 {
            assert_eq!(throttle.take(later), Duration::ZERO);
        }
        assert!(throttle.take(later) > Duration::ZERO);
        let much_later = start + Duration::from_secs(10);
        assert_eq!(throttle.take(much_later), Duration::ZERO);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let throttle = Throttle::default();
        let start = Instant::now();
        let longest = (0..100_000).map(|_| throttle.take(start)).max();
        assert_eq!(longest, Some(LONGEST));
    }
}
