//! What the container has had outside of its segments: when that begins and ends, and what is taken off for it.

use super::Card;
use crate::cycle::Phase;
use crate::knob::{Knob, Spent};

/// What a container has had too much because its gate closed late is taken off up to so much of the time in which it is open.
const LATE_MOST_NS: u64 = 1_500_000_000;

impl Card {
    /// The gate has moved.
    pub(super) fn turned(&mut self, knob: &Knob, spent: Spent, now_ns: u64) {
        let opens = matches!(knob, Knob::Open { .. } | Knob::Schedule { on: true, .. });
        if opens {
            // What the first call has opened runs while the others are made.
            let first_ns = now_ns.saturating_sub(spent.after_first_ns());
            self.lateness.opened(first_ns);
        } else if !self.channel_states.any_open() {
            // Nothing of it is still to be closed.
            self.closed(now_ns);
        }
    }

    /// What is made while the gate is open runs, and no call opens it.
    pub(super) fn begin_without_open(&mut self, now_ns: u64) {
        if self.wants_open(now_ns) && self.channel_states.any_open() {
            self.lateness.runs(now_ns);
        }
    }

    /// What ran, and was to be closed, has gone: no close is answered that ends it. What refuses its close runs on until one is.
    pub(super) fn end_without_close(&mut self, now_ns: u64) {
        let states = &self.channel_states;
        let may_run = self.wants_open(now_ns) || states.any_open() || states.any_runs_on();
        if !may_run && self.lateness.is_running() {
            self.closed(now_ns);
        }
    }

    /// What the container had outside of its segment is taken off the next ones.
    fn closed(&mut self, now_ns: u64) {
        let save_ns = u64::from(self.rules.costs.switch_us) * 1_000 / 2;
        let closed_ns = now_ns.saturating_sub(save_ns);
        if let (Phase::Closed { start_ns, .. }, Some(cycle)) = (self.phase, &self.view.cycle)
            && start_ns < closed_ns
        {
            let passed = cycle.between(start_ns, closed_ns);
            self.lateness.passed(passed, closed_ns);
        }
        let is_measured = self.account.metered && self.view.is_corrected();
        let ahead_ns = self.lateness.closed(closed_ns, is_measured);
        if ahead_ns > 0 && self.view.cycle.is_some() {
            let rescued_ns = self.openings.take_rescued();
            let window_ns = u128::from(self.view.layout.window_ns.max(1));
            let most = u128::from(LATE_MOST_NS) * u128::from(self.view.segment_ns()) / window_ns;
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let before_ns = self.account.drift.carried_ns();
            // What it had because it was closed for too long was a neighbour's, and is none of its lateness: all of that is taken off.
            let most = most.max(before_ns).saturating_add(rescued_ns);
            let carried_ns = before_ns.saturating_add(ahead_ns).min(most);
            self.account.drift.carry(carried_ns, self.view.free_ns());
            // The usage would take it off a second time.
            let window_ns = self.view.layout.window_ns;
            self.account
                .usage
                .restart(now_ns.saturating_add(2 * window_ns));
        }
    }
}
