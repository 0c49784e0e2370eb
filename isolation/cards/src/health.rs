//! Cards that nothing may be placed on: `cards/<uuid>/health.json`, absent for a card that is well.
//!
//! ```text
//!   (well) ──a broker sees the card lost, or an Xid that means so──▶ unhealthy ──cgpu doctor --repair --card──▶ (well)
//! ```
//!
//! Brokers write it without the state lock, which a start can hold for long: the first report stays, later ones are no news.
//! A report that cannot be read is an error, and nothing is placed until it is cleared.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sys::failed;

use crate::Error;
use crate::identity::GpuUuid;
use crate::store;

/// The version that this cgpu writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// The name of the file in the card's folder.
pub const FILE_NAME: &str = "health.json";

/// A reason is a line.
const SIZE_MAX_BYTES: u64 = 64 << 10;

/// Xids after which a card serves nobody before it is reset: NVIDIA's catalogue, "Xid Errors".
const FATAL_XIDS: [u32; 7] = [
    48,  // an uncorrectable memory error
    62,  // the microcontroller halted
    64,  // a row could not be remapped
    79,  // fallen off the bus
    95,  // an uncontained memory error
    119, // the GSP does not answer
    120, // the GSP has failed
];

/// Why nothing may be placed on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardHealth {
    /// [`VERSION`].
    pub version: u32,
    /// Which card.
    pub uuid: GpuUuid,
    /// What was seen.
    pub reason: String,
    /// When, milliseconds since 1970.
    pub since_unix_ms: u64,
}

/// Whether an Xid means that the card serves nobody any more.
#[must_use]
pub fn is_fatal(xid: u32) -> bool {
    FATAL_XIDS.contains(&xid)
}

/// Says that a card is not well. A card that is known to be unhealthy keeps its first reason.
///
/// # Errors
/// A failed file operation.
pub fn report(state_dir: &Path, health: &CardHealth) -> Result<(), Error> {
    let folder = state_dir.join("cards").join(health.uuid.as_str());
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(failed("create", &folder))?;
    let path = folder.join(FILE_NAME);
    // Several brokers may report the same moment: each writes a file of its own, and one of them gets the name.
    let own = folder.join(format!("{FILE_NAME}.{}", std::process::id()));
    let mut bytes = serde_json::to_vec_pretty(health).map_err(|source| Error::Unreadable {
        what: "health of a card",
        path: path.clone(),
        source,
    })?;
    bytes.push(b'\n');
    let written = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&own)
        .and_then(|mut file| file.write_all(&bytes))
        .and_then(|()| match fs::hard_link(&own, &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        });
    let removed = fs::remove_file(&own);
    Ok(written.and(removed).map_err(failed("write", &path))?)
}

/// What is known against a card; `None`: it is well.
///
/// # Errors
/// A report that is unreadable, oversized or newer than this program.
pub fn of(state_dir: &Path, uuid: &GpuUuid) -> Result<Option<CardHealth>, Error> {
    of_card(&state_dir.join("cards"), uuid)
}

pub(crate) fn of_card(cards_dir: &Path, uuid: &GpuUuid) -> Result<Option<CardHealth>, Error> {
    let path = path_of(cards_dir, uuid);
    let read = store::read_capped("health of a card", &path, SIZE_MAX_BYTES);
    let Some(bytes) = Error::absent_is_none(read)? else {
        return Ok(None);
    };
    store::parse_versioned("health of a card", &path, &bytes, VERSION).map(Some)
}

/// The cards that there is a report of.
///
/// # Errors
/// A failed file operation; a folder whose name is no card's.
pub fn reported(state_dir: &Path) -> Result<Vec<GpuUuid>, Error> {
    let cards_dir = state_dir.join("cards");
    let mut reported = Vec::new();
    for entry in sys::entries(&cards_dir).map_err(failed("read", &cards_dir))? {
        let uuid = GpuUuid::new(entry.file_name().to_string_lossy())?;
        let path = path_of(&cards_dir, &uuid);
        if path.try_exists().map_err(failed("look at", &path))? {
            reported.push(uuid);
        }
    }
    reported.sort();
    Ok(reported)
}

/// Takes the report of a card back; whether there was one.
///
/// # Errors
/// A failed file operation.
pub fn clear(state_dir: &Path, uuid: &GpuUuid) -> Result<bool, Error> {
    let path = path_of(&state_dir.join("cards"), uuid);
    let removed = sys::absent_is_none(fs::remove_file(&path));
    Ok(removed.map_err(failed("remove", &path))?.is_some())
}

fn path_of(cards_dir: &Path, uuid: &GpuUuid) -> PathBuf {
    cards_dir.join(uuid.as_str()).join(FILE_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(reason: &str) -> CardHealth {
        CardHealth {
            version: VERSION,
            uuid: GpuUuid::new("GPU-1").unwrap(),
            reason: reason.to_owned(),
            since_unix_ms: 7,
        }
    }

    #[test]
    fn the_first_report_stays_until_it_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let uuid = GpuUuid::new("GPU-1").unwrap();
        assert_eq!(of(folder.path(), &uuid).unwrap(), None);
        report(folder.path(), &lost("it was lost")).unwrap();
        report(folder.path(), &lost("Xid 79")).unwrap();
        assert_eq!(of(folder.path(), &uuid).unwrap(), Some(lost("it was lost")));
        let left: Vec<_> = fs::read_dir(folder.path().join("cards/GPU-1"))
            .unwrap()
            .collect();
        assert_eq!(left.len(), 1);
        let other = GpuUuid::new("GPU-2").unwrap();
        assert!(!clear(folder.path(), &other).unwrap());
        assert_eq!(
            reported(folder.path()).unwrap(),
            std::slice::from_ref(&uuid)
        );
        assert!(clear(folder.path(), &uuid).unwrap());
        assert_eq!(of(folder.path(), &uuid).unwrap(), None);
        assert_eq!(reported(folder.path()).unwrap(), []);
        assert!(!clear(folder.path(), &uuid).unwrap());
    }

    #[test]
    fn a_report_that_cannot_be_read_is_no_clean_bill() {
        let folder = tempfile::tempdir().unwrap();
        let uuid = GpuUuid::new("GPU-1").unwrap();
        report(folder.path(), &lost("it was lost")).unwrap();
        let path = folder.path().join("cards/GPU-1/health.json");
        for text in ["", "{}", r#"{"version":2}"#] {
            fs::write(&path, text).unwrap();
            assert!(of(folder.path(), &uuid).is_err(), "{text}");
        }
    }

    #[test]
    fn the_page_on_operations_has_the_xids_that_take_a_card_out() {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/guide/operations.md"
        );
        let page = fs::read_to_string(page).unwrap();
        let (_, table) = page.split_once("| Xid | NVIDIA's list says |\n").unwrap();
        let (table, _) = table.split_once("\n\n").unwrap();
        let listed: Vec<u32> = table
            .lines()
            .skip(1)
            .map(|row| row.split('|').nth(1).unwrap().trim().parse().unwrap())
            .collect();
        assert_eq!(listed, FATAL_XIDS);
    }

    #[test]
    fn a_program_that_faults_does_not_condemn_its_card() {
        assert!([79, 48, 119].into_iter().all(is_fatal));
        assert!(![13, 31, 43, 45, 0].into_iter().any(is_fatal));
    }
}
