//! What the driver keeps with a file of nvidia-uvm and counts nowhere: numbers, by the file. They go with it.

use std::collections::{BTreeMap, BTreeSet};

use driver::FileId;

/// Numbers of the driver's, or addresses, of each file.
#[derive(Debug, Default)]
pub(super) struct ByFile {
    of: BTreeMap<FileId, BTreeSet<u64>>,
    count: usize,
}

impl ByFile {
    /// Of all files together.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn has(&self, file: FileId, number: u64) -> bool {
        self.of.get(&file).is_some_and(|of| of.contains(&number))
    }

    pub(super) fn add(&mut self, file: FileId, number: u64) {
        if self.of.entry(file).or_default().insert(number) {
            self.count = self.count.saturating_add(1);
        }
    }

    pub(super) fn remove(&mut self, file: FileId, number: u64) {
        if self.of.get_mut(&file).is_some_and(|of| of.remove(&number)) {
            self.count = self.count.saturating_sub(1);
        }
    }

    pub(super) fn retain(&mut self, is_there: impl Fn(FileId, u64) -> bool) {
        for (file, of) in &mut self.of {
            of.retain(|number| is_there(*file, *number));
        }
        self.of.retain(|_, of| !of.is_empty());
        self.count = self.of.values().map(BTreeSet::len).sum();
    }

    pub(super) fn of(&self, file: FileId) -> impl Iterator<Item = u64> {
        self.of.get(&file).into_iter().flatten().copied()
    }

    /// The file is gone.
    pub(super) fn forget(&mut self, file: FileId) {
        let of = self.of.remove(&file).unwrap_or_default();
        self.count = self.count.saturating_sub(of.len());
    }
}
