//! The clock of the cards: CLOCK_MONOTONIC, in nanoseconds, as brokers and clients read it.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn monotonic_ns() -> u64 {
    // The clock cannot be missing, and is not negative.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .ok()
        .and_then(|now| {
            let seconds = u64::try_from(now.tv_sec()).ok()?;
            let rest = u64::try_from(now.tv_nsec()).ok()?;
            Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
        })
        .unwrap_or(0)
}
