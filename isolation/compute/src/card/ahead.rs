//! What segments that are not over yet pay of what their container owes, or is owed.
//!
//! The gate asks for its next segment as soon as the last one ends, and for one after another until one is to be opened. What each of them pays is taken off at
//! once, though it is paid only when its time has passed. Under another cycle the gate asks again: what is still ahead of those is owed again then.

use plan::{DriftCorrection, Least, Paid};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    segments: Vec<Segment>,
}

#[derive(Debug)]
struct Segment {
    /// Its place by the layout.
    start_ns: u64,
    end_ns: u64,
    /// How long it is to be open.
    open_ns: u64,
    paid: Paid,
}

impl Ahead {
    /// Asks for the length of a segment.
    pub(super) fn ask(
        &mut self,
        drift: &mut DriftCorrection,
        start_ns: u64,
        length_ns: u64,
        at_least: Least,
    ) -> u64 {
        let (open_ns, paid) = drift.next(length_ns, at_least);
        if paid != Paid::default() {
            self.segments.push(Segment {
                start_ns,
                end_ns: start_ns.saturating_add(length_ns),
                open_ns,
                paid,
            });
        }
        open_ns
    }

    /// Forgets segments that are over.
    pub(super) fn pass(&mut self, now_ns: u64) {
        self.segments
            .retain(|segment| segment.left(now_ns) != Paid::default());
    }

    /// What is still to be paid, or had: it is carried neither by the drift correction nor by the past.
    pub(super) fn carries(&self) -> bool {
        let mut segments = self.segments.iter();
        segments.any(|segment| segment.paid.carried_ns != 0)
    }

    /// The gate asks anew.
    pub(super) fn hand_back(&mut self, drift: &mut DriftCorrection, now_ns: u64) {
        for segment in self.segments.drain(..) {
            drift.hand_back(segment.left(now_ns));
        }
    }
}

impl Segment {
    /// What of its payment is not made yet. What it is shorter by is paid at its end, and what it is longer by is had after that.
    fn left(&self, now_ns: u64) -> Paid {
        let until = |end_ns: u64, most_ns: i64| {
            let left_ns = i64::try_from(end_ns.saturating_sub(now_ns)).unwrap_or(i64::MAX);
            left_ns.min(most_ns.saturating_abs()) * most_ns.signum()
        };
        let opened_ns = self.start_ns.saturating_add(self.open_ns);
        let paid = &self.paid;
        Paid {
            carried_ns: match paid.carried_ns < 0 {
                true => until(opened_ns, paid.carried_ns),
                false => until(self.end_ns, paid.carried_ns),
            },
            earned_ns: match now_ns < self.end_ns {
                true => paid.earned_ns,
                false => 0,
            },
            spent_ns: until(opened_ns, paid.spent_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn owing(ahead_ms: i64, added_most_ns: u64) -> (Ahead, DriftCorrection, Vec<u64>) {
        let (mut ahead, mut drift) = (Ahead::default(), DriftCorrection::default());
        drift.carry(ahead_ms * 1_000_000, added_most_ns);
        let starts = [1_000, 1_100, 1_200].map(|start_ms| start_ms * MS);
        let lengths =
            starts.map(|start_ns| ahead.ask(&mut drift, start_ns, 20 * MS, Least::Nothing));
        (ahead, drift, lengths.to_vec())
    }

    #[test]
    fn what_is_still_ahead_is_owed_again_and_what_has_passed_is_paid() {
        for (now_ms, owed_ms) in [
            (900, 50),
            (1_000, 50),
            (1_005, 45),
            (1_050, 30),
            (1_110, 20),
            (1_200, 10),
            (1_215, 5),
            (1_300, 0),
        ] {
            let (mut ahead, mut drift, lengths) = owing(50, 0);
            assert_eq!((lengths, drift.carried_ns()), (vec![0, 0, 10 * MS], 0));
            ahead.pass(now_ms * MS);
            assert_eq!(ahead.carries(), owed_ms > 0);
            ahead.hand_back(&mut drift, now_ms * MS);
            assert_eq!(drift.carried_ns(), owed_ms * 1_000_000, "{now_ms}");
            assert!(!ahead.carries());
        }
    }

    #[test]
    fn what_is_made_up_for_is_not_lost_with_a_segment_that_does_not_come() {
        for (now_ms, owed_ms) in [(900, -5), (1_021, -4), (1_050, -3), (1_122, -1), (1_300, 0)] {
            let (mut ahead, mut drift, lengths) = owing(-5, 2 * MS);
            assert_eq!(lengths, [22 * MS, 22 * MS, 21 * MS]);
            ahead.hand_back(&mut drift, now_ms * MS);
            assert_eq!(drift.carried_ns(), owed_ms * 1_000_000, "{now_ms}");
        }
    }

    #[test]
    fn asking_again_and_again_opens_no_segment_that_was_too_short() {
        // A segment of 3 ms of which half is left: less than is worth its calls, and opened every other time.
        let mut drift = DriftCorrection::resumed(i64::MAX, 3 * MS);
        let mut ahead = Ahead::default();
        let ask = |ahead: &mut Ahead, drift: &mut DriftCorrection, start_ms: u64| {
            ahead.ask(drift, start_ms * MS, 3 * MS, Least::Nothing)
        };
        for turn in 0..100 {
            assert_eq!(ask(&mut ahead, &mut drift, 1_000), 0);
            ahead.hand_back(&mut drift, 1_000 * MS + turn);
        }
        assert_eq!(ask(&mut ahead, &mut drift, 1_000), 0);
        assert_eq!(ask(&mut ahead, &mut drift, 1_100), 2 * MS);
    }
}
