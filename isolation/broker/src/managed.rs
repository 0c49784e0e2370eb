//! Managed memory: what a process maps of `nvidia-uvm` itself.
//!
//! ```text
//!  mmap asked ── fits ──▶ charged, on its way ── the thread's next call ──▶ charged ── not mapped any more ──▶ uncharged
//!      │                                                                      ▲
//!      └── does not fit: ENOMEM                       found mapped, uncharged ┘  (over the quota: a violation)
//! ```
//!
//! The mapping is made by the caller, after our answer, so neither its success nor `munmap` is seen here: the tables of the
//! processes' mappings say what there is. They are looked at on every beat, and before memory is refused; those of processes
//! that have mapped managed memory, and for two beats those of processes that were let make any mapping that could be
//! one: between our look at the descriptor and the kernel's, another thread may have put another file there.
//!
//! What a process leaves mapped when it ends stays charged until its file is closed or `UVM_FREE` names it: a driver in
//! multi-process mode keeps it.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use driver::{FileId, FileKind};
use ledger::{Applied, ManagedSpan, Operation, ProcessId, Span};
use nix::sys::stat::{fstat, major, minor};
use verdict::policy::Managed;

use crate::container::Container;
use crate::holders::processes_of_group;
use crate::journal::Change;

/// For how many beats a process is looked at because of a mapping that was let through.
const SUSPECTED_BEATS: u8 = 2;

/// What the serving process knows of mappings, beside the ledger.
#[derive(Debug)]
pub struct ManagedMappings {
    /// Held while mappings are charged, and for a whole look.
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Mappings that are charged and may not have been made yet, by the thread that is to make them.
    on_their_way: HashMap<i32, OnItsWay>,
    /// Processes that are looked at for some beats more.
    suspected: HashMap<i32, u8>,
    /// For how many beats all processes are looked at: a former broker's suspects are not known.
    all_for_beats: u8,
}

#[derive(Debug)]
struct OnItsWay {
    file: FileId,
    span: Span,
    beats: u8,
}

/// When a look is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// Time has passed.
    Beat,
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
}

/// What a process has mapped of one file: its inode, and from where to where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapped {
    inode: Inode,
    span: Span,
}

/// Device and number.
type Inode = (u64, u64);

impl Default for ManagedMappings {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                on_their_way: HashMap::new(),
                suspected: HashMap::new(),
                all_for_beats: SUSPECTED_BEATS,
            }),
        }
    }
}

impl ManagedMappings {
    /// A thread makes a call: whatever it was let map before is mapped, or never will be.
    pub fn called(&self, tid: i32) {
        self.lock().on_their_way.remove(&tid);
    }

    /// Charges a mapping that a thread is about to make.
    ///
    /// # Errors
    /// [`Refused`]; nothing is charged then.
    pub fn charge(
        &self,
        container: &Container,
        file: FileId,
        (base, length): (u64, u64),
        (tgid, tid): (i32, i32),
    ) -> Result<(), Refused> {
        let span = Span::new(base, length).ok_or(Refused::Malformed)?;
        let mut inner = self.lock();
        let operation = Operation::MapManaged {
            uvm_file: ledger::FileId(file.0),
            span,
            process: ProcessId(tgid),
            cards: container.account.card_slots(),
        };
        let mut change = container.journal.change();
        change.ledger(operation).map_err(Refused::Ledger)?;
        drop(change);
        let beats = SUSPECTED_BEATS;
        inner
            .on_their_way
            .insert(tid, OnItsWay { file, span, beats });
        inner.suspected.insert(tgid, SUSPECTED_BEATS);
        Ok(())
    }

    /// A process was let make a mapping that is none of managed memory, as far as the descriptor said.
    pub fn suspect(&self, tgid: i32) {
        self.lock().suspected.insert(tgid, SUSPECTED_BEATS);
    }

    /// Compares what is charged with what is mapped; says whether anything was uncharged.
    pub fn look(&self, container: &Container, occasion: Occasion) -> bool {
        if container.terms.policy.managed == Managed::Allow {
            return false;
        }
        let mut inner = self.lock();
        if occasion == Occasion::Beat {
            inner.pass_a_beat();
        }
        let files = uvm_files(container);
        let charged: Vec<ManagedSpan> = container.journal.change().ledger.managed().collect();
        let mut pids: BTreeSet<i32> = charged.iter().map(|it| it.process.0).collect();
        if !files.is_empty() {
            pids.extend(inner.suspected.keys());
            if inner.all_for_beats > 0 {
                pids.extend(processes_of(container));
            }
        }
        let (mut found, mut beyond) = (false, Vec::new());
        for pid in pids {
            // One that is gone has nothing mapped, and what it had is the driver's to give up.
            let Some(mapped) = mapped_by(pid, &files) else {
                continue;
            };
            found |= uncharge_unmapped(container, &mut inner, pid, &files, &charged, &mapped);
            beyond.extend(charge_found(container, pid, &files, &mapped));
        }
        drop(inner);
        for text in beyond {
            container.health.violated(container, text);
        }
        found
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn pass_a_beat(&mut self) {
        self.all_for_beats = self.all_for_beats.saturating_sub(1);
        self.suspected.retain(|_, beats| {
            *beats = beats.saturating_sub(1);
            *beats > 0
        });
        self.on_their_way.retain(|_, mapping| {
            mapping.beats = mapping.beats.saturating_sub(1);
            mapping.beats > 0
        });
    }
}

/// Gives up what `UVM_FREE` has freed of processes that are gone; what a living one still has mapped is not the driver's to free.
pub(crate) fn freed(change: &mut Change<'_>, file: FileId, base: u64) {
    let file = ledger::FileId(file.0);
    let named = change
        .ledger
        .managed()
        .find(|it| it.uvm_file == file && it.span.base() == base);
    if let Some(it) = named.filter(|it| !exists(it.process.0)) {
        change.record(Operation::UnmapManaged {
            uvm_file: file,
            span: it.span,
        });
    }
}

fn exists(pid: i32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap_or(true)
}

fn uncharge_unmapped(
    container: &Container,
    inner: &mut Inner,
    pid: i32,
    files: &[(FileId, Inode)],
    charged: &[ManagedSpan],
    mapped: &[Mapped],
) -> bool {
    let mut found = false;
    for it in charged.iter().filter(|it| it.process.0 == pid) {
        let file = FileId(it.uvm_file.0);
        let is_on_its_way = inner
            .on_their_way
            .values()
            .any(|other| other.file == file && overlap(other.span, it.span));
        let inode = files.iter().find(|(id, _)| *id == file);
        let (false, Some((_, inode))) = (is_on_its_way, inode) else {
            continue;
        };
        let there = mapped.iter().filter(|other| other.inode == *inode);
        for span in outside(it.span, there.map(|other| other.span)) {
            found = true;
            container.journal.change().record(Operation::UnmapManaged {
                uvm_file: it.uvm_file,
                span,
            });
            // Should it be mapped after all, it is found.
            inner.suspected.insert(pid, SUSPECTED_BEATS);
        }
    }
    found
}

/// Charges what is mapped and is not charged; says what is beyond the quota then.
fn charge_found(
    container: &Container,
    pid: i32,
    files: &[(FileId, Inode)],
    mapped: &[Mapped],
) -> Vec<String> {
    let mut beyond = Vec::new();
    for it in mapped {
        let of_inode: Vec<FileId> = files
            .iter()
            .filter(|(_, inode)| *inode == it.inode)
            .map(|(id, _)| *id)
            .collect();
        let mut change = container.journal.change();
        let charged: Vec<ManagedSpan> = change
            .ledger
            .managed()
            .filter(|other| of_inode.contains(&FileId(other.uvm_file.0)))
            .collect();
        // A child has its parent's mappings; only where several files share an inode could they be another file's.
        let is_alone = of_inode.len() == 1;
        let explained = charged
            .iter()
            .filter(|other| is_alone || other.process.0 == pid);
        let pools = of_inode.iter().flat_map(|id| change.pools(*id));
        let pools: Vec<Span> = pools
            .filter_map(|(base, bytes)| Span::new(base, bytes))
            .collect();
        for span in outside(it.span, explained.map(|other| other.span).chain(pools)) {
            let is_free = |id: &&FileId| {
                let of_file = charged.iter().filter(|it| it.uvm_file.0 == id.0);
                !of_file.into_iter().any(|it| overlap(it.span, span))
            };
            let Some(file) = of_inode.iter().find(is_free).or_else(|| of_inode.first()) else {
                continue;
            };
            let applied = change.record(Operation::FoundManaged {
                uvm_file: ledger::FileId(file.0),
                span,
                process: ProcessId(pid),
                cards: container.account.card_slots(),
            });
            tracing::warn!(
                container = container.name,
                pid,
                "managed memory was found that no call had been charged for"
            );
            if let Applied::Recorded(recorded) = applied
                && let Some(over_bytes) = recorded.over_quota_bytes
            {
                beyond.push(format!(
                    "process {pid} has mapped managed memory {over_bytes} bytes beyond the quota"
                ));
            }
        }
    }
    beyond
}

/// The uvm files that are held, and by which inode a mapping of each is known.
fn uvm_files(container: &Container) -> Vec<(FileId, Inode)> {
    let held = container.files.held();
    held.iter()
        .filter(|file| file.kind == FileKind::Uvm)
        .filter_map(|file| {
            let stat = fstat(file.fd.as_fd()).ok()?;
            Some((file.id, (stat.st_dev, stat.st_ino)))
        })
        .collect()
}

fn processes_of(container: &Container) -> Vec<i32> {
    let cgroup = container.journal.change().cgroup().cloned();
    cgroup.map_or_else(
        || container.processes.known(),
        |folder| processes_of_group(&folder),
    )
}

/// What a process has mapped, shared and at the offset of its address, of any of these files; `None` for one that is gone.
fn mapped_by(pid: i32, files: &[(FileId, Inode)]) -> Option<Vec<Mapped>> {
    // The table of a process that has ended but was not waited for is empty, which is not what its driver has.
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    if maps.is_empty() {
        return None;
    }
    let inodes: BTreeSet<Inode> = files.iter().map(|(_, inode)| *inode).collect();
    let mapped = maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (from, end) = fields.next()?.split_once('-')?;
        let access = fields.next()?;
        let (offset, device, number) = (fields.next()?, fields.next()?, fields.next()?);
        let number: u64 = number.parse().ok()?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let (from, end) = (address(from)?, address(end)?);
        let is_managed = access.ends_with('s') && address(offset)? == from;
        let inode = inodes.iter().find(|(dev, ino)| {
            *ino == number && device == format!("{:02x}:{:02x}", major(*dev), minor(*dev))
        });
        let span = Span::new(from, end.checked_sub(from)?)?;
        is_managed.then_some(Mapped {
            inode: *inode?,
            span,
        })
    });
    Some(mapped.collect())
}

fn overlap(one: Span, other: Span) -> bool {
    one.base() <= other.last() && other.base() <= one.last()
}

/// The parts of a span that none of the others covers.
fn outside(span: Span, others: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut parts = vec![span];
    for other in others {
        parts = parts
            .into_iter()
            .flat_map(|part| {
                if !overlap(part, other) {
                    return vec![part];
                }
                let before = other.base().checked_sub(part.base());
                let before = before.and_then(|bytes| Span::new(part.base(), bytes));
                let behind = part.last().checked_sub(other.last());
                let behind =
                    behind.and_then(|bytes| Span::new(other.last().checked_add(1)?, bytes));
                before.into_iter().chain(behind).collect()
            })
            .collect();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(base: u64, bytes: u64) -> Span {
        Span::new(base, bytes).unwrap()
    }

    #[test]
    fn what_others_cover_is_taken_out_of_a_span() {
        let of = |others: &[Span]| outside(span(10, 10), others.iter().copied());
        assert_eq!(of(&[]), [span(10, 10)]);
        assert_eq!(of(&[span(0, 10), span(20, 5)]), [span(10, 10)]);
        assert_eq!(of(&[span(12, 3)]), [span(10, 2), span(15, 5)]);
        assert_eq!(of(&[span(5, 8), span(18, 9)]), [span(13, 5)]);
        assert_eq!(of(&[span(10, 4), span(14, 6)]), []);
        assert_eq!(of(&[span(0, 100)]), []);
        let top = outside(span(u64::MAX - 3, 4), [span(u64::MAX - 1, 2)].into_iter());
        assert_eq!(top, [span(u64::MAX - 3, 2)]);
    }

    #[test]
    fn a_shared_mapping_at_its_own_offset_is_seen_and_no_other() {
        let me = std::process::id().cast_signed();
        let file = tempfile::tempfile().unwrap();
        let stat = fstat(file.as_fd()).unwrap();
        let files = [(FileId(1), (stat.st_dev, stat.st_ino))];
        let at_its_offset = sys::mapping::Mapping::at_its_offset(&file, 8192).unwrap();
        assert_eq!(
            mapped_by(me, &files).unwrap(),
            [Mapped {
                inode: files[0].1,
                span: span(at_its_offset.address(), 8192)
            }]
        );
        drop(at_its_offset);
        assert_eq!(mapped_by(me, &files).unwrap(), []);
        assert!(mapped_by(i32::MAX, &files).is_none());
    }
}
