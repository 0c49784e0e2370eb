//! Pausing a container on a machine that is busy.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::command::Outcome;

/// A container that does not stand still by then has a process that cannot be stopped.
const LIMIT: Duration = Duration::from_secs(30);

/// Pauses by this command, which is repeated while runc has no luck.
///
/// runc's `FreezerGroup.Set` (libcontainer/cgroups/fs/freezer.go of 1.1, cgroups/fs/freezer.go since 1.3) gives up with "unable to
/// freeze" after 1000 looks at a version 1 freezer, and at every 50th it thaws the group for 10 ms: some 0.2 s in all, in
/// which the processes have never had more than 49 bare writes and reads, about a millisecond, to come to their stop. Beside
/// busy processes that is a game of chance, as its own comment says.
///
/// # Errors
/// The command cannot be run, or it does not pause the container in [`LIMIT`].
pub fn pause(mut command: impl FnMut() -> Result<Outcome>) -> Result<Outcome> {
    let until = Instant::now() + LIMIT;
    loop {
        let paused = command()?;
        let came_to_no_stop = paused.stderr.contains("unable to freeze");
        if !came_to_no_stop || Instant::now() > until {
            return paused.success();
        }
    }
}
