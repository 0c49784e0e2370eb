//! What a card's governor says of it: to calls that wait for the gate, and to people.

use plan::{EnforcementLevel, Priority};

use super::Card;
use crate::CLOSED_MAX_NS;
use crate::cycle::Phase;
use crate::knob::Engine;
use crate::reason::Reason;
use crate::status::{GateStatus, Status};

impl Card {
    /// What the card's gate is now.
    pub(crate) fn gate(&self, now_ns: u64) -> GateStatus {
        if self.wants_open(now_ns) {
            return GateStatus::Open;
        }
        GateStatus::Closed {
            opens_at_ns: match self.phase {
                Phase::Closed { start_ns, .. } if start_ns < u64::MAX => start_ns,
                Phase::Free | Phase::Open { .. } | Phase::Closed { .. } => {
                    self.view.until_ns.min(now_ns.saturating_add(CLOSED_MAX_NS))
                }
            },
        }
    }

    /// See [`Status`].
    pub(crate) fn status(&self, now_ns: u64) -> Status {
        let learnt = self.probe.learnt();
        let resting = self.times.resting_until(now_ns);
        let enforcement_level = self.probe.is_done().then(|| match resting {
            Some(_) => self.enforcement_level().min(EnforcementLevel::Slices),
            None => self.enforcement_level(),
        });
        let reason = resting
            .map(|until_ns| Reason::Slow { until_ns })
            .or_else(|| learnt.reason());
        let needs_slices = EnforcementLevel::needed(&self.terms) == EnforcementLevel::Slices;
        let mut groups = self.objects.groups.iter();
        let lacks_slices = learnt.slices_refused.is_some()
            || groups.any(|group| group.engine == Engine::Graphics && group.is_alone());
        let holds = enforcement_level.is_none_or(|enforcement_level| {
            enforcement_level >= EnforcementLevel::needed(&self.terms)
        }) && !(needs_slices && lacks_slices);
        let share = self.view.share.as_ref();
        Status {
            terms: self.terms,
            enforcement_level,
            reason,
            holds,
            entitlement_ppm: share.map_or(0, |share| share.entitlement_ppm),
            gate: self.gate(now_ns),
            window_ns: self.view.cycle.as_ref().map_or(0, |cycle| cycle.window_ns),
            slice_us: self.needed().slice_us.unwrap_or(0),
            tenants: u32::try_from(self.view.layout.shares.len()).unwrap_or(u32::MAX),
            ratio_enforced: (self.terms.priority == Priority::High)
                .then(|| self.account.metered && learnt.slices_refused.is_none()),
            throttled_ns: self.account.busy.map(|_known| self.account.throttled_ns),
            latency: self.times.all.summary(),
            counts: self.counts,
        }
    }

    pub(super) fn enforcement_level(&self) -> EnforcementLevel {
        self.probe.learnt().enforcement_level()
    }
}
