//! The events that files have made.

use std::collections::BTreeSet;

use driver::FileId;
use ledger::steps::Stepped;
use serde::{Deserialize, Serialize};

/// Client and number.
pub(super) type OsEvent = (u32, u32);

/// Events of files. Two files may have an event of the same name.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct OsEvents {
    by_file: BTreeSet<(FileId, OsEvent)>,
    by_name: BTreeSet<(OsEvent, FileId)>,
}

impl OsEvents {
    pub(super) fn insert(&mut self, file: FileId, event: OsEvent) {
        self.by_file.insert((file, event));
        self.by_name.insert((event, file));
    }

    pub(super) fn files_of(&self, event: OsEvent) -> impl Iterator<Item = FileId> {
        let all = (event, FileId(0))..=(event, FileId(u64::MAX));
        self.by_name.range(all).map(|(_, file)| *file).stepped()
    }

    /// Those of a client, whichever files have made them.
    pub(super) fn of_client(&self, client: u32) -> impl Iterator<Item = OsEvent> {
        let first = ((client, 0), FileId(0));
        let all = first..=((client, u32::MAX), FileId(u64::MAX));
        let mut of_client: Vec<OsEvent> =
            self.by_name.range(all).map(|(event, _)| *event).collect();
        of_client.dedup();
        of_client.into_iter().stepped()
    }

    /// Those that a file has made and no other one: of a name the driver has one, which may be the other's.
    pub(super) fn of_file_alone(&self, file: FileId) -> impl Iterator<Item = OsEvent> {
        self.of_file(file)
            .filter(move |event| self.files_of(*event).eq([file]))
    }

    fn of_file(&self, file: FileId) -> impl Iterator<Item = OsEvent> {
        let all = (file, (0, 0))..=(file, (u32::MAX, u32::MAX));
        let of_file = self.by_file.range(all).map(|(_, event)| *event);
        of_file.stepped()
    }

    /// The event is freed, by whichever file.
    pub(super) fn remove(&mut self, event: OsEvent) {
        let files: Vec<FileId> = self.files_of(event).collect();
        for file in files {
            self.by_name.remove(&(event, file));
            self.by_file.remove(&(file, event));
        }
    }

    pub(super) fn remove_all_of(&mut self, file: FileId) {
        let events: Vec<OsEvent> = self.of_file(file).collect();
        for event in events {
            self.by_name.remove(&(event, file));
            self.by_file.remove(&(file, event));
        }
    }

    pub(super) fn count(&self) -> usize {
        self.by_file.len()
    }
}
