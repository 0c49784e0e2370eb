//! Page tables that the driver makes of a card for what is mapped, and that no sum of it has.
//!
//! MAP_MEMORY_DMA and UVM_MAP_EXTERNAL_ALLOCATION take 8 bytes of the card for each page: 1/512 of what is mapped in pages of 4 KiB
//! (`virtmemReserveMempool_IMPL`, mem_mgr/virtual_mem.c, which counts in those whatever the memory's pages are; `uvm_page_table_range_vec_init`,
//! uvm_map_external.c). A program maps what it has once or a few times: the page tables of four quotas are less than a hundredth of one, and free. What is
//! mapped *beyond that*, the same memory at many addresses or the host's, has to find its page tables' bytes in the quota, as has every
//! allocation after it.
//!
//! The journal does not know MAP_MEMORY_DMA's mappings: a successor begins without them. No tenant can replace its broker.

use std::collections::HashMap;
use std::sync::Mutex;

use journal::state::State;
use ledger::{CardSlot, ClientHandle, ObjectHandle, Refusal};
use nvabi::Release;
use nvabi::bytes::u64_at;
use nvabi::layout::nvos46;
use sys::sync::lock;
use verdict::Effect;

use super::reserve::card_of_object;
use super::{Account, Denied, JudgedCall, Why};

/// Of what is mapped, one byte of page tables for so many: an entry of 8 bytes for 4 KiB.
const MAPPED_FOR_A_BYTE: u128 = 4096 / 8;
/// So many quotas may be mapped before page tables count. Programs at the brink of their quota that map some memory twice are none that
/// take page tables: `cgpu-burn churn` was refused with 1.
const FREE_QUOTAS: u128 = 4;
/// Mappings by MAP_MEMORY_DMA that a container may have: as many as by nvidia-uvm.
pub(crate) const MOST_DMA_MAPPINGS: usize = 1 << 18;

/// What is mapped on the cards of one container, as far as it counts.
#[derive(Debug, Default)]
pub(crate) struct PageTables(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_dma: HashMap<Place, DmaMapping>,
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

/// Bytes of a card's address spaces. Sums are wider than what they add.
#[derive(Debug, Default)]
struct Mapped {
    by_dma: u128,
    /// By nvidia-uvm: no less than there is. `None`: not counted yet.
    by_uvm: Option<u128>,
    /// Of calls that the driver has.
    under_way: u128,
}

/// A mapping that the driver makes at this moment. Dropped at the call's end.
#[derive(Debug)]
pub(crate) struct UnderWay<'a> {
    tables: &'a PageTables,
    cards: Vec<CardSlot>,
    bytes: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut inner = lock(&self.tables.0);
        for card in &self.cards {
            if let Some(mapped) = inner.cards.get_mut(card) {
                mapped.under_way = mapped.under_way.saturating_sub(self.bytes.into());
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
    /// Whether so many more bytes of memory, and so many of mappings, find room for themselves and for page tables.
    fn check(
        &self,
        state: &State,
        card: CardSlot,
        (memory, mapping): (u64, u64),
    ) -> Result<(), Refusal> {
        let Some((quota_bytes, used)) = state.ledger.quota_and_use(card) else {
            return Ok(());
        };
        let mapped = self.cards.get(&card).map_or(0, Mapped::all);
        let beyond = mapped
            .saturating_add(mapping.into())
            .saturating_sub(FREE_QUOTAS.saturating_mul(quota_bytes.into()));
        let tables = beyond.div_ceil(MAPPED_FOR_A_BYTE);
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
        bytes: (u64, u64),
    ) -> Result<(), Refusal> {
        if self.cards.get(&card).is_some_and(|it| it.by_uvm.is_some())
            && self.check(state, card, bytes).is_ok()
        {
            return Ok(());
        }
        self.forget_what_is_gone(state);
        let by_uvm = Some(state.ledger.mapped_bytes(card));
        self.cards.entry(card).or_default().by_uvm = by_uvm;
        self.check(state, card, bytes)
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
        for mapped in self.cards.values_mut() {
            mapped.by_dma = 0;
        }
        for mapping in self.by_dma.values() {
            let mapped = self.cards.entry(mapping.card).or_default();
            mapped.by_dma = mapped.by_dma.saturating_add(mapping.bytes.into());
        }
    }

    /// What was there is there no more.
    fn insert(&mut self, place: Place, mapping: DmaMapping) {
        self.remove(place);
        self.by_dma.insert(place, mapping);
        let mapped = self.cards.entry(mapping.card).or_default();
        mapped.by_dma = mapped.by_dma.saturating_add(mapping.bytes.into());
    }

    fn remove(&mut self, place: Place) {
        if let Some(mapping) = self.by_dma.remove(&place)
            && let Some(mapped) = self.cards.get_mut(&mapping.card)
        {
            mapped.by_dma = mapped.by_dma.saturating_sub(mapping.bytes.into());
        }
    }
}

impl Account {
    /// Whether memory of a card fits beside the page tables of what is mapped there.
    pub(crate) fn fits_beside_page_tables(
        &self,
        state: &State,
        card: CardSlot,
        bytes: u64,
    ) -> Result<(), Refusal> {
        lock(&self.page_tables.0).check_anew(state, card, (bytes, 0))
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
        let (cards, bytes): (Vec<CardSlot>, u64) = if let Effect::MapDma {
            client,
            device,
            bytes,
            ..
        } = call.effect
        {
            let card = card_of_object(state, (*client, *device));
            (card.into_iter().collect(), *bytes)
        } else if let Effect::MapExternal { cards, length, .. } = call.effect {
            let cards = cards.iter().filter_map(|uuid| self.slot_of_uuid(uuid));
            (cards.collect(), *length)
        } else {
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
                .check_anew(state, *card, (0, bytes))
                .map_err(|refusal| self.denied_by_ledger(call, refusal))?;
        }
        for card in &cards {
            let mapped = inner.cards.entry(*card).or_default();
            mapped.under_way = mapped.under_way.saturating_add(bytes.into());
        }
        Ok(Some(UnderWay {
            tables: &self.page_tables,
            cards,
            bytes,
        }))
    }

    /// What the driver has mapped or unmapped with success; `answer` is the struct that it left.
    pub(crate) fn end_mapping(
        &self,
        state: &State,
        effect: &Effect,
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
                inner.insert((*client, *dma, address), mapping);
            }
        } else if let Effect::UnmapDma {
            client,
            dma,
            address,
            bytes,
        } = effect
        {
            let place = (*client, *dma, *address);
            let mapping = inner.by_dma.get(&place);
            // Of a part the rest stays counted, and the part with it.
            if mapping.is_some_and(|mapping| *bytes == 0 || *bytes >= mapping.bytes) {
                inner.remove(place);
            }
        } else if let Effect::MapExternal { cards, length, .. } = effect {
            for card in cards.iter().filter_map(|uuid| self.slot_of_uuid(uuid)) {
                let mapped = inner.cards.entry(card).or_default();
                if let Some(by_uvm) = &mut mapped.by_uvm {
                    *by_uvm = by_uvm.saturating_add(u128::from(*length));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use driver::{FileId, ImplicitBytes};
    use journal::state::Numbering;
    use ledger::{Actual, Applied, Ledger, ObjectKind, Operation, Place, ProcessId};
    use nvabi::bytes::put_u64;
    use nvabi::escape;
    use verdict::Op;

    use super::*;
    use crate::account::Origin;

    const CLIENT: u32 = 0xc1d0_0001;
    const DEVICE: u32 = 2;
    const DMA: u32 = 3;
    const MEMORY: u32 = 4;
    const RELEASE: Release = Release::R570;

    fn map_dma(bytes: u64) -> Effect {
        Effect::MapDma {
            client: CLIENT,
            device: DEVICE,
            dma: DMA,
            memory: MEMORY,
            offset: 0,
            bytes,
        }
    }

    /// A client with a device on the one card, and what maps and is mapped there.
    fn state() -> State {
        let ledger = Ledger::new(&[(CardSlot(0), 1 << 30)]);
        let mut state = State::new(ledger, Numbering::default());
        let (file, process) = (ledger::FileId(1), ProcessId(7));
        let client = ClientHandle(CLIENT);
        let seen = Operation::SeeClient {
            file,
            client,
            process,
        };
        state.ledger.apply(seen).unwrap();
        for (handle, parent, card) in [
            (DEVICE, CLIENT, Some(CardSlot(0))),
            (DMA, DEVICE, None),
            (MEMORY, DEVICE, None),
        ] {
            let kind = ObjectKind::Other;
            let reserve = Operation::Reserve { kind, demand: None };
            let Applied::Reserved(reservation) = state.ledger.apply(reserve).unwrap() else {
                panic!("nothing is reserved");
            };
            let place = Place {
                file,
                client,
                parent: ObjectHandle(parent),
                handle: ObjectHandle(handle),
                process,
            };
            let add = Operation::AddObject {
                place,
                class: 0,
                kind,
                card,
                depends_on: Vec::new(),
                reservation,
                actual: Actual::AsReserved,
            };
            state.ledger.apply(add).unwrap();
        }
        state
    }

    fn begin<'a>(
        account: &'a Account,
        state: &State,
        effect: &Effect,
    ) -> Result<Option<UnderWay<'a>>, Why> {
        let call = JudgedCall {
            op: &Op::Escape(&escape::NV_ESC_RM_MAP_MEMORY_DMA),
            effect,
            segments: &[],
            origin: Origin {
                file: FileId(1),
                process: 7,
                transfer_file: None,
            },
        };
        let begun = account.begin_mapping(state, &call);
        begun.map_err(|denied| denied.why)
    }

    fn account() -> Account {
        let implicit = ImplicitBytes::default();
        Account::new(RELEASE, Vec::new(), &[], implicit)
    }

    #[test]
    fn mappings_are_limited_and_those_of_what_is_gone_are_not_counted() {
        let (account, mut state) = (account(), state());
        let effect = map_dma(4096);
        let at = usize::try_from(nvos46::DMA_OFFSET.of(RELEASE)).unwrap();
        let mut answer = vec![0; 64];
        let map = |state: &State, answer: &mut Vec<u8>, number: u64| {
            put_u64(answer, at, number << 12);
            account.end_mapping(state, &effect, answer, RELEASE);
        };
        for number in 0..MOST_DMA_MAPPINGS {
            map(&state, &mut answer, number.try_into().unwrap());
        }
        let refused = begin(&account, &state, &effect).unwrap_err();
        assert_eq!(refused, Why::TooManyMappings);
        let free = Operation::Free {
            client: ClientHandle(CLIENT),
            object: ObjectHandle(MEMORY),
        };
        state.ledger.apply(free).unwrap();
        drop(begin(&account, &state, &effect).unwrap());
        assert_eq!(lock(&account.page_tables.0).by_dma.len(), 0);
    }

    #[test]
    fn what_is_under_way_counts_until_its_end() {
        let (account, state) = (account(), state());
        // Page tables of 384 GiB are 768 MiB, of twice as much more than there is.
        let effect = map_dma(384 << 30);
        let under_way = begin(&account, &state, &effect).unwrap();
        begin(&account, &state, &effect).unwrap_err();
        drop(under_way);
        drop(begin(&account, &state, &effect).unwrap());
    }
}
