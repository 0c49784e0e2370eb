//! The open files of `/dev/nvidia-uvm`, and the names that a broker has for each.
//!
//! UVM_INITIALIZE puts a file of the tenant's own in the place of its descriptor, to which the broker gives another number
//! when it sees it. Both numbers mean the same state, which ends when neither is open any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use driver::FileId;

use crate::managed::Managed;
use crate::vaspace::{MadeBy, VaSpace};

/// The initialised files of a session, by the number that each was initialised under.
#[derive(Debug, Default)]
pub(super) struct UvmFiles(HashMap<FileId, UvmFile>);

/// What a uvm file knows.
#[derive(Debug)]
pub(super) struct UvmFile {
    pub(super) managed: Arc<Managed>,
    /// The broker's numbers for it that are open.
    open: BTreeSet<FileId>,
    /// The file that replaced the node has been seen: when all numbers are closed, so is it.
    seen: bool,
    /// External ranges: first address to last.
    pub(super) ranges: BTreeMap<u64, u64>,
    /// Registered cards, by index, each with its address space once that is registered.
    pub(super) cards: HashMap<u32, Option<Arc<VaSpace>>>,
}

impl UvmFiles {
    /// The number that the state of a file is found under.
    pub(super) fn known_as(&mut self, file: FileId, private: Option<u64>) -> FileId {
        let known = match private {
            Some(inode) => self
                .0
                .iter_mut()
                .find(|(_key, state)| state.managed.inode() == inode)
                .map(|(key, state)| {
                    state.open.insert(file);
                    state.seen = true;
                    *key
                }),
            None => self
                .0
                .iter()
                .find(|(_key, state)| state.open.contains(&file))
                .map(|(key, _state)| *key),
        };
        known.unwrap_or(file)
    }

    pub(super) fn get(&self, key: FileId) -> Option<&UvmFile> {
        self.0.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: FileId) -> Option<&mut UvmFile> {
        self.0.get_mut(&key)
    }

    pub(super) fn initialise(&mut self, key: FileId, managed: Managed) -> &UvmFile {
        self.0.entry(key).or_insert_with(|| UvmFile {
            managed: Arc::new(managed),
            open: BTreeSet::from([key]),
            seen: false,
            ranges: BTreeMap::new(),
            cards: HashMap::new(),
        })
    }

    /// A number is closed. With the last one the maps end, and their hold on memory; but a file that was put in the place
    /// of the one that is closed now may be open without having been seen.
    pub(super) fn close(&mut self, file: FileId) {
        let over: Vec<FileId> = self
            .0
            .iter_mut()
            .filter_map(|(key, state)| {
                let known = state.open.remove(&file);
                (known && state.open.is_empty() && state.seen).then_some(*key)
            })
            .collect();
        for key in over {
            if let Some(state) = self.0.remove(&key) {
                state.end(key);
            }
        }
    }

    pub(super) fn end(&mut self) {
        for (key, state) in self.0.drain() {
            state.end(key);
        }
    }
}

impl UvmFile {
    fn end(self, key: FileId) {
        for space in self.cards.values().flatten() {
            self.leave(space, key);
        }
    }

    /// Ends what the file has in an address space.
    pub(super) fn leave(&self, space: &VaSpace, key: FileId) {
        space.unmap_all(|made_by| made_by == MadeBy::Uvm(key));
        space.forget_managed(&self.managed);
    }

    /// The external range that a span lies in.
    pub(super) fn range_around(&self, base: u64, last: u64) -> Option<(u64, u64)> {
        let (from, to) = self.ranges.range(..=base).next_back()?;
        (last <= *to).then_some((*from, *to))
    }

    pub(super) fn spaces(&self) -> impl Iterator<Item = &Arc<VaSpace>> {
        self.cards.values().flatten()
    }
}
