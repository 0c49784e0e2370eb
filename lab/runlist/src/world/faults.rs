//! What goes wrong.

use super::agents::AgentId;
use super::calls::Control;
use super::driver::Asker;
use super::load::ClientId;
use super::locks::Class;
use super::{Event, Presence, World, long};

/// Something that goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// [`World::kill_agent`].
    KillAgent(AgentId),
    /// The agent gets no processor for so long.
    StallAgent {
        /// Which.
        agent: AgentId,
        /// From now.
        for_ns: u64,
    },
    /// The card's firmware does nothing for so long; [`u64::MAX`]: for ever.
    HangFirmware {
        /// Which.
        card: usize,
        /// From now.
        for_ns: u64,
    },
    /// The card's firmware never sees the next calls.
    LoseCalls {
        /// Which.
        card: usize,
        /// How many.
        calls: u32,
    },
    /// Somebody holds locks for so long.
    HoldLocks {
        /// For which card.
        card: usize,
        /// Which.
        class: Class,
        /// From when they are got.
        for_ns: u64,
    },
    /// The card falls off the bus: its groups go, and every call fails.
    RemoveCard(usize),
    /// The agents' clock jumps ahead.
    JumpClock {
        /// By so much.
        by_ns: u64,
    },
    /// The program takes its group down, with whatever is queued.
    Crash(ClientId),
    /// The program ends.
    Stop(ClientId),
    /// The program is frozen: what it has submitted runs on.
    Freeze(ClientId),
    /// It is not any more.
    Thaw(ClientId),
}

impl World {
    /// Lets something go wrong at `at_ns`, before anything else happens at that time; now, if that is over.
    pub fn inject(&mut self, at_ns: u64, fault: Fault) {
        self.schedule(at_ns, Event::Fault(fault));
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::KillAgent(agent) => self.kill_agent(agent),
            Fault::StallAgent { agent, for_ns } => {
                let until_ns = self.now_ns.saturating_add(for_ns);
                if let Some(agent) = self.agents.get_mut(long(agent.0)) {
                    agent.stalled_until_ns = agent.stalled_until_ns.max(until_ns);
                }
            }
            Fault::HangFirmware { card, for_ns } => {
                self.hang(card, self.now_ns.saturating_add(for_ns))
            }
            Fault::LoseCalls { card, calls } => {
                if let Some(card) = self.cards.get_mut(card) {
                    card.firmware.losing = card.firmware.losing.saturating_add(calls);
                }
            }
            Fault::HoldLocks {
                card,
                class,
                for_ns,
            } => {
                let control = Control::Other {
                    class,
                    service_ns: for_ns,
                };
                if card < self.cards.len() {
                    self.ask(Asker::Program(u32::MAX), card, control);
                }
            }
            Fault::RemoveCard(card) => {
                if let Some(state) = self.cards.get_mut(card) {
                    state.presence = Presence::Lost;
                }
                self.card_lost(card);
            }
            Fault::JumpClock { by_ns } => self.jump(by_ns),
            Fault::Crash(client) => self.crash(client),
            Fault::Stop(client) => self.stop(client),
            Fault::Freeze(client) => self.freeze(client),
            Fault::Thaw(client) => self.thaw(client),
        }
    }
}
