//! The container's first process, `init.json`: where no broker lives with the container, it says whether it lives.

use serde::{Deserialize, Serialize};
use sys::pidfd::PidFd;
use sys::proc::start_ticks;

use crate::error::Error;
use crate::process;
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
///
/// # Errors
/// Nobody knows: the note or the process cannot be looked at.
pub(super) fn lives(dir: &ContainerDir) -> Result<bool, Error> {
    let text = match cards::store::read_capped("init", &dir.file(FILE), SIZE_MAX_BYTES) {
        Ok(text) => text,
        Err(cards::Error::Io(error)) if error.is_absent() => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    match serde_json::from_slice::<Init>(&text) {
        Ok(init) => process::is_running(init.pid, init.start_ticks),
        Err(_broken) => Ok(false),
    }
}
