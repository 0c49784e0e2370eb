//! Page tables that the driver makes of a card for what is mapped, and that no sum of it has.
//!
//! MAP_MEMORY_DMA, UVM_MAP_EXTERNAL_ALLOCATION, UVM_MAP_DYNAMIC_PARALLELISM_REGION and UVM_ALLOC_SEMAPHORE_POOL take 8 bytes of the card for each page: 1/512 of what is
//! mapped in pages of 4 KiB (`virtmemReserveMempool_IMPL`, mem_mgr/virtual_mem.c, which counts in those whatever the memory's pages are;
//! `uvm_page_table_range_vec_init`, uvm_map_external.c), in whole tables: a mapping of 4 KiB takes a table and a directory where there is nothing
//! else ([`placement`]). Managed memory takes them where it is touched, until it is mapped no more: memory of nvidia-uvm's own, which is not
//! evicted (`uvm_pmm_gpu_alloc_kernel`). All that is charged as managed counts as touched. A program maps what it has once or a few times: the
//! page tables of four quotas are less than a hundredth of one, and free. What is mapped *beyond that*, the same memory at many addresses, the
//! host's, or small pieces far from each other, has to find its page
//! tables' bytes in the quota, as has every allocation after it.
//!
//! Sums are of tables that no two mappings share, and so no less than there is: only where they do not fit all mappings are gone through.
//!
//! The journal does not know MAP_MEMORY_DMA's mappings: a successor begins without them.

mod placement;

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use driver::FileId;
use journal::state::State;
use ledger::{CardSlot, ClientHandle, ObjectHandle, Refusal, Span};
use nvabi::Release;
use nvabi::bytes::u64_at;
use nvabi::layout::nvos46;
use sys::sync::lock;
use verdict::Effect;

use super::reserve::card_of_object;
use super::{Account, Denied, JudgedCall, Why};
use placement::Placement;

/// Of a quota, one byte of page tables for so many is free: those of four quotas in one piece, of which an entry of 8 bytes has 4 KiB.
/// Programs at the brink of their quota that map some memory twice are none that take page tables: `cgpu-burn churn` was refused with those
/// of one quota.
const QUOTA_FOR_A_FREE_BYTE: u128 = 4096 / 8 / 4;
/// And so many of any quota: directories, of which a small one would have no room for those above two or three places. A mapping that is to
/// be made is counted with all of its own, whatever is beside it.
const FREE_BYTES: u128 = 64 << 10;
/// Mappings by MAP_MEMORY_DMA that a container may have: as many as by nvidia-uvm.
pub(crate) const MOST_DMA_MAPPINGS: usize = 1 << 18;

/// What is mapped on the cards of one container, as far as it counts.
#[derive(Debug, Default)]
pub(crate) struct PageTables(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_dma: BTreeMap<Place, DmaMapping>,
    regions: BTreeMap<(FileId, u64), Region>,
    cards: HashMap<CardSlot, Mapped>,
}

/// Where RM has mapped something: client, the object that takes it, and the GPU's address.
type Place = (u32, u32, u64);

#[derive(Debug, Clone, Copy)]
struct DmaMapping {
    card: CardSlot,
    memory: u32,
    bytes: u64,
}

/// What UVM_MAP_DYNAMIC_PARALLELISM_REGION has mapped.
#[derive(Debug, Clone, Copy)]
struct Region {
    card: CardSlot,
    bytes: u64,
}

/// Bytes of page tables: no less than there are. Sums are wider than what they add.
#[derive(Debug, Default)]
struct Mapped {
    /// By RM, and regions.
    by_dma: u128,
    /// By nvidia-uvm, managed memory among it. `None`: not counted yet.
    by_uvm: Option<u128>,
    /// Of calls that the driver has.
    under_way: u128,
}

/// A mapping that the driver makes at this moment. Dropped at the call's end.
#[derive(Debug)]
pub(crate) struct UnderWay<'a> {
    tables: &'a PageTables,
    cards: Vec<CardSlot>,
    table_bytes: u128,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut inner = lock(&self.tables.0);
        for card in &self.cards {
            if let Some(mapped) = inner.cards.get_mut(card) {
                mapped.under_way = mapped.under_way.saturating_sub(self.table_bytes);
            }
        }
    }
}

impl Mapped {
    fn all(&self) -> u128 {
        let sum = self.by_dma.saturating_add(self.under_way);
        sum.saturating_add(self.by_uvm.unwrap_or_default())
    }
}

impl Inner {
    /// Page tables that have to find room in a quota, with so many more: those that are not free.
    fn beside(&self, card: CardSlot, quota_bytes: u64, more: u128) -> u128 {
        let mapped = self.cards.get(&card).map_or(0, Mapped::all);
        let free = (u128::from(quota_bytes) / QUOTA_FOR_A_FREE_BYTE).saturating_add(FREE_BYTES);
        mapped.saturating_add(more).saturating_sub(free)
    }

    fn is_counted(&self, card: CardSlot) -> bool {
        self.cards.get(&card).is_some_and(|it| it.by_uvm.is_some())
    }

    /// Whether so many more bytes of memory, and so many of page tables, are free.
    fn check(
        &self,
        state: &State,
        card: CardSlot,
        (memory, more): (u64, u128),
    ) -> Result<(), Refusal> {
        let Some((quota_bytes, used)) = state.ledger.quota_and_use(card) else {
            return Ok(());
        };
        let tables = self.beside(card, quota_bytes, more);
        let needed = used.saturating_add(tables).saturating_add(memory.into());
        if tables == 0 || needed <= quota_bytes.into() {
            return Ok(());
        }
        let narrow = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        Err(Refusal::OverQuota {
            card,
            requested_bytes: memory,
            used_bytes: narrow(used.saturating_add(tables)),
            quota_bytes,
        })
    }

    /// The same, after a look at what is there still where it is needed.
    fn check_anew(
        &mut self,
        state: &State,
        card: CardSlot,
        bytes: (u64, u128),
    ) -> Result<(), Refusal> {
        if self.is_counted(card) && self.check(state, card, bytes).is_ok() {
            return Ok(());
        }
        self.count(state, card);
        self.check(state, card, bytes)
    }

    /// Goes through all that is mapped.
    fn count(&mut self, state: &State, card: CardSlot) {
        self.forget_what_is_gone(state);
        let mapped = tables_of(state.ledger.mapped(card));
        let managed = tables_of(state.ledger.managed_on(card));
        let pools = state
            .all_pools()
            .map(|(_, base, bytes)| tables_of_pool(base, bytes));
        let by_uvm = pools.fold(mapped.saturating_add(managed), u128::saturating_add);
        self.cards.entry(card).or_default().by_uvm = Some(by_uvm);
    }

    /// What maps, and what is mapped, takes its mappings with it.
    fn forget_what_is_gone(&mut self, state: &State) {
        let is_there = |client, object| {
            let (client, object) = (ClientHandle(client), ObjectHandle(object));
            state.ledger.object(client, object).is_some()
        };
        self.by_dma.retain(|(client, dma, _), mapping| {
            is_there(*client, *dma) && is_there(*client, mapping.memory)
        });
        let has_range = |file: FileId, base| state.ledger.has_range(ledger::FileId(file.0), base);
        self.regions
            .retain(|(file, base), _| has_range(*file, *base));
        for (card, mapped) in &mut self.cards {
            let mut by_dma = Placement::default();
            for ((client, dma, address), mapping) in &self.by_dma {
                if mapping.card == *card {
                    by_dma.add((*client, *dma), *address, mapping.bytes);
                }
            }
            let mut regions = Placement::default();
            for ((file, base), region) in &self.regions {
                if region.card == *card {
                    regions.add(*file, *base, region.bytes);
                }
            }
            mapped.by_dma = by_dma.bytes().saturating_add(regions.bytes());
        }
    }

    fn add_tables(&mut self, card: CardSlot, bytes: u128) {
        let mapped = self.cards.entry(card).or_default();
        mapped.by_dma = mapped.by_dma.saturating_add(bytes);
    }

    /// What is not counted yet is counted with all that there is.
    fn add_tables_of_uvm(&mut self, card: CardSlot, bytes: u128) {
        let mapped = self.cards.entry(card).or_default();
        if let Some(by_uvm) = &mut mapped.by_uvm {
            *by_uvm = by_uvm.saturating_add(bytes);
        }
    }
}

fn tables_of(spans: impl Iterator<Item = (ledger::FileId, Span)>) -> u128 {
    let mut placement = Placement::default();
    for (file, span) in spans {
        placement.add(file, span.base(), length(span));
    }
    placement.bytes()
}

/// A pool is mapped twice on every card: where the program has it, and among the driver's own addresses (`uvm_va_range_create_semaphore_pool`,
/// uvm_va_range.c).
fn tables_of_pool(base: u64, bytes: u64) -> u128 {
    placement::of_one(base, bytes).saturating_mul(2)
}

fn length(span: Span) -> u64 {
    let more = span.last().saturating_sub(span.base());
    more.saturating_add(1)
}

impl Account {
    /// The bytes of a card that page tables take beside what the ledger has, free ones left out. Sums only grow until all that is mapped is gone through:
    /// that is done where they would not fit.
    pub(crate) fn page_tables(&self, state: &State, card: CardSlot) -> u64 {
        let mut inner = lock(&self.page_tables.0);
        if !inner.is_counted(card) || inner.check(state, card, (0, 0)).is_err() {
            inner.count(state, card);
        }
        let bytes = inner.beside(card, state.ledger.quota(card), 0);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Whether memory of a card fits beside the page tables of what is mapped there.
    pub(crate) fn fits_beside_page_tables(
        &self,
        state: &State,
        card: CardSlot,
        bytes: u64,
    ) -> Result<(), Refusal> {
        lock(&self.page_tables.0).check_anew(state, card, (bytes, 0))
    }

    /// Whether managed memory fits on every card, with the page tables that it takes there once it is touched.
    pub(crate) fn fits_with_page_tables(&self, state: &State, span: Span) -> Result<(), Refusal> {
        let tables = placement::of_one(span.base(), length(span));
        let mut inner = lock(&self.page_tables.0);
        self.card_slots()
            .into_iter()
            .try_for_each(|card| inner.check_anew(state, card, (length(span), tables)))
    }

    /// Counts page tables of managed memory that the ledger has from now on.
    pub(crate) fn has_managed(&self, span: Span) {
        let tables = placement::of_one(span.base(), length(span));
        let mut inner = lock(&self.page_tables.0);
        for card in self.card_slots() {
            inner.add_tables_of_uvm(card, tables);
        }
    }

    /// Before the driver maps something: whether its page tables fit. Nothing for calls that map nothing.
    ///
    /// # Errors
    /// As for memory beyond the quota, or [`Why::TooManyMappings`].
    pub(crate) fn begin_mapping(
        &self,
        state: &State,
        call: &JudgedCall<'_>,
    ) -> Result<Option<UnderWay<'_>>, Denied> {
        let Some((cards, table_bytes)) = self.tables_of(state, call.effect) else {
            return Ok(None);
        };
        let mut inner = lock(&self.page_tables.0);
        let is_dma = matches!(call.effect, Effect::MapDma { .. });
        if is_dma && inner.by_dma.len() >= MOST_DMA_MAPPINGS {
            inner.forget_what_is_gone(state);
            if inner.by_dma.len() >= MOST_DMA_MAPPINGS {
                let status = nvabi::status::NV_ERR_INSUFFICIENT_RESOURCES;
                return Err(self.denied(call, status, Why::TooManyMappings));
            }
        }
        for card in &cards {
            inner
                .check_anew(state, *card, (0, table_bytes))
                .map_err(|refusal| self.denied_by_ledger(call, refusal))?;
        }
        for card in &cards {
            let mapped = inner.cards.entry(*card).or_default();
            mapped.under_way = mapped.under_way.saturating_add(table_bytes);
        }
        Ok(Some(UnderWay {
            tables: &self.page_tables,
            cards,
            table_bytes,
        }))
    }

    /// RM ends a part of a mapping by the page and remembers the rest by the byte: what it does not find again then stays in the page tables when the
    /// memory is freed (`virtmemUnmapFrom_IMPL`, `gvaspaceUnmap_IMPL`; since 550). So one whole mapping is ended, and the driver hears no size
    /// ([`verdict::cleared`]): what is remembered here of memory that is gone can refuse a call, and let no part through.
    ///
    /// # Errors
    /// [`Why::UnmapsAPart`].
    pub(crate) fn check_unmapping(&self, call: &JudgedCall<'_>) -> Result<(), Denied> {
        let Effect::UnmapDma {
            client,
            dma,
            address,
            bytes,
        } = *call.effect
        else {
            return Ok(());
        };
        let inner = lock(&self.page_tables.0);
        let mapping = inner.by_dma.get(&(client, dma, address));
        if bytes == 0 || mapping.is_some_and(|mapping| mapping.bytes == bytes) {
            return Ok(());
        }
        let why = Why::UnmapsAPart { address, bytes };
        Err(self.denied(call, nvabi::status::NV_ERR_NOT_SUPPORTED, why))
    }

    /// The cards of which a call takes page tables, and the most that it takes of each.
    fn tables_of(&self, state: &State, effect: &Effect) -> Option<(Vec<CardSlot>, u128)> {
        if let Effect::MapDma {
            client,
            device,
            bytes,
            ..
        } = effect
        {
            // RM may choose the address.
            let card = card_of_object(state, (*client, *device));
            Some((card.into_iter().collect(), placement::at_most(*bytes)))
        } else if let Effect::MapExternal {
            cards,
            base,
            length,
            ..
        } = effect
        {
            let cards = cards.iter().filter_map(|uuid| self.slot_of_uuid(uuid));
            Some((cards.collect(), placement::of_one(*base, *length)))
        } else if let Effect::Range {
            base,
            length,
            card: Some(uuid),
        } = effect
        {
            let card = self.slot_of_uuid(uuid);
            let tables = placement::of_one(*base, *length);
            Some((card.into_iter().collect(), tables))
        } else if let Effect::Pool { base, length } = effect {
            Some((self.card_slots(), tables_of_pool(*base, *length)))
        } else {
            None
        }
    }

    /// What the driver has mapped or unmapped with success, on which file; `answer` is the struct that it left.
    pub(crate) fn end_mapping(
        &self,
        state: &State,
        (effect, file): (&Effect, FileId),
        answer: &[u8],
        release: Release,
    ) {
        let mut inner = lock(&self.page_tables.0);
        if let Effect::MapDma {
            client,
            device,
            dma,
            memory,
            bytes,
            ..
        } = effect
        {
            let address_at = usize::try_from(nvos46::DMA_OFFSET.of(release)).unwrap_or(0);
            let address = u64_at(answer, address_at);
            if let Some((address, card)) = address.zip(card_of_object(state, (*client, *device))) {
                let mapping = DmaMapping {
                    card,
                    memory: *memory,
                    bytes: *bytes,
                };
                inner.by_dma.insert((*client, *dma, address), mapping);
                inner.add_tables(card, placement::of_one(address, *bytes));
            }
        } else if let Effect::UnmapDma {
            client,
            dma,
            address,
            ..
        } = effect
        {
            let place = (*client, *dma, *address);
            // Others may have its tables still: they are gone through before a call is refused.
            inner.by_dma.remove(&place);
        } else if let Effect::Range {
            base,
            length,
            card: Some(uuid),
        } = effect
            && let Some(card) = self.slot_of_uuid(uuid)
        {
            let bytes = *length;
            inner.regions.insert((file, *base), Region { card, bytes });
            inner.add_tables(card, placement::of_one(*base, bytes));
        } else if let Effect::MapExternal {
            cards,
            base,
            length,
            ..
        } = effect
        {
            let tables = placement::of_one(*base, *length);
            for card in cards.iter().filter_map(|uuid| self.slot_of_uuid(uuid)) {
                inner.add_tables_of_uvm(card, tables);
            }
        } else if let Effect::Pool { base, length } = effect {
            for card in self.card_slots() {
                inner.add_tables_of_uvm(card, tables_of_pool(*base, *length));
            }
        }
    }
}

#[cfg(test)]
mod tests;
