//! Changing the quota of a running container.
//!
//! ```text
//!   book: the larger of old and new ─▶ grant.json ─▶ broker ─▶ book: new, and what is still held above it
//! ```
//!
//! In this order memory is never granted twice, wherever it stops: what grows is booked before the broker gives it, what
//! shrinks is given up only once the broker refuses it. What a container holds above a shrunken quota stays booked until a
//! broker says that it has been given up ([`settle`]).

use cards::book::{Book, Books};
use cards::lock::StateLock;
use cards::placement::MIB;
use cards::store::DiskStore;
use cards::{ContainerKey, Grant, Inventory};
use serde::Deserialize;
use serde_json::json;

use crate::host::Host;
use crate::state::ContainerDir;
use crate::{Config, Error, backend, control, request};

/// One slice after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resized {
    /// `GPU-…`
    pub uuid: String,
    /// Its quota before, bytes.
    pub before_bytes: u64,
    /// Its quota now, bytes.
    pub quota_bytes: u64,
    /// What is held now, bytes. Above the quota: new allocations are refused until it fits.
    pub used_bytes: u64,
}

/// What a broker answers.
#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    cards: Vec<AnswerCard>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct AnswerCard {
    uuid: String,
    quota_bytes: u64,
    used_bytes: u64,
}

/// Sets a container's memory in all, `6Gi`; over several cards each gets an equal part.
///
/// # Errors
/// A value that is not allowed, a container without a vGPU, a card without so much room, a broker that does not answer:
/// everything is as before then.
pub fn resize_memory(
    config: &Config,
    key: &ContainerKey,
    memory: &str,
) -> Result<Vec<Resized>, Error> {
    let total_bytes = request::memory_amount("--memory", memory)?;
    let lock = StateLock::take(&config.state_dir)?;
    let dir = ContainerDir::of(&config.state_dir, key);
    if !dir.exists() {
        return Err(Error::NoVgpu { key: key.clone() });
    }
    let before = Grant::read(dir.path())?;
    if before.backend == cards::Backend::Broker && !dir.has_broker()? {
        return Err(Error::NoBroker { key: key.clone() });
    }
    let count = u64::try_from(before.cards.len()).unwrap_or(u64::MAX).max(1);
    if total_bytes % (count * MIB) != 0 {
        return Err(Error::Value {
            key: "--memory".to_owned(),
            value: memory.to_owned(),
            allowed: format!(
                "an amount of which each of the container's {count} cards gets whole MiB"
            ),
        });
    }
    let quota_bytes = total_bytes / count;
    let host = Host::find(config)?;
    let store = DiskStore;
    let books = Books::open(&lock, &config.state_dir, &store);
    settle(config, &books, &host.inventory)?;
    let mut after = before.clone();
    for slice in &mut after.cards {
        slice.quota_bytes = quota_bytes;
    }
    let change = Change {
        books: &books,
        inventory: &host.inventory,
        dir: &dir,
        backend: backend::of(config, before.backend),
    };
    let told = change.book(&before, &after).and_then(|()| {
        after.write(&store, dir.path())?;
        change.backend.resize(&dir, &after)
    });
    match told {
        Ok(answers) => change.finish(&before, &after, &answers),
        Err(error) => {
            change.back_to(&before);
            Err(error)
        }
    }
}

/// Gives back what containers held above their quotas and hold no more. Called before memory is placed.
///
/// # Errors
/// A book that cannot be read or written.
pub(crate) fn settle(
    config: &Config,
    books: &Books<'_>,
    inventory: &Inventory,
) -> Result<(), Error> {
    for Book { uuid, grants, .. } in books.all()? {
        let Some(card) = inventory.cards.iter().find(|card| card.uuid == uuid) else {
            continue;
        };
        for entry in grants.iter().filter(|entry| entry.reserved_bytes.is_some()) {
            let socket = ContainerDir::of(&config.state_dir, &entry.key).control_socket();
            // A broker that does not answer may still hold it all.
            let Some(used_bytes) = used_of(&socket, uuid.as_str()) else {
                continue;
            };
            if Some(used_bytes) != entry.reserved_bytes {
                let still = entry
                    .reserved_bytes
                    .map(|reserved| reserved.min(used_bytes));
                books.resize(&entry.key, card, entry.quota_bytes, still)?;
            }
        }
    }
    Ok(())
}

fn used_of(socket: &std::path::Path, uuid: &str) -> Option<u64> {
    let status = control::status(socket)?;
    let answer: Answer = serde_json::from_value(status).ok()?;
    let card = answer.cards.iter().find(|card| card.uuid == uuid)?;
    Some(card.used_bytes)
}

/// One change of one container's books.
struct Change<'a> {
    books: &'a Books<'a>,
    inventory: &'a Inventory,
    dir: &'a ContainerDir,
    backend: Box<dyn backend::Backend + 'a>,
}

impl Change<'_> {
    fn set(
        &self,
        key: &ContainerKey,
        slice: &cards::CardGrant,
        quota_bytes: u64,
        reserved_bytes: Option<u64>,
    ) -> Result<(), Error> {
        let card = self
            .inventory
            .cards
            .iter()
            .find(|card| card.uuid == slice.uuid)
            .ok_or_else(|| Error::CardGone {
                key: key.clone(),
                uuid: slice.uuid.clone(),
            })?;
        Ok(self.books.resize(key, card, quota_bytes, reserved_bytes)?)
    }

    /// The larger of both, so that neither side of the change is anybody else's.
    fn book(&self, before: &Grant, after: &Grant) -> Result<(), Error> {
        for (old, new) in before.cards.iter().zip(&after.cards) {
            let booked = old.quota_bytes.max(new.quota_bytes);
            self.set(&before.key, old, booked, None)?;
        }
        Ok(())
    }

    fn finish(
        &self,
        before: &Grant,
        after: &Grant,
        answers: &[backend::Held],
    ) -> Result<Vec<Resized>, Error> {
        let mut resized = Vec::new();
        for (old, new) in before.cards.iter().zip(&after.cards) {
            let used_bytes = answers
                .iter()
                .find(|held| held.uuid == new.uuid.as_str())
                .map_or(new.quota_bytes, |held| held.used_bytes);
            self.set(&after.key, new, new.quota_bytes, Some(used_bytes))?;
            resized.push(Resized {
                uuid: new.uuid.to_string(),
                before_bytes: old.quota_bytes,
                quota_bytes: new.quota_bytes,
                used_bytes,
            });
        }
        Ok(resized)
    }

    /// After a failure. Whether the broker has heard of the new quota is not known, so it is told the old one again.
    fn back_to(&self, before: &Grant) {
        let undo = || -> Result<(), Error> {
            before.write(&DiskStore, self.dir.path())?;
            self.backend.resize(self.dir, before)?;
            for slice in &before.cards {
                self.set(&before.key, slice, slice.quota_bytes, None)?;
            }
            Ok(())
        };
        if let Err(error) = undo() {
            tracing::warn!(key = %before.key, error = %crate::chain(&error), "a failed change of quota could not be undone in full; what is booked is the larger of both");
        }
    }
}

/// Tells the broker its quotas.
pub(crate) fn tell(dir: &ContainerDir, grant: &Grant) -> Result<Vec<backend::Held>, Error> {
    let failed = |problem: String| Error::BrokerRefused {
        key: grant.key.clone(),
        problem,
    };
    let cards: Vec<serde_json::Value> = grant
        .cards
        .iter()
        .map(|slice| json!({"uuid": slice.uuid.as_str(), "quota_bytes": slice.quota_bytes}))
        .collect();
    let request = json!({"op": "set_quota", "cards": cards});
    let answer = control::ask(&dir.control_socket(), &request)
        .map_err(|error| failed(format!("it does not answer: {error}")))?;
    let answer: Answer = serde_json::from_value(answer)
        .map_err(|error| failed(format!("its answer is none: {error}")))?;
    if let Some(problem) = answer.error {
        return Err(failed(problem));
    }
    let agrees = grant.cards.iter().all(|slice| {
        answer
            .cards
            .iter()
            .any(|card| card.uuid == slice.uuid.as_str() && card.quota_bytes == slice.quota_bytes)
    });
    if agrees {
        Ok(answer
            .cards
            .into_iter()
            .map(|card| backend::Held {
                uuid: card.uuid,
                used_bytes: card.used_bytes,
            })
            .collect())
    } else {
        Err(failed(
            "it answers with other quotas than it was told".to_owned(),
        ))
    }
}

#[cfg(test)]
mod tests;
