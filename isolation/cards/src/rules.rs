//! How a card's time is divided: `cards/<uuid>/rules.json`.
//!
//! Written under the state lock ([`crate::reservations::Reservations::set_rules`]); read without it by brokers, which see the old file or
//! the new one. A card has no rules until a container with compute terms comes to it: those of the host's configuration at
//! that time, which hold as long as the card has containers. What `cgpu set --card` gives it stays, as `rules.set` beside
//! them says, until the state folder goes.

use std::path::{Path, PathBuf};

pub use plan::CardRules;
use plan::Terms;
use sys::failed;

use crate::grant::ComputeTerms;
use crate::identity::GpuUuid;
use crate::store::{self, Store};
use crate::{Error, reserved_time};

/// The name of the file in the card's folder.
pub const FILE_NAME: &str = "rules.json";

/// Rules are five values.
const SIZE_MAX_BYTES: u64 = 64 << 10;

const WHAT: &str = "rules of a card";

/// A card's rules, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnRules {
    /// The rules.
    pub rules: CardRules,
    /// For how long.
    pub stay: Stay,
}

/// For how long a card keeps its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// As long as it has containers: the next one on the empty card finds the configuration's.
    WhileUsed,
    /// Until it is given others.
    ForGood,
}

/// A card's rules; `None`: it has none yet, and its containers have no terms.
///
/// # Errors
/// Rules that are unreadable, oversized, newer than this program, or have a key or a value that is not allowed.
pub fn of(state_dir: &Path, uuid: &GpuUuid) -> Result<Option<CardRules>, Error> {
    Ok(of_card(&state_dir.join("cards"), uuid)?.map(|own| own.rules))
}

/// The terms that a container has on a card now.
///
/// # Errors
/// As [`of`]; terms that the rules leave no meaning.
pub fn terms_on(state_dir: &Path, uuid: &GpuUuid, compute: &ComputeTerms) -> Result<Terms, Error> {
    let rules = of(state_dir, uuid)?.unwrap_or_default();
    reserved_time::resolve(compute, &rules).map_err(|refusal| Error::Time {
        uuid: uuid.clone(),
        refusal,
    })
}

pub(crate) fn of_card(cards_dir: &Path, uuid: &GpuUuid) -> Result<Option<OwnRules>, Error> {
    let path = path_of(cards_dir, uuid);
    let read = store::read_capped(WHAT, &path, SIZE_MAX_BYTES);
    let Some(bytes) = Error::absent_is_none(read)? else {
        return Ok(None);
    };
    let rules: CardRules = store::parse_versioned(WHAT, &path, &bytes, CardRules::VERSION)?;
    // How many containers it may have at most is judged where the kind of card is known.
    rules
        .validate(plan::CardKind::Simulated)
        .map_err(|source| Error::Rules { path, source })?;
    Ok(Some(OwnRules {
        rules,
        stay: if stay_file(cards_dir, uuid).exists() {
            Stay::ForGood
        } else {
            Stay::WhileUsed
        },
    }))
}

pub(crate) fn write(
    store: &dyn Store,
    cards_dir: &Path,
    uuid: &GpuUuid,
    rules: &CardRules,
) -> Result<(), Error> {
    store::write_json(store, WHAT, &path_of(cards_dir, uuid), rules)
}

/// `None`: it has none.
pub(crate) fn set(
    store: &dyn Store,
    cards_dir: &Path,
    uuid: &GpuUuid,
    own: Option<&OwnRules>,
) -> Result<(), Error> {
    let remove = |path: PathBuf| store.remove_file(&path).map_err(failed("remove", &path));
    let stays = stay_file(cards_dir, uuid);
    match own.map(|own| own.stay) {
        Some(Stay::ForGood) => store::replace(store, &stays, b"")?,
        Some(Stay::WhileUsed) | None => remove(stays)?,
    }
    match own {
        Some(own) => write(store, cards_dir, uuid, &own.rules),
        None => Ok(remove(path_of(cards_dir, uuid))?),
    }
}

fn stay_file(cards_dir: &Path, uuid: &GpuUuid) -> PathBuf {
    cards_dir.join(uuid.as_str()).join("rules.set")
}

fn path_of(cards_dir: &Path, uuid: &GpuUuid) -> PathBuf {
    cards_dir.join(uuid.as_str()).join(FILE_NAME)
}
