//! Brokers in virtual time: the real governor of each container, its levers as calls to the simulated driver.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Result, bail};
use compute::{
    Action, Channel, Engine, Event, Fail, Governor, Group, Lever, LeverError, MemoryCard,
    MemoryTable, Objects, Setup, Surroundings, Used,
};
use plan::{CardRules, Terms};
use runlist::world::{
    AgentId, Answer, CallError, ClientId, Control, FECS_PERIOD_NS, LaneId, Notice, Wait, WakeId,
    World,
};
use runlist::{Enable, Interleave};

use crate::scene::{Rescue, Tenant, Turn};

/// More actions than this at one instant are a loop without progress.
const ACTIONS_MAX: u32 = 100_000;

/// All containers with their brokers.
pub(crate) struct Agents {
    rules: CardRules,
    tables: Vec<MemoryCard>,
    /// Whoever opens the gates of dead brokers' containers.
    fence: Option<AgentId>,
    /// What follows from what happened, and when.
    follows: Vec<(u64, Turn)>,
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
    join_ns: u64,
    generation: u64,
    /// By place in the list of the client's lanes; handles count from 1.
    lanes: Vec<LaneId>,
}

struct Broker {
    agent: AgentId,
    governor: Governor,
    tables: Vec<MemoryTable>,
    wake: Option<WakeId>,
    /// Inside the driver: its thread hears nothing until the call is answered.
    inside: bool,
    /// Killed inside the driver: it ends when the call does.
    killed: Option<Vec<(u64, Rescue)>>,
    waiting: VecDeque<Event>,
}

/// RM handles of a tenant's objects in the world of one container.
const CLIENT_HANDLE: u32 = 0xc1d0_0001;
const GROUP_HANDLES: u32 = 0x5c00_0000;
const CHANNEL_HANDLES: u32 = 0x5c10_0000;

fn handle(base: u32, place: usize) -> u32 {
    base + u32::try_from(place).expect("few lanes")
}

impl Agents {
    pub(crate) fn new(cards: usize, rules: &CardRules, tenants: usize) -> Self {
        Self {
            rules: rules.clone(),
            tables: (0..cards).map(|_| MemoryCard::default()).collect(),
            fence: None,
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
                join_ns: world.agent_now_ns(),
                generation: 1,
                lanes: Vec::new(),
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
            seat.facts.lanes = world.groups(client);
            seat.facts.generation += 1;
        }
        self.tell(world, index, Event::ObjectsChanged)
    }

    /// A container has ended; its broker takes its leave.
    pub(crate) fn leave(&mut self, world: &mut World, index: usize) -> Result<()> {
        let Some(seat) = self.seats[index].as_mut() else {
            return Ok(());
        };
        seat.facts.lanes.clear();
        seat.facts.generation += 1;
        self.tell(world, index, Event::ObjectsChanged)?;
        self.tell(world, index, Event::Stopping)
    }

    pub(crate) fn turn(&mut self, world: &mut World, turn: &Turn) -> Result<()> {
        match turn {
            Turn::Terms { tenant, terms } => {
                if let Some(seat) = self.seats[*tenant].as_mut() {
                    seat.facts.terms = *terms;
                }
                self.tell(world, *tenant, Event::TermsChanged)
            }
            Turn::Rules(rules) => {
                self.rules = rules.clone();
                for index in 0..self.seats.len() {
                    self.tell(world, index, Event::TermsChanged)?;
                }
                Ok(())
            }
            Turn::Kill { tenant, then } => {
                if let Some(broker) = self.broker(*tenant) {
                    broker.killed = Some(then.clone());
                    if !broker.inside {
                        self.end(world, *tenant);
                    }
                }
                Ok(())
            }
            Turn::Rescue {
                tenant,
                rescue: Rescue::Restart,
            } => self.start(world, *tenant),
            Turn::Rescue {
                tenant,
                rescue: Rescue::Fence,
            } => {
                self.fence(world, *tenant);
                Ok(())
            }
            Turn::Strike(fault) => {
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
                Turn::Rescue {
                    tenant: index,
                    rescue,
                },
            ));
        }
    }

    /// Opens what the slots of a dead broker say may be closed.
    fn fence(&mut self, world: &mut World, index: usize) {
        let Some(facts) = self.seats[index].as_ref().map(|seat| &seat.facts) else {
            return;
        };
        let agent = *self.fence.get_or_insert_with(|| world.add_agent());
        for (place, card) in facts.cards.iter().enumerate() {
            let dead = self.tables[*card].dead();
            for lever in dead
                .iter()
                .filter(|page| page.key == facts.key)
                .flat_map(|page| compute::fence::levers(page, place))
            {
                let (card, control) = control(facts, &lever);
                world.call(agent, card, control);
            }
        }
    }

    /// What follows from what has happened since the last time, with when.
    pub(crate) fn follows(&mut self) -> Vec<(u64, Turn)> {
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
            killed: None,
            waiting: VecDeque::new(),
        });
        self.by_agent.insert(agent, index);
        let cards = facts.cards.clone();
        self.tell(world, index, Event::Started)?;
        self.slots_changed(world, index, &cards)
    }

    /// What inotify tells the others of these cards.
    fn slots_changed(&mut self, world: &mut World, index: usize, cards: &[usize]) -> Result<()> {
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
                asked_ns, result, ..
            } => {
                self.calls.push((asked_ns, world.now_ns() - asked_ns));
                if let Some(broker) = self.broker(index) {
                    broker.inside = false;
                    if broker.killed.is_some() {
                        self.end(world, index);
                        return Ok(());
                    }
                }
                self.tell(world, index, Event::Answered(answer(result).into()))?;
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
            Action::Pull(lever) => {
                broker.inside = true;
                let (card, control) = control(&seat.facts, &lever);
                world.call(broker.agent, card, control);
            }
            Action::Done => {
                let agent = broker.agent;
                let cards = seat.facts.cards.clone();
                world.kill_agent(agent);
                self.by_agent.remove(&agent);
                seat.broker = None;
                self.slots_changed(world, index, &cards)?;
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

/// A lever as the driver's call.
fn control(facts: &Facts, lever: &Lever) -> (usize, Control) {
    let group = |handle: u32| {
        facts
            .lanes
            .get(usize::try_from(handle - GROUP_HANDLES).unwrap_or(usize::MAX))
            .map(|lane| lane.group)
    };
    let channels = |channels: &[Channel]| {
        channels
            .iter()
            .filter_map(|channel| {
                let place = usize::try_from(channel.handle - CHANNEL_HANDLES).unwrap_or(usize::MAX);
                facts.lanes.get(place).map(|lane| lane.channel)
            })
            .collect()
    };
    // An object that has gone is answered so by the driver; here it has gone from the list.
    let gone = Control::Channels {
        channels: Vec::new(),
        enable: Enable::On,
    };
    let (card, control) = match lever {
        Lever::Open {
            card,
            channels: opened,
        } => (
            card,
            Some(Control::Channels {
                channels: channels(opened),
                enable: Enable::On,
            }),
        ),
        Lever::Close {
            card,
            channels: closed,
            after_slice,
        } => (
            card,
            Some(Control::Channels {
                channels: channels(closed),
                enable: if *after_slice {
                    Enable::OffAfterSlice
                } else {
                    Enable::OffNow
                },
            }),
        ),
        Lever::SetTimeslice {
            card,
            group: handle,
            slice_us,
            ..
        } => (
            card,
            group(*handle).map(|group| Control::SetTimeslice {
                group,
                slice_ns: slice_us * 1_000,
            }),
        ),
        Lever::GetTimeslice {
            card,
            group: handle,
            ..
        } => (
            card,
            group(*handle).map(|group| Control::GetTimeslice { group }),
        ),
        Lever::Schedule {
            card,
            group: handle,
            on,
            ..
        } => (
            card,
            group(*handle).map(|group| Control::Schedule {
                group,
                enable: if *on { Enable::On } else { Enable::OffNow },
            }),
        ),
        Lever::Interleave {
            card,
            group: handle,
            level,
            ..
        } => (
            card,
            group(*handle).map(|group| Control::Interleave {
                group,
                level: match level {
                    0 => Interleave::Low,
                    1 => Interleave::Medium,
                    _ => Interleave::High,
                },
            }),
        ),
        Lever::Preempt {
            card,
            group: handle,
            ..
        } => (
            card,
            group(*handle).map(|group| Control::Preempt {
                group,
                wait: Wait::Saved,
            }),
        ),
    };
    (facts.cards[*card], control.unwrap_or(gone))
}

fn answer(result: Result<Answer, CallError>) -> Result<Option<u64>, LeverError> {
    match result {
        Ok(Answer::Slice(slice_ns)) => Ok(Some(slice_ns / 1_000)),
        Ok(Answer::Done | Answer::Resident(_)) => Ok(None),
        Err(CallError::Gone) => Err(LeverError::Gone),
        Err(error @ (CallError::NoAnswer | CallError::Lost)) => {
            Err(LeverError::Lost(error.to_string()))
        }
        Err(error @ (CallError::NotSaved | CallError::Refused)) => {
            Err(LeverError::Status(error.status()))
        }
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
    fn lanes(&self, card: usize) -> impl Iterator<Item = (usize, &LaneId)> {
        let on = self.facts.cards.get(card).copied();
        self.facts
            .lanes
            .iter()
            .enumerate()
            .filter(move |(_, lane)| Some(lane.card) == on)
    }
}

impl Surroundings for View<'_> {
    fn now_ns(&self) -> u64 {
        self.world.agent_now_ns()
    }

    fn generation(&self, _card: usize) -> u64 {
        self.facts.generation
    }

    fn objects(&self, card: usize) -> Objects {
        Objects {
            generation: self.facts.generation,
            groups: self
                .lanes(card)
                .map(|(place, _)| Group {
                    client: CLIENT_HANDLE,
                    handle: handle(GROUP_HANDLES, place),
                    engine: Engine::Graphics,
                    channels: vec![Channel {
                        client: CLIENT_HANDLE,
                        handle: handle(CHANNEL_HANDLES, place),
                    }],
                })
                .collect(),
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
            .map(|(_, lane)| self.world.metered_used_ns(lane.card, lane.group))
            .sum();
        let now_ns = self.world.now_ns();
        let age_ns = now_ns % FECS_PERIOD_NS;
        Some(Used {
            used_ns,
            at_ns: self.now_ns() - age_ns,
        })
    }

    fn busy(&self, card: usize) -> Option<bool> {
        Some(
            self.lanes(card)
                .any(|(_, lane)| self.world.runlist(lane.card).is_busy(lane.group) == Ok(true)),
        )
    }
}
