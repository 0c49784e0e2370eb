//! References beside the allocating handle: duplicates, external mappings, exports.

use std::collections::btree_map::Entry;

use crate::charge::{Demand, Purpose};
use crate::counts::wide;
use crate::identity::{AllocationId, CardSlot, FileId, ObjectHandle, ProcessId};
use crate::kinds::{Counted, ObjectKind};
use crate::ledger::{EXPORTS_OF_A_PLACE, Freed, Ledger, Pin, Source};
use crate::mappings::{Change, Span};
use crate::objects::{Place, Recorded};
use crate::steps::Stepped;

/// Memory that another container has exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Adopted {
    /// The exporter's number for it, never used again for other memory.
    pub origin: u64,
    /// The driver's class number.
    pub class: u32,
    /// The card and the size; none for memory that is on no card.
    pub demand: Option<Demand>,
    /// The process that imports it.
    pub process: ProcessId,
}

/// One exported object, as the exporter's account has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The place in the file's list.
    pub index: u32,
    /// The driver's class number.
    pub class: u32,
    /// The memory; none for what is on no card.
    pub allocation: Option<AllocationId>,
}

impl Ledger {
    /// Records that the driver has made another handle of a pinned object (a duplicate, an import). The
    /// pin's reference becomes the new handle's; class, kind and card are the source's. What is in the way
    /// is treated as in [`Ledger::add_object`].
    pub fn duplicate(&mut self, pin: Pin, place: Place, depends_on: &[ObjectHandle]) -> Recorded {
        let mut unheld = Freed::default();
        let Some(pinned) = self.settle_pin(pin, &mut unheld) else {
            return Recorded::default();
        };
        let mut replaced = self.vacate(place);
        replaced.add_bytes(unheld);
        self.insert_object(place, pinned.source, depends_on, &mut replaced);
        Recorded {
            allocation: pinned.source.allocation,
            over_quota_bytes: None,
            replaced,
        }
    }

    /// Charges what nvidia-uvm keeps with a file that is about to be initialised, until it is closed: once, however often that is tried.
    ///
    /// # Errors
    /// [`crate::Refusal::TooMany`], [`crate::Refusal::OverQuota`]; nothing is charged then.
    pub fn open_uvm_file(&mut self, uvm_file: FileId) -> Result<(), crate::Refusal> {
        if self.uvm_files.contains(&uvm_file) {
            return Ok(());
        }
        self.check_count(Counted::UvmFiles, 1)?;
        self.uvm_files.insert(uvm_file);
        self.count_more(Counted::UvmFiles, 1);
        Ok(())
    }

    /// Whether an initialised file is there.
    #[must_use]
    pub fn has_uvm_file(&self, uvm_file: FileId) -> bool {
        self.uvm_files.contains(&uvm_file)
    }

    /// Records that an initialised file is closed, and that another one keeps it: it stays counted and charged.
    pub fn uvm_file_stays(&mut self, uvm_file: FileId) {
        if self.uvm_files.remove(&uvm_file) {
            self.staying_uvm_files = self.staying_uvm_files.saturating_add(1);
        }
    }

    /// Records that `uvm_file` has a range for external mappings. Ranges it overlaps are forgotten, but
    /// not the mappings in them: those go when the driver says so.
    pub fn add_range(&mut self, uvm_file: FileId, span: Span) {
        let ranges = self.ranges.entry(uvm_file).or_default();
        // None of them overlaps another, so that those which this one overlaps are next to each other.
        let overlapped: Vec<u64> = ranges
            .range(..=span.last())
            .rev()
            .take_while(|(_, last)| **last >= span.base())
            .map(|(base, _)| *base)
            .stepped()
            .collect();
        for base in &overlapped {
            ranges.remove(base);
        }
        let forgotten = overlapped.len();
        ranges.insert(span.base(), span.last());
        self.count_fewer(Counted::Ranges, wide(forgotten));
        self.count_more(Counted::Ranges, 1);
    }

    /// Whether the container may make one more external range, and the host's memory that it takes.
    ///
    /// # Errors
    /// [`crate::Refusal::TooMany`].
    pub fn check_range(&self) -> Result<Demand, crate::Refusal> {
        self.check_count(Counted::Ranges, 1)?;
        Ok(Demand {
            card: CardSlot::HOST,
            bytes: self.counts.host_bytes(Counted::Ranges, 1),
            purpose: Purpose::Context,
        })
    }

    /// The external ranges of a uvm file: first to last address.
    pub fn ranges_of(&self, uvm_file: FileId) -> impl Iterator<Item = Span> + '_ {
        let ranges = self.ranges.get(&uvm_file).into_iter().flatten();
        ranges.filter_map(|(base, last)| Span::between(*base, *last))
    }

    /// Records that the range starting at `base` outlives its file: it stays counted and charged.
    pub fn range_stays(&mut self, uvm_file: FileId, base: u64) {
        let ranges = self.ranges.get_mut(&uvm_file);
        if ranges.is_some_and(|ranges| ranges.remove(&base).is_some()) {
            self.staying_ranges = self.staying_ranges.saturating_add(1);
        }
    }

    /// Records that pinned memory is mapped at `span` on each of `cards`. What was mapped there on the
    /// same card is released; one reference is held for every piece.
    pub fn map_external(
        &mut self,
        pin: Pin,
        uvm_file: FileId,
        span: Span,
        cards: &[CardSlot],
    ) -> Freed {
        let mut freed = Freed::default();
        let Some(pinned) = self.settle_pin(pin, &mut freed) else {
            return freed;
        };
        let allocation = pinned.source.allocation;
        for card in cards {
            self.cut(uvm_file, *card, span, &mut freed);
            if let Some(id) = allocation {
                self.accounts.retain(id);
            }
            self.mappings
                .entry((uvm_file, *card))
                .or_default()
                .insert(span, allocation);
            self.count_more(Counted::Mappings, 1);
        }
        self.release(allocation, &mut freed);
        freed
    }

    /// Whether as many pieces may be there as are left when a span is taken out on these cards.
    ///
    /// # Errors
    /// [`crate::Refusal::TooMany`].
    pub fn check_cut(
        &self,
        uvm_file: FileId,
        span: Span,
        cards: &[CardSlot],
    ) -> Result<(), crate::Refusal> {
        let split = cards.iter().filter(|card| {
            let pieces = self.mappings.get(&(uvm_file, **card));
            pieces.is_some_and(|pieces| pieces.is_split_by(span))
        });
        match wide(split.count()) {
            0 => Ok(()),
            split => self.check_count(Counted::Mappings, split),
        }
    }

    /// Records that a span is unmapped on one card, or on all. A piece that reaches beyond it is shortened
    /// or split, and what is left of it keeps the memory charged.
    pub fn unmap_external(
        &mut self,
        uvm_file: FileId,
        span: Span,
        card: Option<CardSlot>,
    ) -> Freed {
        let mut freed = Freed::default();
        for card in self.cards_mapped_by(uvm_file, card) {
            self.cut(uvm_file, card, span, &mut freed);
        }
        freed
    }

    /// Records that the range starting at `base` is freed, with every mapping in it on every card. If no
    /// such range is known, the pieces that start at `base` go.
    pub fn free_range(&mut self, uvm_file: FileId, base: u64) -> Freed {
        let mut freed = Freed::default();
        let mut known = None;
        if let Entry::Occupied(mut ranges) = self.ranges.entry(uvm_file) {
            if let Some(last) = ranges.get_mut().remove(&base) {
                known = Span::between(base, last);
            }
            if ranges.get().is_empty() {
                ranges.remove();
            }
        }
        self.count_fewer(Counted::Ranges, u64::from(known.is_some()));
        for card in self.cards_mapped_by(uvm_file, None) {
            let there = self
                .mappings
                .get(&(uvm_file, card))
                .and_then(|pieces| pieces.starting_at(base));
            if let Some(span) = known.or(there) {
                self.cut(uvm_file, card, span, &mut freed);
            }
        }
        freed
    }

    /// Records that a uvm file has lost its whole address space (its process is gone, or it is closed):
    /// all its ranges and mappings.
    pub fn drop_address_space(&mut self, uvm_file: FileId) -> Freed {
        let mut freed = Freed::default();
        for card in self.cards_mapped_by(uvm_file, None) {
            if let Some(pieces) = self.mappings.remove(&(uvm_file, card)) {
                self.count_fewer(Counted::Mappings, wide(pieces.len()));
                for (_, piece) in pieces.iter() {
                    self.release(piece.allocation, &mut freed);
                }
            }
        }
        if let Some(ranges) = self.ranges.remove(&uvm_file) {
            self.count_fewer(Counted::Ranges, wide(ranges.len()));
        }
        self.drop_managed(uvm_file, &mut freed);
        freed
    }

    /// Records that a pinned object is exported by `file` at `index` (0 where a call exports only one). The
    /// reference is held until the file is closed.
    pub fn export(&mut self, pin: Pin, file: FileId, index: u32) -> Freed {
        let mut freed = Freed::default();
        let Some(pinned) = self.settle_pin(pin, &mut freed) else {
            return freed;
        };
        let exports = self.exports.entry(file).or_default();
        let before = exports.count();
        exports.by_index.insert(index, pinned.source);
        exports.adopted.remove(&index);
        let is_new = pinned
            .source
            .allocation
            .is_some_and(|allocation| exports.references.insert(allocation));
        let more = exports.count().saturating_sub(before);
        self.count_more(Counted::Exports, more);
        // The pin's reference becomes the export's, unless the file holds this allocation already.
        if !is_new {
            self.release(pinned.source.allocation, &mut freed);
        }
        freed
    }

    /// Charges what another container has exported by `file` at `index`, as if this one had allocated and exported it:
    /// imports of it are counted once then, and the charge stays until the file is closed and the last of them freed.
    /// `origin` is the exporter's number for the memory; what is there already under the same number is not charged again.
    ///
    /// # Errors
    /// [`crate::Refusal::OverQuota`], [`crate::Refusal::NoShare`], [`crate::Refusal::TooMany`]; nothing is changed then.
    pub fn adopt_export(
        &mut self,
        file: FileId,
        index: u32,
        adopted: Adopted,
    ) -> Result<(), crate::Refusal> {
        let known = self.exports.get(&file);
        if known.is_some_and(|exports| exports.adopted.get(&index) == Some(&adopted.origin)) {
            return Ok(());
        }
        self.check_count(Counted::Exports, EXPORTS_OF_A_PLACE)?;
        if let Some(demand) = adopted.demand {
            self.accounts.check(demand.card, demand.bytes)?;
        }
        let allocation = adopted.demand.map(|demand| {
            let Demand {
                card,
                bytes,
                purpose,
            } = demand;
            self.accounts.charge(card, bytes, purpose, adopted.process)
        });
        let exports = self.exports.entry(file).or_default();
        let before = exports.count();
        let source = Source {
            class: adopted.class,
            kind: ObjectKind::Memory,
            card: None,
            allocation,
        };
        exports.by_index.insert(index, source);
        exports.references.extend(allocation);
        exports.adopted.insert(index, adopted.origin);
        let more = exports.count().saturating_sub(before);
        self.count_more(Counted::Exports, more);
        Ok(())
    }

    fn cards_mapped_by(&self, uvm_file: FileId, only: Option<CardSlot>) -> Vec<CardSlot> {
        self.mappings
            .range((uvm_file, CardSlot(0))..=(uvm_file, CardSlot(u8::MAX)))
            .map(|((_, card), _)| *card)
            .stepped()
            .filter(|card| only.is_none_or(|only| only == *card))
            .collect()
    }

    fn cut(&mut self, uvm_file: FileId, card: CardSlot, span: Span, freed: &mut Freed) {
        let Some(pieces) = self.mappings.get_mut(&(uvm_file, card)) else {
            return;
        };
        let before = wide(pieces.len());
        let changes = pieces.cut(span);
        let after = wide(pieces.len());
        if pieces.is_empty() {
            self.mappings.remove(&(uvm_file, card));
        }
        self.count_more(Counted::Mappings, after.saturating_sub(before));
        self.count_fewer(Counted::Mappings, before.saturating_sub(after));
        for change in changes {
            match change {
                Change::Retain(id) => self.accounts.retain(id),
                Change::Release(id) => self.release(Some(id), freed),
            }
        }
    }
}
