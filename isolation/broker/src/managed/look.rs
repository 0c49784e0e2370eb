//! One look at what the processes of a container have mapped, piece by piece.
//!
//! ```text
//! picture of the ledger ─▶ process by process ─▶ nobody new? ─▶ what is charged, and mapped by nobody, is uncharged
//!                              │        ▲           │ some
//!                              │        └───────────┘
//!                              └─▶ what is mapped and not charged is charged at once
//! ```
//!
//! After the processes comes the memory that they have or had, where anything is missing or suspected ([`kept`]).
//!
//! A process comes to a mapping by a call of its own, which is known to be on its way, or by being forked from one that has it. So
//! when every process has been looked at, and nobody is there who was not, a stretch that was seen nowhere is nowhere: whoever
//! had it at the end would have had it when looked at, or was forked since by somebody of whom that holds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;

use driver::FileId;
use journal::state::Op;
use ledger::{ManagedSpan, Span};

use super::blocks::LetMap;
use super::spans::Stretches;
use super::suspicions::{first_charge, is_same_process};
use super::{ManagedMappings, Scope};
use crate::open_file_scan;

mod end;
mod files;
mod found;
mod kept;
mod process;
mod way;

use end::Ending;
use files::{Files, Inode, MOST_MAPPED, Mapped, stretches};
use kept::{InKept, OutOfSight};
use process::Reading;
use way::resume;
pub(super) use way::settle;

/// Processes that come while others are looked at are looked at as well, so often.
const MOST_ROUNDS: u32 = 16;
/// So many changes are made at once; other calls wait for them.
const CHUNK: usize = 256;
/// So many lines of a table, or pieces of managed memory, are gone through in one step.
const MOST_OF_A_STEP: usize = 8192;

/// The look under way, and the numbers of those before.
#[derive(Debug, Default)]
pub(super) struct Looking {
    under_way: Option<Look>,
    begun: u64,
    done: u64,
    found_in: u64,
    /// Intervals since the last look.
    pub(super) intervals: u32,
    /// Whether a suspect was looked at last: they take every second turn, so that nobody can be hidden behind them.
    is_others_turn: bool,
}

/// How far a look is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// There is more to do.
    More,
    /// It is at its end.
    Done {
        /// Whether anything was uncharged.
        found: bool,
    },
}

#[derive(Debug)]
struct Look {
    number: u64,
    files: Files,
    charged: Vec<ManagedSpan>,
    /// What is charged of each inode, whoever mapped it.
    by_inode: Mapped,
    /// What is charged to each process.
    by_process: HashMap<i32, Mapped>,
    todo: Vec<i32>,
    /// Whose table is read.
    reading: Option<Reading>,
    /// Everybody looked at, with the moment of its start.
    seen: HashMap<i32, Option<u64>>,
    /// What those have mapped who have been charged.
    own: HashMap<i32, Mapped>,
    /// What others have mapped without having been charged for it.
    elsewhere: BTreeMap<Inode, Vec<Span>>,
    mapped: usize,
    rounds: u32,
    /// The second half; `None` until everybody has been looked at.
    kept: Option<InKept>,
    /// What is charged there stays so.
    out_of_sight: OutOfSight,
    /// Somebody could not be looked at: nothing is uncharged.
    is_inconclusive: bool,
    /// Once all have been looked at.
    ending: Option<Ending>,
}

impl Looking {
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    pub(super) fn done(&self) -> u64 {
        self.done
    }

    pub(super) fn has_found_since(&self, look: u64) -> bool {
        // What the look before it has found is room as well.
        self.found_in.saturating_add(1) >= look && self.found_in > 0
    }

    /// Does one piece, and says what was found beyond the quota.
    pub(super) fn step(
        &mut self,
        managed: &ManagedMappings,
        scope: Scope<'_>,
    ) -> (Step, Vec<String>) {
        managed.work.pieces.fetch_add(1, Ordering::Relaxed);
        let Some(look) = &mut self.under_way else {
            self.begun = self.begun.saturating_add(1);
            let look = Look::begin(managed, scope, self.begun);
            self.under_way = Some(look);
            return (Step::More, Vec::new());
        };
        let mut violations = Vec::new();
        if look.is_anybody_left(managed, scope, &mut self.is_others_turn, &mut violations) {
            return (Step::More, violations);
        }
        let Some(found) = look.end(managed, scope) else {
            return (Step::More, violations);
        };
        managed.lock().end_of_look(self.begun);
        managed.work.looks.fetch_add(1, Ordering::Relaxed);
        self.under_way = None;
        self.done = self.begun;
        if found {
            self.found_in = self.begun;
        }
        (Step::Done { found }, violations)
    }
}

impl Look {
    fn begin(managed: &ManagedMappings, scope: Scope<'_>, number: u64) -> Self {
        // Before the picture: what is charged and on its way stays so, whatever is found of the thread.
        settle(managed);
        resume(managed, scope);
        let files = Files::of(scope);
        let mut inner = managed.lock();
        inner.charged_meanwhile = Some(Vec::new());
        let mut change = scope.journal.change();
        let charged: Vec<ManagedSpan> = change.ledger.managed().collect();
        let processes: BTreeSet<i32> = charged.iter().map(|it| it.process.0).collect();
        let gone = change.mappers().filter(|pid| !processes.contains(pid));
        for pid in gone.collect::<Vec<_>>() {
            change.record_op(Op::MapperGone(pid));
        }
        drop(change);
        drop(inner);
        let by_inode = stretches(&files, charged.iter());
        let mut of_process: HashMap<i32, Vec<&ManagedSpan>> = HashMap::new();
        for it in &charged {
            of_process.entry(it.process.0).or_default().push(it);
        }
        let by_process = of_process
            .into_iter()
            .map(|(process, spans)| (process, stretches(&files, spans.into_iter())))
            .collect();
        Self {
            number,
            files,
            charged,
            by_inode,
            by_process,
            todo: Vec::new(),
            reading: None,
            seen: HashMap::new(),
            own: HashMap::new(),
            elsewhere: BTreeMap::new(),
            mapped: 0,
            rounds: 0,
            kept: None,
            out_of_sight: OutOfSight::default(),
            is_inconclusive: false,
            ending: None,
        }
    }

    /// Looks at somebody, or goes on with it; `false` when everybody has been looked at.
    fn is_anybody_left(
        &mut self,
        managed: &ManagedMappings,
        scope: Scope<'_>,
        is_others_turn: &mut bool,
        violations: &mut Vec<String>,
    ) -> bool {
        if self.ending.is_some() {
            return false;
        }
        if self.reading.is_some() {
            self.read_on(managed, scope, violations);
            return true;
        }
        let suspect = match *is_others_turn {
            true => None,
            false => managed.lock().next_suspect(),
        };
        *is_others_turn = suspect.is_some();
        if let Some(pid) = suspect.or_else(|| self.next(scope)) {
            self.examine(managed, scope, pid, violations);
            return true;
        }
        if let Some(memory) = self.next_memory(managed, scope) {
            self.examine_memory(managed, scope, &memory, violations);
            return true;
        }
        false
    }

    /// Who is to be looked at next; `None` when everybody has been.
    fn next(&mut self, scope: Scope<'_>) -> Option<i32> {
        if let Some(pid) = self.todo.pop() {
            return Some(pid);
        }
        if self.rounds >= MOST_ROUNDS {
            self.is_inconclusive = true;
            return None;
        }
        self.rounds = self.rounds.saturating_add(1);
        let cgroup = scope.journal.change().cgroup().cloned();
        let Ok(everybody) = open_file_scan::processes_of_container(
            cgroup.as_deref(),
            scope.processes,
            scope.executor,
            self.charged_there(scope).iter(),
        ) else {
            self.is_inconclusive = true;
            return None;
        };
        self.todo = everybody
            .into_iter()
            .filter(|pid| match self.seen.get(pid) {
                Some(start) => sys::proc::start_ticks(*pid) != *start,
                None => true,
            })
            .collect();
        self.todo.pop()
    }

    /// Those that are charged, and are there: their numbers may be other containers' processes by now.
    fn charged_there(&self, scope: Scope<'_>) -> Vec<i32> {
        let started = |pid: &i32| sys::proc::start_ticks(*pid);
        let charged = self.by_process.keys().copied();
        charged
            .filter(|pid| started(pid).is_some_and(|at| is_same_process(scope.journal, *pid, at)))
            .collect()
    }

    /// Charges what a process has mapped that is not charged; says what is beyond the quota then. Of memory that it had, `file` may be what is
    /// mapped there.
    fn charge_uncharged(
        &mut self,
        managed: &ManagedMappings,
        scope: Scope<'_>,
        (pid, started, file): (i32, Option<u64>, Option<FileId>),
        mapped: &Mapped,
        let_map: &LetMap,
    ) -> Vec<String> {
        let (mut violations, mut steps) = (Vec::new(), 0);
        let suspicions = &let_map.all;
        let nothing = Stretches::default();
        for (inode, mapped) in mapped {
            let mine = self.by_process.get(&pid);
            let mine = mine.and_then(|mine| mine.get(inode)).unwrap_or(&nothing);
            let uncharged = mapped.without(mine, &mut steps);
            if file.is_none() {
                self.record_elsewhere(*inode, &uncharged);
            }
            let found = self.unexplained((*inode, &uncharged), suspicions, &mut steps);
            let found = let_map.with_rest(&found);
            if !found.is_empty() {
                if let Some(first) = first_charge(scope.journal, pid, started) {
                    scope.journal.change().record_op(first);
                }
                let of = (pid, *inode, file);
                violations.extend(self.charge(scope, of, (&found, suspicions), &mut steps));
            }
        }
        managed.work.steps.fetch_add(steps, Ordering::Relaxed);
        violations
    }

    fn record_elsewhere(&mut self, inode: Inode, spans: &Stretches) {
        self.mapped = self.mapped.saturating_add(spans.len());
        if self.mapped > MOST_MAPPED {
            self.is_inconclusive = true;
            return;
        }
        let elsewhere = self.elsewhere.entry(inode).or_default();
        elsewhere.extend(spans.iter());
    }

    /// What a process has mapped that neither its own charges explain nor anybody's: a child has its parent's mappings. What the
    /// process was let map of an unknown file is explained by its own alone, unless only one file has the inode.
    fn unexplained(
        &self,
        (inode, uncharged): (Inode, &Stretches),
        suspicions: &Stretches,
        steps: &mut u64,
    ) -> Stretches {
        let nothing = Stretches::default();
        let by_anybody = self.by_inode.get(&inode).unwrap_or(&nothing);
        let rest = uncharged.without(by_anybody, steps);
        if self.files.is_alone(inode) || suspicions.is_empty() {
            return rest;
        }
        let unsuspected = uncharged.without(suspicions, steps);
        let suspected = uncharged.without(&unsuspected, steps);
        Stretches::of(rest.iter().chain(suspected.iter()).collect())
    }
}
