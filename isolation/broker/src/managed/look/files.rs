//! Which file a mapping is of.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;

use driver::{FileId, FileKind};
use ledger::{ManagedSpan, Span};
use nix::sys::stat::{fstat, major, minor};

use super::super::Scope;
use super::super::spans::Stretches;

/// Device numbers and inode.
pub(super) type Inode = (u64, u64, u64);
/// What is mapped, by file.
pub(super) type Mapped = BTreeMap<Inode, Stretches>;

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
