//! Noticing that the last reference to a file of the driver is gone.
//!
//! Neither `close` nor `exit` is seen by the filter, and RM's objects live as long as their *file*. So whenever a
//! process of the container exits, on a slow beat, and before memory is refused, every held file is looked for in the
//! descriptor tables of the container's processes. What nobody holds is closed: at the driver, in the ledger, and here.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::stat::fstat;
use sys::pidfd::PidFd;

use crate::container::Container;
use crate::files::OpenFile;

/// Looking is not repeated within this time of the last look, unless a process has exited since.
const PAUSE: Duration = Duration::from_millis(20);

/// Watches the container's processes.
#[derive(Debug)]
pub struct Reaper {
    epoll: Arc<Epoll>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    processes: HashMap<i32, PidFd>,
    cgroup: Option<PathBuf>,
    looked_at: Option<Instant>,
}

impl Reaper {
    /// A reaper whose processes report their exit to `epoll`, with their pid as data.
    #[must_use]
    pub fn new(epoll: Arc<Epoll>) -> Self {
        Self {
            epoll,
            state: Mutex::default(),
        }
    }

    /// Takes the container's cgroup from one of its processes: only the processes in it need to be looked at.
    pub fn set_cgroup_of(&self, pid: i32) {
        let mut state = self.lock();
        if state.cgroup.is_none() {
            state.cgroup = cgroup_of(pid);
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
        container
            .replay
            .retain(|tid| fs::exists(format!("/proc/{tid}")).unwrap_or(true));
        self.reap(container);
    }

    fn reap(&self, container: &Container) -> bool {
        let held = container.files.held();
        if held.is_empty() {
            return false;
        }
        let cgroup = self.lock().cgroup.clone();
        let orphans = without_holder(held, cgroup.as_deref());
        let mut found = false;
        for file in orphans {
            // A call under way keeps its file; it is looked at again on the next beat.
            let Some(file) = container.files.take_idle(file.id) else {
                continue;
            };
            found = true;
            // Order matters: the driver lets the memory go before the ledger says that there is room.
            if let Err(error) = container.driver.closed(file.id) {
                tracing::error!(error = %error, "a closed file could not be reported");
            }
            container.account.close_file(file.id);
        }
        found
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files of `held` that no process has a descriptor for.
fn without_holder(held: Vec<Arc<OpenFile>>, cgroup: Option<&Path>) -> Vec<Arc<OpenFile>> {
    let mut wanted: Vec<(u64, u64, Arc<OpenFile>)> = held
        .into_iter()
        .filter_map(|file| {
            let stat = fstat(file.fd.as_fd()).ok()?;
            Some((stat.st_dev, stat.st_ino, file))
        })
        .collect();
    let own = std::process::id().cast_signed();
    for pid in processes_in(cgroup).into_iter().filter(|pid| *pid != own) {
        if wanted.is_empty() {
            break;
        }
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(meta) = fs::metadata(entry.path()) else {
                continue;
            };
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok());
            let (Some(number), true) = (
                number,
                wanted
                    .iter()
                    .any(|(dev, ino, _)| (*dev, *ino) == (meta.dev(), meta.ino())),
            ) else {
                continue;
            };
            wanted.retain(|(dev, ino, file)| {
                (*dev, *ino) != (meta.dev(), meta.ino())
                    || !matches!(
                        sys::kcmp::file(pid, number, file.fd.as_fd()),
                        Ok(Ordering::Equal)
                    )
            });
        }
    }
    wanted.into_iter().map(|(_, _, file)| file).collect()
}

fn processes_in(cgroup: Option<&Path>) -> Vec<i32> {
    match cgroup {
        Some(folder) => {
            let mut pids = Vec::new();
            collect(folder, &mut pids);
            pids
        }
        None => fs::read_dir("/proc")
            .map(|entries| {
                entries
                    .flatten()
                    .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
                    .collect()
            })
            .unwrap_or_default(),
    }
}

fn collect(folder: &Path, pids: &mut Vec<i32>) {
    if let Ok(text) = fs::read_to_string(folder.join("cgroup.procs")) {
        pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), pids);
        }
    }
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
