//! Calls that a production filter leaves to the kernel, carried to a driver that is played.
//!
//! A simulated card's files have no driver behind them, so its filter brings every call to the broker. On a real card no broker hears
//! of these: nothing here has the container's account, its journal, its counters, or its table of files. A file that no other call has
//! shown is known to the driver by a number of this module's, and to the broker not at all.
//!
//! What the kernel would do is done here: a file is kept for as long as a process holds it, and a call that a signal has cut short is
//! not executed again. Both are forgotten with the broker: what the driver has of a file of this module's then stays as long as the
//! container, and the file is another one to the driver afterwards.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use driver::{Call, Caller, Driver, FdSlot, FileId, FileRef, Segment, Ticket};
use journal::state::CallKey;
use nix::sys::resource::{Resource, getrlimit};
use nvabi::Release;
use nvabi::errno::{EBADF, EFAULT, EIO, EMFILE};
use supervisor::scarce;
use sys::seccomp::{Listener, Notification};
use sys::sync;
use verdict::blocks::Descriptor;
use verdict::filter::Native;
use verdict::{Op, Refusal};

use crate::fetch::{self, Blocks, descriptor_number};
use crate::files::{InUse, OpenFile, duplicate, held_by_thread, own_position, surface};
use crate::memories::Memories;
use crate::processes::tgid_of;
use crate::replay::Threads;
use crate::syscall::{AUDIT_ARCH, SYS_IOCTL};

/// The files' numbers begin here, nanoseconds since the machine's start further on: no successor gives one again, and the broker's own
/// never come as far.
const FIRST_FILE: u64 = 1 << 62;

/// Files that no notified call has shown; a call on any further one gets `EMFILE`.
const MOST_FILES: usize = 1024;
/// Where descriptors are scarce, such files get one in so many.
const SHARE_OF_DESCRIPTORS: u64 = 16;

/// Answers that nobody waited for. Beyond these all are forgotten, and their calls are executed again.
const MOST_UNDELIVERED: usize = 1024;

/// Where one call came from, and all that there is to answer it with.
pub(crate) struct Requested<'a> {
    pub(crate) driver: &'a dyn Driver,
    pub(crate) listener: &'a Listener,
    /// The call slot that it came by.
    pub(crate) call_slot: u32,
    /// The broker's file under a number of a thread, where it has that file.
    pub(crate) known: &'a dyn Fn(i32, i32) -> io::Result<Option<InUse>>,
    /// Says that the call goes to the driver, and that it is back: one that hangs is reported, though on a real card nobody would
    /// hear of it.
    pub(crate) at_driver: &'a dyn Fn(),
    pub(crate) is_back: &'a dyn Fn(),
    /// Takes note of the driver's failure, before the caller has its answer.
    pub(crate) failed: &'a dyn Fn(driver::Error),
}

/// What a kernel would know of such calls.
pub(crate) struct NativeCalls {
    release: Release,
    native: Native,
    /// In the order of `kcmp`.
    files: Mutex<Vec<Arc<OpenFile>>>,
    most_files: usize,
    next_file: AtomicU64,
    threads: Threads,
    undelivered: Mutex<HashMap<i32, Undelivered>>,
    memories: Memories,
}

impl fmt::Debug for NativeCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeCalls").finish_non_exhaustive()
    }
}

/// An answer that nobody waited for.
#[derive(Debug)]
struct Undelivered {
    key: CallKey,
    answer: Answer,
}

#[derive(Debug, Clone)]
struct Answer {
    ret: i32,
    before: Vec<Segment>,
    after: Vec<Segment>,
}

impl Answer {
    /// Whether a call with this struct is the one that was answered: as it was made, or as its answer left it.
    fn is_to(&self, argument: &Segment) -> bool {
        [&self.before, &self.after].into_iter().any(|segments| {
            segments
                .first()
                .is_some_and(|first| first.bytes == argument.bytes)
        })
    }
}

/// Why a call has no answer of the driver's.
enum Without {
    Errno(i32),
    /// The driver cannot be asked.
    Driver(driver::Error),
    /// The file is none of the driver's.
    Foreign,
    /// The caller waits no more.
    GivenUp,
}

impl From<Refusal> for Without {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Errno(errno) => Self::Errno(errno),
            // Only decisions give a status, and nothing is decided here.
            Refusal::Status { .. } => Self::Errno(EIO),
        }
    }
}

impl From<io::Error> for Without {
    fn from(error: io::Error) -> Self {
        Self::Errno(error.raw_os_error().unwrap_or(EBADF))
    }
}

impl NativeCalls {
    /// Of a driver of this release.
    #[must_use]
    pub(crate) fn new(release: Release) -> Self {
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _hard)| soft);
        let share = usize::try_from(descriptors / SHARE_OF_DESCRIPTORS).unwrap_or(MOST_FILES);
        Self {
            release,
            native: Native::of(release),
            files: Mutex::default(),
            most_files: share.min(MOST_FILES),
            next_file: AtomicU64::new(FIRST_FILE.saturating_add(sys::clock::now_ns())),
            threads: Threads::default(),
            undelivered: Mutex::default(),
            memories: Memories::default(),
        }
    }

    /// Whether a real driver's broker would not see this call.
    #[must_use]
    pub(crate) fn has(&self, call: &Notification) -> bool {
        call.nr == SYS_IOCTL && call.arch == AUDIT_ARCH && self.native.has(low(call.args[1]))
    }

    /// Answers one.
    pub(crate) fn serve(&self, requested: &Requested<'_>, call: &Notification) {
        let listener = requested.listener;
        let is_waiting = || listener.is_waiting(call.id);
        let Some(_served) = self.threads.enter(call.tid, is_waiting) else {
            return;
        };
        let answered = match self.answer(requested, call) {
            Ok(answer) => {
                self.deliver(listener, call, answer);
                Ok(())
            }
            Err(Without::GivenUp) => Ok(()),
            // As the filter would have had it: the kernel asks whatever is under the number.
            Err(Without::Foreign) => listener.proceed(call.id),
            Err(Without::Errno(errno)) => listener.fail(call.id, errno),
            Err(Without::Driver(error)) => {
                let errno = error.errno();
                (requested.failed)(error);
                listener.fail(call.id, errno)
            }
        };
        // Whoever waits no more asks again.
        let _gone = answered;
    }

    fn answer(&self, requested: &Requested<'_>, call: &Notification) -> Result<Answer, Without> {
        let still_waits = || requested.listener.is_waiting(call.id);
        let number = low(call.args[0]).cast_signed();
        let cmd = low(call.args[1]);
        let tgid = scarce::wait_out(still_waits, || tgid_of(call.tid))?;
        let caller = Caller {
            tgid,
            tid: call.tid,
        };
        let look = || self.find(requested, caller, number);
        let file = scarce::wait_out(still_waits, look)?.ok_or(Without::Foreign)?;
        let op = verdict::op(surface(file.kind), cmd, self.release)?;
        let argument = fetch::argument(call.tid, &op, call.args[2], self.release)?;
        let earlier = sync::lock(&self.undelivered).remove(&call.tid);
        if !still_waits() {
            return Err(Without::GivenUp);
        }
        if let Some(earlier) = earlier
            && earlier.key == CallKey::of(call)
            && earlier.answer.is_to(&argument)
        {
            return Ok(earlier.answer);
        }
        let mut before = vec![argument];
        fetch::parameters(call.tid, &op, &mut before, self.release)?;
        let fds = self.descriptors(requested, caller, &op, &before)?;
        if !still_waits() {
            return Err(Without::GivenUp);
        }
        let mut carried = Call {
            cmd,
            segments: before.clone(),
            fds,
        };
        let target = FileRef {
            id: file.id,
            kind: file.kind,
            fd: file.fd.as_fd(),
        };
        let ticket = Ticket::native(requested.call_slot, call.id.number());
        (requested.at_driver)();
        let done = requested
            .driver
            .execute(target, caller, ticket, &mut carried);
        (requested.is_back)();
        let done = done.map_err(Without::Driver)?;
        Ok(Answer {
            ret: done.ret,
            before,
            after: carried.segments,
        })
    }

    fn deliver(&self, listener: &Listener, call: &Notification, answer: Answer) {
        // Before the look whether it waits: then it is this caller's.
        let target = self.memories.of(call.tid);
        if listener.is_waiting(call.id) {
            let blocks = Blocks {
                before: &answer.before,
                after: &answer.after,
            };
            let is_waiting = || listener.is_waiting(call.id);
            let written = blocks.write_back(&self.memories, call.tid, target, &is_waiting);
            let answered = match written {
                Ok(()) if answer.ret < 0 => listener.fail(call.id, answer.ret.saturating_neg()),
                Ok(()) => listener.answer(call.id, i64::from(answer.ret)),
                Err(_unwritable) => listener.fail(call.id, EFAULT),
            };
            if answered.is_ok() {
                return;
            }
        }
        let mut undelivered = sync::lock(&self.undelivered);
        if undelivered.len() >= MOST_UNDELIVERED {
            undelivered.clear();
        }
        let key = CallKey::of(call);
        undelivered.insert(call.tid, Undelivered { key, answer });
    }

    /// The file under a number; `None` for one that is not the driver's.
    fn find(
        &self,
        requested: &Requested<'_>,
        caller: Caller,
        number: i32,
    ) -> io::Result<Option<InUse>> {
        let tid = caller.tid;
        let known = || {
            let known = (requested.known)(tid, number)?;
            if let Some(file) = &known {
                let reported = self.is_shown(requested.driver, file.id, &file.fd);
                reported.map_err(|error| {
                    let errno = error.errno();
                    (requested.failed)(error);
                    io::Error::from_raw_os_error(errno)
                })?;
            }
            Ok::<_, io::Error>(known)
        };
        if let Some(file) = known()? {
            return Ok(Some(file));
        }
        if let Some(file) = held_by_thread(&sync::lock(&self.files), tid, number)? {
            return Ok(Some(file));
        }
        let fd = duplicate(tid, caller.tgid, number)?;
        let Some(kind) = requested.driver.classify(fd.as_fd()) else {
            return Ok(None);
        };
        let file = {
            let mut files = sync::lock(&self.files);
            match own_position(&files, fd.as_fd())? {
                Ok(at) => files.get(at).map(InUse::new),
                Err(_) if files.len() >= self.most_files => {
                    return Err(io::Error::from_raw_os_error(EMFILE));
                }
                Err(at) => {
                    let id = FileId(self.next_file.fetch_add(1, Ordering::SeqCst));
                    let file = Arc::new(OpenFile::new(id, kind, fd));
                    let in_use = InUse::new(&file);
                    files.insert(at, file);
                    Some(in_use)
                }
            }
        };
        // The broker may have been shown it meanwhile: then it has not looked for it here.
        Ok(known()?.or(file))
    }

    /// Resolves the descriptors that a struct names.
    fn descriptors(
        &self,
        requested: &Requested<'_>,
        caller: Caller,
        op: &Op,
        segments: &[Segment],
    ) -> Result<Vec<FdSlot>, Without> {
        let Some((Descriptor { segment, at }, number)) = descriptor_number(op, segments)? else {
            return Ok(Vec::new());
        };
        let found = self.find(requested, caller, number)?;
        let fd = match &found {
            Some(file) => file.fd.try_clone()?,
            None => duplicate(caller.tid, caller.tgid, number)?,
        };
        Ok(vec![FdSlot {
            segment,
            at: u32::try_from(at).map_err(|_beyond| Without::Errno(EFAULT))?,
            number,
            file: found.map(|file| (file.id, file.kind)),
            fd,
        }])
    }

    /// The broker has this file from now on: this reports to the driver that it is the one that it knows by a number of this module's.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn is_shown(
        &self,
        driver: &dyn Driver,
        shown: FileId,
        fd: impl AsFd,
    ) -> Result<(), driver::Error> {
        let file = {
            let files = sync::lock(&self.files);
            if files.is_empty() {
                return Ok(());
            }
            // Own descriptors can always be compared.
            let at = own_position(&files, fd.as_fd()).ok().and_then(Result::ok);
            at.and_then(|at| files.get(at)).map(|file| file.id)
        };
        let Some(file) = file else {
            return Ok(());
        };
        driver.is_same_file(shown, file)?;
        self.take_out(file);
        Ok(())
    }

    /// Its files, but for those that the broker has by now, all of which are in `shown` in the order of `kcmp`.
    pub(crate) fn held_beside(&self, shown: &[Arc<OpenFile>]) -> Vec<Arc<OpenFile>> {
        // Own descriptors can always be compared.
        let is_shown = |file: &Arc<OpenFile>| {
            own_position(shown, file.fd.as_fd()).is_ok_and(|found| found.is_ok())
        };
        let mut files = sync::lock(&self.files).clone();
        files.retain(|file| !is_shown(file));
        files
    }

    /// Takes a file out that nobody holds, unless a call is under way on it; says whether it is one of this module's.
    pub(crate) fn take_idle(&self, id: FileId) -> bool {
        let mut files = sync::lock(&self.files);
        let before = files.len();
        files.retain(|file| file.id != id || file.is_active());
        files.len() < before
    }

    fn take_out(&self, id: FileId) {
        sync::lock(&self.files).retain(|file| file.id != id);
    }
}

/// The kernel takes these registers as 32 bits.
fn low(register: u64) -> u32 {
    u32::try_from(register & 0xffff_ffff).unwrap_or_default()
}
