//! What a container has reserved of a card's memory changes while it runs.

use crate::Error;
use crate::identity::ContainerKey;
use crate::inventory::Card;
use crate::placement::Bytes;

use super::{Entry, Reservations};

impl Reservations<'_> {
    /// Sets what a container has reserved on one card: its quota, and what it still holds above that.
    ///
    /// # Errors
    /// As [`Reservations::candidates`]; [`Error::NotReserved`]; [`Error::NotEnoughFree`] and [`Error::AboveClaim`], and nothing has changed; a failed file operation.
    pub fn resize(
        &self,
        key: &ContainerKey,
        card: &Card,
        quota_bytes: u64,
        retained_bytes: Option<u64>,
    ) -> Result<(), Error> {
        self.change(key, card, |entry| {
            entry.quota_bytes = quota_bytes;
            entry.retained_bytes = retained_bytes.filter(|reserved| *reserved > quota_bytes);
        })
    }

    /// Reserves no less than this quota for a container on one card, and no less than before: neither a larger quota, of which nobody
    /// knows whether its broker has it, nor what it holds above its quota.
    ///
    /// # Errors
    /// As [`Reservations::resize`].
    pub fn reserve_at_least(
        &self,
        key: &ContainerKey,
        card: &Card,
        quota_bytes: u64,
    ) -> Result<(), Error> {
        self.change(key, card, |entry| {
            entry.quota_bytes = entry.quota_bytes.max(quota_bytes);
        })
    }

    fn change(
        &self,
        key: &ContainerKey,
        card: &Card,
        change: impl FnOnce(&mut Entry),
    ) -> Result<(), Error> {
        let mut of_card = self.read(&card.uuid)?;
        let Some(entry) = of_card.grants.iter_mut().find(|entry| entry.key == *key) else {
            return Err(Error::NotReserved {
                key: self.called(key),
                uuid: card.uuid.clone(),
            });
        };
        let before_bytes = entry.reserved_bytes();
        change(entry);
        let quota_bytes = entry.quota_bytes;
        if let Some(most_bytes) = entry.claimed_bytes.filter(|most| quota_bytes > *most) {
            return Err(Error::AboveClaim {
                uuid: card.uuid.clone(),
                requested: Bytes(quota_bytes).to_string(),
                most: Bytes(most_bytes).to_string(),
            });
        }
        let after_bytes = entry.reserved_bytes();
        let claimed = self.claimed_by_none(|_| true)?;
        let reserved_bytes = of_card
            .reserved_bytes()
            .saturating_add(claimed.bytes_on(&card.uuid));
        if after_bytes > before_bytes && reserved_bytes > card.memory_bytes {
            let others_bytes = reserved_bytes.saturating_sub(after_bytes);
            return Err(Error::NotEnoughFree {
                uuid: card.uuid.clone(),
                requested_bytes: quota_bytes,
                most_bytes: card.memory_bytes.saturating_sub(others_bytes),
            });
        }
        self.write(&of_card)
    }
}
