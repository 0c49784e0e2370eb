//! The card book: who holds how much of one card, `cards/<uuid>/book.json`.
//!
//! Read and changed only under the state lock. A book that is newer than this program or cannot be read is an error
//! and stays as it is: to start it afresh would grant memory twice.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::grant::Grant;
use crate::health;
use crate::identity::{ContainerKey, GpuUuid};
use crate::inventory::Card;
use crate::lock::StateLock;
use crate::placement::Room;
use crate::store::{self, Store};

/// The version that this cgpu writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// A book of a thousand containers is a tenth of this.
const SIZE_MAX_BYTES: u64 = 4 << 20;

/// One card's account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    /// [`VERSION`].
    pub version: u32,
    /// Whose account it is.
    pub uuid: GpuUuid,
    /// What is granted.
    pub grants: Vec<Entry>,
}

/// One container's part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The container.
    pub key: ContainerKey,
    /// Its quota on this card.
    pub quota_bytes: u64,
    /// What it still held when its quota was shrunk below that, bytes: nobody else gets this memory before it is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// When it was granted, milliseconds since 1970.
    pub created_at_unix_ms: u64,
}

/// The books of a state folder, in the hand of whoever holds the lock.
#[derive(Debug)]
pub struct Books<'a> {
    cards_dir: PathBuf,
    store: &'a dyn Store,
}

impl<'a> Books<'a> {
    /// The lock is asked for as proof only.
    #[must_use]
    pub fn open(_lock: &'a StateLock, state_dir: &Path, store: &'a dyn Store) -> Self {
        Self {
            cards_dir: state_dir.join("cards"),
            store,
        }
    }

    /// Each card's free memory.
    ///
    /// # Errors
    /// An unreadable, newer, foreign or overbooked book.
    pub fn rooms(&self, cards: &[Card]) -> Result<Vec<Room>, Error> {
        cards
            .iter()
            .map(|card| {
                let book = self.read(&card.uuid)?;
                let booked_bytes = book.booked_bytes();
                let free_bytes = card.memory_bytes.checked_sub(booked_bytes).ok_or_else(|| {
                    Error::Overbooked {
                        uuid: card.uuid.clone(),
                        booked_bytes,
                        memory_bytes: card.memory_bytes,
                    }
                })?;
                Ok(Room {
                    card: card.clone(),
                    free_bytes,
                    unhealthy: health::of_card(&self.cards_dir, &card.uuid)?
                        .map(|health| health.reason),
                })
            })
            .collect()
    }

    /// Writes the grant's slices, card by card. After an error some may be written: [`Books::remove`] undoes them.
    ///
    /// # Errors
    /// As [`Books::rooms`]; [`Error::AlreadyBooked`]; a failed file operation.
    pub fn add(&self, grant: &Grant) -> Result<(), Error> {
        for slice in &grant.cards {
            let mut book = self.read(&slice.uuid)?;
            if book.grants.iter().any(|entry| entry.key == grant.key) {
                return Err(Error::AlreadyBooked {
                    key: grant.key.to_string(),
                    uuid: slice.uuid.clone(),
                });
            }
            book.grants.push(Entry {
                key: grant.key.clone(),
                quota_bytes: slice.quota_bytes,
                reserved_bytes: None,
                created_at_unix_ms: grant.created_at_unix_ms,
            });
            self.write(&book)?;
        }
        Ok(())
    }

    /// Sets what a container is booked for on one card: its quota, and what it still holds above that.
    ///
    /// # Errors
    /// As [`Books::rooms`]; [`Error::NotBooked`]; [`Error::NoRoom`], and nothing has changed; a failed file operation.
    pub fn resize(
        &self,
        key: &ContainerKey,
        card: &Card,
        quota_bytes: u64,
        reserved_bytes: Option<u64>,
    ) -> Result<(), Error> {
        let mut book = self.read(&card.uuid)?;
        let Some(entry) = book.grants.iter_mut().find(|entry| entry.key == *key) else {
            return Err(Error::NotBooked {
                key: key.to_string(),
                uuid: card.uuid.clone(),
            });
        };
        let before_bytes = entry.booked_bytes();
        entry.quota_bytes = quota_bytes;
        entry.reserved_bytes = reserved_bytes.filter(|reserved| *reserved > quota_bytes);
        let after_bytes = entry.booked_bytes();
        let booked_bytes = book.booked_bytes();
        if after_bytes > before_bytes && booked_bytes > card.memory_bytes {
            let others_bytes = booked_bytes - after_bytes;
            return Err(Error::NoRoom {
                uuid: card.uuid.clone(),
                asked_bytes: quota_bytes,
                most_bytes: card.memory_bytes.saturating_sub(others_bytes),
            });
        }
        self.write(&book)
    }

    /// Takes the container out of every book. Books without it are not written.
    ///
    /// # Errors
    /// An unreadable, newer or foreign book; a failed file operation.
    pub fn remove(&self, key: &ContainerKey) -> Result<(), Error> {
        for mut book in self.all()? {
            let before = book.grants.len();
            book.grants.retain(|entry| entry.key != *key);
            if book.grants.len() != before {
                self.write(&book)?;
            }
        }
        Ok(())
    }

    /// Every book that exists, by UUID, also of cards that are gone.
    ///
    /// # Errors
    /// An unreadable, newer or foreign book.
    pub fn all(&self) -> Result<Vec<Book>, Error> {
        let entries = match std::fs::read_dir(&self.cards_dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &self.cards_dir)(error)),
        };
        let mut uuids = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Error::io("read", &self.cards_dir))?;
            uuids.push(GpuUuid::new(entry.file_name().to_string_lossy())?);
        }
        uuids.sort();
        uuids.iter().map(|uuid| self.read(uuid)).collect()
    }

    fn read(&self, uuid: &GpuUuid) -> Result<Book, Error> {
        let path = self.path(uuid);
        let bytes = match store::read_capped("card book", &path, SIZE_MAX_BYTES) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Book {
                    version: VERSION,
                    uuid: uuid.clone(),
                    grants: Vec::new(),
                });
            }
            other => other?,
        };
        let book: Book = store::parse_versioned("card book", &path, &bytes, VERSION)?;
        if book.uuid == *uuid {
            Ok(book)
        } else {
            Err(Error::ForeignBook {
                path,
                found: book.uuid,
            })
        }
    }

    fn write(&self, book: &Book) -> Result<(), Error> {
        let card_dir = self.cards_dir.join(book.uuid.as_str());
        for dir in [&self.cards_dir, &card_dir] {
            self.store
                .create_dir(dir)
                .map_err(Error::io("create", dir))?;
        }
        store::write_json(self.store, "card book", &self.path(&book.uuid), book)
    }

    fn path(&self, uuid: &GpuUuid) -> PathBuf {
        self.cards_dir.join(uuid.as_str()).join("book.json")
    }
}

impl Book {
    /// Sum of all grants; saturates, so that a forged book reads as full.
    #[must_use]
    pub fn booked_bytes(&self) -> u64 {
        self.grants
            .iter()
            .fold(0, |sum, entry| sum.saturating_add(entry.booked_bytes()))
    }
}

impl Entry {
    /// What nobody else can have.
    #[must_use]
    pub fn booked_bytes(&self) -> u64 {
        self.quota_bytes.max(self.reserved_bytes.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests;
