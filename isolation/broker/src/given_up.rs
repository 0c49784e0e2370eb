//! Files that nobody of the container holds any more: closed at the driver, in the ledger, and here.
//!
//! Somebody else may have such a file open: a `poll` that never ends, an unread message, another container's process. What it has then
//! and nobody takes back ([`crate::close_files`]) stays charged until the file is gone ([`crate::last_reference`]).

use std::cmp::Ordering;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use driver::{Driver, FileId, FileKind};
use supervisor::link::Stored;
use sys::sync::lock;

use crate::close_files;
use crate::container::Container;
use crate::files::OpenFile;
use crate::last_reference::{LastReferences, Watching};
use crate::open_file_scan::{Look, without_holder};

/// What a container has closed.
#[derive(Debug, Default)]
pub(crate) struct GivenUp {
    /// Files that somebody else had when they were closed here.
    elsewhere: LastReferences,
    /// Those of them that the last look has found gone: the kernel forgets a file before the driver cleans up after it.
    ending: Mutex<Vec<FileId>>,
}

impl GivenUp {
    /// Closes what nobody of the container holds, and lets go of what nobody at all has any more; says whether there was any.
    pub(crate) fn look(&self, container: &Container) -> bool {
        let ended = self.take_ended();
        for id in &ended {
            let mut change = container.journal.change();
            container.account.close_file(&mut change, *id);
        }
        let is_closed = self.close_unheld(container);
        container.account.let_unmapped_go(&container.journal) || is_closed || !ended.is_empty()
    }

    fn close_unheld(&self, container: &Container) -> bool {
        let native = container.driver.native.as_ref();
        let mut found = false;
        for id in unheld(container) {
            if native.is_some_and(|native| native.take_idle(id)) {
                tell_driver(&*container.driver, id);
                continue;
            }
            // A call under way keeps its file; it is looked at again at the next interval.
            let Some(file) = container.files.take_idle(id) else {
                continue;
            };
            found = true;
            self.close(container, id, Some(file));
        }
        found
    }

    /// Order matters: what the file holds is freed, the duplicates close and the driver lets the memory go before the ledger says that there is
    /// room. The last duplicate to close is ours, since a real driver's clean-up is done by whoever closes last.
    pub(crate) fn close(&self, container: &Container, id: FileId, file: Option<Arc<OpenFile>>) {
        let stays = file.as_ref().is_some_and(|file| {
            let keeps = close_files::free_all(container, file);
            keeps && self.watch_elsewhere(file)
        });
        let kind = file.as_ref().map_or(FileKind::Ctl, |file| file.kind);
        if let Err(error) = container.supervisor.release(vec![Stored::File(id, kind)]) {
            tracing::error!(error = %error, "the supervisor was not told of a closed file");
        }
        drop(file);
        tell_driver(&*container.driver, id);
        if !stays || self.is_gone(id) {
            let mut change = container.journal.change();
            container.account.close_file(&mut change, id);
        }
    }

    /// Whether a file is gone whose last duplicate was closed here: the driver has cleaned up then.
    fn is_gone(&self, id: FileId) -> bool {
        self.elsewhere.take_if_gone(id).unwrap_or_else(|error| {
            tracing::warn!(%error, "what a closed file held stays charged");
            false
        })
    }

    /// Files of others that were gone at the look before this one.
    fn take_ended(&self) -> Vec<FileId> {
        let gone = self.elsewhere.take_gone().unwrap_or_else(|error| {
            tracing::warn!(%error, "what was open elsewhere stays charged");
            Vec::new()
        });
        std::mem::replace(&mut *lock(&self.ending), gone)
    }

    /// Whether what the file has stays charged.
    fn watch_elsewhere(&self, file: &OpenFile) -> bool {
        match self.elsewhere.watch(file.fd.as_fd(), file.id) {
            Ok(watching) => watching == Watching::Yes,
            Err(error) => {
                tracing::warn!(%error, "what a closed file held stays charged to the container's end");
                true
            }
        }
    }
}

/// The files that nobody of the container holds, in the order in which they are given up.
fn unheld(container: &Container) -> Vec<FileId> {
    let cgroup = container.processes.cgroup();
    let mut held = container.files.held();
    if let Some(native) = &container.driver.native {
        held.extend(native.held_beside(&held));
        // Own descriptors can always be compared.
        held.sort_by(|one, other| {
            sys::kcmp::own_files(one.fd.as_fd(), other.fd.as_fd()).unwrap_or(Ordering::Equal)
        });
    }
    // The supervisor holds every file that is held here.
    let supervisor = Some(container.supervisor.pid()).filter(|pid| *pid != 0);
    let others: Vec<i32> = supervisor
        .into_iter()
        .chain(container.driver.process())
        .collect();
    let without = |look| without_holder(held.clone(), cgroup.as_deref(), look, &others);
    let mut orphans = without(Look::Forth);
    if orphans.is_empty() {
        return Vec::new();
    }
    // Among all files again: what a process has open says what it has mapped.
    let again: HashSet<FileId> = without(Look::Back).iter().map(|file| file.id).collect();
    orphans.retain(|file| again.contains(&file.id));
    // Device files first: the driver holds the control file that one is registered with.
    orphans.sort_by_key(|file| file.kind == FileKind::Ctl);
    // Identities alone: a reference of the caller's would be the last one.
    orphans.iter().map(|file| file.id).collect()
}

fn tell_driver(driver: &dyn Driver, closed: FileId) {
    if let Err(error) = driver.closed(closed) {
        tracing::error!(error = %error, "a closed file could not be reported");
    }
}
