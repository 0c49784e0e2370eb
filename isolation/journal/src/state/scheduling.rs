//! What a container has for the schedulers of its cards: channel groups and channels, learnt from its calls.
//!
//! Part of the [`State`](crate::state::State), and changed by its ops only. What exists, below which parent and on which card is the
//! ledger's to say; here stands what the ledger does not look at. An entry goes with its object.

use std::collections::{BTreeMap, BTreeSet};

use compute::{Channel, Engine, Group, Objects};
use ledger::{CardSlot, ClientHandle, Ledger, ObjectHandle, ObjectKind};
use plan::Terms;
use serde::{Deserialize, Serialize};

/// Client and handle.
pub type Name = (u32, u32);

/// The whole.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    generation: u64,
    objects: BTreeMap<Name, Entry>,
    terms: BTreeMap<CardSlot, Terms>,
    joined_ns: Option<u64>,
}

/// A channel group, or a channel, by one of its handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// The generation that it was made in: the same for all of its handles, and for nothing else.
    origin: u64,
    engine: Engine,
    /// What the tenant believes to have set.
    timeslice_us: Option<u64>,
    turned: Turned,
}

/// What the tenant itself has done last, on its runlist or by enabling and disabling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Turned {
    /// Nothing yet.
    NotYet,
    /// Set it running.
    On,
    /// Stopped it: nobody else sets it running.
    Off,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A new channel group or channel, and the engine that its allocation names.
    Added(Name, Engine),
    /// Another handle for one.
    Duplicated {
        /// The source.
        from: Name,
        /// The new handle.
        to: Name,
    },
    /// A channel has got an object of the compute engine: its group is one of that engine's, whatever was said of it.
    Computes(Name),
    /// The tenant has set a timeslice, as it believes: microseconds.
    Timeslice(Name, u64),
    /// The tenant has stopped these, or set them running, by whatever handles they have.
    Turned(Vec<Name>, Turned),
    /// The container's terms on a card, in the place of its grant's.
    Terms(CardSlot, Terms),
    /// When the container joined those of its cards, ns of CLOCK_MONOTONIC. The first stays.
    Joined(u64),
}

impl Scheduling {
    /// Rises whenever channel groups or channels come, go or become others.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Terms that were given to the container after its grant.
    #[must_use]
    pub fn terms(&self, card: CardSlot) -> Option<Terms> {
        self.terms.get(&card).copied()
    }

    /// When the container joined those of its cards, ns of CLOCK_MONOTONIC.
    #[must_use]
    pub fn joined_ns(&self) -> Option<u64> {
        self.joined_ns
    }

    /// What the tenant believes to have set, microseconds.
    #[must_use]
    pub fn timeslice_us(&self, group: Name) -> Option<u64> {
        self.objects.get(&group)?.timeslice_us
    }

    /// Whether it is a channel group or a channel.
    #[must_use]
    pub fn knows(&self, name: Name) -> bool {
        self.objects.contains_key(&name)
    }

    /// How many channel groups and channels there are, on all cards.
    #[must_use]
    pub fn count(&self) -> usize {
        self.objects.len()
    }

    /// What the tenant itself has done last.
    #[must_use]
    pub fn turned(&self, name: Name) -> Turned {
        self.objects
            .get(&name)
            .map_or(Turned::NotYet, |entry| entry.turned)
    }

    /// Whether a channel group may be on its runlist: the tenant has set it running by any of its handles, or a channel of it.
    #[must_use]
    pub fn runs(&self, ledger: &Ledger, group: Name) -> bool {
        let origin = |name: Name| self.objects.get(&name).map(|entry| entry.origin);
        let of = origin(group);
        let mut on = self
            .objects
            .iter()
            .filter(|(_, entry)| entry.turned == Turned::On);
        of.is_some() && on.any(|(name, _)| origin(self.group_of(ledger, *name)) == of)
    }

    /// Whether it has more handles than this one.
    #[must_use]
    pub fn is_duplicated(&self, name: Name) -> bool {
        let Some(of) = self.objects.get(&name) else {
            return false;
        };
        let mut alike = self.objects.values().filter(|it| it.origin == of.origin);
        alike.nth(1).is_some()
    }

    /// Whether work of a channel or group runs on the engine that shares are about; `None` for what is neither.
    #[must_use]
    pub fn engine(&self, ledger: &Ledger, name: Name) -> Option<Engine> {
        let group = self.group_of(ledger, name);
        let entry = self.objects.get(&group)?;
        Some(entry.engine)
    }

    /// The group of a channel; a group, or a channel without one, is its own.
    fn group_of(&self, ledger: &Ledger, name: Name) -> Name {
        let (client, handle) = name;
        let of_kind = |handle: ObjectHandle, kind: ObjectKind| {
            ledger
                .object(ClientHandle(client), handle)
                .filter(|object| object.kind == kind)
        };
        of_kind(ObjectHandle(handle), ObjectKind::Channel)
            .and_then(|object| object.parent)
            .filter(|parent| of_kind(*parent, ObjectKind::ChannelGroup).is_some())
            .map(|parent| (client, parent.0))
            .filter(|parent| self.objects.contains_key(parent))
            .unwrap_or(name)
    }

    /// What the container has on a card.
    #[must_use]
    pub fn objects(&self, ledger: &Ledger, card: CardSlot) -> Objects {
        let mut groups: BTreeMap<Name, Group> = BTreeMap::new();
        for (name, entry) in &self.objects {
            let (client, handle) = *name;
            let (of, object) = (ClientHandle(client), ObjectHandle(handle));
            if ledger.card_of(of, object) != Some(card) {
                continue;
            }
            let group = self.group_of(ledger, *name);
            let engine = self
                .objects
                .get(&group)
                .map_or(entry.engine, |it| it.engine);
            let group = groups.entry(group).or_insert_with(|| Group {
                client,
                handle: group.1,
                engine,
                channels: Vec::new(),
            });
            let kind = ledger.object(of, object).map(|object| object.kind);
            if kind == Some(ObjectKind::Channel) {
                group.channels.push(Channel { client, handle });
            }
        }
        Objects {
            generation: self.generation,
            groups: groups.into_values().collect(),
        }
    }

    /// Makes a change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Added(name, engine) => {
                self.generation = self.generation.wrapping_add(1);
                let entry = Entry {
                    origin: self.generation,
                    engine,
                    timeslice_us: None,
                    turned: Turned::NotYet,
                };
                self.objects.insert(name, entry);
            }
            Change::Duplicated { from, to } => {
                if let Some(entry) = self.objects.get(&from).copied() {
                    self.objects.insert(to, entry);
                    self.generation = self.generation.wrapping_add(1);
                }
            }
            Change::Computes(group) => {
                let mut is_another = false;
                for entry in self.by_all_handles(&[group]) {
                    is_another |= entry.engine != Engine::Graphics;
                    entry.engine = Engine::Graphics;
                }
                if is_another {
                    self.generation = self.generation.wrapping_add(1);
                }
            }
            Change::Timeslice(group, micros) => {
                for entry in self.by_all_handles(&[group]) {
                    entry.timeslice_us = Some(micros);
                }
            }
            Change::Turned(names, turned) => {
                for entry in self.by_all_handles(&names) {
                    entry.turned = turned;
                }
            }
            Change::Terms(card, terms) => {
                self.terms.insert(card, terms);
            }
            Change::Joined(at_ns) => {
                self.joined_ns.get_or_insert(at_ns);
            }
        }
    }

    /// The entries of these, and those of their other handles: the driver has one object for all.
    fn by_all_handles(&mut self, names: &[Name]) -> impl Iterator<Item = &mut Entry> {
        let entries = names.iter().filter_map(|name| self.objects.get(name));
        let origins: BTreeSet<u64> = entries.map(|entry| entry.origin).collect();
        let entries = self.objects.values_mut();
        entries.filter(move |entry| origins.contains(&entry.origin))
    }

    /// Forgets what the ledger has no more.
    pub(crate) fn forget(&mut self, gone: &BTreeSet<(ClientHandle, ObjectHandle)>) {
        for (client, handle) in gone {
            if self.objects.remove(&(client.0, handle.0)).is_some() {
                self.generation = self.generation.wrapping_add(1);
            }
        }
    }

    /// The group that a [`Change::Computes`] is about, of the channel that the engine object is on.
    #[must_use]
    pub fn computing(&self, ledger: &Ledger, channel: Name) -> Option<Name> {
        let group = self.group_of(ledger, channel);
        let entry = self.objects.get(&group)?;
        (entry.engine != Engine::Graphics).then_some(group)
    }
}

#[cfg(test)]
mod tests;
