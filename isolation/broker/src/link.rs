//! What supervisor and broker say to each other: one message a packet of postcard, descriptors beside it.
//!
//! ```text
//! broker                                   supervisor
//!   Hello (versions) ─────────────────────▶
//!   ◀───── Take (board, journal, sockets, lock), Listener …, Stored …, Start
//!   Ready ────────────────────────────────▶
//!   Store, Release, Upgrade ──────────────▶
//!   ◀───── Listener …, HandOver
//! ```
//!
//! A message that was sent is not lost with its sender: the supervisor reads the socket to its end before it starts another broker.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use driver::{FileId, FileKind};
use serde::{Deserialize, Serialize};

/// Raised when a message changes its form; [`FromBroker::Hello`] keeps its own for ever.
pub const PROTOCOL: u32 = 1;

/// A path has 4096 bytes at most; everything else is short.
const MOST_BYTES: usize = 8 * 1024;

/// A descriptor that the supervisor stores for the next broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stored {
    /// A file of the driver that the tenant holds.
    File(FileId, FileKind),
    /// A file that a call's answer brings, by the call's number.
    Answer(u64),
}

/// From the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromSupervisor {
    /// Serve; beside it the board, the journal, `control.sock`, `notify.sock` and the file whose lock says that a broker lives.
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
}

/// Sends a message.
///
/// # Errors
/// The system's; `EPIPE` when the other side has ended.
pub fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
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
    let (length, fds) = match sys::fd_passing::receive(socket, &mut buffer) {
        // Killed with messages of ours unread.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
        other => other?,
    };
    if length == 0 {
        return Ok(None);
    }
    let message = buffer
        .get(..length)
        .and_then(|bytes| postcard::from_bytes(bytes).ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some((message, fds)))
}

/// The broker's end. Without a supervisor (it is dead, or there was none) everything is as if it had been done.
#[derive(Debug, Default)]
pub struct SupervisorLink(Option<OwnedFd>);

impl From<OwnedFd> for SupervisorLink {
    fn from(socket: OwnedFd) -> Self {
        Self(Some(socket))
    }
}

impl SupervisorLink {
    /// The socket, to be watched and read.
    #[must_use]
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The system's, but for a supervisor that has gone.
    pub fn send(&self, message: &FromBroker, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Some(socket) = self.socket() else {
            return Ok(());
        };
        match send(socket, message, fds) {
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
        let (mut done, told) = io::pipe()?;
        self.send(&FromBroker::Release(what), &[told.as_fd()])?;
        drop(told);
        // Nothing is ever written; it ends when the supervisor closes its end, be it by dying.
        match done.read(&mut [0]) {
            Ok(_end) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Has stored descriptors closed some time soon.
    pub fn release_later(&self, what: Vec<Stored>) {
        if let Err(error) = self.send(&FromBroker::Release(what), &[]) {
            tracing::warn!(error = %error, "descriptors stay with the supervisor");
        }
    }
}
