//! How long the driver's calls take on a card, and whether they are too slow for a gate.

use crate::breaker::{Breaker, SLOW_NS, Verdict};
use crate::knob::{Knob, Spent};
use crate::latency::Timing;

/// First guesses, before calls were measured: section 2.3 of the design.
const OPEN_NS: u64 = 160_000;
const CLOSE_NS: u64 = 220_000;

/// The times of one card's calls.
#[derive(Debug)]
pub(super) struct CallTimes {
    pub(super) opening: Timing,
    pub(super) closing: Timing,
    pub(super) all: Timing,
    breaker: Breaker,
    /// The circuit breaker is open: nothing is gated.
    pub(super) is_resting: bool,
}

/// What a call's time says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timed {
    /// It took longer than [`SLOW_NS`].
    pub(super) is_slow: bool,
    /// The circuit breaker opens.
    pub(super) is_broken: bool,
}

impl Default for CallTimes {
    fn default() -> Self {
        Self {
            opening: Timing::new(OPEN_NS),
            closing: Timing::new(CLOSE_NS),
            all: Timing::new(OPEN_NS),
            breaker: Breaker::default(),
            is_resting: false,
        }
    }
}

impl CallTimes {
    /// Takes in a call's time; `None`: a knob that made no call says nothing of the driver.
    pub(super) fn record(
        &mut self,
        knob: &Knob,
        spent: Spent,
        now_ns: u64,
        beside_own: bool,
    ) -> Option<Timed> {
        let took_ns = spent.each_ns()?;
        self.all.record(took_ns);
        match knob {
            Knob::Open { .. } | Knob::Schedule { on: true, .. } => self.opening.record(took_ns),
            Knob::Close {
                after_slice: false, ..
            }
            | Knob::Schedule { on: false, .. } => self.closing.record(took_ns),
            // One that closes after a slice waits for the slice's end: how long that took says nothing. The others move no gate.
            Knob::Close { .. }
            | Knob::SetTimeslice { .. }
            | Knob::GetTimeslice { .. }
            | Knob::Interleave { .. }
            | Knob::Preempt { .. } => {}
        }
        let verdict = self.breaker.record(now_ns, spent.longest_ns, beside_own);
        Some(Timed {
            is_slow: spent.longest_ns > SLOW_NS,
            is_broken: verdict == Verdict::Broken,
        })
    }

    /// Until when nothing is gated, where that is so.
    pub(super) fn resting_until(&self, now_ns: u64) -> Option<u64> {
        self.breaker.resting(now_ns).filter(|_| self.is_resting)
    }

    /// Whether it rests otherwise than it did.
    pub(super) fn review(&mut self, now_ns: u64) -> bool {
        let is_resting = self.resting_until(now_ns).is_some();
        std::mem::replace(&mut self.is_resting, is_resting) != is_resting
    }
}
