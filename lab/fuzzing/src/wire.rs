//! What comes over sockets and out of files that a broker, a simulator or a frontend reads: any bytes, and almost right ones.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use arbitrary::Unstructured;
use cards::{Grant, SimulatedInventory, reservations::CardReservations};
use driver::wire::{Answer, Fault, MAX_MESSAGE_BYTES, PROTOCOL, Request, WireFd};
use driver::{Caller, FileId, FileKind, Ticket};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nvabi::Release;
use nvabi::bytes::{put_u32, u32_at};
use nvabi::layout::nvos21;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sim::{Profile, Server};
use verdict::Surface;

use crate::decoder;

/// The body.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // Input that is too short for a choice ends the run.
    choose(&mut input).unwrap_or_default();
}

fn choose(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    match input.int_in_range(0..=7_u8)? {
        0 => packet::<Request>(input),
        1 => packet::<Answer>(input),
        2 => packet::<supervisor::link::FromBroker>(input),
        3 => packet::<supervisor::link::FromSupervisor>(input),
        4 => texts(input),
        5 => listener(input),
        _ => simulator(input),
    }
}

/// A message of postcard: what is read of any bytes is written and read back as itself, and is no larger than they were.
fn packet<T>(input: &mut Unstructured<'_>) -> arbitrary::Result<()>
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let bytes = input.bytes(input.len())?;
    if let Ok((message, rest)) = postcard::take_from_bytes::<T>(bytes) {
        let written = postcard::to_stdvec(&message).expect("a message is written");
        assert!(written.len() <= bytes.len() - rest.len(), "{message:?}");
        assert_eq!(postcard::from_bytes::<T>(&written).as_ref(), Ok(&message));
    }
    Ok(())
}

/// JSON that frontends and brokers read.
fn texts(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let which = input.int_in_range(0..=6_u8)?;
    let text = input.bytes(input.len())?;
    match which {
        0 => json::<control::Request>(text),
        1 => json::<control::Status>(text),
        2 => json::<Grant>(text),
        3 => json::<CardReservations>(text),
        4 => json::<cards::claims::Record>(text),
        5 => json::<cards::claims::Pointer>(text),
        _ => json::<SimulatedInventory>(text),
    }
    Ok(())
}

fn json<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(text: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(text) {
        let written = serde_json::to_vec(&value).expect("a value is written");
        let again = serde_json::from_slice::<T>(&written).expect("what was written is read");
        assert_eq!(value, again);
    }
}

const PIECES_MAX: usize = 64;

/// What claims to be runc, at `notify.sock`: in one piece or several, with a descriptor or without.
fn listener(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::Stream,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .expect("a pair of sockets");
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let has_file: bool = input.arbitrary()?;
    let mut is_first = true;
    let mut state: Vec<u8> = match input.int_in_range(0..=2_u8)? {
        0 => br#"{"ociVersion":"1.0.2","fds":["seccompFd"],"pid":42,"metadata":"n/c"}"#.to_vec(),
        1 => br#"{"fds":["x","seccompFd"],"state":{"id":"c"},"pid":0}"#.to_vec(),
        _ => input.bytes(input.len() / 2)?.to_vec(),
    };
    for _change in 0..input.int_in_range(0..=2_u8)? {
        if let Some(last) = state.len().checked_sub(1) {
            let at = input.int_in_range(0..=last)?;
            state[at] = input.arbitrary()?;
        }
    }
    // Few enough to fit into the socket before anybody reads.
    let least = state.len().div_ceil(PIECES_MAX);
    let piece = input.int_in_range(1..=state.len().max(1))?.max(least);
    for piece in state.chunks(piece) {
        let files: &[_] = if has_file && is_first {
            &[null.as_fd()]
        } else {
            &[]
        };
        is_first = false;
        // The other side has closed what it turned away.
        if sys::fd_passing::send(theirs.as_fd(), piece, files).is_err() {
            break;
        }
    }
    drop(theirs);
    if let Ok(handed) = supervisor::listener_socket::receive(&ours) {
        assert!(has_file, "a listener from nowhere");
        assert!(handed.pid.is_none_or(|pid| pid > 0));
    }
    Ok(())
}

const PROFILE: &str = "[driver]\nversion = \"570.195.03\"\n[implicit]\nchannel_group_bytes = 65536\nchannel_bytes = 4096\nva_space_bytes = 4096\n[[card]]\nname = \"Simulated\"\nmemory_mib = 64\narchitecture = \"ada\"\ncount = 2\n";

/// A simulator that lives as long as the process.
struct Simulator {
    server: Server,
    socket: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

fn simulator_of_all() -> &'static Simulator {
    static SIMULATOR: OnceLock<Simulator> = OnceLock::new();
    SIMULATOR.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = Profile::parse(Path::new("p"), PROFILE).expect("a profile");
        let server = Server::bind(profile, folder.path()).expect("a server");
        server.start().expect("a thread");
        Simulator {
            server,
            socket: SimulatedInventory::socket_path(folder.path()),
            _folder: folder,
        }
    })
}

/// A broker that is not one: a connection to the simulator, with messages that are right, almost right, or noise.
fn simulator(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let simulator = simulator_of_all();
    let socket = sys::fd_passing::connect_seqpacket(&simulator.socket).expect("a connection");
    let mut connection = Connection {
        socket,
        buffer: vec![0; MAX_MESSAGE_BYTES],
        handles: Vec::new(),
        next_call: 1,
    };
    let done = connection.talk(input);
    drop(connection);
    // Another connection sees the session's end only after it; joining it waits for that.
    let mut after = Connection {
        socket: sys::fd_passing::connect_seqpacket(&simulator.socket).expect("a connection"),
        buffer: vec![0; MAX_MESSAGE_BYTES],
        handles: Vec::new(),
        next_call: 1,
    };
    after.ask(&hello("check"));
    for account in simulator.server.machine().account() {
        assert!(account.used_bytes <= account.memory_bytes, "{account:?}");
    }
    done
}

fn hello(session: &str) -> Request {
    Request::Hello {
        protocol: PROTOCOL,
        session: session.to_owned(),
    }
}

struct Connection {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// What the simulator has named so far.
    handles: Vec<u32>,
    next_call: u64,
}

impl Connection {
    fn talk(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        if !input.ratio(1, 16)? {
            self.ask(&hello("n/c"));
        }
        for _message in 0..24 {
            if input.is_empty() {
                break;
            }
            let bytes = if input.ratio(1, 8)? {
                let most = input.int_in_range(0..=300)?;
                input.bytes(most.min(input.len()))?.to_vec()
            } else {
                let request = self.request(input)?;
                let mut bytes = postcard::to_stdvec(&request).expect("a message is written");
                if input.ratio(1, 16)? && !bytes.is_empty() {
                    let at = input.int_in_range(0..=bytes.len() - 1)?;
                    bytes[at] = input.arbitrary()?;
                }
                bytes
            };
            if bytes.is_empty() || takes_time(&bytes) {
                continue;
            }
            if !self.send(&bytes) {
                break;
            }
        }
        Ok(())
    }

    fn ask(&mut self, request: &Request) {
        let bytes = postcard::to_stdvec(request).expect("a message is written");
        self.send(&bytes);
    }

    /// Sends a message and reads its answer; `false` where the simulator has ended the connection.
    fn send(&mut self, bytes: &[u8]) -> bool {
        if sys::fd_passing::send(self.socket.as_fd(), bytes, &[]).is_err() {
            return false;
        }
        let Ok((length, _files)) = sys::fd_passing::receive(self.socket.as_fd(), &mut self.buffer)
        else {
            return false;
        };
        if length == 0 {
            return false;
        }
        let answer = postcard::from_bytes::<Answer>(&self.buffer[..length]);
        let answer = answer.expect("an answer of the simulator's is one");
        if let Answer::Done { segments, .. } = answer {
            let made = segments.first().and_then(|arg| u32_at(arg, nvos21::H_NEW));
            self.handles.extend(made.filter(|handle| *handle != 0));
        }
        true
    }

    fn request(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<Request> {
        let file = FileId(input.int_in_range(1..=4)?);
        Ok(match input.int_in_range(0..=15_u8)? {
            0 => Request::Closed { file },
            1 => Request::Account,
            2 => Request::Sums,
            3 => Request::Incidents {
                after: input.arbitrary()?,
            },
            4 => Request::Fault(Fault::Clear),
            _ => self.ioctl(file, input)?,
        })
    }

    fn ioctl(&mut self, file: FileId, input: &mut Unstructured<'_>) -> arbitrary::Result<Request> {
        let made = decoder::made(Release::R570, input)?;
        let kind = match made.surface {
            Surface::Ctl => FileKind::Ctl,
            Surface::Card => FileKind::Card {
                minor: input.int_in_range(0..=2)?,
            },
            Surface::Uvm => FileKind::Uvm,
            Surface::UvmTools => FileKind::UvmTools,
        };
        let mut segments = made.segments;
        if let Some(argument) = segments.first_mut() {
            for at in [nvos21::H_ROOT, nvos21::H_PARENT, nvos21::H_NEW] {
                if !self.handles.is_empty() && input.ratio(3, 4)? {
                    put_u32(argument, at, *input.choose(&self.handles)?);
                }
            }
        }
        let fds = (0..input.int_in_range(0..=2_u8)?)
            .map(|_| {
                Ok(WireFd {
                    segment: input.int_in_range(0..=2)?,
                    at: input.int_in_range(0..=64)?,
                    number: input.int_in_range(-1..=9)?,
                    private: None,
                    sent: input.ratio(1, 8)?,
                    file: if input.arbitrary()? {
                        Some((FileId(input.int_in_range(1..=4)?), kind))
                    } else {
                        None
                    },
                })
            })
            .collect::<arbitrary::Result<_>>()?;
        self.next_call += 1;
        Ok(Request::Ioctl {
            file,
            kind,
            private: if input.ratio(1, 8)? {
                Some(input.arbitrary()?)
            } else {
                None
            },
            caller: Caller { tgid: 1, tid: 1 },
            ticket: Ticket {
                call_slot: input.int_in_range(0..=2)?,
                call: if input.ratio(1, 4)? {
                    input.int_in_range(0..=self.next_call)?
                } else {
                    self.next_call
                },
            },
            cmd: made.cmd,
            segments,
            fds,
        })
    }
}

/// Faults whose purpose is to take time, and to lose a card to all that comes after.
fn takes_time(bytes: &[u8]) -> bool {
    matches!(
        postcard::from_bytes(bytes),
        Ok(Request::Fault(
            Fault::Slow { .. } | Fault::Hang { .. } | Fault::CardLost { .. }
        ))
    )
}
