//! A measured value, and what can be said of a promise by it.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{quantile, sorted};

/// A value, and the interval in which it lies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Value {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Whether others on the machine have a part in it.
    is_time: bool,
}

/// What a row says of its promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Judgement {
    Holds,
    Inconclusive,
    Missed,
}

impl Value {
    /// A count, a size: the same on a busy machine.
    pub(super) fn counted(value: f64) -> Self {
        Self {
            value,
            low: value,
            high: value,
            is_time: false,
        }
    }

    /// Of times, with nothing known of how far it may be off.
    pub(super) fn timed(value: f64) -> Self {
        Self {
            is_time: true,
            ..Self::counted(value)
        }
    }

    /// The median of what each turn gave. The interval is that of the order statistics which have it between them with 95 %
    /// confidence, whatever the distribution; all turns where they are too few for that.
    pub(super) fn of_turns(turns: Vec<f64>) -> Self {
        let turns = sorted(turns);
        let count = turns.len() as f64;
        // Of n turns those below the median are distributed as B(n, 1/2), of which 95 % lie within 1.96 √n / 2 of n / 2.
        let outside = (count / 2.0 - 0.98 * count.sqrt()).floor().max(1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 1 and the number of turns"
        )]
        let outside = outside as usize;
        let at = |index: Option<usize>| {
            let found = index.and_then(|index| turns.get(index));
            found.copied().unwrap_or_default()
        };
        Self {
            value: quantile(&turns, 0.5),
            low: at(outside.checked_sub(1)),
            high: at(turns.len().checked_sub(outside)),
            is_time: true,
        }
    }

    /// Whether it is `most` at the most.
    pub(super) fn judged(self, most: f64, is_loaded: bool) -> Judgement {
        if is_loaded && self.is_time {
            Judgement::Inconclusive
        } else if self.high <= most {
            Judgement::Holds
        } else if self.low > most {
            Judgement::Missed
        } else {
            Judgement::Inconclusive
        }
    }
}

impl Judgement {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Inconclusive => "inconclusive",
            Self::Missed => "MISSED",
        }
    }
}

/// Of all processors' time: what others may use while nothing is measured.
const OTHERS: f64 = 0.1;
const LOOK: Duration = Duration::from_millis(500);

/// Whether others are busy on this machine, while the bench is not.
pub(super) fn is_loaded() -> Result<bool> {
    let before = times()?;
    thread::sleep(LOOK);
    let after = times()?;
    let all = after.0.saturating_sub(before.0).max(1);
    let busy = after.1.saturating_sub(before.1);
    Ok(busy as f64 / all as f64 > OTHERS)
}

/// Ticks of all processors since the start, and those in which they did something.
fn times() -> Result<(u64, u64)> {
    let path = "/proc/stat";
    let text = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    parsed(&text).with_context(|| format!("no times of all processors in {path}"))
}

/// proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal; the guests' times are in the first two.
fn parsed(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields = line.split_whitespace().take(8).map(str::parse::<u64>);
    let fields: Vec<u64> = fields.collect::<Result<_, _>>().ok()?;
    let all: u64 = fields.iter().sum();
    let idle = fields.get(3)? + fields.get(4)?;
    Some((all, all - idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_is_that_of_its_order_statistics() {
        let thirty = Value::of_turns((1..=30).rev().map(f64::from).collect());
        assert_eq!((thirty.low, thirty.high), (9.0, 22.0));
        let three = Value::of_turns(vec![3.0, 1.0, 2.0]);
        assert_eq!((three.low, three.value, three.high), (1.0, 2.0, 3.0));
        let none = Value::of_turns(vec![]);
        assert_eq!((none.low, none.high), (0.0, 0.0));
    }

    #[test]
    fn a_promise_is_judged_by_all_of_the_interval() {
        let value = Value::of_turns(vec![1.0, 1.2, 1.4]);
        assert_eq!(value.judged(1.5, false), Judgement::Holds);
        assert_eq!(value.judged(1.3, false), Judgement::Inconclusive);
        assert_eq!(value.judged(0.9, false), Judgement::Missed);
        assert_eq!(Value::timed(2.0).judged(1.0, false), Judgement::Missed);
    }

    #[test]
    fn a_busy_machine_decides_nothing_of_times_and_all_of_counts() {
        assert_eq!(Value::timed(2.0).judged(1.0, true), Judgement::Inconclusive);
        assert_eq!(Value::timed(0.5).judged(1.0, true), Judgement::Inconclusive);
        assert_eq!(Value::counted(2.0).judged(1.0, true), Judgement::Missed);
    }

    #[test]
    fn processors_that_wait_are_not_busy() {
        let stat = "cpu  10 1 5 100 20 1 2 3 7 0\ncpu0 1 2 3\n";
        assert_eq!(parsed(stat), Some((142, 22)));
        assert_eq!(parsed("cpu0 1 2 3\n"), None);
    }
}
