//! What a broker knows that must outlive it, as one value that changes by [`Op`]s only.
//!
//! The journal writes the ops down; the same ops on the same value come to the same value. So nothing here looks at the world:
//! no clock, no system call, no descriptor.
//!
//! ```text
//!            Begin             End                 Settle
//! (nothing) ───────▶ in doubt ─────▶ finished ─────────────▶ (nothing), and for the thread a record:
//!                    the driver may  committed, to be          Undelivered, Answered, or none
//!                    have done it    answered
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use driver::{FileId, FileKind};
use ledger::steps::Stepped;
use ledger::{
    Applied, CardSlot, ClientHandle, Ledger, Operation, PinToken, Recorded, Refusal,
    ReservationToken,
};
use serde::{Deserialize, Serialize};

mod calls;
mod os_events;
pub mod scheduling;

use calls::Records;
pub use calls::{Answer, Begun, CallKey, ChangesAccount, End, Finished, Kept, NamedFd, OpenCall};
#[cfg(test)]
pub(crate) use calls::{MOST_RECORD_BYTES, MOST_RECORDS};
use os_events::OsEvents;
use scheduling::Change as ScheduleChange;
pub use scheduling::Scheduling;

/// The whole.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// The account.
    pub ledger: Ledger,
    /// How the driver numbers the cards of the grant.
    pub numbering: Numbering,
    files: BTreeMap<FileId, FileEntry>,
    last_file: u64,
    last_call: u64,
    open: BTreeMap<u32, OpenCall>,
    kept: Records,
    cgroup: Option<PathBuf>,
    /// Semaphore pools of uvm files: first address, bytes, and what is reserved for each as long as it is there.
    pools: BTreeMap<(FileId, u64), (u64, ReservationToken)>,
    /// Channel groups and channels, and the terms of the container's share.
    scheduling: Scheduling,
    os_events: OsEvents,
    /// Control files, each with a file that is registered with it and is held.
    registered: BTreeSet<(FileId, FileId)>,
    /// What a context takes on a card, bytes: the most that its driver has told.
    context_bytes: BTreeMap<CardSlot, u64>,
    /// References of calls that the driver may have executed, of which nobody will know: they stay.
    staying_pins: BTreeSet<PinToken>,
    /// Processes that managed memory is charged to, each with when it was started, in ticks: another one may have its number by now.
    mappers: BTreeMap<i32, u64>,
}

/// How the driver numbers the cards of the grant; learnt from the driver, or from its answers as they pass by.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbering {
    /// By RM's GPU id.
    pub slot_of_gpu_id: BTreeMap<u32, CardSlot>,
    /// By RM's device instance.
    pub slot_of_instance: BTreeMap<u32, CardSlot>,
}

/// A file of the driver that the tenant holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// What it is.
    pub kind: FileKind,
    /// The control file that it is registered with, as device files are.
    pub registered_with: Option<FileId>,
    /// Nobody of the container holds it any more: it is being given up, whatever happens.
    pub closing: Option<Closing>,
    /// The driver has made it one for exports for this container, and makes it one for nobody else.
    pub is_claimed: bool,
    /// Another container of the share group was told what it holds, is charged for that, and may import it at any time.
    pub is_reported: bool,
}

/// How far a file is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Closing {
    /// The driver is asked to free what the file holds, which may be there.
    Begun,
    /// The driver has freed it, or does so when our descriptors of the file are closed.
    Freed,
    /// The driver keeps some of it until nobody has the file any more, which the kernel is watched for.
    Watched,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Of the ledger.
    Ledger(Operation),
    /// A call goes to the driver.
    Begin(u32, Box<Begun>),
    /// Its result, committed by the ledger's operations of the same frame.
    End(u32, Answer),
    /// Its answer is given, or was not taken.
    Settle(u32, Option<End>),
    /// What is kept for a thread ended so after all; `None`: nothing is kept any more.
    Keep(i32, Option<End>),
    /// A thread is gone.
    ForgetThread(i32),
    /// A file of the driver is seen.
    FileSeen(FileId, FileKind),
    /// A device file is registered with a control file.
    FileRegistered(FileId, FileId),
    /// The driver has made the file one for exports.
    FileClaimed(FileId),
    /// Another container was told what the file holds.
    FileReported(FileId),
    /// References stay that a call held, since the driver may have executed it.
    PinsStay(Vec<PinToken>),
    /// Nobody of the container holds the file any more, and it is given up so far.
    FileClosing(FileId, Closing),
    /// It is closed everywhere.
    FileGone(FileId),
    /// A uvm file has a semaphore pool: first address and bytes, and what stays reserved for it.
    Pool(FileId, (u64, u64), ReservationToken),
    /// The file's pool that begins there is freed.
    PoolGone(FileId, u64),
    /// The file's pool that begins there outlives its file: what is reserved for it stays reserved.
    PoolStays(FileId, u64),
    /// A card's GPU id.
    GpuId(u32, CardSlot),
    /// A card's device instance, which it had not before: no other is its own any more.
    Instance(u32, CardSlot),
    /// What a context takes on a card, bytes. A lower figure than a former one is none.
    ContextBytes(CardSlot, u64),
    /// Where the container's processes are.
    Cgroup(PathBuf),
    /// What a share is about.
    Schedule(ScheduleChange),
    /// A file has made an event: client and number.
    OsEvent(FileId, (u32, u32)),
    /// An event is freed, by whichever file.
    OsEventGone((u32, u32)),
    /// Managed memory is charged to a process, which was started then, in ticks; 0 is no time of a start.
    Mapper(i32, u64),
    /// None is charged to it any more.
    MapperGone(i32),
}

impl State {
    /// The state of a container that has done nothing yet.
    #[must_use]
    pub fn new(ledger: Ledger, numbering: Numbering) -> Self {
        Self {
            ledger,
            numbering,
            ..Self::default()
        }
    }

    /// What a context takes on a card, bytes, where its driver has told it.
    #[must_use]
    pub fn context_bytes(&self, card: CardSlot) -> Option<u64> {
        self.context_bytes.get(&card).copied()
    }

    /// Channel groups and channels, and the terms of the container's share.
    #[must_use]
    pub fn scheduling(&self) -> &Scheduling {
        &self.scheduling
    }

    /// When a process that managed memory is charged to was started, in ticks.
    #[must_use]
    pub fn mapper_started(&self, pid: i32) -> Option<u64> {
        self.mappers.get(&pid).copied()
    }

    /// The processes that managed memory is charged to, or was.
    pub fn mappers(&self) -> impl Iterator<Item = i32> {
        self.mappers.keys().copied()
    }

    /// A number for the next call.
    #[must_use]
    pub fn next_call(&self) -> u64 {
        self.last_call.saturating_add(1)
    }

    /// An identity for the next file.
    #[must_use]
    pub fn next_file(&self) -> FileId {
        FileId(self.last_file.saturating_add(1))
    }

    /// Whether the container has no open file of the driver's, no call under way and no object.
    #[must_use]
    pub fn holds_nothing(&self) -> bool {
        self.files().next().is_none()
            && self.open().next().is_none()
            && self.ledger.count(ledger::Counted::Objects) == 0
    }

    /// A file that is known.
    #[must_use]
    pub fn file(&self, id: FileId) -> Option<&FileEntry> {
        self.files.get(&id)
    }

    /// The control file that the driver binds to what a call on a file makes, and whose end ends that: the one that the file is registered
    /// with, which a control file can be too (`RmIoctl`, escape.c).
    #[must_use]
    pub fn bound_file(&self, id: FileId) -> FileId {
        let entry = self.files.get(&id);
        entry.and_then(|entry| entry.registered_with).unwrap_or(id)
    }

    /// Whether nobody but this container exports into a file: the driver has made it one for exports, by a call for that or by an export.
    #[must_use]
    pub fn is_claimed(&self, id: FileId) -> bool {
        let mut exports = self.ledger.exported_by(ledger::FileId(id.0));
        self.files.get(&id).is_some_and(|entry| entry.is_claimed) || exports.next().is_some()
    }

    /// Whether a file that is held is registered with a control file.
    #[must_use]
    pub fn has_registered(&self, control: FileId) -> bool {
        let all = (control, FileId(0))..=(control, FileId(u64::MAX));
        self.registered.range(all).next().is_some()
    }

    /// The files, by identity.
    pub fn files(&self) -> impl Iterator<Item = (FileId, &FileEntry)> {
        self.files.iter().map(|(id, entry)| (*id, entry))
    }

    /// References that stay as long as the container: see [`Op::PinsStay`].
    pub(crate) fn staying_pins(&self) -> &BTreeSet<PinToken> {
        &self.staying_pins
    }

    /// Calls under way, by call slot.
    pub fn open(&self) -> impl Iterator<Item = (u32, &OpenCall)> {
        self.open.iter().map(|(call_slot, call)| (*call_slot, call))
    }

    /// The call under way in a call slot.
    #[must_use]
    pub fn open_in(&self, call_slot: u32) -> Option<&OpenCall> {
        self.open.get(&call_slot)
    }

    /// What is kept for a thread.
    #[must_use]
    pub fn kept(&self, tid: i32) -> Option<&Kept> {
        self.kept.of(tid)
    }

    /// The threads for which something is kept.
    pub fn kept_threads(&self) -> impl Iterator<Item = i32> {
        self.kept.threads()
    }

    /// The semaphore pools of a uvm file: first address, bytes.
    pub fn pools(&self, file: FileId) -> impl Iterator<Item = (u64, u64)> {
        let pools = self.pools.range((file, 0)..=(file, u64::MAX));
        pools
            .map(|((_, base), (bytes, _))| (*base, *bytes))
            .stepped()
    }

    /// The semaphore pools of all files: first address, bytes.
    pub fn all_pools(&self) -> impl Iterator<Item = (FileId, u64, u64)> {
        let pools = self.pools.iter();
        pools.map(|((file, base), (bytes, _))| (*file, *base, *bytes))
    }

    /// Whether a uvm file has a semaphore pool at this address, of so many bytes.
    #[must_use]
    pub fn has_pool(&self, file: FileId, (base, bytes): (u64, u64)) -> bool {
        let pool = self.pools.get(&(file, base));
        pool.is_some_and(|(of, _)| *of == bytes)
    }

    /// How many semaphore pools there are.
    #[must_use]
    pub fn pool_count(&self) -> usize {
        self.pools.len()
    }

    /// Whether a client has an event of a number.
    #[must_use]
    pub fn has_os_event(&self, client: u32, number: u32) -> bool {
        self.os_events.files_of((client, number)).next().is_some()
    }

    /// The events that a file has made and no other one: client, number.
    pub fn os_events_of(&self, file: FileId) -> impl Iterator<Item = (u32, u32)> {
        self.os_events.of_file_alone(file)
    }

    /// The events of a client, whichever files have made them: client, number.
    pub fn os_events_of_client(&self, client: u32) -> impl Iterator<Item = (u32, u32)> {
        self.os_events.of_client(client)
    }

    /// Whether a client is the container's, and of a file that is not being given up: once somebody else closes that one, the client's handle
    /// may be another container's, and nobody hears of that at once.
    #[must_use]
    pub fn has_client(&self, client: u32) -> bool {
        let file = self.ledger.owner_file(ClientHandle(client));
        file.is_some_and(|file| {
            let entry = self.files.get(&FileId(file.0));
            entry.is_none_or(|entry| entry.closing.is_none())
        })
    }

    /// How many events there are.
    #[must_use]
    pub fn os_event_count(&self) -> usize {
        self.os_events.count()
    }

    /// Where the container's processes are.
    #[must_use]
    pub fn cgroup(&self) -> Option<&PathBuf> {
        self.cgroup.as_ref()
    }

    /// Makes a change.
    ///
    /// # Errors
    /// The ledger's refusal; nothing is changed then.
    pub fn apply(&mut self, op: Op) -> Result<Applied, Refusal> {
        match op {
            Op::Ledger(operation) => return self.apply_to_ledger(operation),
            Op::Schedule(change) => self.scheduling.apply(change),
            Op::Begin(call_slot, begun) => {
                self.last_call = self.last_call.max(begun.number);
                self.open.insert(call_slot, OpenCall::begin(*begun));
            }
            Op::End(call_slot, answer) => {
                if let Some(call) = self.open.get_mut(&call_slot) {
                    call.end(answer);
                }
            }
            Op::Settle(call_slot, end) => self.settle(call_slot, end),
            Op::Keep(tid, None) | Op::ForgetThread(tid) => self.kept.remove(tid),
            Op::Keep(tid, Some(end)) => self.kept.end(tid, end),
            Op::FileSeen(id, kind) => self.see_file(id, kind),
            Op::FileRegistered(device, control) => self.register_file(device, control),
            Op::FileClaimed(id) => {
                if let Some(entry) = self.files.get_mut(&id) {
                    entry.is_claimed = true;
                }
            }
            Op::FileReported(id) => {
                if let Some(entry) = self.files.get_mut(&id) {
                    entry.is_reported = true;
                }
            }
            Op::FileClosing(id, closing) => {
                if let Some(entry) = self.files.get_mut(&id) {
                    entry.closing = Some(closing);
                    if let Some(control) = entry.registered_with {
                        self.registered.remove(&(control, id));
                    }
                }
            }
            Op::FileGone(id) => self.forget_file(id)?,
            Op::Pool(file, (base, bytes), reservation) => {
                // The driver makes none where there is one.
                self.end_pool((file, base))?;
                self.pools.insert((file, base), (bytes, reservation));
            }
            Op::PoolGone(file, base) => self.end_pool((file, base))?,
            Op::PinsStay(pins) => self.staying_pins.extend(pins),
            Op::PoolStays(file, base) => drop(self.pools.remove(&(file, base))),
            Op::OsEvent(file, event) => self.os_events.insert(file, event),
            Op::OsEventGone(event) => self.os_events.remove(event),
            Op::Mapper(pid, started) => {
                self.mappers.insert(pid, started);
            }
            Op::MapperGone(pid) => drop(self.mappers.remove(&pid)),
            Op::GpuId(id, slot) => {
                self.numbering.slot_of_gpu_id.insert(id, slot);
            }
            Op::Instance(instance, slot) => {
                let learnt = &mut self.numbering.slot_of_instance;
                learnt.retain(|_, of| *of != slot);
                learnt.insert(instance, slot);
            }
            Op::ContextBytes(card, bytes) => {
                let most = self.context_bytes.entry(card).or_default();
                *most = bytes.max(*most);
            }
            Op::Cgroup(folder) => {
                self.cgroup.get_or_insert(folder);
            }
        }
        Ok(Applied::Done)
    }

    fn apply_to_ledger(&mut self, operation: Operation) -> Result<Applied, Refusal> {
        let applied = self.ledger.apply(operation)?;
        if let Applied::Freed(freed)
        | Applied::Recorded(Recorded {
            replaced: freed, ..
        }) = &applied
        {
            self.scheduling.forget(&freed.scheduled);
        }
        Ok(applied)
    }

    fn see_file(&mut self, id: FileId, kind: FileKind) {
        self.last_file = self.last_file.max(id.0);
        let entry = FileEntry {
            kind,
            registered_with: None,
            closing: None,
            is_claimed: false,
            is_reported: false,
        };
        self.files.insert(id, entry);
    }

    fn register_file(&mut self, device: FileId, control: FileId) {
        if let Some(entry) = self.files.get_mut(&device) {
            // The first registration stays: the driver refuses a second.
            let control = *entry.registered_with.get_or_insert(control);
            if entry.closing.is_none() {
                self.registered.insert((control, device));
            }
        }
    }

    fn forget_file(&mut self, id: FileId) -> Result<(), Refusal> {
        let entry = self.files.remove(&id);
        if let Some(control) = entry.and_then(|entry| entry.registered_with) {
            self.registered.remove(&(control, id));
        }
        let bases: Vec<u64> = self.pools(id).map(|(base, _)| base).collect();
        for base in bases {
            self.end_pool((id, base))?;
        }
        self.os_events.remove_all_of(id);
        Ok(())
    }

    fn end_pool(&mut self, pool: (FileId, u64)) -> Result<(), Refusal> {
        if let Some((_, reservation)) = self.pools.remove(&pool) {
            self.ledger.apply(Operation::RollBack { reservation })?;
        }
        Ok(())
    }

    fn settle(&mut self, call_slot: u32, end: Option<End>) {
        let Some(OpenCall { begun, finished }) = self.open.remove(&call_slot) else {
            return;
        };
        let tid = begun.caller.tid;
        self.kept.remove(tid);
        if let (Some(end), Some(finished)) = (end, finished) {
            let key = begun.key;
            self.kept.insert(tid, Kept { key, end, finished });
        }
    }
}

#[cfg(test)]
mod tests;
