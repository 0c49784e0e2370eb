//! How often a tenant may do what costs its neighbours or the host.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use sys::sync;

/// No call waits longer.
pub const LONGEST: Duration = Duration::from_millis(250);
/// What is there at once, as the time in which it comes.
const FULL: Duration = Duration::from_secs(1);

/// A bucket of one container. It is filled within a second: as many calls cost no waiting at once as further ones come in a second.
#[derive(Debug)]
pub struct Bucket {
    /// In which one comes.
    token: Duration,
    /// When the bucket will be full again; `None`: it is.
    full_at: Mutex<Option<Instant>>,
}

impl Bucket {
    /// A full one, by the time in which one more call may come.
    #[must_use]
    pub const fn new(token: Duration) -> Self {
        Self {
            token,
            full_at: Mutex::new(None),
        }
    }

    /// For how long a call of this moment has to wait; `None`: longer than [`LONGEST`], and nothing is taken for it.
    pub fn take(&self, now: Instant) -> Option<Duration> {
        let mut full_at = sync::lock(&self.full_at);
        let filling = full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let with_this = filling.saturating_add(self.token);
        let wait = with_this.saturating_sub(FULL);
        if wait > LONGEST {
            return None;
        }
        *full_at = Some(now + with_this);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: u32 = 20;
    const TOKEN: Duration = Duration::from_millis(50);

    #[test]
    fn a_flood_gets_so_many_in_a_second() {
        let bucket = Bucket::new(TOKEN);
        let start = Instant::now();
        let mut let_through = 0;
        for micros in (0..10_000_000).step_by(1000) {
            let now = start + Duration::from_micros(micros);
            let_through += u32::from(bucket.take(now).is_some());
        }
        let most = BURST + BURST * 10 + 6;
        assert!((most - 8..=most).contains(&let_through), "{let_through}");
    }

    #[test]
    fn the_first_ones_do_not_wait() {
        let bucket = Bucket::new(TOKEN);
        let now = Instant::now();
        for _ in 0..BURST {
            assert_eq!(bucket.take(now), Some(Duration::ZERO));
        }
        assert!(bucket.take(now).is_some_and(|wait| !wait.is_zero()));
    }
}
