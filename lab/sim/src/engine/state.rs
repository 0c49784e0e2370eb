//! Groups and channels of a card, and what the runlists are told of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use runlist::{ChannelId, Costs, Enable, GroupId, Outcome, Runlist};

use super::{Kind, Settles, Sink, Table};
use crate::architecture::Unit;

/// A group of a card; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupKey(pub(super) u64);

/// A channel of a card; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChannelKey(pub(super) u64);

#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) session: Arc<str>,
    pub(super) kind: Kind,
    pub(super) id: GroupId,
    pub(super) scheduled: bool,
    pub(super) channels: Vec<ChannelKey>,
}

#[derive(Debug)]
pub(super) struct ChannelState {
    pub(super) group: GroupKey,
    pub(super) id: ChannelId,
    /// By itself, without its group.
    pub(super) scheduled: bool,
    /// By FIFO_DISABLE_CHANNELS.
    pub(super) disabled: bool,
    pub(super) sink: Weak<dyn Sink>,
}

/// Work that has run to its end.
#[derive(Debug)]
pub(super) struct Ended {
    sink: Arc<dyn Sink>,
    tag: u64,
    at_ns: u64,
}

impl Ended {
    /// Not under the lock: a sink may be the last owner of a channel, which takes itself off the card.
    pub(super) fn tell(&self) {
        self.sink.ended(self.tag, self.at_ns);
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) compute: Runlist,
    pub(super) copies: Runlist,
    /// Those that a group was ever on.
    falcons: BTreeMap<(Unit, u32), Runlist>,
    costs: Costs,
    pub(super) groups: Table<GroupKey, GroupState>,
    pub(super) channels: Table<ChannelKey, ChannelState>,
    pub(super) by_id: Table<(Kind, ChannelId), ChannelKey>,
    /// Compute time of groups that are gone, ns, by session.
    pub(super) past_ns: BTreeMap<Arc<str>, u64>,
    pub(super) lost: bool,
    pub(super) stopped: bool,
    pub(super) thread: super::thread::Thread,
    keys: u64,
}

fn list_of(costs: Costs, now_ns: u64) -> Runlist {
    let mut list = Runlist::new(costs);
    list.advance(now_ns);
    list
}

impl State {
    pub(super) fn new(costs: Costs, now_ns: u64) -> Self {
        Self {
            compute: list_of(costs, now_ns),
            copies: list_of(costs, now_ns),
            falcons: BTreeMap::new(),
            costs,
            groups: Table::new(),
            channels: Table::new(),
            by_id: Table::new(),
            past_ns: BTreeMap::new(),
            lost: false,
            stopped: false,
            thread: super::thread::Thread::NotStarted,
            keys: 0,
        }
    }

    pub(super) fn list(&mut self, kind: Kind) -> &mut Runlist {
        match kind {
            Kind::Compute => &mut self.compute,
            Kind::Copies => &mut self.copies,
            Kind::Falcon(unit, instance) => {
                let now_ns = self.compute.now_ns();
                let costs = self.costs;
                self.falcons
                    .entry((unit, instance))
                    .or_insert_with(|| list_of(costs, now_ns))
            }
        }
    }

    pub(super) fn next_key(&mut self) -> u64 {
        self.keys += 1;
        self.keys
    }

    /// Lets time pass; the card's time, which never falls.
    pub(super) fn pass(&mut self, now_ns: u64) -> u64 {
        let now_ns = now_ns.max(self.compute.now_ns()).max(self.copies.now_ns());
        self.compute.advance(now_ns);
        self.copies.advance(now_ns);
        for list in self.falcons.values_mut() {
            list.advance(now_ns);
        }
        now_ns
    }

    pub(super) fn next_event(&self) -> Option<u64> {
        [&self.compute, &self.copies]
            .into_iter()
            .chain(self.falcons.values())
            .filter_map(Runlist::next_event)
            .min()
    }

    pub(super) fn place(&self, key: ChannelKey) -> Option<(Kind, ChannelId)> {
        let channel = self.channels.get(&key)?;
        let group = self.groups.get(&channel.group)?;
        Some((group.kind, channel.id))
    }

    /// Tells the runlist whether a channel runs; `off` says how one that does not is taken off.
    pub(super) fn apply(&mut self, now_ns: u64, key: ChannelKey, off: Enable) -> Settles {
        let Some((kind, id)) = self.place(key) else {
            return Settles::At(now_ns);
        };
        let enable = if self.runs(key) { Enable::On } else { off };
        match self.list(kind).set_enabled(now_ns, id, enable) {
            Ok(Some(at_ns)) => Settles::At(at_ns),
            Ok(None) => Settles::Unknown,
            // A channel that is in the table is on its list.
            Err(_gone) => Settles::At(now_ns),
        }
    }

    pub(super) fn apply_all(&mut self, now_ns: u64, keys: &[ChannelKey], off: Enable) -> Settles {
        keys.iter().map(|key| self.apply(now_ns, *key, off)).fold(
            Settles::At(now_ns),
            |all, one| match (all, one) {
                (Settles::At(all), Settles::At(one)) => Settles::At(all.max(one)),
                _one_unknown => Settles::Unknown,
            },
        )
    }

    fn runs(&self, key: ChannelKey) -> bool {
        let Some(channel) = self.channels.get(&key) else {
            return false;
        };
        let group = self.groups.get(&channel.group);
        let scheduled = channel.scheduled || group.is_some_and(|group| group.scheduled);
        scheduled && !channel.disabled && !self.lost
    }

    pub(super) fn remove_channel(&mut self, now_ns: u64, key: ChannelKey) {
        let Some((kind, id)) = self.place(key) else {
            return;
        };
        let removed = self.list(kind).remove_channel(now_ns, id);
        debug_assert!(removed.is_ok(), "what is in the table is on its list");
        self.by_id.remove(&(kind, id));
        if let Some(channel) = self.channels.remove(&key)
            && let Some(group) = self.groups.get_mut(&channel.group)
        {
            group.channels.retain(|other| *other != key);
        }
    }

    /// Puts another channel of the runlist's in the place of a channel's own.
    pub(super) fn clear_channel(&mut self, now_ns: u64, key: ChannelKey) {
        let Some((kind, id)) = self.place(key) else {
            return;
        };
        let Some(group) = self
            .channels
            .get(&key)
            .and_then(|channel| self.groups.get(&channel.group))
            .map(|group| group.id)
        else {
            return;
        };
        let removed = self.list(kind).remove_channel(now_ns, id);
        debug_assert!(removed.is_ok(), "what is in the table is on its list");
        self.by_id.remove(&(kind, id));
        if let Ok(id) = self.list(kind).add_channel(group) {
            self.by_id.insert((kind, id), key);
            if let Some(channel) = self.channels.get_mut(&key) {
                channel.id = id;
            }
            self.apply(now_ns, key, Enable::OffNow);
        }
    }

    pub(super) fn remove_group(&mut self, now_ns: u64, key: GroupKey) {
        let Some(group) = self.groups.get(&key) else {
            return;
        };
        for channel in group.channels.clone() {
            self.remove_channel(now_ns, channel);
        }
        let Some(GroupState {
            session, kind, id, ..
        }) = self.groups.remove(&key)
        else {
            return;
        };
        if kind == Kind::Compute {
            let used_ns = self.compute.used_ns(id).unwrap_or(0);
            let past_ns = self.past_ns.entry(session).or_default();
            *past_ns = past_ns.saturating_add(used_ns);
        }
        let removed = self.list(kind).remove_group(now_ns, id);
        debug_assert!(removed.is_ok(), "what is in the table is on its list");
    }

    /// What has run to its end since the last call. What was dropped is nobody's any more.
    pub(super) fn ended(&mut self) -> Vec<Ended> {
        let mut all = Vec::new();
        let falcons = self.falcons.keys();
        let falcons = falcons.map(|(unit, instance)| Kind::Falcon(*unit, *instance));
        let kinds: Vec<Kind> = [Kind::Compute, Kind::Copies]
            .into_iter()
            .chain(falcons)
            .collect();
        for kind in kinds {
            while let Some(finished) = self.list(kind).pop_finished() {
                let channel = self.by_id.get(&(kind, finished.channel));
                let sink = channel
                    .and_then(|key| self.channels.get(key))
                    .filter(|_| finished.outcome == Outcome::Done)
                    .and_then(|channel| channel.sink.upgrade());
                all.extend(sink.map(|sink| Ended {
                    sink,
                    tag: finished.tag,
                    at_ns: finished.at_ns,
                }));
            }
        }
        all
    }
}
