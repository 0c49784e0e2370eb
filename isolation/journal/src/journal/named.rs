//! What channels and their groups have of their client's objects, as long as they are there. The log does not have it: a successor begins without
//! any.

use std::collections::{BTreeMap, BTreeSet};

use ledger::{ClientHandle, Ledger, ObjectHandle, PinToken};

/// Client and handle.
type Name = (ClientHandle, ObjectHandle);

/// Objects above another: more than that are no driver's.
const MOST_ABOVE: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Named {
    by_channel: BTreeMap<Name, OfChannel>,
    /// What may not be freed: the channels and groups.
    by_object: BTreeMap<Name, BTreeSet<ObjectHandle>>,
}

#[derive(Debug)]
struct OfChannel {
    pins: Vec<PinToken>,
    kept: BTreeSet<ObjectHandle>,
}

impl Named {
    pub(super) fn hold(
        &mut self,
        (client, channel): Name,
        kept: BTreeSet<ObjectHandle>,
        pins: Vec<PinToken>,
    ) {
        for object in &kept {
            let channels = self.by_object.entry((client, *object)).or_default();
            channels.insert(channel);
        }
        let of_channel = OfChannel { pins, kept };
        self.by_channel.insert((client, channel), of_channel);
    }

    /// A channel or a group is gone: the references that end with it.
    pub(super) fn end(&mut self, (client, channel): Name) -> Vec<PinToken> {
        let Some(of_channel) = self.by_channel.remove(&(client, channel)) else {
            return Vec::new();
        };
        for object in of_channel.kept {
            if let Some(channels) = self.by_object.get_mut(&(client, object)) {
                channels.remove(&channel);
                if channels.is_empty() {
                    self.by_object.remove(&(client, object));
                }
            }
        }
        of_channel.pins
    }

    /// A channel or a group that stays when an object is freed, and what of its own goes with that.
    pub(super) fn outlives(&self, ledger: &Ledger, (client, object): Name) -> Option<ObjectHandle> {
        let is_below = |handle| {
            let parent = |handle: &ObjectHandle| ledger.object(client, *handle)?.parent;
            let mut above = std::iter::successors(Some(handle), parent).take(MOST_ABOVE);
            above.any(|above| above == object)
        };
        let of_client = (client, ObjectHandle(0))..=(client, ObjectHandle(u32::MAX));
        let mut freed = self
            .by_object
            .range(of_client)
            .filter(|((_, kept), _)| is_below(*kept));
        freed.find_map(|(_, channels)| {
            let mut channels = channels.iter().copied();
            channels.find(|channel| !is_below(*channel))
        })
    }
}
