//! Open files of the driver's, for as long as anybody has them.
//!
//! A mapping keeps its file open after the last descriptor is closed, and so do a `poll` that never ends, an unread message, a connection
//! that nobody accepts and whoever was handed the file outside the container. No table of /proc has these: of a mapping it shows the node,
//! not the file. The kernel itself knows: an epoll instance holds no reference to a file that it watches, and forgets it when the last
//! reference goes, whoever had it (`eventpoll_release_file`, fs/eventpoll.c). `/proc/self/fdinfo` lists what it still watches.
//!
//! Nothing is waited for: no event is asked for. Adding a file asks for its state once, by which a real driver takes back that an event
//! without data is pending (`nvidia_poll`, kernel-open/nvidia/nv.c): no program waits for events on a file that it maps with, or has closed.
//!
//! The supervisor stores the instance: a successor goes on with it, since nobody can watch a file again that is closed.
//!
//! `nvidia-uvm` has no `poll`, and neither has a simulated card's plain file: such files cannot be watched.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use driver::FileId;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use supervisor::link::{Stored, SupervisorLink};
use sys::sync::lock;

/// A file is known to epoll by a descriptor's number too. One that comes back under a number of its former life needs another.
const MOST_NUMBERS: usize = 64;

/// Files that are watched. None costs a descriptor.
#[derive(Debug, Default)]
pub struct LastReferences(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    epoll: Option<Epoll>,
    watched: HashSet<FileId>,
    /// Whether a former broker has watched with the same instance.
    is_inherited: bool,
}

/// Whether the kernel says when a file is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watching {
    /// It does.
    Yes,
    /// The file has no `poll`.
    Impossible,
}

impl LastReferences {
    /// With a former broker's instance, or with one that the supervisor stores for the next broker.
    pub(crate) fn restore(handed: Option<OwnedFd>, supervisor: &SupervisorLink) -> Self {
        let is_inherited = handed.is_some();
        let epoll = handed.map_or_else(|| stored(supervisor), |fd| Ok(Epoll(fd)));
        let epoll = epoll
            .inspect_err(|error| {
                tracing::warn!(%error, "what is open elsewhere stays charged once another broker follows");
            })
            .ok();
        Self(Mutex::new(Inner {
            epoll,
            watched: HashSet::new(),
            is_inherited,
        }))
    }

    /// The instance, to be stored.
    ///
    /// # Errors
    /// The system's.
    pub fn instance(&self) -> io::Result<Option<OwnedFd>> {
        let inner = lock(&self.0);
        let epoll = inner.epoll.as_ref();
        epoll.map(|epoll| epoll.0.try_clone()).transpose()
    }

    /// Goes on watching a file that a former broker has watched, and closed; whether its instance is here.
    pub(crate) fn watch_on(&self, id: FileId) -> bool {
        let mut inner = lock(&self.0);
        if inner.is_inherited {
            inner.watched.insert(id);
        }
        inner.is_inherited
    }

    /// Watches the file of a descriptor, which may be closed then.
    ///
    /// # Errors
    /// The system's: no memory, no descriptors, or no room among what a user may watch (`fs.epoll.max_user_watches`).
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, id: FileId) -> Result<Watching, Errno> {
        let mut inner = lock(&self.0);
        if inner.watched.contains(&id) {
            return Ok(Watching::Yes);
        }
        let epoll = match &mut inner.epoll {
            Some(epoll) => epoll,
            none => none.insert(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?),
        };
        let event = EpollEvent::new(EpollFlags::empty(), id.0);
        let mut numbers = Vec::new();
        loop {
            let number = fd.try_clone_to_owned().map_err(errno_of)?;
            match epoll.add(number.as_fd(), event) {
                Ok(()) => break,
                Err(Errno::EPERM) => return Ok(Watching::Impossible),
                Err(Errno::EEXIST) if numbers.len() < MOST_NUMBERS => numbers.push(number),
                Err(errno) => return Err(errno),
            }
        }
        inner.watched.insert(id);
        Ok(Watching::Yes)
    }

    /// The files that nobody has any more. They are watched no longer. The driver's own clean-up after them may still be under way.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn take_gone(&self) -> io::Result<Vec<FileId>> {
        // What is watched from now on is not judged. Nobody waits for the lock while the kernel answers; one more file does, in the kernel.
        let (number, watched) = {
            let inner = lock(&self.0);
            match &inner.epoll {
                Some(epoll) if !inner.watched.is_empty() => {
                    (epoll.0.as_fd().as_raw_fd(), inner.watched.clone())
                }
                Some(_) | None => return Ok(Vec::new()),
            }
        };
        let listed = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
        let alive = listed.lines().filter_map(file_of);
        let alive: HashSet<FileId> = alive.collect::<io::Result<_>>()?;
        let gone: Vec<FileId> = watched.difference(&alive).copied().collect();
        let mut inner = lock(&self.0);
        for id in &gone {
            inner.watched.remove(id);
        }
        Ok(gone)
    }
}

/// A new instance, which outlives this process.
fn stored(supervisor: &SupervisorLink) -> io::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    supervisor.store(Stored::LastReferences, epoll.0.as_fd())?;
    Ok(epoll)
}

fn errno_of(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The number that a line of an epoll instance's fdinfo gives a file; `None` for what is no file's line.
fn file_of(line: &str) -> Option<io::Result<FileId>> {
    line.starts_with("tfd:").then(|| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "data:");
        let data = words
            .nth(1)
            .and_then(|data| u64::from_str_radix(data, 16).ok());
        data.map(FileId)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IoSlice, pipe};
    use std::os::unix::net::UnixStream;

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

    fn gone(files: &LastReferences) -> Vec<FileId> {
        let mut gone = files.take_gone().unwrap();
        gone.sort_unstable();
        gone
    }

    #[test]
    fn a_file_is_gone_with_its_last_reference_wherever_that_is() {
        let files = LastReferences::default();
        assert_eq!(gone(&files), []);
        let (one, other) = pipe().unwrap();
        let [first, second] = [FileId(7), FileId(u64::MAX)];
        for (fd, id) in [(one.as_fd(), first), (other.as_fd(), second)] {
            assert_eq!(files.watch(fd, id), Ok(Watching::Yes));
        }
        // In a message that nobody has read, the first has no descriptor.
        let (from, to) = UnixStream::pair().unwrap();
        let fds = [one.as_raw_fd()];
        let message = [ControlMessage::ScmRights(&fds)];
        let bytes = [IoSlice::new(b"x")];
        sendmsg::<()>(from.as_raw_fd(), &bytes, &message, MsgFlags::empty(), None).unwrap();
        drop(one);
        assert_eq!(gone(&files), []);
        drop(other);
        assert_eq!(gone(&files), [second]);
        drop((from, to));
        assert_eq!((gone(&files), gone(&files)), (vec![first], vec![]));
    }

    #[test]
    fn a_file_that_comes_back_is_watched_beside_its_former_life() {
        let files = LastReferences::default();
        let (one, _other) = pipe().unwrap();
        for id in 0..20 {
            assert_eq!(files.watch(one.as_fd(), FileId(id)), Ok(Watching::Yes));
        }
        assert_eq!(gone(&files), []);
        drop(one);
        assert_eq!(gone(&files).len(), 20);
    }

    #[test]
    fn a_plain_file_cannot_be_watched() {
        let files = LastReferences::default();
        let plain = tempfile::tempfile().unwrap();
        assert_eq!(
            files.watch(plain.as_fd(), FileId(1)),
            Ok(Watching::Impossible)
        );
    }

    #[test]
    fn other_lines_are_no_files_and_an_unknown_form_is_an_error() {
        assert!(file_of("pos:\t0").is_none());
        assert!(file_of("tfd:        5 events:       18 data:                0").is_some());
        file_of("tfd: 5 data: x").unwrap().unwrap_err();
        file_of("tfd: 5").unwrap().unwrap_err();
    }
}
