//! Slots without files, for virtual time: the same bytes, owners and crashes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plan::Page;

use crate::table::{Changes, Owner, Seen, Table, TableError, counts_alike};

/// The slots of one card. Clones are the same card.
#[derive(Debug, Clone, Default)]
pub struct MemoryCard(Arc<Mutex<Slots>>);

#[derive(Debug, Default)]
struct Slots {
    /// Rises with everything that happens.
    version: u64,
    next_pid: u32,
    slots: BTreeMap<String, Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    version: u64,
    owner: Option<Owner>,
    bytes: Vec<u8>,
    /// The bytes' meaning; `None`: they are no page.
    page: Option<Arc<Page>>,
}

/// One container's view of a [`MemoryCard`].
#[derive(Debug)]
pub struct MemoryTable {
    card: MemoryCard,
    key: String,
    owner: Owner,
    left: Option<Page>,
    seq: u64,
    version: u64,
    known: BTreeMap<String, u64>,
    peers: Vec<Page>,
}

impl MemoryCard {
    /// Takes the slot of a container.
    ///
    /// # Errors
    /// [`TableError::Held`] where it has an owner.
    pub fn join(&self, key: &str) -> Result<MemoryTable, TableError> {
        let mut slots = self.lock();
        slots.next_pid += 1;
        slots.version += 1;
        let (owner, version) = (
            Owner {
                pid: slots.next_pid,
                start_time: slots.version,
            },
            slots.version,
        );
        let slot = slots.slots.entry(key.to_owned()).or_default();
        if slot.owner.is_some() {
            return Err(TableError::Held { path: key.into() });
        }
        slot.owner = Some(owner);
        slot.version = version;
        let left = slot.page.as_deref().cloned();
        // Nobody sees what the last owner said as this one's word.
        let seq = Page::decode(&slot.bytes).map_or(0, |(_, seq)| seq);
        Ok(MemoryTable {
            card: self.clone(),
            key: key.to_owned(),
            owner,
            left,
            seq,
            version: 0,
            known: BTreeMap::new(),
            peers: Vec::new(),
        })
    }

    /// Puts bytes of any kind into a slot, as a hostile or broken owner would; a slot without an owner gets one.
    pub fn scribble(&self, key: &str, bytes: &[u8]) {
        let mut slots = self.lock();
        slots.version += 1;
        let version = slots.version;
        let slot = slots.slots.entry(key.to_owned()).or_default();
        slot.owner.get_or_insert_default();
        slot.version = version;
        bytes.clone_into(&mut slot.bytes);
        let page = Page::decode(bytes).ok().map(|(page, _)| page);
        slot.page = page.filter(|page| page.key == key).map(Arc::new);
    }

    /// The pages of dead owners: what a watchdog looks at, see [`crate::watchdog`].
    #[must_use]
    pub fn dead(&self) -> Vec<Page> {
        let slots = self.lock();
        let dead = slots.slots.values().filter(|slot| slot.owner.is_none());
        dead.filter_map(|slot| slot.page.as_deref().cloned())
            .collect()
    }

    /// The pages of living owners.
    #[must_use]
    pub fn living(&self) -> Vec<Page> {
        let slots = self.lock();
        let living = slots.slots.values().filter(|slot| slot.owner.is_some());
        living
            .filter_map(|slot| slot.page.as_deref().cloned())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table for MemoryTable {
    fn owner(&self) -> Owner {
        self.owner
    }

    fn left_behind(&self) -> Option<&Page> {
        self.left.as_ref()
    }

    fn publish(&mut self, page: &Page) -> Result<(), TableError> {
        self.seq = self.seq.wrapping_add(2);
        let bytes = page.encode(self.seq).map_err(|source| TableError::Page {
            key: self.key.clone(),
            source,
        })?;
        let mut slots = self.card.lock();
        let Some(slot) = slots.slots.get_mut(&self.key) else {
            return Ok(());
        };
        let alike = slot
            .page
            .as_deref()
            .is_some_and(|before| counts_alike(before, page));
        bytes.as_slice().clone_into(&mut slot.bytes);
        slot.page = Some(Arc::new(page.clone()));
        slots.version += 1;
        let version = slots.version;
        // The version says when peers have to look; what they only may know of (busy, gates) they see then too.
        if let Some(slot) = slots.slots.get_mut(&self.key) {
            slot.version = if alike { slot.version } else { version };
        }
        Ok(())
    }

    fn refresh(&mut self) -> Result<Seen, TableError> {
        let card = self.card.clone();
        let slots = card.lock();
        let mut seen = Seen::default();
        if slots.version == self.version {
            return Ok(seen);
        }
        self.version = slots.version;
        let living = || {
            slots
                .slots
                .iter()
                .filter(|(key, slot)| slot.owner.is_some() && **key != self.key)
        };
        let now: BTreeMap<String, u64> = living()
            .filter(|(_, slot)| slot.page.is_some())
            .map(|(key, slot)| (key.clone(), slot.version))
            .collect();
        if now != self.known {
            seen.changes = Changes::Some;
        }
        let bad = living().filter(|(_, slot)| slot.page.is_none() && !slot.bytes.is_empty());
        seen.bad_pages = u64::try_from(bad.count()).unwrap_or(u64::MAX);
        self.peers.clear();
        self.peers
            .extend(living().filter_map(|(_, slot)| slot.page.as_deref().cloned()));
        self.known = now;
        Ok(seen)
    }

    fn peers(&self) -> &[Page] {
        &self.peers
    }

    fn withdraw(&mut self) -> Result<(), TableError> {
        let mut slots = self.card.lock();
        slots.version += 1;
        if slots
            .slots
            .get(&self.key)
            .is_some_and(|slot| slot.owner == Some(self.owner))
        {
            slots.slots.remove(&self.key);
        }
        drop(slots);
        self.peers.clear();
        Ok(())
    }
}

impl Drop for MemoryTable {
    fn drop(&mut self) {
        let mut slots = self.card.lock();
        slots.version += 1;
        if let Some(slot) = slots.slots.get_mut(&self.key)
            && slot.owner == Some(self.owner)
        {
            slot.owner = None;
        }
    }
}
