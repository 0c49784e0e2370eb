//! What the driver refuses, and what a question on a group that the container cannot touch settles.

use super::Card;
use crate::appeal::Refused;
use crate::channel_states::GateCall;
use crate::world::Confirmed;

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
        self.retries.settled();
        let learnt = self.probe.learnt();
        if learnt.gate_call != before.gate_call {
            self.counts.alarms += 1;
            tracing::warn!(
                card = self.index,
                reason = ?learnt.reason().map(|reason| reason.to_string()),
                "the driver refuses the gate"
            );
            self.view.until_ns = now_ns;
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
