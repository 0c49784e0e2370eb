//! How often a tenant may have the driver preempt: each call takes the driver's locks of all cards for a quarter of a millisecond and
//! more, and its neighbours' calls wait for them.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use sys::sync;

/// Calls that cost no waiting, at once.
const BURST: u32 = 20;
/// And further ones in a second.
const PER_SECOND: u32 = 20;
/// In which one comes.
const TOKEN: Duration = Duration::from_nanos(1_000_000_000 / PER_SECOND as u64);
/// No call waits longer: it is told that it has timed out, as the driver tells one that could not preempt.
const LONGEST: Duration = Duration::from_millis(250);

/// The bucket of one container.
#[derive(Debug, Default)]
pub(crate) struct Preempts {
    /// When the bucket will be full again; `None`: it is.
    full_at: Mutex<Option<Instant>>,
}

impl Preempts {
    /// For how long a call of this moment has to wait; `None`: too many wait already.
    pub(crate) fn take(&self, now: Instant) -> Option<Duration> {
        let mut full_at = sync::lock(&self.full_at);
        let filling = full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let with_this = filling.saturating_add(TOKEN);
        let wait = with_this.saturating_sub(TOKEN.saturating_mul(BURST));
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

    #[test]
    fn a_flood_gets_so_many_in_a_second() {
        let preempts = Preempts::default();
        let start = Instant::now();
        let mut let_through = 0;
        for micros in (0..10_000_000).step_by(1000) {
            let now = start + Duration::from_micros(micros);
            let_through += u32::from(preempts.take(now).is_some());
        }
        let most = BURST + PER_SECOND * 10 + 6;
        assert!((most - 8..=most).contains(&let_through), "{let_through}");
    }

    #[test]
    fn the_first_ones_do_not_wait() {
        let preempts = Preempts::default();
        let now = Instant::now();
        for _ in 0..BURST {
            assert_eq!(preempts.take(now), Some(Duration::ZERO));
        }
        assert!(preempts.take(now).is_some_and(|wait| !wait.is_zero()));
    }
}
