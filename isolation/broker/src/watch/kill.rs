//! Ending a container's processes, where the administrator wants that after a violation.

use std::collections::HashSet;
use std::time::Duration;

use caps::{CapSet, Capability};
use nix::sys::signal::Signal;
use sys::pidfd::PidFd;

use crate::processes::Processes;

/// Processes that fork meanwhile are found in the next round.
const ROUNDS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// Sends SIGKILL to every process of the container but the one that makes its calls; says to how many.
///
/// Processes of other users need CAP_KILL, which the broker has permitted only where this can be asked of it, and which is in
/// effect in this thread, for as long as it takes.
pub(super) fn all_processes(processes: &Processes, executor: Option<i32>) -> usize {
    if let Err(error) = caps::raise(None, CapSet::Effective, Capability::CAP_KILL) {
        tracing::debug!(error = %error, "CAP_KILL is not permitted");
    }
    let mut killed = HashSet::new();
    for _ in 0..ROUNDS {
        let alive = alive(processes, executor);
        if alive.is_empty() {
            break;
        }
        for (pid, process) in alive {
            match process.signal(Signal::SIGKILL as i32) {
                Ok(()) => {
                    killed.insert(pid);
                }
                Err(error) => {
                    tracing::error!(pid, error = %error, "a process could not be killed")
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
    if let Err(error) = caps::drop(None, CapSet::Effective, Capability::CAP_KILL) {
        tracing::debug!(error = %error, "CAP_KILL was not in effect");
    }
    killed.len()
}

fn alive(processes: &Processes, executor: Option<i32>) -> Vec<(i32, PidFd)> {
    let opened: Vec<(i32, PidFd)> = processes
        .members()
        .into_iter()
        .filter(|pid| !is_ours(*pid) && executor != Some(*pid))
        .filter_map(|pid| Some((pid, PidFd::open(pid).ok()?)))
        .filter(|(_, process)| !process.wait_exit(0).unwrap_or(true))
        .collect();
    // What is a member still is the process that was opened: its number was not used again meanwhile.
    let still = processes.members();
    opened
        .into_iter()
        .filter(|(pid, _)| still.contains(pid))
        .collect()
}

fn is_ours(pid: i32) -> bool {
    [std::process::id(), std::os::unix::process::parent_id()]
        .map(u32::cast_signed)
        .contains(&pid)
}
