//! The open files of `/dev/nvidia-uvm`, and the names that a broker has for each.
//!
//! UVM_INITIALIZE puts a file of the tenant's own in the place of its descriptor, to which the broker gives another number
//! when it sees it. Both numbers mean the same state, which ends when neither is open any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use driver::FileId;
use nvabi::status::{
    NV_ERR_IN_USE, NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_DEVICE, NV_ERR_INVALID_STATE,
    NV_ERR_PAGE_TABLE_NOT_AVAIL, NV_ERR_UVM_ADDRESS_IN_USE, NV_WARN_NOTHING_TO_DO,
};
use nvabi::uvm;

use crate::card::{Charge, SimCard};
use crate::managed::Managed;
use crate::refusal::Refusal;
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
    /// What UVM_INITIALIZE was given.
    flags: u32,
    /// Which file keeps the process's memory.
    mm: Mm,
    /// External ranges: first address to last.
    pub(super) ranges: BTreeMap<u64, u64>,
    /// Page tables of ranges in which nothing is mapped, by the ranges' first addresses.
    pub(super) sparse: BTreeMap<u64, Charge>,
    /// Groups of managed ranges, and how many were ever made.
    pub(super) groups: BTreeSet<u64>,
    pub(super) groups_made: u64,
    /// Registered cards, by index, each with its address space once that is registered.
    pub(super) cards: HashMap<u32, Option<Arc<VaSpace>>>,
    /// What the registered address spaces are charged, by the card's index: kept while they are registered.
    pub(super) space_charges: HashMap<u32, Arc<Charge>>,
    /// Registered channels by client and handle: the card's index, and what they and their groups are charged.
    pub(super) channels: HashMap<(u32, u32), Kept>,
}

/// What a registered channel keeps of a card, by its index: its own charge, and its group's.
type Kept = (u32, Vec<Arc<Charge>>);

/// Whether a second file keeps the memory of the process whose address space it is (uvm_va_space_mm.c, `uvm_va_space_mm_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mm {
    /// None yet.
    Uninitialized,
    /// This one does.
    Alive(FileId),
    /// It is closed: the address space takes no more work.
    Released,
}

impl UvmFiles {
    /// Has a second file keep the memory of an address space's process (uvm.c, `uvm_api_mm_initialize`).
    pub(super) fn keep_mm(&mut self, mm_file: FileId, space: FileId) -> Result<(), Refusal> {
        let is_in_use = self.0.contains_key(&mm_file) || self.is_mm(mm_file);
        let file = self
            .0
            .get_mut(&space)
            .ok_or(Refusal(NV_ERR_INVALID_ARGUMENT))?;
        if file.has_no_mm() {
            return Err(Refusal(NV_WARN_NOTHING_TO_DO));
        }
        if is_in_use {
            return Err(Refusal(NV_ERR_IN_USE));
        }
        match file.mm {
            Mm::Uninitialized => file.mm = Mm::Alive(mm_file),
            Mm::Alive(_) => return Err(Refusal(NV_ERR_INVALID_STATE)),
            Mm::Released => return Err(Refusal(NV_ERR_PAGE_TABLE_NOT_AVAIL)),
        }
        Ok(())
    }

    /// Whether a file is such a second one.
    pub(super) fn is_mm(&self, file: FileId) -> bool {
        self.0.values().any(|state| state.mm == Mm::Alive(file))
    }

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

    pub(super) fn initialise(&mut self, key: FileId, flags: u32, managed: Managed) -> &UvmFile {
        self.0.entry(key).or_insert_with(|| UvmFile {
            managed: Arc::new(managed),
            open: BTreeSet::from([key]),
            seen: false,
            flags,
            mm: Mm::Uninitialized,
            ranges: BTreeMap::new(),
            sparse: BTreeMap::new(),
            groups: BTreeSet::new(),
            groups_made: 0,
            cards: HashMap::new(),
            space_charges: HashMap::new(),
            channels: HashMap::new(),
        })
    }

    /// A number is closed. With the last one the maps end, and their hold on memory; but a file that was put in the place
    /// of the one that is closed now may be open without having been seen. A second file that keeps the process's memory has
    /// the first one open as well (uvm.c, `uvm_release_mm`); but before it closes the first, a real card's broker has every card
    /// unregistered there, which is done here in its place.
    pub(super) fn close(&mut self, file: FileId) {
        let over: Vec<FileId> = self
            .0
            .iter_mut()
            .filter_map(|(key, state)| {
                let was_mm = state.mm == Mm::Alive(file);
                if was_mm {
                    state.mm = Mm::Released;
                }
                let known = state.open.remove(&file) || was_mm;
                let is_closed = known && state.open.is_empty() && state.seen;
                let is_kept = matches!(state.mm, Mm::Alive(_));
                if is_closed && is_kept {
                    state.unregister_all(*key);
                }
                (is_closed && !is_kept).then_some(*key)
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
    /// Keeps a range that no other one overlaps.
    pub(super) fn reserve(&mut self, base: u64, last: u64) -> Result<(), Refusal> {
        let before = self.ranges.range(..=last).next_back();
        if before.is_some_and(|(_from, to)| *to >= base) {
            return Err(Refusal(NV_ERR_UVM_ADDRESS_IN_USE));
        }
        self.ranges.insert(base, last);
        Ok(())
    }

    /// What it was initialised with.
    pub(super) fn flags(&self) -> u32 {
        self.flags
    }

    /// An address space of several processes is bound to the memory of none (uvm_va_space_mm.c, `uvm_va_space_mm_enabled`).
    fn has_no_mm(&self) -> bool {
        self.flags & uvm::INIT_FLAG_MULTI_PROCESS != 0
    }

    /// Whether it may be given more work: not once its process's memory may have gone (uvm_va_space.c, `disallow_new_registers`).
    pub(super) fn takes_work(&self) -> bool {
        self.mm != Mm::Released
    }

    /// Whether the process's memory is held, without which no address space of a card is registered (uvm_va_space.c,
    /// `uvm_va_space_register_gpu_va_space`).
    pub(super) fn has_mm(&self) -> bool {
        self.has_no_mm() || matches!(self.mm, Mm::Alive(_))
    }

    fn end(mut self, key: FileId) {
        self.unregister_all(key);
    }

    /// A card's address space is unregistered, and with it the channels in it.
    pub(super) fn let_go(&mut self, card: u32) {
        self.space_charges.remove(&card);
        self.channels.retain(|_name, (on, _charges)| *on != card);
    }

    fn unregister_all(&mut self, key: FileId) {
        self.space_charges.clear();
        self.channels.clear();
        for space in std::mem::take(&mut self.cards).values().flatten() {
            self.leave(space, key);
        }
    }

    /// Ends what the file has in an address space.
    pub(super) fn leave(&self, space: &VaSpace, key: FileId) {
        space.unmap_all(|made_by| made_by == MadeBy::Uvm(key));
        space.forget_managed(&self.managed);
    }

    /// The external range that a span is in.
    pub(super) fn range_around(&self, base: u64, last: u64) -> Option<(u64, u64)> {
        let (from, to) = self.ranges.range(..=base).next_back()?;
        (last <= *to).then_some((*from, *to))
    }

    /// A call names a card that must be registered.
    pub(super) fn require_card(&self, card: &SimCard) -> Result<(), Refusal> {
        match self.cards.contains_key(&card.index) {
            true => Ok(()),
            false => Err(Refusal(NV_ERR_INVALID_DEVICE)),
        }
    }

    /// The address space that is registered of a card.
    pub(super) fn space_of(&self, card: &SimCard) -> Result<&Arc<VaSpace>, Refusal> {
        self.cards
            .get(&card.index)
            .and_then(Option::as_ref)
            .ok_or(Refusal(NV_ERR_INVALID_DEVICE))
    }

    pub(super) fn spaces(&self) -> impl Iterator<Item = &Arc<VaSpace>> {
        self.cards.values().flatten()
    }
}
