//! What becomes of the tenant's own calls to the scheduler, and what is learnt from its calls.

use std::time::Instant;

use compute::Engine;
use driver::Segment;
use journal::state::scheduling::{Change, Name, Turned};
use journal::state::{Op, State};
use ledger::{CardSlot, ClientHandle, ObjectHandle, ObjectKind};
use nvabi::bytes::{put_u64, u32_at};
use nvabi::class::{self, Kind};
use nvabi::layout::{nvos21, nvos55, timeslice};
use nvabi::status;
use verdict::schedule::GraphicsCopies;
use verdict::{Effect, Schedule, Switch};

use crate::counted::{self, Adds, Counted};
use crate::engines::{alone_needs, copies, engine_of_channel, engine_of_group, is_group};
use crate::gates::{Held, LONGEST};
use crate::knobs;
use crate::pace::{self, Paced};
use crate::passage::Passage;
use crate::share::Share;
use crate::touched::{Part, Touched};
use crate::why::Why;

/// What becomes of a call before it is begun.
#[derive(Debug)]
pub enum Disposition<'a> {
    /// It goes its way; gates know of it until it is executed.
    Goes(Passage<'a>),
    /// It is answered with success, and nobody executes it.
    Answered,
    /// It is answered with this status.
    Refused(u32),
    /// The caller waits no more.
    GivenUp,
}

impl<'a> Disposition<'a> {
    /// Nothing is in its way.
    fn free() -> Self {
        Self::Goes(Passage::default())
    }

    /// With what it takes of the driver counted.
    fn paced(self, paced: Option<Paced<'a>>) -> Self {
        match self {
            Self::Goes(passage) => Self::Goes(Passage { paced, ..passage }.begins_now()),
            Self::Answered | Self::Refused(_) | Self::GivenUp => self,
        }
    }
}

const NO_GROUP: (u32, Why) = (status::NV_ERR_INVALID_OBJECT_PARENT, Why::NoGroup);

impl Share {
    /// Answers a call to the scheduler, lets it wait, or lets it through.
    pub fn disposition<'a>(
        &'a self,
        effect: &Effect,
        segments: &[Segment],
        still_waits: &dyn Fn() -> bool,
    ) -> Disposition<'a> {
        let schedule = match Touched::by(effect) {
            Touched::Scheduled(schedule) => schedule,
            Touched::Made {
                part,
                client,
                parent,
            } => {
                if copies(part, segments) {
                    self.ask_for_copies(client, parent);
                }
                let paced = match self.in_turn(still_waits) {
                    Ok(paced) => paced,
                    Err(disposition) => return disposition,
                };
                return match part {
                    Part::Group | Part::Context => Disposition::free(),
                    Part::Channel => {
                        let group = (client, parent);
                        let joins_what_runs = {
                            let state = self.context.journal.change();
                            state.scheduling().runs(&state.ledger, group)
                        };
                        // A new channel of a group that is on its runlist may run from the start.
                        let names: &[Name] = if joins_what_runs { &[group] } else { &[] };
                        self.pass(names, still_waits)
                    }
                }
                .paced(paced);
            }
            Touched::MadeBeside => {
                // It waits for what frees have taken, and what it takes itself is short.
                return match self.after_frees(still_waits) {
                    Ok(()) => Disposition::free(),
                    Err(pace::GivenUp) => Disposition::GivenUp,
                };
            }
            Touched::Freed { client, object } => {
                self.gates.let_turn();
                return Disposition::Goes(self.freeing(client, object));
            }
            Touched::Duplicated { .. } | Touched::Nothing => return Disposition::free(),
        };
        match schedule {
            Schedule::SetTimeslice {
                client,
                group,
                micros,
            } => self.remember((*client, *group), *micros),
            Schedule::Runlist {
                client,
                object,
                switch: Switch::On,
            } => self.pass(&[(*client, *object)], still_waits),
            Schedule::Channels {
                channels,
                switch: Switch::On,
            } => self.pass(channels, still_waits),
            Schedule::Preempt => match self.preempts.take(Instant::now()) {
                Some(wait) if wait.is_zero() => Disposition::free(),
                Some(wait) => {
                    let _held = self.wait_in_line();
                    std::thread::sleep(wait);
                    Disposition::free()
                }
                // As the driver reports one that it could not do.
                None => Disposition::Refused(status::NV_ERR_TIMEOUT),
            },
            Schedule::GetTimeslice { .. }
            | Schedule::Runlist {
                switch: Switch::Off,
                ..
            }
            | Schedule::Channels {
                switch: Switch::Off,
                ..
            } => Disposition::free(),
        }
    }

    /// A call that a former broker has begun: it passed the gates then, and does so again.
    pub fn pass_again(&self, effect: &Effect, segments: &[Segment]) -> Passage<'_> {
        match Touched::by(effect) {
            Touched::Made { .. }
            | Touched::Scheduled(Schedule::Runlist { .. } | Schedule::Channels { .. }) => {
                match self.disposition(effect, segments, &|| true) {
                    Disposition::Goes(passage) => passage.begun(),
                    Disposition::Answered | Disposition::Refused(_) | Disposition::GivenUp => {
                        Passage::default()
                    }
                }
            }
            Touched::Scheduled(
                Schedule::SetTimeslice { .. } | Schedule::GetTimeslice { .. } | Schedule::Preempt,
            )
            | Touched::MadeBeside
            | Touched::Duplicated { .. }
            | Touched::Freed { .. }
            | Touched::Nothing => Passage::default(),
        }
    }

    /// Whether a new channel group, channel or compute object may be made.
    ///
    /// # Errors
    /// The driver's status and the reason: no more groups, channels and clients with them than `verdict::schedule` says; no channel of that
    /// engine without a group, whose timeslice nobody could set, where the share is governed or nothing is known to make one.
    pub fn admit(
        &self,
        state: &State,
        effect: &Effect,
        segments: &[Segment],
    ) -> Result<(), (u32, Why)> {
        let release = self.context.release;
        let (part, client, parent) = match Touched::by(effect) {
            Touched::Made {
                part,
                client,
                parent,
            } => (part, client, parent),
            Touched::Duplicated { client, source } => {
                return match counted::duplicate(state, client, source) {
                    Some((card, adds)) => Counted::on(state, card, release).admit(adds),
                    None => Ok(()),
                };
            }
            Touched::MadeBeside
            | Touched::Freed { .. }
            | Touched::Scheduled(_)
            | Touched::Nothing => return Ok(()),
        };
        let above = (client, parent);
        let Some(card) = card_of(state, above) else {
            return Ok(());
        };
        let scheduling = state.scheduling();
        let copies = self.context.copies.of(card);
        let adds = match part {
            Part::Group => match engine_of_group(segments, copies) {
                Engine::Graphics => Adds::Group {
                    client,
                    channels: 0,
                },
                Engine::Other => Adds::OtherGroup,
            },
            Part::Channel if is_group(state, above) => {
                match scheduling.engine(&state.ledger, above) {
                    Some(Engine::Graphics) => Adds::Channel,
                    Some(Engine::Other) | None => Adds::OtherChannel,
                }
            }
            Part::Channel => match engine_of_channel(segments, copies) {
                Engine::Graphics if !self.lets_alone(card, segments) => return Err(NO_GROUP),
                Engine::Graphics => Adds::Group {
                    client,
                    channels: 1,
                },
                Engine::Other => Adds::OtherChannel,
            },
            Part::Context => {
                let Some(name) = scheduling.computing(&state.ledger, above) else {
                    return Ok(());
                };
                if !is_group(state, name) {
                    return Err(NO_GROUP);
                }
                // Each handle would be a group to the gate.
                if scheduling.is_duplicated(name) {
                    return Err((status::NV_ERR_INSUFFICIENT_RESOURCES, Why::TooManyGroups));
                }
                let groups = scheduling.objects(&state.ledger, card).groups;
                Adds::Computes {
                    group: name,
                    channels: counted::channels_of(&groups, name),
                }
            }
        };
        let computes = matches!(adds, Adds::Group { .. } | Adds::Computes { .. });
        if computes && self.is_broken(card) {
            return Err((status::NV_ERR_NOT_SUPPORTED, Why::NotHeld));
        }
        Counted::on(state, card, release).admit(adds)
    }

    /// Whether a channel without a group may be on the runlist of graphics.
    fn lets_alone(&self, card: CardSlot, segments: &[Segment]) -> bool {
        alone_needs(segments).met_by(self.context.capabilities) && !self.is_governed(card)
    }

    /// Takes from a successful call what knobs act on.
    pub fn learn(&self, change: &mut journal::Change<'_>, effect: &Effect, after: &[Segment]) {
        let new = |at: usize| {
            let first = after.first()?;
            u32_at(&first.bytes, at)
        };
        let learnt = match Touched::by(effect) {
            Touched::Made {
                part,
                client,
                parent,
            } => match part {
                Part::Group | Part::Channel => new(nvos21::H_NEW).map(|handle| {
                    let card = card_of(change, (client, parent));
                    let copies =
                        card.map_or(GraphicsCopies::ASSUMED, |card| self.context.copies.of(card));
                    let engine = match part {
                        Part::Group => engine_of_group(after, copies),
                        Part::Channel | Part::Context => engine_of_channel(after, copies),
                    };
                    Change::Added((client, handle), engine)
                }),
                Part::Context => {
                    let group = change
                        .scheduling()
                        .computing(&change.ledger, (client, parent));
                    group.map(Change::Computes)
                }
            },
            Touched::Duplicated { client, source } => new(nvos55::H_OBJECT)
                .filter(|_| change.scheduling().knows(source))
                .map(|handle| Change::Duplicated {
                    from: source,
                    to: (client, handle),
                }),
            Touched::Scheduled(schedule) => learn_schedule(schedule),
            Touched::MadeBeside | Touched::Freed { .. } | Touched::Nothing => None,
        };
        if let Some(learnt) = learnt {
            change.record_op(Op::Schedule(learnt));
        }
        self.objects_are(change.scheduling().generation());
    }

    /// Puts what the tenant believes to have set into the answer of GET_TIMESLICE.
    pub fn rewrite(&self, state: &State, effect: &Effect, after: &mut [Segment]) {
        if let Effect::Schedule(Schedule::GetTimeslice { client, group }) = effect
            && let group = (*client, *group)
            && card_of(state, group).is_some_and(|card| self.is_governed(card))
            && let Some(params) = after.get_mut(1)
        {
            let set = state.scheduling().timeslice_us(group);
            let shown = set.unwrap_or(timeslice::DEFAULT_US);
            put_u64(&mut params.bytes, timeslice::MICROS, shown);
        }
    }

    /// Which copy engines are on the runlist of graphics, the card says once, before the container has a group of one.
    fn ask_for_copies(&self, client: u32, parent: u32) {
        let copies = &self.context.copies;
        let card = card_of(&self.context.journal.change(), (client, parent));
        let Some(card) = card.filter(|card| copies.answered(*card).is_none()) else {
            return;
        };
        match knobs::copy_caps(self, card, client) {
            Ok(caps) => copies.learn(card, GraphicsCopies::by_caps(&caps)),
            Err(error) => {
                tracing::debug!(card = card.0, %error, "the card does not say what its copy engines are");
            }
        }
    }

    /// What frees this object: what it takes of the driver counts, and it never waits. An object that goes alone takes little, and its time would be
    /// that of others' calls.
    #[must_use]
    pub fn freeing(&self, client: u32, object: u32) -> Passage<'_> {
        let takes_others = {
            let state = self.context.journal.change();
            let (client, object) = (ClientHandle(client), ObjectHandle(object));
            // Virtual memory takes its mappings, which are no objects.
            let is_virtual = |class| class::of(class).is_some_and(|it| it.kind == Kind::Virtual);
            let freed = state.ledger.object(client, object);
            state.ledger.takes_others(client, object)
                || freed.is_some_and(|freed| is_virtual(freed.class))
        };
        let counts = takes_others && self.node_had_terms();
        Passage {
            paced: counts.then(|| self.pace.count()),
            ..Passage::default()
        }
    }

    /// What makes long trees waits for those that were freed.
    fn after_frees(&self, still_waits: &dyn Fn() -> bool) -> Result<(), pace::GivenUp> {
        if !self.node_has_terms() {
            return Ok(());
        }
        let _held = self.wait_in_line();
        self.pace.wait_for_frees(still_waits)
    }

    /// Whoever makes contexts waits for his turn wherever anybody of the node has terms: the gates of all its cards wait for one lock.
    fn in_turn<'a>(
        &'a self,
        still_waits: &dyn Fn() -> bool,
    ) -> Result<Option<Paced<'a>>, Disposition<'a>> {
        if !self.node_has_terms() {
            return Ok(None);
        }
        let _held = self.wait_in_line();
        match self.pace.take(still_waits) {
            Ok(paced) => Ok(Some(paced)),
            Err(pace::Held::GivenUp) => Err(Disposition::GivenUp),
            Err(pace::Held::TooLong) => Err(Disposition::Refused(status::NV_ERR_TIMEOUT)),
        }
    }

    /// Under a governor a tenant's timeslice is noted, and the governor's stays.
    fn remember(&self, group: Name, micros: u64) -> Disposition<'static> {
        let mut change = self.context.journal.change();
        let Some(card) = card_of(&change, group) else {
            // The driver says what is wrong with it.
            return Disposition::free();
        };
        if !self.is_governed(card) {
            return Disposition::free();
        }
        let object = change
            .ledger
            .object(ClientHandle(group.0), ObjectHandle(group.1));
        if object.is_none_or(|object| object.kind != ObjectKind::ChannelGroup) {
            return Disposition::Refused(status::NV_ERR_NOT_SUPPORTED);
        }
        change.record_op(Op::Schedule(Change::Timeslice(group, micros)));
        Disposition::Answered
    }

    /// Setting channels running waits for the gates of their cards. Copies and the rest are not gated.
    fn pass<'a>(&'a self, names: &[Name], still_waits: &dyn Fn() -> bool) -> Disposition<'a> {
        let mut cards: Vec<CardSlot> = {
            let change = self.context.journal.change();
            let is_gated = |name: &Name| {
                change.scheduling().engine(&change.ledger, *name) != Some(Engine::Other)
            };
            let gated = names.iter().filter(|name| is_gated(name));
            gated.filter_map(|name| card_of(&change, *name)).collect()
        };
        // In one order, whatever order a tenant lists them in: what passes one gate keeps the others from nothing.
        cards.sort_unstable();
        cards.dedup();
        let until = Instant::now() + LONGEST;
        let mut permit = Vec::new();
        for card in cards {
            match self.gates.pass(card, Some(self), until, still_waits) {
                Ok(passed) => permit.push(passed),
                Err(Held::GivenUp) => return Disposition::GivenUp,
                Err(Held::TooLong) => return Disposition::Refused(status::NV_ERR_TIMEOUT),
            }
        }
        Disposition::Goes(Passage {
            gates: permit,
            left: until.saturating_duration_since(Instant::now()),
            paced: None,
        })
    }
}

fn learn_schedule(schedule: &Schedule) -> Option<Change> {
    let turned = |switch: &Switch| match switch {
        Switch::On => Turned::On,
        Switch::Off => Turned::Off,
    };
    match schedule {
        Schedule::SetTimeslice {
            client,
            group,
            micros,
        } => Some(Change::Timeslice((*client, *group), *micros)),
        Schedule::Runlist {
            client,
            object,
            switch,
        } => Some(Change::Turned(vec![(*client, *object)], turned(switch))),
        Schedule::Channels { channels, switch } => {
            Some(Change::Turned(channels.clone(), turned(switch)))
        }
        Schedule::GetTimeslice { .. } | Schedule::Preempt => None,
    }
}

fn card_of(state: &State, (client, handle): Name) -> Option<CardSlot> {
    state
        .ledger
        .card_of(ClientHandle(client), ObjectHandle(handle))
}
