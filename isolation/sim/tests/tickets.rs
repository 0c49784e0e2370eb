//! A call that is asked for again, because its broker was killed before the answer came, is executed once.
#![expect(clippy::unwrap_used, reason = "a failed step of a test is its failure")]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cards::SimulatedInventory;
use driver::wire::{Answer, Fault, PROTOCOL, Request, WireFd};
use driver::{Caller, FileId, FileKind, Ticket};
use nvabi::bytes::{put_u32, put_u64, u32_at};
use nvabi::escape::Escape;
use nvabi::layout::{memory_params, nvos21, nvos33};
use nvabi::{Release, class, escape};
use proptest::prelude::*;
use sim::{Profile, Server};

const PROFILE: &str = "[driver]\nversion = \"570.195.03\"\n[[card]]\nname = \"Simulated\"\nmemory_mib = 64\narchitecture = \"ada\"\n";
const PIECE_BYTES: u64 = 64 << 10;
const CTL: FileId = FileId(1);

fn start(state_dir: &Path) -> Server {
    let server = Server::bind(Profile::parse(Path::new("p"), PROFILE).unwrap(), state_dir).unwrap();
    server.start().unwrap();
    server
}

/// A connection of a broker, as bare as it can be.
struct Connection {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Connection {
    fn open(state_dir: &Path) -> Self {
        let path = SimulatedInventory::socket_path(state_dir);
        let mut connection = Self {
            socket: sys::fd_passing::connect_seqpacket(&path).unwrap(),
            buffer: vec![0; 64 << 10],
        };
        let welcome = connection.ask(&Request::Hello {
            protocol: PROTOCOL,
            session: "ns/one".to_owned(),
        });
        assert!(matches!(welcome.0, Answer::Welcome { .. }));
        connection
    }

    fn send(&self, request: &Request) {
        let bytes = postcard::to_stdvec(request).unwrap();
        sys::fd_passing::send(self.socket.as_fd(), &bytes, &[]).unwrap();
    }

    fn ask(&mut self, request: &Request) -> (Answer, Option<File>) {
        self.send(request);
        let (length, fds) =
            sys::fd_passing::receive(self.socket.as_fd(), &mut self.buffer).unwrap();
        let answer = postcard::from_bytes(&self.buffer[..length]).unwrap();
        (answer, fds.into_iter().next().map(File::from))
    }

    /// The struct that came back.
    fn done(&mut self, request: &Request) -> (Vec<u8>, Option<File>) {
        match self.ask(request) {
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
}

fn request(row: &Escape, ticket: Ticket, segments: Vec<Vec<u8>>, fds: Vec<WireFd>) -> Request {
    Request::Ioctl {
        file: CTL,
        kind: FileKind::Ctl,
        caller: Caller { tgid: 1, tid: 1 },
        ticket,
        cmd: row.cmd(Release::R570),
        segments,
        fds,
    }
}

fn alloc(ticket: Ticket, root: u32, parent: u32, class: u32, params: Vec<u8>) -> Request {
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

/// A client with a device, by calls that nobody remembers.
fn device(connection: &mut Connection) -> (u32, u32) {
    let never = Ticket::UNREMEMBERED;
    let mut made = |root, parent, class| {
        let (block, _file) = connection.done(&alloc(never, root, parent, class, vec![0; 56]));
        assert_eq!(u32_at(&block, nvos21::STATUS), Some(0));
        u32_at(&block, nvos21::H_NEW).unwrap()
    };
    let root = made(0, 0, class::NV01_ROOT_CLIENT);
    (root, made(root, root, class::NV01_DEVICE_0))
}

fn piece(ticket: Ticket, (root, device): (u32, u32)) -> Request {
    let mut params = vec![0; 128];
    put_u64(&mut params, memory_params::SIZE, PIECE_BYTES);
    alloc(ticket, root, device, class::NV01_MEMORY_LOCAL_USER, params)
}

fn ticket(lane: u32, call: u64) -> Ticket {
    Ticket { lane, call }
}

fn used(server: &Server) -> u64 {
    server.machine().account()[0].used_bytes
}

#[test]
fn a_call_whose_broker_was_killed_in_its_middle_is_answered_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut keeper = Connection::open(dir.path());
    let objects = device(&mut keeper);
    // The first broker goes while the simulator works for it, the next one asks at once.
    let slow = Fault::Slow {
        millis: 300,
        calls: 1,
    };
    assert_eq!(keeper.ask(&Request::Fault(slow)).0, Answer::Ok);
    let killed = Connection::open(dir.path());
    killed.send(&piece(ticket(0, 1), objects));
    drop(killed);
    let mut next = Connection::open(dir.path());
    let first = next.done(&piece(ticket(0, 1), objects)).0;
    assert_eq!(u32_at(&first, nvos21::STATUS), Some(0));
    assert_eq!(used(&server), PIECE_BYTES);
    // And as often as it is asked for.
    assert_eq!(next.done(&piece(ticket(0, 1), objects)).0, first);
    assert_eq!(keeper.done(&piece(ticket(0, 1), objects)).0, first);
    assert_eq!(used(&server), PIECE_BYTES);
    // Other calls, other lanes and unremembered ones are calls of their own.
    for other in [
        ticket(0, 2),
        ticket(1, 3),
        Ticket::UNREMEMBERED,
        Ticket::UNREMEMBERED,
    ] {
        assert_ne!(next.done(&piece(other, objects)).0, first);
    }
    assert_eq!(used(&server), 5 * PIECE_BYTES);
    // What the killed one had sent before its successor went on comes too late.
    match next.ask(&piece(ticket(0, 1), objects)).0 {
        Answer::Refused { reason } => assert!(reason.contains("call 1 of lane 0"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(used(&server), 5 * PIECE_BYTES);
}

#[test]
fn the_file_of_an_answer_comes_again_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let _server = start(dir.path());
    let mut keeper = Connection::open(dir.path());
    let objects = device(&mut keeper);
    let (memory, _file) = keeper.done(&piece(ticket(0, 1), objects));
    let mut block = vec![0; 56];
    put_u32(&mut block, nvos33::H_CLIENT, objects.0);
    put_u32(&mut block, nvos33::H_DEVICE, objects.1);
    put_u32(
        &mut block,
        nvos33::H_MEMORY,
        u32_at(&memory, nvos21::H_NEW).unwrap(),
    );
    put_u64(&mut block, nvos33::LENGTH, PIECE_BYTES);
    let target = WireFd {
        segment: 0,
        at: u32::try_from(nvos33::FD).unwrap(),
        number: 9,
        file: Some((FileId(2), FileKind::Ctl)),
    };
    let map = request(
        &escape::NV_ESC_RM_MAP_MEMORY,
        ticket(0, 2),
        vec![block],
        vec![target],
    );
    let inode = |file: Option<File>| file.unwrap().metadata().unwrap().ino();
    let (first, file) = keeper.done(&map);
    let first_inode = inode(file);
    let (again, file) = Connection::open(dir.path()).done(&map);
    assert_eq!((again, inode(file)), (first, first_inode));
}

/// How one call of a broker goes.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Answered,
    /// The broker is killed after it has sent the call, the next one asks again.
    Killed,
    /// The answer came, and the broker was killed before it could pass it on.
    AnsweredAndKilled,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn brokers_may_be_killed_at_any_moment(
        calls in proptest::collection::vec(
            (0..3_u32, prop_oneof![Just(Fate::Answered), Just(Fate::Killed), Just(Fate::AnsweredAndKilled)]),
            1..30,
        )
    ) {
        let dir = tempfile::tempdir().unwrap();
        let server = start(dir.path());
        let mut keeper = Connection::open(dir.path());
        let objects = device(&mut keeper);
        let mut broker = Connection::open(dir.path());
        let mut handles = std::collections::BTreeSet::new();
        for ((lane, fate), call) in calls.iter().zip(1_u64..) {
            let request = piece(ticket(*lane, call), objects);
            let expected = match fate {
                Fate::Answered => None,
                Fate::Killed => {
                    broker.send(&request);
                    None
                }
                Fate::AnsweredAndKilled => Some(broker.done(&request).0),
            };
            if !matches!(fate, Fate::Answered) {
                broker = Connection::open(dir.path());
            }
            let (block, _file) = broker.done(&request);
            prop_assert_eq!(u32_at(&block, nvos21::STATUS), Some(0));
            prop_assert!(expected.is_none_or(|expected| expected == block));
            handles.insert(u32_at(&block, nvos21::H_NEW).unwrap());
        }
        let made = u64::try_from(calls.len()).unwrap();
        prop_assert_eq!(handles.len(), calls.len());
        prop_assert_eq!(used(&server), made * PIECE_BYTES);
    }
}
