//! What a container has had outside of its segments, because its gate opened early or closed late, or because a call of its own set
//! running what was closed.
//!
//! A gate is late when its calls wait: for a processor, for the driver's locks, or for what the container itself has under way. Whoever
//! causes it, the container that had the time gives it back: none gains by making its gate late. Where nothing counts what a
//! container used, this is all that there is to go by.

/// Timers and calls vary by this: what they add at one edge they take at another.
const TOLERATED_NS: i64 = 2_000_000;

/// And by this, where the card counts what a container used.
const METERED_NS: i64 = 5_000_000;

/// By this, and by this part of its length, a segment may be longer than meant: calls for several cards are made one after the other.
const SLACK_NS: i64 = 100_000;
const SLACK_PART: i64 = 200;

/// This part of what has added up is forgotten with each segment.
const FORGOTTEN: i64 = 32;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Lateness {
    /// Where the last segment began, and how long all since the gate opened were meant to be.
    last_start_ns: Option<u64>,
    meant_ns: u64,
    /// When the layout became another one.
    cut_ns: u64,
    opened_ns: Option<u64>,
    /// It has not opened: what was closed runs.
    ran_on: bool,
    /// Had too much in total; negative: too little, and no less than the tolerance.
    ahead_ns: i64,
}

impl Lateness {
    /// The gate is to be open between these times.
    pub(crate) fn meant(&mut self, start_ns: u64, end_ns: u64) {
        if self.last_start_ns == Some(start_ns) {
            return;
        }
        self.last_start_ns = Some(start_ns);
        let length_ns = end_ns.saturating_sub(start_ns.max(self.cut_ns));
        self.meant_ns = self.meant_ns.saturating_add(length_ns);
    }

    /// Segments that came while the call to close it waited: they were to be had as well, until it closed. Of one that is under way the rest
    /// can still be.
    pub(crate) fn passed(&mut self, segments: impl Iterator<Item = (u64, u64)>, closed_ns: u64) {
        for (start_ns, end_ns) in segments {
            self.meant(start_ns, end_ns.min(closed_ns));
        }
        (self.last_start_ns, self.cut_ns) = (None, closed_ns);
    }

    /// It has opened.
    pub(crate) fn opened(&mut self, now_ns: u64) {
        self.opened_ns.get_or_insert(now_ns);
        self.ran_on = false;
    }

    /// Something runs, and no call has opened it: it was made while the gate was open. What was meant before, and not had, is not saved up.
    pub(crate) fn runs(&mut self, now_ns: u64) {
        if self.opened_ns.is_none() {
            self.cut(now_ns);
            self.opened_ns = Some(now_ns);
        }
    }

    /// Something runs past it while it is to be closed: a call of the container's own has set it running.
    pub(crate) fn ran_on(&mut self, now_ns: u64) {
        if self.opened_ns.is_none() {
            self.runs(now_ns);
            self.ran_on = true;
        }
    }

    /// Whether something runs, or did when that was looked at last.
    pub(crate) fn is_running(&self) -> bool {
        self.opened_ns.is_some()
    }

    /// It has closed: what there is to be taken off, and is taken in by that.
    ///
    /// `is_metered`: the container's use is measured as well, and what is small is made even by that.
    pub(crate) fn closed(&mut self, now_ns: u64, is_metered: bool) -> i64 {
        let meant_ns = std::mem::take(&mut self.meant_ns);
        let Some(opened_ns) = self.opened_ns.take() else {
            return 0;
        };
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let had = signed(now_ns.saturating_sub(opened_ns));
        let meant = signed(meant_ns);
        let off = had.saturating_sub(meant);
        // What varies by chance is forgotten before it adds up. Nothing of what ran past a closed gate does.
        let (slack, forgotten) = match std::mem::take(&mut self.ran_on) {
            true => (0, 0),
            false => (SLACK_NS + meant / SLACK_PART, self.ahead_ns / FORGOTTEN),
        };
        let ahead = off - off.clamp(-slack, slack);
        let before = self.ahead_ns - forgotten;
        self.ahead_ns = before.saturating_add(ahead).max(-TOLERATED_NS);
        let tolerated = match is_metered {
            true => METERED_NS,
            false => TOLERATED_NS,
        };
        match self.ahead_ns > tolerated {
            true => std::mem::take(&mut self.ahead_ns),
            false => 0,
        }
    }

    /// What was had so far, or is had until then, was meant: the layout is another, or a neighbour lends its segment.
    pub(crate) fn cut(&mut self, now_ns: u64) {
        (self.last_start_ns, self.meant_ns, self.cut_ns) = (None, 0, now_ns);
        self.opened_ns = self.opened_ns.map(|_| now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn window(lateness: &mut Lateness, opened_ns: u64, closed_ns: u64) -> i64 {
        lateness.last_start_ns = None;
        lateness.meant(10 * MS, 20 * MS);
        lateness.meant(10 * MS, 20 * MS);
        lateness.opened(opened_ns);
        lateness.closed(closed_ns, false)
    }

    #[test]
    fn a_late_close_is_given_back_once() {
        let mut lateness = Lateness::default();
        assert_eq!(window(&mut lateness, 10 * MS, 170 * MS), 149_850_000);
        assert_eq!(window(&mut lateness, 10 * MS, 20 * MS), 0);
    }

    #[test]
    fn small_ones_add_up_and_late_openings_make_up_for_them() {
        let mut lateness = Lateness::default();
        let gained: i64 = (0..100)
            .map(|_| window(&mut lateness, 10 * MS, 20 * MS + 400_000))
            .sum();
        assert!((18_000_000..=25_000_000).contains(&gained), "{gained}");
        let mut lateness = Lateness::default();
        for _ in 0..100 {
            let (late, none) = (400_000, 0);
            let given = window(&mut lateness, 10 * MS + late, 20 * MS + late);
            assert_eq!(given, none);
        }
    }

    #[test]
    fn what_runs_past_a_closed_gate_adds_up_however_short_it_is() {
        let mut lateness = Lateness::default();
        assert_eq!(window(&mut lateness, 10 * MS, 20 * MS), 0);
        let given: i64 = (0..100)
            .map(|turn| {
                let from_ns = (30 + turn) * MS;
                lateness.ran_on(from_ns);
                lateness.ran_on(from_ns + 10_000);
                lateness.closed(from_ns + 90_000, false)
            })
            .sum();
        assert!((7_000_000..=9_000_000).contains(&given), "{given}");
        // One that is to open goes on with what runs already.
        lateness.ran_on(200 * MS);
        lateness.meant(200 * MS, 210 * MS);
        lateness.opened(200 * MS);
        assert_eq!(lateness.closed(210 * MS + 100_000, false), 0);
    }

    #[test]
    fn one_that_is_open_over_two_segments_was_meant_to_have_both() {
        let mut lateness = Lateness::default();
        lateness.meant(10 * MS, 20 * MS);
        lateness.opened(10 * MS);
        lateness.meant(110 * MS, 120 * MS);
        assert_eq!(lateness.closed(120 * MS, true), 89_800_000);
        // Another layout in between: the rest of its segment is what counts.
        lateness.meant(210 * MS, 220 * MS);
        lateness.opened(210 * MS);
        lateness.cut(215 * MS);
        lateness.meant(205 * MS, 225 * MS);
        assert_eq!(lateness.closed(235 * MS, true), 9_850_000);
    }

    #[test]
    fn segments_that_pass_while_it_cannot_close_are_its_own() {
        let mut lateness = Lateness::default();
        lateness.meant(10 * MS, 70 * MS);
        lateness.opened(10 * MS);
        // 100 ms too long, of which 40 ms are in the next segment, that of 110 to 170.
        lateness.passed([(110 * MS, 170 * MS)].into_iter(), 150 * MS);
        assert_eq!(lateness.closed(150 * MS, true), 39_400_000);
        // It has the rest of that segment.
        lateness.meant(110 * MS, 170 * MS);
        lateness.opened(150 * MS);
        assert_eq!(lateness.closed(170 * MS, true), 0);
    }

    #[test]
    fn what_is_made_while_it_is_open_has_the_rest_of_that_segment() {
        for past_a_closed_gate in [false, true] {
            let mut lateness = Lateness::default();
            // Nothing was there for a hundred segments.
            for turn in 0..100 {
                lateness.meant(turn * 100 * MS, (turn * 100 + 20) * MS);
            }
            if past_a_closed_gate {
                lateness.ran_on(9_950 * MS);
                assert_eq!(lateness.closed(9_980 * MS, true), 30_000_000);
                continue;
            }
            lateness.runs(9_915 * MS);
            lateness.runs(9_918 * MS);
            lateness.meant(9_900 * MS, 9_920 * MS);
            // It had 35 ms instead of 5.
            assert_eq!(lateness.closed(9_950 * MS, true), 29_875_000);
        }
    }

    #[test]
    fn what_it_did_not_have_is_not_saved_up() {
        let mut lateness = Lateness::default();
        for _ in 0..100 {
            assert_eq!(window(&mut lateness, 15 * MS, 20 * MS), 0);
        }
        let given = window(&mut lateness, 10 * MS, 30 * MS);
        assert!((7_900_000..8_000_000).contains(&given), "{given}");
    }
}
