//! What was found out of a card's driver: `cards/<uuid>/enforcement.json`.
//!
//! Written by brokers that tried the knobs on a group of their own (`probe`), and by nobody else: what a container's groups answer, the
//! container may have provoked, and here it would speak for the card. A container whose terms *must* be held (`mode = "strict"`) starts only
//! where what is written is enough. Where nothing is known yet of this card and this version of the driver, its broker tries them
//! before it says that it is ready; what it cannot find out is not held.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cards::store::replace_beside_others;
use compute::{EnforcementLevel, Found};
use plan::Terms;
use serde::{Deserialize, Serialize};

use crate::probe::{self, ProbeError, ProbeLock};
use crate::share::Share;
use crate::terms::is_native;

const FILE_NAME: &str = "enforcement.json";
const VERSION: u32 = 1;
const SIZE_MAX_BYTES: u64 = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    version: u32,
    driver_version: String,
    enforcement_level: EnforcementLevel,
    #[serde(default)]
    reason: Option<String>,
}

/// When a broker begins to hold a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// Before the container starts: there is time to find out what the card's knobs can hold.
    First,
    /// After another broker, while the container runs.
    TakenOver,
}

/// A share that nobody knows to be held as the grant wants it.
#[derive(Debug, thiserror::Error)]
pub enum NotStrict {
    /// It is known not to be.
    #[error(transparent)]
    TooLow(TooLow),
    /// It could not be found out.
    #[error(
        "[compute] mode = \"strict\": policy {policy} needs enforcement level {}, and which enforcement level driver {driver_version} has on card {uuid} could not be found out",
        needed.name()
    )]
    Unknown {
        /// Of which card.
        uuid: String,
        /// Of which driver.
        driver_version: String,
        /// Which policy is wanted.
        policy: &'static str,
        /// What it needs.
        needed: EnforcementLevel,
        /// Why.
        #[source]
        source: Box<ProbeError>,
    },
    /// Nothing is known, and a container that runs does not wait for it.
    #[error(
        "[compute] mode = \"strict\": policy {policy} needs enforcement level {}, and nothing is known of driver {driver_version} on card {uuid} any more",
        needed.name()
    )]
    Forgotten {
        /// Of which card.
        uuid: String,
        /// Of which driver.
        driver_version: String,
        /// Which policy is wanted.
        policy: &'static str,
        /// What it needs.
        needed: EnforcementLevel,
    },
}

/// A share that cannot be held as the grant wants it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "[compute] mode = \"strict\": policy {policy} needs enforcement level {}, and driver {driver_version} on card {uuid} has enforcement level {}{why}",
    needed.name(),
    found.name()
)]
pub struct TooLow {
    uuid: String,
    driver_version: String,
    policy: &'static str,
    needed: EnforcementLevel,
    found: EnforcementLevel,
    why: String,
}

fn path_of(share: &Share, card: usize) -> Option<PathBuf> {
    let state_dir = share.sources.state_dir.as_ref()?;
    let uuid = &share.context.cards.get(card)?.uuid;
    Some(state_dir.join("cards").join(uuid).join(FILE_NAME))
}

fn read(share: &Share, card: usize) -> Option<Record> {
    let path = path_of(share, card)?;
    let is_small = fs::metadata(&path).is_ok_and(|file| file.len() <= SIZE_MAX_BYTES);
    let text = is_small.then(|| fs::read(&path).ok())??;
    let record: Record = serde_json::from_slice(&text).ok()?;
    let of_this_driver = record.driver_version == share.context.driver.version();
    (record.version == VERSION && of_this_driver).then_some(record)
}

/// Whether terms that must be held may begin on a card. Before a container starts, what is not known is found out.
pub(crate) fn check(
    share: &Arc<Share>,
    card: usize,
    terms: &Terms,
    beginning: Beginning,
) -> Result<(), NotStrict> {
    if is_native(terms) {
        return Ok(());
    }
    let slot = share.context.cards.get(card);
    let uuid = slot.map(|slot| slot.uuid.clone()).unwrap_or_default();
    let driver_version = share.context.driver.version().to_owned();
    let policy = terms.policy.name();
    let needed = EnforcementLevel::needed(terms);
    let record = match (read(share, card), beginning) {
        (Some(record), _) => record,
        (None, Beginning::TakenOver) => {
            return Err(NotStrict::Forgotten {
                uuid,
                driver_version,
                policy,
                needed,
            });
        }
        (None, Beginning::First) => find_out(share, card).map_err(|source| NotStrict::Unknown {
            uuid: uuid.clone(),
            driver_version,
            policy,
            needed,
            source: Box::new(source),
        })?,
    };
    if record.enforcement_level >= needed {
        return Ok(());
    }
    Err(NotStrict::TooLow(TooLow {
        uuid,
        driver_version: record.driver_version,
        policy: terms.policy.name(),
        needed,
        found: record.enforcement_level,
        why: record
            .reason
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default(),
    }))
}

/// Tries the card's knobs and writes down what was found; one start at a time, and whoever comes second takes what the first has found.
fn find_out(share: &Arc<Share>, card: usize) -> Result<Record, ProbeError> {
    let path = path_of(share, card).ok_or(ProbeError::NoCard)?;
    let _lock = ProbeLock::take(path.parent().unwrap_or(&path))?;
    if let Some(record) = read(share, card) {
        return Ok(record);
    }
    let found = probe::find_out(share, card)?;
    Ok(written(share, card, &path, &found))
}

/// Tries the card's knobs anew, whatever is written, and writes down what was found.
pub(crate) fn confirm(share: &Arc<Share>, card: usize) -> Result<Found, ProbeError> {
    let path = path_of(share, card).ok_or(ProbeError::NoCard)?;
    let _lock = ProbeLock::take(path.parent().unwrap_or(&path))?;
    let found = probe::find_out(share, card)?;
    written(share, card, &path, &found);
    Ok(found)
}

fn written(share: &Share, card: usize, path: &Path, found: &Found) -> Record {
    let record = Record {
        version: VERSION,
        driver_version: share.context.driver.version().to_owned(),
        enforcement_level: found.enforcement_level,
        reason: found.reason.as_ref().map(ToString::to_string),
    };
    if read(share, card).as_ref() == Some(&record) {
        return record;
    }
    tracing::info!(
        card,
        driver = record.driver_version,
        enforcement_level = record.enforcement_level.name(),
        reason = record.reason,
        "the card's knobs were tried"
    );
    write_down(path, &record);
    record
}

fn write_down(path: &Path, record: &Record) {
    let written = serde_json::to_vec(record)
        .map_err(|error| error.to_string())
        .and_then(|bytes| replace_beside_others(path, &bytes).map_err(|error| sys::chain(&error)));
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), error, "a card's enforcement level is not written down");
    }
}
