//! NVIDIA's own limit of the container's control group (R615 and later), through `cgpu-limits`.
//!
//! What the driver's documentation makes necessary, in order:
//!
//! - The limit is set on the container's **own leaf**, once it is there and before the container starts: a leaf's own
//!   limit is `max` whatever its ancestors' are, and tools in the container show the leaf's.
//! - Soft and hard limit are equal: `cuMemGetInfo` follows the one, `nvmlDeviceGetMemoryInfo_v2` the other.
//! - Every limit is **read back**; what is not as asked is a failed start.
//! - The soft limit is added to every ancestor's reservation and taken off only when it is lowered through NVML: it
//!   is **zeroed before the group goes**, or the ancestors keep it. The note `limits.json`, written before the limit is set,
//!   says what is to be zeroed, also to who reclaims after a killed frontend. The hard limit stays until the group goes, so that
//!   a container whose deletion fails is held still.
//! - `dmem.*` files are never written by hand: only the driver's way keeps the ancestors right.
//!
//! With systemd's cgroup driver the scope may go with its last process, before anybody can zero it; the log says so then.

use std::path::PathBuf;
use std::time::Duration;

use cards::store::{DiskStore, read_capped, replace};
use cards::{DriverSpec, Grant};
use control::CardStatus;
use host_config::config::Strength;
use host_config::{Config, chain, programs, trusted};
use limits::{Answer, CardLimit, CardUse, Question, What, ask};
use serde::{Deserialize, Serialize};

use super::leaf::{Leaf, is_v2};
use super::{Backend, Ending, Held, Kind, init};
use crate::Error;
use crate::broker::Starting;
use crate::error::WhyNot;
use crate::host::Host;
use crate::state::ContainerDir;

/// The note's name in the container's folder.
pub(crate) const FILE: &str = "limits.json";

/// The version that this cgpu writes, and the only one that it reads.
const VERSION: u32 = 1;

/// A note names a few cards.
const SIZE_MAX_BYTES: u64 = 1 << 16;

/// A driver's answer to what others wait for, with the state lock among them; it takes tens of milliseconds.
const ANSWER: Duration = Duration::from_secs(2);

/// What is waited for without the state lock. A driver that nobody keeps loaded takes seconds to find its cards.
const ALONE: Duration = Duration::from_secs(30);

/// The program's name, among cgpu's own.
const PROGRAM: &str = "cgpu-limits";

/// What is set, or was about to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    version: u32,
    leaf: Leaf,
    /// Whether ancestors hold the cards' bytes for the leaf.
    reservation: Reservation,
    cards: Vec<RecordedCard>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reservation {
    /// Soft = hard.
    Held,
    /// Soft = 0.
    Zeroed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedCard {
    uuid: String,
    bytes: u64,
}

impl Record {
    fn question(&self) -> What {
        What::Get {
            cgroup: self.leaf.path.clone(),
            cards: self.cards.iter().map(|card| card.uuid.clone()).collect(),
        }
    }
}

/// The driver.
#[derive(Debug)]
pub(super) struct DriverLimit<'a> {
    pub(super) config: &'a Config,
}

impl Backend for DriverLimit<'_> {
    fn kind(&self) -> Kind {
        Kind::DriverLimit
    }

    fn strength(&self) -> Strength {
        Strength::Hard
    }

    fn offered(&self, host: &Host) -> Result<(), WhyNot> {
        match host.driver {
            DriverSpec::Kernel => {}
            DriverSpec::Sim { .. } => return Err(WhyNot::Simulated),
        }
        let root = &self.config.backend.cgroup_root;
        if !is_v2(root) {
            return Err(WhyNot::CgroupV1 { root: root.clone() });
        }
        // Which cards a container gets is not known yet; a card that MIG divides is refused when its limit is set.
        self.ask(What::Probe { cards: Vec::new() }, ALONE)?;
        Ok(())
    }

    fn prepare(&self, _dir: &ContainerDir, _grant: &Grant) -> Result<Option<Starting>, Error> {
        Ok(None)
    }

    fn verify_filter(&self, dir: &ContainerDir, grant: &Grant, init: i32) -> Result<(), Error> {
        let leaf = Leaf::of(&self.config.backend.cgroup_root, init)?;
        // Also the proof that the leaf was this process's: the number has not changed hands meanwhile.
        init::record(dir, init)?;
        self.hold(dir, leaf, grant, ALONE).map(drop)
    }

    fn resize(&self, dir: &ContainerDir, grant: &Grant) -> Result<Vec<Held>, Error> {
        let record = read(dir)?
            .filter(|record| record.leaf.exists())
            .ok_or_else(|| Error::NotHeld {
                key: dir.called(&grant.key),
            })?;
        let held = self.found(&self.hold(dir, record.leaf, grant, ANSWER)?)?;
        let held = held.into_iter().map(|card| Held {
            uuid: card.limit.uuid,
            used_bytes: card.used_bytes,
        });
        Ok(held.collect())
    }

    fn teardown(&self, dir: &ContainerDir) -> Result<(), Error> {
        self.zero(dir, ALONE)
    }

    /// A grant must come back whatever NVML says: what is left is a reservation, and the log names it. Nobody tries again, so that the driver
    /// has its time, however short the patience with killed processes is.
    fn end(&self, dir: &ContainerDir, ending: &Ending<'_>) -> Result<(), Error> {
        if !(ending.is_still)() {
            return Ok(());
        }
        if let Err(error) = self.zero(dir, ALONE) {
            tracing::warn!(
                dir = %dir.path().display(),
                error = %chain(&error),
                "the soft memory limit could not be zeroed: the control group's ancestors may keep the reservation"
            );
        }
        Ok(())
    }
}

impl DriverLimit<'_> {
    /// Takes the reservation off the ancestors.
    fn zero(&self, dir: &ContainerDir, in_all: Duration) -> Result<(), Error> {
        let Some(record) = read(dir)? else {
            return Ok(());
        };
        if record.reservation == Reservation::Zeroed {
            return Ok(());
        }
        if !record.leaf.exists() {
            tracing::warn!(
                cgroup = %record.leaf.path.display(),
                "the control group went before its soft memory limit was zeroed: its ancestors may keep the reservation"
            );
            return Ok(());
        }
        let cards = limits(&record.cards, Reservation::Zeroed);
        self.set(&record.leaf, cards, in_all)?;
        write(
            dir,
            &Record {
                reservation: Reservation::Zeroed,
                ..record
            },
        )
    }

    fn hold(
        &self,
        dir: &ContainerDir,
        leaf: Leaf,
        grant: &Grant,
        in_all: Duration,
    ) -> Result<Record, Error> {
        let record = Record {
            version: VERSION,
            leaf,
            reservation: Reservation::Held,
            cards: grant
                .cards
                .iter()
                .map(|card| RecordedCard {
                    uuid: card.uuid.to_string(),
                    bytes: card.quota_bytes,
                })
                .collect(),
        };
        write(dir, &record)?;
        self.set(
            &record.leaf,
            limits(&record.cards, Reservation::Held),
            in_all,
        )?;
        Ok(record)
    }

    /// The cards' limits, and what is held of them.
    fn found(&self, record: &Record) -> Result<Vec<CardUse>, Error> {
        let answer = self.ask(record.question(), ANSWER);
        match answer.map_err(|source| Error::Limits { source })? {
            Answer::Found { cards } => Ok(cards),
            answer @ (Answer::Offered { .. } | Answer::Set | Answer::Refused { .. }) => {
                Err(self.unasked(answer))
            }
        }
    }

    fn set(&self, leaf: &Leaf, cards: Vec<CardLimit>, in_all: Duration) -> Result<(), Error> {
        let what = What::Set {
            cgroup: leaf.path.clone(),
            cards,
        };
        let answer = self.ask(what, in_all);
        match answer.map_err(|source| Error::Limits { source })? {
            Answer::Set => Ok(()),
            answer @ (Answer::Offered { .. } | Answer::Found { .. } | Answer::Refused { .. }) => {
                Err(self.unasked(answer))
            }
        }
    }

    fn unasked(&self, answer: Answer) -> Error {
        Error::Limits {
            source: limits::Error::Unasked {
                path: program(self.config).unwrap_or_default(),
                answer: Box::new(answer),
            },
        }
    }

    fn ask(&self, what: What, in_all: Duration) -> Result<Answer, limits::Error> {
        let program = program(self.config).map_err(|source| limits::Error::Spawn {
            path: PathBuf::from(PROGRAM),
            source,
        })?;
        ask(
            &program,
            &Question {
                library: self.config.backend.nvml_library.clone(),
                what,
            },
            in_all,
        )
    }
}

/// What a broker would report of a container's cards, by the driver: its limits are the quotas. Nothing where none is set.
///
/// # Errors
/// A note that cannot be read; the driver does not answer.
pub(crate) fn status(config: &Config, dir: &ContainerDir) -> Result<Vec<CardStatus>, Error> {
    let Some(record) = read(dir)?.filter(|record| record.leaf.exists()) else {
        return Ok(Vec::new());
    };
    let found = DriverLimit { config }.found(&record)?;
    let cards = found.into_iter().map(|card| CardStatus {
        uuid: card.limit.uuid,
        quota_bytes: card.limit.hard_bytes,
        used_bytes: card.used_bytes,
        ..CardStatus::default()
    });
    Ok(cards.collect())
}

/// The program that sets limits.
///
/// # Errors
/// The configured program is absent, or others can change it; without one, this program's own place is not known.
fn program(config: &Config) -> std::io::Result<PathBuf> {
    match &config.backend.limits_program {
        Some(path) => {
            trusted::program("program of NVIDIA's limits", path)
                .map_err(|error| std::io::Error::other(chain(&error)))?;
            Ok(path.clone())
        }
        None => programs::internal(PROGRAM),
    }
}

fn limits(cards: &[RecordedCard], reservation: Reservation) -> Vec<CardLimit> {
    cards
        .iter()
        .map(|card| CardLimit {
            uuid: card.uuid.clone(),
            soft_bytes: match reservation {
                Reservation::Held => card.bytes,
                Reservation::Zeroed => 0,
            },
            hard_bytes: card.bytes,
        })
        .collect()
}

/// The leaf of a container whose limit was set, or was about to be. A broken note names none, nor does one of another version.
///
/// # Errors
/// The note cannot be read.
pub(super) fn recorded_leaf(dir: &ContainerDir) -> Result<Option<Leaf>, Error> {
    match read(dir) {
        Ok(record) => Ok(record.map(|record| record.leaf)),
        Err(Error::LimitsRecord { .. } | Error::LimitsRecordVersion { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(dir: &ContainerDir) -> Result<Option<Record>, Error> {
    let path = dir.file(FILE);
    let text = match read_capped("memory limits", &path, SIZE_MAX_BYTES) {
        Ok(text) => text,
        Err(cards::Error::Io(error)) if error.is_absent() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let record: Record = serde_json::from_slice(&text).map_err(|source| Error::LimitsRecord {
        path: path.clone(),
        source,
    })?;
    if record.version == VERSION {
        Ok(Some(record))
    } else {
        Err(Error::LimitsRecordVersion {
            path,
            found: record.version,
        })
    }
}

fn write(dir: &ContainerDir, record: &Record) -> Result<(), Error> {
    let path = dir.file(FILE);
    let text = serde_json::to_vec_pretty(record).map_err(|source| Error::LimitsRecord {
        path: path.clone(),
        source,
    })?;
    Ok(replace(&DiskStore, &path, &text)?)
}

#[cfg(test)]
mod tests;
