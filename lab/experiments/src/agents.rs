//! Brokers in virtual time: the real governor of each container, its knobs as calls to the simulated driver.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Result, bail};
use compute::{
    Action, Channel, Confirmed, Engine, Environment, Event, Fail, Governor, Group, Knob, KnobError,
    Objects, Setup, Spent, Used, try_knobs,
};
use plan::{CardRules, Terms};
use runlist::world::{
    AgentId, Answer, CallError, ClientId, Control, FECS_PERIOD_NS, LaneId, Notice, Wait, WakeId,
    World,
};
use runlist::{Enable, Interleave};

use crate::memory::{MemoryCard, MemoryTable};
use crate::scenario::{Change, Refusal, Rescue, Tenant};

/// More actions than this at one instant are a loop without progress.
const ACTIONS_MAX: u32 = 100_000;

/// All containers with their brokers.
pub(crate) struct Agents {
    rules: CardRules,
    tables: Vec<MemoryCard>,
    /// Whoever opens the gates of dead brokers' containers.
    watchdog: Option<AgentId>,
    /// What follows from what happened, and when.
    follows: Vec<(u64, Change)>,
    seats: Vec<Option<Seat>>,
    by_agent: BTreeMap<AgentId, usize>,
    calls: Vec<(u64, u64)>,
    instant_ns: u64,
    actions: u32,
}

/// A container.
struct Seat {
    facts: Facts,
    broker: Option<Broker>,
}

/// What a broker knows of its container.
struct Facts {
    key: String,
    cards: Vec<usize>,
    terms: Terms,
    /// How many RM clients its groups are of.
    clients: usize,
    join_ns: u64,
    generation: u64,
    /// All that its programs have ever made; handles count by place, so that none is used twice.
    lanes: Vec<Lane>,
    decoys: Decoys,
}

#[derive(Clone, Copy)]
struct Lane {
    id: LaneId,
    is_live: bool,
}

/// Groups of one channel each that are listed, never run, and refuse to be stopped.
#[derive(Default)]
struct Decoys {
    handles: std::ops::Range<u32>,
    refusal: Option<Refusal>,
}

impl Decoys {
    /// What the driver answers, if one of them is in the call's list.
    fn answer(&self, knob: &Knob) -> Option<KnobError> {
        /// NV_ERR_INVALID_STATE (nvstatuscodes.h)
        const INVALID_STATE: u32 = 0x40;
        let is_refused = match knob {
            Knob::Open { channels, .. } | Knob::Close { channels, .. } => channels
                .iter()
                .any(|channel| self.handles.contains(&channel.handle)),
            Knob::Schedule { group, .. } => self.handles.contains(group),
            _ => false,
        };
        self.refusal
            .filter(|_| is_refused)
            .map(|refusal| match refusal {
                Refusal::Gone => KnobError::Gone,
                Refusal::Odd => KnobError::Status(INVALID_STATE),
            })
    }
}

struct Broker {
    agent: AgentId,
    governor: Governor,
    tables: Vec<MemoryTable>,
    wake: Option<WakeId>,
    /// Inside the driver: its thread hears nothing until the call is answered.
    inside: bool,
    /// What the knob has still to call after that, and on which card.
    left: (usize, VecDeque<Control>),
    spent: Spent,
    failed: Option<KnobError>,
    /// What the call under way is answered, whatever the world says of it.
    refused: Option<KnobError>,
    /// Killed inside the driver: it ends when the call does.
    killed: Option<Vec<(u64, Rescue)>>,
    waiting: VecDeque<Event>,
}

/// RM handles of a tenant's objects in the world of one container.
const CLIENT_HANDLE: u32 = 0xc1d0_0001;
const GROUP_HANDLES: u32 = 0x5c00_0000;
const CHANNEL_HANDLES: u32 = 0x5c10_0000;
/// Of decoys: group and channel have the same.
const DECOY_HANDLES: u32 = 0x5c20_0000;

fn handle(base: u32, place: usize) -> u32 {
    base + u32::try_from(place).expect("few lanes")
}

impl Agents {
    pub(crate) fn new(cards: usize, rules: &CardRules, tenants: usize) -> Self {
        Self {
            rules: rules.clone(),
            tables: (0..cards).map(|_| MemoryCard::default()).collect(),
            watchdog: None,
            follows: Vec::new(),
            seats: (0..tenants).map(|_| None).collect(),
            by_agent: BTreeMap::new(),
            calls: Vec::new(),
            instant_ns: 0,
            actions: 0,
        }
    }

    /// A container's broker has started; no program runs yet.
    pub(crate) fn join(&mut self, world: &mut World, index: usize, tenant: &Tenant) -> Result<()> {
        self.seats[index] = Some(Seat {
            facts: Facts {
                key: format!("experiments/tenant-{index:03}"),
                cards: tenant.cards.clone(),
                terms: tenant.terms,
                clients: usize::try_from(tenant.clients)?.max(1),
                join_ns: world.agent_now_ns(),
                generation: 1,
                lanes: Vec::new(),
                decoys: Decoys::default(),
            },
            broker: None,
        });
        self.start(world, index)
    }

    /// The container's program has made channel groups.
    pub(crate) fn found(
        &mut self,
        world: &mut World,
        index: usize,
        client: ClientId,
    ) -> Result<()> {
        if let Some(seat) = self.seats[index].as_mut() {
            let made = world.groups(client).into_iter();
            seat.facts
                .lanes
                .extend(made.map(|id| Lane { id, is_live: true }));
            seat.facts.generation += 1;
        }
        self.tell(world, index, Event::ObjectsChanged)
    }

    /// The container's program has freed its channel groups.
    pub(crate) fn freed(&mut self, world: &mut World, index: usize) -> Result<()> {
        self.forget(index);
        self.tell(world, index, Event::ObjectsChanged)
    }

    fn forget(&mut self, index: usize) {
        if let Some(seat) = self.seats[index].as_mut() {
            for lane in &mut seat.facts.lanes {
                lane.is_live = false;
            }
            seat.facts.generation += 1;
        }
    }

    /// The container has other decoys than before.
    pub(crate) fn decoys(
        &mut self,
        world: &mut World,
        index: usize,
        count: u32,
        refusal: Refusal,
    ) -> Result<()> {
        if let Some(seat) = self.seats[index].as_mut() {
            let start = seat.facts.decoys.handles.end.max(DECOY_HANDLES);
            seat.facts.decoys = Decoys {
                handles: start..start + count,
                refusal: Some(refusal),
            };
            seat.facts.generation += 1;
        }
        self.tell(world, index, Event::ObjectsChanged)
    }

    /// A container has ended; its broker takes its leave.
    pub(crate) fn leave(&mut self, world: &mut World, index: usize) -> Result<()> {
        self.forget(index);
        self.tell(world, index, Event::ObjectsChanged)?;
        self.tell(world, index, Event::Stopping)
    }

    pub(crate) fn change(&mut self, world: &mut World, change: &Change) -> Result<()> {
        match change {
            Change::Terms { tenant, terms } => {
                if let Some(seat) = self.seats[*tenant].as_mut() {
                    seat.facts.terms = *terms;
                }
                self.tell(world, *tenant, Event::TermsChanged)
            }
            Change::Rules(rules) => {
                self.rules = rules.clone();
                for index in 0..self.seats.len() {
                    self.tell(world, index, Event::TermsChanged)?;
                }
                Ok(())
            }
            Change::Kill { tenant, then } => {
                if let Some(broker) = self.broker(*tenant) {
                    broker.killed = Some(then.clone());
                    if !broker.inside {
                        self.end(world, *tenant);
                    }
                }
                Ok(())
            }
            Change::Rescue {
                tenant,
                rescue: Rescue::Restart,
            } => self.start(world, *tenant),
            Change::Rescue {
                tenant,
                rescue: Rescue::Watchdog,
            } => {
                self.watchdog(world, *tenant);
                Ok(())
            }
            Change::Strike(fault) => {
                world.inject(world.now_ns(), fault.clone());
                Ok(())
            }
        }
    }

    /// The process of a killed broker has ended: its locks are free.
    fn end(&mut self, world: &mut World, index: usize) {
        let Some(broker) = self.seats[index]
            .as_mut()
            .and_then(|seat| seat.broker.take())
        else {
            return;
        };
        world.kill_agent(broker.agent);
        self.by_agent.remove(&broker.agent);
        for (after_ns, rescue) in broker.killed.into_iter().flatten() {
            self.follows.push((
                world.now_ns() + after_ns,
                Change::Rescue {
                    tenant: index,
                    rescue,
                },
            ));
        }
    }

    /// Opens what the records of a dead broker say may be closed.
    fn watchdog(&mut self, world: &mut World, index: usize) {
        let Some(facts) = self.seats[index].as_ref().map(|seat| &seat.facts) else {
            return;
        };
        let agent = *self.watchdog.get_or_insert_with(|| world.add_agent());
        for (place, card) in facts.cards.iter().enumerate() {
            let dead = self.tables[*card].dead();
            for knob in dead
                .iter()
                .filter(|record| record.key == facts.key)
                .flat_map(|record| compute::watchdog::knobs(record, place))
            {
                let (card, controls) = controls(facts, &knob);
                for control in controls {
                    world.call(agent, card, control);
                }
            }
        }
    }

    /// What follows from what has happened since the last time, with when.
    pub(crate) fn follows(&mut self) -> Vec<(u64, Change)> {
        std::mem::take(&mut self.follows)
    }

    fn start(&mut self, world: &mut World, index: usize) -> Result<()> {
        let Some(seat) = self.seats[index].as_mut() else {
            bail!("tenant {index} has no container");
        };
        if seat.broker.is_some() {
            return Ok(());
        }
        let facts = &seat.facts;
        let tables = facts
            .cards
            .iter()
            .map(|card| self.tables[*card].join(&facts.key))
            .collect::<Result<Vec<_>, _>>()?;
        let agent = world.add_agent();
        seat.broker = Some(Broker {
            agent,
            governor: Governor::new(Setup {
                key: facts.key.clone(),
                cards: facts.cards.len(),
                join_ns: facts.join_ns,
                fail: Fail::Open,
                process: None,
            }),
            tables,
            wake: None,
            inside: false,
            left: (0, VecDeque::new()),
            spent: Spent::default(),
            failed: None,
            refused: None,
            killed: None,
            waiting: VecDeque::new(),
        });
        self.by_agent.insert(agent, index);
        let cards = facts.cards.clone();
        self.tell(world, index, Event::Started)?;
        self.records_changed(world, index, &cards)
    }

    /// What inotify tells the others of these cards.
    fn records_changed(&mut self, world: &mut World, index: usize, cards: &[usize]) -> Result<()> {
        let others: Vec<usize> = self
            .seats
            .iter()
            .enumerate()
            .filter(|(other, seat)| {
                *other != index
                    && seat.as_ref().is_some_and(|seat| {
                        seat.broker.is_some()
                            && seat.facts.cards.iter().any(|card| cards.contains(card))
                    })
            })
            .map(|(other, _)| other)
            .collect();
        for other in others {
            self.tell(world, other, Event::PeersChanged)?;
        }
        Ok(())
    }

    pub(crate) fn hear(&mut self, world: &mut World, notice: Notice) -> Result<()> {
        let Some(&index) = self.by_agent.get(&notice.agent()) else {
            return Ok(());
        };
        match notice {
            Notice::Woke { wake, .. } => {
                let Some(broker) = self.broker(index) else {
                    return Ok(());
                };
                if broker.wake != Some(wake) {
                    return Ok(());
                }
                broker.wake = None;
                self.tell(world, index, Event::Woke)
            }
            Notice::Answered {
                requested_ns,
                result,
                ..
            } => {
                let took_ns = world.now_ns() - requested_ns;
                self.calls.push((requested_ns, took_ns));
                let mut answer = compute::Answer::from(answer(result));
                if let Some(broker) = self.broker(index) {
                    if broker.killed.is_some() {
                        self.end(world, index);
                        return Ok(());
                    }
                    broker.spent.add(took_ns);
                    if let Err(error) = &answer.result {
                        broker.failed.get_or_insert_with(|| error.clone());
                    }
                    let (card, left) = &mut broker.left;
                    if let Some(next) = left.pop_front() {
                        world.call(broker.agent, *card, next);
                        return Ok(());
                    }
                    broker.inside = false;
                    let spent = std::mem::take(&mut broker.spent);
                    answer.spent = (spent.calls > 1).then_some(spent);
                    let failed = broker.failed.take();
                    if let Some(error) = broker.refused.take().or(failed) {
                        answer.result = Err(error);
                    }
                }
                self.tell(world, index, Event::Answered(answer))?;
                // What happened meanwhile.
                while let Some(event) = self
                    .broker(index)
                    .filter(|broker| !broker.inside)
                    .and_then(|broker| broker.waiting.pop_front())
                {
                    self.tell(world, index, event)?;
                }
                Ok(())
            }
        }
    }

    fn broker(&mut self, index: usize) -> Option<&mut Broker> {
        self.seats[index].as_mut()?.broker.as_mut()
    }

    /// Gives the governor an event and does what it says.
    fn tell(&mut self, world: &mut World, index: usize, event: Event) -> Result<()> {
        if self.instant_ns != world.now_ns() {
            self.instant_ns = world.now_ns();
            self.actions = 0;
        }
        self.actions += 1;
        if self.actions > ACTIONS_MAX {
            bail!(
                "no progress at {} ns: tenant {index}, {event:?}",
                world.now_ns()
            );
        }
        let Some(seat) = self.seats[index].as_mut() else {
            return Ok(());
        };
        let Some(broker) = seat.broker.as_mut() else {
            return Ok(());
        };
        if broker.inside {
            broker.waiting.push_back(event);
            return Ok(());
        }
        if let Some(wake) = broker.wake.take() {
            world.cancel_wake(broker.agent, wake);
        }
        let action = {
            let mut view = View {
                world,
                facts: &seat.facts,
                rules: &self.rules,
                tables: &mut broker.tables,
            };
            broker.governor.next(event, &mut view)
        };
        match action {
            Action::SleepUntil { at_ns: u64::MAX } => {}
            Action::SleepUntil { at_ns } => {
                broker.wake = Some(world.wake_at(broker.agent, at_ns));
            }
            Action::Pull(knob) => {
                broker.inside = true;
                broker.refused = seat.facts.decoys.answer(&knob);
                let (card, mut left) = controls(&seat.facts, &knob);
                if let Some(first) = left.pop_front() {
                    world.call(broker.agent, card, first);
                }
                broker.left = (card, left);
            }
            Action::Done => {
                let agent = broker.agent;
                let cards = seat.facts.cards.clone();
                world.kill_agent(agent);
                self.by_agent.remove(&agent);
                seat.broker = None;
                self.records_changed(world, index, &cards)?;
            }
        }
        Ok(())
    }

    /// When each call was made, and how long it took.
    pub(crate) fn calls(&self) -> Vec<(u64, u64)> {
        self.calls.clone()
    }

    /// Of each tenant's first card.
    pub(crate) fn windows_ns(&self) -> Vec<u64> {
        self.seats
            .iter()
            .map(|seat| {
                seat.as_ref()
                    .and_then(|seat| seat.broker.as_ref())
                    .and_then(|broker| broker.governor.status(0))
                    .map_or(0, |status| status.window_ns)
            })
            .collect()
    }
}

/// Of a handle in the list of lanes; that of a decoy is beyond its end.
fn place(handle: u32, base: u32) -> usize {
    usize::try_from(handle - base).unwrap_or(usize::MAX)
}

/// Opens or closes those of the channels that are there, with a call for each client.
fn gate(facts: &Facts, channels: &[Channel], enable: Enable) -> VecDeque<Control> {
    let mut by_client: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for channel in channels {
        let place = place(channel.handle, CHANNEL_HANDLES);
        let there = facts.lanes.get(place).map(|lane| lane.id.channel);
        by_client.entry(channel.client).or_default().extend(there);
    }
    let lists = by_client.into_values();
    lists
        .map(|channels| Control::Channels { channels, enable })
        .collect()
}

fn interleave(level: u32) -> Interleave {
    match level {
        0 => Interleave::Low,
        1 => Interleave::Medium,
        _ => Interleave::High,
    }
}

/// A knob as the driver's calls, of which there is one at least; one that is refused does nothing but take its time.
fn controls(facts: &Facts, knob: &Knob) -> (usize, VecDeque<Control>) {
    let there = |group: &u32| {
        let place = place(*group, GROUP_HANDLES);
        facts.lanes.get(place).map(|lane| lane.id.group)
    };
    let (Knob::Open { card, .. }
    | Knob::Close { card, .. }
    | Knob::SetTimeslice { card, .. }
    | Knob::GetTimeslice { card, .. }
    | Knob::Schedule { card, .. }
    | Knob::Interleave { card, .. }
    | Knob::Preempt { card, .. }) = knob;
    let control = match knob {
        Knob::Open { channels, .. } => {
            return (facts.cards[*card], gate(facts, channels, Enable::On));
        }
        Knob::Close {
            channels,
            after_slice,
            ..
        } => {
            let enable = if *after_slice {
                Enable::OffAfterSlice
            } else {
                Enable::OffNow
            };
            return (facts.cards[*card], gate(facts, channels, enable));
        }
        Knob::SetTimeslice {
            group, slice_us, ..
        } => there(group).map(|group| Control::SetTimeslice {
            group,
            slice_ns: slice_us * 1_000,
        }),
        Knob::GetTimeslice { group, .. } => {
            there(group).map(|group| Control::GetTimeslice { group })
        }
        Knob::Schedule { group, on, .. } => there(group).map(|group| Control::Schedule {
            group,
            enable: if *on { Enable::On } else { Enable::OffNow },
        }),
        Knob::Interleave { group, level, .. } => there(group).map(|group| Control::Interleave {
            group,
            level: interleave(*level),
        }),
        Knob::Preempt { group, .. } => there(group).map(|group| Control::Preempt {
            group,
            wait: Wait::Saved,
        }),
    };
    // An object that has gone is answered so by the driver; here it has gone from the list.
    let gone = Control::Channels {
        channels: Vec::new(),
        enable: Enable::On,
    };
    let only = VecDeque::from([control.unwrap_or(gone)]);
    (facts.cards[*card], only)
}

fn answer(result: Result<Answer, CallError>) -> Result<Option<u64>, KnobError> {
    match result {
        Ok(Answer::Slice(slice_ns)) => Ok(Some(slice_ns / 1_000)),
        Ok(Answer::Done | Answer::Resident(_)) => Ok(None),
        Err(CallError::Gone) => Err(KnobError::Gone),
        Err(error @ (CallError::NoAnswer | CallError::Lost)) => {
            Err(KnobError::Lost(error.to_string()))
        }
        Err(error @ (CallError::NotSaved | CallError::Refused)) => {
            Err(KnobError::Status(error.status()))
        }
    }
}

fn group_of(client: u32, handle: u32, channel: u32) -> Group {
    Group {
        client,
        handle,
        engine: Engine::Graphics,
        channels: vec![Channel {
            client,
            handle: channel,
        }],
    }
}

/// What a governor sees.
struct View<'a> {
    world: &'a World,
    facts: &'a Facts,
    rules: &'a CardRules,
    tables: &'a mut [MemoryTable],
}

impl View<'_> {
    /// All that there have been.
    fn lanes(&self, card: usize) -> impl Iterator<Item = (usize, &Lane)> {
        let on = self.facts.cards.get(card).copied();
        self.facts
            .lanes
            .iter()
            .enumerate()
            .filter(move |(_, lane)| Some(lane.id.card) == on)
    }
}

impl Environment for View<'_> {
    fn now_ns(&self) -> u64 {
        self.world.agent_now_ns()
    }

    fn generation(&self, _card: usize) -> u64 {
        self.facts.generation
    }

    fn objects(&self, card: usize) -> Objects {
        let live = self.lanes(card).filter(|(_, lane)| lane.is_live);
        let own = live.map(|(place, _)| {
            let client = handle(CLIENT_HANDLE, place % self.facts.clients);
            group_of(
                client,
                handle(GROUP_HANDLES, place),
                handle(CHANNEL_HANDLES, place),
            )
        });
        let decoys = self.facts.decoys.handles.clone();
        let decoys = decoys.map(|decoy| group_of(CLIENT_HANDLE, decoy, decoy));
        Objects {
            generation: self.facts.generation,
            groups: own.chain(decoys).collect(),
        }
    }

    fn terms(&self, _card: usize) -> Terms {
        self.facts.terms
    }

    fn rules(&self, _card: usize) -> CardRules {
        self.rules.clone()
    }

    fn table(&mut self, card: usize) -> &mut dyn compute::Table {
        &mut self.tables[card]
    }

    /// From the context-switch records, as old as the driver hands them out.
    fn used(&self, card: usize) -> Option<Used> {
        let used_ns = self
            .lanes(card)
            .map(|(_, lane)| self.world.metered_used_ns(lane.id.card, lane.id.group))
            .sum();
        let now_ns = self.world.now_ns();
        let age_ns = now_ns % FECS_PERIOD_NS;
        Some(Used {
            used_ns,
            at_ns: self.now_ns() - age_ns,
        })
    }

    /// A group of the broker's own refuses nothing here.
    fn confirm(&mut self, _card: usize) -> Confirmed {
        let (group, channel) = (handle(GROUP_HANDLES, 0), handle(CHANNEL_HANDLES, 0));
        let own = group_of(CLIENT_HANDLE, group, channel);
        match try_knobs(&own, &mut |_| Ok(None)) {
            Ok(found) => Confirmed::Found(found),
            Err(_) => Confirmed::Failed,
        }
    }

    fn busy(&self, card: usize) -> Option<bool> {
        Some(
            self.lanes(card)
                .filter(|(_, lane)| lane.is_live)
                .any(|(_, lane)| {
                    self.world.runlist(lane.id.card).is_busy(lane.id.group) == Ok(true)
                }),
        )
    }
}
