//! Calls of runc that outlived their shim: a shim that is killed during `runc create` leaves it running, and it would
//! make the container after everybody has gone home. So would what the shim had forked to become such a call ([`Caller`]).

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use sys::proc::command_line;

use super::caller::{Caller, Group};
use super::members::Members;
use super::runc::Runc;
use crate::error::{Error, Result, file, system};
use crate::task::ContainerId;

/// A killed process is gone in microseconds unless it hangs in a driver.
const GONE_WAIT: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// How long calls are looked for that others make anew. containerd kills a `delete` after 5 s (`io.containerd.timeout.shim.cleanup`),
/// and the container is to be ended before.
const LOOK_WAIT: Duration = Duration::from_secs(2);

/// Kills every call of runc on this container and waits until it is gone; of a shim that has ended, also all that it had forked and
/// that was no call yet. What is in the container, or in another one, is no call, whatever its command line says.
///
/// # Errors
/// `/proc` cannot be read, or the calls do not end.
pub fn end_all(
    runc: &Runc,
    id: &ContainerId,
    caller: Option<&Caller>,
    members: &Members,
) -> Result<()> {
    let until = Instant::now() + LOOK_WAIT;
    let group = match caller {
        Some(caller) => caller.orphaned_group()?,
        None => None,
    };
    let callers = Callers {
        here: Place::of("self").map_err(file("read", "/proc/self/ns"))?,
        group,
        members,
    };
    loop {
        // A look that began in time may end late, where a process takes long to end.
        let late = Instant::now() > until;
        // What a call had started before it was killed may have come to stand where had been looked already.
        if end_found(runc, id, &callers)? == Found::Nothing {
            return Ok(());
        }
        if late {
            return Err(Error::Lost("the end of calls of runc that start others"));
        }
    }
}

/// Who may call runc on the container: every process can have the command line of a call, a tenant's too.
struct Callers<'a> {
    here: Place,
    group: Option<Group<'a>>,
    members: &'a Members,
}

impl Callers<'_> {
    /// Whether a call may be of this process. The engine starts shims where it starts this process, and as the same user. A container
    /// has mounts of its own, and most have process numbers: another one's process is taken for no call either.
    fn have(&self, pid: i32) -> bool {
        let Ok(place) = Place::of(pid) else {
            return false;
        };
        // An engine that was started anew may have other mounts than the shim had.
        let among = place.mounts == self.here.mounts
            || self.group.as_ref().is_some_and(|group| group.has(pid));
        among
            && place.pids == self.here.pids
            && place.user == self.here.user
            && !self.members.has(pid)
    }

    /// Whether this process was forked by the shim, and is no call yet.
    fn have_unborn(&self, pid: i32, line: &[u8]) -> bool {
        self.group
            .as_ref()
            .is_some_and(|group| group.has_unborn(pid, line))
    }

    /// Whether this process is to be ended. Its command line is read only where it may be a caller's: whoever else made it may have
    /// made it so that the read takes long.
    fn have_call(&self, pid: i32, runc: &Runc, id: &ContainerId) -> bool {
        let may_call = self.have(pid);
        if !may_call && !self.group.as_ref().is_some_and(|group| group.has(pid)) {
            return false;
        }
        let line = command_line(pid).unwrap_or_default();
        (may_call && is_call(&line, runc, id)) || self.have_unborn(pid, &line)
    }
}

/// Where a process is, and as whom.
struct Place {
    pids: PathBuf,
    mounts: PathBuf,
    user: Option<String>,
}

impl Place {
    fn of(process: impl std::fmt::Display) -> std::io::Result<Self> {
        let namespace = |kind| fs::read_link(format!("/proc/{process}/ns/{kind}"));
        // The real one, the effective one and two more.
        let users = sys::proc::status_field(&process, "Uid")?;
        let effective = |users: String| users.split_whitespace().nth(1).map(str::to_owned);
        Ok(Self {
            pids: namespace("pid")?,
            mounts: namespace("mnt")?,
            user: users.and_then(effective),
        })
    }
}

/// Whether one look found anything.
#[derive(PartialEq, Eq)]
enum Found {
    Some,
    Nothing,
}

fn end_found(runc: &Runc, id: &ContainerId, callers: &Callers<'_>) -> Result<Found> {
    let mut found = Found::Nothing;
    for entry in fs::read_dir("/proc")
        .map_err(file("read", "/proc"))?
        .flatten()
    {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        // Opened first, so that what is read below and what is killed are one process.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        if callers.have_call(pid.as_raw_nonzero().get(), runc, id) {
            end(&process)?;
            found = Found::Some;
        }
    }
    Ok(found)
}

/// Removes the container's control groups, and ends what runc had begun in them: a call of runc that was killed has made them and
/// noted them nowhere yet, so that `runc delete` does not know them. `path` is the spec's `linux.cgroupsPath`; of a
/// systemd slice (`slice:prefix:name`) systemd itself removes what is empty.
///
/// # Errors
/// A group that is still in use after [`GONE_WAIT`].
pub fn remove_cgroups(runc: &Runc, id: &ContainerId, path: &str) -> Result<()> {
    let plain = Path::new(path).strip_prefix("/").ok().filter(|path| {
        path.components()
            .all(|part| matches!(part, Component::Normal(_)))
    });
    let Some(path) = plain.filter(|path| path.components().next().is_some()) else {
        return Ok(());
    };
    let root = Path::new("/sys/fs/cgroup");
    // Version 1 has a hierarchy for each controller, version 2 is the root itself.
    let hierarchies = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for hierarchy in hierarchies.chain([root.to_path_buf()]) {
        let group = hierarchy.join(path);
        if group.join("cgroup.procs").exists() {
            remove_cgroup(runc, id, &group)?;
        }
    }
    Ok(())
}

fn remove_cgroup(runc: &Runc, id: &ContainerId, group: &Path) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(GONE_WAIT.tv_sec.unsigned_abs());
    loop {
        match fs::remove_dir(group) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            // In use by what that call had started; the kernel lets go of it a moment after its end.
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < until => {
                if !end_inits(runc, id, group)? {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(file("remove", group)(error)),
        }
    }
}

/// Kills what runc had started and not yet made the container's program; `false` if the group holds anything else: it is
/// then a container's that lives, under another engine with the same names, and nothing of it is killed.
fn end_inits(runc: &Runc, id: &ContainerId, group: &Path) -> Result<bool> {
    let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let pids = inside
        .lines()
        .filter_map(|line| Pid::from_raw(line.parse().ok()?));
    let Some(inits) = inits_among(pids, runc, id) else {
        return Ok(false);
    };
    // Only now: the end of one may change what another looks like.
    inits.iter().try_for_each(end)?;
    Ok(true)
}

/// Those of these processes that are runc's and not the container's program yet; `None`: one of them is something else.
fn inits_among(
    pids: impl Iterator<Item = Pid>,
    runc: &Runc,
    id: &ContainerId,
) -> Option<Vec<OwnedFd>> {
    let mut inits = Vec::new();
    for pid in pids {
        // Opened first, so that what is read below and what is killed are one process.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        let line = command_line(pid.as_raw_nonzero()).unwrap_or_default();
        // One that has ended has none, and one within exec has none yet: as long as it is there, it is looked at again.
        if line.is_empty() {
            continue;
        }
        // runc may start its init within the group: until it is that, it looks like the call.
        let is_init = line.split(|byte| *byte == 0).nth(1) == Some(b"init");
        if !is_init && !is_call(&line, runc, id) {
            return None;
        }
        inits.push(process);
    }
    Some(inits)
}

/// Whether a command line is one that [`Runc`] makes for the container, be it of a wrapper or of runc itself. It is everybody's to
/// choose: outside the container's control group [`Callers`] says whose it may be.
fn is_call(line: &[u8], runc: &Runc, id: &ContainerId) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let root = runc.root().as_os_str().as_bytes();
    let named =
        |(at, pair): (usize, &[&[u8]])| (pair == [b"--root".as_slice(), root]).then_some(at);
    let after = arguments.windows(2).enumerate().find_map(named);
    after.is_some_and(|at| {
        arguments
            .iter()
            .skip(at)
            .any(|argument| *argument == id.as_str().as_bytes())
    })
}

fn end(process: &OwnedFd) -> Result<()> {
    match pidfd_send_signal(process, Signal::KILL) {
        Ok(()) => {}
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(errno) => return Err(system("kill a call of runc")(errno)),
    }
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    match poll(&mut ended, Some(&GONE_WAIT)).map_err(system("wait for a call of runc"))? {
        0 => Err(Error::Lost("a killed call of runc")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::task::RuncOptions;

    /// Two processes with a command line of 1 GiB, another user's and this one's.
    #[test]
    fn a_command_line_without_end_stops_no_look_for_calls() {
        let _alone = sys::sync::lock(&super::super::CHILDREN);
        let program = include_str!("../../../isolation/sys/src/proc/long_command_line.py");
        let users = [rustix::process::getuid().as_raw(), 65_534];
        let mut children = Vec::new();
        for user in users {
            let mut command = Command::new("/usr/bin/python3");
            let command = command.args(["-c", program]).uid(user);
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let Ok(mut child) = child else {
                println!("SKIP: no python3, or not root, for a process of another user");
                continue;
            };
            let mut ready = [0; 6];
            let mut output = child.stdout.take().unwrap();
            if output.read_exact(&mut ready).is_err() {
                assert_ne!(
                    child.wait().unwrap().code(),
                    Some(1),
                    "the program has a fault"
                );
                println!("SKIP: user {user} runs no python3, or the kernel has no PR_SET_MM_MAP");
                continue;
            }
            children.push(child);
        }
        let peak_kib = || -> u64 {
            let peak = sys::proc::status_field("self", "VmHWM").unwrap().unwrap();
            peak.trim_end_matches(" kB").parse().unwrap()
        };
        let before = peak_kib();
        let runc = Runc::new("ns", &RuncOptions::default(), None);
        let id = ContainerId::new("of-nobody").unwrap();
        let looked = end_all(&runc, &id, None, &Members::of(None));
        let read_kib = peak_kib() - before;
        for mut child in children {
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success(), "it was no call");
        }
        looked.unwrap();
        assert!(read_kib < 256 << 10, "{read_kib} KiB were read");
    }

    #[test]
    fn a_group_with_a_container_s_program_loses_no_process() {
        let _alone = sys::sync::lock(&super::super::CHILDREN);
        let group = tempfile::tempdir().unwrap();
        // Nobody opens its other end, so that whoever reads it is there until it is killed.
        let pipe = group.path().join("init");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let cat = || {
            let mut command = Command::new("/bin/cat");
            command.current_dir(group.path()).stdin(Stdio::piped());
            command
        };
        let mut init = cat().arg("init").spawn().unwrap();
        let mut program = cat().spawn().unwrap();
        // One within exec has no command line yet, and spawn returns as early as that.
        for child in [&init, &program] {
            let pid = child.id().cast_signed();
            while command_line(pid).unwrap_or_default().is_empty() {
                std::thread::yield_now();
            }
        }
        let procs = group.path().join("cgroup.procs");
        let runc = Runc::new("ns", &RuncOptions::default(), None);
        let id = ContainerId::new("a").unwrap();
        fs::write(&procs, format!("{}\n{}\n", init.id(), program.id())).unwrap();
        assert!(!end_inits(&runc, &id, group.path()).unwrap());
        // Alone it is runc's, which a process that was killed just now is not: that has no command line.
        let pid = Pid::from_child(&init);
        let inits = inits_among([pid].into_iter(), &runc, &id);
        assert_eq!(inits.map(|inits| inits.len()), Some(1), "it was killed");
        fs::write(&procs, format!("{}\n", init.id())).unwrap();
        assert!(end_inits(&runc, &id, group.path()).unwrap());
        assert!(!init.wait().unwrap().success());
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
    }

    #[test]
    fn only_calls_with_this_root_and_container_are_meant() {
        let id = ContainerId::new("a").unwrap();
        let runc = Runc::new("ns", &RuncOptions::default(), None);
        let root = "/run/containerd/runc/ns";
        for (line, meant) in [
            (
                format!("runc\0--root\0{root}\0--log\0/l\0create\0--bundle\0/b\0a\0"),
                true,
            ),
            (
                format!("/bin/sh\0/wrapper\0--root\0{root}\0kill\0a\09\0"),
                true,
            ),
            (format!("runc\0--root\0{root}\0create\0b\0"), false),
            (format!("runc\0--root\0{root}2\0create\0a\0"), false),
            ("a\0b\0".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_call(line.as_bytes(), &runc, &id), meant, "{line:?}");
        }
    }
}
