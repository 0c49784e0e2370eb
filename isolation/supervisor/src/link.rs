//! What supervisor and broker say to each other: one message a packet of postcard, descriptors beside it.
//!
//! ```text
//! broker                                   supervisor
//!   Hello (versions) ─────────────────────▶
//!   ◀───── Take (shared state, journal, sockets, lock), Listener …, Stored …, Start
//!   Ready ────────────────────────────────▶
//!   Store, Release, Upgrade ──────────────▶
//!   ◀───── Listener …, HandOver
//! ```
//!
//! A broker whose supervisor was killed starts the next one, and hands it all that the former had:
//!
//! ```text
//! broker                                   supervisor
//!   Adopt (shared state, journal, sockets, lock), Listener …, Store …, Ready ──▶
//!   ◀───── Adopted
//! ```
//!
//! A message that was sent is not lost with its sender: the supervisor reads the socket to its end before it starts another broker.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use driver::{FileId, FileKind};
use serde::{Deserialize, Serialize};
use sys::sync;

/// Raised when a message changes its form, which is written down in `supervisor/forms`; [`FromBroker::Hello`] keeps its own for ever.
pub const PROTOCOL: u32 = 3;

/// A path has 4096 bytes at most; everything else is short.
const MOST_BYTES: usize = 8 * 1024;
/// So many stored descriptors have room in one message.
const MOST_OF_A_MESSAGE: usize = 256;
/// So many wait to be released. Of what is beyond, the next broker finds that nobody needs it.
const MOST_UNRELEASED: usize = 4096;

/// A descriptor that the supervisor stores for the next broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stored {
    /// A file of the driver that the tenant holds.
    File(FileId, FileKind),
    /// A file that a call's answer brings, by the call's number.
    Answer(u64),
    /// What keeps the driver's side of the container: see [`driver::Driver::session`], and the executor's lifeline.
    Session,
    /// The epoll instance that knows which of the closed files somebody else has open.
    LastReferences,
}

/// What a supervisor gives every broker, and a broker its next supervisor.
#[derive(Debug)]
pub struct Estate {
    /// Of [`journal::shared_state::SharedState::memfd`].
    pub shared_state: OwnedFd,
    /// Of [`journal::Journal::memfd`].
    pub journal: OwnedFd,
    /// `control.sock`, listening.
    pub control: OwnedFd,
    /// `notify.sock`, listening.
    pub notify: OwnedFd,
    /// The file whose lock says that a broker lives.
    pub lock: OwnedFd,
}

impl Estate {
    /// In the order of [`Estate::take`].
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 5] {
        [
            self.shared_state.as_fd(),
            self.journal.as_fd(),
            self.control.as_fd(),
            self.notify.as_fd(),
            self.lock.as_fd(),
        ]
    }

    /// What came with a message; `None` where something is lacking.
    pub fn take(fds: &mut impl Iterator<Item = OwnedFd>) -> Option<Self> {
        Some(Self {
            shared_state: fds.next()?,
            journal: fds.next()?,
            control: fds.next()?,
            notify: fds.next()?,
            lock: fds.next()?,
        })
    }
}

/// From the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSupervisor {
    /// Serve; beside it an [`Estate`].
    Take {
        /// How many brokers there have been before.
        replaced: u64,
    },
    /// A seccomp listener.
    Listener {
        /// Its name among this container's.
        token: u64,
        /// The process that it came with.
        pid: Option<i32>,
    },
    /// What a former broker stored.
    Stored(Stored),
    /// All is handed over.
    Start,
    /// Take no further call, finish those under way, and end.
    HandOver,
    /// It watches over the broker that has started it, and is named in `broker.pid`.
    Adopted,
    /// It has been started by this broker, and reads what that hands over.
    Reads,
}

/// From the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromBroker {
    /// It runs, and could take over.
    Hello {
        /// [`PROTOCOL`]
        protocol: u32,
        /// The version of the journals that it reads and writes.
        journal: u64,
    },
    /// It serves.
    Ready,
    /// Store a descriptor.
    Store(Stored),
    /// Close stored descriptors; the pipe beside it, if there is one, is closed when that is done.
    Release(Vec<Stored>),
    /// Replace this broker by a program; the answer goes to the connection beside it.
    Upgrade {
        /// The program.
        program: std::path::PathBuf,
    },
    /// Watch over this broker; beside it an [`Estate`], and the broker's own process descriptor.
    Adopt {
        /// The broker.
        pid: i32,
        /// How many brokers there were before it.
        replaced: u64,
        /// Whether a listener has ever been handed over.
        has_served: bool,
    },
    /// A seccomp listener that the broker serves.
    Listener {
        /// As in [`FromSupervisor::Listener`].
        token: u64,
        /// As in [`FromSupervisor::Listener`].
        pid: Option<i32>,
    },
}

/// Sends a message.
///
/// # Errors
/// The system's; `EPIPE` when the other side has ended; `InvalidInput` for a message that it would not take.
pub fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if bytes.len() > MOST_BYTES {
        let why = format!("a message of {} bytes, {MOST_BYTES} at most", bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    sys::fd_passing::send(socket, &bytes, fds)
}

/// Receives a message; `None` when the other side has ended.
///
/// # Errors
/// The system's; `InvalidData` for what is no message.
pub fn receive<T: for<'de> Deserialize<'de>>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = [0; MOST_BYTES];
    let received = match sys::fd_passing::receive(socket, &mut buffer) {
        // The other side has ended with messages of ours unread. The kernel reports that once, and before what the other side had sent.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            sys::fd_passing::receive(socket, &mut buffer)
        }
        other => other,
    };
    let (length, fds) = received?;
    if length == 0 {
        return Ok(None);
    }
    let message = buffer
        .get(..length)
        .and_then(|bytes| postcard::from_bytes(bytes).ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((message, fds)))
}

/// The broker's end. Without a supervisor (it is dead, or there was none) everything is as if it had been done: whoever comes
/// next is handed all that there is then.
#[derive(Debug, Default)]
pub struct SupervisorLink {
    /// Held for writing while a successor is handed everything, so that nothing is stored or released beside that.
    socket: RwLock<Option<Arc<OwnedFd>>>,
    pid: AtomicI32,
    /// What the supervisor is to release some time, and could not be told yet.
    unreleased: Mutex<Vec<Stored>>,
}

impl SupervisorLink {
    /// The link to a supervisor.
    #[must_use]
    pub fn new(socket: OwnedFd, pid: i32) -> Self {
        Self {
            socket: RwLock::new(Some(Arc::new(socket))),
            pid: AtomicI32::new(pid),
            unreleased: Mutex::default(),
        }
    }

    /// The socket, to be watched and read.
    #[must_use]
    pub fn socket(&self) -> Option<Arc<OwnedFd>> {
        let socket = sync::read(&self.socket);
        socket.clone()
    }

    /// The supervisor's process; 0 while there is none.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// The supervisor has ended.
    pub fn lose(&self) {
        self.pid.store(0, Ordering::Relaxed);
        *sync::write(&self.socket) = None;
    }

    /// Takes up the link to another supervisor, once `hand_over` has sent it everything. Nothing is stored or released meanwhile.
    ///
    /// # Errors
    /// Those of `hand_over`; the link is as it was.
    pub fn adopt(
        &self,
        next: OwnedFd,
        hand_over: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut socket = sync::write(&self.socket);
        hand_over(next.as_fd())?;
        *socket = Some(Arc::new(next));
        Ok(())
    }

    /// It has said that it watches.
    pub fn is_watched_by(&self, pid: i32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The system's, but for a supervisor that has gone.
    pub fn send(&self, message: &FromBroker, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let socket = sync::read(&self.socket);
        let Some(socket) = socket.as_ref() else {
            return Ok(());
        };
        match send(socket.as_fd(), message, fds) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Hands a descriptor over for safe keeping: once this returns, it outlives this process.
    ///
    /// # Errors
    /// As [`SupervisorLink::send`].
    pub fn store(&self, what: Stored, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.send(&FromBroker::Store(what), &[fd])
    }

    /// Has stored descriptors closed, and waits until they are.
    ///
    /// # Errors
    /// As [`SupervisorLink::send`].
    pub fn release(&self, what: Vec<Stored>) -> io::Result<()> {
        let (mut done, reported) = io::pipe()?;
        self.send(&FromBroker::Release(what), &[reported.as_fd()])?;
        drop(reported);
        // Nothing is ever written; it ends when the supervisor closes its end, be it by dying.
        match done.read(&mut [0]) {
            Ok(_end) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Has stored descriptors closed some time soon.
    pub fn release_later(&self, what: Vec<Stored>) {
        let mut unreleased = sync::lock(&self.unreleased);
        let free = MOST_UNRELEASED.saturating_sub(unreleased.len());
        if what.len() > free {
            tracing::warn!("descriptors stay with the supervisor until the next broker");
        }
        unreleased.extend(what.into_iter().take(free));
        drop(unreleased);
        self.release_what_waits();
    }

    /// Has closed what [`SupervisorLink::release_later`] could not have closed yet. Another supervisor may not have it: that does no harm.
    pub fn release_what_waits(&self) {
        let mut unreleased = sync::lock(&self.unreleased);
        while !unreleased.is_empty() {
            let rest = unreleased.len().saturating_sub(MOST_OF_A_MESSAGE);
            let some = unreleased.split_off(rest);
            let message = FromBroker::Release(some);
            if let Err(error) = self.send(&message, &[]) {
                tracing::warn!(error = %error, "descriptors stay with the supervisor for now");
                if let FromBroker::Release(some) = message {
                    unreleased.extend(some);
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::PathBuf;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    /// A supervisor that reads nothing until it is asked to, and whose socket is full.
    #[test]
    fn what_could_not_be_released_is_released_later() {
        let (here, there) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        )
        .unwrap();
        let filler = [0; 1024];
        while sys::fd_passing::send(here.as_fd(), &filler, &[]).is_ok() {}
        let link = SupervisorLink::new(here, 1);
        let answers = |numbers: std::ops::Range<u64>| numbers.map(Stored::Answer).collect();
        link.release_later(answers(0..1000));
        link.release_later(answers(1000..1001));
        let mut buffer = [0; MOST_BYTES];
        while let Ok((length, _)) = sys::fd_passing::receive(there.as_fd(), &mut buffer) {
            assert_eq!(length, filler.len(), "nothing was sent");
        }
        link.release_what_waits();
        let mut released = Vec::new();
        while let Ok(Some((FromBroker::Release(some), _))) = receive(there.as_fd()) {
            released.extend(some);
        }
        released.sort_by_key(|stored| match stored {
            Stored::Answer(call) => *call,
            other => panic!("{other:?}"),
        });
        let all: Vec<Stored> = answers(0..1001);
        assert_eq!(released, all);
        // Once alone.
        link.release_what_waits();
        receive::<FromBroker>(there.as_fd()).unwrap_err();
    }

    #[test]
    fn what_a_broker_sent_before_its_end_is_received_whatever_it_left_unread() {
        let (broker, supervisor) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        send(supervisor.as_fd(), &FromSupervisor::HandOver, &[]).unwrap();
        let stored = std::fs::File::open("/dev/null").unwrap();
        for call in [1, 2] {
            let store = FromBroker::Store(Stored::Answer(call));
            send(broker.as_fd(), &store, &[stored.as_fd()]).unwrap();
        }
        drop(broker);
        for call in [1, 2] {
            let received = receive::<FromBroker>(supervisor.as_fd()).unwrap();
            let (store, fds) = received.expect("a message that was sent");
            assert_eq!(store, FromBroker::Store(Stored::Answer(call)));
            assert_eq!(fds.len(), 1);
        }
        let end = receive::<FromBroker>(supervisor.as_fd()).unwrap();
        assert!(end.is_none(), "{end:?}");
    }

    #[test]
    fn what_the_other_side_would_not_take_is_not_sent() {
        let (here, there) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        let upgrade = |length| FromBroker::Upgrade {
            program: PathBuf::from("/".repeat(length)),
        };
        let refused = send(here.as_fd(), &upgrade(2 * MOST_BYTES), &[]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        // The longest path that there is.
        send(here.as_fd(), &upgrade(4095), &[]).unwrap();
        let (received, _) = receive::<FromBroker>(there.as_fd()).unwrap().unwrap();
        assert!(matches!(received, FromBroker::Upgrade { .. }));
    }
}
