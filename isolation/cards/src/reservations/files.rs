//! The files, one a card.

use std::path::{Path, PathBuf};

use plan::Terms;
use sys::failed;

use super::{CardReservations, Entry, SIZE_MAX_BYTES, VERSION};
use crate::Error;
use crate::identity::GpuUuid;
use crate::{reserved_time, rules, store};

/// The terms that every container of a card was granted, by its name. For brokers, which read without the lock: they see the file as it
/// was before a change, or after it.
///
/// # Errors
/// An unreadable, newer or foreign file, or such rules. Terms that the rules leave no meaning are left out.
pub fn terms_of(state_dir: &Path, uuid: &GpuUuid) -> Result<Vec<(String, Terms)>, Error> {
    let cards_dir = state_dir.join("cards");
    let rules = rules::of(state_dir, uuid)?.unwrap_or_default();
    let of_card = read(&cards_dir, uuid)?;
    let resolved = |entry: &Entry| {
        let terms = reserved_time::resolve(&entry.compute, &rules).ok()?;
        Some((entry.key.to_string(), terms))
    };
    Ok(of_card.grants.iter().filter_map(resolved).collect())
}

/// The reservations as they are now, without the lock: what follows from them is to be looked at again under it. A file is replaced in
/// one piece.
///
/// # Errors
/// As [`Reservations::all`].
pub fn look(state_dir: &Path) -> Result<Vec<CardReservations>, Error> {
    all_in(&state_dir.join("cards"))
}

pub(super) fn all_in(cards_dir: &Path) -> Result<Vec<CardReservations>, Error> {
    let mut uuids = Vec::new();
    for entry in sys::entries(cards_dir).map_err(failed("read", cards_dir))? {
        uuids.push(GpuUuid::new(entry.file_name().to_string_lossy())?);
    }
    uuids.sort();
    uuids.iter().map(|uuid| read(cards_dir, uuid)).collect()
}

/// Where a card's reservations are, for whoever looks whether it was written.
#[must_use]
pub fn file_of(state_dir: &Path, uuid: &GpuUuid) -> PathBuf {
    path_of(&state_dir.join("cards"), uuid)
}

pub(super) fn path_of(cards_dir: &Path, uuid: &GpuUuid) -> PathBuf {
    cards_dir.join(uuid.as_str()).join("reservations.json")
}

pub(super) fn read(cards_dir: &Path, uuid: &GpuUuid) -> Result<CardReservations, Error> {
    let path = path_of(cards_dir, uuid);
    let read = store::read_capped("reservations", &path, SIZE_MAX_BYTES);
    let Some(bytes) = Error::absent_is_none(read)? else {
        return Ok(CardReservations {
            version: VERSION,
            uuid: uuid.clone(),
            grants: Vec::new(),
        });
    };
    let of_card: CardReservations = store::parse_versioned("reservations", &path, &bytes, VERSION)?;
    if of_card.uuid == *uuid {
        Ok(of_card)
    } else {
        Err(Error::ForeignReservations {
            path,
            found: of_card.uuid,
        })
    }
}
