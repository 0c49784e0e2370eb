//! What executes an admitted call: the kernel's driver, or the simulated one, behind one trait.
//!
//! It must not know quotas, ledgers or filters. The broker decides, this crate does.
//!
//! A [`Call`] carries *copies*: segment 0 is the ioctl's own struct, segment 1 the block that a pointer in it names, the
//! rest the blocks that pointers in segment 1 name. A driver changes the segments in place; pointers inside them keep the
//! tenant's values on the way in and on the way out, so that the write-back compares like with like. Between the two, when
//! the kernel sees them, none holds an address of the tenant's (`pointers`).
//!
//! ```text
//! compat   kernel    ── issue ──▶ ioctl in the broker; what the driver binds to a process is handed back to the caller
//! strict   executor  ── socket ─▶ cgpu-executor ── issue ──▶ ioctl in one process for all of the container's calls
//! card-less  sim     ── socket ─▶ cgpu-sim
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::expect_used,
        clippy::panic,
        clippy::wildcard_enum_match_arm,
        clippy::arithmetic_side_effects
    )
)]

mod bytes;
pub mod call;
mod card;
pub mod descriptors;
pub mod executor;
pub mod issue;
pub mod kernel;
pub mod nodes;
pub mod own_client;
pub mod pointers;
pub mod sim;
pub mod ticket;
pub mod wire;
pub mod xid;

use bytes::Bytes;
pub use call::{Call, Executed, FdSlot, FileKind, Link, Segment};
pub use card::{
    CardIdentity, CardSum, CardTime, ImplicitBytes, Incident, IncidentKind, RequestedCard,
};
pub use ticket::Ticket;

use std::os::fd::{BorrowedFd, OwnedFd};

/// Identity of one open file (`struct file`) of the tenant, given by the broker and stable until the file is closed.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct FileId(pub u64);

/// The thread that makes a call, in the host's pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Caller {
    /// Process (thread group).
    pub tgid: i32,
    /// Thread.
    pub tid: i32,
}

/// In whose process a call may be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Binding {
    /// A real driver behind the broker itself: what the driver binds to the calling process is handed back to it (mode A).
    Caller,
    /// A real driver behind one executor process, which is "the process" of every client (mode B).
    Executor,
    /// A simulated driver binds nothing.
    None,
}

/// A file that a call names: the one it is made on, or one in its struct.
#[derive(Debug, Clone, Copy)]
pub struct FileRef<'a> {
    /// Identity.
    pub id: FileId,
    /// What it is.
    pub kind: FileKind,
    /// A duplicate of it in this process.
    pub fd: BorrowedFd<'a>,
}

/// Why a driver could not execute a call; the tenant sees `EIO` (or what [`Error::errno`] says).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The simulated driver's socket failed.
    #[error("simulated driver at {socket}: {step}")]
    Sim {
        /// Path of the socket.
        socket: String,
        /// What was being done.
        step: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// An answer of the simulated driver that is not one.
    #[error("simulated driver at {socket}: malformed answer ({what})")]
    Malformed {
        /// Path of the socket.
        socket: String,
        /// What was wrong.
        what: &'static str,
    },
    /// The simulated driver refused the session, or what was asked in it.
    #[error("simulated driver at {socket} refused: {reason}")]
    Refused {
        /// Path of the socket.
        socket: String,
        /// Its reason.
        reason: String,
    },
    /// Another simulated driver answers than the one that knows what the container has.
    #[error("simulated driver at {socket} was started anew and has nothing of this container's")]
    Anew {
        /// Path of the socket.
        socket: String,
    },
    /// The executor's socket failed.
    #[error("executor at {socket}: {step}")]
    Executor {
        /// Path of the socket.
        socket: String,
        /// What was being done.
        step: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The executor refused what it was sent, or could not be sent it, before anything was done.
    #[error("executor at {socket} refused: {reason}")]
    ExecutorRefused {
        /// Path of the socket.
        socket: String,
        /// Why.
        reason: String,
    },
    /// An answer of the executor that is not one.
    #[error("executor at {socket}: {what}")]
    ExecutorAnswer {
        /// Path of the socket.
        socket: String,
        /// What was wrong.
        what: String,
    },
    /// The driver's sums could not be had.
    #[error(transparent)]
    Sums(#[from] executor::SumsError),
    /// A call that this driver cannot carry out on the tenant's behalf.
    #[error("{0} cannot be executed outside the calling process")]
    Unsupported(&'static str),
}

impl From<own_client::OwnCallError> for Error {
    fn from(error: own_client::OwnCallError) -> Self {
        Self::Sums(error.into())
    }
}

impl Error {
    /// The errno that the tenant's ioctl gets.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Sim { .. }
            | Self::Malformed { .. }
            | Self::Refused { .. }
            | Self::Anew { .. }
            | Self::Executor { .. }
            | Self::ExecutorRefused { .. }
            | Self::ExecutorAnswer { .. }
            | Self::Sums(_) => 5, // EIO
            Self::Unsupported(_) => 25, // ENOTTY
        }
    }

    /// Whether the process that makes the calls, an executor or a simulator, does not answer. A lack of descriptors or memory in this
    /// process is not its fault.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Sim { source, .. } | Self::Executor { source, .. } => !is_scarcity(source),
            Self::Malformed { .. }
            | Self::Refused { .. }
            | Self::Anew { .. }
            | Self::ExecutorRefused { .. }
            | Self::ExecutorAnswer { .. } => true,
            Self::Sums(_) | Self::Unsupported(_) => false,
        }
    }

    /// Whether the driver may have carried out the call all the same: an executor has it, and has not answered, or a former broker may
    /// have had it made before this one failed. What a simulator did ends with it.
    #[must_use]
    pub fn is_in_doubt(&self, attempt: Attempt) -> bool {
        match (self, attempt) {
            (Self::Executor { step, source, .. }, Attempt::First) => {
                // A socket that ends with a request unread says so (`unix_release_sock`): that call was never made.
                *step == executor::RECEIVE && source.kind() != std::io::ErrorKind::ConnectionReset
            }
            (Self::ExecutorAnswer { .. }, Attempt::First)
            | (
                // The last two are found before anything is sent: a former broker, of another version, may have sent it.
                Self::Executor { .. }
                | Self::ExecutorRefused { .. }
                | Self::ExecutorAnswer { .. }
                | Self::Sums(_)
                | Self::Unsupported(_),
                Attempt::Again,
            ) => true,
            (Self::Sim { source, .. }, Attempt::Again) => is_scarcity(source),
            (
                Self::ExecutorRefused { .. }
                | Self::Sim { .. }
                | Self::Sums(_)
                | Self::Unsupported(_),
                Attempt::First,
            )
            | (Self::Malformed { .. } | Self::Refused { .. } | Self::Anew { .. }, _) => false,
        }
    }
}

/// Which attempt at one call it is that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Nobody has asked for the call before.
    First,
    /// A former broker may have asked for it.
    Again,
}

/// Whether this process, not its peer, lacks something.
fn is_scarcity(error: &std::io::Error) -> bool {
    use nix::errno::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS | Errno::ETOOMANYREFS)
    )
}

/// Executes admitted calls.
pub trait Driver: Send + Sync {
    /// The driver's version string, e.g. `570.195.03`.
    fn version(&self) -> &str;

    /// The cards as this driver numbers them; empty where they must be learnt from the answers that pass by.
    fn cards(&self) -> &[CardIdentity];

    /// What objects without a size cost on a card.
    fn implicit(&self) -> ImplicitBytes;

    /// What a file of the tenant is; `None` for a file that is not the driver's.
    fn classify(&self, fd: BorrowedFd<'_>) -> Option<FileKind>;

    /// Executes a call on a file of the tenant, changing its segments.
    ///
    /// # Errors
    /// [`Error`] when the call could not be carried to the driver at all. A call that the driver itself refused is
    /// `Ok` with a negative errno or a status in the struct.
    fn execute(
        &self,
        file: FileRef<'_>,
        caller: Caller,
        ticket: Ticket,
        call: &mut Call,
    ) -> Result<Executed, Error>;

    /// The same, by the calling thread and with its rights, whoever makes the tenant's calls: for a control that the driver asks the
    /// thread for a capability for (`RS_ACCESS_NICE`). It is no tenant's call: its blocks are the caller's own.
    ///
    /// # Errors
    /// As [`Driver::execute`].
    fn execute_here(&self, file: FileRef<'_>, call: &mut Call) -> Result<Executed, Error> {
        let nobody = Caller { tgid: 0, tid: 0 };
        self.execute(file, nobody, Ticket::UNREMEMBERED, call)
    }

    /// In whose process calls may be executed.
    fn binding(&self) -> Binding;

    /// Whether there is no driver behind the tenant's files: calls that a real one would have had from the kernel are brought to
    /// [`Driver::execute`] as well.
    fn is_fake(&self) -> bool {
        false
    }

    /// A file that was called on by the one number is the one that has the other.
    ///
    /// # Errors
    /// As [`Driver::execute`].
    fn is_same_file(&self, file: FileId, known_as: FileId) -> Result<(), Error> {
        let _there_are_no_such_numbers = (file, known_as);
        Ok(())
    }

    /// The process that holds duplicates of the tenant's files for this driver, where it is another than this one: whoever
    /// looks for those that hold a file passes it over.
    fn process(&self) -> Option<i32> {
        None
    }

    /// Asks whoever makes the calls for a sign of life. A driver that this process calls itself has nobody to ask.
    ///
    /// # Errors
    /// As [`Driver::execute`], where it does not answer.
    fn reach(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Takes whoever answers now for the driver, after [`Error::Anew`]. The container has nothing that the former one knew.
    fn begin_anew(&self) {}

    /// A descriptor that keeps what the driver has of the container, wherever it is open. `None`: the driver's files do that
    /// themselves.
    ///
    /// # Errors
    /// As [`Driver::execute`].
    fn session(&self) -> Result<Option<OwnedFd>, Error> {
        Ok(None)
    }

    /// What the driver itself counts for this container on its cards, for the ledger to be compared with; `None` where it cannot
    /// say.
    ///
    /// # Errors
    /// As [`Driver::execute`], and [`Error::Sums`].
    fn sums(&self, cards: &[RequestedCard<'_>]) -> Result<Option<Vec<CardSum>>, Error> {
        let _nothing_known_of = cards;
        Ok(None)
    }

    /// How long each card's compute engine has worked for this container; `None` where the driver cannot say.
    ///
    /// # Errors
    /// As [`Driver::execute`].
    fn engine_times(&self) -> Result<Option<Vec<CardTime>>, Error> {
        Ok(None)
    }

    /// Incidents on this container's cards after the one with this sequence number, in order.
    ///
    /// # Errors
    /// As [`Driver::execute`].
    fn incidents(&self, after: u64) -> Result<Vec<Incident>, Error> {
        let _none_known_of = after;
        Ok(Vec::new())
    }

    /// The files of the tenant that whoever makes the calls holds for this driver. The broker closes those that it does not know any
    /// more ([`Driver::closed`]): each keeps the tenant's file open.
    ///
    /// # Errors
    /// As [`Driver::execute`].
    fn held(&self) -> Result<Vec<FileId>, Error> {
        Ok(Vec::new())
    }

    /// A number that grows with all by which what [`Driver::held`] comes to may become something else; `None`: nobody counts that.
    fn held_changes(&self) -> Option<u64> {
        None
    }

    /// The tenant's last reference to a file is gone. Reporting it twice does no harm.
    ///
    /// # Errors
    /// As [`Driver::execute`].
    fn closed(&self, file: FileId) -> Result<(), Error>;
}

/// A file that a call made and that the tenant gets.
#[derive(Debug)]
pub struct NewFile {
    /// The tenant's descriptor that it replaces.
    pub replaces: i32,
    /// The file.
    pub fd: OwnedFd,
}
