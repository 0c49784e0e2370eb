//! The simulated driver, seen from the broker: calls go to `cgpu-sim` over its socket (see [`crate::wire`]).
//!
//! A connection carries one call at a time, so there are as many as calls under way; idle ones are kept. The session
//! (everything that the container holds on the simulated cards) lives as long as any of them.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::sys::stat::fstat;

use crate::wire::{Answer, MAX_MESSAGE_BYTES, PROTOCOL, Request, WireFd};
use crate::{
    Call, Caller, CardIdentity, Driver, Error, Executed, FileId, FileKind, FileRef, ImplicitBytes,
    NewFile,
};

/// Idle connections beyond this are closed.
const MOST_IDLE: usize = 4;

/// A session with `cgpu-sim`.
#[derive(Debug)]
pub struct SimDriver {
    socket: PathBuf,
    session: String,
    version: String,
    cards: Vec<CardIdentity>,
    implicit: ImplicitBytes,
    nodes: HashMap<(u64, u64), FileKind>,
    idle: Mutex<Vec<Connection>>,
}

/// A connection with its buffer: only the pages that answers have filled are ever touched.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl SimDriver {
    /// Opens a session. The device files are those in `dev` beside the socket; the containers' are bind mounts of them.
    ///
    /// # Errors
    /// [`Error`] when the simulator does not answer, refuses, or has no device files.
    pub fn connect(socket: &Path, session: &str) -> Result<Self, Error> {
        let mut driver = Self {
            socket: socket.to_owned(),
            session: session.to_owned(),
            version: String::new(),
            cards: Vec::new(),
            implicit: ImplicitBytes::default(),
            nodes: HashMap::new(),
            idle: Mutex::default(),
        };
        let (connection, answer) = driver.open()?;
        let Answer::Welcome {
            driver_version,
            cards,
            implicit,
        } = answer
        else {
            return Err(driver.malformed("no welcome"));
        };
        driver.nodes = nodes(socket, &cards)
            .map_err(|source| driver.failed("reading the device files", source))?;
        driver.version = driver_version;
        driver.cards = cards;
        driver.implicit = implicit;
        driver.give_back(connection);
        Ok(driver)
    }

    fn open(&self) -> Result<(Connection, Answer), Error> {
        let socket = sys::fd_passing::connect_seqpacket(&self.socket)
            .map_err(|source| self.failed("connecting", source))?;
        let mut connection = Connection {
            socket,
            buffer: vec![0; MAX_MESSAGE_BYTES],
        };
        let hello = Request::Hello {
            protocol: PROTOCOL,
            session: self.session.clone(),
        };
        let (answer, _none) = self.exchange(&mut connection, &hello)?;
        match answer {
            Answer::Refused { reason } => Err(Error::Refused {
                socket: self.name(),
                reason,
            }),
            answer => Ok((connection, answer)),
        }
    }

    /// Sends a request on a connection of its own and waits for the answer.
    ///
    /// # Errors
    /// [`Error`]; the connection is closed then.
    pub fn request(&self, request: &Request) -> Result<(Answer, Option<OwnedFd>), Error> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.open()?.0,
        };
        let (answer, file) = self.exchange(&mut connection, request)?;
        self.give_back(connection);
        match answer {
            Answer::Refused { reason } => Err(Error::Refused {
                socket: self.name(),
                reason,
            }),
            answer => Ok((answer, file)),
        }
    }

    fn exchange(
        &self,
        connection: &mut Connection,
        request: &Request,
    ) -> Result<(Answer, Option<OwnedFd>), Error> {
        let message = postcard::to_stdvec(request)
            .map_err(|_too_deep| self.malformed("a request that cannot be written"))?;
        sys::fd_passing::send(connection.socket.as_fd(), &message, &[])
            .map_err(|source| self.failed("sending", source))?;
        let (bytes, files) =
            sys::fd_passing::receive(connection.socket.as_fd(), &mut connection.buffer)
                .map_err(|source| self.failed("receiving", source))?;
        if bytes == 0 {
            return Err(self.failed("receiving", io::ErrorKind::UnexpectedEof.into()));
        }
        let answer = connection
            .buffer
            .get(..bytes)
            .and_then(|message| postcard::from_bytes(message).ok());
        let answer = answer.ok_or_else(|| self.malformed("not an answer"))?;
        Ok((answer, files.into_iter().next()))
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(connection);
        }
    }

    fn name(&self) -> String {
        self.socket.display().to_string()
    }

    fn failed(&self, step: &'static str, source: io::Error) -> Error {
        Error::Sim {
            socket: self.name(),
            step,
            source,
        }
    }

    fn malformed(&self, what: &'static str) -> Error {
        Error::Malformed {
            socket: self.name(),
            what,
        }
    }
}

/// (device, inode) of every device file, by what it stands for.
fn nodes(socket: &Path, cards: &[CardIdentity]) -> io::Result<HashMap<(u64, u64), FileKind>> {
    let dev = socket.parent().unwrap_or(Path::new("/")).join("dev");
    let mut names = vec![
        ("nvidiactl".to_owned(), FileKind::Ctl),
        ("nvidia-uvm".to_owned(), FileKind::Uvm),
        ("nvidia-uvm-tools".to_owned(), FileKind::UvmTools),
    ];
    names.extend(cards.iter().map(|card| {
        (
            format!("nvidia{}", card.minor),
            FileKind::Card { minor: card.minor },
        )
    }));
    names
        .into_iter()
        .map(|(name, kind)| {
            let meta = fs::metadata(dev.join(name))?;
            Ok(((meta.dev(), meta.ino()), kind))
        })
        .collect()
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
        let stat = fstat(fd).ok()?;
        self.nodes.get(&(stat.st_dev, stat.st_ino)).copied()
    }

    fn execute(
        &self,
        file: FileRef<'_>,
        caller: Caller,
        call: &mut Call,
    ) -> Result<Executed, Error> {
        let request = Request::Ioctl {
            file: file.id,
            kind: file.kind,
            caller,
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
        let (answer, sent) = self.request(&request)?;
        let Answer::Done {
            ret,
            segments,
            replaces,
        } = answer
        else {
            return Err(self.malformed("no result"));
        };
        let as_long = segments.len() == call.segments.len()
            && segments
                .iter()
                .zip(&call.segments)
                .all(|(new, old)| new.len() == old.bytes.len());
        if !as_long {
            return Err(self.malformed("blocks of another length"));
        }
        for (segment, bytes) in call.segments.iter_mut().zip(segments) {
            segment.bytes = bytes;
        }
        let new_file = match (replaces, sent) {
            (Some(replaces), Some(fd)) => Some(NewFile { replaces, fd }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(self.malformed("a file without its number"));
            }
        };
        Ok(Executed { ret, new_file })
    }

    fn closed(&self, file: FileId) -> Result<(), Error> {
        match self.request(&Request::Closed { file })? {
            (Answer::Ok, _) => Ok(()),
            _ => Err(self.malformed("no acknowledgement")),
        }
    }
}
