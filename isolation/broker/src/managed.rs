//! Managed memory: what a process maps of `nvidia-uvm` itself.
//!
//! ```text
//!  mmap asked ── fits ──▶ charged, on its way ── the thread is out of the call ──▶ charged ── nobody has it mapped ──▶ uncharged
//!      │                                                                             ▲
//!      └── does not fit: ENOMEM                              found mapped, uncharged ┘  (over the quota: a violation)
//! ```
//!
//! The mapping is made by the caller, after our answer, and as late as it gets a processor: neither its success nor `munmap` is
//! seen here. So the tables of the processes' mappings say what there is, and they are believed about a stretch only when no
//! thread is on its way to it: a thread is, until it is known to be out of the call ([`evidence`]). Nor is what they miss given up
//! before the thread that unmapped it is known to be out of that call ([`teardown`]). No time that passes gives anything back.
//!
//! Every process of the container is looked at, whether it has made a call or not: a child has its parent's mappings, and a file
//! can be handed to anybody. That happens on every interval while anything is charged, else on every tenth, and before memory is
//! refused. What a look costs is limited ([`crate::pace`]); a refused call waits for its look, and nothing else does.
//!
//! Between our look at the descriptor and the kernel's, another thread may have put another file there. So the stretch of
//! *every* mapping that was let through is remembered until its thread is out of the call and its process has been looked at
//! after that.
//!
//! What a process leaves mapped when it ends stays charged until its file is closed: a second file of nvidia-uvm may keep its
//! memory. `UVM_FREE` gives nothing back, since the driver frees no managed range by it: what it frees at an address is another
//! range, also where the ledger has managed memory of a process that is gone.

mod blocks;
mod evidence;
mod look;
mod on_their_way;
pub(crate) mod spans;
mod suspicions;
mod teardown;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use driver::{FileId, FileKind};
use journal::Journal;
use ledger::{Operation, ProcessId, Span};
use verdict::policy::Managed;

use crate::account::Account;
use crate::files::FileTable;
use crate::pace::Pace;
use crate::processes::Processes;
use crate::table::Table;
use look::{Looking, Step};
use suspicions::{OfKept, Suspicion};
use sys::sync;
use teardown::Teardowns;

/// So many stretches may be on their way, or wait for a look, at once: the threads of a large program.
const MOST_REMEMBERED: usize = 4096;
/// While nothing is charged and nothing on its way, there is a look on one interval of so many. One look of so many looks at all memory that
/// processes had.
const SLOW: u32 = 10;
/// A thread that has just come back from a call goes on to sleep, or to make another one.
const BETWEEN_EVIDENCE: Duration = Duration::from_millis(2);
/// A call that is to be refused waits no longer for a look.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// What the serving process knows of mappings, beside the ledger.
#[derive(Debug, Default)]
pub struct ManagedMappings {
    inner: Mutex<Inner>,
    /// The look that is taken, piece by piece; held for a piece. Before `inner`.
    looking: Mutex<Looking>,
    pace: Pace,
    waiting: AtomicUsize,
    work: Counts,
}

/// What looks have cost so far.
#[derive(Debug, Default)]
struct Counts {
    looks: AtomicU64,
    bytes: AtomicU64,
    steps: AtomicU64,
    pieces: AtomicU64,
}

/// What looks have cost so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Looks that came to their end.
    pub looks: u64,
    /// Of tables of mappings.
    pub bytes: u64,
    /// Comparisons of stretches.
    pub steps: u64,
    /// Pieces in which they were taken, between which others have their turn.
    pub pieces: u64,
}

#[derive(Debug)]
struct Inner {
    /// Mappings that were let through, by the thread that is to make them.
    on_their_way: Table<i32, OnItsWay>,
    /// Stretches that were mapped, of whatever file, since their process was looked at.
    suspected: Vec<Suspicion>,
    /// Those of processes that have been looked at, until the memory has been that they had.
    of_kept: OfKept,
    /// What is mapped no more, and may not be given up yet.
    teardowns: Teardowns,
    next_number: u64,
    /// What was charged since the look under way took its picture of the ledger; `None`: too much.
    charged_meanwhile: Option<Vec<(FileId, Span)>>,
    /// Whether what a former broker let through has been looked for.
    is_resumed: bool,
}

#[derive(Debug, Clone, Copy)]
struct OnItsWay {
    number: u64,
    tgid: i32,
    at: u64,
    what: What,
}

/// What a thread was let map.
#[derive(Debug, Clone, Copy)]
enum What {
    /// It is charged.
    Charged(FileId, Span),
    /// Another file, as far as the descriptor said.
    Other(Span),
    /// It may be anything that was charged to the process before this broker began.
    OfFormerBroker,
}

/// What a look needs of the container, and whom it tells.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// `namespace/container`
    pub name: &'a str,
    /// What is done with managed memory.
    pub policy: Managed,
    /// The cards.
    pub account: &'a Account,
    /// What is charged.
    pub journal: &'a Journal,
    /// Its open files of the driver.
    pub files: &'a FileTable,
    /// Its processes.
    pub processes: &'a Processes,
    /// The process that makes its calls, where that is another one.
    pub executor: Option<i32>,
    /// Told of memory that is beyond the quota.
    pub violated: &'a dyn Fn(String),
}

impl std::fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// When a look is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Time has passed.
    Interval,
    /// Memory is about to be refused.
    Refusal,
}

/// Why a mapping is not let through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// It does not fit.
    Ledger(ledger::Refusal),
    /// It wraps around.
    Malformed,
    /// Too many are on their way.
    TooMany,
    /// The caller waits no more.
    GivenUp,
    /// The process is charged there already, and may have that in memory of a former program of its own.
    MappedBefore,
}

/// Who maps, and whether it still waits to be let.
#[derive(Clone, Copy)]
pub struct Mapper<'a> {
    /// The process.
    pub tgid: i32,
    /// The thread.
    pub tid: i32,
    /// Whether the process may have other memory than that of its program ([`crate::initialised`]).
    pub may_have_former_memory: bool,
    /// Whether the call still waits for its answer. While it does, the thread is in no other one.
    pub is_waiting: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Mapper<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Mapper");
        f.field("tgid", &self.tgid).field("tid", &self.tid).finish()
    }
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            on_their_way: Table::default(),
            suspected: Vec::new(),
            of_kept: OfKept::default(),
            teardowns: Teardowns::default(),
            next_number: 0,
            charged_meanwhile: Some(Vec::new()),
            is_resumed: false,
        }
    }
}

impl ManagedMappings {
    /// A thread makes a call, and waits: whatever it was let map before is mapped, or never will be, and what it unmapped is given up. A call that waits no more
    /// says nothing, since the thread may have made others meanwhile.
    pub fn called(&self, tid: i32, is_waiting: impl Fn() -> bool) {
        let mut inner = self.lock();
        let matters = inner.on_their_way.contains_key(&tid) || !inner.teardowns.is_empty();
        if matters && is_waiting() {
            inner.is_out(tid, None);
            inner.teardowns.is_out(tid);
        }
    }

    /// Charges a mapping that a thread is about to make.
    ///
    /// # Errors
    /// [`Refused`]; nothing is charged then.
    pub fn charge(
        &self,
        (account, journal): (&Account, &Journal),
        file: FileId,
        (base, length): (u64, u64),
        mapper: Mapper<'_>,
    ) -> Result<(), Refused> {
        let span = Span::new(base, length).ok_or(Refused::Malformed)?;
        // Of the mapper itself, if that waits still.
        let started = sys::proc::start_ticks(mapper.tgid);
        let mut inner = self.lock();
        inner.admit(mapper)?;
        if mapper.may_have_former_memory {
            let state = journal.change();
            let mut charged = state.ledger.managed();
            // What it was charged for in one memory would explain what it maps in the other.
            if charged.any(|it| it.process.0 == mapper.tgid && meet(it.span, span)) {
                return Err(Refused::MappedBefore);
            }
        }
        let operation = Operation::MapManaged {
            uvm_file: ledger::FileId(file.0),
            span,
            process: ProcessId(mapper.tgid),
            cards: account.card_slots(),
        };
        let first = suspicions::first_charge(journal, mapper.tgid, started);
        let mut change = journal.change();
        account
            .fits_with_page_tables(&change, span)
            .map_err(Refused::Ledger)?;
        change.ledger(operation).map_err(Refused::Ledger)?;
        account.has_managed(span);
        first.into_iter().for_each(|first| change.record_op(first));
        drop(change);
        inner.record_charge(file, span);
        inner.sets_out(mapper, What::Charged(file, span));
        Ok(())
    }

    /// Remembers a mapping that is none of managed memory, as far as the descriptor said.
    ///
    /// # Errors
    /// [`Refused::TooMany`] and [`Refused::GivenUp`].
    pub fn suspect(&self, (base, length): (u64, u64), mapper: Mapper<'_>) -> Result<(), Refused> {
        let whole_pages = length.checked_next_multiple_of(sys::memory::page_bytes());
        // What wraps around is refused by the kernel itself.
        let Some(span) = whole_pages.and_then(|length| Span::new(base, length)) else {
            return Ok(());
        };
        let mut inner = self.lock();
        inner.admit(mapper)?;
        inner.sets_out(mapper, What::Other(span));
        Ok(())
    }

    /// Compares what is charged with what is mapped; says whether anything was uncharged.
    ///
    /// At an interval as much is done as is allowed now, and the next one goes on with it. Before a refusal a whole look is
    /// waited for, unless that takes too long.
    pub fn look(&self, scope: Scope<'_>, reason: Reason) -> bool {
        if scope.policy == Managed::Allow {
            return false;
        }
        match reason {
            Reason::Interval => self.reconcile(scope),
            Reason::Refusal => self.before_refusal(scope),
        }
    }

    /// How many calls wait for a look.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// What looks have cost so far.
    #[must_use]
    pub fn work(&self) -> Work {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Work {
            looks: value(&self.work.looks),
            bytes: value(&self.work.bytes),
            steps: value(&self.work.steps),
            pieces: value(&self.work.pieces),
        }
    }

    fn reconcile(&self, scope: Scope<'_>) -> bool {
        let mut looking = match self.looking.try_lock() {
            Ok(looking) => looking,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // A refused call takes the look.
            Err(TryLockError::WouldBlock) => return false,
        };
        if !looking.is_under_way() && !self.is_due(scope, &mut looking) {
            return false;
        }
        while self.pace.wait().is_none() {
            if let Step::Done { found } = self.step(scope, &mut looking) {
                return found;
            }
        }
        false
    }

    /// Whether a look is to be begun at this interval.
    fn is_due(&self, scope: Scope<'_>, looking: &mut Looking) -> bool {
        if !scope.files.has(FileKind::Uvm) {
            self.forget();
            return false;
        }
        looking.intervals = looking.intervals.saturating_add(1);
        let is_busy = {
            let inner = self.lock();
            !inner.on_their_way.is_empty() || inner.remembered() > 0
        };
        let is_charged = || scope.journal.change().ledger.managed().next().is_some();
        if !is_busy && looking.intervals < SLOW && !is_charged() {
            return false;
        }
        looking.intervals = 0;
        true
    }

    /// What no file is open of is mapped by nobody either, since a mapping keeps its file. Threads may be on their way yet.
    fn forget(&self) {
        let count = {
            let mut inner = self.lock();
            inner.suspected.clear();
            inner.of_kept.clear();
            inner.on_their_way.len()
        };
        if count > MOST_REMEMBERED / 4 && self.pace.wait().is_none() {
            let begun = Instant::now();
            look::settle(self);
            self.pace.spent(begun.elapsed());
            self.lock().suspected.clear();
        }
    }

    /// When too many mappings are on their way: waits for those that are not any more to be known.
    pub fn settle(&self, scope: Scope<'_>) {
        if scope.files.has(FileKind::Uvm) {
            self.whole_look(scope);
        } else {
            self.forget();
        }
    }

    fn before_refusal(&self, scope: Scope<'_>) -> bool {
        // What is not charged is not uncharged either.
        let is_charged = scope.journal.change().ledger.managed().next().is_some();
        is_charged && self.whole_look(scope)
    }

    /// A whole look that begins after this moment, in which others may share; whether anything was uncharged.
    fn whole_look(&self, scope: Scope<'_>) -> bool {
        let deadline = Instant::now() + LONGEST_WAIT;
        let mut needed = self.looking().begun().saturating_add(1);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            let mut looking = self.looking();
            if looking.done() >= needed {
                let has_found = looking.has_found_since(needed);
                if has_found || !self.lock().teardowns.need_another_look() {
                    break has_found;
                }
                // The next one gives up what is missed once its threads are out.
                needed = looking.begun().saturating_add(1);
                drop(looking);
                if !self.wait_for_teardowns(deadline) {
                    break false;
                }
                continue;
            }
            let now = Instant::now();
            let Some(left) = deadline.checked_duration_since(now) else {
                break false;
            };
            match self.pace.wait() {
                None => {
                    self.step(scope, &mut looking);
                }
                Some(wait) => {
                    drop(looking);
                    std::thread::sleep(wait.min(left));
                }
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// Whether all threads are out of the calls by which they may have unmapped something before a moment.
    fn wait_for_teardowns(&self, deadline: Instant) -> bool {
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let wait = self.pace.wait();
            if wait.is_none() {
                let begun = Instant::now();
                let are_over = teardown::settle(self);
                self.pace.spent(begun.elapsed());
                if are_over {
                    return true;
                }
            }
            std::thread::sleep(wait.unwrap_or(BETWEEN_EVIDENCE).min(left));
        }
        false
    }

    /// One piece of a look, which is begun if there is none.
    fn step(&self, scope: Scope<'_>, looking: &mut Looking) -> Step {
        let begun = Instant::now();
        let (step, violations) = looking.step(self, scope);
        self.pace.spent(begun.elapsed());
        for text in violations {
            (scope.violated)(text);
        }
        step
    }

    fn looking(&self) -> MutexGuard<'_, Looking> {
        sync::lock(&self.looking)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        sync::lock(&self.inner)
    }
}

fn meet(one: Span, other: Span) -> bool {
    one.base() <= other.last() && other.base() <= one.last()
}
