//! A tenant that is refused all the time waits for its refusals.
//!
//! The cost of a refusal is the broker's and so the host's: without a limit one tenant's useless calls take the processors from
//! its neighbours. Honest programs are refused now and then, and never notice.
//!
//! 2000 refusals cost no waiting at once, and as many further ones a second; no one waits longer than [`LONGEST`], however many wait. The waiting
//! threads do not count among those that a container may have at work ([`crate::workers`]), so that its other calls find one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use share::bucket::{Bucket, LONGEST};

/// In which one more refusal costs no waiting.
const TOKEN: Duration = Duration::from_micros(500);

/// The bucket of one container.
#[derive(Debug)]
pub struct Throttle {
    bucket: Bucket,
    waiting: AtomicUsize,
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            bucket: Bucket::new(TOKEN),
            waiting: AtomicUsize::new(0),
        }
    }
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
        // Beyond the longest wait nothing is owed: those calls have waited for it already.
        self.bucket.take(now).unwrap_or(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: u32 = 2_000;

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
