//! What a broker that died leaves its successor to make even: while nobody turned the gate, its container had more than its part, or less.

use plan::ShareRecord;

use crate::world::Used;

/// An account that is older than this when a successor comes says nothing: terms and neighbours may have been others meanwhile.
const OLDEST_NS: u64 = 10_000_000_000;

/// So much of a container's time is made even at most: what it had beyond is let go, and it never waits longer for having had it.
const MOST_NS: u64 = 300_000_000;

/// What a container has had since a time at which its share was even.
#[derive(Debug, Default)]
pub(crate) struct CarryOver {
    /// That time, and what the account said then.
    even: Option<Used>,
    inherited: Option<Inherited>,
    /// What was carried over is given back, or made up for, by then.
    until_ns: u64,
}

/// What a predecessor left.
#[derive(Debug, Clone, Copy)]
struct Inherited {
    /// From when on the account shows all that happened without a governor.
    since_ns: u64,
    /// When the gate was left closed.
    closed_ns: Option<u64>,
}

/// What there is to be made even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Ahead by this; negative: behind.
    pub(crate) ahead_ns: i64,
}

/// What the layout promised between two times, nanoseconds of the card.
pub(crate) type Entitled<'a> = &'a dyn Fn(u64, u64) -> u64;

impl CarryOver {
    /// That of a container whose former broker left this record.
    pub(crate) fn of(left: &ShareRecord, now_ns: u64) -> Self {
        let even = left.used_ns.filter(|_| left.used_at_ns > 0);
        let even = even.map(|used_ns| Used {
            used_ns,
            at_ns: left.used_at_ns,
        });
        let fresh = even
            .filter(|even| even.at_ns <= now_ns && now_ns.saturating_sub(even.at_ns) <= OLDEST_NS);
        Self {
            even: fresh,
            inherited: fresh.map(|_| Inherited {
                since_ns: now_ns,
                closed_ns: (left.gate != plan::GateState::Open).then_some(left.gate_since_ns),
            }),
            until_ns: 0,
        }
    }

    /// What the record says of the account.
    pub(crate) fn even(&self) -> Option<Used> {
        self.even
    }

    /// Whether the account is still unlike what the layout promised, for no fault of calls.
    pub(crate) fn is_uneven(&self, at_ns: u64) -> bool {
        self.inherited.is_some() || at_ns < self.until_ns
    }

    /// Takes in the account. Once, when it shows all that happened without a governor: what there is to be made even.
    pub(crate) fn settle(
        &mut self,
        last: Used,
        entitlement_ppm: u32,
        entitled: Entitled<'_>,
    ) -> Option<Carried> {
        let inherited = self.inherited?;
        let even = self.even?;
        if last.at_ns < inherited.since_ns {
            return None;
        }
        self.inherited = None;
        if last.used_ns < even.used_ns {
            // The account began anew.
            self.even = Some(last);
            return None;
        }
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let ahead = signed(last.used_ns - even.used_ns)
            .saturating_sub(signed(entitled(even.at_ns, last.at_ns)));
        // What it did not use while its gate was open, it did not want.
        let kept_from = inherited.closed_ns.map_or(0, |closed_ns| {
            signed(entitled(closed_ns.max(even.at_ns), inherited.since_ns))
        });
        let most = signed(portion(MOST_NS, entitlement_ppm));
        let carried = ahead.clamp(-kept_from.min(most), most);
        // What is let go is even.
        let let_go = ahead.saturating_sub(carried);
        self.even = Some(Used {
            used_ns: even.used_ns.saturating_add_signed(let_go),
            at_ns: even.at_ns,
        });
        Some(Carried { ahead_ns: carried })
    }

    /// The share is not even yet, and will not be before that time.
    pub(crate) fn not_before(&mut self, at_ns: u64) {
        self.until_ns = at_ns;
    }

    /// The account as it was when the share was even last.
    pub(crate) fn follow(&mut self, last: Option<Used>) {
        if self.inherited.is_none()
            && let Some(last) = last
            && last.at_ns >= self.until_ns
        {
            self.even = Some(last);
        }
    }

    /// Whatever was carried over belongs to other terms.
    pub(crate) fn forget(&mut self, last: Option<Used>) {
        *self = Self {
            even: last,
            ..Self::default()
        };
    }
}

fn portion(ns: u64, ppm: u32) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(ppm) / 1_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::GateState;

    const MS: u64 = 1_000_000;

    /// 30 % of the card, all of the time alike.
    fn third(from_ns: u64, to_ns: u64) -> u64 {
        to_ns.saturating_sub(from_ns) * 3 / 10
    }

    fn left(gate: GateState, gate_since_ns: u64) -> ShareRecord {
        let mut record = ShareRecord::new("a/b", 1, 2, 3);
        (record.gate, record.gate_since_ns) = (gate, gate_since_ns);
        (record.used_ns, record.used_at_ns) = (Some(500 * MS), 1_000 * MS);
        record
    }

    fn settled(record: &ShareRecord, now_ms: u64, used_ms: u64, at_ms: u64) -> Option<i64> {
        let mut carry_over = CarryOver::of(record, now_ms * MS);
        let last = Used {
            used_ns: used_ms * MS,
            at_ns: at_ms * MS,
        };
        let carried = carry_over.settle(last, 300_000, &third);
        carried.map(|carried| carried.ahead_ns / 1_000_000)
    }

    #[test]
    fn what_ran_on_while_nobody_closed_the_gate_is_given_back_up_to_a_bound() {
        let record = left(GateState::Open, 1_000 * MS);
        // 100 ms of which it had all.
        assert_eq!(settled(&record, 1_100, 600, 1_100), Some(70));
        assert_eq!(settled(&record, 3_000, 2_500, 3_000), Some(90));
        // An account that does not reach to the successor's start says nothing yet.
        assert_eq!(settled(&record, 1_100, 600, 1_099), None);
        // One that began anew, or of another time, says nothing at all.
        assert_eq!(settled(&record, 1_100, 10, 1_100), None);
        assert_eq!(settled(&record, 20_000, 600, 20_000), None);
        assert_eq!(settled(&record, 900, 600, 1_100), None);
    }

    #[test]
    fn what_a_closed_gate_took_is_made_up_for_and_what_was_not_needed_is_not() {
        let closed = left(GateState::Closed, 1_000 * MS);
        assert_eq!(settled(&closed, 1_100, 500, 1_100), Some(-30));
        assert_eq!(settled(&closed, 1_100, 510, 1_200), Some(-30));
        let late = left(GateState::Closed, 1_050 * MS);
        assert_eq!(settled(&late, 1_100, 500, 1_100), Some(-15));
        assert_eq!(settled(&closed, 5_000, 500, 5_000), Some(-90));
        let open = left(GateState::Open, 1_000 * MS);
        assert_eq!(settled(&open, 1_100, 500, 1_100), Some(0));
    }

    #[test]
    fn it_stands_in_the_record_until_it_is_made_even() {
        let record = left(GateState::Open, 1_000 * MS);
        let mut carry_over = CarryOver::of(&record, 3_000 * MS);
        let used = |used_ms: u64, at_ms: u64| Used {
            used_ns: used_ms * MS,
            at_ns: at_ms * MS,
        };
        carry_over.follow(Some(used(2_500, 3_000)));
        assert_eq!(carry_over.even(), Some(used(500, 1_000)));
        let carried = carry_over.settle(used(2_500, 3_000), 300_000, &third);
        assert_eq!(
            carried,
            Some(Carried {
                ahead_ns: 90 * 1_000_000
            })
        );
        // A successor of its own would find the same, and not what was let go.
        assert_eq!(carry_over.even(), Some(used(500 + 1_310, 1_000)));
        carry_over.not_before(3_500 * MS);
        assert!(carry_over.is_uneven(3_400 * MS));
        carry_over.follow(Some(used(2_500, 3_400)));
        assert_eq!(carry_over.even(), Some(used(500 + 1_310, 1_000)));
        carry_over.follow(Some(used(2_560, 3_500)));
        assert_eq!(carry_over.even(), Some(used(2_560, 3_500)));
        assert!(!carry_over.is_uneven(3_500 * MS));
    }
}
