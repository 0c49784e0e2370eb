//! The simulated driver, seen from the broker: each call goes to `cgpu-sim` and comes back.
//!
//! A connection carries one call at a time, so there are as many as calls under way. All are of one session, which the
//! simulator frees when the last of them closes; one at least stays open as long as the driver lives.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::nodes::Nodes;
use crate::wire::{Answer, CardAccount, Fault, MAX_MESSAGE_BYTES, PROTOCOL, Request, WireFd};
use crate::{
    Binding, Call, Caller, CardIdentity, CardSum, Driver, Error, Executed, FileId, FileKind,
    FileRef, ImplicitBytes, Incident, NewFile, Ticket,
};

/// A session of a simulator.
#[derive(Debug)]
pub struct SimDriver {
    socket: PathBuf,
    session: String,
    version: String,
    cards: Vec<CardIdentity>,
    implicit: ImplicitBytes,
    nodes: Nodes,
    idle: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// A new connection, and what its greeting said.
struct Opened {
    connection: Connection,
    version: String,
    cards: Vec<CardIdentity>,
    implicit: ImplicitBytes,
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
        let mut driver = Self {
            socket: socket.to_owned(),
            session: session.to_owned(),
            version: String::new(),
            cards: Vec::new(),
            implicit: ImplicitBytes::default(),
            nodes,
            idle: Mutex::default(),
        };
        let Opened {
            connection,
            version,
            cards,
            implicit,
        } = driver.open()?;
        driver.version = version;
        driver.cards = cards;
        driver.implicit = implicit;
        driver.put_back(connection);
        Ok(driver)
    }

    /// What each simulated card holds, of all sessions.
    ///
    /// # Errors
    /// As [`Driver::execute`].
    pub fn account(&self) -> Result<Vec<CardAccount>, Error> {
        match self.ask(&Request::Account)?.0 {
            Answer::Account(cards) => Ok(cards),
            other => Err(self.unexpected(other)),
        }
    }

    /// Injects a fault.
    ///
    /// # Errors
    /// As [`Driver::execute`]; [`Error::Refused`] for a card that does not exist.
    pub fn fault(&self, fault: Fault) -> Result<(), Error> {
        self.done(&Request::Fault(fault))
    }

    fn done(&self, request: &Request) -> Result<(), Error> {
        match self.ask(request)?.0 {
            Answer::Ok => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    fn unexpected(&self, answer: Answer) -> Error {
        let socket = self.socket.display().to_string();
        match answer {
            Answer::Refused { reason } => Error::Refused { socket, reason },
            Answer::Welcome { .. }
            | Answer::Done { .. }
            | Answer::Ok
            | Answer::Account(_)
            | Answer::Sums(_)
            | Answer::Incidents(_) => Error::Malformed {
                socket,
                what: "an answer to another request",
            },
        }
    }

    fn open(&self) -> Result<Opened, Error> {
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
        match self.exchange(&mut connection, &hello)?.0 {
            Answer::Welcome {
                driver_version,
                cards,
                implicit,
            } => Ok(Opened {
                connection,
                version: driver_version,
                cards,
                implicit,
            }),
            other => Err(self.unexpected(other)),
        }
    }

    /// One request and its answer, on a connection that nobody else uses meanwhile.
    fn ask(&self, request: &Request) -> Result<(Answer, Option<OwnedFd>), Error> {
        let pooled = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut connection = match pooled {
            Some(connection) => connection,
            None => self.open()?.connection,
        };
        // A connection that failed is dropped: what would come next on it is unknown.
        let answer = self.exchange(&mut connection, request)?;
        self.put_back(connection);
        Ok(answer)
    }

    fn put_back(&self, connection: Connection) {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(connection);
    }

    fn exchange(
        &self,
        connection: &mut Connection,
        request: &Request,
    ) -> Result<(Answer, Option<OwnedFd>), Error> {
        let malformed = |what| Error::Malformed {
            socket: self.socket.display().to_string(),
            what,
        };
        let bytes = postcard::to_slice(request, &mut connection.buffer)
            .map_err(|_too_long| malformed("the request is too long"))?;
        sys::fd_passing::send(connection.socket.as_fd(), bytes, &[])
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
        &self.version
    }

    fn cards(&self) -> &[CardIdentity] {
        &self.cards
    }

    fn implicit(&self) -> ImplicitBytes {
        self.implicit
    }

    fn classify(&self, fd: BorrowedFd<'_>) -> Option<FileKind> {
        self.nodes.kind(fd)
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
                })
                .collect(),
        };
        let (answer, fd) = self.ask(&request)?;
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
            (Some(replaces), Some(fd)) => Some(NewFile { replaces, fd }),
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

    fn sums(&self) -> Result<Option<Vec<CardSum>>, Error> {
        match self.ask(&Request::Sums)?.0 {
            Answer::Sums(sums) => Ok(Some(sums)),
            other => Err(self.unexpected(other)),
        }
    }

    fn incidents(&self, after: u64) -> Result<Vec<Incident>, Error> {
        match self.ask(&Request::Incidents { after })?.0 {
            Answer::Incidents(incidents) => Ok(incidents),
            other => Err(self.unexpected(other)),
        }
    }

    fn closed(&self, file: FileId) -> Result<(), Error> {
        self.done(&Request::Closed { file })
    }
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
