//! Claims of a cluster's scheduler, as the node's agent brings and takes them.
//!
//! A claim is prepared before there is a container: its record is its reservation (`cards::claims`), and no reclaim takes it. The container
//! that comes for it gets its vGPU as any other.

use std::sync::Arc;

use cards::ContainerKey;
use cards::claims::{ClaimUid, Record};
use cards::lock::StateLock;
use cards::reservations::Reservations;
use cards::store::DiskStore;
use host_config::Config;

use crate::host::Host;
use crate::lifecycle::{reclaim_locked, sweep_sockets};
use crate::resize::Unsettled;
use crate::state::ContainerDir;
use crate::{Error, backend, state};

/// What the driver and the brokers answered, by which claims are reserved.
#[derive(Debug)]
pub struct Answers {
    host: Host,
    unsettled: Unsettled,
}

impl Answers {
    /// Asks them, without any lock: they may take long.
    ///
    /// # Errors
    /// The host's.
    pub fn ask(config: &Config) -> Result<Self, Error> {
        let host = Host::find_and_save(config)?;
        state::prepare(&config.state_dir)?;
        let unsettled = Unsettled::ask(config);
        sweep_sockets();
        Ok(Self { host, unsettled })
    }

    /// Reserves what a claim was given on this host, durably. Reserved already, its pods are added.
    ///
    /// # Errors
    /// A share that does not fit beside what is granted and reserved, or whose card is unknown or unhealthy; a claim that was given otherwise
    /// before, by which a container lives; the host's. Nothing is reserved then.
    pub fn reserve(&self, config: &Config, record: &Record) -> Result<(), Error> {
        let Self { host, unsettled } = self;
        let lock = StateLock::take(&config.state_dir)?;
        let (lock, _reclaimed) = reclaim_locked(&Arc::new(config.clone()), lock)?;
        let store = DiskStore;
        let reservations = Reservations::open(&lock, &config.state_dir, &store);
        unsettled.settle(config, &reservations, &host.inventory)?;
        reservations.reserve_claim(record, &host.inventory.cards, &host.defaults(config))?;
        Ok(())
    }
}

/// Lets the pods of a record in to a claim that is reserved with the same shares; another one, or an unknown one, is left as it is.
///
/// # Errors
/// The host's.
pub fn let_in(config: &Config, record: &Record) -> Result<(), Error> {
    let lock = StateLock::take(&config.state_dir)?;
    let store = DiskStore;
    Reservations::open(&lock, &config.state_dir, &store).let_pods_in(record)?;
    Ok(())
}

/// Takes a claim's reservation back; one that is not reserved is fine. A container that has a share keeps it to its end.
///
/// # Errors
/// The host's.
pub fn release(config: &Config, claim: &ClaimUid) -> Result<(), Error> {
    // Nothing was ever prepared.
    if !config.state_dir.exists() {
        return Ok(());
    }
    let lock = StateLock::take(&config.state_dir)?;
    let store = DiskStore;
    Reservations::open(&lock, &config.state_dir, &store).unreserve_claim(claim)?;
    Ok(())
}

/// Whether a process of a container lives, as far as is recorded, or may live: it keeps its share of a claim that is gone.
#[must_use]
pub fn is_used_by(config: &Config, key: &ContainerKey) -> bool {
    backend::has_processes(&ContainerDir::of(&config.state_dir, key)).unwrap_or(true)
}
