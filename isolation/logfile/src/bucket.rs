//! So many at once, and then one in a while.

use std::time::{Duration, Instant};

/// A bucket of tokens.
#[derive(Debug)]
pub(crate) struct Bucket {
    burst: u32,
    period: Duration,
    tokens: u32,
    /// The last moment at which a token came.
    refilled_at: Option<Instant>,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(burst: u32, period: Duration) -> Self {
        Self {
            burst,
            period,
            tokens: burst,
            refilled_at: None,
        }
    }

    /// Takes a token; `false`: there is none.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let since = self.refilled_at.get_or_insert(now);
        let elapsed = now.saturating_duration_since(*since);
        let periods = elapsed.as_nanos() / self.period.as_nanos().max(1);
        if periods > 0 {
            let more = u32::try_from(periods).unwrap_or(u32::MAX);
            self.tokens = self.tokens.saturating_add(more).min(self.burst);
            *since = now;
        }
        match self.tokens.checked_sub(1) {
            Some(left) => {
                self.tokens = left;
                true
            }
            None => false,
        }
    }
}
