//! Memory that is reserved for containers beside their quotas: what they still held when these shrank, and what a command that was killed
//! had reserved.

use std::os::unix::fs::MetadataExt;

use cards::reservations::{CardReservations, Entry, Reservations};
use cards::{Backend, ContainerKey, GpuUuid, Grant, Inventory};
use control::{CardStatus, client};
use host_config::Config;

use crate::state::ContainerDir;
use crate::{Error, backend};

/// Containers that have more reserved than their quotas, and what they hold now.
#[derive(Debug, Default)]
pub(crate) struct Unsettled(Vec<Seen>);

/// One of them, on one card.
#[derive(Debug)]
struct Seen {
    key: ContainerKey,
    uuid: GpuUuid,
    quota_bytes: u64,
    retained_bytes: Option<u64>,
    /// Where it is another quota than is reserved, and the broker's too.
    granted: Option<Granted>,
    used_bytes: u64,
}

/// What a grant gives of one card.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Granted {
    quota_bytes: u64,
    /// Of the file: each command that changes memory makes another one before it asks the broker, and again when it takes that back.
    file: [i128; 3],
}

impl Granted {
    fn of(dir: &ContainerDir, uuid: &GpuUuid) -> Option<Self> {
        let file = dir.file(cards::grant::FILE_NAME).metadata().ok()?;
        let grant = Grant::read(dir.path()).ok()?;
        let slice = grant.cards.iter().find(|slice| slice.uuid == *uuid)?;
        Some(Self {
            quota_bytes: slice.quota_bytes,
            file: [
                file.ino().into(),
                file.ctime().into(),
                file.ctime_nsec().into(),
            ],
        })
    }
}

impl Unsettled {
    /// Asks their brokers, or the driver where it holds them. Without the state lock: both may be slow, and nobody else is to wait for
    /// them. One that does not answer may still hold it all, and neither do reservations that cannot be read stop anybody here.
    pub(crate) fn ask(config: &Config) -> Self {
        let (mut sockets, mut of_brokers) = (Vec::new(), Vec::new());
        let mut of_driver = Vec::new();
        for CardReservations { uuid, grants, .. } in
            cards::reservations::look(&config.state_dir).unwrap_or_default()
        {
            for entry in grants {
                let dir = ContainerDir::of(&config.state_dir, &entry.key);
                let granted = Granted::of(&dir, &uuid)
                    .filter(|granted| granted.quota_bytes != entry.quota_bytes);
                if granted.is_none() && entry.retained_bytes.is_none() {
                    continue;
                }
                let seen = Seen {
                    key: entry.key,
                    uuid: uuid.clone(),
                    quota_bytes: entry.quota_bytes,
                    retained_bytes: entry.retained_bytes,
                    granted,
                    used_bytes: 0,
                };
                let grant = Grant::read(dir.path());
                if grant.is_ok_and(|grant| grant.backend == Backend::DriverLimit) {
                    of_driver.push((dir, seen));
                } else {
                    sockets.push(dir.control_socket());
                    of_brokers.push(seen);
                }
            }
        }
        let answers = client::statuses(&sockets);
        let of_brokers = of_brokers
            .into_iter()
            .zip(answers)
            .filter_map(|(seen, answer)| seen.answered(&answer.ok()?.cards));
        let of_driver = of_driver.into_iter().filter_map(|(dir, seen)| {
            let cards = backend::status_by_driver(config, &dir);
            seen.answered(&cards.ok()?)
        });
        Self(of_brokers.chain(of_driver).collect())
    }

    /// Gives back what they hold no more. Called before memory is placed.
    ///
    /// A container above its quota gets nothing more, so what it held a moment ago is the most that it can hold, unless its quota
    /// has changed since: then it is left for the next time.
    ///
    /// # Errors
    /// Reservations that cannot be read or written.
    pub(crate) fn settle(
        &self,
        config: &Config,
        reservations: &Reservations<'_>,
        inventory: &Inventory,
    ) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        for CardReservations { uuid, grants, .. } in reservations.all()? {
            let Some(card) = inventory.cards.iter().find(|card| card.uuid == uuid) else {
                continue;
            };
            for entry in &grants {
                let mut all = self.0.iter();
                let Some(seen) = all.find(|seen| seen.is_of(entry, &uuid)) else {
                    continue;
                };
                let quota_bytes = seen.quota_now(config);
                let retained_bytes = Some(seen.used_bytes).filter(|used| *used > quota_bytes);
                if quota_bytes.max(seen.used_bytes)
                    < entry.quota_bytes.max(entry.retained_bytes.unwrap_or(0))
                {
                    reservations.resize(&entry.key, card, quota_bytes, retained_bytes)?;
                }
            }
        }
        Ok(())
    }
}

impl Seen {
    /// A quota that the broker has not got yet may be asked for at this moment.
    fn answered(self, cards: &[CardStatus]) -> Option<Self> {
        let card = cards.iter().find(|card| card.uuid == self.uuid.as_str())?;
        let is_followed = |granted: &Granted| granted.quota_bytes == card.quota_bytes;
        let beside = card.reserved_bytes.saturating_add(card.page_table_bytes);
        Some(Self {
            granted: self.granted.filter(is_followed),
            used_bytes: card.used_bytes.saturating_add(beside),
            ..self
        })
    }

    fn is_of(&self, entry: &Entry, uuid: &GpuUuid) -> bool {
        self.key == entry.key
            && self.uuid == *uuid
            && self.quota_bytes == entry.quota_bytes
            && self.retained_bytes == entry.retained_bytes
    }

    /// What is to be reserved as its quota: the grant's, if no command has touched that since its broker was asked.
    fn quota_now(&self, config: &Config) -> u64 {
        let dir = ContainerDir::of(&config.state_dir, &self.key);
        let granted = self.granted.as_ref();
        let untouched = granted.filter(|it| Granted::of(&dir, &self.uuid).as_ref() == Some(it));
        untouched.map_or(self.quota_bytes, |granted| granted.quota_bytes)
    }
}
