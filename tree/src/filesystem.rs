//! What the kernel asks, answered from the files of the last moment.
//!
//! Nothing here waits: who asks for what is not known yet waits in a task, and others are answered meanwhile. Neither names nor contents
//! are kept by the kernel. What is read through one open file is of one moment, until it is read from its beginning again.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use view::source::Source;

use crate::changes::Changes;
use crate::hierarchy::Hierarchy;
use crate::node::Node;
use crate::opened::{Opened, piece};
use crate::request::{self, Malformed};

/// How long the kernel may keep what it was answered.
const KEPT: Duration = Duration::ZERO;

/// Questions that wait at a time.
const WAITING_MOST: usize = 1024;

/// The most of one write, bytes. The kernel cuts what is longer.
const WRITE_MOST: u32 = 4096;

/// Cookies of `.` and `..`: numbers of nothing, and below all others.
const DOTS: [(u64, &str); 2] = [(2, "."), (3, "..")];

/// The file system.
#[derive(Debug)]
pub(crate) struct Tree {
    source: Arc<Source<Hierarchy>>,
    changes: Arc<Changes>,
    tasks: Handle,
    waiting: Arc<Semaphore>,
    opened: Arc<Opened>,
}

/// An answer that may be an error.
trait Refuse: Send + 'static {
    fn refuse(self, why: Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => {
        $(impl Refuse for $reply {
            fn refuse(self, why: Errno) {
                self.error(why);
            }
        })*
    };
}

refuse!(
    ReplyAttr,
    ReplyData,
    ReplyDirectory,
    ReplyEntry,
    ReplyOpen,
    ReplyWrite
);

impl Tree {
    pub(crate) fn new(
        source: Arc<Source<Hierarchy>>,
        changes: Arc<Changes>,
        tasks: Handle,
    ) -> Self {
        Self {
            source,
            changes,
            tasks,
            waiting: Arc::new(Semaphore::new(WAITING_MOST)),
            opened: Arc::default(),
        }
    }

    /// Answers about a node: at once where nobody has to be asked, else in a task.
    fn answer<R: Refuse>(
        &self,
        node: Node,
        reply: R,
        answer: impl FnOnce(&Hierarchy, R) + Send + 'static,
    ) {
        if node.is_fixed() {
            answer(&Hierarchy::default(), reply);
        } else {
            self.answer_later(reply, answer);
        }
    }

    /// Answers in a task, with the files of this moment.
    fn answer_later<R: Refuse>(
        &self,
        reply: R,
        answer: impl FnOnce(&Hierarchy, R) + Send + 'static,
    ) {
        let Ok(permit) = Arc::clone(&self.waiting).try_acquire_owned() else {
            return reply.refuse(Errno::EAGAIN);
        };
        let source = Arc::clone(&self.source);
        self.tasks.spawn(async move {
            let _permit = permit;
            match source.get().await {
                None => reply.refuse(Errno::ETIMEDOUT),
                Some(moment) => match &moment.figures {
                    Ok(hierarchy) => answer(hierarchy, reply),
                    // Who collects has logged why.
                    Err(_why) => reply.refuse(Errno::EIO),
                },
            }
        });
    }
}

/// A folder or file. No file has a size, as in procfs: it is read to its end.
fn attributes(node: Node) -> FileAttr {
    let (kind, perm) = match (node.is_folder(), node.is_writable()) {
        (true, _) => (FileType::Directory, 0o555),
        (false, true) => (FileType::RegularFile, 0o644),
        (false, false) => (FileType::RegularFile, 0o444),
    };
    // As procfs has it: who looks finds it new.
    let now = SystemTime::now();
    FileAttr {
        ino: INodeNo(node.number()),
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        kind,
        perm,
        // Of a folder as well: how many are in it is not counted, and `find` is not to take it for that.
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: WRITE_MOST,
        flags: 0,
    }
}

fn node(number: INodeNo) -> Result<Node, Errno> {
    Node::of_number(number.0).ok_or(Errno::ENOENT)
}

fn list(hierarchy: &Hierarchy, folder: Node, after: u64, reply: &mut ReplyDirectory) {
    let dots = [folder, folder.parent()].into_iter().zip(DOTS);
    let dots = dots.map(|(node, (cookie, name))| (cookie, node, name.to_owned()));
    let entries = hierarchy.list(folder).into_iter();
    let entries = entries.map(|(node, name)| (node.number(), node, name));
    // By number: what comes and goes between two questions is no reason to leave out another one.
    for (cookie, node, name) in dots.chain(entries).filter(|(cookie, ..)| *cookie > after) {
        let attributes = attributes(node);
        if reply.add(attributes.ino, cookie, attributes.kind, name) {
            return;
        }
    }
}

impl Filesystem for Tree {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // It is within what the kernel takes.
        let _former = config.set_max_write(WRITE_MOST);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (Ok(parent), Some(name)) = (node(parent), name.to_str()) else {
            return reply.error(Errno::ENOENT);
        };
        let found = |node, reply: ReplyEntry| match node {
            Some(node) => reply.entry(&KEPT, &attributes(node), Generation(0)),
            None => reply.error(Errno::ENOENT),
        };
        let fixed = Hierarchy::default().find(parent, name);
        if fixed.is_some() {
            return found(fixed, reply);
        }
        let name = name.to_owned();
        self.answer_later(reply, move |hierarchy, reply| {
            found(hierarchy.find(parent, &name), reply);
        });
    }

    fn getattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match node(number) {
            Err(why) => reply.error(why),
            Ok(node) => self.answer(node, reply, move |hierarchy, reply| {
                if hierarchy.has(node) {
                    reply.attr(&KEPT, &attributes(node));
                } else {
                    reply.error(Errno::ENOENT);
                }
            }),
        }
    }

    /// Only what `>` of a shell does: a file that is written is empty before.
    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match node(number) {
            Err(why) => reply.error(why),
            Ok(_) if (mode, uid, gid) != (None, None, None) || size.is_none() => {
                reply.error(Errno::EPERM);
            }
            Ok(node) => self.answer(node, reply, move |hierarchy, reply| {
                match hierarchy.target(node) {
                    Ok(_) => reply.attr(&KEPT, &attributes(node)),
                    Err(why) => reply.error(why),
                }
            }),
        }
    }

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let node = match node(number) {
            Ok(node) => node,
            Err(why) => return reply.error(why),
        };
        let opened = Arc::clone(&self.opened);
        self.answer(node, reply, move |hierarchy, reply| {
            let is_allowed = match flags.acc_mode() {
                OpenAccMode::O_RDONLY if hierarchy.has(node) => Ok(()),
                OpenAccMode::O_RDONLY => Err(Errno::ENOENT),
                OpenAccMode::O_WRONLY | OpenAccMode::O_RDWR => hierarchy.target(node).map(drop),
            };
            match is_allowed.and_then(|()| opened.add()) {
                Ok(handle) => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO),
                Err(why) => reply.error(why),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(text) = self.opened.text(handle).filter(|_| offset > 0) {
            return reply.data(piece(&text, offset, size));
        }
        let node = match node(number) {
            Ok(node) => node,
            Err(why) => return reply.error(why),
        };
        let opened = Arc::clone(&self.opened);
        self.answer(node, reply, move |hierarchy, reply| {
            match hierarchy.text(node) {
                Ok(text) => {
                    let text: Arc<str> = text.into();
                    opened.set(handle, &text);
                    reply.data(piece(&text, offset, size));
                }
                Err(why) => reply.error(why),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let node = match node(number) {
            // Half a value is none.
            Ok(_) if offset > 0 => return reply.error(Errno::EINVAL),
            Ok(node) => node,
            Err(why) => return reply.error(why),
        };
        let (changes, tasks) = (Arc::clone(&self.changes), self.tasks.clone());
        let Ok(permit) = Arc::clone(&self.waiting).try_acquire_owned() else {
            return reply.error(Errno::EAGAIN);
        };
        let data = data.to_vec();
        self.answer(node, reply, move |hierarchy, reply| {
            let target = match hierarchy.target(node) {
                Ok(target) => target,
                Err(why) => return reply.error(why),
            };
            let request = match request::read(target, &data) {
                Ok(request) => request,
                Err(error) => {
                    tracing::warn!("a write is refused: {error}");
                    return reply.error(Malformed::ERRNO);
                }
            };
            tasks.spawn(async move {
                let _permit = permit;
                match changes.make(request).await {
                    Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
                    Err(why) => reply.error(why),
                }
            });
        });
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.opened.remove(handle);
        reply.ok();
    }

    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let folder = match node(number) {
            Ok(node) => node,
            Err(why) => return reply.error(why),
        };
        self.answer_later(reply, move |hierarchy, mut reply| {
            if !hierarchy.has(folder) {
                return reply.error(Errno::ENOENT);
            }
            list(hierarchy, folder, offset, &mut reply);
            reply.ok();
        });
    }

    // Nothing is made or removed here.

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mknod(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}
