//! Files that nobody of the container holds any more: closed at the driver, in the ledger, and here.
//!
//! Somebody else may have such a file open: a `poll` that never ends, an unread message, another container's process. What it has then
//! and nobody takes back ([`crate::close_files`]) stays charged until the file is gone ([`crate::last_reference`]). So does what a file has
//! that the supervisor or the driver may still hold, since a message to it failed: it is sent again at each look.
//!
//! The journal has how far each file is given up ([`Closing`]), so that a successor goes on there: what was being freed is freed again, by the
//! descriptor that the supervisor has until then. Where that is lacking, nobody knows what the driver has freed, and all stays charged.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use driver::{Binding, Driver, FileId, FileKind};
use journal::state::{self, Closing, Op};
use nix::errno::Errno;
use supervisor::link::Stored;
use sys::sync::lock;

use crate::close_files::{self, Left, Patience};
use crate::container::Container;
use crate::files::OpenFile;
use crate::last_reference::Watching;
use crate::open_file_scan::{Look, OfProcesses, without_holder};

/// In which time a driver has cleaned up after a file that somebody else has closed, on a machine that is not overloaded.
const LONGEST_CLEAN_UP: Duration = Duration::from_secs(1);

/// For so many intervals the driver is asked again about a file that it is not done with: a process that ends closes its files one after the
/// other, and some time may be between the first and the last.
const MOST_INTERVALS: u32 = 60;

/// So many files are kept for that. Each costs descriptors, and a call at each look.
const MOST_RETAINED: usize = 32;

/// So many files wait for another message to supervisor and driver. What is beyond is the next broker's to give up, by the journal.
const MOST_UNRELEASED: usize = 1024;

/// Where nothing has changed, the driver is asked which files it holds at every so many intervals.
const SELDOM: u32 = 60;

/// What a container has closed.
#[derive(Debug, Default)]
pub(crate) struct GivenUp {
    /// Files of [`Container::elsewhere`] that are gone, and since when: the kernel forgets a file before the driver cleans up after it.
    ending: Mutex<Vec<(FileId, Instant)>>,
    /// Files that supervisor or driver may still hold, each with whether its charge ends with that.
    unreleased: Mutex<BTreeMap<FileId, Charge>>,
    /// Files of nvidia-uvm that the driver is not done with.
    retained: Mutex<Vec<Retained>>,
    last_look: Mutex<LastLook>,
}

/// A closed file that is kept open, and for how many intervals it has been.
#[derive(Debug)]
struct Retained {
    file: Arc<OpenFile>,
    intervals: u32,
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
        let retained = std::mem::take(&mut *lock(&self.retained));
        let mut has_closed = false;
        for Retained { file, intervals } in retained {
            has_closed |= self.close(container, file, intervals);
        }
        has_closed |= self.close_unheld(container);
        self.take_gone(container, None);
        for id in &uncharged {
            let mut change = container.journal.change();
            container.account.close_file(&mut change, *id);
        }
        let is_unmapped = container.account.let_unmapped_go(&container.journal);
        is_unmapped || has_closed || !uncharged.is_empty()
    }

    /// Another interval has passed for the files that the driver is not done with.
    pub(crate) fn pass_interval(&self) {
        for retained in &mut *lock(&self.retained) {
            retained.intervals = retained.intervals.saturating_add(1);
        }
    }

    /// Says whether any file was closed.
    fn close_unheld(&self, container: &Container) -> bool {
        let native = container.driver.native.as_ref();
        let mut has_closed = false;
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
            has_closed |= self.close(container, file, 0);
        }
        has_closed
    }

    /// Order matters: what the file holds is freed, the duplicates close and the driver lets the memory go before the ledger says that there is
    /// room. Says whether anything was given back: a file that the driver is not done with is kept, for so many intervals by now.
    fn close(&self, container: &Container, file: Arc<OpenFile>, intervals: u32) -> bool {
        let id = file.id;
        let patience = match intervals >= MOST_INTERVALS {
            true => Patience::Over,
            false => Patience::Left,
        };
        let watched = match close_files::free_all(container, &file, patience) {
            Left::Nothing => Ok(Watching::Impossible),
            Left::WhileOpen => watch_elsewhere(container, &file),
            Left::Unknown => Err(Errno::EIO),
            Left::ForNow { has_freed } => {
                let longest = self.retain(Retained { file, intervals });
                let is_closed =
                    longest.is_some_and(|it| self.close(container, it.file, MOST_INTERVALS));
                return has_freed || is_closed;
            }
        };
        let charge = match watched {
            Ok(Watching::Impossible) => {
                record(container, id, Closing::Freed);
                Charge::Ends
            }
            Ok(Watching::Yes) => {
                record(container, id, Closing::Watched);
                Charge::IsAsItWas
            }
            Err(error) => {
                tracing::warn!(%error, "what a closed file held stays charged to the container's end");
                Charge::IsAsItWas
            }
        };
        self.let_go(container, (id, Some(file)), charge);
        true
    }

    /// Keeps one more file; returns the one that has been kept for longest where there are too many.
    fn retain(&self, file: Retained) -> Option<Retained> {
        let mut retained = lock(&self.retained);
        retained.push(file);
        if retained.len() <= MOST_RETAINED {
            return None;
        }
        // Of several the first.
        let by_age = retained.iter().enumerate().rev();
        let (longest, _) = by_age.max_by_key(|(_, it)| it.intervals)?;
        Some(retained.remove(longest))
    }

    /// The last duplicate to close is ours, since a real driver's clean-up is done by whoever closes last.
    fn let_go(
        &self,
        container: &Container,
        (id, file): (FileId, Option<Arc<OpenFile>>),
        charge: Charge,
    ) {
        if !release(container, id, file) {
            return self.release_later(id, charge);
        }
        // Of a file that nobody has now the last duplicate was closed here, and the driver has cleaned up.
        if charge == Charge::Ends || self.take_gone(container, Some(id)) {
            let mut change = container.journal.change();
            container.account.close_file(&mut change, id);
        }
    }

    /// Takes the files that nobody has any more; says whether one that was closed here just now is among them. The others' last holders are
    /// others, and the driver may be cleaning up after them.
    fn take_gone(&self, container: &Container, closed: Option<FileId>) -> bool {
        let gone = container.elsewhere.take_gone().unwrap_or_else(|error| {
            tracing::warn!(%error, "what was open elsewhere stays charged");
            Vec::new()
        });
        let others = gone.iter().filter(|id| Some(**id) != closed);
        lock(&self.ending).extend(others.map(|id| (*id, Instant::now())));
        closed.is_some_and(|closed| gone.contains(&closed))
    }

    /// Goes on with what a former broker was giving up, and gives up what it recorded and never had.
    pub(crate) fn go_on(&self, container: &Container) {
        let mut known = HashSet::new();
        for file in container.files.take_closing() {
            known.insert(file.id);
            let _is_closed = self.close(container, file, 0);
        }
        // The journal first: a file that is recorded between the two looks is held by the second.
        let recorded: Vec<(FileId, Option<Closing>)> = {
            let state = container.journal.change();
            let recorded = state.files().map(|(id, entry)| (id, entry.closing));
            recorded.collect()
        };
        known.extend(container.files.held().iter().map(|file| file.id));
        for (id, closing) in recorded {
            let charge = match closing {
                _ if known.contains(&id) => continue,
                // The supervisor is given a file before the first call on it: one that has been used was lost, and the tenant may have it open.
                None | Some(Closing::Begun) if has_charges(&container.journal.change(), id) => {
                    tracing::error!(
                        file = id.0,
                        "a file was not handed over: what it has stays charged to the container's end"
                    );
                    // Of one that was being given up nobody in the container has a descriptor.
                    match closing {
                        None => continue,
                        Some(_) => Charge::IsAsItWas,
                    }
                }
                None | Some(Closing::Begun | Closing::Freed) => Charge::Ends,
                Some(Closing::Watched) => {
                    if !container.elsewhere.watch_on(id) {
                        tracing::error!(
                            file = id.0,
                            "a closed file is watched no more: what it has stays charged to the container's end"
                        );
                        record(container, id, Closing::Begun);
                    }
                    Charge::IsAsItWas
                }
            };
            self.let_go(container, (id, None), charge);
        }
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
}

fn watch_elsewhere(container: &Container, file: &OpenFile) -> nix::Result<Watching> {
    container.elsewhere.watch(file.fd.as_fd(), file.id)
}

fn record(container: &Container, id: FileId, closing: Closing) {
    let op = Op::FileClosing(id, closing);
    container.journal.change().record_op(op);
}

/// Whether what calls have made on a file, or put into it, is in the ledger.
fn has_charges(state: &state::State, id: FileId) -> bool {
    state.ledger.has_charges_of(ledger::FileId(id.0))
        || state.pools(id).next().is_some()
        || state.os_events_of(id).next().is_some()
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
