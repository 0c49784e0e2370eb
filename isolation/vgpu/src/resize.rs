//! Changing a running container: its quota, its compute terms, or both at once.
//!
//! ```text
//!   reserved: the larger of both quotas, the new terms ─▶ grant.json ─▶ broker ─▶ reserved: the new quota, and what is still held above it
//! ```
//!
//! In this order memory is never granted twice, wherever it stops: what grows is reserved before the broker gives it, what
//! shrinks is given up only once the broker refuses it. What a container holds above a shrunken quota stays reserved until a
//! broker says that it has been given up ([`Unsettled`]). Terms are promised before the broker has them and put back with the
//! quota if any step fails.
//!
//! A command that is killed puts nothing back. A broker follows by itself, a second later at most: its quota is the grant's, and its
//! terms are what is reserved. The next command or start has the grant follow in terms ([`follow`]), and gives up what the larger of
//! both quotas still reserves ([`Unsettled`]).

mod follow;
mod requested;
mod share;
mod unsettled;

use std::cell::Cell;

use cards::lock::StateLock;
use cards::placement::MIB;
use cards::reservations::{Defaults, Reservations};
use cards::store::DiskStore;
use cards::{ContainerKey, Grant, Inventory};
use host_config::{chain, terms};

pub(crate) use self::follow::settle_terms;
pub use self::requested::Requested;
pub use self::share::{Reshared, RulesChanged, RulesRequested, set_rules};
pub(crate) use self::unsettled::Unsettled;
use crate::backend;
use crate::host::Host;
use crate::state::ContainerDir;
use crate::{Container, Error, slice_record};

/// What has become of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Its slices; empty where its memory was not to change.
    pub memory: Vec<Resized>,
    /// Its terms, by card; empty where they were not to change.
    pub compute: Vec<Reshared>,
}

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

/// Changes a container as asked: all of it, or nothing.
///
/// # Errors
/// A value that is not allowed, a container without a vGPU, a card without so much room or time, a broker that does not answer
/// or cannot hold shares: everything is as before then.
pub fn change(container: &Container, requested: &Requested<'_>) -> Result<Changed, Error> {
    let (config, key, dir) = (container.config(), container.key(), container.dir());
    let total_bytes = requested.memory_bytes()?;
    let terms = requested.terms()?;
    if total_bytes.is_none() && terms.is_none() {
        return Err(Error::NothingRequested);
    }
    let exists = || match dir.exists() {
        true => Ok(()),
        false => Err(Error::NoVgpu {
            key: cards::Called::from(key),
        }),
    };
    exists()?;
    let seen = Unsettled::ask(config);
    // Without the lock, for which every start and end of the host waits: this may ask NVML, and a driver can be slow.
    let host = Host::find(config)?;
    let lock = StateLock::take(&config.state_dir).map_err(|error| gone_or(error, key))?;
    exists()?;
    let store = DiskStore;
    let reservations = Reservations::open(&lock, &config.state_dir, &store);
    settle_terms(config, &reservations)?;
    let before = container.grant()?;
    if before.backend == cards::Backend::Broker && !dir.has_broker()? {
        return Err(Error::NoBroker {
            key: container.called(),
        });
    }
    if terms.is_some() {
        share::require_broker(dir, &before)?;
    }
    let mut after = before.clone();
    if let Some(total_bytes) = total_bytes {
        let quota_bytes = part(total_bytes, &before, requested.memory.unwrap_or_default())?;
        for slice in &mut after.cards {
            slice.quota_bytes = quota_bytes;
        }
    }
    if let Some(terms) = terms {
        after.compute = terms.over(&before.compute);
    }
    seen.settle(config, &reservations, &host.inventory)?;
    let change = Change {
        reservations: &reservations,
        inventory: &host.inventory,
        defaults: &host.defaults(config),
        dir,
        backend: backend::of(config, before.backend),
        resizes: total_bytes.is_some(),
        reshares: terms.is_some(),
        reported_terms: Cell::new(false),
    };
    let changed = change.make(&before, &after).inspect_err(|_failure| {
        change.back_to(&before);
    })?;
    if terms.is_some() {
        follow_terms(container);
    }
    Ok(changed)
}

/// The weight of a vGPU's own processes depends on whether the container's share is governed.
fn follow_terms(container: &Container) {
    if let Err(error) = container.follow() {
        tracing::warn!(key = %container.key(), error = %chain(&error), "the weight of the vGPU's own processes is what it was");
    }
}

/// A state folder that is not there holds no container.
fn gone_or(error: cards::Error, key: &ContainerKey) -> Error {
    if matches!(&error, cards::Error::Io(error) if error.is_absent()) {
        return Error::NoVgpu {
            key: cards::Called::from(key),
        };
    }
    error.into()
}

/// Each card's part of the memory in all.
fn part(total_bytes: u64, grant: &Grant, memory: &str) -> Result<u64, Error> {
    let count = u64::try_from(grant.cards.len()).unwrap_or(u64::MAX).max(1);
    if total_bytes.is_multiple_of(count * MIB) {
        return Ok(total_bytes / count);
    }
    Err(terms::Error::Value {
        key: "--memory".to_owned(),
        value: memory.to_owned(),
        allowed: format!("an amount of which each of the container's {count} cards gets whole MiB"),
    }
    .into())
}

/// One change of one container.
struct Change<'a> {
    reservations: &'a Reservations<'a>,
    inventory: &'a Inventory,
    defaults: &'a Defaults,
    dir: &'a ContainerDir,
    backend: Box<dyn backend::Backend + 'a>,
    resizes: bool,
    reshares: bool,
    /// Whether the broker may have heard of the new terms.
    reported_terms: Cell<bool>,
}

impl Change<'_> {
    /// In the order of the module's header.
    fn make(&self, before: &Grant, after: &Grant) -> Result<Changed, Error> {
        let held_before = self.terms(before)?;
        if self.resizes {
            self.reserve_both(before, after)?;
        }
        let reserved = self.promise(after)?;
        after.write(&DiskStore, self.dir.path())?;
        let held = if self.resizes {
            self.backend.resize(self.dir, after)?
        } else {
            Vec::new()
        };
        if self.reshares {
            self.reported_terms.set(true);
            share::tell(self.dir, &after.key, &reserved)?;
        }
        let memory = if self.resizes {
            self.reserve_new(before, after, &held)?
        } else {
            Vec::new()
        };
        slice_record::update(self.dir, &reserved);
        let compute = held_before
            .into_iter()
            .zip(reserved)
            .map(|((uuid, before), (_, terms))| Reshared {
                uuid: uuid.to_string(),
                before,
                terms,
            });
        Ok(Changed {
            memory,
            compute: compute.collect(),
        })
    }

    /// What the grant's terms come to on each of its cards; nothing where they are not to change.
    fn terms(&self, grant: &Grant) -> Result<Vec<share::OnCard>, Error> {
        let cards = grant.cards.iter().filter(|_| self.reshares);
        cards
            .map(|slice| {
                let rules = self
                    .reservations
                    .reserved_time(&slice.uuid, self.defaults)?
                    .rules;
                let terms = cards::reserved_time::resolve(&grant.compute, &rules);
                let refused = |refusal| cards::Error::Time {
                    uuid: slice.uuid.clone(),
                    refusal,
                };
                Ok((slice.uuid.clone(), terms.map_err(refused)?))
            })
            .collect()
    }

    fn promise(&self, grant: &Grant) -> Result<Vec<share::OnCard>, Error> {
        let cards = grant.cards.iter().filter(|_| self.reshares);
        cards
            .map(|slice| {
                let terms = self.reservations.set_compute(
                    &grant.key,
                    &slice.uuid,
                    &grant.compute,
                    self.defaults,
                )?;
                Ok((slice.uuid.clone(), terms))
            })
            .collect()
    }

    fn card(&self, key: &ContainerKey, slice: &cards::CardGrant) -> Result<&cards::Card, Error> {
        let mut cards = self.inventory.cards.iter();
        cards
            .find(|card| card.uuid == slice.uuid)
            .ok_or_else(|| Error::CardGone {
                key: self.dir.called(key),
                uuid: slice.uuid.clone(),
            })
    }

    /// The larger of both, so that neither side of the change is anybody else's.
    fn reserve_both(&self, before: &Grant, after: &Grant) -> Result<(), Error> {
        for (old, new) in before.cards.iter().zip(&after.cards) {
            let larger = old.quota_bytes.max(new.quota_bytes);
            let card = self.card(&before.key, old)?;
            self.reservations
                .reserve_at_least(&before.key, card, larger)?;
        }
        Ok(())
    }

    fn reserve_new(
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
            self.reservations.resize(
                &after.key,
                self.card(&after.key, new)?,
                new.quota_bytes,
                Some(used_bytes),
            )?;
            resized.push(Resized {
                uuid: new.uuid.to_string(),
                before_bytes: old.quota_bytes,
                quota_bytes: new.quota_bytes,
                used_bytes,
            });
        }
        Ok(resized)
    }

    /// After a failure. Whether the broker has heard of the new quota or terms is not known, so it is told the old ones again.
    fn back_to(&self, before: &Grant) {
        let undo_terms = || -> Result<(), Error> {
            let reserved = self.promise(before)?;
            if self.reported_terms.get() {
                share::tell(self.dir, &before.key, &reserved)?;
            }
            Ok(())
        };
        let written = before.write(&DiskStore, self.dir.path());
        let is_granted = written.is_ok();
        let undo_quota = || -> Result<(), Error> {
            let held = self.backend.resize(self.dir, before)?;
            // Its broker follows the grant, which may be the larger one still.
            if is_granted {
                self.reserve_new(before, before, &held)?;
            }
            Ok(())
        };
        // Each is tried whatever becomes of the others.
        let mut undone = vec![written.map_err(Error::from)];
        if self.reshares {
            undone.push(undo_terms());
        }
        if self.resizes {
            undone.push(undo_quota());
        }
        for error in undone.into_iter().filter_map(Result::err) {
            tracing::warn!(key = %before.key, error = %chain(&error), "a failed change could not be undone in full; what is reserved of memory is the larger of both");
        }
    }
}

#[cfg(test)]
mod tests;
