//! One card: its identity, its account, its faults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driver::wire::CardAccount;
use driver::{CardIdentity, CardTime};
use nvabi::status::{NV_ERR_GPU_IS_LOST, NV_ERR_NO_MEMORY};

use crate::engine::Engine;
use crate::locked;
use crate::profile::{CardProfile, SchedulerProfile, uuid_text};
use crate::refusal::Refusal;

/// Length of BAR1 that every simulated card shows, bytes.
pub(crate) const BAR1_BYTES: u64 = 256 << 20;

/// A simulated card.
#[derive(Debug)]
pub struct SimCard {
    /// Its place in the driver's order; also its minor number and device instance.
    pub index: u32,
    /// What the profile says.
    pub profile: CardProfile,
    /// What runs on the card, and when.
    pub(crate) engine: Engine,
    /// Held by the one call to the scheduler that is under way.
    rpc: Mutex<Duration>,
    channels_made: AtomicU32,
    /// Fallen off the bus. Apart from the state, because every look at a ring asks for it.
    lost: AtomicBool,
    /// Of BAR1, bytes.
    bar1_used: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used_bytes: u64,
    peak_bytes: u64,
    /// By session and process.
    holders: BTreeMap<(Arc<str>, i32), Holder>,
    /// By session: what it holds, and the most that it ever held.
    sessions: BTreeMap<Arc<str>, Held>,
    /// Next made-up physical address.
    next_offset: u64,
    /// Allocations that are still to fail.
    out_of_memory_calls: u32,
}

#[derive(Debug, Default)]
struct Holder {
    bytes: u64,
    /// Charges, also those of no bytes.
    charges: u64,
}

#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    peak_bytes: u64,
}

/// A process that holds something on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) bytes: u64,
}

impl SimCard {
    pub(crate) fn new(index: u32, profile: CardProfile, scheduler: &SchedulerProfile) -> Arc<Self> {
        Arc::new(Self {
            engine: Engine::new(uuid_text(&profile.uuid), scheduler.costs),
            rpc: Mutex::new(Duration::from_micros(u64::from(scheduler.rpc_us))),
            index,
            profile,
            channels_made: AtomicU32::new(1),
            lost: AtomicBool::new(false),
            bar1_used: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    /// `GPU-…`
    #[must_use]
    pub fn uuid(&self) -> String {
        uuid_text(&self.profile.uuid)
    }

    /// Bus number; domain, slot and function are 0.
    pub(crate) fn pci_bus(&self) -> u8 {
        u8::try_from(self.index)
            .unwrap_or(u8::MAX)
            .saturating_add(1)
    }

    /// As the kernel's log names it.
    pub(crate) fn pci_address(&self) -> String {
        format!("0000:{:02x}:00", self.pci_bus())
    }

    /// RM's id: domain, bus and slot in one number.
    pub(crate) fn gpu_id(&self) -> u32 {
        u32::from(self.pci_bus()) << 8
    }

    /// As the driver numbers it.
    #[must_use]
    pub fn identity(&self) -> CardIdentity {
        CardIdentity {
            uuid: self.uuid(),
            minor: self.index,
            gpu_id: self.gpu_id(),
            device_instance: self.index,
            memory_bytes: self.profile.memory_bytes,
        }
    }

    /// A number for a new channel.
    pub(crate) fn next_channel(&self) -> u32 {
        self.channels_made.fetch_add(1, Ordering::Relaxed)
    }

    /// Bytes that nobody holds.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.profile
            .memory_bytes
            .saturating_sub(locked(&self.state).used_bytes)
    }

    /// Maps card memory into BAR1 until the answer is dropped. A mapping beyond its end is made all the same.
    pub(crate) fn bar1(self: &Arc<Self>, bytes: u64) -> Bar1 {
        self.bar1_used.fetch_add(bytes, Ordering::Relaxed);
        Bar1 {
            card: self.clone(),
            bytes,
        }
    }

    /// Bytes of BAR1 that nobody has mapped, whosever they are (`memmgrGetBAR1InfoForDevice`, mem_mgr_gm107.c).
    pub(crate) fn bar1_free_bytes(&self) -> u64 {
        BAR1_BYTES.saturating_sub(self.bar1_used.load(Ordering::Relaxed))
    }

    /// Who holds what.
    #[must_use]
    pub fn account(&self) -> CardAccount {
        let times = self.engine.times();
        let state = locked(&self.state);
        let mut sessions = BTreeMap::<&str, u64>::new();
        for ((session, _pid), holder) in state.holders.iter().filter(|(_, holder)| holder.bytes > 0)
        {
            let sum = sessions.entry(session).or_default();
            *sum = sum.saturating_add(holder.bytes);
        }
        CardAccount {
            uuid: self.uuid(),
            memory_bytes: self.profile.memory_bytes,
            used_bytes: state.used_bytes,
            peak_bytes: state.peak_bytes,
            session_peaks: state
                .sessions
                .iter()
                .map(|(name, held)| (name.to_string(), held.peak_bytes))
                .collect(),
            sessions: sessions
                .into_iter()
                .map(|(name, bytes)| (name.to_owned(), bytes))
                .collect(),
            at_ns: times.at_ns,
            switching_ns: times.switching_ns,
            engine_ns: times
                .sessions
                .iter()
                .map(|(name, used_ns)| (name.to_string(), *used_ns))
                .collect(),
        }
    }

    /// How long the compute engine has worked for a session.
    pub(crate) fn engine_time(&self, session: &str) -> CardTime {
        let times = self.engine.times();
        CardTime {
            uuid: self.uuid(),
            used_ns: times.sessions.get(session).copied().unwrap_or(0),
            at_ns: times.at_ns,
        }
    }

    /// How often the card's own thread has woken: never on an idle card.
    #[must_use]
    pub fn wake_ups(&self) -> u64 {
        self.engine.wake_ups()
    }

    /// Passes the time that a call to the scheduler is under way. Calls of one card follow each other.
    pub(crate) fn rpc(&self) {
        let latency = locked(&self.rpc);
        if !latency.is_zero() {
            std::thread::sleep(*latency);
        }
    }

    /// Every process that has an object on the card, of all sessions.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let mut processes = BTreeMap::<i32, u64>::new();
        for ((_session, pid), holder) in &locked(&self.state).holders {
            let sum = processes.entry(*pid).or_default();
            *sum = sum.saturating_add(holder.bytes);
        }
        processes
            .into_iter()
            .map(|(pid, bytes)| Process { pid, bytes })
            .collect()
    }

    /// Takes memory; the answer gives it back when it is dropped. No bytes: the process is only listed.
    pub(crate) fn charge(
        self: &Arc<Self>,
        session: &Arc<str>,
        pid: i32,
        bytes: u64,
    ) -> Result<Charge, Refusal> {
        self.alive()?;
        let mut state = locked(&self.state);
        if bytes > 0 && state.out_of_memory_calls > 0 {
            state.out_of_memory_calls -= 1;
            return Err(Refusal(NV_ERR_NO_MEMORY));
        }
        let used = state
            .used_bytes
            .checked_add(bytes)
            .filter(|used| *used <= self.profile.memory_bytes)
            .ok_or(Refusal(NV_ERR_NO_MEMORY))?;
        state.used_bytes = used;
        state.peak_bytes = state.peak_bytes.max(used);
        let held = state.sessions.entry(session.clone()).or_default();
        held.bytes += bytes;
        held.peak_bytes = held.peak_bytes.max(held.bytes);
        let offset = state.next_offset;
        state.next_offset = offset.wrapping_add(bytes);
        let holder = state.holders.entry((session.clone(), pid)).or_default();
        holder.bytes += bytes;
        holder.charges += 1;
        Ok(Charge {
            card: self.clone(),
            session: session.clone(),
            pid,
            bytes,
            offset: offset % self.profile.memory_bytes,
        })
    }

    /// A session is over: nobody asks for its peak any more.
    pub(crate) fn forget(&self, session: &str) {
        self.engine.forget(session);
        let mut state = locked(&self.state);
        if state
            .sessions
            .get(session)
            .is_some_and(|held| held.bytes == 0)
        {
            state.sessions.remove(session);
        }
    }

    /// `NV_ERR_GPU_IS_LOST` where that fault is injected.
    pub(crate) fn alive(&self) -> Result<(), Refusal> {
        if self.is_lost() {
            Err(Refusal(NV_ERR_GPU_IS_LOST))
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(crate) fn fail_allocations(&self, calls: u32) {
        locked(&self.state).out_of_memory_calls = calls;
    }

    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.engine.set_lost(true);
    }

    pub(crate) fn end_faults(&self) {
        self.lost.store(false, Ordering::Release);
        self.engine.set_lost(false);
        locked(&self.state).out_of_memory_calls = 0;
    }
}

/// A part of BAR1 that is taken as long as this exists.
#[derive(Debug)]
pub(crate) struct Bar1 {
    card: Arc<SimCard>,
    bytes: u64,
}

impl Drop for Bar1 {
    fn drop(&mut self) {
        self.card.bar1_used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Memory of a card that is taken as long as this exists.
#[derive(Debug)]
pub(crate) struct Charge {
    card: Arc<SimCard>,
    session: Arc<str>,
    pid: i32,
    bytes: u64,
    /// A made-up physical address, inside the card.
    pub(crate) offset: u64,
}

impl Charge {
    pub(crate) fn card(&self) -> &Arc<SimCard> {
        &self.card
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The session that it is charged to: the one that allocated.
    pub(crate) fn session(&self) -> &str {
        &self.session
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut state = locked(&self.card.state);
        state.used_bytes -= self.bytes;
        if let Some(held) = state.sessions.get_mut(&self.session) {
            held.bytes -= self.bytes;
        }
        let key = (self.session.clone(), self.pid);
        if let Some(holder) = state.holders.get_mut(&key) {
            holder.bytes -= self.bytes;
            holder.charges -= 1;
            if holder.charges == 0 {
                state.holders.remove(&key);
            }
        }
    }
}
