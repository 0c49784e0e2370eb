//! What programs submit, and what they do when it is done.

use super::{Burst, Due, Lane, LaneId, Life, Plan};
use crate::work::{Change, Error, Finished, Kind, Outcome, Presence, Work};
use crate::world::driver::Asker;
use crate::world::load::{Client, ClientId, Load, Request};
use crate::world::{Event, World, long, short};
use crate::{Progress, Runlist};

impl World {
    pub(super) fn program_event(&mut self, at_ns: u64, client: u32, what: Due) {
        self.schedule(at_ns, Event::Program { client, what });
    }

    pub(super) fn fill(&mut self, client: u32, depth: u32) {
        for lane in 0..self.programs[long(client)].lanes.len() {
            for _ in 0..depth.max(1) {
                self.kernel(client, lane);
            }
        }
    }

    /// One more kernel of a closed loop or burst.
    pub(super) fn kernel(&mut self, client: u32, lane: usize) {
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
    pub(super) fn give(&mut self, client: u32, lane: usize, work: Work) {
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

    pub(super) fn flush(&mut self, client: u32, lane: usize) {
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

    pub(super) fn next_arrival(&mut self, client: u32, interval_ns: u64, fixed_ns: Option<u64>) {
        let Some(program) = self.programs.get_mut(long(client)) else {
            return;
        };
        let after_ns = fixed_ns.unwrap_or_else(|| program.arrivals.exponential_ns(interval_ns));
        self.program_event(self.now_ns.saturating_add(after_ns), client, Due::Arrival);
    }

    /// A request comes in: its entries go to the next lane.
    pub(super) fn request(&mut self, client: u32, request: Request) {
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

    pub(in crate::world) fn program_due(&mut self, client: u32, what: Due) {
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
    pub(super) fn top_up(&mut self, client: u32, lane: usize, depth: u32) {
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
    pub(super) fn step_of_gang(&mut self, client: u32) {
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

    pub(in crate::world) fn finished(&mut self, card: usize, finished: Finished) {
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
                let barrier_ns = gang.barrier_ns;
                self.finished_of_gang(client, barrier_ns, finished.at_ns);
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

    /// One lane of a step has ended: with the last one the step has, and the next one comes after the barrier.
    fn finished_of_gang(&mut self, client: u32, barrier_ns: u64, at_ns: u64) {
        let Some(program) = self.programs.get_mut(long(client)) else {
            return;
        };
        program.outstanding = program.outstanding.saturating_sub(1);
        if program.outstanding > 0 {
            return;
        }
        let begun_ns = program
            .lanes
            .first()
            .and_then(|lane| lane.requests.front())
            .map(|(at_ns, _)| *at_ns);
        program.done.requests += 1;
        program
            .done
            .latencies_ns
            .push(at_ns - begun_ns.unwrap_or(at_ns));
        if barrier_ns == 0 && program.life == Life::Runs {
            self.step_of_gang(client);
        } else {
            self.program_event(self.now_ns.saturating_add(barrier_ns), client, Due::Step);
        }
    }

    /// A communication kernel has come onto its card, or left it: the others get on while all are there.
    pub(in crate::world) fn co_resident(&mut self, card: usize, change: Change) {
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
