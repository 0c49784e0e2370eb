//! Which processes are a container's, by what was noted of its first one.
//!
//! A number that somebody has written down may be another process's by the time that it is read: conmon waits for an exec that has
//! ended, and the kernel gives its number away. So a process is opened once ([`Process`]), found to be the container's or not, looked
//! at and killed by that one descriptor.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sys::failed;
use sys::pidfd::PidFd;
use sys::proc::{Stat, groups_of, has_gone, start_ticks, status_field};
use sys::traced::Traced;

use crate::error::Error;
use crate::state::ContainerDir;

/// The note's name in the container's folder.
pub(crate) const FILE: &str = "first-process.json";

/// A group's path has 4096 bytes at most, and version 1 a dozen trees.
const SIZE_MAX_BYTES: u64 = 1 << 17;

/// What tells a container's processes from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct First {
    pid: i32,
    /// In clock ticks since boot, field 22 of `/proc/<pid>/stat`: tells it from a later process of the same number.
    start_ticks: u64,
    /// Its pid namespace, where it is the first process of that too; else the namespace is others' as well, and tells nothing.
    pid_namespace: Option<String>,
    /// Its control groups, but for roots and those that this program is in as well: each as `/proc/<pid>/cgroup` has it, without
    /// the tree's number.
    groups: Vec<(String, String)>,
}

/// A process of a container's, opened.
#[derive(Debug)]
pub(crate) struct Process {
    number: i32,
    opened: PidFd,
}

/// Notes the first process of a container. The caller knows that the number is its own: its runtime waits.
///
/// # Errors
/// The process is gone, or the note cannot be written.
pub(crate) fn record(dir: &ContainerDir, pid: i32) -> Result<(), Error> {
    let unread = |source| Error::FilterUnread { pid, source };
    let process = PidFd::open(pid).map_err(unread)?;
    let first = First::of(pid).map_err(unread)?;
    if process.wait_exit(0).map_err(unread)? {
        return Err(Error::InitGone { pid });
    }
    dir.write_json(FILE, &first)
}

/// Whether this is another process than the noted first one. Where nothing is noted, nobody knows of another.
pub(crate) fn is_another(dir: &ContainerDir, pid: i32) -> bool {
    let first = recorded(dir).unwrap_or_default();
    first.is_some_and(|first| first.pid != pid || start_ticks(pid) != Some(first.start_ticks))
}

/// Whether the first process is noted.
pub(crate) fn is_recorded(dir: &ContainerDir) -> bool {
    recorded(dir).is_ok_and(|first| first.is_some())
}

/// Whether a process of the container lives, as far as the note tells. Without one, or with a broken one, no.
///
/// # Errors
/// Nobody knows: the note or a process cannot be looked at.
pub(crate) fn lives(dir: &ContainerDir) -> Result<bool, Error> {
    let Some(first) = recorded(dir)? else {
        return Ok(false);
    };
    let unread = failed("read", "/proc");
    Ok(is_running(first.pid, first.start_ticks)? || first.has_left_others().map_err(unread)?)
}

/// Whether this very process lives.
///
/// # Errors
/// It cannot be looked at.
pub(crate) fn is_running(pid: i32, start_ticks: u64) -> Result<bool, Error> {
    let look = || {
        let Some(process) = open(pid)? else {
            return Ok(false);
        };
        match Stat::of(pid) {
            Ok(stat) => Ok(stat.start_ticks == start_ticks && !process.wait_exit(0)?),
            Err(error) if has_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    };
    Ok(look().map_err(failed("read", format!("/proc/{pid}")))?)
}

/// `None`: nobody has the number, or a thread has it, which is no process's.
fn open(number: i32) -> io::Result<Option<PidFd>> {
    const NO_PROCESS: [i32; 3] = [libc::ESRCH, libc::EINVAL, libc::ENOENT];
    match PidFd::open(number) {
        Err(error)
            if error
                .raw_os_error()
                .is_some_and(|number| NO_PROCESS.contains(&number)) =>
        {
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

fn recorded(dir: &ContainerDir) -> Result<Option<First>, Error> {
    match cards::store::read_capped("first process", &dir.file(FILE), SIZE_MAX_BYTES) {
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(cards::Error::Io(error)) if error.is_absent() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl First {
    fn of(pid: i32) -> io::Result<Self> {
        // The last number is the one in its own namespace.
        let is_first = status_field(pid, "NSpid")?
            .is_some_and(|numbers| numbers.split_whitespace().next_back() == Some("1"));
        let ours = groups_of("self")?;
        Ok(Self {
            pid,
            start_ticks: start_ticks(pid).ok_or(io::ErrorKind::NotFound)?,
            pid_namespace: is_first.then(|| pid_namespace(pid)).transpose()?,
            groups: own_groups(&groups_of(pid)?, &ours),
        })
    }

    /// Whether others of its groups live on. With the first process of a namespace, all in it have ended.
    fn has_left_others(&self) -> io::Result<bool> {
        if self.pid_namespace.is_some() || self.groups.is_empty() {
            return Ok(false);
        }
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            match groups_of(pid) {
                Ok(groups) if self.has_in(&groups) => return Ok(true),
                Err(error) if !has_gone(&error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(false)
    }

    /// Whether a process is of this one's container. Where neither namespace nor group is the container's own, every one may be.
    fn has(&self, pid: i32) -> io::Result<bool> {
        if let Some(namespace) = &self.pid_namespace
            && *namespace == pid_namespace(pid)?
        {
            return Ok(true);
        }
        if self.groups.is_empty() {
            return Ok(self.pid_namespace.is_none());
        }
        Ok(self.has_in(&groups_of(pid)?))
    }

    /// By control groups: `/proc/PID/cgroup` of another process. One group tells: a runtime leaves trees alone that it does not use.
    fn has_in(&self, groups: &str) -> bool {
        lines(groups).any(|(tree, path)| {
            let mut of_tree = self.groups.iter().filter(|(other, _)| other == tree);
            of_tree.any(|(_, own)| Path::new(path).starts_with(own))
        })
    }
}

fn pid_namespace(pid: i32) -> io::Result<String> {
    let link = fs::read_link(format!("/proc/{pid}/ns/pid"))?;
    Ok(link.to_string_lossy().into_owned())
}

fn own_groups(theirs: &str, ours: &str) -> Vec<(String, String)> {
    let is_ours = |line: &(&str, &str)| lines(ours).any(|other| other == *line);
    lines(theirs)
        .filter(|line| line.1 != "/" && !is_ours(line))
        .map(|(tree, path)| (tree.to_owned(), path.to_owned()))
        .collect()
}

/// Tree and path of each line of `/proc/PID/cgroup`.
fn lines(groups: &str) -> impl Iterator<Item = (&str, &str)> {
    groups.lines().filter_map(|line| {
        let (_number, rest) = line.split_once(':')?;
        rest.split_once(':')
    })
}

impl Process {
    /// The process of this number, if it is the container's. `None`: it has ended, and the number is nobody's or a stranger's.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn of(dir: &ContainerDir, number: i32) -> io::Result<Option<Self>> {
        let Some(opened) = open(number)? else {
            return Ok(None);
        };
        let process = Self { number, opened };
        let is_member = match recorded(dir).map_err(io::Error::other)? {
            Some(first) => first.has(number),
            // It was made before anything was noted: the frontend's word is all there is.
            None => Ok(true),
        };
        // What was read is this process's if it still lives: until then nobody else can have its number.
        if process.has_ended()? {
            return Ok(None);
        }
        match is_member {
            Err(error) if has_gone(&error) => Ok(None),
            other => Ok(other?.then_some(process)),
        }
    }

    /// The container's first process, if this number is still its own.
    ///
    /// # Errors
    /// The system's; `ESRCH` when it is not.
    pub(crate) fn first(dir: &ContainerDir, number: i32) -> io::Result<Self> {
        let opened = PidFd::open(number)?;
        match is_another(dir, number) || opened.wait_exit(0)? {
            true => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            false => Ok(Self { number, opened }),
        }
    }

    pub(crate) fn number(&self) -> i32 {
        self.number
    }

    /// Whether it has ended; its parent need not have waited for it.
    pub(crate) fn has_ended(&self) -> io::Result<bool> {
        self.opened.wait_exit(0)
    }

    /// Traces it. The kernel takes a number; one that lives afterwards has had its number until then.
    ///
    /// # Errors
    /// The system's; `ESRCH` when it has ended. Whoever has its number by now goes on as if nothing had been.
    pub(crate) fn seize(&self) -> io::Result<Traced> {
        let traced = Traced::seize(self.number)?;
        match self.has_ended()? {
            true => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            false => Ok(traced),
        }
    }

    /// Kills it. One that has ended is fine.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match self.opened.signal(libc::SIGKILL) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn first(pid_namespace: Option<&str>, groups: &str, ours: &str) -> First {
        First {
            pid: 0,
            start_ticks: 0,
            pid_namespace: pid_namespace.map(str::to_owned),
            groups: own_groups(groups, ours),
        }
    }

    #[test]
    fn a_process_is_the_container_s_by_a_group_of_its_own_or_one_below() {
        let ours = "3:pids:/engine\n2:cpu,cpuacct:/engine\n0::/\n";
        let made = first(None, "3:pids:/a\n2:cpu,cpuacct:/engine\n0::/\n", ours);
        for (groups, is_member) in [
            ("3:pids:/a\n2:cpu,cpuacct:/\n", true),
            ("3:pids:/a/below\n", true),
            ("3:pids:/ab\n", false),
            ("3:pids:/\n2:cpu,cpuacct:/a\n", false),
            ("2:cpu,cpuacct:/engine\n0::/\n", false),
            ("", false),
        ] {
            assert_eq!(made.has_in(groups), is_member, "{groups}");
        }
    }

    #[test]
    fn a_namespace_of_the_container_s_own_tells_and_where_nothing_tells_everyone_may_be() {
        let me = std::process::id().cast_signed();
        let (mine, elsewhere) = (pid_namespace(me).unwrap(), "0::/elsewhere\n");
        for (namespace, groups, is_member) in [
            (Some(mine.as_str()), elsewhere, true),
            (Some("pid:[1]"), elsewhere, false),
            (Some("pid:[1]"), "", false),
            (None, elsewhere, false),
            (None, "", true),
        ] {
            let first = first(namespace, groups, "");
            assert_eq!(first.has(me).unwrap(), is_member, "{namespace:?} {groups}");
        }
    }

    #[test]
    fn a_container_without_a_namespace_lives_as_long_as_any_process_of_its_groups() {
        // With a first process that is gone, in the groups of this program.
        let groups = groups_of("self").unwrap();
        let left = first(None, &groups, "");
        assert_eq!(left.has_left_others().unwrap(), !left.groups.is_empty());
        assert!(!is_running(left.pid, left.start_ticks).unwrap());
        let nobody = first(None, "0::/nobody/is/there\n", "");
        assert!(!nobody.has_left_others().unwrap());
        let of_a_namespace = first(Some("pid:[1]"), &groups, "");
        assert!(!of_a_namespace.has_left_others().unwrap());
    }

    #[test]
    fn a_number_that_a_thread_has_is_no_process() {
        let (up, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            up.send(nix::unistd::gettid().as_raw()).unwrap();
            ended.recv().unwrap_err();
        });
        let number = tid.recv().unwrap();
        let ticks = start_ticks(number).unwrap();
        assert!(!is_running(number, ticks).unwrap());
        assert!(open(number).unwrap().is_none());
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn a_number_that_is_no_more_the_container_s_is_no_process_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let dir = ContainerDir::at(folder.path());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        record(&dir, pid).unwrap();
        assert!(!is_another(&dir, pid));
        assert!(Process::of(&dir, pid).unwrap().is_some());
        assert!(lives(&dir).unwrap());
        let other = First {
            pid_namespace: Some("pid:[1]".to_owned()),
            start_ticks: 0,
            ..First::of(pid).unwrap()
        };
        fs::write(dir.file(FILE), serde_json::to_vec(&other).unwrap()).unwrap();
        assert!(is_another(&dir, pid));
        assert!(!lives(&dir).unwrap());
        assert!(Process::of(&dir, pid).unwrap().is_none());
        fs::remove_file(dir.file(FILE)).unwrap();
        let opened = Process::of(&dir, pid).unwrap().unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(opened.has_ended().unwrap());
        opened.seize().unwrap_err();
        opened.kill().unwrap();
        assert!(Process::of(&dir, pid).unwrap().is_none());
    }
}
