//! Why a request is placed where it is, or refused, by what the host's cards have left now. Nothing is changed.

use cards::ContainerKey;
use cards::lock::StateLock;
use cards::placement::{Candidate, Explained, explain};
use cards::reservations::Reservations;
use cards::reserved_time::ReservedTime;
use cards::store::DiskStore;
use host_config::Config;
use spec::Request;
use spec::request::{Reading, Whose};

use crate::host::Host;
use crate::{Container, Error, bundle};

/// What becomes of a request. `without`: as if this container had no grant.
///
/// # Errors
/// No driver; reservations that cannot be read.
pub fn request(
    config: &Config,
    request: &Request,
    without: Option<&ContainerKey>,
) -> Result<Explained, Error> {
    let host = Host::find(config)?;
    let candidates = candidates(config, &host, without)?;
    Ok(explain(&candidates, &request.request, &request.compute))
}

/// The host's cards with what they have left. `without`: as if this container had no grant.
pub(crate) fn candidates(
    config: &Config,
    host: &Host,
    without: Option<&ContainerKey>,
) -> Result<Vec<Candidate>, Error> {
    let (cards, defaults) = (&host.inventory.cards, host.defaults(config));
    if config.state_dir.is_dir() {
        let lock = StateLock::take(&config.state_dir)?;
        let reservations = Reservations::open(&lock, &config.state_dir, &DiskStore);
        return Ok(reservations.candidates_without(without, cards, &defaults)?);
    }
    let nothing = ReservedTime::nothing(defaults.rules.clone(), defaults.kind);
    let empty = cards.iter().map(|card| Candidate {
        card: card.clone(),
        free_bytes: card.memory_bytes,
        reserved: nothing.clone(),
        unhealthy: None,
        overcommitted: None,
    });
    Ok(empty.collect())
}

/// What a container has asked for, by the spec that its engine wrote. `None`: it has no vGPU, or no spec, as one of `cgpu run`.
///
/// # Errors
/// A grant that cannot be read; a spec that is no request by the host's configuration of now.
pub fn request_of(container: &Container) -> Result<Option<Request>, Error> {
    let Some(grant) = container.granted()? else {
        return Ok(None);
    };
    let Some(spec) = bundle::original(container.dir()) else {
        return Ok(None);
    };
    let whose = Whose {
        id: Some(container.key().id()),
        bundle: grant.bundle.as_deref(),
    };
    let reading = Reading::of(container.config(), whose, &spec, grant.frontend.kind)?;
    Ok(reading.request)
}
