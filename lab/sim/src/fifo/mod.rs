//! Channels: the rings that a client fills, and the engines behind them.
//!
//! ```text
//! idle ──GP_PUT moves──▶ running ──acquire fails──▶ stalled ──value comes──▶ running
//!   ▲                      │  └──launch──▶ the card's engine ──end──▶ what was due after it
//!   └──────ring empty──────┘  └──MMU fault, unknown method──▶ in error, until it is reset
//! ```
//!
//! Everything of a channel has its effect in order, as if each launch had ended before the next method: what every client that
//! waits for its own results expects, and more than the hardware promises. Launches, releases and interrupts are read ahead, so that
//! an engine goes from one kernel to the next without this process having to wake in between; their effects are kept
//! until it is their turn, and carry the time at which the card came to them. Everything else waits until all before it has ended.

mod compute;
mod copy;
mod execution;
mod graphics;
mod group;
mod host;
mod runner;
mod video;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use driver::IncidentKind;
use runlist::Enable;

use crate::architecture::Methods;
use crate::card::SimCard;
use crate::engine::{ChannelKey, Settles, Sink};
use crate::fifo::execution::{Due, Execution, Method, Release, Words};
use crate::incident::Incidents;
use crate::locked;
use crate::memory::Backing;
use crate::refusal::Refusal;
use crate::vaspace::VaSpace;

pub(crate) use group::Group;
pub(crate) use runner::Runner;

/// USERD fields (clc56f.h): where the card reads, where the client has written to.
const GP_GET: u64 = 0x88;
const GP_PUT: u64 = 0x8c;
/// Bytes moved at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Methods below this are the host's, whatever the subchannel.
const FIRST_ENGINE_METHOD: u32 = 0x100;
/// `ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT` and `..._GR_EXCEPTION` (nverror.h): what the log of a real driver calls Xid.
const XID_MMU_FAULT: u32 = 31;
const XID_METHOD: u32 = 13;

/// `NV_ERR_RC_ERROR` (nvstatuscodes.h): robust channel recovery has hit the channel.
const NV_ERR_RC_ERROR: u32 = 0x60;

/// Works of one channel that an engine may have at once: what is read ahead.
const MOST_UNDER_WAY: usize = 512;
/// Most of what is kept until its turn comes.
const MOST_DUE: usize = 4096;

/// What a channel is made of.
#[derive(Debug)]
pub(crate) struct ChannelSpec {
    pub(crate) session: Arc<str>,
    pub(crate) runner: Weak<Runner>,
    pub(crate) incidents: Arc<Incidents>,
    pub(crate) client: u32,
    pub(crate) card: Arc<SimCard>,
    pub(crate) group: Arc<Group>,
    pub(crate) space: Arc<VaSpace>,
    pub(crate) userd: Arc<Backing>,
    pub(crate) userd_offset: u64,
    /// Whose memory USERD is.
    pub(crate) userd_owner: UserdOwner,
    pub(crate) fifo_address: u64,
    pub(crate) entries: u32,
    pub(crate) error_notifier: Option<Arc<Backing>>,
}

/// Whose memory USERD is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserdOwner {
    /// The client's: it maps its memory.
    Client,
    /// RM's: the client maps the channel.
    Driver,
    /// Nobody's that a client can map.
    Hidden,
}

/// A channel.
#[derive(Debug)]
pub(crate) struct Channel {
    spec: ChannelSpec,
    id: u32,
    /// On its card's engine.
    key: ChannelKey,
    tags: AtomicU64,
    /// Works that have ended and that the ring thread has not come to: tag, and when.
    ended: Mutex<BTreeMap<u64, u64>>,
    /// Scheduled by itself, without its group.
    scheduled: AtomicBool,
    /// Taken off the runlist by FIFO_DISABLE_CHANNELS.
    disabled: AtomicBool,
    /// Its object is freed.
    removed: AtomicBool,
    /// A fault of the card has ended it.
    dead: AtomicBool,
    execution: Mutex<Execution>,
}

/// Why a channel went into error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// An address that leads nowhere.
    Mmu { address: u64 },
    /// Something that the engine does not know.
    Method { class: u32, method: u32, value: u32 },
    /// A fault of the card, by its number in the driver's log. No reset ends it: the channel must be made anew.
    Dead { xid: u32 },
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing to do.
    Idle,
    /// Something was done; there may be more.
    Progress,
    /// An acquire waits for a value.
    Stalled,
    /// The engine has work of the channel.
    Working,
}

impl Channel {
    /// `None` where USERD does not fit into its memory.
    pub(crate) fn new(spec: ChannelSpec) -> Option<Arc<Self>> {
        let end = spec.userd_offset.checked_add(GP_PUT + 4)?;
        if end > spec.userd.bytes() {
            return None;
        }
        let id = spec.card.next_channel();
        Arc::new_cyclic(|own: &Weak<Self>| Self {
            key: spec.card.engine.add_channel(spec.group.key, own.clone()),
            spec,
            id,
            tags: AtomicU64::new(0),
            ended: Mutex::default(),
            scheduled: AtomicBool::new(false),
            disabled: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            execution: Mutex::default(),
        })
        .into()
    }

    /// Number on its card, and the doorbell's token.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    fn is_on(&self, card: &SimCard) -> bool {
        self.spec.card.index == card.index
    }

    pub(crate) fn userd(&self) -> (&Arc<Backing>, UserdOwner) {
        (&self.spec.userd, self.spec.userd_owner)
    }

    pub(crate) fn key(&self) -> ChannelKey {
        self.key
    }

    pub(crate) fn card(&self) -> &Arc<SimCard> {
        &self.spec.card
    }

    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.spec.group
    }

    pub(crate) fn schedule(&self, on: bool) -> Settles {
        self.scheduled.store(on, Ordering::Release);
        self.spec.card.engine.schedule_channel(self.key, on)
    }

    /// Closes the gates of channels of one card, or opens them.
    pub(crate) fn gate(card: &SimCard, channels: &[Arc<Self>], enable: Enable) -> Settles {
        for channel in channels {
            channel
                .disabled
                .store(enable != Enable::On, Ordering::Release);
        }
        let keys: Vec<ChannelKey> = channels.iter().map(|channel| channel.key).collect();
        card.engine.gate(&keys, enable)
    }

    /// Forgets an error, and what the ring holds.
    pub(crate) fn reset(&self) {
        let mut execution = locked(&self.execution);
        if matches!(execution.failure, Some(Failure::Dead { .. })) {
            return;
        }
        let put = self.gp_put().unwrap_or(0);
        *execution = Execution {
            get: put,
            ..Execution::default()
        };
        self.forget_work();
    }

    /// Takes back what an engine was given.
    fn forget_work(&self) {
        self.spec.card.engine.clear_channel(self.key);
        locked(&self.ended).clear();
    }

    /// The address that could not be translated, where that stopped the channel.
    pub(crate) fn fault_address(&self) -> Option<u64> {
        match locked(&self.execution).failure {
            Some(Failure::Mmu { address }) => Some(address),
            Some(Failure::Method { .. } | Failure::Dead { .. }) | None => None,
        }
    }

    /// `NV_ERR_RC_ERROR` for a channel that a fault of the card has ended.
    pub(crate) fn alive(&self) -> Result<(), Refusal> {
        if self.dead.load(Ordering::Acquire) {
            Err(Refusal(NV_ERR_RC_ERROR))
        } else {
            Ok(())
        }
    }

    /// Ends the channel by a fault that the card reports for it.
    fn die(&self, xid: u32, now_ns: u64) {
        self.dead.store(true, Ordering::Release);
        let mut execution = locked(&self.execution);
        execution.forget_due();
        self.forget_work();
        self.fail(&mut execution, Failure::Dead { xid }, now_ns);
    }

    /// Takes the channel off its card, with what it had to do.
    fn remove(&self) {
        self.removed.store(true, Ordering::Release);
        self.spec.card.engine.remove_channel(self.key);
    }

    /// Gone, or as good as gone.
    fn is_over(&self) -> bool {
        self.removed.load(Ordering::Acquire)
            || self.dead.load(Ordering::Acquire)
            || self.spec.card.is_lost()
    }

    fn is_enabled(&self) -> bool {
        let scheduled = self.scheduled.load(Ordering::Acquire) || self.spec.group.is_scheduled();
        scheduled && !self.disabled.load(Ordering::Acquire)
    }

    fn gp_put(&self) -> Option<u32> {
        let mut word = [0; 4];
        self.spec
            .userd
            .read(self.spec.userd_offset + GP_PUT, &mut word)
            .ok()?;
        Some(u32::from_le_bytes(word))
    }

    /// Does a piece of work: at most one ring entry, or what is due after one kernel.
    pub(crate) fn step(&self, now: &dyn Fn() -> u64) -> Step {
        if self.is_over() {
            return Step::Idle;
        }
        let mut execution = locked(&self.execution);
        if execution.failure.is_some() {
            return Step::Idle;
        }
        // What has ended has ended, although the channel's gate may be closed by now.
        let failure = match self.catch_up(&mut execution) {
            Ok(true) => return Step::Progress,
            Ok(false) => match self.advance(&mut execution, now) {
                Ok(step) => return step,
                // Its turn comes when all before it has ended.
                Err(failure) if execution.under_way > 0 => {
                    execution.coming = Some(failure);
                    return Step::Working;
                }
                Err(failure) => failure,
            },
            Err(failure) => failure,
        };
        execution.forget_due();
        self.forget_work();
        self.fail(&mut execution, failure, now());
        Step::Progress
    }

    /// Non-stalling interrupts since the last look.
    pub(crate) fn take_interrupts(&self) -> u32 {
        std::mem::take(&mut locked(&self.execution).interrupts)
    }

    fn advance(&self, execution: &mut Execution, now: &dyn Fn() -> u64) -> Result<Step, Failure> {
        let waits = if execution.under_way > 0 {
            Step::Working
        } else {
            Step::Idle
        };
        if !self.is_enabled()
            || execution.under_way >= MOST_UNDER_WAY
            || execution.due.len() >= MOST_DUE
        {
            return Ok(waits);
        }
        if let Some(failure) = execution.coming {
            return if execution.under_way > 0 {
                Ok(waits)
            } else {
                Err(failure)
            };
        }
        if let Some(address) = execution.dependent.take() {
            self.launch(execution, address, now)?;
            return Ok(Step::Progress);
        }
        // As long as an entry is under way its words are kept, also when all of them are taken.
        if execution.words.is_empty() && !self.fetch(execution)? {
            return Ok(waits);
        }
        let step = self.run_words(execution, now)?;
        if step == Step::Progress
            && execution.at >= execution.words.len()
            && execution.dependent.is_none()
        {
            self.entry_done(execution);
        }
        Ok(step)
    }

    /// Does what was due after works that have ended; whether there was any.
    fn catch_up(&self, execution: &mut Execution) -> Result<bool, Failure> {
        let mut ended = std::mem::take(&mut *locked(&self.ended));
        let mut any = false;
        while let Some(Due::Work { tag, .. }) = execution.due.front()
            && let Some(at_ns) = ended.remove(tag)
        {
            any = true;
            if let Some(Due::Work { releases, .. }) = execution.due.pop_front() {
                execution.under_way -= 1;
                for release in releases {
                    self.write_release(release, at_ns)?;
                }
            }
            while let Some(Due::Release(_) | Due::Interrupt | Due::Taken { .. }) =
                execution.due.front()
                && let Some(due) = execution.due.pop_front()
            {
                match due {
                    Due::Release(release) => self.write_release(release, at_ns)?,
                    Due::Interrupt => execution.interrupt_now(),
                    Due::Taken { get } => self.tell_get(get),
                    Due::Work { .. } => {}
                }
            }
        }
        // Work ends in the order of the ring, but two threads may tell of it in another. What is older was taken back.
        if let Some(Due::Work { tag, .. }) = execution.due.front() {
            let mut later = ended.split_off(tag);
            locked(&self.ended).append(&mut later);
        }
        Ok(any)
    }

    fn next_tag(&self) -> u64 {
        self.tags.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes a value when all before it has ended: now, or later.
    fn release(
        &self,
        execution: &mut Execution,
        release: Release,
        now: &dyn Fn() -> u64,
    ) -> Result<(), Failure> {
        if execution.due.is_empty() {
            return self.write_release(release, now());
        }
        execution.due.push_back(Due::Release(release));
        Ok(())
    }

    fn write_release(&self, release: Release, at_ns: u64) -> Result<(), Failure> {
        let payload = release.payload.to_le_bytes();
        match release.words {
            Words::One => self.write(release.address, &payload[..4]),
            Words::Two => self.write(release.address, &payload),
            Words::Four => self.write_stamped(release.address, release.payload, at_ns),
        }
    }

    /// Takes the next ring entry; `false` when the ring is empty.
    fn fetch(&self, execution: &mut Execution) -> Result<bool, Failure> {
        let Some(put) = self.gp_put() else {
            return Ok(false);
        };
        if put == execution.get {
            return Ok(false);
        }
        if put >= self.spec.entries {
            return Err(Failure::Method {
                class: 0,
                method: 0x8c,
                value: put,
            });
        }
        let mut entry = [0; 8];
        self.read(
            self.spec
                .fifo_address
                .wrapping_add(u64::from(execution.get) * 8),
            &mut entry,
        )?;
        let entry = u64::from_le_bytes(entry);
        // word0 31:2 and word1 7:0: address; word1 30:10: length in words.
        let address = entry & 0xff_ffff_fffc;
        let length = entry >> 42 & 0x1f_ffff;
        let mut bytes = vec![0; usize::try_from(length * 4).unwrap_or(0)];
        self.read(address, &mut bytes)?;
        execution.words = bytes
            .chunks_exact(4)
            .filter_map(|word| word.try_into().ok())
            .map(u32::from_le_bytes)
            .collect();
        execution.at = 0;
        Ok(true)
    }

    /// The entry has been read; the client is told when it has been carried out.
    fn entry_done(&self, execution: &mut Execution) {
        execution.words.clear();
        execution.at = 0;
        execution.get = (execution.get + 1) % self.spec.entries;
        if execution.due.is_empty() {
            self.tell_get(execution.get);
        } else {
            let get = execution.get;
            execution.due.push_back(Due::Taken { get });
        }
    }

    fn tell_get(&self, get: u32) {
        if let Err(error) = self
            .spec
            .userd
            .write(self.spec.userd_offset + GP_GET, &get.to_le_bytes())
        {
            tracing::warn!(channel = self.id, %error, "GP_GET cannot be written");
        }
    }

    fn run_words(&self, execution: &mut Execution, now: &dyn Fn() -> u64) -> Result<Step, Failure> {
        loop {
            if execution.due.len() >= MOST_DUE {
                return Ok(Step::Working);
            }
            let Some(header) = execution.header else {
                let Some(word) = execution.words.get(execution.at).copied() else {
                    return Ok(Step::Progress);
                };
                execution.at += 1;
                if !execution.read_header(word)? {
                    // End of the segment.
                    execution.at = execution.words.len();
                }
                continue;
            };
            let Some(value) = header
                .immediate
                .or_else(|| execution.words.get(execution.at).copied())
            else {
                // The data of this header comes with the next entry.
                return Ok(Step::Progress);
            };
            let came_to = self.method(execution, header.subchannel, header.method, value, now)?;
            match came_to {
                Method::Stalled => return Ok(Step::Stalled),
                Method::Waits => return Ok(Step::Working),
                Method::Done => execution.take(header),
                Method::Launched => {
                    execution.take(header);
                    return Ok(Step::Progress);
                }
            }
        }
    }

    fn method(
        &self,
        execution: &mut Execution,
        subchannel: usize,
        method: u32,
        value: u32,
        now: &dyn Fn() -> u64,
    ) -> Result<Method, Failure> {
        if method < FIRST_ENGINE_METHOD {
            return self.host_method(execution, subchannel, method, value, now);
        }
        let Some(state) = execution.subchannels.get_mut(subchannel) else {
            return Err(Failure::Method {
                class: 0,
                method,
                value,
            });
        };
        state.set(method, value);
        let architecture = self.spec.card.profile.architecture;
        let methods = architecture
            .methods_of(state.class)
            .filter(|methods| self.spec.group.kind().runs(*methods));
        let call = (method, value);
        match methods {
            Some(Methods::Copy) => self.copy_method(execution, subchannel, method, value, now),
            Some(Methods::Compute) => {
                self.compute_method(execution, subchannel, method, value, now)
            }
            Some(Methods::ThreeD | Methods::InlineToMemory) => {
                self.graphics_method(execution, subchannel, call, now)
            }
            // Nothing is drawn, and its notifications are nobody's.
            Some(Methods::TwoD) => Ok(Method::Done),
            Some(Methods::Falcon(unit)) => {
                self.video_method(execution, subchannel, unit, call, now)
            }
            None => Err(Failure::Method {
                class: state.class,
                method,
                value,
            }),
        }
    }

    fn fail(&self, execution: &mut Execution, failure: Failure, now_ns: u64) {
        if self.removed.load(Ordering::Acquire) {
            return;
        }
        let xid = match failure {
            Failure::Mmu { .. } => XID_MMU_FAULT,
            Failure::Method { .. } => XID_METHOD,
            Failure::Dead { xid } => xid,
        };
        tracing::info!(
            card = self.spec.card.index,
            client = format_args!("{:#x}", self.spec.client),
            channel = self.id,
            xid,
            ?failure,
            "channel in error"
        );
        execution.failure = Some(failure);
        if !matches!(failure, Failure::Dead { .. }) {
            let kind = IncidentKind::Xid {
                number: xid,
                detail: format!("channel {}: {failure:?}", self.id),
            };
            self.spec
                .incidents
                .add(&self.spec.card, kind, Some(&self.spec.session));
        }
        if let Some(notifier) = &self.spec.error_notifier {
            // NvNotification {timeStamp 0:8, info32 8, info16 12, status 14:2} (nvtypes.h); status -1: error.
            let mut block = [0; 16];
            block[..8].copy_from_slice(&now_ns.to_le_bytes());
            block[8..12].copy_from_slice(&xid.to_le_bytes());
            block[14..].copy_from_slice(&u16::MAX.to_le_bytes());
            if let Err(error) = notifier.write(0, &block) {
                tracing::debug!(channel = self.id, %error, "error notifier cannot be written");
            }
        }
    }

    /// Ends what a freed channel is still doing, however long that would take.
    fn still_there(&self, address: u64) -> Result<(), Failure> {
        if self.removed.load(Ordering::Acquire) {
            return Err(Failure::Mmu { address });
        }
        Ok(())
    }

    /// Reads the channel's address space.
    fn read(&self, mut address: u64, mut into: &mut [u8]) -> Result<(), Failure> {
        while !into.is_empty() {
            self.still_there(address)?;
            let place = self
                .spec
                .space
                .translate(address)
                .ok_or(Failure::Mmu { address })?;
            let bytes = usize::try_from(place.bytes)
                .unwrap_or(usize::MAX)
                .min(into.len());
            let (now, later) = into.split_at_mut(bytes);
            place
                .backing
                .read(place.offset, now)
                .map_err(|_gone| Failure::Mmu { address })?;
            into = later;
            address = address.wrapping_add(u64::try_from(bytes).unwrap_or(0));
        }
        Ok(())
    }

    /// Writes the channel's address space.
    fn write(&self, mut address: u64, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            self.still_there(address)?;
            let place = self
                .spec
                .space
                .translate(address)
                .ok_or(Failure::Mmu { address })?;
            let length = usize::try_from(place.bytes)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            let (now, later) = bytes.split_at(length);
            place
                .backing
                .write(place.offset, now)
                .map_err(|_gone| Failure::Mmu { address })?;
            bytes = later;
            address = address.wrapping_add(u64::try_from(length).unwrap_or(0));
        }
        Ok(())
    }

    /// Copies within the channel's address space.
    fn copy(&self, mut from: u64, mut to: u64, mut bytes: u64) -> Result<(), Failure> {
        let mut buffer = vec![0; usize::try_from(bytes.min(CHUNK_BYTES)).unwrap_or(0)];
        while bytes > 0 {
            let length = bytes.min(CHUNK_BYTES);
            let chunk = buffer
                .get_mut(..usize::try_from(length).unwrap_or(0))
                .unwrap_or_default();
            self.read(from, chunk)?;
            self.write(to, chunk)?;
            from = from.wrapping_add(length);
            to = to.wrapping_add(length);
            bytes -= length;
        }
        Ok(())
    }

    /// Writes a semaphore of four words: the payload, and when.
    fn write_stamped(&self, address: u64, payload: u64, at_ns: u64) -> Result<(), Failure> {
        let mut words = [0; 16];
        words[..8].copy_from_slice(&payload.to_le_bytes());
        words[8..].copy_from_slice(&at_ns.to_le_bytes());
        // The time first: whoever sees the payload finds the time beside it.
        self.write(address.wrapping_add(8), &words[8..])?;
        self.write(address, &words[..8])
    }
}

impl Sink for Channel {
    fn ended(&self, tag: u64, at_ns: u64) {
        locked(&self.ended).insert(tag, at_ns);
        if let Some(runner) = self.spec.runner.upgrade() {
            runner.work_ended();
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // Does nothing for one that was removed as an object.
        self.spec.card.engine.remove_channel(self.key);
    }
}
