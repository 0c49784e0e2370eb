//! The reservations: who holds how much of one card, `cards/<uuid>/reservations.json`.
//!
//! Read and changed only under the state lock, but for what brokers ask of it ([`terms_of`]) and what is looked at first ([`look`]). Reservations that are newer than this program or cannot be read are an error
//! and stay as they are: to start afresh would grant memory twice.
//!
//! What a claim of Kubernetes' gives is reserved too, by its record ([`crate::claims`]): until a container has the share, and again from
//! the container's end to the claim's.

use std::path::{Path, PathBuf};

use plan::{CardKind, CardRules, Terms};
use serde::{Deserialize, Serialize};
use sys::failed;

use crate::Error;
use crate::called::Holder;
use crate::claims::{ClaimUid, Claims, Pointer};
use crate::grant::{ComputePolicy, ComputeTerms, Grant, is_default};
use crate::health;
use crate::identity::{ContainerKey, GpuUuid};
use crate::inventory::Card;
use crate::lock::StateLock;
use crate::placement::{Candidate, Overcommitted};
use crate::reserved_time::ReservedTime;
use crate::rules::{self, OwnRules, Stay};
use crate::store::{self, Store};

mod claimed;
mod files;
mod in_the_way;
mod resize;

use self::claimed::ClaimedByNone;
pub use self::claimed::UnheldShare;
use self::files::{all_in, path_of, read};
pub use self::files::{file_of, look, terms_of};

/// The version that this cgpu writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// The file of a thousand containers is a tenth of this.
const SIZE_MAX_BYTES: u64 = 4 << 20;

/// One card's account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardReservations {
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
    pub retained_bytes: Option<u64>,
    /// The shares of claims that the container is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Pointer>,
    /// What these give it of this card, bytes. What its quota leaves of that stays the claim's, since the scheduler counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_bytes: Option<u64>,
    /// What it asked of the card's time; an entry that does not say follows the card's rules.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compute: ComputeTerms,
    /// When it was granted, milliseconds since 1970.
    pub created_at_unix_ms: u64,
}

/// The rules of cards that have none of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// As the host's configuration says.
    pub rules: CardRules,
    /// What kind of cards this host has.
    pub kind: CardKind,
}

/// The reservations of a state folder, in the hand of whoever holds the lock.
#[derive(Debug)]
pub struct Reservations<'a> {
    state_dir: PathBuf,
    cards_dir: PathBuf,
    claims: Claims,
    lock: &'a StateLock,
    store: &'a dyn Store,
}

impl<'a> Reservations<'a> {
    /// The lock is asked for as proof only.
    #[must_use]
    pub fn open(lock: &'a StateLock, state_dir: &Path, store: &'a dyn Store) -> Self {
        Self {
            state_dir: state_dir.to_owned(),
            cards_dir: state_dir.join("cards"),
            claims: Claims::of(state_dir),
            lock,
            store,
        }
    }

    /// What is left of each card.
    ///
    /// # Errors
    /// An unreadable, newer or foreign file; rules that cannot be read.
    pub fn candidates(&self, cards: &[Card], defaults: &Defaults) -> Result<Vec<Candidate>, Error> {
        self.candidates_without(None, cards, defaults)
    }

    /// The same as if this container had no grant.
    ///
    /// # Errors
    /// As [`Reservations::candidates`].
    pub fn candidates_without(
        &self,
        container: Option<&ContainerKey>,
        cards: &[Card],
        defaults: &Defaults,
    ) -> Result<Vec<Candidate>, Error> {
        let claimed = self.claimed_by_none(|_| true)?;
        self.left_of(cards, defaults, &claimed, |entry| {
            Some(&entry.key) != container
        })
    }

    /// What is left of each card beside these shares of claims and those entries that count.
    fn left_of(
        &self,
        cards: &[Card],
        defaults: &Defaults,
        claimed: &ClaimedByNone,
        counts: impl Fn(&Entry) -> bool,
    ) -> Result<Vec<Candidate>, Error> {
        cards
            .iter()
            .map(|card| {
                let mut of_card = self.read(&card.uuid)?;
                of_card.grants.retain(&counts);
                let reserved_bytes = of_card
                    .reserved_bytes()
                    .saturating_add(claimed.bytes_on(&card.uuid));
                let memory_bytes = card.memory_bytes;
                let free_bytes = memory_bytes.checked_sub(reserved_bytes);
                let overcommitted = Overcommitted {
                    reserved_bytes,
                    memory_bytes,
                };
                Ok(Candidate {
                    card: card.clone(),
                    free_bytes: free_bytes.unwrap_or(0),
                    overcommitted: free_bytes.is_none().then_some(overcommitted),
                    reserved: self.reserved(&of_card, claimed, defaults)?,
                    unhealthy: health::of_card(&self.cards_dir, &card.uuid)?
                        .map(|health| health.reason),
                })
            })
            .collect()
    }

    /// Writes the grant's slices, card by card. After an error some may be written: [`Reservations::remove`] undoes them.
    ///
    /// # Errors
    /// As [`Reservations::candidates`]; [`Error::AlreadyReserved`]; a failed file operation.
    pub fn add(&self, grant: &Grant) -> Result<(), Error> {
        for slice in &grant.cards {
            let mut of_card = self.read(&slice.uuid)?;
            if of_card.grants.iter().any(|entry| entry.key == grant.key) {
                return Err(Error::AlreadyReserved {
                    key: self.called(&grant.key),
                    uuid: slice.uuid.clone(),
                });
            }
            of_card.grants.push(Entry {
                key: grant.key.clone(),
                quota_bytes: slice.quota_bytes,
                retained_bytes: None,
                claimed_bytes: (!grant.claims.is_empty()).then_some(slice.quota_bytes),
                claims: grant.claims.clone(),
                compute: grant.compute.clone(),
                created_at_unix_ms: grant.created_at_unix_ms,
            });
            self.write(&of_card)?;
        }
        Ok(())
    }

    /// Who has been promised what of a card's time.
    ///
    /// # Errors
    /// As [`Reservations::candidates`].
    pub fn reserved_time(
        &self,
        uuid: &GpuUuid,
        defaults: &Defaults,
    ) -> Result<ReservedTime, Error> {
        let claimed = self.claimed_by_none(|_| true)?;
        self.reserved(&self.read(uuid)?, &claimed, defaults)
    }

    /// Sets what a container asks of a card's time, if it fits beside the others.
    ///
    /// # Errors
    /// As [`Reservations::candidates`]; [`Error::NotReserved`]; [`Error::Time`], [`Error::InTheWay`] and [`Error::AboveClaim`], and nothing has changed; a failed file operation.
    pub fn set_compute(
        &self,
        key: &ContainerKey,
        uuid: &GpuUuid,
        compute: &ComputeTerms,
        defaults: &Defaults,
    ) -> Result<Terms, Error> {
        let mut of_card = self.read(uuid)?;
        let not_reserved = || Error::NotReserved {
            key: self.called(key),
            uuid: uuid.clone(),
        };
        let at = of_card.grants.iter().position(|entry| entry.key == *key);
        let at = at.ok_or_else(not_reserved)?;
        let mut entry = of_card.grants.remove(at);
        self.refuse_above_claim(&entry, uuid, compute)?;
        let claimed = self.claimed_by_none(|_| true)?;
        // Its own former terms must not stand in its way; rules are the card's, not those of an empty one.
        let reserved = ReservedTime {
            rules: self.rules_of(uuid, Tenants::Some, defaults)?,
            ..self.reserved(&of_card, &claimed, defaults)?
        };
        let refused = |refusal| self.refused((&of_card, &claimed), &reserved, compute, refusal);
        let terms = reserved.admit(compute).map_err(refused)?;
        entry.compute = compute.clone();
        of_card.grants.insert(at, entry);
        self.pin(uuid, &reserved.rules, &terms)?;
        self.write(&of_card)?;
        Ok(terms)
    }

    /// What every container of a card would have under other rules.
    ///
    /// # Errors
    /// As [`Reservations::candidates`]; [`Error::Readmit`] names the first container that would not fit.
    pub fn under(
        &self,
        uuid: &GpuUuid,
        rules: &CardRules,
        kind: CardKind,
    ) -> Result<Vec<(ContainerKey, Terms)>, Error> {
        let mut reserved = ReservedTime::nothing(rules.clone(), kind);
        let mut all = Vec::new();
        for entry in self.read(uuid)?.grants {
            let admit = |compute: &ComputeTerms| {
                reserved.admit(compute).map_err(|refusal| Error::Readmit {
                    holder: Holder::Container(self.called(&entry.key)),
                    uuid: uuid.clone(),
                    refusal,
                })
            };
            let terms = admit(&entry.compute)?;
            let counted = admit(&self.counted(&entry)?)?;
            reserved.holders.push(counted);
            all.push((entry.key, terms));
        }
        for (claim, compute) in self.claimed_by_none(|_| true)?.terms_on(uuid) {
            let terms = reserved.admit(compute).map_err(|refusal| Error::Readmit {
                holder: Holder::Claim(claim.to_owned()),
                uuid: uuid.clone(),
                refusal,
            })?;
            reserved.holders.push(terms);
        }
        Ok(all)
    }

    /// A card's own rules; `None`: it has none yet.
    ///
    /// # Errors
    /// Rules that cannot be read.
    pub fn rules(&self, uuid: &GpuUuid) -> Result<Option<OwnRules>, Error> {
        rules::of_card(&self.cards_dir, uuid)
    }

    /// Gives a card rules of its own; `None`: it has none, as before its first container. Whether the containers fit under
    /// them is [`Reservations::under`]'s to say.
    ///
    /// # Errors
    /// A failed file operation.
    pub fn set_rules(&self, uuid: &GpuUuid, own: Option<&OwnRules>) -> Result<(), Error> {
        self.make_folder(uuid)?;
        rules::set(self.store, &self.cards_dir, uuid, own)
    }

    /// Writes the rules that a newcomer's terms were resolved by: they hold from then on. A card whose containers have no terms
    /// needs none.
    ///
    /// # Errors
    /// A failed file operation.
    pub fn pin(&self, uuid: &GpuUuid, rules: &CardRules, terms: &Terms) -> Result<(), Error> {
        match self.rules(uuid)? {
            None if *terms == Terms::NATIVE => return Ok(()),
            Some(own) if own.rules == *rules => return Ok(()),
            // Rules that an earlier container of the card has left.
            None | Some(_) => {}
        }
        self.make_folder(uuid)?;
        rules::write(self.store, &self.cards_dir, uuid, rules)
    }

    fn reserved(
        &self,
        of_card: &CardReservations,
        claimed: &ClaimedByNone,
        defaults: &Defaults,
    ) -> Result<ReservedTime, Error> {
        let tenants = if of_card.grants.is_empty() {
            Tenants::None
        } else {
            Tenants::Some
        };
        let rules = self.rules_of(&of_card.uuid, tenants, defaults)?;
        let mut reserved = ReservedTime::nothing(rules, defaults.kind);
        for entry in &of_card.grants {
            let holder = || Holder::Container(self.called(&entry.key));
            reserved.count(&self.counted(entry)?, &holder);
        }
        // A claim's terms are resolved by the rules of now until it has a container.
        for (claim, compute) in claimed.terms_on(&of_card.uuid) {
            reserved.count(compute, &|| Holder::Claim(claim.to_owned()));
        }
        Ok(reserved)
    }

    /// Containers that came before the card had rules were promised nothing, whatever the configuration says now.
    fn rules_of(
        &self,
        uuid: &GpuUuid,
        tenants: Tenants,
        defaults: &Defaults,
    ) -> Result<CardRules, Error> {
        Ok(match (self.rules(uuid)?, tenants) {
            (Some(own), Tenants::Some) => own.rules,
            (Some(own), Tenants::None) if own.stay == Stay::ForGood => own.rules,
            (_, Tenants::None) => defaults.rules.clone(),
            (None, Tenants::Some) => CardRules {
                policy: ComputePolicy::Native,
                ..defaults.rules.clone()
            },
        })
    }

    /// Takes the container out of every file. Files without it are not written.
    ///
    /// # Errors
    /// An unreadable, newer or foreign file; a failed file operation.
    pub fn remove(&self, key: &ContainerKey) -> Result<(), Error> {
        for mut of_card in self.all()? {
            let before = of_card.grants.len();
            of_card.grants.retain(|entry| entry.key != *key);
            if of_card.grants.len() != before {
                self.write(&of_card)?;
            }
        }
        Ok(())
    }

    /// Every file that exists, by UUID, also of cards that are gone.
    ///
    /// # Errors
    /// An unreadable, newer or foreign file.
    pub fn all(&self) -> Result<Vec<CardReservations>, Error> {
        all_in(&self.cards_dir)
    }

    fn read(&self, uuid: &GpuUuid) -> Result<CardReservations, Error> {
        read(&self.cards_dir, uuid)
    }

    fn write(&self, of_card: &CardReservations) -> Result<(), Error> {
        self.make_folder(&of_card.uuid)?;
        store::write_json(
            self.store,
            "reservations",
            &self.path(&of_card.uuid),
            of_card,
        )
    }

    fn make_folder(&self, uuid: &GpuUuid) -> Result<(), Error> {
        for dir in [&self.cards_dir, &self.cards_dir.join(uuid.as_str())] {
            self.store.create_dir(dir).map_err(failed("create", dir))?;
        }
        Ok(())
    }

    fn path(&self, uuid: &GpuUuid) -> PathBuf {
        path_of(&self.cards_dir, uuid)
    }
}

/// Whether a card has containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tenants {
    None,
    Some,
}

impl CardReservations {
    /// Sum of all grants; saturates, so that a forged file reads as full.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.grants
            .iter()
            .fold(0, |sum, entry| sum.saturating_add(entry.reserved_bytes()))
    }
}

impl Entry {
    /// What nobody else can have.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        let retained_bytes = self.retained_bytes.unwrap_or(0);
        let claimed_bytes = self.claimed_bytes.unwrap_or(0);
        self.quota_bytes.max(retained_bytes).max(claimed_bytes)
    }
}

#[cfg(test)]
mod tests;
