//! When the next broker starts after one that did not live long.

use std::time::Duration;

use super::child::{Death, Step};

/// A broker or supervisor that served for less than this counts as a failure, and the next one starts later each time.
pub(crate) const SHORT_LIFE: Duration = Duration::from_secs(2);
/// So many starts in a row may fail at no cost; then the delay doubles.
const FREE_FAILURES: u32 = 3;
/// Between two starts that fail at a cost.
pub(super) const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);
/// So many short lives in a row come at no cost; then each next one waits a little longer.
const FREE_DEATHS: u32 = 64;
const PAUSE_STEP: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How long after its end the next one starts, where so many ended like it right before. One that does not even serve has little hope, one
/// that has served may have been killed by somebody, or by a tenant that has found a way to: neither may keep the host busy.
pub(super) fn before_next(step: Step, death: Death, times: u32) -> Duration {
    if step == Step::Serving || death.is_kill() {
        let steps = times.saturating_sub(FREE_DEATHS);
        return PAUSE_STEP.saturating_mul(steps).min(LONGEST_PAUSE);
    }
    times
        .checked_sub(FREE_FAILURES)
        .map_or(Duration::ZERO, doubled)
}

/// After so many failures at a cost before this one.
pub(crate) fn doubled(before: u32) -> Duration {
    FIRST.saturating_mul(1 << before.min(10)).min(LONGEST)
}
