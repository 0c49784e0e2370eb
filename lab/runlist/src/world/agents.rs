//! Those who steer: they sleep, are woken late, and are answered.

use std::collections::BTreeMap;

use super::calls::{Answer, CallError, CallId, Control};
use super::driver::Asker;
use super::stream::{Source, Stream};
use super::{Event, World, long, short};

/// An agent, by the order in which they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub(crate) u32);

/// A wake-up, by the order in which they were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WakeId(pub(crate) u64);

/// Something that an agent has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Its time has come.
    Woke {
        /// Whose.
        agent: AgentId,
        /// Which.
        wake: WakeId,
    },
    /// A call has ended.
    Answered {
        /// Whose.
        agent: AgentId,
        /// Which.
        call: CallId,
        /// When it was made, in the world's time.
        requested_ns: u64,
        /// What came of it.
        result: Result<Answer, CallError>,
    },
}

impl Notice {
    /// Whose it is.
    #[must_use]
    pub const fn agent(&self) -> AgentId {
        match self {
            Self::Woke { agent, .. } | Self::Answered { agent, .. } => *agent,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Agent {
    life: Life,
    timer: Stream,
    /// Wake-ups by number, with the world's time that they are due.
    wakes: BTreeMap<u64, u64>,
    /// It has no processor until then.
    pub(crate) stalled_until_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    Dead,
}

impl World {
    /// A new agent.
    pub fn add_agent(&mut self) -> AgentId {
        let id = short(self.agents.len());
        self.agents.push(Agent {
            life: Life::Alive,
            timer: Stream::new(self.setup.seed, Source::Timer(id)),
            wakes: BTreeMap::new(),
            stalled_until_ns: 0,
        });
        AgentId(id)
    }

    /// The agent dies between two instructions: it hears nothing more. Calls that it has made are carried out all the same.
    pub fn kill_agent(&mut self, agent: AgentId) {
        if let Some(agent) = self.agents.get_mut(long(agent.0)) {
            agent.life = Life::Dead;
            agent.wakes.clear();
        }
    }

    /// The agents' clock (CLOCK_MONOTONIC): the world's time, and what faults made it jump ahead.
    #[must_use]
    pub const fn agent_now_ns(&self) -> u64 {
        self.now_ns + self.clock_ahead_ns
    }

    /// Wakes the agent when its clock shows `at_ns`, or a little later. A time that is over wakes it at once.
    pub fn wake_at(&mut self, agent: AgentId, at_ns: u64) -> WakeId {
        let wake = self.sequence;
        let (now_ns, timers) = (self.now_ns, self.setup.timers);
        let requested_ns = at_ns.saturating_sub(self.clock_ahead_ns);
        if let Some(state) = self.agents.get_mut(long(agent.0))
            && state.life == Life::Alive
        {
            let at_ns = if requested_ns <= now_ns {
                now_ns
            } else {
                let usual_ns = state.timer.half_normal_ns(timers.usual_ns);
                let much_ns = if state.timer.chance(timers.late_ppm) {
                    state.timer.exponential_ns(timers.late_ns)
                } else {
                    0
                };
                requested_ns
                    .saturating_add(usual_ns)
                    .saturating_add(much_ns)
            };
            state.wakes.insert(wake, at_ns);
            self.schedule(
                at_ns,
                Event::Wake {
                    agent: agent.0,
                    wake,
                    at_ns,
                },
            );
        }
        WakeId(wake)
    }

    /// Takes a wake-up back.
    pub fn cancel_wake(&mut self, agent: AgentId, wake: WakeId) {
        if let Some(agent) = self.agents.get_mut(long(agent.0)) {
            agent.wakes.remove(&wake.0);
        }
    }

    /// Makes a call to a card's driver; [`Notice::Answered`] says what came of it. An agent may make several at once, as threads do.
    ///
    /// # Panics
    /// If there is no such card.
    pub fn call(&mut self, agent: AgentId, card: usize, control: Control) -> CallId {
        self.ask(Asker::Agent(agent), card, control)
    }

    pub(super) fn timer(&mut self, agent: u32, wake: u64, at_ns: u64) {
        let Some(state) = self.agents.get_mut(long(agent)) else {
            return;
        };
        // The entry of a wake-up that was taken back or moved is still in the queue.
        if state.wakes.get(&wake) != Some(&at_ns) {
            return;
        }
        state.wakes.remove(&wake);
        self.deliver(Notice::Woke {
            agent: AgentId(agent),
            wake: WakeId(wake),
        });
    }

    pub(super) fn deliver(&mut self, notice: Notice) {
        let Some(agent) = self.agents.get(long(notice.agent().0)) else {
            return;
        };
        if agent.stalled_until_ns > self.now_ns {
            let at_ns = agent.stalled_until_ns;
            self.schedule(at_ns, Event::Deliver { notice });
        } else {
            self.notices.push_back(notice);
        }
    }

    /// Whether the one it is for still lives.
    pub(super) fn is_heard(&self, notice: Notice) -> bool {
        let agent = self.agents.get(long(notice.agent().0));
        agent.is_some_and(|agent| agent.life == Life::Alive)
    }

    /// The agents' clock jumps ahead: sleepers whose time has come by that wake now.
    pub(super) fn jump(&mut self, by_ns: u64) {
        self.clock_ahead_ns = self.clock_ahead_ns.saturating_add(by_ns);
        let now_ns = self.now_ns;
        let mut moved = Vec::new();
        for (index, agent) in self.agents.iter_mut().enumerate() {
            for (wake, at_ns) in &mut agent.wakes {
                *at_ns = at_ns.saturating_sub(by_ns).max(now_ns);
                moved.push((short(index), *wake, *at_ns));
            }
        }
        for (agent, wake, at_ns) in moved {
            self.schedule(at_ns, Event::Wake { agent, wake, at_ns });
        }
    }
}
