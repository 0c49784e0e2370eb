//! What the driver refuses, and what a question on a group that the container cannot touch settles.

use plan::EnforcementLevel;

use super::Card;
use crate::appeal::Refused;
use crate::channel_states::GateCall;
use crate::probe::Learnt;
use crate::world::{Confirmed, Environment};

impl Card {
    /// Takes in what the driver was found to let be held, on a group that the container cannot touch.
    pub(super) fn settle(&mut self, now_ns: u64, confirmed: &Confirmed) {
        let before = self.probe.learnt();
        let Some(refused) = self.appeal.settle(now_ns, confirmed) else {
            return;
        };
        match (confirmed, refused) {
            (Confirmed::Found(found), _) => self.probe.take(found),
            (_, Refused::Probe(answer)) => self.probe.answered(&answer),
            (_, Refused::Gate { knob, status }) => self.probe.demote(knob, status),
            (_, Refused::Slices { status }) => self.probe.refuse_slices(status),
        }
        self.follow_gate(before, now_ns);
    }

    /// Asks a driver again that has refused the gate, or the stronger one, and takes a better answer.
    pub(super) fn ask_again(&mut self, now_ns: u64, world: &mut dyn Environment) {
        let before = self.probe.learnt();
        let level = before.enforcement_level();
        // Terms that slices hold gain nothing by a gate, and each question takes the driver's locks.
        let best = match EnforcementLevel::needed(&self.terms) <= EnforcementLevel::Slices {
            true => EnforcementLevel::Slices,
            false => EnforcementLevel::Gate,
        };
        let holds_all = level >= best && before.slices_refused.is_none();
        if holds_all || !self.probe.is_done() || self.restored.is_some() {
            self.appeal.rest();
            return;
        }
        if !self.appeal.is_due_again(now_ns) {
            return;
        }
        match world.confirm(self.index) {
            Confirmed::Asking => return,
            Confirmed::Found(found)
                if (found.enforcement_level, found.slices_refused.is_none())
                    > (level, before.slices_refused.is_none()) =>
            {
                self.probe.take(&found);
                self.follow_gate(before, now_ns);
            }
            Confirmed::Found(_) | Confirmed::Failed | Confirmed::Impossible => {}
        }
        self.appeal.rest();
    }

    fn follow_gate(&mut self, before: Learnt, now_ns: u64) {
        self.retries.settled();
        let learnt = self.probe.learnt();
        if learnt.gate_call != before.gate_call {
            self.view.until_ns = now_ns;
        }
        if learnt.enforcement_level() < before.enforcement_level() {
            self.counts.alarms += 1;
            tracing::warn!(
                card = self.index,
                reason = ?learnt.reason().map(|reason| reason.to_string()),
                "the driver refuses the gate"
            );
        }
        self.channel_states.follow(&self.objects, learnt.gate_call);
        self.channel_states.reconsider();
        self.peers.touch();
    }

    pub(super) fn gate_answered(&mut self, status: Option<u32>, now_ns: u64) {
        let is_doubtful = self.retries.gate_refused(status);
        let (true, Some(status)) = (is_doubtful, status) else {
            return;
        };
        self.retries.back_off(now_ns);
        let gate_call = self.probe.learnt().gate_call;
        if gate_call != GateCall::None {
            let knob = gate_call.knob();
            self.appeal.raise(now_ns, Refused::Gate { knob, status });
        }
    }
}
