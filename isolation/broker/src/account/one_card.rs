//! What a call maps, and what a channel has of memory, is on the card that it is used on, and within what there is.
//!
//! RM takes the address of memory and the card that it is for from different handles, and compares them nowhere: memory of one card, mapped on
//! another, is whatever that one has at the same address (`dmaAllocMapping_GM107`, virt_mem_allocator_gm107.c; `memMap_IMPL`, mapping_cpu.c;
//! `kchannelCreateUserdMemDesc_GV100`, kernel_channel_gv100.c; 535 to 595). Nor does it compare where in its memory a channel's USERD begins with
//! how large that is, up to 580.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use journal::Change;
use journal::state::State;
use ledger::{AllocationId, CardSlot, ClientHandle, ObjectHandle, ObjectKind, PinFor};
use nvabi::bytes::{u32_at, u64_at};
use nvabi::class::{self, Kind, Plain};
use nvabi::layout::{
    channel_params, context_dma, memory_params, nvos02, nvos21, nvos32, nvos33, nvos46,
};
use nvabi::{escape, status};
use sys::sync::lock;
use verdict::{Effect, Op};

use super::reserve::card_of_object;
use super::translation::dependencies;
use super::{Account, Denied, JudgedCall, Why, names};

/// `hObjectError` and `hObjectEccError` of a channel.
const OF_CHANNEL: [usize; 2] = [
    channel_params::H_OBJECT_ERROR,
    channel_params::H_OBJECT_ECC_ERROR,
];
/// The same of a group.
const OF_GROUP: [usize; 2] = [0, 4];
/// As many are remembered before those that are gone are looked for.
const MANY: usize = 4096;

/// How memory and context DMAs were made, where that counts later and the ledger has it not. A successor begins without any.
#[derive(Debug, Default)]
pub(crate) struct Made(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Of memory that is charged with more than is its own: bytes that are. Its other handles are of the same.
    own_bytes: BTreeMap<AllocationId, u64>,
    /// The memory that a context DMA is over. None can be duplicated.
    over: BTreeMap<(u32, u32), u32>,
    /// How many there may be before the next look.
    most: usize,
}

impl Inner {
    /// What is gone is forgotten, now and then.
    fn bound(&mut self, state: &State) {
        let len = |it: &Self| it.own_bytes.len().saturating_add(it.over.len());
        if len(self) <= self.most.max(MANY) {
            return;
        }
        let ledger = &state.ledger;
        self.own_bytes
            .retain(|id, _| ledger.allocation(*id).is_some());
        self.over.retain(|(client, object), _| {
            let name = (ClientHandle(*client), ObjectHandle(*object));
            ledger.object(name.0, name.1).is_some()
        });
        self.most = len(self).saturating_mul(2);
    }
}

impl Made {
    fn put_own(&self, state: &State, memory: AllocationId, bytes: u64) {
        let mut inner = lock(&self.0);
        inner.own_bytes.insert(memory, bytes);
        inner.bound(state);
    }

    fn put_over(&self, state: &State, object: (u32, u32), memory: u32) {
        let mut inner = lock(&self.0);
        inner.over.insert(object, memory);
        inner.bound(state);
    }
}

/// What a call that makes a channel or a group names for it.
struct Named {
    /// Memory for the USERD, and where in it.
    userd: Vec<(u32, u64)>,
    /// Where errors are written.
    notifiers: Vec<u32>,
}

impl Named {
    fn of(op: &Op, views: &[&[u8]]) -> Option<Self> {
        let kind = op.class(views.first()?).and_then(class::of)?.kind;
        let params = views.get(1)?;
        let words = |at: &[usize]| {
            let words = at.iter().filter_map(|at| u32_at(params, *at));
            words.filter(|handle| *handle != 0).collect()
        };
        if kind == Kind::ChannelGroup {
            let (userd, notifiers) = (Vec::new(), words(&OF_GROUP));
            return Some(Self { userd, notifiers });
        }
        if kind != Kind::Channel {
            return None;
        }
        let places = 0..channel_params::USERD_MEMORIES;
        let userd = places.filter_map(|place| {
            let (handle, offset) = (place.saturating_mul(4), place.saturating_mul(8));
            let handle = channel_params::H_USERD_MEMORY.saturating_add(handle);
            let offset = channel_params::USERD_OFFSET.saturating_add(offset);
            let handle = u32_at(params, handle).filter(|handle| *handle != 0)?;
            Some((handle, u64_at(params, offset)?))
        });
        Some(Self {
            userd: userd.collect(),
            notifiers: words(&OF_CHANNEL),
        })
    }
}

impl Account {
    /// Looks at what a call maps or gives a channel.
    ///
    /// # Errors
    /// [`Why::OtherCard`], [`Why::UserdBeyond`], [`Why::NotANotifier`].
    pub(super) fn check_cards(&self, state: &State, call: &JudgedCall<'_>) -> Result<(), Denied> {
        let views = call.views();
        let arg = views.first().copied().unwrap_or_default();
        if let Effect::MapDma {
            client,
            device,
            dma,
            memory,
            ..
        } = *call.effect
        {
            let on = card_of_object(state, (client, device));
            let flags = u32_at(arg, nvos46::FLAGS).unwrap_or_default();
            let is_peer = flags & nvos46::P2P_MASK == nvos46::P2P_NOSLI;
            let is_elsewhere = is_on_another_card(state, (client, memory), on);
            // RM takes the peer from the device that a handle is below, and the address from the memory.
            let is_peer = is_peer && is_below_its_card(state, (client, memory));
            return self
                .on_card(
                    call,
                    (client, dma),
                    on.is_some() && card_of_object(state, (client, dma)) == on,
                )
                .and_then(|()| self.on_card(call, (client, memory), is_peer || !is_elsewhere));
        }
        if call.op.escape() == Some(escape::Id::MapMemory) {
            let word = |at| u32_at(arg, at).unwrap_or_default();
            let client = word(nvos33::H_CLIENT);
            let on = card_of_object(state, (client, word(nvos33::H_DEVICE)));
            let memory = (client, word(nvos33::H_MEMORY));
            return self.on_card(call, memory, !is_on_another_card(state, memory, on));
        }
        self.check_space(state, call)?;
        let Some(named) = Named::of(call.op, &views) else {
            return Ok(());
        };
        let word = |at| u32_at(arg, at).unwrap_or_default();
        let client = word(nvos21::H_ROOT);
        let on = card_of_object(state, (client, word(nvos21::H_PARENT)));
        for (memory, offset) in named.userd {
            let memory = (client, memory);
            let end = offset.checked_add(channel_params::USERD_BYTES);
            let has = self.own_bytes(state, memory);
            if end.zip(has).is_none_or(|(end, has)| end > has) {
                let why = Why::UserdBeyond {
                    client,
                    memory: memory.1,
                    offset,
                };
                return Err(self.denied(call, status::NV_ERR_INVALID_ARGUMENT, why));
            }
            self.on_card(call, memory, !is_on_another_card(state, memory, on))?;
        }
        for notifier in named.notifiers {
            let object = (client, notifier);
            if !takes_errors(state, object) {
                let why = Why::NotANotifier { client, notifier };
                return Err(self.denied(call, status::NV_ERR_INVALID_ARGUMENT, why));
            }
            for object in [Some(object), self.behind(object)].into_iter().flatten() {
                self.on_card(call, object, !is_on_another_card(state, object, on))?;
            }
        }
        Ok(())
    }

    /// Virtual memory, a group, a channel and a context share are on the card of the address space that they name, and a channel of its context
    /// share's: RM takes that from its own parent, and compares it with no device (`vaspaceGetByHandleOrDeviceDefault_IMPL`, vaspace_api.c).
    /// Where it then maps for the other card there are no page tables (`dmaUpdateVASpace_GF100`, virt_mem_allocator_gm107.c).
    fn check_space(&self, state: &State, call: &JudgedCall<'_>) -> Result<(), Denied> {
        let views = call.views();
        let arg = views.first().copied().unwrap_or_default();
        let Some(class) = call.op.class(arg).and_then(class::of) else {
            return Ok(());
        };
        let is_heap = call.op.escape() == Some(escape::Id::VidHeapControl);
        let parent_at = match is_heap {
            true => nvos32::H_PARENT,
            false => nvos21::H_PARENT,
        };
        let client = u32_at(arg, nvos21::H_ROOT).unwrap_or_default();
        let parent = u32_at(arg, parent_at).unwrap_or_default();
        let on = card_of_object(state, (client, parent));
        let share = (class.kind == Kind::Channel)
            .then(|| u32_at(views.get(1)?, channel_params::H_CONTEXT_SHARE))
            .flatten();
        let named = dependencies(call.op, class, call.segments);
        for ObjectHandle(object) in named.into_iter().chain(share.map(ObjectHandle)) {
            let of = card_of_object(state, (client, object));
            self.on_card(call, (client, object), of.is_none() || of == on)?;
        }
        Ok(())
    }

    fn on_card(
        &self,
        call: &JudgedCall<'_>,
        (client, object): (u32, u32),
        is_there: bool,
    ) -> Result<(), Denied> {
        if is_there {
            return Ok(());
        }
        let why = Why::OtherCard { client, object };
        Err(self.denied(call, status::NV_ERR_INVALID_DEVICE, why))
    }

    /// Bytes of memory that are its own; `None` of what is no memory, or is address space.
    fn own_bytes(&self, state: &State, memory: (u32, u32)) -> Option<u64> {
        let name = (ClientHandle(memory.0), ObjectHandle(memory.1));
        let object = state.ledger.object(name.0, name.1)?;
        if object.kind != ObjectKind::Memory || object.allocation.is_none() {
            return None;
        }
        // It is charged with a part of what is registered, and what is registered is the word of a struct that the kernel reads anew.
        if object.class == class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR {
            return None;
        }
        let charged = names::most_mapped(state, object);
        let own = lock(&self.made.0)
            .own_bytes
            .get(&object.allocation?)
            .copied();
        Some(own.map_or(charged, |own| own.min(charged)))
    }

    /// The memory that a context DMA is over.
    fn behind(&self, object: (u32, u32)) -> Option<(u32, u32)> {
        let over = lock(&self.made.0).over.get(&object).copied();
        over.map(|memory| (object.0, memory))
    }

    /// Remembers what the ledger has not of an object that the driver has made; the call has its answer's blocks.
    pub(super) fn remember(&self, state: &State, call: &JudgedCall<'_>) {
        let Some(made) = call.new_handle() else {
            return;
        };
        let views = call.views();
        let params = views.get(1).copied().unwrap_or_default();
        if let Effect::Memory(memory) = call.effect {
            let name = (ClientHandle(memory.client), ObjectHandle(made));
            let id = state
                .ledger
                .object(name.0, name.1)
                .and_then(|it| it.allocation);
            let charged = id.and_then(|id| Some((id, state.ledger.allocation(id)?.bytes)));
            if let Some(((id, charged), own)) = charged.zip(own_by_answer(call))
                && own < charged
            {
                self.made.put_own(state, id, own);
            }
        } else if let Effect::Object { class, client, .. } = call.effect
            && class.kind == Kind::Plain(Plain::ContextDma)
            && let Some(memory) = u32_at(params, context_dma::H_MEMORY)
        {
            self.made.put_over(state, (*client, made), memory);
        }
    }

    /// How another container has made what is imported from it is not known here.
    pub(super) fn remember_import(&self, state: &State, file: ledger::FileId, index: u32) {
        if let Some(memory) = state.ledger.exported_allocation(file, index) {
            self.made.put_own(state, memory, 0);
        }
    }

    /// Keeps what a channel or a group that the driver has made names, as long as it is there; the call has the blocks that it came with. The
    /// client's objects are in order ([`crate::order`]): what it names is still what RM has looked up.
    ///
    /// - *USERD*: RM keeps a reference of its own (`memdescCreateSubMem`): memory of the host's that is freed stays pinned
    ///   (`memdescFree`, `bDeferredFree`), so it stays charged. A card's is freed at once (`vidmemPmaFree`), and may be another tenant's when
    ///   the engine writes its state there: it may not be freed.
    /// - *Notifiers*: RM has no reference (`kchannelGetNotifierInfo`), and kernel and firmware write there. They may not be freed, nor the
    ///   memory that a context DMA is over, which takes that with it.
    pub(crate) fn hold_named(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        channel: (u32, u32),
    ) {
        let Some(named) = Named::of(call.op, &call.views()) else {
            return;
        };
        let client = channel.0;
        let notifiers = named
            .notifiers
            .into_iter()
            .map(|notifier| (client, notifier));
        let notifiers: Vec<(u32, u32)> = notifiers.collect();
        let behind = notifiers.iter().filter_map(|it| self.behind(*it));
        let mut kept: BTreeSet<u32> = notifiers
            .iter()
            .copied()
            .chain(behind)
            .map(|it| it.1)
            .collect();
        let memories: BTreeSet<u32> = named.userd.into_iter().map(|(memory, _)| memory).collect();
        let mut pins = Vec::new();
        for memory in memories {
            let name = (ClientHandle(client), ObjectHandle(memory));
            match change.pin(name, PinFor::Map { cards: 0 }) {
                Ok(pin) => pins.push(pin),
                Err(why) => {
                    tracing::error!(%why, memory, "what a channel names for its USERD is not held");
                }
            }
            if card_of_object(change, (client, memory)) != Some(CardSlot::HOST) {
                kept.insert(memory);
            }
        }
        let kept = kept.into_iter().map(ObjectHandle).collect();
        let channel = (ClientHandle(client), ObjectHandle(channel.1));
        change.hold_for_channel(channel, kept, pins);
    }
}

/// How large the memory is that a call has made: the driver writes it back, and charges may be rounded further, since the host's pages may be
/// larger than RM's and memory at a place of the caller's has neighbours.
fn own_by_answer(call: &JudgedCall<'_>) -> Option<u64> {
    let views = call.views();
    let (arg, params) = (views.first()?, views.get(1));
    match call.op.escape() {
        Some(escape::Id::VidHeapControl) => u64_at(arg, nvos32::ALLOC_SIZE),
        Some(escape::Id::AllocMemory) => u64_at(arg, nvos02::LIMIT)?.checked_add(1),
        Some(_) | None => u64_at(params?, memory_params::SIZE),
    }
}

/// Whether memory, or what is like it, is on another card than this. The host's is on every one.
fn is_on_another_card(state: &State, object: (u32, u32), on: Option<CardSlot>) -> bool {
    let of = card_of_object(state, object).filter(|of| *of != CardSlot::HOST);
    of.is_some() && of != on
}

/// Whether a handle of memory is below a device of the card that the memory is on: a duplicate may be below another's.
fn is_below_its_card(state: &State, (client, memory): (u32, u32)) -> bool {
    let ledger = &state.ledger;
    let object = ledger.object(ClientHandle(client), ObjectHandle(memory));
    let above = object.and_then(|object| object.parent);
    let above = above.and_then(|above| ledger.card_of(ClientHandle(client), above));
    above.is_some() && above == card_of_object(state, (client, memory))
}

/// Whether errors may be written there: memory, or a context DMA, which is made over nothing else.
fn takes_errors(state: &State, (client, object): (u32, u32)) -> bool {
    let object = state
        .ledger
        .object(ClientHandle(client), ObjectHandle(object));
    object.is_some_and(|it| names::is_memory(it) || it.class == class::NV01_CONTEXT_DMA)
}

#[cfg(test)]
mod tests;
