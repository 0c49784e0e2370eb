//! When a gate is open: segments of every window, and where in them the clock stands.
//!
//! ```text
//!            k*W            o              o+l                (k+1)*W
//!  ──────────┼──────────────┼───────────────┼────────────────────┼──
//!   Closed ─────────────▶ open call ──▶ Open ──▶ close call ──▶ Closed
//!                        ◀ lead ▶│             ◀ lead ▶│
//! ```
//! A call starts early by what such calls take. Where a neighbour's segment touches ours, both are open for [`LAP_NS`]: make before break, so that
//! the card works while the calls travel. Each has half of the lap as its own, so that no one gains by it.

/// How long the neighbours on both sides of an edge are open at once.
pub(crate) const LAP_NS: u64 = 300_000;

/// A timer that is later than this has missed the start of a segment.
const LATE_NS: u64 = 500_000;

/// Less of a segment than this is not worth two calls.
const USEFUL_NS: u64 = 200_000;

/// The same segments of every window; windows begin at multiples of their length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cycle {
    /// Length of a window, above 0.
    pub(crate) window_ns: u64,
    /// In the order of their offsets, disjoint; none: closed until there is another cycle.
    pub(crate) spans: Vec<Span>,
}

/// One segment. It may reach into the next window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where the segment begins.
    pub(crate) offset_ns: u64,
    /// How long it is.
    pub(crate) length_ns: u64,
    /// By how much it opens earlier because a neighbour ends there.
    pub(crate) before_ns: u64,
    /// By how much it closes later because a neighbour begins there.
    pub(crate) after_ns: u64,
}

/// How early calls start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leads {
    /// Those that open.
    pub(crate) open_ns: u64,
    /// Those that close.
    pub(crate) close_ns: u64,
}

/// What a gate is to be. Times are those of the card, without leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Open, and nothing closes it.
    Free,
    /// Open until the end of this segment.
    Open {
        /// Its start.
        start_ns: u64,
        /// Its end.
        end_ns: u64,
    },
    /// Closed until the start of the next segment.
    Closed {
        /// Its start; [`u64::MAX`]: there is none.
        start_ns: u64,
        /// Its end.
        end_ns: u64,
    },
}

/// Whether the phase went on in its course.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It did.
    Kept,
    /// A segment passed unused because the clock stood past it.
    Missed,
}

/// How long a segment is to be this time, given its start and its length by the layout; 0: left out. Asked once for each segment of a cycle.
pub(crate) type Lengths<'a> = &'a mut dyn FnMut(u64, u64) -> u64;

impl Phase {
    /// The phase at this time under a new cycle.
    pub(crate) fn begin(
        cycle: Option<&Cycle>,
        now_ns: u64,
        leads: Leads,
        lengths: Lengths<'_>,
    ) -> Self {
        let Some(cycle) = cycle else {
            return Self::Free;
        };
        let mut phase = cycle.next(None, now_ns, leads, lengths);
        phase.advance(Some(cycle), now_ns, leads, lengths);
        phase
    }

    /// Moves on with the clock.
    pub(crate) fn advance(
        &mut self,
        cycle: Option<&Cycle>,
        now_ns: u64,
        leads: Leads,
        lengths: Lengths<'_>,
    ) -> Progress {
        let Some(cycle) = cycle else {
            *self = Self::Free;
            return Progress::Kept;
        };
        let mut progress = Progress::Kept;
        loop {
            *self = match *self {
                Self::Free => cycle.next(None, now_ns, leads, lengths),
                Self::Open { end_ns, .. } if now_ns < end_ns.saturating_sub(leads.close_ns) => {
                    return progress;
                }
                Self::Open { start_ns, .. } => cycle.next(Some(start_ns), now_ns, leads, lengths),
                Self::Closed { start_ns, .. }
                    if start_ns == u64::MAX || now_ns < start_ns.saturating_sub(leads.open_ns) =>
                {
                    return progress;
                }
                Self::Closed { start_ns, end_ns } if leads.is_worth(start_ns, end_ns, now_ns) => {
                    *self = Self::Open { start_ns, end_ns };
                    return progress;
                }
                Self::Closed { start_ns, .. } => {
                    progress = Progress::Missed;
                    cycle.next(Some(start_ns), now_ns, leads, lengths)
                }
            };
        }
    }

    /// When it ends, as a time of the card, and by how much the call that ends it starts earlier.
    pub(crate) fn edge(&self, leads: Leads) -> Option<(u64, u64)> {
        match *self {
            Self::Free => None,
            Self::Open { end_ns, .. } => Some((end_ns, leads.close_ns)),
            Self::Closed { start_ns, .. } => {
                (start_ns < u64::MAX).then_some((start_ns, leads.open_ns))
            }
        }
    }
}

impl Leads {
    /// Whether a segment should be opened at this time. One that is still ahead always is, however long calls have taken: only calls show that they
    /// have become shorter.
    fn is_worth(self, start_ns: u64, end_ns: u64, now_ns: u64) -> bool {
        let in_time_ns = start_ns
            .saturating_sub(self.open_ns)
            .saturating_add(LATE_NS);
        let worth_ns = now_ns
            .saturating_add(self.open_ns)
            .saturating_add(self.close_ns)
            .saturating_add(USEFUL_NS);
        now_ns <= in_time_ns || end_ns > worth_ns
    }
}

impl Cycle {
    /// The shortest time for which the gate stays open, or closed.
    pub(crate) fn shortest_ns(&self) -> u64 {
        let starts = self.spans.iter().map(|span| span.offset_ns);
        let first_again = self
            .spans
            .first()
            .map(|first| first.offset_ns.saturating_add(self.window_ns));
        let next_starts = starts.skip(1).chain(first_again);
        self.spans
            .iter()
            .zip(next_starts)
            .flat_map(|(span, next_ns)| {
                let end_ns = span.offset_ns.saturating_add(span.length_ns);
                [span.length_ns, next_ns.saturating_sub(end_ns)]
            })
            .filter(|length_ns| *length_ns > 0)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Segments, from start to end, that begin from one time on and before another, by the layout.
    pub(crate) fn between(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = (u64, u64)> {
        let window_ns = self.window_ns.max(1);
        let windows = (from_ns / window_ns).saturating_sub(1)..=to_ns / window_ns;
        windows
            .map(move |window| window.saturating_mul(window_ns))
            .flat_map(|base_ns| {
                self.spans.iter().map(move |span| {
                    let at_ns = base_ns.saturating_add(span.offset_ns);
                    let end_ns = at_ns
                        .saturating_add(span.length_ns)
                        .saturating_add(span.after_ns);
                    (at_ns.saturating_sub(span.before_ns), end_ns)
                })
            })
            .filter(move |(start_ns, _)| (from_ns..to_ns).contains(start_ns))
    }

    /// The first segment that is still worth opening and begins after `after_ns`: the one under way, or a later one.
    fn next(
        &self,
        after_ns: Option<u64>,
        now_ns: u64,
        leads: Leads,
        lengths: Lengths<'_>,
    ) -> Phase {
        let window_ns = self.window_ns.max(1);
        let first = (now_ns / window_ns).saturating_sub(1);
        // Segments are left out for two seconds at most (`plan::DriftCorrection`), and one that is three windows ahead is always worth it.
        let most = 4 + 2_000_000_000 / window_ns;
        for base_ns in
            (0..most).map(|window| first.saturating_add(window).saturating_mul(window_ns))
        {
            for span in &self.spans {
                let at_ns = base_ns.saturating_add(span.offset_ns);
                let start_ns = at_ns.saturating_sub(span.before_ns);
                let ends = |length_ns: u64| {
                    at_ns
                        .saturating_add(length_ns)
                        .saturating_add(span.after_ns)
                };
                let past = after_ns.is_some_and(|after_ns| start_ns <= after_ns)
                    || !leads.is_worth(start_ns, ends(span.length_ns), now_ns);
                if past {
                    continue;
                }
                let length_ns = lengths(at_ns, span.length_ns);
                if length_ns > 0 {
                    let end_ns = ends(length_ns);
                    return Phase::Closed { start_ns, end_ns };
                }
            }
        }
        Phase::Closed {
            start_ns: u64::MAX,
            end_ns: u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const LEADS: Leads = Leads {
        open_ns: 160_000,
        close_ns: 220_000,
    };

    fn cycle(offset_ms: u64, length_ms: u64) -> Cycle {
        Cycle {
            window_ns: 100 * MS,
            spans: vec![Span {
                offset_ns: offset_ms * MS,
                length_ns: length_ms * MS,
                before_ns: 0,
                after_ns: 0,
            }],
        }
    }

    #[test]
    fn opens_and_closes_early_by_the_leads_and_once_a_window() {
        let cycle = cycle(30, 20);
        let mut phase = Phase::begin(Some(&cycle), 0, LEADS, &mut |_, length| length);
        let (start, end) = (30 * MS, 50 * MS);
        assert_eq!(
            phase,
            Phase::Closed {
                start_ns: start,
                end_ns: end
            }
        );
        phase.advance(
            Some(&cycle),
            start - LEADS.open_ns - 1,
            LEADS,
            &mut |_, length| length,
        );
        assert!(matches!(phase, Phase::Closed { .. }));
        phase.advance(
            Some(&cycle),
            start - LEADS.open_ns,
            LEADS,
            &mut |_, length| length,
        );
        assert_eq!(
            phase,
            Phase::Open {
                start_ns: start,
                end_ns: end
            }
        );
        // A lead that has become shorter does not close it again.
        let shorter = Leads {
            open_ns: 10,
            close_ns: 10,
        };
        phase.advance(Some(&cycle), start - 100, shorter, &mut |_, length| length);
        assert_eq!(
            phase,
            Phase::Open {
                start_ns: start,
                end_ns: end
            }
        );
        phase.advance(
            Some(&cycle),
            end - LEADS.close_ns,
            LEADS,
            &mut |_, length| length,
        );
        assert_eq!(
            phase,
            Phase::Closed {
                start_ns: start + 100 * MS,
                end_ns: end + 100 * MS
            }
        );
        // Nor does a shorter one open it again.
        let shorter = Leads {
            open_ns: 100_000,
            close_ns: 100_000,
        };
        phase.advance(
            Some(&cycle),
            end - LEADS.close_ns,
            shorter,
            &mut |_, length| length,
        );
        assert!(matches!(phase, Phase::Closed { .. }));
    }

    #[test]
    fn a_segment_shorter_than_two_calls_is_still_opened_in_time() {
        let slow = Leads {
            open_ns: 5 * MS,
            close_ns: 5 * MS,
        };
        let cycle = cycle(30, 2);
        let mut phase = Phase::begin(Some(&cycle), 0, slow, &mut |_, length| length);
        for window in 0..3 {
            let start_ns = window * 100 * MS + 30 * MS;
            let progress =
                phase.advance(Some(&cycle), start_ns - 5 * MS, slow, &mut |_, length| {
                    length
                });
            assert_eq!(progress, Progress::Kept);
            assert!(matches!(phase, Phase::Open { .. }), "{phase:?}");
            phase.advance(Some(&cycle), start_ns, slow, &mut |_, length| length);
            assert!(matches!(phase, Phase::Closed { .. }), "{phase:?}");
        }
    }

    #[test]
    fn the_shortest_stay_is_a_segment_or_what_lies_between_two() {
        assert_eq!(cycle(30, 20).shortest_ns(), 20 * MS);
        assert_eq!(cycle(30, 93).shortest_ns(), 7 * MS);
    }

    #[test]
    fn segments_between_two_times_are_those_that_begin_there() {
        let cycle = cycle(30, 20);
        let between = |from_ms: u64, to_ms: u64| -> Vec<(u64, u64)> {
            let all = cycle.between(from_ms * MS, to_ms * MS);
            all.map(|(start, end)| (start / MS, end / MS)).collect()
        };
        assert_eq!(between(130, 330), [(130, 150), (230, 250)]);
        assert_eq!(between(131, 331), [(230, 250), (330, 350)]);
        assert_eq!(between(0, 30), []);
    }

    #[test]
    fn several_segments_and_one_that_reaches_into_the_next_window_come_in_turn() {
        let mut cycle = cycle(30, 20);
        cycle.spans.push(Span {
            offset_ns: 90 * MS,
            length_ns: 15 * MS,
            before_ns: 0,
            after_ns: 0,
        });
        let mut phase = Phase::begin(Some(&cycle), 1_002 * MS, LEADS, &mut |_, length| length);
        let mut ends = Vec::new();
        for now in (1_002 * MS..1_200 * MS).step_by(100_000) {
            let before = phase;
            phase.advance(Some(&cycle), now, LEADS, &mut |_, length| length);
            if let (Phase::Open { end_ns, .. }, Phase::Closed { .. }) = (before, phase) {
                ends.push(end_ns / MS);
            }
        }
        assert_eq!(ends, [1_005, 1_050, 1_105, 1_150]);
    }

    #[test]
    fn a_wake_up_that_comes_late_uses_the_rest_of_the_segment_or_waits_for_the_next() {
        let cycle = cycle(30, 20);
        let mut phase = Phase::begin(Some(&cycle), 0, LEADS, &mut |_, length| length);
        assert_eq!(
            phase
                .clone()
                .advance(Some(&cycle), 45 * MS, LEADS, &mut |_, length| length),
            Progress::Kept
        );
        assert_eq!(
            phase.advance(Some(&cycle), 49_900_000, LEADS, &mut |_, length| length),
            Progress::Missed
        );
        assert_eq!(
            phase,
            Phase::Closed {
                start_ns: 130 * MS,
                end_ns: 150 * MS
            }
        );
        phase.advance(
            Some(&cycle),
            1_000 * MS + 40 * MS,
            LEADS,
            &mut |_, length| length,
        );
        assert_eq!(
            phase,
            Phase::Open {
                start_ns: 1_030 * MS,
                end_ns: 1_050 * MS
            }
        );
    }

    proptest! {
        #[test]
        fn a_gate_opens_within_two_windows_and_for_no_more_than_its_segment(
            window_ms in 50_u64..=250,
            offset in 0_u64..900_000,
            length in 1_000_u64..=1_000_000,
            now_ns in 0_u64..10_000_000_000,
            open_ns in 0_u64..5_000_000,
            close_ns in 0_u64..5_000_000,
            lap_ns in 0_u64..=LAP_NS,
        ) {
            let window_ns = window_ms * MS;
            let offset_ns = window_ns / 1_000_000 * offset;
            let span = Span {
                offset_ns,
                length_ns: (window_ns - offset_ns) / 1_000_000 * length,
                before_ns: lap_ns,
                after_ns: lap_ns,
            };
            let cycle = Cycle { window_ns, spans: vec![span] };
            let leads = Leads { open_ns, close_ns };
            match Phase::begin(Some(&cycle), now_ns, leads, &mut |_, length| length) {
                Phase::Free => prop_assert!(false),
                Phase::Open { end_ns, .. } => {
                    prop_assert!(end_ns <= now_ns + open_ns + span.length_ns + 2 * lap_ns);
                    prop_assert!(end_ns > now_ns + close_ns || end_ns + open_ns + LATE_NS >= now_ns);
                }
                Phase::Closed { start_ns, end_ns } => {
                    prop_assert!(start_ns > now_ns + open_ns);
                    prop_assert!(start_ns < now_ns + 3 * window_ns);
                    prop_assert!(end_ns == start_ns + span.length_ns + 2 * lap_ns);
                }
            }
        }
    }
}
