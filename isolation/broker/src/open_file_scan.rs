//! Which open files the container's processes hold.
//!
//! Descriptor tables are read: a process's own, and those of threads that have one to themselves (`unshare(CLONE_FILES)`, or a
//! process whose first thread has ended). A file can also be where no table shows it:
//!
//! - on its way through a Unix socket. While a socket has descriptors in its queue nothing counts as given up: an honest program sends a file and
//!   goes on with it at the other end;
//! - registered with an io_uring. It counts as given up: no honest program does that, and programs have rings that list nothing (every event loop
//!   of libuv has one for its whole life), so that nothing of such a container would ever be given up. What the file holds is freed first
//!   ([`crate::close_files`]);
//! - behind a mapping. A mapping shows the inode, not the open file, so it counts for every file of that inode,
//!   unless the process has a descriptor of one of them, which explains it. It does not for files of `nvidia-uvm`: what is
//!   mapped of those is charged to them, and two of them have one inode;
//! - behind a mapping in the memory of a process that has ended or is another program now, which a second file of `nvidia-uvm` keeps
//!   ([`crate::initialised`]).
//!
//! What a descriptor is, its link in `/proc` says. Its text there (`fdinfo`) is as long as its owner makes it: a line for each file that an epoll
//! instance or an inotify watches, for each lock. The kernel writes all of it before anybody reads, so it is read of
//! sockets alone.
//!
//! A look that fails is no sign of absence: while the system gives no descriptor to look with, nothing counts as given up.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use driver::{FileId, FileKind};
use nix::errno::Errno;
use nix::sys::stat::{fstat, major, minor};
use supervisor::scarce::is_scarcity;

use crate::control_group::list_group;
use crate::files::{OpenFile, position};
use crate::initialised::{Initialised, Kept};
use crate::maps::{self, has_gone};
use crate::privilege;
use crate::processes::Processes;

/// No socket's text is as long, but for one with many locks: that counts as one that carries files.
const MOST_INFO_BYTES: u64 = 64 * 1024;
/// Lines of an epoll instance's text and of an inotify's.
const WATCHED: [&str; 2] = ["\ntfd:", "\ninotify "];

/// In which order the processes are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// As listed.
    Forth,
    /// Last to first.
    Back,
}

/// What processes have, or had.
pub(crate) struct OfProcesses<'a> {
    /// Their memory.
    pub(crate) kept: &'a Initialised,
    /// Their managed memory: of which files, and which processes.
    pub(crate) charged: &'a BTreeSet<(FileId, i32)>,
}

/// The files of `held`, which are in the order of `kcmp`, that no process holds; none at all while a file may be out of
/// sight, or a process cannot be looked at. The processes are those of a cgroup. Without one they are all of the host's, of
/// which some cannot be looked at, and whose sockets are not looked into: any program would count. `others` are
/// processes that hold duplicates for the broker; `kept` is what these may hold without a descriptor.
pub(crate) fn without_holder(
    held: Vec<Arc<OpenFile>>,
    cgroup: Option<&Path>,
    look: Look,
    others: &[i32],
    kept: &OfProcesses<'_>,
) -> Vec<Arc<OpenFile>> {
    let found = look_for_holders(held, cgroup, look, others).and_then(|mut files| {
        set_kept(&mut files, kept)?;
        Ok(files)
    });
    match found.map(unheld) {
        Ok(without) => without,
        Err(error) => {
            tracing::warn!(error = %error, "who holds which file cannot be seen: none is given up");
            Vec::new()
        }
    }
}

fn look_for_holders(
    held: Vec<Arc<OpenFile>>,
    cgroup: Option<&Path>,
    look: Look,
    others: &[i32],
) -> io::Result<Vec<Sought>> {
    let mut files: Vec<Sought> = held
        .into_iter()
        .map(Sought::new)
        .collect::<io::Result<_>>()?;
    let this = std::process::id().cast_signed();
    // Of all processes of the host some cannot be looked at.
    let tolerant = cgroup.is_none();
    let mut pids = processes_in(cgroup)?;
    if look == Look::Back {
        pids.reverse();
    }
    for pid in pids
        .into_iter()
        .filter(|pid| *pid != this && !others.contains(pid))
    {
        if files.iter().all(|file| file.is_held) {
            return Ok(Vec::new());
        }
        let mut explained = HashSet::new();
        for table in seen(tables_of(pid), tolerant)?.unwrap_or_default() {
            let look = || set_seen_in(&mut files, &table, tolerant, &mut explained);
            if privilege::with(look)? == Carries::Files {
                return Ok(Vec::new());
            }
        }
        seen(set_mapped(&mut files, pid, &explained), tolerant)?;
    }
    Ok(files)
}

fn unheld(files: Vec<Sought>) -> Vec<Arc<OpenFile>> {
    let unheld = files.into_iter().filter(|file| !file.is_held);
    unheld.map(|file| file.file).collect()
}

/// Marks the files of nvidia-uvm that memory may have mapped which processes had.
///
/// # Errors
/// That cannot be told.
fn set_kept(files: &mut [Sought], of: &OfProcesses<'_>) -> io::Result<()> {
    for memory in of.kept.there() {
        let mut open: Vec<&mut Sought> = files
            .iter_mut()
            .filter(|file| file.file.kind == FileKind::Uvm && !file.is_held)
            .collect();
        if open.is_empty() {
            break;
        }
        let read = memory.mapped(|area| {
            for file in &mut open {
                let (dev, ino) = file.inode;
                file.is_held |= area.file == (major(dev), minor(dev), ino);
            }
        })?;
        for file in open {
            let id = file.file.id;
            let may_be_mapped = id == memory.file || of.charged.contains(&(id, memory.tgid));
            file.is_held |= read == Kept::OutOfSight && may_be_mapped;
        }
    }
    Ok(())
}

/// What was looked at; `None` where it has gone meanwhile, or is none of ours to look at.
fn seen<T>(looked: io::Result<T>, tolerant: bool) -> io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if has_gone(&error) => Ok(None),
        Err(error) if tolerant && !is_scarcity(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A file that is looked for.
struct Sought {
    inode: (u64, u64),
    file: Arc<OpenFile>,
    is_held: bool,
}

impl Sought {
    fn new(file: Arc<OpenFile>) -> io::Result<Self> {
        let stat = fstat(file.fd.as_fd())?;
        Ok(Self {
            inode: (stat.st_dev, stat.st_ino),
            file,
            is_held: false,
        })
    }
}

/// Marks the files that a table of descriptors names, and collects their inodes; says whether one of the descriptors may carry others.
fn set_seen_in(
    files: &mut [Sought],
    (tid, folder): &(i32, PathBuf),
    tolerant: bool,
    explained: &mut HashSet<(u64, u64)>,
) -> io::Result<Carries> {
    // Not `fd`: that folder may be closed to who has no capability to read others' folders.
    let Some(entries) = seen(fs::read_dir(folder.join("fdinfo")), tolerant)? else {
        return Ok(Carries::None);
    };
    for entry in entries {
        let Some(entry) = seen(entry, tolerant)? else {
            continue;
        };
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Some(what) = seen(Descriptor::of(&folder.join("fd").join(&name)), tolerant)? else {
            continue;
        };
        if what == Descriptor::File || what == Descriptor::Unknown {
            explained.extend(seen(set_seen(files, (*tid, number)), tolerant)?.flatten());
        }
        if !tolerant && seen(what.carries(&entry.path()), tolerant)? == Some(Carries::Files) {
            return Ok(Carries::Files);
        }
    }
    Ok(Carries::None)
}

/// Marks the file that a descriptor names, if it is one of these, and returns its inode.
fn set_seen(files: &mut [Sought], (tid, number): (i32, i32)) -> io::Result<Option<(u64, u64)>> {
    let found = position(files, |file| {
        sys::kcmp::file(tid, number, file.file.fd.as_fd()).map(Ordering::reverse)
    })?;
    let Some(file) = found.ok().and_then(|at| files.get_mut(at)) else {
        return Ok(None);
    };
    file.is_held = true;
    Ok(Some(file.inode))
}

/// Whether descriptors are out of sight behind a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carries {
    None,
    /// There may be some.
    Files,
}

/// What a descriptor is of, by its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Descriptor {
    /// A file with a path, as the driver's have one.
    File,
    Socket,
    /// Nothing that could be the driver's, or could carry a file.
    Another,
    /// The link is closed to this process.
    Unknown,
}

impl Descriptor {
    fn of(link: &Path) -> io::Result<Self> {
        match fs::read_link(link) {
            Ok(of) => Ok(Self::by_name(of.as_os_str().as_bytes())),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENAMETOOLONG) => Ok(Self::File),
                Some(Errno::EACCES | Errno::EPERM) => Ok(Self::Unknown),
                _ => Err(error),
            },
        }
    }

    /// A path begins with a slash, whatever its files are called.
    fn by_name(name: &[u8]) -> Self {
        match name {
            [b'/', ..] => Self::File,
            name if name.starts_with(b"socket:") => Self::Socket,
            name if name.starts_with(b"anon_inode:") || name.starts_with(b"pipe:") => Self::Another,
            _ => Self::Unknown,
        }
    }

    /// Whether it may carry files; `info` is its text.
    fn carries(self, info: &Path) -> io::Result<Carries> {
        if matches!(self, Self::File | Self::Another) {
            return Ok(Carries::None);
        }
        let mut text = Vec::new();
        let file = fs::File::open(info)?;
        file.take(MOST_INFO_BYTES).read_to_end(&mut text)?;
        let is_cut = u64::try_from(text.len()).is_ok_and(|read| read >= MOST_INFO_BYTES);
        let text = String::from_utf8_lossy(&text);
        // What is watched makes another's text long, and stands behind the locks: none of a socket's does.
        let is_socket = self == Self::Socket || !WATCHED.iter().any(|line| text.contains(line));
        match is_cut && is_socket || carries_files(&text) {
            true => Ok(Carries::Files),
            false => Ok(Carries::None),
        }
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

/// The threads whose descriptor tables make up a process, each with its folder in `/proc`.
fn tables_of(pid: i32) -> io::Result<Vec<(i32, PathBuf)>> {
    let mut tables = vec![(pid, PathBuf::from(format!("/proc/{pid}")))];
    for tid in sys::proc::threads(pid)? {
        if tid != pid && !matches!(sys::kcmp::tables(pid, tid), Ok(Ordering::Equal)) {
            tables.push((tid, PathBuf::from(format!("/proc/{pid}/task/{tid}"))));
        }
    }
    Ok(tables)
}

/// Whether a text is that of a socket with descriptors in its queue.
fn carries_files(info: &str) -> bool {
    field(info, "scm_fds:").is_some_and(|count| count != "0")
}

/// Marks the files that a process may have mapped.
///
/// # Errors
/// That cannot be told.
fn set_mapped(files: &mut [Sought], pid: i32, explained: &HashSet<(u64, u64)>) -> io::Result<()> {
    let is_open = |file: &Sought| {
        !file.is_held && (file.file.kind == FileKind::Uvm || !explained.contains(&file.inode))
    };
    let mut open: HashMap<(u64, u64, u64), Vec<usize>> = HashMap::new();
    for (at, file) in files.iter().enumerate().filter(|(_, file)| is_open(file)) {
        let (dev, ino) = file.inode;
        let key = (major(dev), minor(dev), ino);
        open.entry(key).or_default().push(at);
    }
    if open.is_empty() {
        return Ok(());
    }
    let mut mapped = Vec::new();
    let table = maps::read(pid, |area| {
        mapped.extend(open.remove(&area.file).unwrap_or_default());
    });
    for at in mapped {
        if let Some(file) = files.get_mut(at) {
            file.is_held = true;
        }
    }
    table.map(drop)
}

/// The processes of a container that may have anything of the driver's, but for the `executor`. Without a cgroup they are the `known` ones,
/// which have made calls, these `further` ones, and what descends from either.
///
/// # Errors
/// They cannot be listed, or not all.
pub(crate) fn processes_of_container<'a>(
    cgroup: Option<&Path>,
    known: &Processes,
    executor: Option<i32>,
    further: impl Iterator<Item = &'a i32>,
) -> io::Result<Vec<i32>> {
    let mut pids: BTreeSet<i32> = match cgroup {
        Some(folder) => list_group(folder)?.into_iter().collect(),
        None => known.known().into_iter().collect(),
    };
    pids.extend(further);
    if cgroup.is_none() {
        let parents: Vec<(i32, i32)> = processes_in(None)?
            .into_iter()
            .filter_map(|pid| Some((pid, parent_of(pid)?)))
            .collect();
        loop {
            let before = pids.len();
            let children = parents.iter().filter(|(_, parent)| pids.contains(parent));
            let children: Vec<i32> = children.map(|(pid, _)| *pid).collect();
            pids.extend(children);
            if pids.len() == before {
                break;
            }
        }
    }
    let ours = [std::process::id(), std::os::unix::process::parent_id()].map(u32::cast_signed);
    Ok(pids
        .into_iter()
        .filter(|pid| !ours.contains(pid) && executor != Some(*pid))
        .collect())
}

fn parent_of(pid: i32) -> Option<i32> {
    sys::proc::status_field(pid, "PPid").ok()??.parse().ok()
}

fn processes_in(cgroup: Option<&Path>) -> io::Result<Vec<i32>> {
    match cgroup {
        Some(folder) => list_group(folder),
        None => fs::read_dir("/proc")?
            .map(|entry| {
                Ok(entry?
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse().ok()))
            })
            .filter_map(io::Result::transpose)
            .collect(),
    }
}

#[cfg(test)]
mod tests;
