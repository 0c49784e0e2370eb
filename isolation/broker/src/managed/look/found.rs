//! Charges what is found mapped, and was not charged.

use std::collections::BTreeMap;

use driver::FileId;
use journal::state::State;
use ledger::{Applied, Operation, ProcessId, Span};
use verdict::policy::Managed;

use super::super::Scope;
use super::super::spans::Stretches;
use super::files::Inode;
use super::{CHUNK, Look};

/// What is charged of an inode, since the picture was taken as well. It is read once for all that is found: that has no address twice, so
/// nothing that is charged for it explains the rest.
struct Charged {
    to_itself: Stretches,
    to_anybody: Stretches,
    of_file: Vec<(FileId, Stretches)>,
    /// They explain nothing: while its file has none there any more, the same mapping is managed memory.
    pools: Stretches,
}

/// What has been charged.
#[derive(Default)]
struct Sum {
    bytes: u64,
    over_quota_bytes: Option<u64>,
    is_beside_pools: bool,
}

impl Look {
    /// Charges what is mapped and is not charged; says what is beyond the quota then, or should not be there at all.
    pub(super) fn charge(
        &self,
        scope: Scope<'_>,
        (pid, inode, file): (i32, Inode, Option<FileId>),
        (found, suspicions): (&Stretches, &Stretches),
        steps: &mut u64,
    ) -> Option<String> {
        let is_alone = self.files.is_alone(inode);
        let charged = self.charged_of(&scope.journal.change(), (pid, inode), steps);
        let found: Vec<Span> = found.iter().collect();
        let mut sum = Sum::default();
        for chunk in found.chunks(CHUNK) {
            let mut change = scope.journal.change();
            for span in chunk {
                let explained = match !is_alone && suspicions.meets(*span) {
                    true => &charged.to_itself,
                    false => &charged.to_anybody,
                };
                for span in explained.leave_of(*span, steps) {
                    let Some(uvm_file) = charged.file_for(span, file) else {
                        continue;
                    };
                    let applied = change.record(Operation::FoundManaged {
                        uvm_file: ledger::FileId(uvm_file.0),
                        span,
                        process: ProcessId(pid),
                        cards: scope.account.card_slots(),
                    });
                    scope.account.has_managed(span);
                    sum.add(span, &applied, &charged.pools);
                }
            }
        }
        sum.violation(scope, pid)
    }

    fn charged_of(&self, state: &State, (pid, inode): (i32, Inode), steps: &mut u64) -> Charged {
        let nothing = Vec::new();
        let files = self.files.of_inode.get(&inode).unwrap_or(&nothing);
        let pools = files.iter().flat_map(|file| state.pools(*file));
        let pools = pools.filter_map(|(base, bytes)| Span::new(base, bytes));
        let pools = Stretches::of(pools.collect());
        let mut of_file: BTreeMap<FileId, Vec<Span>> = BTreeMap::new();
        let (mut itself, mut anybody) = (Vec::new(), Vec::new());
        for it in state.ledger.managed() {
            *steps = steps.saturating_add(1);
            if self.files.inode(it.uvm_file) != Some(inode) {
                continue;
            }
            let file = FileId(it.uvm_file.0);
            of_file.entry(file).or_default().push(it.span);
            anybody.push(it.span);
            if it.process.0 == pid {
                itself.push(it.span);
            }
        }
        let of_file = files.iter().map(|file| {
            let spans = of_file.remove(file).unwrap_or_default();
            (*file, Stretches::of(spans))
        });
        Charged {
            of_file: of_file.collect(),
            to_itself: Stretches::of(itself),
            to_anybody: Stretches::of(anybody),
            pools,
        }
    }
}

impl Charged {
    /// An address of a file is charged once, so a file is taken that is not charged there: the one that is known, if any is.
    fn file_for(&self, span: Span, known: Option<FileId>) -> Option<FileId> {
        let mut all = self.of_file.iter();
        let is_free = |(_, charged): &&(FileId, Stretches)| !charged.meets(span);
        let first = self.of_file.first();
        let known = all
            .clone()
            .find(|it| Some(it.0) == known && is_free(it))
            .or_else(|| all.find(is_free))
            .or(first);
        known.map(|(file, _)| *file)
    }
}

impl Sum {
    fn add(&mut self, span: Span, applied: &Applied, pools: &Stretches) {
        let bytes = span.last().saturating_sub(span.base()).saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.is_beside_pools |= !pools.leave_of(span, &mut 0).is_empty();
        if let Applied::Recorded(recorded) = applied {
            self.over_quota_bytes = self.over_quota_bytes.max(recorded.over_quota_bytes);
        }
    }

    fn violation(&self, scope: Scope<'_>, pid: i32) -> Option<String> {
        let charged_bytes = self.bytes;
        match self.over_quota_bytes {
            _ if charged_bytes == 0 => None,
            Some(over_bytes) => Some(format!(
                "process {pid} has mapped managed memory {over_bytes} bytes beyond the quota"
            )),
            // A pool may be mapped under every policy: a broker of a former version did not charge it.
            None if self.is_beside_pools && scope.policy == Managed::Deny => Some(format!(
                "process {pid} has mapped {charged_bytes} bytes of managed memory, which is denied"
            )),
            None => {
                tracing::warn!(
                    container = scope.name,
                    pid,
                    charged_bytes,
                    "managed memory was found that no call had been charged for"
                );
                None
            }
        }
    }
}
