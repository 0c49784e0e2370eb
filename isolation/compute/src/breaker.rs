//! Lays the gate to rest when calls to the driver become slow: each holds locks that all cards of the node wait for.

/// A call is slow from here on.
pub const SLOW_NS: u64 = 50_000_000;

/// So many slow calls in a row break the circuit. In a row: a tenant that makes the driver's locks wait now and then must not rid itself of its cap.
pub const SLOW_CALLS: u32 = 3;

/// How long the gate rests.
pub const REST_NS: u64 = 60_000_000_000;

/// The circuit breaker of one card.
#[derive(Debug, Clone, Copy, Default)]
pub struct Breaker {
    slow_in_a_row: u32,
    until_ns: Option<u64>,
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
    /// Takes in a call that ended now.
    pub fn record(&mut self, now_ns: u64, took_ns: u64) -> Verdict {
        if took_ns <= SLOW_NS {
            self.slow_in_a_row = 0;
            return Verdict::Fine;
        }
        self.slow_in_a_row += 1;
        if self.slow_in_a_row < SLOW_CALLS {
            return Verdict::Fine;
        }
        self.slow_in_a_row = 0;
        let broken = if self.resting(now_ns).is_none() {
            Verdict::Broken
        } else {
            Verdict::Fine
        };
        self.until_ns = Some(now_ns.saturating_add(REST_NS));
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

    #[test]
    fn three_slow_calls_in_a_row_rest_the_gate_for_a_minute() {
        let mut breaker = Breaker::default();
        assert_eq!(breaker.record(1, SLOW_NS + 1), Verdict::Fine);
        assert_eq!(breaker.record(2, SLOW_NS + 1), Verdict::Fine);
        assert_eq!(breaker.record(3, 1_000), Verdict::Fine);
        assert_eq!(breaker.record(4, SLOW_NS + 1), Verdict::Fine);
        assert_eq!(breaker.record(5, SLOW_NS + 1), Verdict::Fine);
        assert_eq!(breaker.resting(6), None);
        assert_eq!(breaker.record(6, SLOW_NS + 1), Verdict::Broken);
        assert_eq!(breaker.resting(6), Some(6 + REST_NS));
        assert_eq!(breaker.resting(6 + REST_NS), None);
    }
}
