//! The container's processes: those of its control group, where that is known, and those that have made a call.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use journal::Journal;
use supervisor::scarce;
use sys::sync;

use crate::control_group::processes_of_group;
use crate::table::Table;

/// The processes of one container.
#[derive(Debug)]
pub struct Processes {
    /// It knows the control group.
    journal: Arc<Journal>,
    /// Thread → process.
    tgids: Mutex<Table<i32, i32>>,
}

/// Threads beyond this are forgotten all at once; they cost a read of `/proc` to know again.
const MOST_THREADS: usize = 4096;

impl Processes {
    /// The processes of the container of that journal.
    #[must_use]
    pub fn new(journal: Arc<Journal>) -> Self {
        Self {
            journal,
            tgids: Mutex::default(),
        }
    }

    /// The folder of the container's control group, once that is known.
    #[must_use]
    pub fn cgroup(&self) -> Option<PathBuf> {
        self.journal.change().cgroup().cloned()
    }

    /// Those of the control group; where it is not known, those that have made calls.
    #[must_use]
    pub fn members(&self) -> Vec<i32> {
        match self.cgroup() {
            Some(folder) => processes_of_group(&folder),
            None => self.known(),
        }
    }

    /// Whether a process is one of them.
    #[must_use]
    pub fn has(&self, pid: i32) -> bool {
        let in_group = |folder: PathBuf| processes_of_group(&folder).contains(&pid);
        self.known().contains(&pid) || self.cgroup().is_some_and(in_group)
    }

    /// The process of a thread. The second value says whether the thread is new here.
    ///
    /// # Errors
    /// The thread has gone (`ESRCH`), or the system has no descriptor to look with.
    pub fn of(&self, tid: i32) -> io::Result<(i32, FirstSeen)> {
        let mut tgids = sync::lock(&self.tgids);
        if let Some(tgid) = tgids.get(&tid) {
            return Ok((*tgid, FirstSeen::No));
        }
        let tgid = tgid_of(tid)?;
        if tgids.len() >= MOST_THREADS {
            tgids.clear();
        }
        let known = tgids.values().any(|known| *known == tgid);
        tgids.insert(tid, tgid);
        Ok((tgid, if known { FirstSeen::No } else { FirstSeen::Yes }))
    }

    /// The processes that have made calls.
    #[must_use]
    pub fn known(&self) -> Vec<i32> {
        let tgids = sync::lock(&self.tgids);
        let mut known: Vec<i32> = tgids.values().copied().collect();
        known.sort_unstable();
        known.dedup();
        known
    }

    /// Forgets processes: their numbers may be used again.
    pub fn forget_all(&self, gone: &HashSet<i32>) {
        sync::lock(&self.tgids).retain(|_, known| !gone.contains(known));
    }

    /// Forgets one thread.
    pub fn forget_thread(&self, tid: i32) {
        sync::lock(&self.tgids).remove(&tid);
    }

    /// Forgets threads that have ended, whose numbers may be used again.
    pub fn forget_ended(&self) {
        sync::lock(&self.tgids)
            .retain(|tid, tgid| fs::exists(format!("/proc/{tgid}/task/{tid}")).unwrap_or(false));
    }
}

/// Whether a process is seen for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstSeen {
    /// Its first call.
    Yes,
    /// It has made calls.
    No,
}

pub(crate) fn tgid_of(tid: i32) -> io::Result<i32> {
    let tgid = sys::proc::status_field(tid, "Tgid").map_err(|error| {
        if scarce::is_scarcity(&error) {
            error
        } else {
            nix::errno::Errno::ESRCH.into()
        }
    })?;
    tgid.and_then(|tgid| tgid.parse().ok())
        .ok_or_else(|| nix::errno::Errno::ESRCH.into())
}
