//! The simulated driver, seen from the broker: each call goes to `cgpu-sim` and comes back.
//!
//! A connection carries one call at a time, so there are as many as calls under way. All are of one session, which the
//! simulator frees when the last of them closes; one at least stays open as long as the driver lives.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::nodes::Nodes;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::sync::lock;

use crate::wire::{
    self, Answer, CardAccount, Fault, Greeting, MAX_MESSAGE_BYTES, PROTOCOL, Replaces, Request,
    WireFd,
};
use crate::{
    Binding, Call, Caller, CardIdentity, CardSum, CardTime, Driver, Error, Executed, FdSlot,
    FileId, FileKind, FileRef, ImplicitBytes, Incident, NewFile, RequestedCard, Ticket,
};

/// A session of a simulator.
#[derive(Debug)]
pub struct SimDriver {
    socket: PathBuf,
    session: String,
    /// Set by the first connection.
    greeting: OnceLock<Greeting>,
    /// Which simulator has the session, by its start; 0: the next one that answers.
    started_unix_ns: AtomicU64,
    nodes: Nodes,
    idle: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl SimDriver {
    /// Opens a session (`namespace/container`) with the simulator at a socket (`<state_dir>/sim/sim.sock`); its device
    /// files are in the folder `dev` beside it.
    ///
    /// # Errors
    /// [`Error::Sim`] where there is no simulator, [`Error::Refused`] where it is of another build.
    pub fn connect(socket: &Path, session: &str) -> Result<Self, Error> {
        let failed = |step| {
            let socket = socket.display().to_string();
            move |source| Error::Sim {
                socket,
                step,
                source,
            }
        };
        let nodes =
            Nodes::below(&socket.with_file_name("dev")).map_err(failed("list the device files"))?;
        let driver = Self {
            socket: socket.to_owned(),
            session: session.to_owned(),
            greeting: OnceLock::new(),
            started_unix_ns: AtomicU64::new(0),
            nodes,
            idle: Mutex::default(),
        };
        driver.put_back(driver.open()?);
        Ok(driver)
    }

    /// What each simulated card holds, of all sessions.
    ///
    /// # Errors
    /// As [`Driver::execute`].
    pub fn account(&self) -> Result<Vec<CardAccount>, Error> {
        let answer = self.ask(&Request::Account)?.0;
        let Answer::Account(cards) = answer else {
            return Err(self.unexpected(answer));
        };
        Ok(cards)
    }

    /// Injects a fault.
    ///
    /// # Errors
    /// As [`Driver::execute`]; [`Error::Refused`] for a card that does not exist.
    pub fn fault(&self, fault: Fault) -> Result<(), Error> {
        self.done(&Request::Fault(fault))
    }

    fn done(&self, request: &Request) -> Result<(), Error> {
        let answer = self.ask(request)?.0;
        let Answer::Ok = answer else {
            return Err(self.unexpected(answer));
        };
        Ok(())
    }

    fn unexpected(&self, answer: Answer) -> Error {
        let socket = self.socket.display().to_string();
        match answer {
            Answer::Refused { reason } => Error::Refused { socket, reason },
            Answer::Welcome(_)
            | Answer::Done { .. }
            | Answer::Ok
            | Answer::Account(_)
            | Answer::Sums(_)
            | Answer::EngineTimes(_)
            | Answer::Incidents(_) => Error::Malformed {
                socket,
                what: "an answer to another request",
            },
        }
    }

    fn open(&self) -> Result<Connection, Error> {
        let socket = sys::fd_passing::connect_seqpacket(&self.socket)
            .map_err(|source| self.failed("connect", source))?;
        let mut connection = Connection {
            socket,
            buffer: vec![0; MAX_MESSAGE_BYTES],
        };
        let hello = Request::Hello {
            protocol: PROTOCOL,
            session: self.session.clone(),
        };
        let answer = self.exchange(&mut connection, &hello, &[])?.0;
        let Answer::Welcome(greeting) = answer else {
            return Err(self.unexpected(answer));
        };
        let started = greeting.started_unix_ns;
        let order = Ordering::SeqCst;
        let before = self
            .started_unix_ns
            .compare_exchange(0, started, order, order);
        if before.is_err_and(|before| before != started) {
            return Err(Error::Anew {
                socket: self.socket.display().to_string(),
            });
        }
        self.greeting.get_or_init(|| greeting);
        Ok(connection)
    }

    fn ask(&self, request: &Request) -> Result<(Answer, Option<OwnedFd>), Error> {
        self.ask_with(request, &[])
    }

    /// One request with its files, and its answer, on a connection that nobody else uses meanwhile.
    fn ask_with(
        &self,
        request: &Request,
        files: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Option<OwnedFd>), Error> {
        let pooled = lock(&self.idle).pop();
        let mut connection = match pooled {
            Some(connection) => connection,
            None => self.open()?,
        };
        // A connection that failed is dropped: what would come next on it is unknown. Others may be of a simulator that has ended as
        // well; those that are not keep the session.
        let answer = self
            .exchange(&mut connection, request, files)
            .inspect_err(|_dropped| {
                let mut idle = lock(&self.idle);
                idle.retain(|other| !has_hung_up(other));
            })?;
        self.put_back(connection);
        Ok(answer)
    }

    fn put_back(&self, connection: Connection) {
        lock(&self.idle).push(connection);
    }

    fn exchange(
        &self,
        connection: &mut Connection,
        request: &Request,
        files: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Option<OwnedFd>), Error> {
        let malformed = |what| Error::Malformed {
            socket: self.socket.display().to_string(),
            what,
        };
        let bytes = postcard::to_slice(request, &mut connection.buffer)
            .map_err(|_too_long| malformed("the request is too long"))?;
        sys::fd_passing::send(connection.socket.as_fd(), bytes, files)
            .map_err(|source| self.failed("send", source))?;
        let (length, fds) =
            sys::fd_passing::receive(connection.socket.as_fd(), &mut connection.buffer)
                .map_err(|source| self.failed("receive", source))?;
        if length == 0 {
            return Err(self.failed("receive", io::ErrorKind::UnexpectedEof.into()));
        }
        let answer = connection
            .buffer
            .get(..length)
            .and_then(|bytes| postcard::from_bytes(bytes).ok())
            .ok_or_else(|| malformed("not an answer"))?;
        Ok((answer, fds.into_iter().next()))
    }

    /// The inode of a file that was classified: one that is no node is one of the simulator's own.
    fn private_inode(&self, kind: Option<FileKind>, fd: BorrowedFd<'_>) -> Option<u64> {
        match kind {
            Some(FileKind::Uvm) if self.nodes.kind(fd).is_none() => {
                nix::sys::stat::fstat(fd).ok().map(|stat| stat.st_ino)
            }
            Some(FileKind::Uvm | FileKind::Ctl | FileKind::Card { .. } | FileKind::UvmTools)
            | None => None,
        }
    }

    fn failed(&self, step: &'static str, source: io::Error) -> Error {
        Error::Sim {
            socket: self.socket.display().to_string(),
            step,
            source,
        }
    }
}

impl Driver for SimDriver {
    fn version(&self) -> &str {
        self.greeting
            .get()
            .map_or("", |greeting| &greeting.driver_version)
    }

    fn cards(&self) -> &[CardIdentity] {
        self.greeting.get().map_or(&[], |greeting| &greeting.cards)
    }

    fn implicit(&self) -> ImplicitBytes {
        self.greeting
            .get()
            .map(|greeting| greeting.implicit)
            .unwrap_or_default()
    }

    fn classify(&self, fd: BorrowedFd<'_>) -> Option<FileKind> {
        self.nodes
            .kind(fd)
            .or_else(|| private_uvm(fd).map(|_inode| FileKind::Uvm))
    }

    fn execute(
        &self,
        file: FileRef<'_>,
        caller: Caller,
        ticket: Ticket,
        call: &mut Call,
    ) -> Result<Executed, Error> {
        let malformed = |what| Error::Malformed {
            socket: self.socket.display().to_string(),
            what,
        };
        let request = Request::Ioctl {
            file: file.id,
            kind: file.kind,
            private: self.private_inode(Some(file.kind), file.fd),
            caller,
            ticket,
            cmd: call.cmd,
            segments: call
                .segments
                .iter()
                .map(|segment| segment.bytes.clone())
                .collect(),
            fds: call
                .fds
                .iter()
                .map(|slot| WireFd {
                    segment: slot.segment,
                    at: slot.at,
                    number: slot.number,
                    file: slot.file,
                    private: self.private_inode(slot.file.map(|(_, kind)| kind), slot.fd.as_fd()),
                    sent: is_sent(slot),
                })
                .collect(),
        };
        let files: Vec<BorrowedFd<'_>> = call
            .fds
            .iter()
            .filter(|slot| is_sent(slot))
            .map(|slot| slot.fd.as_fd())
            .collect();
        let (answer, fd) = self.ask_with(&request, &files)?;
        let Answer::Done {
            ret,
            segments,
            replaces,
        } = answer
        else {
            return Err(self.unexpected(answer));
        };
        let same = segments.len() == call.segments.len()
            && segments
                .iter()
                .zip(&call.segments)
                .all(|(new, old)| new.len() == old.bytes.len());
        if !same {
            return Err(malformed("blocks of another length"));
        }
        for (segment, bytes) in call.segments.iter_mut().zip(segments) {
            segment.bytes = bytes;
        }
        let new_file = match (replaces, fd) {
            (Some(Replaces::Number(replaces)), Some(fd)) => Some(NewFile { replaces, fd }),
            (Some(Replaces::CalledOn), Some(fd)) => {
                number_of(caller.tid, file.fd).map(|replaces| NewFile { replaces, fd })
            }
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(malformed("a file and its place do not come together"));
            }
        };
        Ok(Executed { ret, new_file })
    }

    fn binding(&self) -> Binding {
        Binding::None
    }

    fn is_fake(&self) -> bool {
        true
    }

    fn is_same_file(&self, file: FileId, known_as: FileId) -> Result<(), Error> {
        self.done(&Request::SameFile { file, known_as })
    }

    fn reach(&self) -> Result<(), Error> {
        self.open().map(drop)
    }

    fn begin_anew(&self) {
        self.started_unix_ns.store(0, Ordering::SeqCst);
    }

    /// A connection of its own: a simulator frees a session with its last one.
    fn session(&self) -> Result<Option<OwnedFd>, Error> {
        Ok(Some(self.open()?.socket))
    }

    fn sums(&self, _cards: &[RequestedCard<'_>]) -> Result<Option<Vec<CardSum>>, Error> {
        let answer = self.ask(&Request::Sums)?.0;
        let Answer::Sums(sums) = answer else {
            return Err(self.unexpected(answer));
        };
        Ok(Some(sums))
    }

    fn engine_times(&self) -> Result<Option<Vec<CardTime>>, Error> {
        let answer = self.ask(&Request::EngineTimes)?.0;
        let Answer::EngineTimes(times) = answer else {
            return Err(self.unexpected(answer));
        };
        Ok(Some(times))
    }

    fn incidents(&self, after: u64) -> Result<Vec<Incident>, Error> {
        let answer = self.ask(&Request::Incidents { after })?.0;
        let Answer::Incidents(incidents) = answer else {
            return Err(self.unexpected(answer));
        };
        Ok(incidents)
    }

    fn closed(&self, file: FileId) -> Result<(), Error> {
        self.done(&Request::Closed { file })
    }
}

fn has_hung_up(connection: &Connection) -> bool {
    let mut polled = [PollFd::new(connection.socket.as_fd(), PollFlags::POLLIN)];
    let ready = poll(&mut polled, PollTimeout::ZERO);
    ready.is_err()
        || polled[0]
            .revents()
            .is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

/// The file that exports go to and imports come from is told by itself: another container's broker has another number
/// for it. Only controls name a file in their parameters.
fn is_sent(slot: &FdSlot) -> bool {
    slot.segment == 1 && matches!(slot.file, Some((_, FileKind::Ctl)))
}

/// The descriptor's number in a thread; of several that name one open file the lowest. `None` where the thread has closed
/// it meanwhile: then there is nothing to replace.
fn number_of(tid: i32, fd: BorrowedFd<'_>) -> Option<i32> {
    std::fs::read_dir(format!("/proc/{tid}/fdinfo"))
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|number| {
            sys::kcmp::file(tid, *number, fd).is_ok_and(|order| order == std::cmp::Ordering::Equal)
        })
        .min()
}

/// The inode of a file that the simulator put in the place of a tenant's `nvidia-uvm`, so that managed memory can be mapped
/// through it. It is known by name and seals. A tenant that makes such a file itself has one that the simulator has not
/// initialised, as if it had opened the node once more.
fn private_uvm(fd: BorrowedFd<'_>) -> Option<u64> {
    let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let expected = format!("/memfd:{} (deleted)", wire::UVM_FILE_NAME);
    if target.as_os_str() != expected.as_str() {
        return None;
    }
    let seals = SealFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GET_SEALS).ok()?);
    let needed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    if !seals.contains(needed) {
        return None;
    }
    Some(nix::sys::stat::fstat(fd).ok()?.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_simulator_is_an_error_that_names_the_socket() {
        let error = SimDriver::connect(Path::new("/nonexistent/sim/sim.sock"), "a/b").unwrap_err();
        assert!(
            error.to_string().contains("/nonexistent/sim/sim.sock"),
            "{error}"
        );
        assert_eq!(error.errno(), 5);
    }
}
