//! The container's first process, `init.json`: where no broker lives with the container, it says whether it lives.

use serde::{Deserialize, Serialize};
use sys::pidfd::PidFd;
use sys::proc::start_ticks;

use crate::error::Error;
use crate::state::{ContainerDir, json};

/// The note's name in the container's folder.
pub(crate) const FILE: &str = "init.json";

/// A page of text at most.
const SIZE_MAX_BYTES: u64 = 1 << 12;

/// Which process. The start time tells it from a later process of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Init {
    pid: i32,
    /// In clock ticks since boot, field 22 of `/proc/<pid>/stat`.
    start_ticks: u64,
}

/// Writes the note durably.
///
/// # Errors
/// The process is gone, or the note cannot be written.
pub(super) fn record(dir: &ContainerDir, pid: i32) -> Result<(), Error> {
    let gone = || Error::InitGone { pid };
    let process = PidFd::open(pid).map_err(|_gone| gone())?;
    let start_ticks = start_ticks(pid).ok_or_else(gone)?;
    // From the opening on the number was this process's, if it still is.
    if process.wait_exit(0).unwrap_or(true) {
        return Err(gone());
    }
    let path = dir.file(FILE);
    let text = json(&path, &Init { pid, start_ticks })?;
    Ok(cards::store::replace(
        &cards::store::DiskStore,
        &path,
        &text,
    )?)
}

/// Whether the noted process lives. Without a note, or with a broken one, no.
pub(super) fn lives(dir: &ContainerDir) -> bool {
    let recorded = || -> Option<bool> {
        let text = cards::store::read_capped("init", &dir.file(FILE), SIZE_MAX_BYTES).ok()?;
        let init: Init = serde_json::from_slice(&text).ok()?;
        let process = PidFd::open(init.pid).ok()?;
        let is_it = start_ticks(init.pid) == Some(init.start_ticks);
        Some(is_it && !process.wait_exit(0).unwrap_or(true))
    };
    recorded().unwrap_or(false)
}
