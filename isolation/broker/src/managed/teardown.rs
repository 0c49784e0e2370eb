//! Whether the driver has given up what a process's table of mappings misses.
//!
//! ```text
//!  a look misses a stretch ── every thread with that memory is out of what ends mappings, after that ──▶ uncharged
//!                          └─ some may be in it ──▶ waits; mapped again, or let map there: begins anew
//! ```
//!
//! `munmap` takes a mapping out of the table first, then lets others read that, and has the driver end the range last, when all pages of what it
//! unmaps are freed: a thread that gets no processor makes that last as long as it likes, and the card's pages are held until then. `execve` gives
//! the process another table before it ends what the former one had. The thread that did it is out of the call once it is seen elsewhere, after
//! the table was read. No time that passes says so.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use driver::FileId;
use ledger::{ManagedSpan, Span};

use super::spans::Stretches;
use super::{ManagedMappings, evidence};
use crate::privilege;

/// What is missed of each file.
type Missed = BTreeMap<FileId, Stretches>;

/// Threads, each with its process.
type Threads = BTreeMap<i32, i32>;

/// So many pairs of processes are compared at the end of a look, or those of one process; whatever else was missed waits for the next look. A sort
/// by memory would compare fewer, but its order holds only while no process becomes another program.
const MOST_COMPARISONS: usize = 1 << 13;

/// What processes' tables miss that may not be given up yet.
#[derive(Debug, Default)]
pub(super) struct Teardowns {
    by_process: HashMap<i32, Teardown>,
    /// The process that was compared with the others last: those behind it have their turn first.
    compared_last: Option<i32>,
    /// Whether something is missed whose process has not had its turn.
    is_cut_short: bool,
}

#[derive(Debug, Clone, Default)]
struct Teardown {
    missed: Missed,
    /// Those that are not known to be out.
    threads: Threads,
}

impl Teardowns {
    /// Whether no thread is waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.by_process.is_empty()
    }

    /// Whether the next look may give up what this one has missed.
    pub(super) fn need_another_look(&self) -> bool {
        self.is_cut_short || !self.is_empty()
    }

    /// Whether all threads are out, and the next look is the last.
    fn are_over(&self) -> bool {
        self.by_process.values().all(|it| it.threads.is_empty())
    }

    /// A thread waits in a call to the driver.
    pub(super) fn is_out(&mut self, tid: i32) {
        for teardown in self.by_process.values_mut() {
            teardown.threads.remove(&tid);
        }
    }

    /// Somebody may map a stretch, or has: that its table missed it before says nothing any more.
    pub(super) fn may_be_mapped(&mut self, span: Span) {
        let span = Stretches::of(vec![span]);
        for missed in self
            .by_process
            .values_mut()
            .flat_map(|it| it.missed.values_mut())
        {
            *missed = missed.without(&span, &mut 0);
        }
    }

    /// The same of all that a process may map.
    pub(super) fn may_map_anything(&mut self, tgid: i32) {
        self.by_process.remove(&tgid);
    }

    fn threads(&self) -> Threads {
        self.by_process
            .values()
            .flat_map(|it| it.threads.clone())
            .collect()
    }
}

impl Teardown {
    fn keep(&mut self, missed: &Missed) {
        let nothing = Stretches::default();
        for (file, stretches) in &mut self.missed {
            let now = missed.get(file).unwrap_or(&nothing);
            let others = stretches.without(now, &mut 0);
            *stretches = stretches.without(&others, &mut 0);
        }
    }

    fn has(&self, file: FileId, span: Span) -> bool {
        let missed = self.missed.get(&file);
        missed.is_some_and(|missed| missed.leave_of(span, &mut 0).is_empty())
    }
}

/// Looks at every thread that may end something; whether none is left.
pub(super) fn settle(managed: &ManagedMappings) -> bool {
    let threads = managed.lock().teardowns.threads();
    let unknown = still_unmapping(threads.clone());
    let mut inner = managed.lock();
    for tid in threads.keys().filter(|tid| !unknown.contains_key(tid)) {
        inner.teardowns.is_out(*tid);
    }
    inner.teardowns.are_over()
}

/// Of what a look has missed, what the driver has given up too. `seen` are the processes of the container.
pub(super) fn over(
    managed: &ManagedMappings,
    seen: &[i32],
    missed: Vec<(ManagedSpan, Span)>,
) -> Vec<(ManagedSpan, Span)> {
    let mut of_process: BTreeMap<i32, Vec<(ManagedSpan, Span)>> = BTreeMap::new();
    for (it, span) in missed {
        of_process.entry(it.process.0).or_default().push((it, span));
    }
    settle(managed);
    let after = {
        let teardowns = &mut managed.lock().teardowns;
        let is_missed = |process: &i32, _: &mut Teardown| of_process.contains_key(process);
        teardowns.by_process.retain(is_missed);
        teardowns.is_cut_short = false;
        teardowns.compared_last
    };
    let (mut over, mut comparisons) = (Vec::new(), 0);
    let later = match after {
        Some(after) => of_process.split_off(&after.saturating_add(1)),
        None => BTreeMap::new(),
    };
    for (process, missed) in later.into_iter().chain(of_process) {
        over.extend(over_of(managed, (seen, &mut comparisons), process, missed));
    }
    over
}

fn over_of(
    managed: &ManagedMappings,
    (seen, comparisons): (&[i32], &mut usize),
    process: i32,
    missed: Vec<(ManagedSpan, Span)>,
) -> Vec<(ManagedSpan, Span)> {
    let all = by_file(&missed);
    let before = {
        let mut inner = managed.lock();
        let before = inner.teardowns.by_process.get_mut(&process);
        before.map(|before| {
            before.keep(&all);
            before.clone()
        })
    };
    let before = before.unwrap_or_default();
    if !before.threads.is_empty() {
        // What is missed besides has its turn after that.
        return Vec::new();
    }
    let is_over = |(it, span): &(ManagedSpan, Span)| before.has(FileId(it.uvm_file.0), *span);
    let (mut over, rest): (Vec<_>, Vec<_>) = missed.into_iter().partition(is_over);
    managed.lock().teardowns.by_process.remove(&process);
    if rest.is_empty() {
        return over;
    }
    if *comparisons > 0 && comparisons.saturating_add(seen.len()) > MOST_COMPARISONS {
        managed.lock().teardowns.is_cut_short = true;
        return over;
    }
    *comparisons = comparisons.saturating_add(seen.len());
    managed.lock().teardowns.compared_last = Some(process);
    let threads = match threads_with_memory_of(process, seen) {
        Ok(threads) => still_unmapping(threads),
        // Until the next look, which lists them again if this one is out.
        Err(error) => {
            tracing::debug!(process, %error, "the threads of a process cannot be listed");
            Threads::from([(process, process)])
        }
    };
    if threads.is_empty() {
        over.extend(rest);
    } else {
        let missed = by_file(&rest);
        let teardown = Teardown { missed, threads };
        let teardowns = &mut managed.lock().teardowns;
        teardowns.by_process.insert(process, teardown);
    }
    over
}

fn by_file(missed: &[(ManagedSpan, Span)]) -> Missed {
    let mut by_file: BTreeMap<FileId, Vec<Span>> = BTreeMap::new();
    for (it, span) in missed {
        let file = FileId(it.uvm_file.0);
        by_file.entry(file).or_default().push(*span);
    }
    let all = by_file.into_iter();
    all.map(|(file, spans)| (file, Stretches::of(spans)))
        .collect()
}

/// Every thread of a process, and of those that share its memory without being threads of it.
fn threads_with_memory_of(process: i32, seen: &[i32]) -> std::io::Result<Threads> {
    let mut all = Threads::new();
    for other in seen {
        let shares = match sys::kcmp::memory(process, *other) {
            Ok(order) => order == Ordering::Equal,
            // Of one that is gone nobody is in a call.
            Err(_unknown) => true,
        };
        if shares || *other == process {
            let threads = evidence::threads(*other)?;
            all.extend(threads.into_iter().map(|tid| (tid, *other)));
        }
    }
    Ok(all)
}

fn still_unmapping(threads: Threads) -> Threads {
    if threads.is_empty() {
        return threads;
    }
    privilege::with(|| {
        let all = threads.into_iter();
        all.filter(|(tid, tgid)| !evidence::unmaps_nothing(*tgid, *tid))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(7);

    fn span(base: u64, bytes: u64) -> Span {
        Span::new(base, bytes).unwrap()
    }

    fn missing(base: u64, bytes: u64) -> Missed {
        Missed::from([(FILE, Stretches::of(vec![span(base, bytes)]))])
    }

    #[test]
    fn what_may_be_mapped_again_is_missed_anew() {
        let teardown = Teardown {
            missed: missing(0, 100),
            threads: Threads::from([(3, 1)]),
        };
        let mut teardowns = Teardowns::default();
        teardowns.by_process.insert(1, teardown);
        assert!(!teardowns.are_over());
        teardowns.is_out(3);
        assert!(teardowns.are_over());
        teardowns.may_be_mapped(span(40, 20));
        let now = teardowns.by_process.get_mut(&1).unwrap();
        assert!(now.has(FILE, span(0, 40)) && now.has(FILE, span(60, 40)));
        assert!(!now.has(FILE, span(39, 2)) && !now.has(FileId(8), span(0, 1)));
        now.keep(&missing(70, 100));
        assert!(now.has(FILE, span(70, 30)) && !now.has(FILE, span(0, 40)));
        teardowns.may_map_anything(1);
        assert!(teardowns.is_empty());
    }

    #[test]
    fn a_look_compares_so_many_processes_and_the_next_one_goes_on() {
        use std::io::{Read, Write};
        use std::process::{Child, Command, Stdio};
        // Each waits for its input.
        let mut children: Vec<Child> = (0..3)
            .map(|_| {
                let mut cat = Command::new("cat");
                let cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped());
                let mut cat = cat.spawn().unwrap();
                cat.stdin.as_mut().unwrap().write_all(b"a\n").unwrap();
                cat.stdout
                    .as_mut()
                    .unwrap()
                    .read_exact(&mut [0; 2])
                    .unwrap();
                cat
            })
            .collect();
        let processes: Vec<i32> = children.iter().map(|it| it.id().cast_signed()).collect();
        let mut seen = processes.clone();
        // Those of nobody.
        seen.resize(MOST_COMPARISONS / 2 + 1, i32::MAX);
        let charged: Vec<ManagedSpan> = processes
            .iter()
            .map(|process| ManagedSpan {
                uvm_file: ledger::FileId(FILE.0),
                span: span(4096, 4096),
                process: ledger::ProcessId(*process),
            })
            .collect();
        let is_asleep = |pid: &i32| evidence::unmaps_nothing(*pid, *pid);
        while !processes.iter().all(is_asleep) {
            std::thread::yield_now();
        }
        let managed = ManagedMappings::default();
        let mut missing = processes.clone();
        missing.sort_unstable();
        while let Some((first, rest)) = missing.split_first() {
            let missed = charged.iter().filter(|it| missing.contains(&it.process.0));
            let missed = missed.map(|it| (*it, it.span)).collect();
            let over = over(&managed, &seen, missed);
            let given_up: Vec<i32> = over.iter().map(|(it, _)| it.process.0).collect();
            assert_eq!(given_up, [*first], "one in each look");
            let is_cut_short = managed.lock().teardowns.need_another_look();
            assert_eq!(is_cut_short, !rest.is_empty());
            missing = rest.to_vec();
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
