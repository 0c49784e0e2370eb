//! Cards, the driver in front of them, programs that use them, and time: everything that an experiment needs but the code it is about.
//!
//! Whoever has code to try out (a broker's state machine, say) is an *agent*: it asks to be woken, makes calls to the driver, and gets
//! a [`Notice`] for each.
//!
//! ```text
//!   agent ──wake_at──▶ timer (late, as timers are) ─────────────────────▶ Notice::Woke
//!         ──call─────▶ locks ──▶ firmware, one call at a time and card ──▶ runlist ──▶ Notice::Answered
//!   programs ──work──▶ runlist ──finished──▶ programs
//! ```
//!
//! What happens at one instant happens in a fixed order: faults, the engines, answers of the driver, programs, timers; within one of
//! these in the order in which it was asked for. Together with one stream of chance for each source ([`Stream`]), equal seeds give
//! equal runs to the bit.

mod agents;
mod calls;
mod driver;
mod faults;
mod load;
mod locks;
mod observe;
mod programs;
mod stream;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::costs::Costs;
use crate::engine::Runlist;
use crate::work::{GroupId, Stay};

pub use agents::{AgentId, Notice, WakeId};
pub use calls::{Answer, CallError, CallId, Control, RpcCosts, Wait};
pub use faults::Fault;
pub use load::{Client, ClientId, Done, Gang, Kernel, Load, Request, percentile};
pub use locks::{Api, Class, Gpus};
pub use observe::{
    Bucket, FECS_PERIOD_NS, GPUMON_BUCKET_NS, GPUMON_BUCKETS, Record, Records, Residency, Switch,
};
pub use programs::LaneId;
pub use stream::{Source, Stream};

use agents::Agent;
use driver::{Call, Firmware};
use locks::Locks;
use programs::Program;

/// What a world consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Of all chance.
    pub seed: u64,
    /// One for each card of the node.
    pub cards: Vec<Costs>,
    /// What calls to the driver cost.
    #[serde(default)]
    pub rpc: RpcCosts,
    /// How late timers are.
    #[serde(default)]
    pub timers: Timers,
    /// Records that a card's context-switch buffer holds until they are handed out.
    #[serde(default = "fecs_records")]
    pub fecs_records: usize,
}

const fn fecs_records() -> usize {
    4096
}

impl Setup {
    /// `cards` cards with default costs.
    #[must_use]
    pub fn new(seed: u64, cards: usize) -> Self {
        Self {
            seed,
            cards: vec![Costs::default(); cards],
            rpc: RpcCosts::default(),
            timers: Timers::default(),
            fecs_records: fecs_records(),
        }
    }
}

/// How late a sleeper wakes: |N(0, `usual_ns`)|, and with a small probability an exponential delay on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timers {
    /// Standard deviation of what is usual.
    pub usual_ns: u64,
    /// How often it is much.
    pub late_ppm: u32,
    /// Mean of much.
    pub late_ns: u64,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            usual_ns: 60_000,
            late_ppm: 1_000,
            late_ns: 1_000_000,
        }
    }
}

impl Timers {
    /// Timers that are never late.
    #[must_use]
    pub const fn exact() -> Self {
        Self {
            usual_ns: 0,
            late_ppm: 0,
            late_ns: 0,
        }
    }
}

/// What is due at some time. The order of the variants is the order within an instant; the engines come after faults.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Fault(Fault),
    Served { call: u64, at_ns: u64 },
    Saved { call: u64 },
    TimedOut { call: u64 },
    Deliver { notice: Notice },
    Program { client: u32, what: programs::Due },
    Wake { agent: u32, wake: u64, at_ns: u64 },
}

impl Event {
    const ENGINE: u8 = 1;

    const fn priority(&self) -> u8 {
        match self {
            Self::Fault(_) => 0,
            Self::Served { .. }
            | Self::Saved { .. }
            | Self::TimedOut { .. }
            | Self::Deliver { .. } => 2,
            Self::Program { .. } => 3,
            Self::Wake { .. } => 4,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    at_ns: u64,
    priority: u8,
    sequence: u64,
    event: Event,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |entry: &Self| (entry.at_ns, entry.priority, entry.sequence);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug)]
struct Card {
    runlist: Runlist,
    firmware: Firmware,
    residency: Residency,
    presence: Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    There,
    Lost,
}

/// A node with its cards and programs, in virtual time.
#[derive(Debug)]
pub struct World {
    setup: Setup,
    now_ns: u64,
    cards: Vec<Card>,
    locks: Locks,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    programs: Vec<Program>,
    agents: Vec<Agent>,
    /// What agents' clock is ahead of the world's.
    clock_ahead_ns: u64,
    events: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
    notices: VecDeque<Notice>,
    /// Cards whose engine may have something to say.
    touched: Vec<usize>,
}

impl World {
    /// An idle node at time 0.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let cards = setup.cards.iter().enumerate().map(|(index, costs)| {
            let mut runlist = Runlist::new(*costs);
            runlist.keep_log(usize::MAX);
            Card {
                runlist,
                firmware: Firmware::new(Stream::new(setup.seed, Source::Rpc(short(index)))),
                residency: Residency::default(),
                presence: Presence::There,
            }
        });
        Self {
            cards: cards.collect(),
            setup,
            now_ns: 0,
            locks: Locks::default(),
            calls: BTreeMap::new(),
            next_call: 0,
            programs: Vec::new(),
            agents: Vec::new(),
            clock_ahead_ns: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            notices: VecDeque::new(),
            touched: Vec::new(),
        }
    }

    /// The world's time.
    #[must_use]
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// How the world is made.
    #[must_use]
    pub const fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Runs until an agent has to know something, or until `until_ns`: then [`None`]. Work of one instant that is left over is done by
    /// the next call.
    pub fn run(&mut self, until_ns: u64) -> Option<Notice> {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                if self.is_heard(notice) {
                    self.catch_up();
                    return Some(notice);
                }
                continue;
            }
            if !self.step(until_ns) {
                self.now_ns = self.now_ns.max(until_ns);
                self.catch_up();
                return None;
            }
        }
    }

    /// The next thing that happens, if it does until then.
    fn step(&mut self, until_ns: u64) -> bool {
        let engine = self
            .cards
            .iter()
            .enumerate()
            .filter_map(|(card, state)| Some((state.runlist.next_event()?, card)))
            .min();
        let event = self
            .events
            .peek()
            .map(|Reverse(entry)| (entry.at_ns, entry.priority));
        let engine_first = match (engine, event) {
            (None, None) => return false,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((engine_ns, _)), Some(event)) => (engine_ns, Event::ENGINE) < event,
        };
        if engine_first {
            let Some((at_ns, card)) = engine.filter(|(at_ns, _)| *at_ns <= until_ns) else {
                return false;
            };
            self.now_ns = self.now_ns.max(at_ns);
            if let Some(state) = self.cards.get_mut(card) {
                state.runlist.advance(at_ns);
            }
            self.touch(card);
        } else {
            if event.is_none_or(|(at_ns, _)| at_ns > until_ns) {
                return false;
            }
            let Some(Reverse(entry)) = self.events.pop() else {
                return false;
            };
            self.now_ns = self.now_ns.max(entry.at_ns);
            self.happen(entry.event);
        }
        self.hear_engines();
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Fault(fault) => self.strike(fault),
            Event::Served { call, at_ns } => self.served(call, at_ns),
            Event::Saved { call } => self.saved(call),
            Event::TimedOut { call } => self.timed_out(call),
            Event::Deliver { notice } => self.deliver(notice),
            Event::Program { client, what } => self.program_due(client, what),
            Event::Wake { agent, wake, at_ns } => self.timer(agent, wake, at_ns),
        }
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        let entry = Entry {
            at_ns: at_ns.max(self.now_ns),
            priority: event.priority(),
            sequence: self.sequence,
            event,
        };
        self.sequence += 1;
        self.events.push(Reverse(entry));
    }

    fn touch(&mut self, card: usize) {
        if !self.touched.contains(&card) {
            self.touched.push(card);
        }
    }

    /// Brings the engines' clocks to now, so that what they are asked is answered for now.
    fn catch_up(&mut self) {
        for card in 0..self.cards.len() {
            self.cards[card].runlist.advance(self.now_ns);
            self.touch(card);
        }
        self.hear_engines();
    }

    /// What the engines have finished goes to the programs, which may give them more at the same instant.
    fn hear_engines(&mut self) {
        while let Some(card) = self.touched.pop() {
            while let Some(stay) = self
                .cards
                .get_mut(card)
                .and_then(|state| state.runlist.pop_stay())
            {
                if let Some(state) = self.cards.get_mut(card) {
                    state.residency.push(stay);
                }
            }
            let changes = self
                .cards
                .get_mut(card)
                .map(|state| state.runlist.take_changes());
            for change in changes.unwrap_or_default() {
                self.co_resident(card, change);
            }
            while let Some(finished) = self
                .cards
                .get_mut(card)
                .and_then(|state| state.runlist.pop_finished())
            {
                self.finished(card, finished);
            }
        }
    }

    // ---- what can be seen ----

    /// How many cards there are, lost ones included.
    #[must_use]
    pub fn cards(&self) -> usize {
        self.cards.len()
    }

    /// A card's engine, to read.
    ///
    /// # Panics
    /// If there is no such card.
    #[must_use]
    pub fn runlist(&self, card: usize) -> &Runlist {
        &self.cards[card].runlist
    }

    /// Every stay of a card that has ended.
    ///
    /// # Panics
    /// If there is no such card.
    #[must_use]
    pub fn residency(&self, card: usize) -> &Residency {
        &self.cards[card].residency
    }

    fn running(&self, card: usize) -> Option<Stay> {
        let (group, start_ns) = self.runlist(card).resident()?;
        Some(Stay {
            group,
            start_ns,
            end_ns: self.now_ns,
        })
    }

    /// What a group has used of [`from_ns`, `to_ns`), up to now.
    ///
    /// # Panics
    /// If there is no such card.
    #[must_use]
    pub fn used_between(&self, card: usize, group: GroupId, from_ns: u64, to_ns: u64) -> u64 {
        let running = self.running(card);
        self.residency(card)
            .used_between(group, from_ns, to_ns, running)
    }

    /// What a program's groups have used of [`from_ns`, `to_ns`) on one card, up to now; groups that have gone included.
    ///
    /// # Panics
    /// If there is no such card.
    #[must_use]
    pub fn client_used_between(
        &self,
        client: ClientId,
        card: usize,
        from_ns: u64,
        to_ns: u64,
    ) -> u64 {
        let groups = self
            .groups(client)
            .into_iter()
            .filter(|lane| lane.card == card);
        groups
            .map(|lane| self.used_between(card, lane.group, from_ns, to_ns))
            .sum()
    }

    /// What a group had used when the driver last handed out context-switch records: what a meter knows, up to
    /// [`FECS_PERIOD_NS`] old.
    ///
    /// # Panics
    /// If there is no such card.
    #[must_use]
    pub fn metered_used_ns(&self, card: usize, group: GroupId) -> u64 {
        self.used_between(card, group, 0, self.now_ns - self.now_ns % FECS_PERIOD_NS)
    }

    /// Context-switch records that the driver has handed out since the last call.
    ///
    /// # Panics
    /// If there is no such card.
    pub fn take_fecs(&mut self, card: usize) -> Records {
        let running = self.running(card);
        let (now_ns, capacity) = (self.now_ns, self.setup.fecs_records);
        self.cards[card]
            .residency
            .records(now_ns, running, capacity)
    }

    /// The utilisation samples that the driver keeps.
    ///
    /// # Panics
    /// If there is no such card.
    #[must_use]
    pub fn gpumon(&self, card: usize) -> Vec<Bucket> {
        self.residency(card)
            .buckets(self.now_ns, self.running(card))
    }

    /// How long a card's firmware has worked on calls; waiting for a group that leaves is not counted.
    ///
    /// # Panics
    /// If there is no such card.
    #[must_use]
    pub fn firmware_busy_ns(&self, card: usize) -> u64 {
        self.cards[card].firmware.busy_ns
    }
}

/// An index that is far below 2^32.
fn short(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 of anything")
}

fn long(index: u32) -> usize {
    usize::try_from(index).expect("usize has at least 32 bits here")
}
