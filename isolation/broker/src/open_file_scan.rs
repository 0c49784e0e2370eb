//! Which open files the container's processes hold.
//!
//! Descriptor tables are read: a process's own, and those of threads that have one to themselves (`unshare(CLONE_FILES)`, or a
//! process whose first thread has ended). A file can also be where no table shows it:
//!
//! - on its way through a Unix socket, or registered with an io_uring. While any such place is occupied nothing counts as
//!   given up, since uncharging what is still held would be a way past the quota;
//! - behind a mapping. A mapping shows the inode, not the open file, so it counts for every file of that inode,
//!   unless the process has a descriptor of one of them, which explains it. It does not for files of `nvidia-uvm`: what is
//!   mapped of those is charged to them, and two of them have one inode;
//! - behind a mapping in the memory of a process that has ended or is another program now, which a second file of `nvidia-uvm` keeps
//!   ([`crate::initialised`]).
//!
//! A look that fails is no sign of absence: while the system gives no descriptor to look with, nothing counts as given up.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use driver::{FileId, FileKind};
use nix::sys::stat::{fstat, major, minor};
use supervisor::scarce::is_scarcity;

use crate::control_group::list_group;
use crate::files::{OpenFile, position};
use crate::initialised::{Initialised, Kept};
use crate::maps::{self, has_gone};
use crate::processes::Processes;

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
/// which some cannot be looked at, and whose sockets and rings are not looked into: any program would count. `others` are
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
    let numbers: HashSet<u64> = files.iter().map(|file| file.inode.1).collect();
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
        for (tid, folder) in seen(tables_of(pid), tolerant)?.unwrap_or_default() {
            // Not `fd`: that folder is closed to a supervisor without the capability to read others' folders.
            let Some(entries) = seen(fs::read_dir(folder.join("fdinfo")), tolerant)? else {
                continue;
            };
            for entry in entries {
                let Some(entry) = seen(entry, tolerant)? else {
                    continue;
                };
                let name = entry.file_name();
                let number = name.to_str().and_then(|name| name.parse().ok());
                let info = seen(fs::read_to_string(entry.path()), tolerant)?;
                let (Some(number), Some(info)) = (number, info) else {
                    continue;
                };
                explained.extend(
                    seen(
                        set_seen(&mut files, &numbers, &info, (tid, number)),
                        tolerant,
                    )?
                    .flatten(),
                );
                if cgroup.is_some() && carries_files(&info) {
                    return Ok(Vec::new());
                }
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

/// Marks the file that a descriptor names, if it is one of these, and returns its inode.
fn set_seen(
    files: &mut [Sought],
    numbers: &HashSet<u64>,
    info: &str,
    (tid, number): (i32, i32),
) -> io::Result<Option<(u64, u64)>> {
    // Older kernels do not tell the inode.
    let ino: Option<u64> = field(info, "ino:").and_then(|ino| ino.parse().ok());
    // Most descriptors name something else: their inode says so without a comparison.
    if ino.is_some_and(|ino| !numbers.contains(&ino)) {
        return Ok(None);
    }
    let found = position(files, |file| {
        sys::kcmp::file(tid, number, file.file.fd.as_fd()).map(Ordering::reverse)
    })?;
    let Some(file) = found.ok().and_then(|at| files.get_mut(at)) else {
        return Ok(None);
    };
    file.is_held = true;
    Ok(Some(file.inode))
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

/// The threads whose descriptor tables make up a process, each with its folder in `/proc`.
fn tables_of(pid: i32) -> io::Result<Vec<(i32, PathBuf)>> {
    let mut tables = vec![(pid, PathBuf::from(format!("/proc/{pid}")))];
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = match task {
            Err(error) if has_gone(&error) => break,
            other => other?,
        };
        let tid: Option<i32> = task.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(tid) = tid.filter(|tid| *tid != pid)
            && !matches!(sys::kcmp::tables(pid, tid), Ok(Ordering::Equal))
        {
            tables.push((tid, task.path()));
        }
    }
    Ok(tables)
}

/// Whether a descriptor is a socket with descriptors in its queue, or a ring with registered files.
fn carries_files(info: &str) -> bool {
    ["scm_fds:", "UserFiles:"]
        .into_iter()
        .any(|name| field(info, name).is_some_and(|count| count != "0"))
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
