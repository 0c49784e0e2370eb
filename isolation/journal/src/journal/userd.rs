//! What channels name for their USERD, as long as they are there. The log does not have it: a successor begins without any.

use std::collections::{BTreeMap, BTreeSet};

use ledger::{CardSlot, ClientHandle, Ledger, ObjectHandle, ObjectKind, PinToken};

/// Client and handle.
type Name = (ClientHandle, ObjectHandle);

/// Objects above memory: a subdevice, a device. More than that are no driver's.
const MOST_ABOVE: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Userd {
    by_channel: BTreeMap<Name, Named>,
    /// Of a card's memory: the channels.
    by_memory: BTreeMap<Name, BTreeSet<ObjectHandle>>,
}

/// What a channel has named.
#[derive(Debug)]
struct Named {
    pins: Vec<PinToken>,
    memories: BTreeSet<ObjectHandle>,
}

impl Userd {
    pub(super) fn hold(
        &mut self,
        ledger: &Ledger,
        (client, channel): Name,
        memories: BTreeSet<ObjectHandle>,
        pins: Vec<PinToken>,
    ) {
        let is_of_a_card = |memory: &ObjectHandle| {
            let allocation = ledger.object(client, *memory)?.allocation?;
            let allocation = ledger.allocation(allocation)?;
            Some(allocation.card != CardSlot::HOST)
        };
        for memory in &memories {
            if is_of_a_card(memory) == Some(true) {
                let channels = self.by_memory.entry((client, *memory)).or_default();
                channels.insert(channel);
            }
        }
        let named = Named { pins, memories };
        self.by_channel.insert((client, channel), named);
    }

    /// A channel is gone: the references that end with it.
    pub(super) fn end(&mut self, (client, channel): Name) -> Vec<PinToken> {
        let Some(named) = self.by_channel.remove(&(client, channel)) else {
            return Vec::new();
        };
        for memory in named.memories {
            if let Some(channels) = self.by_memory.get_mut(&(client, memory)) {
                channels.remove(&channel);
                if channels.is_empty() {
                    self.by_memory.remove(&(client, memory));
                }
            }
        }
        named.pins
    }

    /// A channel that stays when an object is freed, and whose USERD on a card is freed with that.
    pub(super) fn outlives(&self, ledger: &Ledger, (client, object): Name) -> Option<ObjectHandle> {
        if let Some(channels) = self.by_memory.get(&(client, object)) {
            return channels.first().copied();
        }
        let kind = ledger.object(client, object)?.kind;
        if !matches!(kind, ObjectKind::Device | ObjectKind::Subdevice) {
            return None;
        }
        let is_below = |handle| {
            let parent = |handle: &ObjectHandle| ledger.object(client, *handle)?.parent;
            let mut above = std::iter::successors(Some(handle), parent).take(MOST_ABOVE);
            above.any(|above| above == object)
        };
        let of_client = (client, ObjectHandle(0))..=(client, ObjectHandle(u32::MAX));
        let mut freed = self
            .by_memory
            .range(of_client)
            .filter(|((_, memory), _)| is_below(*memory));
        freed.find_map(|(_, channels)| {
            let mut channels = channels.iter().copied();
            channels.find(|channel| !is_below(*channel))
        })
    }
}
