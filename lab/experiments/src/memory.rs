//! Records without files, for virtual time: the same bytes, owners and crashes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use compute::{Changes, Owner, Seen, Table, TableError, counts_alike};
use plan::ShareRecord;
use sys::sync::lock;

/// The records of one card. Clones are the same card.
#[derive(Debug, Clone, Default)]
pub struct MemoryCard(Arc<Mutex<ShareFiles>>);

#[derive(Debug, Default)]
struct ShareFiles {
    /// Rises with everything that happens.
    version: u64,
    next_pid: u32,
    files: BTreeMap<String, ShareFile>,
}

#[derive(Debug, Default)]
struct ShareFile {
    version: u64,
    owner: Option<Owner>,
    bytes: Vec<u8>,
    /// The bytes' meaning; `None`: they are no record.
    record: Option<Arc<ShareRecord>>,
}

/// One container's view of a [`MemoryCard`].
#[derive(Debug)]
pub struct MemoryTable {
    card: MemoryCard,
    key: String,
    owner: Owner,
    left: Option<ShareRecord>,
    seq: u64,
    version: u64,
    known: BTreeMap<String, u64>,
    peers: Vec<ShareRecord>,
}

impl MemoryCard {
    /// Takes the record of a container.
    ///
    /// # Errors
    /// [`TableError::Held`] where it has an owner.
    pub fn join(&self, key: &str) -> Result<MemoryTable, TableError> {
        let mut files = self.lock();
        files.next_pid += 1;
        files.version += 1;
        let (owner, version) = (
            Owner {
                pid: files.next_pid,
                start_time: files.version,
            },
            files.version,
        );
        let file = files.files.entry(key.to_owned()).or_default();
        if file.owner.is_some() {
            return Err(TableError::Held { path: key.into() });
        }
        file.owner = Some(owner);
        file.version = version;
        let left = file.record.as_deref().cloned();
        // Nobody sees what the last owner said as this one's word.
        let seq = ShareRecord::decode(&file.bytes).map_or(0, |(_, seq)| seq);
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

    /// Puts bytes of any kind into a record, as a hostile or broken owner would; a record without an owner gets one.
    pub fn scribble(&self, key: &str, bytes: &[u8]) {
        let mut files = self.lock();
        files.version += 1;
        let version = files.version;
        let file = files.files.entry(key.to_owned()).or_default();
        file.owner.get_or_insert_default();
        file.version = version;
        bytes.clone_into(&mut file.bytes);
        let record = ShareRecord::decode(bytes).ok().map(|(record, _)| record);
        file.record = record.filter(|record| record.key == key).map(Arc::new);
    }

    /// The records of dead owners: what a watchdog looks at, see [`compute::watchdog`].
    #[must_use]
    pub fn dead(&self) -> Vec<ShareRecord> {
        let files = self.lock();
        let dead = files.files.values().filter(|file| file.owner.is_none());
        dead.filter_map(|file| file.record.as_deref().cloned())
            .collect()
    }

    /// The records of living owners.
    #[must_use]
    pub fn living(&self) -> Vec<ShareRecord> {
        let files = self.lock();
        let living = files.files.values().filter(|file| file.owner.is_some());
        living
            .filter_map(|file| file.record.as_deref().cloned())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, ShareFiles> {
        lock(&self.0)
    }
}

impl Table for MemoryTable {
    fn owner(&self) -> Owner {
        self.owner
    }

    fn left_behind(&self) -> Option<&ShareRecord> {
        self.left.as_ref()
    }

    fn publish(&mut self, record: &ShareRecord) -> Result<(), TableError> {
        self.seq = self.seq.wrapping_add(2);
        let bytes = record
            .encode(self.seq)
            .map_err(|source| TableError::ShareRecord {
                key: self.key.clone(),
                source,
            })?;
        let mut files = self.card.lock();
        let Some(file) = files.files.get_mut(&self.key) else {
            return Ok(());
        };
        let alike = file
            .record
            .as_deref()
            .is_some_and(|before| counts_alike(before, record));
        bytes.as_slice().clone_into(&mut file.bytes);
        file.record = Some(Arc::new(record.clone()));
        files.version += 1;
        let version = files.version;
        // The version says when peers have to look; what they only may know of (busy, gates) they see then too.
        if let Some(file) = files.files.get_mut(&self.key) {
            file.version = if alike { file.version } else { version };
        }
        Ok(())
    }

    fn refresh(&mut self) -> Result<Seen, TableError> {
        let card = self.card.clone();
        let files = card.lock();
        let mut seen = Seen::default();
        if files.version == self.version {
            return Ok(seen);
        }
        self.version = files.version;
        let living = || {
            files
                .files
                .iter()
                .filter(|(key, file)| file.owner.is_some() && **key != self.key)
        };
        let now: BTreeMap<String, u64> = living()
            .filter(|(_, file)| file.record.is_some())
            .map(|(key, file)| (key.clone(), file.version))
            .collect();
        if now != self.known {
            seen.changes = Changes::Some;
        }
        let bad = living().filter(|(_, file)| file.record.is_none() && !file.bytes.is_empty());
        seen.bad_records = u64::try_from(bad.count()).unwrap_or(u64::MAX);
        self.peers.clear();
        self.peers
            .extend(living().filter_map(|(_, file)| file.record.as_deref().cloned()));
        self.known = now;
        Ok(seen)
    }

    fn peers(&self) -> &[ShareRecord] {
        &self.peers
    }

    fn withdraw(&mut self) -> Result<(), TableError> {
        let mut files = self.card.lock();
        files.version += 1;
        if files
            .files
            .get(&self.key)
            .is_some_and(|file| file.owner == Some(self.owner))
        {
            files.files.remove(&self.key);
        }
        drop(files);
        self.peers.clear();
        Ok(())
    }
}

impl Drop for MemoryTable {
    fn drop(&mut self) {
        let mut files = self.card.lock();
        files.version += 1;
        if let Some(file) = files.files.get_mut(&self.key)
            && file.owner == Some(self.owner)
        {
            file.owner = None;
        }
    }
}
