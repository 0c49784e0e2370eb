//! A card's records as files.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use plan::ShareRecord;

use crate::files::RecordFiles;
use crate::roster::{Roster, Stranger, sequence};
use crate::table::{Owner, Seen, Table, TableError};

/// Records as files of a card's folder, see [`crate::files`].
#[derive(Debug)]
pub struct FileTable {
    dir: PathBuf,
    key: String,
    owner: Owner,
    left: Option<ShareRecord>,
    seq: u64,
    files: Option<RecordFiles>,
    roster: Roster,
}

impl FileTable {
    /// Takes the record of the container `key` in the folder `cards/<uuid>/records`, which is made if need be.
    ///
    /// # Errors
    /// [`TableError::Held`]: another broker of this container lives. [`TableError::Version`]: a living peer's record is of another version. The system's.
    pub fn take(dir: &Path, key: &str) -> Result<Self, TableError> {
        let (files, left) = RecordFiles::take(dir, key)?;
        // Peers skip a record whose sequence they know: the next one is past whatever is there, torn or not, and past that of any owner before,
        // whose file may be gone.
        let seq = left.as_deref().and_then(sequence).unwrap_or(0);
        let seq = seq.max(unix_ns()) & !1;
        let left = left
            .as_deref()
            .and_then(|bytes| ShareRecord::decode(bytes).ok())
            .map(|(record, _)| record)
            .filter(|record| record.key == key);
        let mut table = Self {
            dir: dir.to_owned(),
            key: key.to_owned(),
            owner: this_process(),
            left,
            seq,
            files: Some(files),
            roster: Roster::default(),
        };
        if let Some((name, source)) = table.look()?.1 {
            return Err(TableError::Version {
                path: table.dir.join(name),
                source,
            });
        }
        Ok(table)
    }

    /// Readable when records have come or gone: a hint for [`crate::Event::PeersChanged`], for whoever looks less often than a governor does by itself,
    /// twice in the shortest window. `None` where the system has no such descriptor to give.
    #[must_use]
    pub fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.files.as_ref().and_then(RecordFiles::watch)
    }

    fn look(&mut self) -> Result<(Seen, Option<Stranger>), TableError> {
        let Some(files) = &mut self.files else {
            return Ok((Seen::default(), None));
        };
        let roster = &mut self.roster;
        roster.begin();
        let looked = files.each_live(|read| {
            roster.present(read.name, read.bytes, &mut || read.again());
        });
        if let Err(error) = looked {
            // What was not looked at is not gone.
            roster.abandon();
            return Err(error);
        }
        Ok(roster.end())
    }
}

impl Table for FileTable {
    fn owner(&self) -> Owner {
        self.owner
    }

    fn left_behind(&self) -> Option<&ShareRecord> {
        self.left.as_ref()
    }

    fn publish(&mut self, record: &ShareRecord) -> Result<(), TableError> {
        let seq = self.seq.wrapping_add(2);
        let bytes = record
            .encode(seq)
            .map_err(|source| TableError::ShareRecord {
                key: self.key.clone(),
                source,
            })?;
        if let Some(files) = &self.files {
            files.write(&bytes)?;
        }
        self.seq = seq;
        Ok(())
    }

    fn refresh(&mut self) -> Result<Seen, TableError> {
        self.look().map(|(seen, _)| seen)
    }

    fn peers(&self) -> &[ShareRecord] {
        self.roster.records()
    }

    fn withdraw(&mut self) -> Result<(), TableError> {
        self.roster = Roster::default();
        match self.files.take() {
            Some(files) => files.withdraw(),
            None => Ok(()),
        }
    }
}

fn unix_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_nanos()).ok())
        .unwrap_or(0)
}

fn this_process() -> Owner {
    Owner {
        pid: std::process::id(),
        start_time: sys::proc::start_ticks("self").unwrap_or(0),
    }
}
