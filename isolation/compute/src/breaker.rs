//! Circuit breaker: stops gating while the driver itself is slow. Each call of a gate holds locks that all cards of the node wait for.
//!
//! A tenant must not be able to open it. Only the driver's own time counts, not what a knob waits for before and between its calls; a slow call
//! beside one of the container's own says nothing, since it may have waited for that one's locks; and calls have to be slow for seconds
//! on end, longer than any one container of the node, with terms or without, may hold the driver's locks to make contexts
//! (`share/src/pace.rs`), on whichever card that is. What is left of that is in `docs/guide/scheduling.md`, *What does not hold*.

/// A call is slow from here on.
pub const SLOW_NS: u64 = 50_000_000;

/// So many slow calls in a row break the circuit, once the row has lasted [`ROW_NS`].
pub const SLOW_CALLS: u32 = 3;

/// How long no call has been fast before the circuit breaks.
pub const ROW_NS: u64 = 5_000_000_000;

/// How long the gate rests at first; twice as long each time that calls are still slow afterwards.
pub const REST_NS: u64 = 1_000_000_000;

/// And at most.
pub const REST_MAX_NS: u64 = 60_000_000_000;

/// The circuit breaker of one card.
#[derive(Debug, Clone, Copy, Default)]
pub struct Breaker {
    slow_in_a_row: u32,
    row_since_ns: u64,
    until_ns: Option<u64>,
    /// How often it broke without a fast call in between.
    times: u32,
}

/// Whether a call broke the circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It did not.
    Fine,
    /// The gate rests from now on.
    Broken,
}

impl Breaker {
    /// Takes in a call that ended now and for which the driver took so long. `beside_own`: a call of the container's own was in the driver meanwhile.
    pub fn record(&mut self, now_ns: u64, took_ns: u64, beside_own: bool) -> Verdict {
        if took_ns <= SLOW_NS {
            (self.slow_in_a_row, self.times) = (0, 0);
            return Verdict::Fine;
        }
        if beside_own {
            return Verdict::Fine;
        }
        if self.slow_in_a_row == 0 {
            self.row_since_ns = now_ns.saturating_sub(took_ns);
        }
        self.slow_in_a_row = self.slow_in_a_row.saturating_add(1);
        let lasted_ns = now_ns.saturating_sub(self.row_since_ns);
        if self.slow_in_a_row < SLOW_CALLS || lasted_ns < ROW_NS {
            return Verdict::Fine;
        }
        self.slow_in_a_row = 0;
        let broken = match self.resting(now_ns) {
            None => Verdict::Broken,
            Some(_) => Verdict::Fine,
        };
        let rest_ns = REST_NS
            .saturating_mul(1 << self.times.min(6))
            .min(REST_MAX_NS);
        self.times = self.times.saturating_add(1);
        self.until_ns = Some(now_ns.saturating_add(rest_ns));
        broken
    }

    /// Until when the gate rests.
    #[must_use]
    pub fn resting(&self, now_ns: u64) -> Option<u64> {
        self.until_ns.filter(|until_ns| now_ns < *until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: u64 = SLOW_NS + 1;
    const MS: u64 = 1_000_000;

    /// Slow calls one after the other, from a time on, until one breaks the circuit: when that is.
    fn broken_at(breaker: &mut Breaker, from_ns: u64, most_ns: u64) -> Option<u64> {
        let ends = (1..).map(|call| from_ns + call * SLOW);
        ends.take_while(|at_ns| at_ns - from_ns < most_ns)
            .find(|at_ns| breaker.record(*at_ns, SLOW, false) == Verdict::Broken)
    }

    #[test]
    fn calls_that_are_slow_for_seconds_rest_the_gate_longer_each_time() {
        let mut breaker = Breaker::default();
        let mut at_ns = 0;
        let mut rests = Vec::new();
        for _ in 0..9 {
            let broken_ns = broken_at(&mut breaker, at_ns, 2 * ROW_NS).unwrap();
            assert!(broken_ns - at_ns >= ROW_NS, "{at_ns}: {broken_ns}");
            at_ns = breaker.resting(broken_ns).unwrap();
            assert_eq!(breaker.resting(at_ns), None);
            rests.push((at_ns - broken_ns) / REST_NS);
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        // A fast one, and all is as at first.
        breaker.record(at_ns, MS, false);
        let broken_ns = broken_at(&mut breaker, at_ns, 2 * ROW_NS).unwrap();
        assert_eq!(breaker.resting(broken_ns), Some(broken_ns + REST_NS));
    }

    #[test]
    fn one_fast_call_ends_the_row() {
        let mut breaker = Breaker::default();
        for row in 0..20 {
            let from_ns = row * ROW_NS;
            assert_eq!(broken_at(&mut breaker, from_ns, ROW_NS - SLOW), None);
            breaker.record(from_ns + ROW_NS - MS, MS, false);
        }
    }

    #[test]
    fn what_a_container_does_to_itself_breaks_nothing() {
        let mut breaker = Breaker::default();
        for call in 1..1_000 {
            assert_eq!(breaker.record(call * SLOW, SLOW, true), Verdict::Fine);
        }
        assert_eq!(breaker.resting(1_000 * SLOW), None);
    }
}
