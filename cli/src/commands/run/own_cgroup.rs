//! A control group of the command's own, so that everybody can tell its processes from the host's.
//!
//! The broker looks for a slice's closed files among the processes of its cgroup, and what the command leaves running is
//! found here: memory of a card that a process still holds must not be granted to the next one.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sys::control_group::{self, Group};
use sys::proc;

/// How long killed processes may take to be gone.
const END: Duration = Duration::from_secs(10);
/// The same, of one process.
const END_OF_ONE_MS: u16 = 1_000;
/// How long a run waits for what another one has left.
const END_OF_OTHERS: Duration = Duration::from_secs(1);
/// Processes that are killed together: a descriptor each, of which this program may have few.
const AT_ONCE: usize = 64;
/// Until it is looked at again.
const PAUSE: Duration = Duration::from_millis(5);
/// What the folders' names begin with; whose they are follows, and the pid of their `cgpu run`.
const PREFIX: &str = "cgpu-run-";

/// Whose groups they are: those of one state folder and one PID namespace. Another cgpu beside this one, or one in a container that
/// sees the same groups and not the same processes, has runs of its own, which are none of ours to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner(String);

impl Owner {
    pub(super) fn of(state_dir: &Path) -> anyhow::Result<Self> {
        let metadata =
            fs::metadata(state_dir).with_context(|| format!("find {}", state_dir.display()))?;
        let (device, inode) = (metadata.dev(), metadata.ino());
        let pids = "/proc/self/ns/pid";
        let namespace = fs::metadata(pids).with_context(|| format!("find {pids}"))?;
        Ok(Self(format!("{device:x}-{inode:x}-{:x}", namespace.ino())))
    }

    fn name(&self, pid: u32) -> String {
        format!("{PREFIX}{}-{pid}", self.0)
    }

    /// The `cgpu run` that made a group, if this owner's did.
    fn run_of(&self, name: &str) -> Option<u32> {
        let pid = name.strip_prefix(PREFIX)?.strip_prefix(&self.0)?;
        pid.strip_prefix('-')?.parse().ok()
    }
}

/// The cgroup of one command.
#[derive(Debug)]
pub(super) struct OwnCgroup(PathBuf);

impl OwnCgroup {
    /// Makes one below this process's own; `None` on a host without cgroups.
    pub(super) fn make(owner: &Owner) -> anyhow::Result<Option<Self>> {
        Self::below(owner, own_folder())
    }

    /// Makes one in the tree of version 2 at `root`, where NVIDIA's limits are set.
    pub(super) fn make_in_v2(owner: &Owner, root: &Path) -> anyhow::Result<Option<Self>> {
        let own = proc::group_of("self", "").context("read /proc/self/cgroup")?;
        let own = own.map(|path| control_group::folder_in(root, &path));
        Self::below(
            owner,
            own.filter(|folder| folder.join("cgroup.procs").exists()),
        )
    }

    #[expect(
        clippy::print_stderr,
        reason = "the command starts all the same, and its own words follow"
    )]
    fn below(owner: &Owner, parent: Option<PathBuf>) -> anyhow::Result<Option<Self>> {
        let Some(parent) = parent else {
            return Ok(None);
        };
        // What another run has left stops nobody: its processes may hang in the driver.
        if let Err(error) = sweep_below(owner, &parent, END_OF_OTHERS) {
            eprintln!("cgpu: what a killed run has left stays: {error:#}");
        }
        let folder = parent.join(owner.name(std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => Ok(Some(Self(folder))),
            // Left by a process of the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Some(Self(folder))),
            Err(error) => Err(error).with_context(|| format!("make {}", folder.display())),
        }
    }

    /// One that another process has made.
    pub(super) fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// Its folder.
    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// Kills what the command has left running, in groups below as well, and removes them all.
    ///
    /// # Errors
    /// A process may be left.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.end_within(END)
    }

    fn end_within(self, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let groups = control_group::subtree(&self.0, usize::MAX)
                .with_context(|| format!("list {}", self.0.display()))?;
            let processes = groups.iter().flat_map(|group| group.processes.iter());
            let left: Vec<i32> = processes.copied().collect();
            if left.is_empty() && remove(&groups)? {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "processes of the command in {} do not end: {left:?}",
                    self.0.display()
                );
            }
            self.kill(&groups)?;
            std::thread::sleep(PAUSE);
        }
    }

    fn kill(&self, groups: &[Group]) -> anyhow::Result<()> {
        // Since Linux 5.14, version 2 alone: those that are started meanwhile too. What does not do it is done below.
        if let Ok(mut all) = OpenOptions::new()
            .write(true)
            .open(self.0.join("cgroup.kill"))
        {
            drop(all.write_all(b"1"));
        }
        for group in groups {
            for some in group.processes.chunks(AT_ONCE) {
                kill_of(&group.folder, some)?;
            }
        }
        Ok(())
    }
}

/// Kills those of a group's processes that are still in it, and waits for them.
fn kill_of(folder: &Path, processes: &[i32]) -> anyhow::Result<()> {
    let killed = control_group::kill_members(folder, processes, &|| true)
        .with_context(|| format!("list {}", folder.display()))?;
    for process in killed {
        process
            .wait_exit(END_OF_ONE_MS)
            .context("wait for a killed process")?;
    }
    Ok(())
}

/// Removes groups without processes, those below first; `false`: one of them is in use again.
fn remove(groups: &[Group]) -> anyhow::Result<bool> {
    for group in groups.iter().rev() {
        match fs::remove_dir(&group.folder) {
            Ok(()) => {}
            // Another run has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(false),
            Err(error) => {
                return Err(error).with_context(|| format!("remove {}", group.folder.display()));
            }
        }
    }
    Ok(true)
}

/// Moves this process into a cgroup.
pub(super) fn enter(folder: &Path) -> anyhow::Result<()> {
    let file = folder.join("cgroup.procs");
    fs::write(&file, std::process::id().to_string())
        .with_context(|| format!("enter {}", file.display()))
}

/// Ends what runs that were killed have left running; says whose.
pub(super) fn sweep(owner: &Owner) -> anyhow::Result<Vec<String>> {
    own_folder().map_or_else(|| Ok(Vec::new()), |parent| sweep_below(owner, &parent, END))
}

/// Each group may take so long. One that does not end keeps no other.
///
/// # Errors
/// The first that did not end.
fn sweep_below(owner: &Owner, parent: &Path, limit: Duration) -> anyhow::Result<Vec<String>> {
    let (mut removed, mut result) = (Vec::new(), Ok(()));
    for entry in fs::read_dir(parent).with_context(|| format!("list {}", parent.display()))? {
        let name = entry
            .with_context(|| format!("list {}", parent.display()))?
            .file_name();
        let of_run = name.to_str().and_then(|name| owner.run_of(name));
        if of_run.is_none_or(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            continue;
        }
        match OwnCgroup(parent.join(&name)).end_within(limit) {
            Ok(()) => removed.push(format!("cgroup {}", name.display())),
            Err(error) => result = result.and(Err(error)),
        }
    }
    result.map(|()| removed)
}

fn own_folder() -> Option<PathBuf> {
    Some(control_group::folders_of("self").next()?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that no process has: above the kernel's own limit.
    const GONE: u32 = 1 << 30;

    /// It has a file below it, which no `rmdir` removes.
    #[test]
    fn what_cannot_be_removed_stops_no_other_run() {
        let (groups, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let owner = Owner::of(own.path()).unwrap();
        let left = groups.path().join(owner.name(GONE));
        fs::create_dir_all(left.join("below")).unwrap();
        fs::write(left.join("below/file"), "").unwrap();
        sweep_below(&owner, groups.path(), END).unwrap_err();
        let made = OwnCgroup::below(&owner, Some(groups.path().to_owned())).unwrap();
        assert!(made.unwrap().folder().is_dir());
        // What another run has removed meanwhile is gone.
        OwnCgroup::at(groups.path().join("gone")).end().unwrap();
    }

    #[test]
    fn groups_of_another_state_folder_are_left_alone() {
        let (groups, own, other) = (
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
        );
        let owner = Owner::of(own.path()).unwrap();
        let inside = Owner(format!("{}0", owner.0));
        let stranger = Owner::of(other.path()).unwrap();
        let mut victim = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let group = |name: &str, processes: &str| {
            let folder = groups.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cgroup.procs"), processes).unwrap();
        };
        let pid = victim.id().to_string();
        for name in [
            stranger.name(GONE),
            // The same state folder, seen from another PID namespace.
            inside.name(GONE),
            // As an older cgpu named them, and as anybody may.
            format!("{PREFIX}{GONE}"),
            format!("{PREFIX}{}-x-{GONE}", owner.0),
            format!("x{}", owner.name(GONE)),
        ] {
            group(&name, &pid);
        }
        let nothing: [String; 0] = [];
        assert_eq!(sweep_below(&owner, groups.path(), END).unwrap(), nothing);
        assert!(victim.try_wait().unwrap().is_none(), "it lives");
        victim.kill().unwrap();
        victim.wait().unwrap();
        // No real group: it is found, and cannot be removed with a file in it.
        group(&owner.name(GONE), "");
        sweep_below(&owner, groups.path(), END).unwrap_err();
    }
}
