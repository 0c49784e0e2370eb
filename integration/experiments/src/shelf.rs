//! The slots of a card in memory: what the files of `cards/<uuid>/slots` are to real brokers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use compute::table::{Changes, Owner, Seen, TableError};
use plan::Page;

/// All slots of one card.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    slots: BTreeMap<String, Slot>,
    /// Rises with every change.
    version: u64,
    next_pid: u32,
}

#[derive(Debug, Default)]
struct Slot {
    page: Option<Page>,
    owner: Option<u32>,
    sequence: u64,
}

/// One container's view of a shelf.
#[derive(Debug)]
pub(crate) struct Table {
    shelf: Rc<RefCell<Shelf>>,
    key: String,
    owner: Owner,
    left: Option<Page>,
    seen: u64,
    peers: Vec<Page>,
}

impl Table {
    /// Takes the slot with this key, with what a former owner left in it.
    ///
    /// # Errors
    /// Its owner lives.
    pub(crate) fn take(shelf: &Rc<RefCell<Shelf>>, key: &str) -> Result<Self, TableError> {
        let mut inner = shelf.borrow_mut();
        inner.next_pid += 1;
        inner.version += 1;
        let pid = inner.next_pid;
        let slot = inner.slots.entry(key.to_owned()).or_default();
        if slot.owner.is_some() {
            return Err(TableError::Held { path: key.into() });
        }
        slot.owner = Some(pid);
        let left = slot.page.clone();
        drop(inner);
        Ok(Self {
            shelf: Rc::clone(shelf),
            key: key.to_owned(),
            owner: Owner {
                pid,
                start_time: u64::from(pid),
            },
            left,
            seen: 0,
            peers: Vec::new(),
        })
    }
}

impl Drop for Table {
    /// As the kernel drops the lock of a process that dies: the page stays.
    fn drop(&mut self) {
        let mut shelf = self.shelf.borrow_mut();
        shelf.version += 1;
        if let Some(slot) = shelf.slots.get_mut(&self.key)
            && slot.owner == Some(self.owner.pid)
        {
            slot.owner = None;
        }
    }
}

impl compute::Table for Table {
    fn owner(&self) -> Owner {
        self.owner
    }

    fn left_behind(&self) -> Option<&Page> {
        self.left.as_ref()
    }

    fn publish(&mut self, page: &Page) -> Result<(), TableError> {
        let mut shelf = self.shelf.borrow_mut();
        let Some(slot) = shelf.slots.get_mut(&self.key) else {
            return Ok(());
        };
        // Through the bytes, as peers see it.
        let sequence = slot.sequence + 2;
        let refused = |source| TableError::Page {
            key: self.key.clone(),
            source,
        };
        let bytes = page.encode(sequence).map_err(refused)?;
        let (page, _) = Page::decode(bytes.as_slice()).map_err(refused)?;
        slot.sequence = sequence;
        slot.page = Some(page);
        shelf.version += 1;
        Ok(())
    }

    fn refresh(&mut self) -> Result<Seen, TableError> {
        let shelf = self.shelf.borrow();
        if shelf.version == self.seen {
            return Ok(Seen::default());
        }
        self.seen = shelf.version;
        let peers: Vec<Page> = shelf
            .slots
            .iter()
            .filter(|(key, slot)| **key != self.key && slot.owner.is_some())
            .filter_map(|(_, slot)| slot.page.clone())
            .collect();
        let alike = |one: &Page, other: &Page| {
            one.key == other.key
                && one.join_ns == other.join_ns
                && one.now == other.now
                && one.next == other.next
        };
        let same = peers.len() == self.peers.len()
            && peers
                .iter()
                .zip(&self.peers)
                .all(|(one, other)| alike(one, other));
        self.peers = peers;
        Ok(Seen {
            changes: if same { Changes::None } else { Changes::Some },
            bad_pages: 0,
        })
    }

    fn peers(&self) -> &[Page] {
        &self.peers
    }

    fn withdraw(&mut self) -> Result<(), TableError> {
        let mut shelf = self.shelf.borrow_mut();
        shelf.slots.remove(&self.key);
        shelf.version += 1;
        Ok(())
    }
}
