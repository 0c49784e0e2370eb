//! Which open file of the driver a tenant's descriptor names.
//!
//! A descriptor number says little: another thread may have another table, and numbers are used again. Identity is the
//! `struct file`, which `kcmp` compares. So the table holds one duplicate of every file seen, and a (thread, number) pair is
//! only a hint that is checked on every call.
//!
//! A held duplicate keeps the file open: [`FileTable::take_idle`] gives it up, and is called (by `reaper`) when no process
//! of the container holds the file any more.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{self, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use driver::{Driver, FileId, FileKind};
use sys::pidfd::PidFd;

/// An open file of the driver that the tenant holds.
#[derive(Debug)]
pub struct OpenFile {
    /// Identity.
    pub id: FileId,
    /// What it is.
    pub kind: FileKind,
    /// Our duplicate.
    pub fd: OwnedFd,
    /// See [`crate::order`]; used for UVM's files.
    pub order: Mutex<()>,
    /// The control file that a device file is registered with (REGISTER_FD). The driver holds it open as long as the
    /// device file is, whoever else closes it.
    registered_with: OnceLock<FileId>,
    /// Calls under way on this file.
    active: AtomicUsize,
}

/// A file with a call under way: it is not given up before this is dropped.
#[derive(Debug)]
pub struct InUse(Arc<OpenFile>);

impl InUse {
    /// Made under the table's lock, so that [`FileTable::take_idle`] cannot miss it.
    fn new(file: &Arc<OpenFile>) -> Self {
        file.active.fetch_add(1, atomic::Ordering::SeqCst);
        Self(Arc::clone(file))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, atomic::Ordering::SeqCst);
    }
}

impl std::ops::Deref for InUse {
    type Target = OpenFile;

    fn deref(&self) -> &OpenFile {
        &self.0
    }
}

/// What a descriptor turned out to be.
#[derive(Debug)]
pub enum Lookup {
    /// A file of the driver.
    Ours(InUse),
    /// Some other file: a duplicate of it.
    Foreign(OwnedFd),
    /// The descriptor cannot be looked at.
    Failed(io::Error),
}

/// [`Lookup`], before errors are told apart.
enum Found {
    Ours(InUse),
    Foreign(OwnedFd),
}

/// Hints beyond this are forgotten all at once; they cost a few microseconds to make again.
const MOST_HINTS: usize = 4096;

/// The files of one container.
#[derive(Debug, Default)]
pub struct FileTable {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    files: Vec<Arc<OpenFile>>,
    hints: HashMap<(i32, i32), Arc<OpenFile>>,
}

impl FileTable {
    /// Looks up descriptor `number` of thread `tid`.
    pub fn look_up(&self, driver: &dyn Driver, tid: i32, tgid: i32, number: i32) -> Lookup {
        let hint = self.lock().hints.get(&(tid, number)).map(InUse::new);
        if let Some(file) = hint {
            match sys::kcmp::file(tid, number, file.fd.as_fd()) {
                Ok(Ordering::Equal) => return Lookup::Ours(file),
                Ok(Ordering::Less | Ordering::Greater) => {}
                Err(error) => return Lookup::Failed(error),
            }
        }
        match self.find(driver, tid, tgid, number) {
            Ok(Found::Ours(file)) => {
                let mut inner = self.lock();
                if inner.hints.len() >= MOST_HINTS {
                    inner.hints.clear();
                }
                inner.hints.insert((tid, number), Arc::clone(&file.0));
                Lookup::Ours(file)
            }
            Ok(Found::Foreign(fd)) => Lookup::Foreign(fd),
            Err(error) => Lookup::Failed(error),
        }
    }

    fn find(&self, driver: &dyn Driver, tid: i32, tgid: i32, number: i32) -> io::Result<Found> {
        let fd = duplicate(tid, tgid, number)?;
        let Some(kind) = driver.classify(fd.as_fd()) else {
            return Ok(Found::Foreign(fd));
        };
        let mut inner = self.lock();
        for file in &inner.files {
            if file.kind == kind
                && sys::kcmp::own_files(fd.as_fd(), file.fd.as_fd())? == Ordering::Equal
            {
                return Ok(Found::Ours(InUse::new(file)));
            }
        }
        inner.next += 1;
        let file = Arc::new(OpenFile {
            id: FileId(inner.next),
            kind,
            fd,
            order: Mutex::new(()),
            registered_with: OnceLock::new(),
            active: AtomicUsize::new(0),
        });
        let in_use = InUse::new(&file);
        inner.files.push(file);
        Ok(Found::Ours(in_use))
    }

    /// Every file that is held.
    pub fn held(&self) -> Vec<Arc<OpenFile>> {
        self.lock().files.clone()
    }

    /// Notes that the driver has registered a device file with a control file. The first registration stays: the driver
    /// refuses a second.
    pub fn register(&self, device: &OpenFile, control: FileId) {
        let _inner = self.lock();
        device.registered_with.get_or_init(|| control);
    }

    /// Takes a file out of the table unless a call is under way on it, or a device file of the table is registered with it;
    /// our duplicate closes when the returned one goes.
    pub fn take_idle(&self, id: FileId) -> Option<Arc<OpenFile>> {
        let mut inner = self.lock();
        let at = inner.files.iter().position(|file| file.id == id)?;
        if inner.files.get(at)?.active.load(atomic::Ordering::SeqCst) > 0 {
            return None;
        }
        if inner
            .files
            .iter()
            .any(|file| file.registered_with.get() == Some(&id))
        {
            return None;
        }
        inner.hints.retain(|_, file| file.id != id);
        Some(inner.files.swap_remove(at))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Duplicates what *the thread* has under that number. `pidfd_getfd` looks into the table of the process's leader, and a
/// thread made without CLONE_FILES has another.
fn duplicate(tid: i32, tgid: i32, number: i32) -> io::Result<OwnedFd> {
    if let Ok(fd) = PidFd::open(tgid)?.duplicate(number)
        && sys::kcmp::file(tid, number, fd.as_fd())? == Ordering::Equal
    {
        return Ok(fd);
    }
    let fd = PidFd::open_thread(tid)?.duplicate(number)?;
    match sys::kcmp::file(tid, number, fd.as_fd())? {
        Ordering::Equal => Ok(fd),
        Ordering::Less | Ordering::Greater => Err(io::ErrorKind::NotFound.into()),
    }
}
