//! The programs at work: what they submit, and what they do when it is done.

mod steps;

use std::collections::VecDeque;

use crate::work::{ChannelId, Error, GroupId, Kind, Mode, Presence, Work};

use super::load::{Client, ClientId, Done, Gang, Load};
use super::stream::{Source, Stream};
use super::{World, long, short};

/// One channel of a program, in a group of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneId {
    /// On which card.
    pub card: usize,
    /// The group.
    pub group: GroupId,
    /// Its channel.
    pub channel: ChannelId,
}

/// What a program has to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// A request comes.
    Arrival,
    /// The host is done with what it does between two kernels of this lane.
    Submit { lane: u32 },
    /// A burst begins.
    On,
    /// It ends.
    Off,
    /// All ranks have come to the barrier.
    Step,
    /// A call was answered.
    Answered,
    /// The time between two calls is over.
    Call,
}

#[derive(Debug)]
pub(crate) struct Program {
    plan: Plan,
    life: Life,
    arrivals: Stream,
    lanes: Vec<Lane>,
    /// Where the next request goes.
    turn: usize,
    burst: Burst,
    /// Of a gang: entries of this step that are not done.
    outstanding: usize,
    done: Done,
}

#[derive(Debug, Clone)]
enum Plan {
    Single(Client),
    Gang(Gang),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    Frozen,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Burst {
    On,
    Off,
}

#[derive(Debug)]
struct Lane {
    id: LaneId,
    chance: Stream,
    /// Requests that are not done: when they came, and how many of their entries are left.
    requests: VecDeque<(u64, u32)>,
    /// What the program would have submitted by now, had the queue room and the program a processor.
    backlog: VecDeque<Work>,
    /// Whether its co-resident kernel has its card.
    presence: Presence,
}

impl World {
    /// Starts a program now.
    ///
    /// # Panics
    /// If there is no such card.
    pub fn add_client(&mut self, client: Client) -> ClientId {
        let id = short(self.programs.len());
        let (card, groups, mode, slice_ns) = (
            client.card,
            client.groups.max(1),
            client.mode,
            client.slice_ns,
        );
        let lanes = (0..groups)
            .map(|lane| self.lane(id, lane, card, mode, slice_ns))
            .collect();
        self.start(id, Plan::Single(client), lanes);
        ClientId(id)
    }

    /// Starts a program with a rank on each of several cards now.
    ///
    /// # Panics
    /// If there is no such card, or if two ranks are on one: they could never run at once.
    pub fn add_gang(&mut self, gang: Gang) -> ClientId {
        let id = short(self.programs.len());
        let mut cards = gang.cards.clone();
        cards.sort_unstable();
        cards.dedup();
        assert!(
            cards.len() == gang.cards.len(),
            "two ranks of a gang on one card"
        );
        let lanes = gang.cards.iter().enumerate();
        let lanes = lanes
            .map(|(rank, card)| self.lane(id, short(rank), *card, gang.mode, gang.slice_ns))
            .collect();
        self.start(id, Plan::Gang(gang), lanes);
        ClientId(id)
    }

    fn lane(
        &mut self,
        client: u32,
        lane: u32,
        card: usize,
        mode: Mode,
        slice_ns: Option<u64>,
    ) -> Lane {
        assert!(
            card < self.cards.len(),
            "there are {} cards, not {card}",
            self.cards.len()
        );
        let now_ns = self.now_ns;
        let chance = Stream::new(self.setup.seed, Source::Lane(client, lane));
        let runlist = &mut self.cards[card].runlist;
        let group = runlist.add_group();
        let made = runlist
            .set_mode(now_ns, group, mode)
            .and_then(|()| {
                slice_ns.map_or(Ok(()), |slice_ns| {
                    runlist.set_timeslice(now_ns, group, slice_ns.max(1))
                })
            })
            .and_then(|()| runlist.add_channel(group));
        let channel = made.expect("the group has just been made");
        Lane {
            id: LaneId {
                card,
                group,
                channel,
            },
            chance,
            requests: VecDeque::new(),
            backlog: VecDeque::new(),
            presence: Presence::Left,
        }
    }

    fn start(&mut self, id: u32, plan: Plan, lanes: Vec<Lane>) {
        self.programs.push(Program {
            plan: plan.clone(),
            life: Life::Runs,
            arrivals: Stream::new(self.setup.seed, Source::Client(id)),
            lanes,
            turn: 0,
            burst: Burst::Off,
            outstanding: 0,
            done: Done::default(),
        });
        let lost = |lane: &Lane| self.cards[lane.id.card].presence == super::Presence::Lost;
        if self.programs[long(id)].lanes.iter().any(lost) {
            return self.end(id);
        }
        match plan {
            Plan::Gang(_) => self.program_due(id, Due::Step),
            Plan::Single(client) => match client.load {
                Load::Idle => {}
                Load::Closed { depth, .. } => self.fill(id, depth),
                Load::Poisson { interval_ns, .. } => self.next_arrival(id, interval_ns, None),
                Load::Periodic { first_ns, .. } => self.next_arrival(id, first_ns, Some(first_ns)),
                Load::Bursts { first_ns, .. } => {
                    self.program_event(self.now_ns.saturating_add(first_ns), id, Due::On)
                }
                Load::Persistent => {
                    for lane in 0..self.programs[long(id)].lanes.len() {
                        self.give(id, lane, Client::persistent_kernel());
                    }
                }
                Load::Calls { .. } => self.program_due(id, Due::Call),
            },
        }
        self.hear_engines();
    }

    // ---- what is seen of programs ----

    /// A program's channels, in the order in which they were made. They stay listed after the program has ended.
    #[must_use]
    pub fn groups(&self, client: ClientId) -> Vec<LaneId> {
        let lanes = self
            .programs
            .get(long(client.0))
            .map(|program| program.lanes.iter().map(|lane| lane.id).collect());
        lanes.unwrap_or_default()
    }

    /// What a program has got done so far.
    ///
    /// # Panics
    /// If the client is another world's.
    #[must_use]
    pub fn done(&self, client: ClientId) -> &Done {
        &self.programs[long(client.0)].done
    }

    /// Latencies of the requests that ended since the last call, sorted: see [`percentile`](super::percentile).
    ///
    /// # Panics
    /// If the client is another world's.
    pub fn take_latencies(&mut self, client: ClientId) -> Vec<u64> {
        let mut latencies = std::mem::take(&mut self.programs[long(client.0)].done.latencies_ns);
        latencies.sort_unstable();
        latencies
    }

    /// Whether the program has work that is not done: what GP_GET and GP_PUT, and a look at its host queue, would tell.
    ///
    /// # Panics
    /// If the client is another world's.
    #[must_use]
    pub fn is_busy(&self, client: ClientId) -> bool {
        let lanes = &self.programs[long(client.0)].lanes;
        lanes.iter().any(|lane| {
            !lane.backlog.is_empty()
                || self
                    .cards
                    .get(lane.id.card)
                    .is_some_and(|card| card.runlist.is_busy(lane.id.group) == Ok(true))
        })
    }

    // ---- a program's life ----

    /// Ends a program: its groups leave the card with all that they had queued.
    pub fn stop(&mut self, client: ClientId) {
        self.end(client.0);
        self.hear_engines();
    }

    /// Stops its host side: what it has submitted runs on.
    pub fn freeze(&mut self, client: ClientId) {
        if let Some(program) = self.programs.get_mut(long(client.0))
            && program.life == Life::Runs
        {
            program.life = Life::Frozen;
        }
    }

    /// Lets it go on: what it would have submitted meanwhile is submitted now.
    pub fn thaw(&mut self, client: ClientId) {
        let Some(program) = self.programs.get_mut(long(client.0)) else {
            return;
        };
        if program.life != Life::Frozen {
            return;
        }
        program.life = Life::Runs;
        for lane in 0..program.lanes.len() {
            self.flush(client.0, lane);
        }
        self.hear_engines();
    }

    pub(super) fn crash(&mut self, client: ClientId) {
        let lanes = self
            .programs
            .get(long(client.0))
            .map_or(0, |program| program.lanes.len());
        for lane in 0..lanes {
            self.give(client.0, lane, Work::kernel(1_000).kind(Kind::Fault));
        }
    }

    fn end(&mut self, client: u32) {
        let now_ns = self.now_ns;
        let Some(program) = self.programs.get_mut(long(client)) else {
            return;
        };
        program.life = Life::Ended;
        let lanes: Vec<LaneId> = program.lanes.iter().map(|lane| lane.id).collect();
        for lane in &mut program.lanes {
            lane.requests.clear();
            lane.backlog.clear();
        }
        for lane in lanes {
            if let Some(card) = self.cards.get_mut(lane.card) {
                // A group that went with its card or a fault is gone already.
                let _gone: Result<(), Error> = card.runlist.remove_group(now_ns, lane.group);
                self.touch(lane.card);
            }
        }
    }

    /// Every group on the card goes.
    pub(super) fn card_lost(&mut self, card: usize) {
        let on_card = |program: &Program| program.lanes.iter().any(|lane| lane.id.card == card);
        let programs: Vec<u32> = (0_u32..)
            .zip(&self.programs)
            .filter(|(_, program)| on_card(program))
            .map(|(id, _)| id)
            .collect();
        for id in programs {
            self.end(id);
        }
    }
}
