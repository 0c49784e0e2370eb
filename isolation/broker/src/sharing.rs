//! What a container's share gets of its broker.

use std::sync::Arc;

use control::EventKind;
use driver::{FileId, FileRef};
use share::Broker;

use crate::files::FileTable;
use crate::health::Health;

/// Lends the share the tenant's files, and reports for it.
pub(crate) struct Lender {
    files: Arc<FileTable>,
    health: Arc<Health>,
}

impl Lender {
    pub(crate) fn new(files: Arc<FileTable>, health: Arc<Health>) -> Self {
        Self { files, health }
    }
}

impl Broker for Lender {
    fn lend(&self, file: FileId, call: &mut dyn FnMut(FileRef<'_>)) {
        // Given up after the call: a spare reference would keep the client's memory alive after its process.
        if let Some(file) = self.files.in_use(file) {
            call(file.for_driver());
        }
    }

    fn report(&self, kind: EventKind, text: String) {
        self.health.tell(kind, text);
    }
}
