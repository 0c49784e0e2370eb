//! What all threads of one broker share.

use std::collections::HashMap;
use std::fs;
use std::sync::{Mutex, PoisonError};

use driver::{Driver, FileKind};
use nvabi::Release;
use verdict::Surface;

use crate::account::Account;
use crate::counters::Counters;
use crate::files::FileTable;
use crate::order::Orders;
use crate::replay::Replay;

/// The container behind this broker.
pub struct Container {
    /// `namespace/container`
    pub name: String,
    /// The driver's layouts.
    pub release: Release,
    /// Who executes.
    pub driver: Box<dyn Driver>,
    /// The account.
    pub account: Account,
    /// Its open files of the driver.
    pub files: FileTable,
    /// Calls under way, and answers that may not have been seen.
    pub replay: Replay,
    /// What is executed and booked in one go.
    pub orders: Orders,
    /// Counters.
    pub counters: Counters,
    /// Its processes, as far as they have made a call.
    pub processes: Processes,
}

/// Thread → process, and the processes whose exit is waited for.
#[derive(Debug, Default)]
pub struct Processes {
    tgids: Mutex<HashMap<i32, i32>>,
}

/// Threads beyond this are forgotten all at once; they cost a read of `/proc` to know again.
const MOST_THREADS: usize = 4096;

impl Processes {
    /// The process of a thread; `None` when it has gone. The second value says whether the thread is new here.
    pub fn of(&self, tid: i32) -> Option<(i32, Acquaintance)> {
        let mut tgids = self.tgids.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tgid) = tgids.get(&tid) {
            return Some((*tgid, Acquaintance::Known));
        }
        let tgid = tgid_of(tid)?;
        if tgids.len() >= MOST_THREADS {
            tgids.clear();
        }
        let known = tgids.values().any(|known| *known == tgid);
        tgids.insert(tid, tgid);
        Some((
            tgid,
            if known {
                Acquaintance::Known
            } else {
                Acquaintance::New
            },
        ))
    }

    /// Forgets a process: its numbers may be used again.
    pub fn forget(&self, tgid: i32) {
        self.tgids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|_, known| *known != tgid);
    }

    /// Forgets one thread.
    pub fn forget_thread(&self, tid: i32) {
        self.tgids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&tid);
    }

    /// Forgets threads that have ended, whose numbers may be used again.
    pub fn forget_ended(&self) {
        self.tgids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|tid, tgid| fs::exists(format!("/proc/{tgid}/task/{tid}")).unwrap_or(false));
    }
}

/// Whether a process has been seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquaintance {
    /// Its first call.
    New,
    /// It has made calls.
    Known,
}

fn tgid_of(tid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// The part of the driver's interface that a file is.
#[must_use]
pub fn surface(kind: FileKind) -> Surface {
    match kind {
        FileKind::Ctl => Surface::Ctl,
        FileKind::Card { .. } => Surface::Card,
        FileKind::Uvm => Surface::Uvm,
        FileKind::UvmTools => Surface::UvmTools,
    }
}
