//! The governor of one container, with all its cards.

use plan::{Claim, Gang, Tenant, epochs};

use crate::card::{Card, Purpose};
use crate::knob::{Answer, Knob, Spent};
use crate::setup::Setup;
use crate::status::{GateStatus, Status};
use crate::world::{Action, Environment, Event};

/// Holds one container to its share of each of its cards. It makes no call and reads no clock: see [`Governor::next`].
///
/// ```text
/// Waiting ── Started ──▶ Running ── Stopping ──▶ Opening ── every gate is open, ──▶ Done
///                                                           slices as without
///                          │ ▲                     │ ▲
///                     Pull ▼ │ Answered       Pull ▼ │ Answered
///                        one call               one call
/// ```
#[derive(Debug)]
pub struct Governor {
    setup: Setup,
    gang: Option<Gang>,
    cards: Vec<Card>,
    /// The call under way.
    pending: Option<Pending>,
    state: State,
    /// What containers claim may have to be announced anew.
    unreported: bool,
    /// An announcement waits until the last one has come about.
    report_at_ns: u64,
    now_ns: u64,
}

#[derive(Debug)]
struct Pending {
    card: usize,
    knob: Knob,
    purpose: Purpose,
    since_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    /// Since when.
    Opening {
        since_ns: u64,
    },
    Done,
}

/// A gate that does not open is given up after this; the record stays, so that somebody else can.
const OPENING_MAX_NS: u64 = 2_000_000_000;

/// Calls for cards whose gates turn within this of each other are made one after the other, the first of them earlier.
const TOGETHER_NS: u64 = 2_000_000;

/// A call that can wait is not begun when a gate turns this soon: the longest that most calls take.
const CLEAR_NS: u64 = 2_000_000;

impl Governor {
    /// Nothing happens before [`Event::Started`].
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let count = u32::try_from(setup.cards).unwrap_or(u32::MAX);
        Self {
            gang: Gang::of(&setup.key, count),
            setup,
            cards: Vec::new(),
            pending: None,
            state: State::Waiting,
            unreported: true,
            report_at_ns: 0,
            now_ns: 0,
        }
    }

    /// Takes in what happened and says what to do now.
    pub fn next(&mut self, event: Event, world: &mut dyn Environment) -> Action {
        let now_ns = world.now_ns();
        self.now_ns = now_ns;
        let mut peers_changed = false;
        match event {
            Event::Answered(answer) => self.answered(&answer, now_ns, world),
            Event::PeersChanged => peers_changed = true,
            Event::TermsChanged => {
                for card in &mut self.cards {
                    card.reload(world);
                }
                self.unreported = true;
            }
            Event::Stopping => self.stop(now_ns, Some(world)),
            Event::Ending => self.stop(now_ns, None),
            Event::Started | Event::Woke | Event::ObjectsChanged => {}
        }
        if self.state == State::Waiting {
            self.cards = (0..self.setup.cards)
                .map(|card| Card::new(card, &self.setup, world))
                .collect();
            self.state = State::Running;
        }
        if self.state == State::Done {
            return Action::Done;
        }
        if self.pending.is_some() {
            // Whatever happened meanwhile is seen when the call has come back.
            return Action::SleepUntil { at_ns: u64::MAX };
        }
        for card in &mut self.cards {
            self.unreported |= card.observe(now_ns, peers_changed, world);
        }
        if self.unreported && now_ns >= self.report_at_ns && self.state == State::Running {
            self.announce(now_ns);
        }
        for at in 0..self.cards.len() {
            let extra_ns = self.extra_ns(at);
            if let Some(card) = self.cards.get_mut(at) {
                card.advance(now_ns, extra_ns, world.table(at).peers());
            }
        }
        let knob = self.knob(now_ns);
        for card in &mut self.cards {
            card.publish(now_ns, world);
        }
        if let Some(pending) = knob {
            let knob = pending.knob.clone();
            self.pending = Some(pending);
            return Action::Pull(knob);
        }
        if let State::Opening { since_ns } = self.state {
            let is_done = |card: &Card| card.is_open() && card.is_restored(now_ns);
            if self.cards.iter().all(is_done) || now_ns.saturating_sub(since_ns) >= OPENING_MAX_NS {
                self.leave(world);
                return Action::Done;
            }
        }
        Action::SleepUntil {
            at_ns: self.wake_ns(now_ns),
        }
    }

    /// Whether channels may run now, as of the last event. While it is closed, a tenant's own call that would set one running waits.
    #[must_use]
    pub fn gate(&self, card: usize) -> GateStatus {
        match self.state {
            State::Done => GateStatus::Open,
            State::Waiting | State::Running | State::Opening { .. } => self
                .cards
                .get(card)
                .map_or(GateStatus::Open, |card| card.gate(self.now_ns)),
        }
    }

    /// For `cgpu ps`, metrics and logs; `None` for a card that is not there, and before [`Event::Started`].
    #[must_use]
    pub fn status(&self, card: usize) -> Option<Status> {
        Some(self.cards.get(card)?.status(self.now_ns))
    }

    fn answered(&mut self, answer: &Answer, now_ns: u64, world: &mut dyn Environment) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let took_ns = now_ns.saturating_sub(pending.since_ns);
        let spent = answer.spent.unwrap_or_else(|| Spent::one(took_ns));
        let fail = self.setup.fail;
        let Some(card) = self.cards.get_mut(pending.card) else {
            return;
        };
        card.answered(&pending.knob, pending.purpose, spent, now_ns, answer, fail);
        if pending.purpose == Purpose::Gate
            && matches!(
                pending.knob,
                Knob::Close { .. } | Knob::Schedule { on: false, .. }
            )
        {
            card.after_close(world);
        }
    }

    /// Groups are put back as `world` knows them; without it they are left.
    fn stop(&mut self, now_ns: u64, world: Option<&dyn Environment>) {
        if matches!(self.state, State::Waiting) {
            self.state = State::Done;
        }
        if self.state == State::Running {
            self.state = State::Opening { since_ns: now_ns };
            self.cards.iter_mut().for_each(|card| card.stop(world));
        }
    }

    /// Gives up the records of cards whose gates are open. One that did not open keeps its record without an owner.
    fn leave(&mut self, world: &mut dyn Environment) {
        for (at, card) in self.cards.iter().enumerate() {
            if !card.is_open() {
                tracing::warn!(card = at, "a gate could not be opened");
                continue;
            }
            if let Err(error) = world.table(at).withdraw() {
                tracing::warn!(card = at, %error, "the share record stays");
            }
        }
        self.state = State::Done;
    }

    /// Says in the records what the container is to count as, where that is another than what was said.
    fn announce(&mut self, now_ns: u64) {
        let reply = |card: &Card| {
            card.own
                .record
                .next
                .map(|next| next.claim)
                .or(card.own.record.now)
        };
        let pending_ns = self
            .cards
            .iter()
            .filter_map(|card| card.own.record.next)
            .map(|next| next.at_ns)
            .filter(|at_ns| *at_ns > now_ns)
            .max();
        if let Some(at_ns) = pending_ns {
            self.report_at_ns = at_ns;
            return;
        }
        self.unreported = false;
        let mut claims: Vec<Claim> = self
            .cards
            .iter()
            .map(|card| Claim {
                terms: card.terms,
                groups: card.groups(),
                gang: self.gang,
                place_ppm: reply(card).and_then(|claim| claim.place_ppm),
            })
            .collect();
        self.place(&mut claims);
        let changed = |card: &Card, claim: &Claim| reply(card) != Some(*claim);
        // One time for all cards: a gang moves as one.
        let Some(at_ns) = self
            .cards
            .iter()
            .zip(&claims)
            .filter(|(card, claim)| changed(card, claim))
            .map(|(card, claim)| {
                epochs::at_ns(
                    &card.rules,
                    card.peers.records(),
                    &self.setup.key,
                    claim,
                    now_ns,
                )
            })
            .max()
        else {
            return;
        };
        for (card, claim) in self.cards.iter_mut().zip(&claims) {
            if changed(card, claim) && card.own.record.announce(now_ns, at_ns, *claim).is_ok() {
                card.peers.report(&card.own.record);
            }
        }
    }

    /// Fills in where segments are to begin: a gang's at the same time on all its cards, a fair share's where it was found room.
    fn place(&self, claims: &mut [Claim]) {
        let tenants: Vec<Vec<Tenant>> = self
            .cards
            .iter()
            .zip(claims.iter())
            .map(|(card, claim)| {
                // As everybody will count when all that was announced has come about.
                let mut tenants = epochs::tenants(card.peers.records(), u64::MAX);
                tenants.retain(|tenant| tenant.key != self.setup.key);
                tenants.push(claim.tenant(&self.setup.key, card.own.record.join_ns));
                tenants
            })
            .collect();
        if self.gang.is_some() {
            let cards: Vec<(&plan::CardRules, &[Tenant])> = self
                .cards
                .iter()
                .zip(&tenants)
                .map(|(card, tenants)| (&card.rules, tenants.as_slice()))
                .collect();
            let place_ppm = plan::gang_place(&cards, &self.setup.key);
            for claim in claims {
                claim.place_ppm = place_ppm;
            }
            return;
        }
        for ((card, tenants), claim) in self.cards.iter().zip(&tenants).zip(claims) {
            claim.place_ppm = plan::layout(&card.rules, &card.rules.costs, tenants)
                .share(&self.setup.key)
                .and_then(|share| share.place_ppm);
        }
    }

    /// How much earlier than alone this card's calls begin, because those of cards after it follow.
    fn extra_ns(&self, at: usize) -> u64 {
        let Some((edge_ns, _)) = self.cards.get(at).and_then(Card::edge) else {
            return 0;
        };
        self.cards
            .iter()
            .skip(at + 1)
            .filter_map(Card::edge)
            .filter(|(other_ns, _)| other_ns.abs_diff(edge_ns) <= TOGETHER_NS)
            .map(|(_, lead_ns)| lead_ns)
            .sum()
    }

    /// The next call: gates first, then what can wait.
    fn knob(&mut self, now_ns: u64) -> Option<Pending> {
        let clear = self
            .cards
            .iter()
            .filter_map(Card::edge)
            .map(|(at_ns, lead_ns)| at_ns.saturating_sub(lead_ns))
            .all(|at_ns| at_ns >= now_ns.saturating_add(CLEAR_NS))
            || matches!(self.state, State::Opening { .. });
        let cards = || 0..self.setup.cards;
        let mut found = None;
        for (purpose, card) in cards()
            .map(|card| (Purpose::Probe, card))
            .chain(cards().map(|card| (Purpose::Gate, card)))
            .chain(cards().map(|card| (Purpose::Setting, card)))
        {
            let Some(state) = self.cards.get_mut(card) else {
                continue;
            };
            let knob = match purpose {
                Purpose::Probe => state.probe_knob(now_ns),
                Purpose::Gate => state.gate_knob(now_ns),
                Purpose::Setting if clear => state.setting_knob(now_ns),
                Purpose::Setting => None,
            };
            if let Some(knob) = knob {
                found = Some(Pending {
                    card,
                    knob,
                    purpose,
                    since_ns: now_ns,
                });
                break;
            }
        }
        found
    }

    fn wake_ns(&self, now_ns: u64) -> u64 {
        let cards = self
            .cards
            .iter()
            .enumerate()
            .map(|(at, card)| card.wake_ns(now_ns, self.extra_ns(at)))
            .min()
            .unwrap_or(u64::MAX);
        match self.report_at_ns {
            at_ns if self.unreported && at_ns > now_ns => cards.min(at_ns),
            _ => cards,
        }
    }
}
