//! Which file a mapping is of.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;

use driver::{FileId, FileKind};
use ledger::{ManagedSpan, Span};
use nix::sys::stat::{fstat, major, minor};

use super::super::Scope;
use super::super::spans::Stretches;
use crate::maps::Area;

/// Device numbers and inode.
pub(super) type Inode = (u64, u64, u64);
/// What is mapped, by file.
pub(super) type Mapped = BTreeMap<Inode, Stretches>;

/// So many mappings of `nvidia-uvm` are remembered in one look: beyond them nothing is uncharged, which is the tenant's loss.
pub(super) const MOST_MAPPED: usize = 1 << 17;

/// The uvm files that are held, and by which inode a mapping of each is known.
#[derive(Debug, Default)]
pub(super) struct Files {
    inodes: HashMap<FileId, Inode>,
    pub(super) of_inode: BTreeMap<Inode, Vec<FileId>>,
}

impl Files {
    pub(super) fn of(scope: Scope<'_>) -> Self {
        let mut files = Self::default();
        for file in scope.files.held() {
            if file.kind == FileKind::Uvm
                && let Ok(stat) = fstat(file.fd.as_fd())
            {
                let inode = (major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
                files.inodes.insert(file.id, inode);
                files.of_inode.entry(inode).or_default().push(file.id);
            }
        }
        files
    }

    /// Adds a mapping of managed memory to those of its inode.
    pub(super) fn add(&self, mapped: &mut BTreeMap<Inode, Vec<Span>>, area: Area) {
        let is_managed = area.is_shared && area.offset == area.span.base();
        if is_managed && self.of_inode.contains_key(&area.file) {
            add(mapped.entry(area.file).or_default(), area.span);
        }
    }

    pub(super) fn inode(&self, file: ledger::FileId) -> Option<Inode> {
        self.inodes.get(&FileId(file.0)).copied()
    }

    /// Whether a mapping of an inode can be of one file alone. A real driver's files have one inode all together.
    pub(super) fn is_alone(&self, inode: Inode) -> bool {
        self.of_inode.get(&inode).is_some_and(|ids| ids.len() == 1)
    }
}

/// What is charged, by the inode of its file.
pub(super) fn stretches<'a>(
    files: &Files,
    charged: impl Iterator<Item = &'a ManagedSpan>,
) -> Mapped {
    let mut spans: BTreeMap<Inode, Vec<Span>> = BTreeMap::new();
    for it in charged {
        if let Some(inode) = files.inode(it.uvm_file) {
            spans.entry(inode).or_default().push(it.span);
        }
    }
    merged(spans)
}

/// The stretches of each, without those that overlap or touch.
pub(super) fn merged<K, M: FromIterator<(K, Stretches)>>(
    spans: impl IntoIterator<Item = (K, Vec<Span>)>,
) -> M {
    let each = spans.into_iter();
    each.map(|(of, spans)| (of, Stretches::of(spans))).collect()
}

/// Adds a stretch to others, which come in the order of their addresses, those of one table after those of another. Beyond what is remembered,
/// the room between two counts as mapped: nothing is hidden behind a great many.
pub(super) fn add(mapped: &mut Vec<Span>, span: Span) {
    let has_space = mapped.len() < MOST_MAPPED;
    match mapped.last_mut() {
        Some(before) if !has_space || before.last().checked_add(1) == Some(span.base()) => {
            let base = before.base().min(span.base());
            let last = before.last().max(span.last());
            let bytes = last.saturating_sub(base).saturating_add(1);
            *before = Span::new(base, bytes).unwrap_or(*before);
        }
        _ => mapped.push(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_hidden_behind_a_great_many_of_another_table() {
        let page = |number: u64| Span::new(number * 8192, 4096).unwrap();
        let most = u64::try_from(MOST_MAPPED).unwrap();
        let mut mapped = Vec::new();
        (0..most).for_each(|number| add(&mut mapped, page(1000 + number)));
        assert_eq!(mapped.len(), MOST_MAPPED);
        for low in [1, 7] {
            add(&mut mapped, page(low));
        }
        let all = Stretches::of(mapped);
        for number in [1, 7, 1000, 999 + most] {
            assert!(all.leave_of(page(number), &mut 0).is_empty(), "{number}");
        }
    }
}
