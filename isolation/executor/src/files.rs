//! The executor's own duplicates of the tenant's files, by the broker's names for them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use driver::FileId;
use sys::sync::lock;

/// The files of one container.
#[derive(Debug, Default)]
pub struct Files(Mutex<HashMap<FileId, Arc<OwnedFd>>>);

impl Files {
    /// The file; a call under way keeps it open even when it is closed meanwhile.
    pub fn of(&self, id: FileId) -> Option<Arc<OwnedFd>> {
        lock(&self.0).get(&id).cloned()
    }

    /// Keeps a file. A broker that took over sends files anew: the same open file, so the former duplicate goes.
    pub fn keep(&self, id: FileId, fd: OwnedFd) -> Arc<OwnedFd> {
        let fd = Arc::new(fd);
        lock(&self.0).insert(id, Arc::clone(&fd));
        fd
    }

    /// Closes a file.
    pub fn close(&self, id: FileId) {
        let closed = lock(&self.0).remove(&id);
        // Closing a driver's file may take the driver long; nobody waits for the table meanwhile.
        drop(closed);
    }

    /// The files that are held.
    pub fn held(&self) -> Vec<FileId> {
        lock(&self.0).keys().copied().collect()
    }
}
