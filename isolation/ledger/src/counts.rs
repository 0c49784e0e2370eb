//! How many of each kind there are: memory that no size declares is bounded by counting what takes it.

use std::collections::BTreeMap;
use std::fmt;

use crate::refusal::Refusal;

/// What an object is to the ledger; the caller knows which driver class is which.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum ObjectKind {
    /// A client itself (the root of a tree).
    Client,
    /// A device: it carries the card that everything below it inherits.
    Device,
    /// A subdevice.
    Subdevice,
    /// Memory, on the card or not.
    Memory,
    /// An address space.
    VaSpace,
    /// A channel group (TSG).
    ChannelGroup,
    /// A channel.
    Channel,
    /// A context share: an address space within a channel group.
    ContextShare,
    /// The name of an object that went with what it depended on. The driver has freed the object and keeps the name until that is
    /// freed too, or its parent.
    Invalidated,
    /// Anything else.
    Other,
}

/// What can be limited.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum Counted {
    /// Objects of one kind.
    Kind(ObjectKind),
    /// Objects of all kinds, clients among them.
    Objects,
    /// External mappings: pieces, per card that maps them.
    Mappings,
    /// External ranges of address space.
    Ranges,
    /// What files have exported: places, and memory that is held for them, one each.
    Exports,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kind(ObjectKind::Client) => "clients",
            Self::Kind(ObjectKind::Device) => "devices",
            Self::Kind(ObjectKind::Subdevice) => "subdevices",
            Self::Kind(ObjectKind::Memory) => "memory objects",
            Self::Kind(ObjectKind::VaSpace) => "address spaces",
            Self::Kind(ObjectKind::ChannelGroup) => "channel groups",
            Self::Kind(ObjectKind::Channel) => "channels",
            Self::Kind(ObjectKind::ContextShare) => "context shares",
            Self::Kind(ObjectKind::Invalidated) => "invalidated objects",
            Self::Kind(ObjectKind::Other) => "other objects",
            Self::Objects => "objects",
            Self::Mappings => "external mappings",
            Self::Ranges => "external ranges",
            Self::Exports => "exports",
        })
    }
}

/// The most of each that the container may have; what is not named is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Limits(BTreeMap<Counted, u64>);

impl Limits {
    /// No limit on anything.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The same limits and at most `most` of `counted`.
    #[must_use]
    pub fn with(mut self, counted: Counted, most: u64) -> Self {
        self.0.insert(counted, most);
        self
    }

    /// The most of `counted`, if it is limited.
    #[must_use]
    pub fn most(&self, counted: Counted) -> Option<u64> {
        self.0.get(&counted).copied()
    }
}

/// Live ones and slots held for calls under way, together.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Counts {
    limits: Limits,
    now: BTreeMap<Counted, u64>,
}

impl Counts {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            now: BTreeMap::new(),
        }
    }

    pub(crate) fn of(&self, counted: Counted) -> u64 {
        self.now.get(&counted).copied().unwrap_or(0)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Counted, u64)> + '_ {
        self.now.iter().map(|(counted, n)| (*counted, *n))
    }

    /// Whether `more` of `counted` would still be within the limit.
    pub(crate) fn check(&self, counted: Counted, more: u64) -> Result<(), Refusal> {
        match self.limits.most(counted) {
            Some(limit) if self.of(counted).saturating_add(more) > limit => {
                Err(Refusal::TooMany { counted, limit })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// [`Counts::check`] for one object of a kind: the kind's own limit and that of all objects.
    pub(crate) fn check_object(&self, kind: ObjectKind) -> Result<(), Refusal> {
        self.check(Counted::Kind(kind), 1)?;
        self.check(Counted::Objects, 1)
    }

    pub(crate) fn add(&mut self, counted: Counted, more: u64) {
        if more > 0 {
            let now = self.now.entry(counted).or_default();
            *now = now.saturating_add(more);
        }
    }

    pub(crate) fn subtract(&mut self, counted: Counted, fewer: u64) {
        if let Some(now) = self.now.get_mut(&counted) {
            debug_assert!(*now >= fewer, "{counted}: {now} less {fewer}");
            *now = now.saturating_sub(fewer);
            if *now == 0 {
                self.now.remove(&counted);
            }
        } else {
            debug_assert_eq!(fewer, 0, "{counted}: none less {fewer}");
        }
    }

    pub(crate) fn add_object(&mut self, kind: ObjectKind) {
        self.add(Counted::Kind(kind), 1);
        self.add(Counted::Objects, 1);
    }

    pub(crate) fn subtract_object(&mut self, kind: ObjectKind) {
        self.subtract(Counted::Kind(kind), 1);
        self.subtract(Counted::Objects, 1);
    }
}

/// How many entries a collection has, in the type that counts are kept in.
pub(crate) fn wide(entries: usize) -> u64 {
    u64::try_from(entries).unwrap_or(u64::MAX)
}
