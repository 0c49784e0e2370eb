//! The files of one moment: what is in which folder, and what is in each file. Pure.

use std::collections::{BTreeMap, HashMap};

use cards::{Backend, ContainerKey};
use fuser::Errno;
use plan::Policy;
use spec::nodes::NVIDIA_MAJOR;
use strum::VariantArray;
use view::cards::CardRow;
use view::ps::{PsCard, PsVgpu, State};
use view::share::Rules;

use crate::names::folders;
use crate::node::{CARD_MOST, CardFile, ContainerFile, Node, RootFile};

/// Containers that are shown; those that are left out are the last by key.
pub(crate) const CONTAINERS_MOST: usize = 4096;

/// The numbers of containers: a new one for each that was not there a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Serials {
    known: HashMap<ContainerKey, u32>,
    last: u32,
}

impl Serials {
    /// Those of the containers of this moment, in their order; all others are forgotten.
    fn of<'a>(&mut self, keys: impl Iterator<Item = &'a ContainerKey>) -> Vec<u32> {
        let before = std::mem::take(&mut self.known);
        let mut serials = Vec::new();
        for key in keys {
            let serial = before.get(key).copied().unwrap_or_else(|| {
                self.last += 1;
                self.last
            });
            self.known.insert(key.clone(), serial);
            serials.push(serial);
        }
        serials
    }
}

/// All files of a moment.
#[derive(Debug, Default)]
pub(crate) struct Hierarchy {
    /// By index.
    cards: BTreeMap<u32, Card>,
    /// Containers that are not shown.
    pub(crate) left_out: usize,
}

/// A card's folder.
#[derive(Debug)]
struct Card {
    uuid: String,
    rules: Rules,
    /// By serial number.
    slices: BTreeMap<u32, Slice>,
    /// Serial numbers by the folders' names.
    serials: HashMap<String, u32>,
}

/// A container's folder below one of its cards.
#[derive(Debug)]
struct Slice {
    name: String,
    key: ContainerKey,
    /// How many cards the container has.
    cards: u64,
    quota_bytes: Option<u64>,
    meminfo: Meminfo,
    weight: Option<u64>,
    is_high: Option<bool>,
}

/// What is known of a container's memory on a card.
#[derive(Debug)]
enum Meminfo {
    /// Nobody counts it.
    Uncounted,
    /// Its broker has not answered.
    Unanswered(Errno),
    Known {
        free_bytes: u64,
        /// Pid and bytes.
        processes: Vec<(i32, u64)>,
    },
}

/// What a write is to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A rule of a card, by its UUID.
    Rule(String, CardFile),
    /// A container's terms, and how many cards it has.
    Container(ContainerKey, u64, ContainerFile),
}

impl Hierarchy {
    /// What was found. A card that the driver does not show has no folder.
    pub(crate) fn new(cards: Vec<CardRow>, vgpus: Vec<PsVgpu>, serials: &mut Serials) -> Self {
        // What is no key was never a container's.
        let keyed = vgpus.into_iter().filter_map(|vgpu| {
            let key = ContainerKey::new(&vgpu.namespace, &vgpu.container).ok()?;
            Some((key, vgpu))
        });
        let (mut keys, mut vgpus): (Vec<_>, Vec<_>) = keyed.unzip();
        let left_out = keys.len().saturating_sub(CONTAINERS_MOST);
        keys.truncate(CONTAINERS_MOST);
        vgpus.truncate(CONTAINERS_MOST);
        let numbers = serials.of(keys.iter());
        let names = folders(&vgpus, &numbers);
        let cards = cards.into_iter().filter(|card| card.index <= CARD_MOST);
        let mut folders: BTreeMap<u32, Card> = cards
            .map(|card| (card.index, Card::new(card.uuid, card.compute.rules)))
            .collect();
        let by_uuid: HashMap<String, u32> = folders
            .iter()
            .map(|(index, card)| (card.uuid.clone(), *index))
            .collect();
        for (((key, vgpu), serial), name) in keys.into_iter().zip(&vgpus).zip(numbers).zip(names) {
            for slice in &vgpu.cards {
                let index = by_uuid.get(&slice.uuid);
                if let Some(card) = index.and_then(|index| folders.get_mut(index)) {
                    card.serials.insert(name.clone(), serial);
                    let slice = Slice::new(name.clone(), key.clone(), vgpu, slice);
                    card.slices.insert(serial, slice);
                }
            }
        }
        Self {
            cards: folders,
            left_out,
        }
    }

    /// Whether it is there.
    pub(crate) fn has(&self, node: Node) -> bool {
        match node {
            Node::Root | Node::RootFile(_) => true,
            Node::Card(index) | Node::CardFile(index, _) => self.cards.contains_key(&index),
            Node::Container(index, serial) => self.slice(index, serial).is_some(),
            Node::ContainerFile(index, serial, file) => {
                let slice = self.slice(index, serial);
                slice.is_some_and(|slice| slice.has(file))
            }
        }
    }

    /// What a folder has under this name.
    pub(crate) fn find(&self, folder: Node, name: &str) -> Option<Node> {
        let node = match folder {
            Node::Root => {
                let file = name.parse().ok();
                let card = || {
                    let index: u32 = name.parse().ok()?;
                    // Not `+1` or `01`.
                    (index.to_string() == name).then_some(Node::Card(index))
                };
                file.map(Node::RootFile).or_else(card)?
            }
            Node::Card(index) => {
                let file = name.parse().ok();
                let container = || {
                    let serial = self.cards.get(&index)?.serials.get(name)?;
                    Some(Node::Container(index, *serial))
                };
                let file = file.map(|file| Node::CardFile(index, file));
                file.or_else(container)?
            }
            Node::Container(index, serial) => {
                Node::ContainerFile(index, serial, name.parse().ok()?)
            }
            Node::RootFile(_) | Node::CardFile(..) | Node::ContainerFile(..) => return None,
        };
        self.has(node).then_some(node)
    }

    /// What is in a folder, by number; nothing is in what is none.
    pub(crate) fn list(&self, folder: Node) -> Vec<(Node, String)> {
        let mut all: Vec<(Node, String)> = match folder {
            Node::Root => {
                let files = RootFile::VARIANTS.iter();
                let files = files.map(|file| (Node::RootFile(*file), file.to_string()));
                let cards = self.cards.keys();
                let cards = cards.map(|index| (Node::Card(*index), index.to_string()));
                files.chain(cards).collect()
            }
            Node::Card(index) => {
                let files = CardFile::VARIANTS.iter();
                let files = files.map(|file| (Node::CardFile(index, *file), file.to_string()));
                let slices = self.cards.get(&index).into_iter();
                let slices = slices.flat_map(|card| &card.slices);
                let slices = slices
                    .map(|(serial, slice)| (Node::Container(index, *serial), slice.name.clone()));
                files.chain(slices).collect()
            }
            Node::Container(index, serial) => {
                let files = ContainerFile::VARIANTS.iter();
                let node = |file| Node::ContainerFile(index, serial, file);
                files.map(|file| (node(*file), file.to_string())).collect()
            }
            Node::RootFile(_) | Node::CardFile(..) | Node::ContainerFile(..) => Vec::new(),
        };
        all.retain(|(node, _)| self.has(*node));
        all.sort_by_key(|(node, _)| node.number());
        all
    }

    /// What is in a file.
    ///
    /// # Errors
    /// ENOENT: it is not there (any more); EISDIR: it is a folder; ETIMEDOUT or EIO: who knows it has not answered, or is gone.
    pub(crate) fn text(&self, node: Node) -> Result<String, Errno> {
        if !self.has(node) {
            return Err(Errno::ENOENT);
        }
        let number = |number: Option<u64>| number.map(|number| format!("{number}\n"));
        let text = match node {
            Node::Root | Node::Card(_) | Node::Container(..) => return Err(Errno::EISDIR),
            Node::RootFile(RootFile::Version) => {
                Some(concat!(env!("CARGO_PKG_VERSION"), "\n").to_owned())
            }
            Node::RootFile(RootFile::Major) => number(Some(NVIDIA_MAJOR.into())),
            Node::CardFile(index, file) => {
                let card = self.cards.get(&index);
                card.and_then(|card| number(card.rule(file)))
            }
            Node::ContainerFile(index, serial, file) => match (self.slice(index, serial), file) {
                (None, _) => None,
                (Some(slice), ContainerFile::Id) => Some(format!("{}\n", slice.key)),
                (Some(slice), ContainerFile::Memsize) => number(slice.quota_bytes),
                (Some(slice), ContainerFile::Weight) => number(slice.weight),
                (Some(slice), ContainerFile::Highprio) => number(slice.is_high.map(u64::from)),
                (Some(slice), ContainerFile::Meminfo) => return slice.meminfo.text(),
            },
        };
        text.ok_or(Errno::EIO)
    }

    /// What a write to this file changes.
    ///
    /// # Errors
    /// ENOENT: it is not there (any more); EACCES: a write changes nothing.
    pub(crate) fn target(&self, node: Node) -> Result<Target, Errno> {
        if !self.has(node) {
            return Err(Errno::ENOENT);
        }
        if !node.is_writable() {
            return Err(Errno::EACCES);
        }
        let target = match node {
            Node::CardFile(index, file) => {
                let card = self.cards.get(&index);
                card.map(|card| Target::Rule(card.uuid.clone(), file))
            }
            Node::ContainerFile(index, serial, file) => {
                let slice = self.slice(index, serial);
                slice.map(|slice| Target::Container(slice.key.clone(), slice.cards, file))
            }
            Node::Root | Node::RootFile(_) | Node::Card(_) | Node::Container(..) => None,
        };
        target.ok_or(Errno::ENOENT)
    }

    fn slice(&self, index: u32, serial: u32) -> Option<&Slice> {
        self.cards.get(&index)?.slices.get(&serial)
    }
}

impl Card {
    fn new(uuid: String, rules: Rules) -> Self {
        Self {
            uuid,
            rules,
            slices: BTreeMap::new(),
            serials: HashMap::new(),
        }
    }

    fn rule(&self, file: CardFile) -> Option<u64> {
        let rules = &self.rules;
        let number = match file {
            CardFile::MaxInst => rules.max_tenants,
            CardFile::PrioRatio => rules.prio_ratio_percent,
            CardFile::Policy => {
                let mut all = Policy::ALL.iter();
                all.find(|policy| policy.name() == rules.policy)?.number()
            }
        };
        Some(number.into())
    }
}

impl Slice {
    fn new(name: String, key: ContainerKey, vgpu: &PsVgpu, card: &PsCard) -> Self {
        let has_broker = vgpu.backend == Backend::Broker;
        let has_quota = vgpu.backend != Backend::Share || card.quota_bytes > 0;
        let share = &card.share;
        let is_high = |priority: &String| priority == plan::Priority::High.name();
        Self {
            name,
            key,
            cards: u64::try_from(vgpu.cards.len()).unwrap_or(u64::MAX),
            quota_bytes: has_quota.then_some(card.quota_bytes),
            meminfo: Meminfo::of(vgpu, card),
            weight: share.weight.filter(|_| has_broker),
            is_high: share.priority.as_ref().map(is_high).filter(|_| has_broker),
        }
    }

    fn has(&self, file: ContainerFile) -> bool {
        match file {
            ContainerFile::Id => true,
            ContainerFile::Memsize => self.quota_bytes.is_some(),
            ContainerFile::Meminfo => !matches!(self.meminfo, Meminfo::Uncounted),
            ContainerFile::Weight => self.weight.is_some(),
            ContainerFile::Highprio => self.is_high.is_some(),
        }
    }
}

impl Meminfo {
    fn of(vgpu: &PsVgpu, card: &PsCard) -> Self {
        if vgpu.backend != Backend::Broker {
            return Self::Uncounted;
        }
        let (Some(used_bytes), Some(processes)) = (card.used_bytes, &vgpu.processes) else {
            return Self::Unanswered(match vgpu.state {
                State::Silent => Errno::ETIMEDOUT,
                State::Running | State::DriverUnreachable | State::BrokerGone | State::Stale => {
                    Errno::EIO
                }
            });
        };
        let on_card = processes.iter().filter_map(|process| {
            let mut cards = process.cards.iter();
            let held = cards.find(|held| held.uuid == card.uuid)?;
            Some((process.pid, held.used_bytes))
        });
        Self::Known {
            free_bytes: card.quota_bytes.saturating_sub(used_bytes),
            processes: on_card.collect(),
        }
    }

    fn text(&self) -> Result<String, Errno> {
        match self {
            Self::Uncounted => Err(Errno::ENOENT),
            Self::Unanswered(why) => Err(*why),
            Self::Known {
                free_bytes,
                processes,
            } => {
                let mut text = format!("Free: {free_bytes}\n");
                for (pid, bytes) in processes {
                    text.push_str(&format!("PID: {pid} Mem: {bytes}\n"));
                }
                Ok(text)
            }
        }
    }
}

#[cfg(test)]
#[path = "hierarchy/tests/fixture.rs"]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
