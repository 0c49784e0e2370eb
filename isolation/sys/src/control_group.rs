//! Programs that are in their control groups from their first instruction on, and the processes of groups.
//!
//! UNSAFETY: what runs between fork and exec may only make system calls; std cannot check that.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pidfd::PidFd;
use crate::proc;

/// Has the command's child enter groups before it executes its program, by their opened `cgroup.procs` or `tasks`. A group that cannot be
/// entered fails the start; nothing was executed then.
pub fn enter_before_exec(command: &mut Command, entrances: Vec<File>) -> &mut Command {
    let enter = move || {
        for entrance in &entrances {
            // SAFETY: the descriptor is open as long as the closure lives, and one byte is there to be read.
            let written = unsafe { libc::write(entrance.as_raw_fd(), b"0".as_ptr().cast(), 1) };
            if written != 1 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only. It allocates nothing and takes no lock.
    unsafe { command.pre_exec(enter) }
}

/// Hierarchies by their controller in `/proc/PID/cgroup` and where they are mounted: on older hosts that of `pids`, which every container has to
/// itself, else the unified one.
const HIERARCHIES: [(&str, &str); 3] = [
    ("pids", "/sys/fs/cgroup/pids"),
    ("", "/sys/fs/cgroup"),
    ("", "/sys/fs/cgroup/unified"),
];

/// A process's groups whose folders are seen here: each one's path in its hierarchy, and its folder. None of a process that has gone.
pub fn folders_of(process: impl Display) -> impl Iterator<Item = (String, PathBuf)> {
    let groups = proc::groups_of(process).unwrap_or_default();
    let folder = move |(controller, mount): (&str, &str)| {
        let path = proc::group_in(&groups, controller)?;
        let folder = folder_in(mount, path);
        let is_seen = folder.join("cgroup.procs").exists();
        is_seen.then(|| (path.to_owned(), folder))
    };
    HIERARCHIES.into_iter().filter_map(folder)
}

/// The folder of a group with this path in the hierarchy mounted there.
#[must_use]
pub fn folder_in(mount: impl AsRef<Path>, path: &str) -> PathBuf {
    mount.as_ref().join(path.trim_start_matches('/'))
}

/// One of a subtree of groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Where it is.
    pub folder: PathBuf,
    /// Those in it, without those of groups below.
    pub processes: Vec<i32>,
}

/// A group and those below it, each behind the one that it is in: of so many groups at most, for who is in a group may make as many below
/// it as it likes.
///
/// # Errors
/// A group that is there and cannot be read.
pub fn subtree(folder: &Path, most: usize) -> io::Result<Vec<Group>> {
    let (mut groups, mut left) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = left.pop().filter(|_| groups.len() < most) {
        let processes = processes(&folder)?;
        match fs::read_dir(&folder) {
            Err(error) if has_gone(&error) => {}
            Err(error) => return Err(error),
            Ok(entries) => {
                for entry in entries {
                    let entry = match entry {
                        Err(error) if has_gone(&error) => break,
                        other => other?,
                    };
                    if left.len() < most && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        left.push(entry.path());
                    }
                }
            }
        }
        groups.push(Group { folder, processes });
    }
    Ok(groups)
}

/// The processes of a group, without those of groups below it; none of one that is gone.
///
/// # Errors
/// The group is there and cannot be read.
pub fn processes(folder: &Path) -> io::Result<Vec<i32>> {
    match fs::read_to_string(folder.join("cgroup.procs")) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
        // The processes of a threaded group are listed in the domain above it.
        Err(error) if has_gone(&error) || error.kind() == io::ErrorKind::Unsupported => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// Kills those of these processes that are in a group, and returns them. Whether the group is still the caller's to end is asked once they are
/// known: it may be another's by then.
///
/// # Errors
/// The group is there and cannot be read.
pub fn kill_members(
    folder: &Path,
    pids: &[i32],
    is_still: &dyn Fn() -> bool,
) -> io::Result<Vec<PidFd>> {
    let opened = pids.iter();
    let opened: Vec<(i32, PidFd)> = opened
        .filter_map(|pid| Some((*pid, PidFd::open(*pid).ok()?)))
        .collect();
    // Read again after they were opened: from then on a number cannot change hands.
    let there: BTreeSet<i32> = processes(folder)?.into_iter().collect();
    let members = opened.into_iter().filter(|(pid, _)| there.contains(pid));
    // One that has gone meanwhile needs no killing.
    let killed = members.filter(|(_, process)| is_still() && process.signal(libc::SIGKILL).is_ok());
    Ok(killed.map(|(_, process)| process).collect())
}

fn has_gone(error: &io::Error) -> bool {
    proc::has_gone(error) || error.raw_os_error() == Some(libc::ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_group_s_folder_is_below_its_hierarchy() {
        let folder = |path| folder_in("/sys/fs/cgroup", path);
        assert_eq!(folder("/a/b"), Path::new("/sys/fs/cgroup/a/b"));
        assert_eq!(folder("/"), Path::new("/sys/fs/cgroup/"));
        for (path, folder) in folders_of("self") {
            let name = Path::new(&path).file_name();
            assert!(name.is_none() || folder.file_name() == name, "{path}");
        }
        assert_eq!(folders_of(u32::MAX).next(), None);
    }

    #[test]
    fn groups_below_are_listed_behind_the_one_that_they_are_in() {
        let dir = std::env::temp_dir().join(format!("cgpu-groups-{}", std::process::id()));
        let group = |name: &str, text: &str| {
            let folder = dir.join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cgroup.procs"), text).unwrap();
            folder
        };
        let all = [
            group("a", "1\n2\n"),
            group("a/b", ""),
            group("a/b/c", "3\n"),
        ];
        let found = subtree(&all[0], usize::MAX).unwrap();
        let folders: Vec<_> = found.iter().map(|group| group.folder.clone()).collect();
        assert_eq!(folders, all);
        assert_eq!(found[0].processes, [1, 2]);
        assert_eq!(found[2].processes, [3]);
        assert_eq!(subtree(&all[0], 2).unwrap().len(), 2);
        let gone = subtree(&dir.join("gone"), usize::MAX).unwrap();
        assert_eq!(gone[0].processes, [0; 0]);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn who_has_left_a_group_is_not_killed_and_nobody_is_once_it_is_another_s() {
        let dir = std::env::temp_dir().join(format!("cgpu-killed-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let sleeper = || Command::new("sleep").arg("60").spawn().unwrap();
        let (mut member, mut other) = (sleeper(), sleeper());
        let [in_it, outside] = [&member, &other].map(|child| child.id().cast_signed());
        fs::write(dir.join("cgroup.procs"), format!("{in_it}\n")).unwrap();
        let both = [outside, in_it];
        assert!(kill_members(&dir, &both, &|| false).unwrap().is_empty());
        assert!(member.try_wait().unwrap().is_none());
        let killed = kill_members(&dir, &both, &|| true).unwrap();
        assert!(matches!(&killed[..], [one] if one.wait_exit(10_000).unwrap()));
        member.wait().unwrap();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn every_group_is_entered_before_the_program_runs() {
        let (mut one, first) = io::pipe().unwrap();
        let (mut other, second) = io::pipe().unwrap();
        let entrances = [first, second].map(|end| File::from(std::os::fd::OwnedFd::from(end)));
        let mut command = Command::new("true");
        enter_before_exec(&mut command, entrances.into());
        assert!(command.status().unwrap().success());
        drop(command);
        let mut written = String::new();
        one.read_to_string(&mut written).unwrap();
        other.read_to_string(&mut written).unwrap();
        assert_eq!(written, "00");
    }

    #[test]
    fn a_group_that_cannot_be_entered_fails_the_start() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new("true");
        let started = enter_before_exec(&mut command, vec![full]).status();
        assert_eq!(started.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }
}
