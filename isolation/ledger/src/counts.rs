//! How many of each kind there are: memory that no size declares is bounded by counting what takes it.

use std::collections::BTreeMap;

use crate::kinds::Counted;
use crate::refusal::Refusal;

/// The most of each that the container may have, and what each costs; what is not named is not limited, and costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    most: BTreeMap<Counted, u64>,
    host_bytes: BTreeMap<Counted, u64>,
}

impl Limits {
    /// No limit on anything.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The same limits and at most `most` of `counted`.
    #[must_use]
    pub fn with(mut self, counted: Counted, most: u64) -> Self {
        self.most.insert(counted, most);
        self
    }

    /// The same limits where the driver takes so many bytes of the host's memory for each of `counted`.
    #[must_use]
    pub fn with_host_bytes(mut self, counted: Counted, of_each: u64) -> Self {
        self.host_bytes.insert(counted, of_each);
        self
    }

    /// The most of `counted`, if it is limited.
    #[must_use]
    pub fn most(&self, counted: Counted) -> Option<u64> {
        self.most.get(&counted).copied()
    }

    /// What the driver takes of the host's memory for so many of `counted`, in bytes.
    #[must_use]
    pub fn host_bytes(&self, counted: Counted, many: u64) -> u64 {
        let of_each = self.host_bytes.get(&counted).copied().unwrap_or(0);
        of_each.saturating_mul(many)
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

    pub(crate) fn host_bytes(&self, counted: Counted, many: u64) -> u64 {
        self.limits.host_bytes(counted, many)
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
}

/// How many entries a collection has, in the type that counts are kept in.
pub(crate) fn wide(entries: usize) -> u64 {
    u64::try_from(entries).unwrap_or(u64::MAX)
}
