//! Noticing that the last reference to a file of the driver is gone.
//!
//! Neither `close` nor `exit` is seen by the filter, and RM's objects live as long as their *file*. So whenever a
//! process of the container exits, on a slow beat, and before memory is refused, every held file is looked for among the
//! container's processes ([`crate::holders`]). What nobody holds is closed: at the driver, in the ledger, and here.
//!
//! A file can have left the container, through a socket that it was given. So what no process of the container holds is looked for
//! among all of the host's, and stays charged to the container that opened it as long as one of them has it. That look costs what
//! the host's processes have open: so it is made for such files alone, and takes no more than a twentieth of the time.
//!
//! A descriptor that moves between two processes while they are looked at is met by looking twice, the second time in
//! the opposite order.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
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
use crate::state::Op;
use crate::supervisors;

/// Looking is not repeated within this time of the last look, unless a process has exited since.
const PAUSE: Duration = Duration::from_millis(20);

/// After a look at all of the host's processes the next one is made when so many times its duration have passed,
const SHARE_OF_HOST_LOOKS: u32 = 20;
/// but no later than this.
const LONGEST_HOST_PAUSE: Duration = Duration::from_secs(2);

/// Watches the container's processes.
#[derive(Debug)]
pub struct Reaper {
    epoll: Arc<Epoll>,
    state: Mutex<State>,
    /// Held for a whole round, which alone has further references to held files.
    round: Mutex<Outside>,
    /// The folder of all containers' folders.
    containers: Option<PathBuf>,
}

/// What is known of files that have left the container.
#[derive(Debug, Default)]
struct Outside {
    /// Found with somebody at the last look.
    held: HashSet<FileId>,
    next_look: Option<Instant>,
}

/// What files are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// Nobody waits: what cannot be looked at now is looked at the next time.
    Round,
    /// Memory is about to be refused.
    Refusal,
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
            containers: None,
        }
    }

    /// The reaper of the container whose folder this is: beside it are those of the others, whose brokers hold no files of their
    /// own.
    #[must_use]
    pub fn beside(mut self, container: &Path) -> Self {
        self.containers = container
            .parent()
            .and_then(Path::parent)
            .map(Path::to_owned);
        self
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
        self.reap(container, Reason::Round);
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
        self.reap(container, Reason::Refusal)
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
        self.reap(container, Reason::Round);
    }

    fn reap(&self, container: &Container, reason: Reason) -> bool {
        let mut outside = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        let cgroup = container.journal.change().cgroup().cloned();
        // The keeper, which holds every file that is held here, has started this process.
        let mut ours: HashSet<i32> = [std::process::id(), std::os::unix::process::parent_id()]
            .map(u32::cast_signed)
            .into();
        ours.extend(container.driver.process());
        let held = container.files.held();
        let mut orphans = match cgroup.as_deref() {
            Some(cgroup) => {
                let orphans = looked_for_twice(held, Some(cgroup), &ours);
                self.without_outsider(orphans, ours, reason, &mut outside)
            }
            // All of the host's processes are the container's, as far as is known.
            None => self.looked_for_on_host(held, ours),
        };
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

    /// Those files that no process of the host holds; none while it is too early to look.
    fn without_outsider(
        &self,
        orphans: Vec<Arc<OpenFile>>,
        ours: HashSet<i32>,
        reason: Reason,
        outside: &mut Outside,
    ) -> Vec<Arc<OpenFile>> {
        if orphans.is_empty() {
            outside.held.clear();
            return orphans;
        }
        let early = outside.next_look.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(Instant::now())
        });
        if !early.is_zero() {
            let is_known = orphans.iter().all(|file| outside.held.contains(&file.id));
            if is_known || reason == Reason::Round {
                return Vec::new();
            }
            std::thread::sleep(early);
        }
        let began = Instant::now();
        let sought: HashSet<FileId> = orphans.iter().map(|file| file.id).collect();
        let orphans = self.looked_for_on_host(orphans, ours);
        let given_up: HashSet<FileId> = orphans.iter().map(|file| file.id).collect();
        outside.held = sought.difference(&given_up).copied().collect();
        if !outside.held.is_empty() {
            tracing::debug!(
                files = outside.held.len(),
                "files of this container are held outside it"
            );
        }
        let pause = (began.elapsed() * SHARE_OF_HOST_LOOKS).min(LONGEST_HOST_PAUSE);
        outside.next_look = Some(Instant::now() + pause);
        orphans
    }

    fn looked_for_on_host(
        &self,
        files: Vec<Arc<OpenFile>>,
        mut ours: HashSet<i32>,
    ) -> Vec<Arc<OpenFile>> {
        if let Some(containers) = self.containers.as_ref().filter(|_| !files.is_empty()) {
            ours.extend(supervisors::of_all_containers(containers));
        }
        looked_for_twice(files, None, &ours)
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

/// Without those that a process of the group, or of the host, holds. Twice: a descriptor may move between two processes meanwhile.
fn looked_for_twice(
    mut files: Vec<Arc<OpenFile>>,
    cgroup: Option<&Path>,
    passed_over: &HashSet<i32>,
) -> Vec<Arc<OpenFile>> {
    for look in [Look::Forth, Look::Back] {
        if files.is_empty() {
            break;
        }
        files = without_holder(files, cgroup, look, passed_over);
    }
    files
}

/// Order matters: the duplicates close and the driver lets the memory go before the ledger says that there is room. The last
/// duplicate to close is ours, since a real driver's clean-up is done by whoever closes last.
fn close(container: &Container, id: FileId, file: Option<Arc<OpenFile>>) {
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
