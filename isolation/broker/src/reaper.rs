//! Noticing that the last reference to a file of the driver is gone.
//!
//! Neither `close` nor `exit` is seen by the filter, and RM's objects live as long as their *file*. So whenever a
//! process of the container exits, on a slow beat, and before memory is refused, every held file is looked for among the
//! container's processes ([`crate::holders`]). What nobody holds is closed: at the driver, in the ledger, and here.
//!
//! A descriptor that moves between two processes while they are looked at is met by looking twice, the second time in
//! the opposite order.

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use driver::{FileId, FileKind};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use sys::pidfd::PidFd;

use crate::container::Container;
use crate::files::OpenFile;
use crate::holders::{Look, without_holder};
use crate::link::Stored;
use crate::managed::Occasion;
use crate::parting;
use crate::state::Op;

/// Looking is not repeated within this time of the last look, unless a process has exited since.
const PAUSE: Duration = Duration::from_millis(20);

/// Watches the container's processes.
#[derive(Debug)]
pub struct Reaper {
    epoll: Arc<Epoll>,
    state: Mutex<State>,
    /// Held for a whole round, which alone has further references to held files.
    round: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    processes: HashMap<i32, PidFd>,
    looked_at: Option<Instant>,
}

impl Reaper {
    /// A reaper whose processes report their exit to `epoll`, with their pid as data.
    #[must_use]
    pub fn new(epoll: Arc<Epoll>) -> Self {
        Self {
            epoll,
            state: Mutex::default(),
            round: Mutex::default(),
        }
    }

    /// Takes the container's cgroup from one of its processes: only the processes in it need to be looked at.
    pub fn set_cgroup_of(&self, container: &Container, pid: i32) {
        let mut change = container.journal.change();
        if change.cgroup().is_none()
            && let Some(folder) = cgroup_of(pid)
        {
            change.note(Op::Cgroup(folder));
        }
    }

    /// Waits for a process's exit from now on.
    pub fn watch(&self, tgid: i32) {
        let Ok(process) = PidFd::open(tgid) else {
            return;
        };
        let mut state = self.lock();
        if state.processes.contains_key(&tgid) {
            return;
        }
        let event = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(tgid.unsigned_abs()));
        if self.epoll.add(process.as_fd(), event).is_ok() {
            state.processes.insert(tgid, process);
        }
    }

    /// A process has exited.
    pub fn exited(&self, container: &Container, tgid: i32) {
        {
            let mut state = self.lock();
            if let Some(process) = state.processes.remove(&tgid) {
                let _closed_anyway = self.epoll.delete(process.as_fd());
            }
            state.looked_at = None;
        }
        container.processes.forget(tgid);
        self.reap(container);
    }

    /// Looks for files that nobody holds, unless that has just been done; says whether any was found.
    pub fn reap_now(&self, container: &Container) -> bool {
        {
            let mut state = self.lock();
            let exited = state
                .processes
                .values()
                .any(|process| process.wait_exit(0).unwrap_or(true));
            if !exited && state.looked_at.is_some_and(|at| at.elapsed() < PAUSE) {
                return false;
            }
            state.looked_at = Some(Instant::now());
        }
        self.reap(container)
    }

    /// The slow beat.
    pub fn beat(&self, container: &Container) {
        container.processes.forget_ended();
        container.managed.look(container, Occasion::Beat);
        container.replay.retain(&container.journal, |tid| {
            fs::exists(format!("/proc/{tid}")).unwrap_or(true)
        });
        container
            .answers
            .retain_those_of(&container.journal.change());
        self.reap(container);
    }

    fn reap(&self, container: &Container) -> bool {
        let _round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        let cgroup = container.journal.change().cgroup().cloned();
        let mut orphans = container.files.held();
        for look in [Look::Forth, Look::Back] {
            if orphans.is_empty() {
                return false;
            }
            orphans = without_holder(orphans, cgroup.as_deref(), look, container.driver.process());
        }
        // Device files first: the driver holds the control file that one is registered with.
        orphans.sort_by_key(|file| file.kind == FileKind::Ctl);
        let orphans: Vec<FileId> = orphans.into_iter().map(|file| file.id).collect();
        let mut found = false;
        for id in orphans {
            // A call under way keeps its file; it is looked at again on the next beat.
            let Some(file) = container.files.take_idle(&container.journal, id) else {
                continue;
            };
            found = true;
            close(container, id, Some(file));
        }
        found
    }

    /// Gives up what a former broker was giving up, and what it noted and never had.
    pub fn finish_closing(&self, container: &Container) {
        let _round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        // The journal first: a file that is noted between the two looks is held by the second.
        let noted: Vec<(FileId, bool)> = {
            let state = container.journal.change();
            let noted = state.files().map(|(id, entry)| (id, entry.is_closing));
            noted.collect()
        };
        let held = container.files.held();
        for (id, is_closing) in noted {
            if is_closing || !held.iter().any(|file| file.id == id) {
                close(container, id, None);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Order matters: what the file holds is freed, the duplicates close and the driver lets the memory go before the ledger says that there is room. The last
/// duplicate to close is ours, since a real driver's clean-up is done by whoever closes last.
fn close(container: &Container, id: FileId, file: Option<Arc<OpenFile>>) {
    if let Some(file) = &file {
        parting::free_all(container, file);
    }
    let kind = file.as_ref().map_or(FileKind::Ctl, |file| file.kind);
    if let Err(error) = container.keeper.release(vec![Stored::File(id, kind)]) {
        tracing::error!(error = %error, "the keeper was not told of a closed file");
    }
    drop(file);
    if let Err(error) = container.driver.closed(id) {
        tracing::error!(error = %error, "a closed file could not be reported");
    }
    container
        .account
        .close_file(&mut container.journal.change(), id);
}

/// The folder of a process's cgroup: the unified hierarchy's, or on older hosts the `pids` controller's, which every
/// container has to itself. `None` for a process at the root, which shares it with the host.
fn cgroup_of(pid: i32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path_of = |wanted: &str| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers
                .split(',')
                .any(|controller| controller == wanted)
                .then_some(path)
        })
    };
    [
        ("pids", "/sys/fs/cgroup/pids"),
        ("", "/sys/fs/cgroup"),
        ("", "/sys/fs/cgroup/unified"),
    ]
    .into_iter()
    .filter_map(|(controller, mount)| {
        let path = path_of(controller).filter(|path| path.len() > 1)?;
        Some(PathBuf::from(format!("{mount}{path}")))
    })
    .find(|folder| folder.join("cgroup.procs").exists())
}
