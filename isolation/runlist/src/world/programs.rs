//! The programs at work: what they submit, and what they do when it is done.

use std::collections::VecDeque;

use crate::work::{
    Change, ChannelId, Error, Finished, GroupId, Kind, Mode, Outcome, Presence, Work,
};
use crate::{Progress, Runlist};

use super::driver::Asker;
use super::load::{Client, ClientId, Done, Gang, Load, Request};
use super::stream::{Source, Stream};
use super::{Event, World, long, short};

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

    // ---- submitting ----

    fn program_event(&mut self, at_ns: u64, client: u32, what: Due) {
        self.schedule(at_ns, Event::Program { client, what });
    }

    fn fill(&mut self, client: u32, depth: u32) {
        for lane in 0..self.programs[long(client)].lanes.len() {
            for _ in 0..depth.max(1) {
                self.kernel(client, lane);
            }
        }
    }

    /// One more kernel of a closed loop or burst.
    fn kernel(&mut self, client: u32, lane: usize) {
        let Some(program) = self.programs.get_mut(long(client)) else {
            return;
        };
        let Plan::Single(Client {
            load: Load::Closed { kernel, .. } | Load::Bursts { kernel, .. },
            ..
        }) = &program.plan
        else {
            return;
        };
        let kernel = *kernel;
        let Some(state) = program.lanes.get_mut(lane) else {
            return;
        };
        let work = kernel.work(&mut state.chance);
        self.give(client, lane, work);
    }

    /// Submits, behind what waits already.
    fn give(&mut self, client: u32, lane: usize, work: Work) {
        let Some(program) = self.programs.get_mut(long(client)) else {
            return;
        };
        if program.life == Life::Ended {
            return;
        }
        if let Some(state) = program.lanes.get_mut(lane) {
            state
                .backlog
                .push_back(work.tag((u64::from(client) << 32) | u64::from(short(lane))));
            self.flush(client, lane);
        }
    }

    fn flush(&mut self, client: u32, lane: usize) {
        let now_ns = self.now_ns;
        let Some(program) = self.programs.get_mut(long(client)) else {
            return;
        };
        if program.life != Life::Runs {
            return;
        }
        let Some(state) = program.lanes.get_mut(lane) else {
            return;
        };
        let Some(card) = self.cards.get_mut(state.id.card) else {
            return;
        };
        while let Some(work) = state.backlog.front() {
            match card.runlist.submit(now_ns, state.id.channel, *work) {
                Ok(()) => drop(state.backlog.pop_front()),
                Err(Error::Full { .. }) => break,
                // The group is down: there is nothing to submit to.
                Err(_) => state.backlog.clear(),
            }
        }
        let card = state.id.card;
        self.touch(card);
    }

    fn next_arrival(&mut self, client: u32, interval_ns: u64, fixed_ns: Option<u64>) {
        let Some(program) = self.programs.get_mut(long(client)) else {
            return;
        };
        let after_ns = fixed_ns.unwrap_or_else(|| program.arrivals.exponential_ns(interval_ns));
        self.program_event(self.now_ns.saturating_add(after_ns), client, Due::Arrival);
    }

    /// A request comes in: its entries go to the next lane.
    fn request(&mut self, client: u32, request: Request) {
        let now_ns = self.now_ns;
        let Some(program) = self.programs.get_mut(long(client)) else {
            return;
        };
        let lane = program.turn;
        program.turn = (lane + 1) % program.lanes.len().max(1);
        let Some(state) = program.lanes.get_mut(lane) else {
            return;
        };
        let entries = request.entries(&mut state.chance);
        state.requests.push_back((now_ns, short(entries.len())));
        for work in entries {
            self.give(client, lane, work);
        }
    }

    pub(super) fn program_due(&mut self, client: u32, what: Due) {
        let Some(program) = self.programs.get(long(client)) else {
            return;
        };
        if program.life == Life::Ended {
            return;
        }
        let plan = match &program.plan {
            Plan::Single(single) => &single.load,
            Plan::Gang(_) => return self.step_of_gang(client),
        };
        match (what, plan.clone()) {
            (
                Due::Arrival,
                Load::Poisson {
                    interval_ns,
                    request,
                },
            ) => {
                self.next_arrival(client, interval_ns, None);
                self.request(client, request);
            }
            (
                Due::Arrival,
                Load::Periodic {
                    interval_ns,
                    request,
                    ..
                },
            ) => {
                self.next_arrival(client, interval_ns, Some(interval_ns.max(1)));
                self.request(client, request);
            }
            (Due::Submit { lane }, Load::Closed { .. }) => self.kernel(client, long(lane)),
            (Due::On, Load::Bursts { on_ns, depth, .. }) => {
                if let Some(program) = self.programs.get_mut(long(client)) {
                    program.burst = Burst::On;
                }
                self.program_event(self.now_ns.saturating_add(on_ns), client, Due::Off);
                for lane in 0..self.groups(ClientId(client)).len() {
                    self.top_up(client, lane, depth);
                }
            }
            (Due::Off, Load::Bursts { off_ns, .. }) => {
                if let Some(program) = self.programs.get_mut(long(client)) {
                    program.burst = Burst::Off;
                }
                self.program_event(self.now_ns.saturating_add(off_ns.max(1)), client, Due::On);
            }
            (Due::Answered, Load::Calls { gap_ns, .. }) => {
                self.program_event(self.now_ns.saturating_add(gap_ns.max(1)), client, Due::Call);
            }
            (Due::Call, Load::Calls { control, .. }) => {
                if let Some(card) = self.groups(ClientId(client)).first().map(|lane| lane.card) {
                    self.ask(Asker::Program(client), card, control);
                }
            }
            _ => {}
        }
    }

    /// A burst that begins finds what the last one left.
    fn top_up(&mut self, client: u32, lane: usize, depth: u32) {
        let Some(state) = self
            .programs
            .get(long(client))
            .and_then(|program| program.lanes.get(lane))
        else {
            return;
        };
        let runlist: &Runlist = &self.cards[state.id.card].runlist;
        let left = runlist.queued(state.id.channel).unwrap_or(0) + state.backlog.len();
        for _ in left..long(depth.max(1)) {
            self.kernel(client, lane);
        }
    }

    /// Every rank computes, and communicates.
    fn step_of_gang(&mut self, client: u32) {
        let Some(program) = self.programs.get_mut(long(client)) else {
            return;
        };
        let Plan::Gang(gang) = &program.plan else {
            return;
        };
        let (compute, reduce_ns, barrier) = (gang.compute, gang.reduce_ns, self.now_ns);
        let ranks = program.lanes.len();
        program.outstanding = ranks * if reduce_ns > 0 { 2 } else { 1 };
        for rank in 0..ranks {
            let Some(lane) = self
                .programs
                .get_mut(long(client))
                .and_then(|program| program.lanes.get_mut(rank))
            else {
                return;
            };
            lane.requests.clear();
            lane.requests.push_back((barrier, 1));
            let work = compute.work(&mut lane.chance);
            self.give(client, rank, work);
            if reduce_ns > 0 {
                let set = u64::from(client);
                self.give(
                    client,
                    rank,
                    Work::kernel(reduce_ns).kind(Kind::CoResident { set }),
                );
            }
        }
    }

    // ---- what the engines say ----

    pub(super) fn finished(&mut self, card: usize, finished: Finished) {
        let client = u32::try_from(finished.tag >> 32).unwrap_or(u32::MAX);
        let lane = u32::try_from(finished.tag & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        let Some(program) = self.programs.get_mut(long(client)) else {
            return;
        };
        let Some(state) = program.lanes.get_mut(long(lane)) else {
            return;
        };
        debug_assert_eq!(
            (state.id.card, state.id.channel),
            (card, finished.channel),
            "an entry of another channel"
        );
        match finished.outcome {
            Outcome::Dropped => {
                program.done.dropped += 1;
                return;
            }
            Outcome::Faulted => {
                program.done.faults += 1;
                return self.end(client);
            }
            Outcome::Done => program.done.kernels += u64::from(finished.kernels),
        }
        match &program.plan {
            Plan::Gang(gang) => {
                program.outstanding = program.outstanding.saturating_sub(1);
                if program.outstanding == 0 {
                    let barrier_ns = gang.barrier_ns;
                    let begun_ns = program
                        .lanes
                        .first()
                        .and_then(|lane| lane.requests.front())
                        .map(|(at_ns, _)| *at_ns);
                    program.done.requests += 1;
                    program
                        .done
                        .latencies_ns
                        .push(finished.at_ns - begun_ns.unwrap_or(finished.at_ns));
                    if barrier_ns == 0 && program.life == Life::Runs {
                        self.step_of_gang(client);
                    } else {
                        self.program_event(
                            self.now_ns.saturating_add(barrier_ns),
                            client,
                            Due::Step,
                        );
                    }
                }
            }
            Plan::Single(single) => match single.load {
                Load::Closed { host_gap_ns, .. } => {
                    program.done.requests += 1;
                    program
                        .done
                        .latencies_ns
                        .push(finished.at_ns - finished.submitted_ns);
                    if host_gap_ns == 0 {
                        self.kernel(client, long(lane));
                    } else {
                        let at_ns = self.now_ns.saturating_add(host_gap_ns);
                        self.program_event(at_ns, client, Due::Submit { lane });
                    }
                }
                Load::Bursts { .. } => {
                    program.done.requests += 1;
                    program
                        .done
                        .latencies_ns
                        .push(finished.at_ns - finished.submitted_ns);
                    if program.burst == Burst::On {
                        self.kernel(client, long(lane));
                    }
                }
                Load::Poisson { .. } | Load::Periodic { .. } => {
                    if let Some((came_ns, left)) = state.requests.front_mut() {
                        *left -= 1;
                        if *left == 0 {
                            let latency_ns = finished.at_ns - *came_ns;
                            state.requests.pop_front();
                            program.done.requests += 1;
                            program.done.latencies_ns.push(latency_ns);
                        }
                    }
                    self.flush(client, long(lane));
                }
                Load::Idle | Load::Persistent | Load::Calls { .. } => program.done.requests += 1,
            },
        }
    }

    /// A communication kernel has come onto its card, or left it: the others get on while all are there.
    pub(super) fn co_resident(&mut self, card: usize, change: Change) {
        let Some(program) = usize::try_from(change.set)
            .ok()
            .and_then(|client| self.programs.get_mut(client))
        else {
            return;
        };
        let all_there =
            |lanes: &[Lane]| lanes.iter().all(|lane| lane.presence == Presence::Arrived);
        let before = all_there(&program.lanes);
        let Some(lane) = program
            .lanes
            .iter_mut()
            .find(|lane| lane.id.card == card && lane.id.channel == change.channel)
        else {
            return;
        };
        lane.presence = change.what;
        let after = all_there(&program.lanes);
        if before == after {
            return;
        }
        let progress = if after { Progress::On } else { Progress::Off };
        let lanes: Vec<LaneId> = program.lanes.iter().map(|lane| lane.id).collect();
        for lane in lanes {
            if let Some(state) = self.cards.get_mut(lane.card) {
                // The one that has just ended is not at the head of its queue any more.
                let _ended: Result<(), Error> =
                    state
                        .runlist
                        .set_progress(self.now_ns, lane.channel, progress);
                self.touch(lane.card);
            }
        }
    }
}
