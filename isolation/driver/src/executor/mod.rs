//! The kernel's driver behind one executor process, which is "the process" of every client of the container (mode B).
//!
//! RM binds a root client, its CPU mappings and UVM's duplicates to the process that makes the call (nvidia-abi 4.2). With all
//! of them made by `cgpu-executor`, nothing whose verdict must hold is handed back to the tenant, so no check is followed by a
//! second read of the tenant's memory.
//!
//! The executor outlives a broker. It knows no layout and decides nothing: it gets blocks with NULL pointers, links between
//! them, files by [`FileId`] (each sent once), and makes the ioctl. No address of a tenant ever reaches it.
//!
//! A connection carries one call at a time, so there are as many as calls under way.

mod launch;
mod sums;
pub mod wire;

pub use launch::{NumaNode, PROGRAM, SpawnError, Started, beside_this_program, spawn, spawn_with};
pub use sums::SumsError;

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use nvabi::Release;

use crate::kernel::{Facts, KernelDriver, OpenError, put_numbers_back};
use crate::{
    Binding, Call, Caller, CardIdentity, CardSum, Driver, Error, Executed, FdSlot, FileId,
    FileKind, FileRef, ImplicitBytes, RequestedCard, Ticket, descriptors, pointers,
};
use sums::Asker;
use sys::sync::lock;
use wire::{Answer, BlockHead, Execute, Given, MAX_MESSAGE_BYTES, PROTOCOL, Request, SlotHead};

/// The step before any request: nothing that fails in it was a call.
const GREET: &str = "greeting";
/// The step after which an executor has a call.
pub(crate) const RECEIVE: &str = "receive";

/// Why a driver for a container could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No usable kernel driver.
    #[error(transparent)]
    Kernel(#[from] OpenError),
    /// The executor does not answer.
    #[error(transparent)]
    Executor(#[from] Error),
}

/// The kernel's driver in the way that a mode asks for: strict ([`Binding::Executor`]) by the executor that listens at a socket,
/// otherwise by this process; `layouts` as in [`Facts::of_kernel`]. An executor that does not answer fails the calls, not this.
///
/// # Errors
/// [`ConnectError`]
pub fn kernel_for(
    binding: Binding,
    executor: &Path,
    implicit: ImplicitBytes,
    layouts: Option<Release>,
) -> Result<Box<dyn Driver>, ConnectError> {
    match binding {
        Binding::Executor => {
            let facts = Facts::of_kernel(implicit, layouts)?;
            let driver = ExecutorDriver::away(executor, facts);
            match driver.greet() {
                Err(error) if !error.is_unreachable() => return Err(error.into()),
                // Whoever starts a container asks for a sign of life ([`Driver::reach`]); a successor reports it and serves.
                Ok(()) | Err(_) => {}
            }
            Ok(Box::new(driver))
        }
        Binding::Caller | Binding::None => Ok(Box::new(KernelDriver::open(implicit, layouts)?)),
    }
}

/// The kernel's driver, called by an executor process (mode B).
#[derive(Debug)]
pub struct ExecutorDriver {
    socket: PathBuf,
    facts: Facts,
    /// Known since it was first spoken with.
    pid: OnceLock<i32>,
    idle: Mutex<Vec<Connection>>,
    /// Files that the executor has from us.
    held: Mutex<HashSet<FileId>>,
    asker: Asker,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    out: Vec<u8>,
    buffer: Vec<u8>,
}

impl ExecutorDriver {
    /// Connects to the executor at a socket.
    ///
    /// # Errors
    /// [`Error::Executor`] where none listens, [`Error::ExecutorRefused`] where it is of another build.
    pub fn connect(socket: &Path, facts: Facts) -> Result<Self, Error> {
        let driver = Self::away(socket, facts);
        driver.greet()?;
        Ok(driver)
    }

    /// Of an executor that has not answered yet.
    fn away(socket: &Path, facts: Facts) -> Self {
        Self {
            socket: socket.to_owned(),
            facts,
            pid: OnceLock::new(),
            idle: Mutex::default(),
            held: Mutex::default(),
            asker: Asker::default(),
        }
    }

    fn greet(&self) -> Result<(), Error> {
        self.put_back(self.open()?);
        Ok(())
    }

    /// Asks for sums by the nodes of another folder than `/dev`, and waits for each answer no longer than `patience`.
    #[must_use]
    pub fn asking_by(mut self, nodes: PathBuf, patience: Duration) -> Self {
        self.asker = Asker::new(nodes, patience);
        self
    }

    fn open(&self) -> Result<Connection, Error> {
        let socket = sys::fd_passing::connect_seqpacket(&self.socket)
            .map_err(|source| self.failed("connect", source))?;
        let mut connection = Connection {
            socket,
            out: Vec::new(),
            buffer: vec![0; MAX_MESSAGE_BYTES],
        };
        let pid = self.hail(&mut connection)?;
        self.pid.get_or_init(|| pid);
        Ok(connection)
    }

    /// Greets; the executor's process.
    fn hail(&self, connection: &mut Connection) -> Result<i32, Error> {
        let greeted = match self.simple(connection, &Request::Hello { protocol: PROTOCOL }) {
            Ok(Answer::Welcome { pid }) => Ok(pid),
            Ok(other) => Err(self.unexpected(&other)),
            Err(error) => Err(error),
        };
        match greeted {
            Err(Error::ExecutorAnswer { what, .. }) => Err(self.refused(what)),
            Err(Error::Executor { source, .. }) => Err(self.failed(GREET, source)),
            greeted => greeted,
        }
    }

    /// A connection that nobody else uses; it is dropped, not put back, where something fails on it.
    fn take(&self) -> Result<Connection, Error> {
        let pooled = lock(&self.idle).pop();
        match pooled {
            Some(connection) => Ok(connection),
            None => self.open(),
        }
    }

    fn put_back(&self, connection: Connection) {
        lock(&self.idle).push(connection);
    }

    fn ask(&self, request: &Request) -> Result<Answer, Error> {
        let mut connection = self.take()?;
        let answer = self.simple(&mut connection, request)?;
        self.put_back(connection);
        Ok(answer)
    }

    /// A request without blocks.
    fn simple(&self, connection: &mut Connection, request: &Request) -> Result<Answer, Error> {
        connection.out.clear();
        self.encode(request, &mut connection.out)?;
        self.exchange(connection, &[], None)
            .map(|(answer, _)| answer)
    }

    fn encode(&self, request: &Request, out: &mut Vec<u8>) -> Result<(), Error> {
        let taken = std::mem::take(out);
        *out = postcard::to_extend(request, taken)
            .map_err(|error| self.refused(format!("a request that cannot be written: {error}")))?;
        Ok(())
    }

    /// Sends what is in `out`; the answer, and where the blocks' bytes begin and end in `buffer`. `None`: it is waited for
    /// as long as it takes.
    fn exchange(
        &self,
        connection: &mut Connection,
        fds: &[BorrowedFd<'_>],
        patience: Option<Duration>,
    ) -> Result<(Answer, (usize, usize)), Error> {
        if connection.out.len() > MAX_MESSAGE_BYTES {
            return Err(Error::Unsupported("a call as long as this"));
        }
        sys::fd_passing::send(connection.socket.as_fd(), &connection.out, fds)
            .map_err(|source| self.failed("send", source))?;
        self.wait_for(connection, patience)?;
        let (length, _none) =
            sys::fd_passing::receive(connection.socket.as_fd(), &mut connection.buffer)
                .map_err(|source| self.failed(RECEIVE, source))?;
        if length == 0 {
            return Err(self.failed(RECEIVE, io::ErrorKind::UnexpectedEof.into()));
        }
        let message = connection.buffer.get(..length).unwrap_or_default();
        let (answer, rest) = postcard::take_from_bytes(message)
            .map_err(|error| self.malformed(format!("not an answer: {error}")))?;
        Ok((answer, (length.saturating_sub(rest.len()), length)))
    }

    /// The call without what is the tenant's own: executed, and its answer in the segments.
    fn carry(&self, file: FileRef<'_>, ticket: Ticket, call: &mut Call) -> Result<i32, Error> {
        let mut connection = self.take()?;
        let ret = self.carry_on(&mut connection, file, ticket, call, None)?;
        self.put_back(connection);
        Ok(ret)
    }

    /// As [`Self::carry`], by a connection that is the caller's.
    fn carry_on(
        &self,
        connection: &mut Connection,
        file: FileRef<'_>,
        ticket: Ticket,
        call: &mut Call,
        patience: Option<Duration>,
    ) -> Result<i32, Error> {
        // Once more where the executor turns out not to have a file: it is then sent.
        for _attempt in 0..call.fds.len().saturating_add(2) {
            let (head, fds) = self.head(file, ticket, call);
            connection.out.clear();
            self.encode(&Request::Execute(head), &mut connection.out)?;
            for segment in &call.segments {
                connection.out.extend_from_slice(&segment.bytes);
            }
            let (answer, (from, to)) = self.exchange(connection, &fds, patience)?;
            match answer {
                Answer::Done { ret } => {
                    let mut bytes = connection.buffer.get(from..to).unwrap_or_default();
                    let total: usize = call.segments.iter().map(|block| block.bytes.len()).sum();
                    if bytes.len() != total {
                        return Err(self.malformed("blocks of another length".to_owned()));
                    }
                    for segment in &mut call.segments {
                        let (own, rest) = bytes.split_at(segment.bytes.len());
                        segment.bytes.copy_from_slice(own);
                        bytes = rest;
                    }
                    return Ok(ret);
                }
                Answer::NotHeld { file } => {
                    lock(&self.held).remove(&file);
                }
                Answer::Welcome { .. } | Answer::Ok | Answer::Held(_) | Answer::Refused { .. } => {
                    return Err(self.unexpected(&answer));
                }
            }
        }
        Err(self.refused("it loses the files that it is given".to_owned()))
    }

    fn head<'a>(
        &self,
        file: FileRef<'a>,
        ticket: Ticket,
        call: &'a Call,
    ) -> (Execute, Vec<BorrowedFd<'a>>) {
        let mut fds = Vec::new();
        let mut held = lock(&self.held);
        let mut given = |id: Option<FileId>, fd| match id {
            // Two calls may both find it new, and both send it: the executor keeps the last.
            Some(id) if held.insert(id) => {
                fds.push(fd);
                Given::Kept(id)
            }
            Some(id) => Given::Held(id),
            None => {
                fds.push(fd);
                Given::Lent
            }
        };
        let target = given(Some(file.id), file.fd);
        let slots = call
            .fds
            .iter()
            .map(|slot: &FdSlot| SlotHead {
                segment: slot.segment,
                at: slot.at,
                file: given(slot.file.map(|(id, _)| id), slot.fd.as_fd()),
            })
            .collect();
        let blocks = call
            .segments
            .iter()
            .map(|segment| BlockHead {
                link: segment.link,
                bytes: u32::try_from(segment.bytes.len()).unwrap_or(u32::MAX),
            })
            .collect();
        let head = Execute {
            file: target,
            ticket,
            cmd: call.cmd,
            blocks,
            slots,
        };
        (head, fds)
    }

    fn failed(&self, step: &'static str, source: io::Error) -> Error {
        Error::Executor {
            socket: self.socket.display().to_string(),
            step,
            source,
        }
    }

    /// Nothing was done.
    fn refused(&self, reason: String) -> Error {
        Error::ExecutorRefused {
            socket: self.socket.display().to_string(),
            reason,
        }
    }

    fn malformed(&self, what: String) -> Error {
        Error::ExecutorAnswer {
            socket: self.socket.display().to_string(),
            what,
        }
    }

    fn unexpected(&self, answer: &Answer) -> Error {
        match answer {
            Answer::Refused { reason } => self.refused(reason.clone()),
            Answer::Welcome { .. }
            | Answer::Done { .. }
            | Answer::NotHeld { .. }
            | Answer::Ok
            | Answer::Held(_) => {
                self.malformed(format!("an answer to another request ({answer:?})"))
            }
        }
    }
}

impl Driver for ExecutorDriver {
    fn version(&self) -> &str {
        &self.facts.version
    }

    fn cards(&self) -> &[CardIdentity] {
        &[]
    }

    fn implicit(&self) -> ImplicitBytes {
        self.facts.implicit
    }

    fn classify(&self, fd: BorrowedFd<'_>) -> Option<FileKind> {
        self.facts.nodes.kind(fd)
    }

    fn execute(
        &self,
        file: FileRef<'_>,
        _caller: Caller,
        ticket: Ticket,
        call: &mut Call,
    ) -> Result<Executed, Error> {
        descriptors::check(file.kind, call, self.facts.release)?;
        let taken = pointers::take(file.kind, call, self.facts.release)?;
        let result = self.carry(file, ticket, call);
        put_numbers_back(call);
        taken.put_back(file.kind, call, self.facts.release);
        Ok(Executed {
            ret: result?,
            new_file: None,
        })
    }

    /// The executor has no capability that a driver could ask it for.
    fn execute_here(&self, file: FileRef<'_>, call: &mut Call) -> Result<Executed, Error> {
        let nobody = Caller { tgid: 0, tid: 0 };
        let here = KernelDriver::with(self.facts.clone());
        here.execute(file, nobody, Ticket::UNREMEMBERED, call)
    }

    fn binding(&self) -> Binding {
        Binding::Executor
    }

    fn process(&self) -> Option<i32> {
        self.pid.get().copied()
    }

    fn reach(&self) -> Result<(), Error> {
        self.open().map(drop)
    }

    fn sums(&self, cards: &[RequestedCard<'_>]) -> Result<Option<Vec<CardSum>>, Error> {
        self.asker.ask(self, cards).map(Some)
    }

    fn held(&self) -> Result<Vec<FileId>, Error> {
        let answer = self.ask(&Request::Held)?;
        let Answer::Held(mut files) = answer else {
            return Err(self.unexpected(&answer));
        };
        files.retain(|file| !Asker::owns(*file));
        Ok(files)
    }

    fn closed(&self, file: FileId) -> Result<(), Error> {
        lock(&self.held).remove(&file);
        match self.ask(&Request::Closed { file }) {
            Ok(Answer::Ok) => Ok(()),
            Ok(other) => Err(self.unexpected(&other)),
            // Nobody listens there any more: the executor has ended, and its duplicates with it.
            Err(Error::Executor { source, .. })
                if source.kind() == io::ErrorKind::ConnectionRefused =>
            {
                Ok(())
            }
            Err(other) => Err(other),
        }
    }
}

#[cfg(test)]
mod tests;
