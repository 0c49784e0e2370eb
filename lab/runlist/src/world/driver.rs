//! The driver: a call takes its locks, waits for the card's firmware, is carried out, and is answered. It keeps its locks to the end,
//! while it waits for a group to leave too: the caller waits inside the driver.

use super::agents::{AgentId, Notice};
use super::calls::{Answer, CallError, CallId, Control, Wait};
use super::programs::Due;
use super::stream::Stream;
use super::{Event, Presence, World};
use crate::work::{Enable, Error};

/// Channels that one FIFO_DISABLE_CHANNELS can name (NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES).
const CHANNELS_MAX: usize = 64;

/// Who made a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Agent(AgentId),
    Program(u32),
}

#[derive(Debug)]
pub(crate) struct Call {
    asker: Asker,
    card: usize,
    control: Control,
    requested_ns: u64,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Waiting,
    /// The firmware has it since then, and is done with it then.
    Served {
        since_ns: u64,
        until_ns: u64,
    },
    /// The firmware will never be done with it.
    LostOnTheWay,
    /// Carried out; answered when the group has left.
    Saving(Result<Answer, CallError>),
}

/// A card's firmware: one call after the other.
#[derive(Debug)]
pub(crate) struct Firmware {
    chance: Stream,
    free_from_ns: u64,
    hung_until_ns: u64,
    /// So many of the next calls are lost.
    pub(crate) losing: u32,
    pub(crate) busy_ns: u64,
}

impl Firmware {
    pub(crate) const fn new(chance: Stream) -> Self {
        Self {
            chance,
            free_from_ns: 0,
            hung_until_ns: 0,
            losing: 0,
            busy_ns: 0,
        }
    }
}

impl World {
    pub(super) fn ask(&mut self, asker: Asker, card: usize, control: Control) -> CallId {
        assert!(
            card < self.cards.len(),
            "there are {} cards, not {card}",
            self.cards.len()
        );
        let id = self.next_call;
        self.next_call += 1;
        self.locks.ask(id, card, control.class());
        self.calls.insert(
            id,
            Call {
                asker,
                card,
                control,
                requested_ns: self.now_ns,
                step: Step::Waiting,
            },
        );
        self.grant();
        CallId(id)
    }

    fn grant(&mut self) {
        while let Some(call) = self.locks.grant() {
            self.serve(call);
        }
    }

    fn serve(&mut self, id: u64) {
        let (now_ns, rpc) = (self.now_ns, self.setup.rpc);
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let Some(card) = self.cards.get_mut(call.card) else {
            return;
        };
        if card.presence == Presence::Lost {
            return self.answer(id, Err(CallError::Lost));
        }
        let firmware = &mut card.firmware;
        let service_ns = match call.control {
            Control::Other { service_ns, .. } => service_ns,
            _ => {
                let jitter_ns = firmware.chance.exponential_ns(rpc.jitter_ns);
                let stall_ns = if firmware.chance.chance(rpc.stall_ppm) {
                    firmware.chance.exponential_ns(rpc.stall_ns)
                } else {
                    0
                };
                rpc.base_ns + jitter_ns + stall_ns
            }
        };
        let lost = firmware.losing > 0 || firmware.chance.chance(rpc.lost_ppm);
        if lost {
            firmware.losing = firmware.losing.saturating_sub(1);
            call.step = Step::LostOnTheWay;
            return self.schedule(
                now_ns.saturating_add(rpc.timeout_ns),
                Event::TimedOut { call: id },
            );
        }
        let from_ns = now_ns
            .max(firmware.free_from_ns)
            .max(firmware.hung_until_ns);
        let until_ns = from_ns.saturating_add(service_ns);
        firmware.free_from_ns = until_ns;
        firmware.busy_ns = firmware.busy_ns.saturating_add(service_ns);
        self.wait_for(id, now_ns, until_ns);
    }

    /// The firmware will be done then, or the driver gives up on it before.
    fn wait_for(&mut self, id: u64, since_ns: u64, until_ns: u64) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        call.step = Step::Served { since_ns, until_ns };
        let patience_ns = since_ns.saturating_add(self.setup.rpc.timeout_ns);
        if until_ns > patience_ns {
            self.schedule(patience_ns, Event::TimedOut { call: id });
        } else {
            self.schedule(
                until_ns,
                Event::Served {
                    call: id,
                    at_ns: until_ns,
                },
            );
        }
    }

    pub(super) fn served(&mut self, id: u64, at_ns: u64) {
        let Some(call) = self.calls.get(&id) else {
            return;
        };
        // A hang has moved it since.
        if !matches!(call.step, Step::Served { until_ns, .. } if until_ns == at_ns) {
            return;
        }
        if self
            .cards
            .get(call.card)
            .is_none_or(|card| card.presence == Presence::Lost)
        {
            return self.answer(id, Err(CallError::Lost));
        }
        let (card, control) = (call.card, call.control.clone());
        let (result, saved) = self.carry_out(card, &control);
        self.touch(card);
        match saved {
            Saved::Already => self.answer(id, result),
            Saved::At(at_ns) if at_ns <= self.now_ns => self.answer(id, result),
            Saved::At(_) | Saved::Unknown => {
                let patience_ns = self
                    .now_ns
                    .saturating_add(self.setup.rpc.preempt_timeout_ns);
                let (result, at_ns) = match saved {
                    Saved::At(at_ns) if at_ns <= patience_ns => (result, at_ns),
                    Saved::At(_) | Saved::Unknown | Saved::Already => {
                        (result.and(Err(CallError::NotSaved)), patience_ns)
                    }
                };
                if let Some(call) = self.calls.get_mut(&id) {
                    call.step = Step::Saving(result);
                }
                self.schedule(at_ns, Event::Saved { call: id });
            }
        }
    }

    pub(super) fn saved(&mut self, id: u64) {
        if let Some(Call {
            step: Step::Saving(result),
            ..
        }) = self.calls.get(&id)
        {
            let result = *result;
            self.answer(id, result);
        }
    }

    pub(super) fn timed_out(&mut self, id: u64) {
        let Some(call) = self.calls.get(&id) else {
            return;
        };
        let over = match call.step {
            Step::LostOnTheWay => true,
            Step::Served { since_ns, until_ns } => {
                until_ns.saturating_sub(since_ns) > self.setup.rpc.timeout_ns
                    && since_ns.saturating_add(self.setup.rpc.timeout_ns) <= self.now_ns
            }
            Step::Waiting | Step::Saving(_) => false,
        };
        if over {
            self.answer(id, Err(CallError::NoAnswer));
        }
    }

    fn answer(&mut self, id: u64, result: Result<Answer, CallError>) {
        let Some(call) = self.calls.remove(&id) else {
            return;
        };
        self.locks.give_back(id);
        match call.asker {
            Asker::Agent(agent) => self.deliver(Notice::Answered {
                agent,
                call: CallId(id),
                requested_ns: call.requested_ns,
                result,
            }),
            Asker::Program(client) => self.program_due(client, Due::Answered),
        }
        self.grant();
    }

    /// The firmware hangs: what it has is done later by as much.
    pub(super) fn hang(&mut self, card: usize, until_ns: u64) {
        let now_ns = self.now_ns;
        let Some(state) = self.cards.get_mut(card) else {
            return;
        };
        let hung_from_ns = state.firmware.hung_until_ns.max(now_ns);
        if until_ns <= hung_from_ns {
            return;
        }
        let more_ns = until_ns - hung_from_ns;
        state.firmware.hung_until_ns = until_ns;
        if state.firmware.free_from_ns > now_ns {
            state.firmware.free_from_ns = state.firmware.free_from_ns.saturating_add(more_ns);
        }
        let served = self
            .calls
            .iter()
            .filter(|(_, call)| call.card == card)
            .filter_map(|(id, call)| match call.step {
                Step::Served { since_ns, until_ns } if until_ns > now_ns => {
                    Some((*id, since_ns, until_ns))
                }
                Step::Served { .. } | Step::Waiting | Step::LostOnTheWay | Step::Saving(_) => None,
            });
        let moved: Vec<(u64, u64, u64)> = served.collect();
        for (id, since_ns, until_ns) in moved {
            self.wait_for(id, since_ns, until_ns.saturating_add(more_ns));
        }
    }

    fn carry_out(&mut self, card: usize, control: &Control) -> (Result<Answer, CallError>, Saved) {
        let now_ns = self.now_ns;
        let Some(card) = self.cards.get_mut(card) else {
            return (Err(CallError::Lost), Saved::Already);
        };
        let runlist = &mut card.runlist;
        match control {
            Control::Channels { channels, enable } => {
                if channels.len() > CHANNELS_MAX {
                    return (Err(CallError::Refused), Saved::Already);
                }
                let mut saved = Saved::Already;
                for channel in channels {
                    match runlist.set_enabled(now_ns, *channel, *enable) {
                        Ok(one) => saved = saved.and(one),
                        Err(error) => return (Err(error.into()), Saved::Already),
                    }
                }
                (
                    Ok(Answer::Done),
                    if *enable == Enable::OffNow {
                        saved
                    } else {
                        Saved::Already
                    },
                )
            }
            Control::Schedule { group, enable } => match runlist
                .set_group_enabled(now_ns, *group, *enable)
            {
                Ok(one) if *enable == Enable::OffNow => (Ok(Answer::Done), Saved::Already.and(one)),
                other => done(other.map(|_| Answer::Done)),
            },
            Control::SetTimeslice { group, slice_ns } => done(
                runlist
                    .set_timeslice(now_ns, *group, *slice_ns)
                    .map(|()| Answer::Done),
            ),
            Control::GetTimeslice { group } => {
                done(runlist.timeslice_ns(*group).map(Answer::Slice))
            }
            Control::Preempt { group, wait } => match (runlist.preempt(now_ns, *group), wait) {
                (Ok(one), Wait::Saved) => (Ok(Answer::Done), Saved::Already.and(one)),
                (other, Wait::Saved | Wait::No) => done(other.map(|_| Answer::Done)),
            },
            Control::Interleave { group, level } => done(
                runlist
                    .set_interleave(now_ns, *group, *level)
                    .map(|()| Answer::Done),
            ),
            Control::PreemptionMode { group, mode } => done(
                runlist
                    .set_mode(now_ns, *group, *mode)
                    .map(|()| Answer::Done),
            ),
            Control::Resident => done(Ok(Answer::Resident(
                runlist.resident().map(|(group, _)| group),
            ))),
            Control::Other { .. } => done(Ok(Answer::Done)),
        }
    }
}

fn done(result: Result<Answer, Error>) -> (Result<Answer, CallError>, Saved) {
    (result.map_err(CallError::from), Saved::Already)
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        match error {
            Error::NoGroup(_) | Error::NoChannel(_) => Self::Gone,
            Error::Full { .. } | Error::Faulted(_) | Error::NoSlice(_) | Error::NotThere(_) => {
                Self::Refused
            }
        }
    }
}

/// When what a call waits for is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    Already,
    At(u64),
    Unknown,
}

impl Saved {
    /// The later of the two; an engine that does not know says [`None`].
    fn and(self, other: Option<u64>) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, None) => Self::Unknown,
            (Self::Already, Some(at_ns)) => Self::At(at_ns),
            (Self::At(one), Some(at_ns)) => Self::At(one.max(at_ns)),
        }
    }
}
