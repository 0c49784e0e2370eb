//! Brokers in virtual time: the real governor of each container, its levers as calls to the simulated driver.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use anyhow::{Result, bail};
use compute::{
    Action, Channel, Engine, Event, Fail, Governor, Group, Lever, LeverError, Objects, Setup,
    Surroundings, Used,
};
use plan::{CardRules, Terms};
use runlist::world::{
    AgentId, Answer, CallError, ClientId, Control, FECS_PERIOD_NS, LaneId, Notice, Wait, WakeId,
    World,
};
use runlist::{Enable, Interleave};

use crate::scene::{Tenant, Turn};
use crate::shelf::{Shelf, Table};

/// More actions than this at one instant are a loop without progress.
const ACTIONS_MAX: u32 = 100_000;

/// All containers with their brokers.
pub(crate) struct Agents {
    rules: CardRules,
    shelves: Vec<Rc<RefCell<Shelf>>>,
    seats: Vec<Option<Seat>>,
    by_agent: BTreeMap<AgentId, usize>,
    calls_ns: Vec<u64>,
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
    client: ClientId,
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
    tables: Vec<Table>,
    wake: Option<WakeId>,
    /// Inside the driver: its thread hears nothing until the call is answered.
    inside: bool,
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
            shelves: (0..cards).map(|_| Rc::default()).collect(),
            seats: (0..tenants).map(|_| None).collect(),
            by_agent: BTreeMap::new(),
            calls_ns: Vec::new(),
            instant_ns: 0,
            actions: 0,
        }
    }

    /// A container has started, with a broker.
    pub(crate) fn join(
        &mut self,
        world: &mut World,
        index: usize,
        tenant: &Tenant,
        client: ClientId,
    ) -> Result<()> {
        self.seats[index] = Some(Seat {
            facts: Facts {
                key: format!("experiments/tenant-{index:03}"),
                client,
                cards: tenant.cards.clone(),
                terms: tenant.terms,
                join_ns: world.agent_now_ns(),
                generation: 1,
                lanes: world.groups(client),
            },
            broker: None,
        });
        self.start(world, index)
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
            Turn::Kill { tenant } => {
                if let Some(broker) = self.seats[*tenant]
                    .as_mut()
                    .and_then(|seat| seat.broker.take())
                {
                    world.kill_agent(broker.agent);
                    self.by_agent.remove(&broker.agent);
                }
                Ok(())
            }
            Turn::Restart { tenant } => self.start(world, *tenant),
            Turn::Strike(fault) => {
                world.inject(world.now_ns(), fault.clone());
                Ok(())
            }
        }
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
            .map(|card| Table::take(&self.shelves[*card], &facts.key))
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
                self.calls_ns.push(world.now_ns() - asked_ns);
                if let Some(broker) = self.broker(index) {
                    broker.inside = false;
                }
                self.tell(world, index, Event::Answered(answer(result)))?;
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

    pub(crate) fn calls_ns(&self) -> Vec<u64> {
        self.calls_ns.clone()
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
    tables: &'a mut [Table],
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
            ..Objects::default()
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
