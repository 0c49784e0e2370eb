//! The socket, the files and the broker's side of both.
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cards::{Inventory, SimulatedInventory};
use driver::sim::SimDriver;
use driver::wire::{Answer, Fault, PROTOCOL, Request};
use driver::{Call, Caller, Driver, Error, FileId, FileKind, FileRef, Segment, Ticket};
use nvabi::bytes::{put_u32, put_u64, u32_at};
use nvabi::layout::{memory_params, nvos21};
use nvabi::status::NV_ERR_NO_MEMORY;
use nvabi::{Release, class, escape};
use sim::{Profile, Server};

const PROFILE: &str = "[driver]\nversion = \"570.195.03\"\n[implicit]\nchannel_bytes = 5\n[[card]]\nname = \"Simulated\"\nmemory_mib = 8\narchitecture = \"ada\"\n";

fn start(state_dir: &Path) -> Server {
    let server = Server::bind(Profile::parse(Path::new("p"), PROFILE).unwrap(), state_dir).unwrap();
    server.start().unwrap();
    server
}

fn connect(state_dir: &Path, session: &str) -> SimDriver {
    SimDriver::connect(&SimulatedInventory::socket_path(state_dir), session).unwrap()
}

/// A tenant behind a driver, as a broker has it.
struct Broker {
    driver: SimDriver,
    node: File,
    root: u32,
}

impl Broker {
    fn new(state_dir: &Path, session: &str) -> Self {
        let mut broker = Self {
            driver: connect(state_dir, session),
            node: File::open(state_dir.join("sim/dev/nvidiactl")).unwrap(),
            root: 0,
        };
        broker.root = broker.alloc(0, class::NV01_ROOT_CLIENT, None).unwrap();
        broker
    }

    fn alloc(&self, parent: u32, class: u32, params: Option<Vec<u8>>) -> Result<u32, u32> {
        let mut block = vec![0; 32];
        for (at, word) in [
            (nvos21::H_ROOT, self.root),
            (nvos21::H_PARENT, parent),
            (nvos21::H_CLASS, class),
        ] {
            put_u32(&mut block, at, word);
        }
        let segments = [Some(block), params]
            .into_iter()
            .flatten()
            .map(|bytes| Segment {
                address: 0,
                link: None,
                bytes,
            })
            .collect();
        let mut call = Call {
            cmd: escape::NV_ESC_RM_ALLOC.cmd(Release::R570),
            segments,
            fds: Vec::new(),
        };
        let kind = self.driver.classify(self.node.as_fd()).unwrap();
        let file = FileRef {
            id: FileId(1),
            kind,
            fd: self.node.as_fd(),
        };
        let done = self
            .driver
            .execute(
                file,
                Caller { tgid: 1, tid: 1 },
                Ticket::UNREMEMBERED,
                &mut call,
            )
            .unwrap();
        assert_eq!(done.ret, 0);
        match u32_at(&call.segments[0].bytes, nvos21::STATUS).unwrap() {
            0 => Ok(u32_at(&call.segments[0].bytes, nvos21::H_NEW).unwrap()),
            status => Err(status),
        }
    }

    fn hold(&self, bytes: u64) -> Result<u32, u32> {
        let device = self
            .alloc(self.root, class::NV01_DEVICE_0, Some(vec![0; 56]))
            .unwrap();
        let mut params = vec![0; 512];
        put_u64(&mut params, memory_params::SIZE, bytes);
        self.alloc(device, class::NV01_MEMORY_LOCAL_USER, Some(params))
    }
}

#[test]
fn a_brokers_calls_are_answered_and_its_end_frees_what_its_session_held() {
    let dir = tempfile::tempdir().unwrap();
    let _server = start(dir.path());
    let observer = connect(dir.path(), "test/observer");
    let one = Broker::new(dir.path(), "ns/one");
    let two = Broker::new(dir.path(), "ns/two");
    assert_eq!(
        (
            one.driver.version(),
            one.driver.implicit().channel,
            one.driver.cards().len()
        ),
        ("570.195.03", 5, 1)
    );
    one.hold(6 << 20).unwrap();
    assert_eq!(two.hold(4 << 20), Err(NV_ERR_NO_MEMORY));
    two.hold(2 << 20).unwrap();
    let held = |observer: &SimDriver| observer.account().unwrap().remove(0).sessions;
    assert_eq!(
        held(&observer),
        [
            ("ns/one".to_owned(), 6 << 20),
            ("ns/two".to_owned(), 2 << 20)
        ]
    );
    two.driver.closed(FileId(1)).unwrap();
    assert_eq!(held(&observer), [("ns/one".to_owned(), 6 << 20)]);
    drop(one);
    // The simulator sees the end of the connection a moment later.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !held(&observer).is_empty() {
        assert!(
            std::time::Instant::now() < deadline,
            "still held: {:?}",
            held(&observer)
        );
        std::thread::yield_now();
    }
    let uuid = observer.cards()[0].uuid.clone();
    observer
        .fault(Fault::OutOfMemory { uuid, calls: 1 })
        .unwrap();
    assert_eq!(
        Broker::new(dir.path(), "ns/three").hold(1),
        Err(NV_ERR_NO_MEMORY)
    );
    let unknown = observer.fault(Fault::CardLost {
        uuid: "GPU-none".to_owned(),
    });
    assert!(
        matches!(&unknown, Err(Error::Refused { reason, .. }) if reason.contains("GPU-none")),
        "{unknown:?}"
    );
}

#[test]
fn many_calls_at_once_use_a_connection_each_of_one_session() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let broker = Broker::new(dir.path(), "ns/many");
    std::thread::scope(|scope| {
        for _thread in 0..8 {
            scope.spawn(|| {
                for _call in 0..50 {
                    broker.hold(64 << 10).unwrap_or_else(out_of_memory);
                }
            });
        }
    });
    let account = server.machine().account().remove(0);
    // 400 times 64 KiB do not fit into 8 MiB: exactly all of it is taken.
    assert_eq!(
        (account.used_bytes, account.sessions),
        (8 << 20, vec![("ns/many".to_owned(), 8 << 20)])
    );
}

fn out_of_memory(status: u32) -> u32 {
    assert_eq!(status, NV_ERR_NO_MEMORY);
    status
}

#[test]
fn the_files_are_made_for_all_and_go_with_the_simulator() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let dev = dir.path().join("sim/dev");
    for name in ["nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-uvm-tools"] {
        assert_eq!(
            fs::metadata(dev.join(name)).unwrap().permissions().mode() & 0o777,
            0o666,
            "{name}"
        );
    }
    let inventory = Inventory::simulated(dir.path()).unwrap();
    assert_eq!(
        inventory.cards[0].uuid.as_str(),
        server.machine().cards()[0].uuid()
    );
    let driver = connect(dir.path(), "a/b");
    // A hard link stands for a bind mount: the same file in another place.
    fs::hard_link(dev.join("nvidia0"), dir.path().join("elsewhere")).unwrap();
    let elsewhere = File::open(dir.path().join("elsewhere")).unwrap();
    assert_eq!(
        driver.classify(elsewhere.as_fd()),
        Some(FileKind::Card { minor: 0 })
    );
    assert_eq!(driver.classify(tempfile::tempfile().unwrap().as_fd()), None);

    let second = Server::bind(Profile::parse(Path::new("p"), PROFILE).unwrap(), dir.path());
    assert!(matches!(second, Err(sim::Error::Busy { .. })), "{second:?}");
    drop(server);
    assert!(!dir.path().join("sim").exists());
    // And what a killed one leaves is replaced.
    fs::create_dir_all(&dev).unwrap();
    fs::write(dev.join("nvidia9"), "").unwrap();
    fs::write(dir.path().join("sim/sim.sock"), "").unwrap();
    let _third = start(dir.path());
    assert!(!dev.join("nvidia9").exists());
    assert_eq!(connect(dir.path(), "a/b").cards().len(), 1);
}

#[test]
fn other_builds_and_malformed_requests_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let _server = start(dir.path());
    let socket =
        sys::fd_passing::connect_seqpacket(&SimulatedInventory::socket_path(dir.path())).unwrap();
    let mut buffer = vec![0; 4096];
    let mut ask = |bytes: &[u8]| -> Answer {
        sys::fd_passing::send(socket.as_fd(), bytes, &[]).unwrap();
        let (length, _fds) = sys::fd_passing::receive(socket.as_fd(), &mut buffer).unwrap();
        postcard::from_bytes(&buffer[..length]).unwrap()
    };
    let mut refused = |bytes: &[u8], expected: &str| match ask(bytes) {
        Answer::Refused { reason } => assert!(reason.contains(expected), "{reason}"),
        other => panic!("{other:?}"),
    };
    refused(&[0xff; 40], "not a request");
    refused(&postcard::to_stdvec(&Request::Account).unwrap(), "greeting");
    let hello = |protocol| {
        postcard::to_stdvec(&Request::Hello {
            protocol,
            session: "a/b".to_owned(),
        })
        .unwrap()
    };
    refused(&hello(PROTOCOL + 1), "different builds");
    assert!(matches!(ask(&hello(PROTOCOL)), Answer::Welcome(_)));
}

#[test]
fn every_shipped_profile_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/sim");
    let mut read = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let profile = Profile::read(&path).unwrap();
        assert!(!profile.cards.is_empty());
        let by_name = Profile::read(Path::new(path.file_stem().unwrap())).unwrap();
        assert_eq!(by_name.cards.len(), profile.cards.len());
        read += 1;
    }
    let error = Profile::read(Path::new("two-adas"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("two-ada)") || error.contains("two-ada,"),
        "{error}"
    );
    assert!(read >= 3, "profiles in {}", folder.display());
}
