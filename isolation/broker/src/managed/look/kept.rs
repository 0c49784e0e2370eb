//! The second half of a look: the memory that processes have or had, whatever programs they are by now ([`crate::initialised`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use driver::FileId;
use ledger::{ManagedSpan, Span};

use super::super::blocks::LetMap;
use super::super::spans::Stretches;
use super::super::suspicions::OfKept;
use super::super::{ManagedMappings, SLOW, Scope};
use super::Look;
use super::files::{Inode, Mapped, merged};
use crate::initialised::{Kept, Memory};

/// What is to be looked at.
#[derive(Debug)]
pub(super) struct InKept {
    todo: Vec<Arc<Memory>>,
    suspicions: OfKept,
    /// The same, but for what a process is charged for and has mapped itself.
    any: LetMap,
}

/// Of whose charges nothing is known.
#[derive(Debug, Default)]
pub(super) struct OutOfSight {
    processes: BTreeSet<i32>,
    files: BTreeSet<FileId>,
}

impl OutOfSight {
    pub(super) fn has(&self, it: &ManagedSpan) -> bool {
        self.processes.contains(&it.process.0) || self.files.contains(&FileId(it.uvm_file.0))
    }
}

impl Look {
    /// The next memory to be looked at, once every process has been. In most looks it is none unless something that is charged is mapped by
    /// nobody, or a process may have mapped something else than what was charged.
    pub(super) fn next_memory(
        &mut self,
        managed: &ManagedMappings,
        scope: Scope<'_>,
    ) -> Option<Arc<Memory>> {
        if self.kept.is_none() {
            let suspicions = std::mem::take(&mut managed.lock().of_kept);
            let is_needed = !suspicions.is_empty()
                || self.number.is_multiple_of(u64::from(SLOW))
                || self.misses_any();
            let todo = is_needed.then(|| scope.files.initialised.there());
            let has_all = |mapped: Option<&Mapped>, span| {
                let mut inodes = mapped.into_iter().flat_map(BTreeMap::values);
                inodes.any(|mapped| mapped.leave_of(span, &mut 0).is_empty())
            };
            let is_explained = |pid: &i32, span: Span| {
                has_all(self.own.get(pid), span) && has_all(self.by_process.get(pid), span)
            };
            let all = suspicions.iter();
            let others = all.filter(|(pid, span)| !is_explained(pid, *span));
            let any = LetMap::of(others.map(|(_, span)| *span).collect());
            self.kept = Some(InKept {
                todo: todo.unwrap_or_default(),
                suspicions,
                any,
            });
        }
        self.kept.as_mut()?.todo.pop()
    }

    fn misses_any(&self) -> bool {
        let nothing = Stretches::default();
        self.charged.iter().any(|it| {
            let inode = self.files.inode(it.uvm_file);
            let own = self.own.get(&it.process.0);
            inode.zip(own).is_some_and(|(inode, own)| {
                let own = own.get(&inode).unwrap_or(&nothing);
                !own.leave_of(it.span, &mut 0).is_empty()
            })
        })
    }

    /// Looks at it as at a process.
    pub(super) fn examine_memory(
        &mut self,
        managed: &ManagedMappings,
        scope: Scope<'_>,
        memory: &Memory,
        violations: &mut Vec<String>,
    ) {
        let Some(kept) = self.kept.take() else {
            return;
        };
        let mut mapped: BTreeMap<Inode, Vec<Span>> = BTreeMap::new();
        match memory.mapped(|area| self.files.add(&mut mapped, area)) {
            Ok(Kept::Read(bytes)) => {
                managed.work.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Ok(Kept::Gone) => {}
            Ok(Kept::OutOfSight) => {
                self.out_of_sight.processes.insert(memory.tgid);
                self.out_of_sight.files.insert(memory.file);
                // What it may have mapped is all that it was let map. A living process is looked at by another thread of it.
                let inode = self.files.inode(ledger::FileId(memory.file.0));
                let inode = inode.or_else(|| self.files.of_inode.keys().next().copied());
                match inode {
                    Some(inode) if memory.is_left() => {
                        let own = kept.suspicions.iter().filter(|it| it.0 == memory.tgid);
                        // Beside what was read before it broke off.
                        mapped.entry(inode).or_default().extend(own.map(|it| it.1));
                    }
                    Some(_) => {}
                    None => managed.lock().of_kept.extend(&kept.suspicions),
                }
            }
            Err(error) => {
                let tgid = memory.tgid;
                tracing::debug!(tgid, %error, "a process's memory cannot be looked at");
                managed.lock().of_kept.extend(&kept.suspicions);
                self.is_inconclusive = true;
            }
        }
        let mapped: Mapped = merged(mapped);
        let by = (memory.tgid, memory.started(), Some(memory.file));
        let found = self.charge_uncharged(managed, scope, by, &mapped, &kept.any);
        violations.extend(found);
        for (inode, mapped) in &mapped {
            self.record_elsewhere(*inode, mapped);
        }
        self.kept = Some(kept);
    }
}
