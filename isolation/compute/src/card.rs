//! One card of a container: what is there, what it is to be, and the next call that brings the one to the other.

mod account;
mod ahead;
mod charge;
mod layout;
mod openings;
mod record;
mod refusals;
mod restored;
mod retries;
mod status;
mod timing;

use plan::{CardRules, DriftCorrection, GateState, Priority, ShareRecord, Terms};

use crate::appeal::{Appeal, Refused};
use crate::carry_over::CarryOver;
use crate::channel_states::{ChannelStates, GateCall, Moved, Toward};
use crate::cycle::{Leads, Phase, Progress};
use crate::knob::{Answer, Engine, Knob, KnobError, Objects, Spent};
use crate::lateness::Lateness;
use crate::peers::Peers;
use crate::probe::Probe;
use crate::settings::{First, Needed, Settings};
use crate::setup::{Fail, Setup};
use crate::status::Counts;
use crate::usage::Capped;
use crate::view::{Means, View};
use crate::world::Environment;

use account::Account;
use openings::Openings;
use record::OwnRecord;
use restored::Restored;
use retries::Retries;
use timing::CallTimes;

/// Why a knob was pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Gate,
    Probe,
    Setting,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Card {
    index: usize,
    pub(crate) terms: Terms,
    pub(crate) rules: CardRules,
    objects: Objects,
    /// The objects have to be asked for whatever their generation says.
    stale: bool,
    pub(crate) own: OwnRecord,
    pub(crate) peers: Peers,
    view: View,
    phase: Phase,
    openings: Openings,
    poll_at_ns: u64,
    channel_states: ChannelStates,
    settings: Settings,
    probe: Probe,
    appeal: Appeal,
    retries: Retries,
    lateness: Lateness,
    times: CallTimes,
    account: Account,
    counts: Counts,
    /// Everything is to be as it would be without a governor.
    restored: Option<Restored>,
    /// It had channels, and no record, when the governor started: until it counts, it runs as it did.
    ran_before: bool,
}

impl Card {
    /// Takes up what a predecessor left, if it is of this container's life.
    pub(crate) fn new(index: usize, setup: &Setup, world: &mut dyn Environment) -> Self {
        let now_ns = world.now_ns();
        let (terms, rules) = (world.terms(index), world.rules(index));
        let objects = world.objects(index);
        let table = world.table(index);
        let owner = table.owner();
        let mut record = ShareRecord::new(&setup.key, owner.pid, owner.start_time, setup.join_ns);
        let left = table
            .left_behind()
            .filter(|left| record::of_this_life(left, setup, now_ns));
        let mut probe = Probe::new();
        let resumed = left.is_some();
        let mut clean = false;
        let mut carry_over = CarryOver::default();
        let mut bias_ns = 0;
        if let Some(left) = left {
            record.generation = left.generation.wrapping_add(1);
            (record.now, record.next, record.enforcement_level) =
                (left.now, left.next, left.enforcement_level);
            record.join_ns = left.join_ns;
            probe.resume(left.enforcement_level);
            carry_over = CarryOver::of(left, now_ns);
            bias_ns = left.bias_ns;
            clean = left.gate == GateState::Open;
        }
        if let Some((pid, start_time)) = setup.process {
            record.recovery.init_pid = pid.try_into().unwrap_or(0);
            record.recovery.init_start_time = start_time;
        }
        record.gate_since_ns = now_ns;
        let mut channel_states = ChannelStates::default();
        channel_states.follow(&objects, probe.learnt().gate_call);
        if !clean {
            channel_states.doubt();
        }
        let mut peers = Peers::default();
        peers.look(index, &record, world);
        let view = View::at(&rules, peers.records(), &setup.key, now_ns, Means::Gate);
        let length_ns = match view.is_corrected() {
            true => view.segment_ns(),
            false => 0,
        };
        let mut card = Self {
            index,
            terms,
            rules,
            objects,
            stale: false,
            own: OwnRecord::new(record),
            peers,
            view,
            phase: Phase::Free,
            openings: Openings::default(),
            poll_at_ns: 0,
            channel_states,
            settings: Settings::default(),
            probe,
            appeal: Appeal::default(),
            retries: Retries::default(),
            lateness: Lateness::default(),
            times: CallTimes::default(),
            account: Account::resumed(carry_over, DriftCorrection::resumed(bias_ns, length_ns)),
            counts: Counts::default(),
            restored: None,
            ran_before: false,
        };
        card.ran_before = !resumed && card.groups() > 0;
        if resumed {
            card.settings.inherit(&card.objects);
        }
        card.review(now_ns, 0);
        card
    }

    /// The terms or the card's rules may be others.
    pub(crate) fn reload(&mut self, world: &mut dyn Environment) {
        let (terms, rules) = (world.terms(self.index), world.rules(self.index));
        if rules != self.rules {
            // All brokers of the card are told at about the same time; there is no epoch for rules.
            self.rules = rules;
            self.peers.touch();
        }
        self.terms = terms;
    }

    /// The container's groups on the engine that shares are about.
    pub(crate) fn groups(&self) -> u32 {
        let groups = self.objects.groups.iter();
        let count = groups
            .filter(|group| group.engine == Engine::Graphics)
            .count();
        u32::try_from(count)
            .unwrap_or(u32::MAX)
            .min(plan::share_record::GROUPS_MAX)
    }

    /// Takes in what has changed. Says whether objects or peers are others than before.
    pub(crate) fn observe(
        &mut self,
        now_ns: u64,
        peers_changed: bool,
        world: &mut dyn Environment,
    ) -> bool {
        let mut changed = false;
        if self.stale || world.generation(self.index) != self.objects.generation {
            self.stale = false;
            self.objects = world.objects(self.index);
            self.channel_states
                .follow(&self.objects, self.probe.learnt().gate_call);
            self.settings.follow(&self.objects);
            changed = true;
        }
        if world.disturbed(self.index) {
            self.channel_states.disturb();
            if self.channel_states.any_open() && !self.wants_open(now_ns) {
                self.lateness.ran_on(now_ns);
            }
        }
        self.end_without_close(now_ns);
        if self.appeal.is_due(now_ns) {
            let confirmed = world.confirm(self.index);
            self.settle(now_ns, &confirmed);
        }
        self.ask_again(now_ns, world);
        if now_ns >= self.poll_at_ns || peers_changed {
            self.poll_at_ns = self.next_look_ns(now_ns);
            changed |= self.peers.look(self.index, &self.own.record, world);
            self.counts.bad_records = self.peers.bad_records();
            self.read_usage(now_ns, world);
            self.make_even(now_ns);
            self.report_busy(now_ns, world.busy(self.index));
        }
        changed
    }

    /// Moves layout and gate on with the clock. `extra_ns`: calls for other cards that come before this card's own.
    pub(crate) fn advance(&mut self, now_ns: u64, extra_ns: u64, peers: &[ShareRecord]) {
        self.review(now_ns, extra_ns);
        let leads = self.leads(extra_ns);
        let view = &self.view;
        self.account.ahead.pass(now_ns);
        let progress = {
            let needed_ns = self.openings.needed_ns(now_ns, view.layout.window_ns);
            let mut lengths = self.account.lengths(needed_ns);
            self.phase
                .advance(view.cycle.as_ref(), now_ns, leads, &mut lengths)
        };
        if progress == Progress::Missed {
            self.counts.late += 1;
        }
        self.begin_without_open(now_ns);
        if let Phase::Open { start_ns, end_ns } = self.phase {
            self.lateness.meant(start_ns, end_ns);
        }
        self.borrow(now_ns, leads, peers);
        self.watch(now_ns);
        self.end_without_close(now_ns);
    }

    /// The call that the gate needs now.
    pub(crate) fn gate_knob(&mut self, now_ns: u64) -> Option<Knob> {
        if !self.retries.are_over(now_ns) {
            return None;
        }
        if self.channel_states.any_parked() && self.retries.unpark(now_ns) {
            self.channel_states.reconsider();
        }
        let toward = match self.wants_open(now_ns) {
            true => Toward::Open,
            false => Toward::Closed,
        };
        self.channel_states.pull(self.index, toward, false)
    }

    /// The question that the driver is still to be asked.
    pub(crate) fn probe_knob(&mut self, now_ns: u64) -> Option<Knob> {
        let asks = !self.probe.is_done() && !self.appeal.is_open();
        if !asks || !self.retries.are_over(now_ns) || self.restored.is_some() {
            return None;
        }
        let slice_us = self.view.slice_us;
        let group = self
            .objects
            .groups
            .iter()
            .filter(|group| group.engine == Engine::Graphics)
            .min_by_key(|group| group.is_alone())?;
        self.probe
            .pull(self.index, group, slice_us, &mut self.channel_states)
    }

    /// Takes in what became of a call.
    pub(crate) fn answered(
        &mut self,
        knob: &Knob,
        purpose: Purpose,
        spent: Spent,
        now_ns: u64,
        answer: &Answer,
        fail: Fail,
    ) {
        self.counts.calls += 1;
        let beside_own = answer.beside_own;
        let answer = &answer.result;
        match answer {
            // A call that did not reach the driver says nothing about it.
            Err(KnobError::Lost(_)) => self.counts.lost += 1,
            _ => self.time(knob, spent, now_ns, beside_own, fail),
        }
        let moved = Moved::by(answer);
        self.channel_states.moved(knob, moved);
        let any_parked = self.channel_states.any_parked();
        if any_parked {
            self.retries.park(now_ns);
        }
        self.retries.moved(moved, any_parked, now_ns);
        match moved {
            Moved::Yes => {}
            Moved::Gone => self.stale = true,
            Moved::Refused => self.counts.refused += 1,
            Moved::Lost => self.settings.lost(knob),
        }
        let status = match answer {
            Err(KnobError::Status(status)) => Some(*status),
            _ => None,
        };
        match purpose {
            // What it is about may be the container's doing: the step is made again unless the driver is found to mean it.
            Purpose::Probe if status.is_some() && self.probe.would_weaken() => {
                self.appeal.raise(now_ns, Refused::Probe(answer.clone()));
                self.retries.back_off(now_ns);
            }
            Purpose::Probe => {
                self.probe.answered(answer);
                self.channel_states
                    .follow(&self.objects, self.probe.learnt().gate_call);
                self.peers.touch();
            }
            Purpose::Gate => {
                // What a stronger gate had closed is tried again, and keeps the present one from nothing.
                let of_gate =
                    self.channel_states.is_gated_by(knob) || self.means() == Means::Slices;
                self.gate_answered(status.filter(|_| of_gate), now_ns);
                // An open that was refused may have reached some of its channels.
                let opened_some = matches!(knob, Knob::Open { channels, .. } if channels.len() > 1);
                if moved == Moved::Yes || opened_some {
                    self.turned(knob, spent, now_ns);
                }
            }
            Purpose::Setting => match (knob, status) {
                // Of this group alone, and not tried again before the level is to be another.
                (Knob::Interleave { .. }, _) | (_, None) => {}
                (_, Some(status)) => {
                    self.settings.refused(knob, now_ns);
                    self.appeal.raise(now_ns, Refused::Slices { status });
                }
            },
        }
    }

    /// When something has to be done next, if nothing happens.
    pub(crate) fn wake_ns(&self, now_ns: u64, extra_ns: u64) -> u64 {
        let mut wake_ns = self.poll_at_ns;
        let leads = self.leads(extra_ns);
        if let Some((at_ns, lead_ns)) = self.phase.edge(leads) {
            wake_ns = wake_ns.min(at_ns.saturating_sub(lead_ns));
        }
        if self.view.until_ns < u64::MAX {
            wake_ns = wake_ns.min(self.view.until_ns.saturating_sub(leads.open_ns));
        }
        let openings = self.openings.next_ns(leads.close_ns);
        for at_ns in [self.retries.at_ns(), self.settings.again_ns().unwrap_or(0)]
            .into_iter()
            .chain(openings)
        {
            if at_ns > now_ns {
                wake_ns = wake_ns.min(at_ns);
            }
        }
        if self.channel_states.any_parked() {
            wake_ns = wake_ns.min(self.retries.parked_until_ns());
        }
        if let Some(rescue_ns) = self.openings.rescue_ns() {
            wake_ns = wake_ns.min(rescue_ns);
        }
        // Time goes on even where one of these was due and nothing could be done.
        wake_ns.max(now_ns.saturating_add(1_000))
    }

    /// The gate's next edge and its lead, for the order of calls among cards.
    pub(crate) fn edge(&self) -> Option<(u64, u64)> {
        self.phase.edge(self.leads(0))
    }

    /// Whether nothing is closed any more.
    pub(crate) fn is_open(&self) -> bool {
        !self.channel_states.any_closed()
    }

    fn leads(&self, extra_ns: u64) -> Leads {
        let calls = self.channel_states.calls();
        // Calls that once took longer than a segment, or than what is between two, must not keep the gate as it is: only calls tell that they
        // are fast again.
        let shortest_ns = match &self.view.cycle {
            Some(cycle) => cycle.shortest_ns(),
            None => u64::MAX,
        };
        // A close is answered when what ran is saved; it stopped running before that.
        let save_ns = u64::from(self.rules.costs.switch_us) * 1_000 / 2;
        let closing_ns = self.times.closing.lead_ns().saturating_mul(calls);
        let closing_ns = closing_ns.saturating_add(extra_ns).min(20_000_000);
        // Of one call, however many this card takes: what the first one opens runs while the others are made.
        let opening_ns = self.times.opening.lead_ns();
        let early_ns = match extra_ns {
            0 => 0,
            _ => extra_ns.min(self.view.early_ns()),
        };
        Leads {
            open_ns: opening_ns.saturating_add(early_ns).min(shortest_ns / 4),
            // A container with so much to close that it takes long closes early, and not in its neighbours' segments.
            close_ns: closing_ns.min(shortest_ns / 2).saturating_sub(save_ns),
        }
    }

    /// Whether the gate's means work and are not resting.
    fn means(&self) -> Means {
        match self.probe.learnt().gate_call {
            GateCall::None => Means::Slices,
            GateCall::Channels | GateCall::Groups if self.times.is_resting => Means::Slices,
            GateCall::Channels | GateCall::Groups => Means::Gate,
        }
    }

    fn wants_open(&self, now_ns: u64) -> bool {
        self.restored.is_some()
            || self.means() == Means::Slices
            || !matches!(self.phase, Phase::Closed { .. })
            || self.openings.is_open(now_ns, self.times.closing.lead_ns())
    }

    fn needed(&self) -> Needed {
        let learnt = self.probe.learnt();
        let share = self.view.share.as_ref();
        let slice_us = share
            .and_then(|share| share.capped_slice_us)
            .filter(|_| self.account.capped == Capped::Yes)
            .unwrap_or_else(|| match self.terms.priority {
                Priority::High => self.view.slice_us,
                Priority::Low | Priority::Normal => self.view.slice_us(self.groups()),
            });
        let is_first = self.terms.priority == Priority::High && self.account.capped == Capped::No;
        Needed {
            slice_us: learnt.slices_refused.is_none().then_some(slice_us),
            first: if is_first { First::Yes } else { First::No },
        }
    }

    fn time(&mut self, knob: &Knob, spent: Spent, now_ns: u64, beside_own: bool, fail: Fail) {
        let Some(timed) = self.times.record(knob, spent, now_ns, beside_own) else {
            return;
        };
        self.counts.slow += u64::from(timed.is_slow);
        if timed.is_broken {
            self.counts.alarms += 1;
            tracing::warn!(
                card = self.index,
                took_ms = spent.longest_ns / 1_000_000,
                "calls to the driver are slow"
            );
            if fail == Fail::Open {
                self.times.is_resting = true;
                self.peers.touch();
                self.view.until_ns = now_ns;
            }
        }
    }
}
