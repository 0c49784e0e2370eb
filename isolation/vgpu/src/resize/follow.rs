//! Grants that follow their reservations.
//!
//! A `cgpu set` that is killed has changed some of reservation, grant, broker and what the container reads of itself. The reservation
//! is what counts: it was admitted beside the others, neighbours go by it, and the broker follows it by itself (`Share::reconcile`).

use std::sync::Arc;

use cards::reservations::{CardReservations, Reservations};
use cards::store::DiskStore;
use cards::{ComputeTerms, ContainerKey, Grant};
use host_config::{Config, chain};

use crate::state::ContainerDir;
use crate::{Container, Error, slice_record};

/// Gives each grant the terms that are reserved for it. Called under the state lock before anything is made of a grant; what fails is
/// tried again by the next command or start.
///
/// # Errors
/// Reservations that cannot be read.
pub(crate) fn settle_terms(
    config: &Arc<Config>,
    reservations: &Reservations<'_>,
) -> Result<(), Error> {
    let all = reservations.all()?;
    let mut keys: Vec<&ContainerKey> = all
        .iter()
        .flat_map(|of_card| of_card.grants.iter().map(|entry| &entry.key))
        .collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let dir = ContainerDir::of(&config.state_dir, key);
        // One that cannot be read is refused where its container is meant.
        let Ok(grant) = Grant::read(dir.path()) else {
            continue;
        };
        let Some(compute) = reserved(&all, &grant).filter(|compute| *compute != grant.compute)
        else {
            continue;
        };
        tracing::info!(%key, "a change of its terms was cut short: the grant follows what is reserved");
        if let Err(error) = settle(config, &dir, Grant { compute, ..grant }) {
            tracing::warn!(%key, error = %chain(&error), "the grant has other terms than are reserved");
        }
    }
    Ok(())
}

/// The terms that are reserved for a container. `None`: its cards do not agree, since the command was killed between two of them. Each
/// broker follows each card's own, and the next `cgpu set` gives all of them the same again.
fn reserved(all: &[CardReservations], grant: &Grant) -> Option<ComputeTerms> {
    let mut on_cards = grant.cards.iter().map(|slice| {
        let of_card = all.iter().find(|of_card| of_card.uuid == slice.uuid)?;
        let entry = of_card.grants.iter().find(|entry| entry.key == grant.key)?;
        Some(&entry.compute)
    });
    let first = on_cards.next()??;
    on_cards
        .all(|compute| compute == Some(first))
        .then(|| first.clone())
}

fn settle(config: &Arc<Config>, dir: &ContainerDir, grant: Grant) -> Result<(), Error> {
    grant.write(&DiskStore, dir.path())?;
    let terms = grant.cards.iter().map(|slice| {
        let terms = cards::rules::terms_on(&config.state_dir, &slice.uuid, &grant.compute)?;
        Ok((slice.uuid.clone(), terms))
    });
    slice_record::update(dir, &terms.collect::<Result<Vec<_>, Error>>()?);
    super::follow_terms(&Container::new(Arc::clone(config), grant.key));
    Ok(())
}
