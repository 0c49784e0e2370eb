//! A broker as bare as it can be: messages on a socket, so that it can be killed between any two of them.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use cards::SimulatedInventory;
use driver::wire::{Answer, PROTOCOL, Request, WireFd};
use driver::{Caller, FileId, FileKind, Ticket};
use nvabi::bytes::{put_u32, put_u64, u32_at};
use nvabi::escape::Escape;
use nvabi::layout::{memory_params, nvos21};
use nvabi::{Release, class, escape};
use sim::{Profile, Server};

const PROFILE: &str = "[driver]\nversion = \"570.195.03\"\n[[card]]\nname = \"Simulated\"\nmemory_mib = 64\narchitecture = \"ada\"\n";
pub(crate) const PIECE_BYTES: u64 = 64 << 10;
const CTL: FileId = FileId(1);

pub(crate) fn start(state_dir: &Path) -> Server {
    let server = Server::bind(Profile::parse(Path::new("p"), PROFILE).unwrap(), state_dir).unwrap();
    server.start().unwrap();
    server
}

pub(crate) fn used(server: &Server) -> u64 {
    server.machine().account()[0].used_bytes
}

pub(crate) struct Connection {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(state_dir: &Path, session: &str) -> Self {
        let path = SimulatedInventory::socket_path(state_dir);
        let mut connection = Self {
            socket: sys::fd_passing::connect_seqpacket(&path).unwrap(),
            buffer: vec![0; 64 << 10],
        };
        let welcome = connection.ask(&Request::Hello {
            protocol: PROTOCOL,
            session: session.to_owned(),
        });
        assert!(matches!(welcome.0, Answer::Welcome(_)));
        connection
    }

    pub(crate) fn send(&self, request: &Request) {
        let bytes = postcard::to_stdvec(request).unwrap();
        sys::fd_passing::send(self.socket.as_fd(), &bytes, &[]).unwrap();
    }

    pub(crate) fn receive(&mut self) -> (Answer, Option<File>) {
        let (length, fds) =
            sys::fd_passing::receive(self.socket.as_fd(), &mut self.buffer).unwrap();
        let answer = postcard::from_bytes(&self.buffer[..length]).unwrap();
        (answer, fds.into_iter().next().map(File::from))
    }

    pub(crate) fn ask(&mut self, request: &Request) -> (Answer, Option<File>) {
        self.send(request);
        self.receive()
    }

    /// Whether an answer has come.
    pub(crate) fn has_answer(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    }

    /// The struct that came back.
    pub(crate) fn done(&mut self, request: &Request) -> (Vec<u8>, Option<File>) {
        self.send(request);
        self.finished()
    }

    /// The struct that comes back for a request that was sent.
    pub(crate) fn finished(&mut self) -> (Vec<u8>, Option<File>) {
        match self.receive() {
            (
                Answer::Done {
                    ret: 0,
                    mut segments,
                    ..
                },
                file,
            ) => (segments.swap_remove(0), file),
            other => panic!("{other:?}"),
        }
    }

    /// A client with a device, by calls that nobody remembers.
    pub(crate) fn device(&mut self) -> (u32, u32) {
        let never = Ticket::UNREMEMBERED;
        let mut made = |root, parent, class| {
            let (block, _file) = self.done(&alloc(never, root, parent, class, vec![0; 56]));
            assert_eq!(u32_at(&block, nvos21::STATUS), Some(0));
            u32_at(&block, nvos21::H_NEW).unwrap()
        };
        let root = made(0, 0, class::NV01_ROOT_CLIENT);
        (root, made(root, root, class::NV01_DEVICE_0))
    }
}

pub(crate) fn request(
    row: &Escape,
    ticket: Ticket,
    segments: Vec<Vec<u8>>,
    fds: Vec<WireFd>,
) -> Request {
    Request::Ioctl {
        file: CTL,
        kind: FileKind::Ctl,
        private: None,
        caller: Caller { tgid: 1, tid: 1 },
        ticket,
        cmd: row.cmd(Release::R570),
        segments,
        fds,
    }
}

pub(crate) fn alloc(
    ticket: Ticket,
    root: u32,
    parent: u32,
    class: u32,
    params: Vec<u8>,
) -> Request {
    let mut block = vec![0; 32];
    put_u32(&mut block, nvos21::H_ROOT, root);
    put_u32(&mut block, nvos21::H_PARENT, parent);
    put_u32(&mut block, nvos21::H_CLASS, class);
    request(
        &escape::NV_ESC_RM_ALLOC,
        ticket,
        vec![block, params],
        Vec::new(),
    )
}

/// An allocation of [`PIECE_BYTES`].
pub(crate) fn piece(ticket: Ticket, (root, device): (u32, u32)) -> Request {
    let mut params = vec![0; 128];
    put_u64(&mut params, memory_params::SIZE, PIECE_BYTES);
    alloc(ticket, root, device, class::NV01_MEMORY_LOCAL_USER, params)
}

pub(crate) fn ticket(call_slot: u32, call: u64) -> Ticket {
    Ticket { call_slot, call }
}
