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
use std::sync::Arc;

use driver::{Caller, FileId, FileKind, Segment};
use ledger::steps::Stepped;
use ledger::{Applied, CardSlot, Ledger, Operation, Recorded, Refusal, ReservationToken};
use serde::{Deserialize, Serialize};

use crate::reservation::Reservation;
use crate::segments;

mod record;
pub mod scheduling;

pub use record::{CallKey, ChangesAccount, End};
use scheduling::Change as ScheduleChange;
pub use scheduling::Scheduling;

/// The whole.
#[derive(Debug, Serialize, Deserialize)]
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
    /// Control files, each with a device file that is registered with it and is held.
    registered: BTreeSet<(FileId, FileId)>,
    /// What a context takes on a card, bytes: the most that its driver has told.
    context_bytes: BTreeMap<CardSlot, u64>,
}

/// Client and number.
type OsEvent = (u32, u32);

/// Events of files. Two files may have an event of the same name.
#[derive(Debug, Default, Serialize, Deserialize)]
struct OsEvents {
    by_file: BTreeSet<(FileId, OsEvent)>,
    by_name: BTreeSet<(OsEvent, FileId)>,
}

impl OsEvents {
    fn insert(&mut self, file: FileId, event: OsEvent) {
        self.by_file.insert((file, event));
        self.by_name.insert((event, file));
    }

    fn files_of(&self, event: OsEvent) -> impl Iterator<Item = FileId> {
        let all = (event, FileId(0))..=(event, FileId(u64::MAX));
        self.by_name.range(all).map(|(_, file)| *file).stepped()
    }

    /// The event is freed, by whichever file.
    fn remove(&mut self, event: OsEvent) {
        let files: Vec<FileId> = self.files_of(event).collect();
        for file in files {
            self.by_name.remove(&(event, file));
            self.by_file.remove(&(file, event));
        }
    }

    fn remove_all_of(&mut self, file: FileId) {
        let all = (file, (0, 0))..=(file, (u32::MAX, u32::MAX));
        let of_file = self.by_file.range(all).map(|(_, event)| *event);
        let events: Vec<OsEvent> = of_file.stepped().collect();
        for event in events {
            self.by_name.remove(&(event, file));
            self.by_file.remove(&(file, event));
        }
    }
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
    /// The control file that a device file is registered with.
    pub registered_with: Option<FileId>,
    /// Nobody holds it any more: it is being given up, whatever happens.
    pub is_closing: bool,
}

/// A descriptor that a call's struct names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFd {
    /// The block that holds the number; [`driver::FdSlot::BESIDE`]: none.
    pub segment: u8,
    /// Offset of the number in it.
    pub at: u32,
    /// The tenant's number.
    pub number: i32,
    /// Which file of the driver it is, if it is one.
    pub file: Option<(FileId, FileKind)>,
}

/// A call that the driver is about to execute: all that is needed to ask it again, without another look at the tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// The call's number in its container, never used again.
    pub number: u64,
    /// Thread and registers.
    pub key: CallKey,
    /// Who makes it.
    pub caller: Caller,
    /// On which file.
    pub file: FileId,
    /// What that file is.
    pub kind: FileKind,
    /// The command.
    pub cmd: u32,
    /// The blocks, as they were read.
    #[serde(with = "segments")]
    pub before: Arc<Vec<Segment>>,
    /// Descriptors in the struct.
    pub fds: Vec<NamedFd>,
    /// What the account holds ready.
    pub reservation: Reservation,
}

/// What the tenant is to get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Its number in the container.
    pub number: u64,
    /// What the ioctl returns.
    pub ret: i32,
    /// The blocks as the tenant gave them.
    #[serde(with = "segments")]
    pub before: Arc<Vec<Segment>>,
    /// The blocks as they are to be written back.
    #[serde(with = "segments")]
    pub after: Arc<Vec<Segment>>,
    /// The descriptor that a file, which is kept apart, is to replace.
    pub replaces: Option<i32>,
    /// Whether the account changed with it.
    pub changes_account: ChangesAccount,
}

/// A call under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    /// What was asked of the driver.
    pub begun: Begun,
    /// What came of it; `None`: the call is in doubt.
    pub finished: Option<Finished>,
}

/// A finished call whose caller may not have seen the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Which call.
    pub key: CallKey,
    /// How it ended.
    pub end: End,
    /// Its result.
    pub finished: Finished,
}

impl Finished {
    /// What its blocks take.
    fn bytes(&self) -> usize {
        let blocks = self.before.iter().chain(self.after.iter());
        blocks.map(|block| block.bytes.len()).sum()
    }
}

/// What is kept, by thread.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Records {
    by_thread: BTreeMap<i32, Kept>,
    /// Of all their blocks.
    bytes: usize,
}

impl Records {
    fn insert(&mut self, tid: i32, kept: Kept) {
        let bytes = self.bytes.saturating_add(kept.finished.bytes());
        if self.by_thread.len() < MOST_RECORDS && bytes <= MOST_RECORD_BYTES {
            self.bytes = bytes;
            self.by_thread.insert(tid, kept);
        }
    }

    fn remove(&mut self, tid: i32) {
        if let Some(kept) = self.by_thread.remove(&tid) {
            self.bytes = self.bytes.saturating_sub(kept.finished.bytes());
        }
    }
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
    /// Nobody holds the file any more.
    FileClosing(FileId),
    /// It is closed everywhere.
    FileGone(FileId),
    /// A uvm file has a semaphore pool: first address and bytes, and what stays reserved for it.
    Pool(FileId, (u64, u64), ReservationToken),
    /// The file's pool that begins there is freed.
    PoolGone(FileId, u64),
    /// A card's GPU id.
    GpuId(u32, CardSlot),
    /// A card's device instance.
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
}

/// A result as the journal writes it: a [`Finished`] without what the call's beginning says already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// See [`Finished::ret`].
    pub ret: i32,
    /// See [`Finished::after`].
    #[serde(with = "segments")]
    pub after: Arc<Vec<Segment>>,
    /// See [`Finished::replaces`].
    pub replaces: Option<i32>,
    /// See [`Finished::changes_account`].
    pub changes_account: ChangesAccount,
}

/// Records of threads that died stay until the next interval; beyond this many no further result is kept.
pub(crate) const MOST_RECORDS: usize = 1024;
/// The same, of what their blocks take together.
pub(crate) const MOST_RECORD_BYTES: usize = 8 << 20;

impl State {
    /// The state of a container that has done nothing yet.
    #[must_use]
    pub fn new(ledger: Ledger, numbering: Numbering) -> Self {
        Self {
            ledger,
            numbering,
            files: BTreeMap::new(),
            last_file: 0,
            last_call: 0,
            open: BTreeMap::new(),
            kept: Records::default(),
            cgroup: None,
            pools: BTreeMap::new(),
            scheduling: Scheduling::default(),
            os_events: OsEvents::default(),
            registered: BTreeSet::new(),
            context_bytes: BTreeMap::new(),
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

    /// A number for the next call.
    #[must_use]
    pub fn next_call(&self) -> u64 {
        self.last_call + 1
    }

    /// An identity for the next file.
    #[must_use]
    pub fn next_file(&self) -> FileId {
        FileId(self.last_file + 1)
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

    /// Whether a device file that is held is registered with a control file.
    #[must_use]
    pub fn has_registered(&self, control: FileId) -> bool {
        let all = (control, FileId(0))..=(control, FileId(u64::MAX));
        self.registered.range(all).next().is_some()
    }

    /// The files, by identity.
    pub fn files(&self) -> impl Iterator<Item = (FileId, &FileEntry)> {
        self.files.iter().map(|(id, entry)| (*id, entry))
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
        self.kept.by_thread.get(&tid)
    }

    /// The threads for which something is kept.
    pub fn kept_threads(&self) -> impl Iterator<Item = i32> {
        self.kept.by_thread.keys().copied()
    }

    /// The semaphore pools of a uvm file: first address, bytes.
    pub fn pools(&self, file: FileId) -> impl Iterator<Item = (u64, u64)> {
        let pools = self.pools.range((file, 0)..=(file, u64::MAX));
        pools
            .map(|((_, base), (bytes, _))| (*base, *bytes))
            .stepped()
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

    /// How many events there are.
    #[must_use]
    pub fn os_event_count(&self) -> usize {
        self.os_events.by_file.len()
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
            Op::Ledger(operation) => {
                let applied = self.ledger.apply(operation);
                if let Ok(
                    Applied::Freed(freed)
                    | Applied::Recorded(Recorded {
                        replaced: freed, ..
                    }),
                ) = &applied
                {
                    self.scheduling.forget(&freed.scheduled);
                }
                return applied;
            }
            Op::Schedule(change) => self.scheduling.apply(change),
            Op::Begin(call_slot, begun) => {
                self.last_call = self.last_call.max(begun.number);
                let call = OpenCall {
                    begun: *begun,
                    finished: None,
                };
                self.open.insert(call_slot, call);
            }
            Op::End(call_slot, answer) => {
                if let Some(call) = self.open.get_mut(&call_slot) {
                    call.begun.reservation = Reservation::Nothing;
                    call.finished = Some(Finished {
                        number: call.begun.number,
                        ret: answer.ret,
                        before: Arc::clone(&call.begun.before),
                        after: answer.after,
                        replaces: answer.replaces,
                        changes_account: answer.changes_account,
                    });
                }
            }
            Op::Settle(call_slot, end) => self.settle(call_slot, end),
            Op::Keep(tid, None) | Op::ForgetThread(tid) => {
                self.kept.remove(tid);
            }
            Op::Keep(tid, Some(end)) => {
                if let Some(kept) = self.kept.by_thread.get_mut(&tid) {
                    kept.end = end;
                }
            }
            Op::FileSeen(id, kind) => {
                self.last_file = self.last_file.max(id.0);
                let entry = FileEntry {
                    kind,
                    registered_with: None,
                    is_closing: false,
                };
                self.files.insert(id, entry);
            }
            Op::FileRegistered(device, control) => {
                if let Some(entry) = self.files.get_mut(&device) {
                    // The first registration stays: the driver refuses a second.
                    let control = *entry.registered_with.get_or_insert(control);
                    if !entry.is_closing {
                        self.registered.insert((control, device));
                    }
                }
            }
            Op::FileClosing(id) => {
                if let Some(entry) = self.files.get_mut(&id) {
                    entry.is_closing = true;
                    if let Some(control) = entry.registered_with {
                        self.registered.remove(&(control, id));
                    }
                }
            }
            Op::FileGone(id) => {
                let entry = self.files.remove(&id);
                if let Some(control) = entry.and_then(|entry| entry.registered_with) {
                    self.registered.remove(&(control, id));
                }
                let bases: Vec<u64> = self.pools(id).map(|(base, _)| base).collect();
                for base in bases {
                    self.end_pool((id, base))?;
                }
                self.os_events.remove_all_of(id);
            }
            Op::Pool(file, (base, bytes), reservation) => {
                // The driver makes none where there is one.
                self.end_pool((file, base))?;
                self.pools.insert((file, base), (bytes, reservation));
            }
            Op::PoolGone(file, base) => {
                self.end_pool((file, base))?;
            }
            Op::OsEvent(file, event) => {
                self.os_events.insert(file, event);
            }
            Op::OsEventGone(event) => {
                self.os_events.remove(event);
            }
            Op::GpuId(id, slot) => {
                self.numbering.slot_of_gpu_id.insert(id, slot);
            }
            Op::Instance(instance, slot) => {
                self.numbering.slot_of_instance.insert(instance, slot);
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
