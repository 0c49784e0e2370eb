//! Files that nobody of the container holds any more: closed at the driver, in the ledger, and here.
//!
//! Somebody else may have such a file open: a `poll` that never ends, an unread message, another container's process. What it has then
//! and nobody takes back ([`crate::close_files`]) stays charged until the file is gone ([`crate::last_reference`]). So does what a file has
//! that the supervisor or the driver may still hold, since a message to it failed: it is sent again at each look.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use driver::{Binding, Driver, FileId, FileKind};
use supervisor::link::Stored;
use sys::sync::lock;

use crate::close_files;
use crate::container::Container;
use crate::files::OpenFile;
use crate::last_reference::{LastReferences, Watching};
use crate::open_file_scan::{Look, OfProcesses, without_holder};

/// In which time a driver has cleaned up after a file that somebody else has closed, on a machine that is not overloaded.
const LONGEST_CLEAN_UP: Duration = Duration::from_secs(1);

/// So many files wait for another message to supervisor and driver. What is beyond is the next broker's to give up, by the journal.
const MOST_UNRELEASED: usize = 1024;

/// Where nothing has changed, the driver is asked which files it holds at every so many intervals.
const SELDOM: u32 = 60;

/// What a container has closed.
#[derive(Debug, Default)]
pub(crate) struct GivenUp {
    /// Files that somebody else had when they were closed here.
    elsewhere: LastReferences,
    /// Those of them that are gone, and since when: the kernel forgets a file before the driver cleans up after it.
    ending: Mutex<Vec<(FileId, Instant)>>,
    /// Files that supervisor or driver may still hold, each with whether its charge ends with that.
    unreleased: Mutex<BTreeMap<FileId, Charge>>,
    last_look: Mutex<LastLook>,
}

/// When the driver was asked which files it holds.
#[derive(Debug, Default)]
struct LastLook {
    /// [`Driver::held_changes`] before that; `None`: it has not answered, or counts nothing.
    at: Option<u64>,
    /// Intervals since then.
    intervals: u32,
}

/// What becomes of a file's charge when neither supervisor nor driver holds the file any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charge {
    Ends,
    /// Somebody else may have the file open, or there is none.
    IsAsItWas,
}

impl GivenUp {
    /// Closes what nobody of the container holds, and lets go of what nobody at all has any more; says whether there was any.
    pub(crate) fn look(&self, container: &Container) -> bool {
        container.supervisor.release_what_waits();
        let mut uncharged = self.take_ended();
        uncharged.extend(self.release_again(container));
        let closed = self.close_unheld(container);
        // Once for all of them: of what nobody has now the last duplicate was closed here, and the driver has cleaned up.
        let staying = closed.iter().filter(|(_, stays)| *stays);
        let staying: HashSet<FileId> = staying.map(|(id, _)| *id).collect();
        for id in self.take_gone() {
            match staying.contains(&id) {
                true => uncharged.push(id),
                false => lock(&self.ending).push((id, Instant::now())),
            }
        }
        for id in &uncharged {
            let mut change = container.journal.change();
            container.account.close_file(&mut change, *id);
        }
        let is_unmapped = container.account.let_unmapped_go(&container.journal);
        is_unmapped || !closed.is_empty() || !uncharged.is_empty()
    }

    /// The files that were closed, each with whether what it has stays charged.
    fn close_unheld(&self, container: &Container) -> Vec<(FileId, bool)> {
        let native = container.driver.native.as_ref();
        let mut closed = Vec::new();
        for id in unheld(container) {
            if native.is_some_and(|native| native.take_idle(id)) {
                if !tell_driver(&*container.driver, id) {
                    self.release_later(id, Charge::IsAsItWas);
                }
                continue;
            }
            // A call under way keeps its file; it is looked at again at the next interval.
            let Some(file) = container.files.take_idle(id) else {
                continue;
            };
            closed.push((id, self.close(container, id, Some(file))));
        }
        closed
    }

    /// Order matters: what the file holds is freed, the duplicates close and the driver lets the memory go before the ledger says that there is
    /// room. The last duplicate to close is ours, since a real driver's clean-up is done by whoever closes last. Says whether what the file has
    /// stays charged.
    pub(crate) fn close(
        &self,
        container: &Container,
        id: FileId,
        file: Option<Arc<OpenFile>>,
    ) -> bool {
        let stays = file.as_ref().is_some_and(|file| {
            let keeps = close_files::free_all(container, file);
            keeps && self.watch_elsewhere(file)
        });
        if !release(container, id, file) {
            let charge = if stays {
                Charge::IsAsItWas
            } else {
                Charge::Ends
            };
            self.release_later(id, charge);
            return true;
        }
        if !stays {
            let mut change = container.journal.change();
            container.account.close_file(&mut change, id);
        }
        stays
    }

    fn release_later(&self, id: FileId, charge: Charge) {
        let mut unreleased = lock(&self.unreleased);
        if unreleased.len() < MOST_UNRELEASED || unreleased.contains_key(&id) {
            unreleased.insert(id, charge);
        } else {
            tracing::warn!("what a closed file has stays charged until the next broker");
        }
    }

    /// The files that are released by now and whose charge ends with that.
    fn release_again(&self, container: &Container) -> Vec<FileId> {
        let again = std::mem::take(&mut *lock(&self.unreleased));
        let mut uncharged = Vec::new();
        for (id, charge) in again {
            match (release(container, id, None), charge) {
                (true, Charge::Ends) => uncharged.push(id),
                (true, Charge::IsAsItWas) => {}
                (false, _) => self.release_later(id, charge),
            }
        }
        uncharged
    }

    /// Has the driver close what it holds and the journal does not know: a former broker has left it there, or a call that named it while
    /// it was closed. A file is in the journal before it comes to the driver. The answer has every file, so it is asked where a file has come to it or
    /// was closed, else seldom.
    pub(crate) fn close_unknown(&self, container: &Container) {
        // Before it is asked: what changes meanwhile is asked for again.
        let now = container.driver.held_changes();
        {
            let mut last = lock(&self.last_look);
            last.intervals = last.intervals.saturating_add(1);
            if now.is_some() && last.at == now && last.intervals < SELDOM {
                return;
            }
            *last = LastLook::default();
        }
        let mut unknown = match container.driver.held() {
            Ok(held) => {
                lock(&self.last_look).at = now;
                held
            }
            // It may answer at the next interval. That it does not is reported elsewhere.
            Err(error) => return tracing::debug!(%error, "the driver's files are not known"),
        };
        {
            let state = container.journal.change();
            unknown.retain(|id| state.file(*id).is_none());
        }
        for id in unknown {
            tracing::warn!(file = id.0, "the driver held a file that nobody knows");
            if !tell_driver(&*container.driver, id) {
                self.release_later(id, Charge::IsAsItWas);
            }
        }
    }

    fn take_gone(&self) -> Vec<FileId> {
        self.elsewhere.take_gone().unwrap_or_else(|error| {
            tracing::warn!(%error, "what was open elsewhere stays charged");
            Vec::new()
        })
    }

    /// Files of others that have been gone for long enough.
    fn take_ended(&self) -> Vec<FileId> {
        let mut ended = Vec::new();
        lock(&self.ending).retain(|(id, since)| {
            let is_over = since.elapsed() >= LONGEST_CLEAN_UP;
            ended.extend(is_over.then_some(*id));
            !is_over
        });
        ended
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
    let charged: BTreeSet<(FileId, i32)> = {
        let state = container.journal.change();
        let charged = state.ledger.managed();
        charged
            .map(|it| (FileId(it.uvm_file.0), it.process.0))
            .collect()
    };
    let kept = &OfProcesses {
        kept: &container.files.initialised,
        charged: &charged,
    };
    let without = |look| without_holder(held.clone(), cgroup.as_deref(), look, &others, kept);
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

/// Has our duplicates of a file closed, wherever they are; says whether they are. It can be done again.
fn release(container: &Container, id: FileId, file: Option<Arc<OpenFile>>) -> bool {
    let kind = file.as_ref().map_or(FileKind::Ctl, |file| file.kind);
    let stored = container.supervisor.release(vec![Stored::File(id, kind)]);
    if let Err(error) = &stored {
        tracing::error!(error = %error, "the supervisor was not told of a closed file");
    }
    drop(file);
    tell_driver(&*container.driver, id) && stored.is_ok()
}

/// Whether the driver has nothing of the file any more.
fn tell_driver(driver: &dyn Driver, closed: FileId) -> bool {
    let Err(error) = driver.closed(closed) else {
        return true;
    };
    tracing::error!(error = %error, "a closed file could not be reported");
    // All that a simulator had of the container ends with it.
    driver.binding() == Binding::None && error.is_unreachable()
}
