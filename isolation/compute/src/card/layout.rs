//! The card's layout as this container sees it: when it is reckoned again, and whose segment is borrowed.

use plan::ShareRecord;

use super::Card;
use crate::cycle::{Leads, Phase};
use crate::view::View;

/// How often the table and the usage are looked at. Every window's start is a multiple of this: all brokers look at about the same time, shortly before
/// it, so that nearly always all have seen the same records when it comes.
const LOOK_NS: u64 = 31_250_000;

/// On a card with more peers than this, every other time.
const PEERS_MANY: usize = 32;

/// How long before a multiple of [`LOOK_NS`].
const LOOK_AHEAD_NS: u64 = 2_500_000;

impl Card {
    /// Reckons the layout again where it has to be: when somebody begins to count as something else, and, where that was not announced, at the next
    /// start of a window, so that all who have noticed by then switch together.
    pub(super) fn review(&mut self, now_ns: u64, extra_ns: u64) {
        let at_ns = now_ns.saturating_add(self.leads(extra_ns).open_ns);
        if self.times.review(now_ns) {
            self.peers.touch();
        }
        if self.peers.take_touched() {
            let window_ns = self.view.layout.window_ns.max(1);
            let start_ns = at_ns.div_ceil(window_ns).saturating_mul(window_ns);
            self.view.until_ns = self.view.until_ns.min(start_ns);
        }
        let first = self.own.published.is_none();
        if at_ns < self.view.until_ns && !first {
            return;
        }
        let mut view = View::at(
            &self.rules,
            self.peers.records(),
            &self.own.record.key,
            at_ns,
            self.means(),
        );
        if view.share.is_none() && self.ran_before {
            view.cycle = None;
        }
        let before = std::mem::replace(&mut self.view, view);
        let has_changed = before.cycle != self.view.cycle || first;
        if has_changed {
            // Of what the segments of the former cycle were to pay, the rest is owed under the new one.
            self.account.hand_back(now_ns);
        }
        let same_share = match (&before.share, &self.view.share) {
            (Some(before), Some(after)) => {
                (before.entitlement_ppm, before.promise) == (after.entitlement_ppm, after.promise)
            }
            _ => false,
        };
        if !same_share
            || before.layout.window_ns != self.view.layout.window_ns
            || before.is_full() != self.view.is_full()
        {
            // What it has had too much it gives back under any layout.
            let carried_ns = self.account.drift.carried_ns();
            self.account.drift.reset();
            match same_share {
                true => self.carry(carried_ns),
                false => self.account.drift.carry(carried_ns.max(0), 0),
            }
            self.account.carry_over.forget(self.account.usage.last());
        }
        let is_interrupted = match same_share && before.measures_as(&self.view) {
            true => has_changed && self.account.interruptions.take(now_ns),
            false => true,
        };
        if is_interrupted {
            // The first window may be used as the former layout left it.
            self.account
                .usage
                .restart(at_ns.max(now_ns) + self.view.layout.window_ns);
        }
        if has_changed {
            let leads = self.leads(extra_ns);
            let view = &self.view;
            let needed_ns = self.openings.needed_ns(now_ns, view.layout.window_ns);
            let mut lengths = self.account.lengths(needed_ns);
            self.phase = Phase::begin(view.cycle.as_ref(), now_ns, leads, &mut lengths);
            self.lateness.cut(now_ns);
            self.openings.borrowed_until_ns = 0;
        }
        self.openings.look_at_lenders_ns = if self.lends() { now_ns } else { u64::MAX };
    }

    pub(super) fn next_look_ns(&self, now_ns: u64) -> u64 {
        let many = self.peers.records().len() > PEERS_MANY;
        let step_ns = if many { 2 * LOOK_NS } else { LOOK_NS };
        // One that was woken for something else just before its time does not look twice.
        let after_ns = now_ns.saturating_add(2 * LOOK_AHEAD_NS);
        (after_ns / step_ns)
            .saturating_add(1)
            .saturating_mul(step_ns)
            .saturating_sub(LOOK_AHEAD_NS)
    }

    pub(super) fn lends(&self) -> bool {
        self.view.share.as_ref().is_some_and(|share| share.lends)
    }

    /// Opens in the segment of a neighbour that has no work and lends it.
    pub(super) fn borrow(&mut self, now_ns: u64, leads: Leads, peers: &[ShareRecord]) {
        let before_ns = std::mem::take(&mut self.openings.borrowed_until_ns);
        if !self.lends() || !matches!(self.phase, Phase::Closed { .. }) {
            return;
        }
        let at_ns = now_ns.saturating_add(leads.open_ns);
        let idle = |key: &str| {
            if key == self.own.record.key {
                return self.own.record.busy_at(now_ns) != Some(true);
            }
            peers
                .iter()
                .find(|record| record.key == key)
                .is_some_and(|record| record.busy_at(now_ns) == Some(false))
        };
        if self.view.layout.borrows(&self.own.record.key, at_ns, idle) {
            self.openings.borrowed_until_ns = self.view.lent_until_ns(at_ns).unwrap_or(0);
        }
        // What it has been lent, up to the end or to when it is taken back, was meant.
        let lent_until_ns = match self.openings.borrowed_until_ns {
            0 => before_ns.min(now_ns.saturating_add(leads.open_ns.max(leads.close_ns))),
            until_ns => until_ns,
        };
        if lent_until_ns > 0 {
            self.lateness.cut(lent_until_ns);
        }
        self.openings.look_at_lenders_ns = self
            .view
            .next_lender_ns(at_ns)
            .map_or(u64::MAX, |edge_ns| edge_ns.saturating_sub(leads.open_ns));
    }

    /// No gate stays closed for longer than [`CLOSED_MAX_NS`](crate::CLOSED_MAX_NS), whatever the table or the drift correction says.
    pub(super) fn watch(&mut self, now_ns: u64) {
        let wants_open = self.wants_open(now_ns);
        if self.openings.rescued(wants_open, now_ns) {
            self.counts.late += 1;
        }
    }
}
