//! Which open file of the driver a tenant's descriptor names.
//!
//! A descriptor number says little: another thread may have another table, and numbers are used again. Identity is the
//! `struct file`, which `kcmp` compares. So the table holds one duplicate of every file seen, and a (thread, number) pair is
//! only a hint that is checked on every call.
//!
//! The supervisor holds a second duplicate of each, and the journal its identity and kind: a successor knows the files by the
//! same identities.
//!
//! A held duplicate keeps the file open: [`FileTable::take_idle`] gives it up, and is called (by `reaper`) when no process
//! of the container holds the file any more.

use std::cmp::Ordering;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{self, AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use driver::nodes::has_traceable_mappings;
use driver::{Driver, FileId, FileKind, FileRef};
use journal::Journal;
use journal::limits::MOST_FILES;
use journal::state::{Closing, Op};
use nix::sys::resource::{Resource, getrlimit};
use nvabi::errno::EMFILE;
use sys::sync;
use verdict::Surface;

use supervisor::link::{Stored, SupervisorLink};
use supervisor::scarce::is_scarcity;

use crate::initialised::Initialised;
use crate::table::Table;

mod comparison;

pub(crate) use comparison::{duplicate, held_by_thread, own_position, position};

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
    /// Held while the driver is asked about one of nvidia-uvm's.
    pub(crate) probing: Mutex<()>,
    /// Calls under way on this file.
    active: AtomicUsize,
}

impl OpenFile {
    pub(crate) fn new(id: FileId, kind: FileKind, fd: OwnedFd) -> Self {
        Self {
            id,
            kind,
            fd,
            order: Mutex::new(()),
            probing: Mutex::new(()),
            active: AtomicUsize::new(0),
        }
    }

    /// The file, as a call to the driver names it.
    pub(crate) fn for_driver(&self) -> FileRef<'_> {
        FileRef {
            id: self.id,
            kind: self.kind,
            fd: self.fd.as_fd(),
        }
    }

    /// Whether a call is under way on it.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(atomic::Ordering::SeqCst) > 0
    }
}

/// The part of the driver's interface that a file is.
#[must_use]
pub fn surface(kind: FileKind) -> Surface {
    match kind {
        FileKind::Ctl => Surface::Ctl,
        FileKind::Card { .. } => Surface::Card,
        FileKind::Uvm => Surface::Uvm,
        FileKind::UvmTools => Surface::UvmTools,
    }
}

/// A file with a call under way: it is not given up before this is dropped.
#[derive(Debug)]
pub struct InUse(Arc<OpenFile>);

impl InUse {
    /// Made under the lock of whoever has the file, so that who takes it out cannot miss it.
    pub(crate) fn new(file: &Arc<OpenFile>) -> Self {
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
    /// A file of the driver beyond those that a container may have.
    TooMany,
    /// One of nvidia-uvm's whose mappings could not be told from those of other files.
    Untraceable,
    /// The descriptor cannot be looked at.
    Failed(io::Error),
}

/// [`Lookup`], before errors are told apart.
enum Found {
    Ours(InUse),
    Foreign(OwnedFd),
    TooMany,
    Untraceable,
}

/// Hints beyond this are forgotten all at once; they cost a few microseconds to make again.
const MOST_HINTS: usize = 4096;
/// Of a caller that makes a device without ever having made a call on the card's file, so many descriptors are looked at: some
/// microseconds each, of its own call and of its own control group's CPU time.
pub(crate) const MOST_LOOKED_AT: usize = 1 << 16;
/// Hints that are tried before that.
const MOST_TRIED: usize = 64;

/// The files of one container.
pub struct FileTable {
    /// It knows which descriptors are the driver's files.
    driver: Arc<dyn Driver>,
    /// It knows the files by their identities.
    journal: Arc<Journal>,
    supervisor: Arc<SupervisorLink>,
    /// At most half of the descriptors that a process may have: what is passed to a supervisor that has no room is lost.
    most_files: usize,
    /// Whether the log has that a node was refused.
    is_reported: AtomicBool,
    /// The memory that mappings of nvidia-uvm's are in.
    pub(crate) initialised: Initialised,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the order of `kcmp`, so that a tenant with thousands of files makes no look-up slow.
    files: Vec<Arc<OpenFile>>,
    /// Those that a former broker was giving up.
    closing: Vec<Arc<OpenFile>>,
    /// The same as `files`.
    by_id: Table<FileId, Arc<OpenFile>>,
    hints: Table<(i32, i32), FileId>,
}

impl Inner {
    fn in_use(&self, id: FileId) -> Option<InUse> {
        self.by_id.get(&id).map(InUse::new)
    }
}

impl FileTable {
    /// The files that a journal knows and whose duplicates were stored; those that a former broker was giving up are kept apart. What was
    /// stored and is not known is released: nobody else will give it up.
    #[must_use]
    pub fn restore(
        supervisor: Arc<SupervisorLink>,
        journal: Arc<Journal>,
        driver: Arc<dyn Driver>,
        stored: Vec<(FileId, OwnedFd)>,
    ) -> Self {
        let (mut files, mut closing, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for (id, fd) in stored {
            let Some(entry) = journal.change().file(id).copied() else {
                unknown.push(Stored::File(id, FileKind::Ctl));
                continue;
            };
            let of_its_kind = match entry.closing {
                None => &mut files,
                Some(_) => &mut closing,
            };
            of_its_kind.push(Arc::new(OpenFile::new(id, entry.kind, fd)));
        }
        if !unknown.is_empty() {
            supervisor.release_later(unknown);
        }
        // Own descriptors can always be compared.
        files.sort_by(|one, other| {
            sys::kcmp::own_files(one.fd.as_fd(), other.fd.as_fd()).unwrap_or(Ordering::Equal)
        });
        let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _hard)| soft);
        Self {
            driver,
            journal,
            supervisor,
            most_files: most_files(soft),
            is_reported: AtomicBool::new(false),
            initialised: Initialised::default(),
            inner: Mutex::new(Inner {
                by_id: files
                    .iter()
                    .map(|file| (file.id, Arc::clone(file)))
                    .collect(),
                files,
                closing,
                hints: Table::default(),
            }),
        }
    }

    /// A file by its identity, as long as it is held.
    #[must_use]
    pub fn in_use(&self, id: FileId) -> Option<InUse> {
        sync::lock(&self.inner).in_use(id)
    }

    /// Looks up descriptor `number` of thread `tid`.
    pub fn look_up(&self, (tid, tgid): (i32, i32), number: i32) -> Lookup {
        let hint = {
            let inner = sync::lock(&self.inner);
            let hint = inner.hints.get(&(tid, number));
            hint.and_then(|id| inner.in_use(*id))
        };
        if let Some(file) = hint {
            match sys::kcmp::file(tid, number, file.fd.as_fd()) {
                Ok(Ordering::Equal) => return Lookup::Ours(file),
                Ok(Ordering::Less | Ordering::Greater) => {}
                Err(error) => return Lookup::Failed(error),
            }
        }
        match self.find((tid, tgid), number) {
            Ok(Found::Ours(file)) => {
                self.hint((tid, number), file.id);
                Lookup::Ours(file)
            }
            Ok(Found::Foreign(fd)) => Lookup::Foreign(fd),
            Ok(Found::TooMany) => Lookup::TooMany,
            Ok(Found::Untraceable) => Lookup::Untraceable,
            Err(error) => Lookup::Failed(error),
        }
    }

    /// A file of a card that the caller has open under whatever number, with or without a call on it: taken in. `None` where none is
    /// found among its first [`MOST_LOOKED_AT`] descriptors.
    ///
    /// # Errors
    /// The system has no descriptor to look with, or the table has no room.
    pub fn of_card(&self, (tid, tgid): (i32, i32), minor: u32) -> io::Result<Option<InUse>> {
        let kind = FileKind::Card { minor };
        if let Some(file) = self.known_of_card(tid, kind) {
            return Ok(Some(file));
        }
        let Ok(numbers) = std::fs::read_dir(format!("/proc/{tid}/fdinfo")) else {
            return Ok(None);
        };
        let numbers = numbers
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        for number in numbers.take(MOST_LOOKED_AT) {
            let fd = match duplicate(tid, tgid, number) {
                Ok(fd) => fd,
                Err(error) if is_scarcity(&error) => return Err(error),
                // Closed meanwhile, or a file that nobody may duplicate.
                Err(_) => continue,
            };
            if self.driver.classify(fd.as_fd()) == Some(kind) {
                return match self.identify(fd)? {
                    Found::Ours(file) => {
                        self.hint((tid, number), file.id);
                        Ok(Some(file))
                    }
                    Found::TooMany => Err(io::Error::from_raw_os_error(EMFILE)),
                    Found::Foreign(_) | Found::Untraceable => Ok(None),
                };
            }
        }
        Ok(None)
    }

    /// The same, by the numbers under which files of that card have been seen in threads of the container.
    fn known_of_card(&self, tid: i32, kind: FileKind) -> Option<InUse> {
        let known: Vec<(i32, InUse)> = {
            let inner = sync::lock(&self.inner);
            let known = inner.hints.iter().filter_map(|((_, number), id)| {
                let file = inner.by_id.get(id).filter(|file| file.kind == kind)?;
                Some((*number, InUse::new(file)))
            });
            known.take(MOST_TRIED).collect()
        };
        known.into_iter().find_map(|(number, file)| {
            matches!(
                sys::kcmp::file(tid, number, file.fd.as_fd()),
                Ok(Ordering::Equal)
            )
            .then_some(file)
        })
    }

    fn hint(&self, of: (i32, i32), id: FileId) {
        let mut inner = sync::lock(&self.inner);
        if inner.hints.len() >= MOST_HINTS {
            inner.hints.clear();
        }
        inner.hints.insert(of, id);
    }

    fn find(&self, (tid, tgid): (i32, i32), number: i32) -> io::Result<Found> {
        match duplicate(tid, tgid, number) {
            Ok(fd) => self.identify(fd),
            // Before Linux 6.9 there is none where the process's first thread has ended. What is held needs none.
            Err(error) => match self.of_process(tid, number) {
                Ok(Some(file)) => Ok(Found::Ours(file)),
                Ok(None) | Err(_) => Err(error),
            },
        }
    }

    /// Takes a file in that an answer has brought, before any call is made on it: what is done with it without a call (a mapping by
    /// a number that named another file when it was looked at) is looked for from then on.
    ///
    /// # Errors
    /// The system's, and `EMFILE` where too many are held.
    pub fn take_in(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.identify(fd.try_clone_to_owned()?).map(drop)
    }

    fn identify(&self, fd: OwnedFd) -> io::Result<Found> {
        let Some(kind) = self.driver.classify(fd.as_fd()) else {
            return Ok(Found::Foreign(fd));
        };
        if kind == FileKind::Uvm && !has_traceable_mappings(fd.as_fd()) {
            if !self.is_reported.swap(true, atomic::Ordering::Relaxed) {
                tracing::warn!(
                    "a node of nvidia-uvm is on a file system where its mappings cannot be found: calls on it are refused"
                );
            }
            return Ok(Found::Untraceable);
        }
        let mut inner = sync::lock(&self.inner);
        let at = match own_position(&inner.files, fd.as_fd())? {
            Ok(at) => {
                let file = inner.files.get(at).filter(|file| file.kind == kind);
                let file = file.ok_or(io::ErrorKind::NotFound)?;
                return Ok(Found::Ours(InUse::new(file)));
            }
            Err(at) => at,
        };
        if inner.files.len() >= self.most_files {
            return Ok(Found::TooMany);
        }
        let id = {
            let mut change = self.journal.change();
            let id = change.next_file();
            change.record_op(Op::FileSeen(id, kind));
            id
        };
        // From here on the supervisor has it, so no call on it can outlive the file's identity.
        if let Err(error) = self.supervisor.store(Stored::File(id, kind), fd.as_fd()) {
            self.journal.change().record_op(Op::FileGone(id));
            return Err(error);
        }
        let file = Arc::new(OpenFile::new(id, kind, fd));
        let in_use = InUse::new(&file);
        inner.by_id.insert(id, Arc::clone(&file));
        inner.files.insert(at, file);
        Ok(Found::Ours(in_use))
    }

    /// The file that is held and is under a number of another process, or of a thread.
    ///
    /// # Errors
    /// The process is gone, has no such descriptor, or may not be looked at.
    pub fn of_process(&self, pid: i32, number: i32) -> io::Result<Option<InUse>> {
        held_by_thread(&sync::lock(&self.inner).files, pid, number)
    }

    /// Whether any file of a kind is held.
    pub fn has(&self, kind: FileKind) -> bool {
        sync::lock(&self.inner)
            .files
            .iter()
            .any(|file| file.kind == kind)
    }

    /// Keeps the memory of a thread that waits, in which it is about to initialise a file or to map it: two descriptors, of which all together
    /// leave half of what these files leave.
    ///
    /// # Errors
    /// `ENOMEM` where there are too many; the system's.
    pub(crate) fn keep_memory(
        &self,
        file: FileId,
        by: (i32, i32),
        is_waiting: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let most = self.most_files / 4;
        self.initialised.add(by, file, (most, is_waiting))
    }

    /// Every file that is held, and no other is taken in or given up before `look` is done with them.
    pub fn while_held<T>(&self, look: impl FnOnce(&[Arc<OpenFile>]) -> T) -> T {
        look(&sync::lock(&self.inner).files)
    }

    /// Every file that is held, in the order of `kcmp`.
    pub fn held(&self) -> Vec<Arc<OpenFile>> {
        sync::lock(&self.inner).files.clone()
    }

    /// Takes the files out that a former broker was giving up.
    pub(crate) fn take_closing(&self) -> Vec<Arc<OpenFile>> {
        std::mem::take(&mut sync::lock(&self.inner).closing)
    }

    /// Takes a file out of the table unless a call is under way on it, or a device file of the table is registered with it;
    /// our duplicate closes when the returned one goes.
    pub fn take_idle(&self, id: FileId) -> Option<Arc<OpenFile>> {
        let mut inner = sync::lock(&self.inner);
        let file = inner.by_id.get(&id)?;
        if file.is_active() {
            return None;
        }
        // Own descriptors can always be compared.
        let at = own_position(&inner.files, file.fd.as_fd()).ok()?.ok()?;
        let mut change = self.journal.change();
        if change.has_registered(id) {
            return None;
        }
        change.record_op(Op::FileClosing(id, Closing::Begun));
        drop(change);
        inner.files.remove(at);
        inner.by_id.remove(&id)
    }
}

/// Half of the descriptors that a process may have, and fewer than an executor can hold.
fn most_files(descriptors: u64) -> usize {
    usize::try_from(descriptors / 2)
        .unwrap_or(MOST_FILES)
        .min(MOST_FILES)
}

#[cfg(test)]
mod tests;
