//! The whole path of a notified call: a tenant's thread under the real filter, the kernel's notification, the broker, the
//! simulator behind its socket, and back.
//!
//! All of it runs in this process: seccomp filters belong to threads, so that one thread is the tenant and others serve it.
//! What that leaves out is the end of a process: its files are given up by hand.

mod act;
mod tenant;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};

use arbitrary::Unstructured;
use broker::account::{Slot, uuid_bytes};
use broker::container::{Container, Parts};
use broker::reaper::Reaper;
use broker::workers::{Session, WAKE_SIGNAL};
use cards::SimulatedInventory;
use driver::sim::SimDriver;
use ledger::{CardSlot, Operation};
use nvabi::Release;
use sim::{Profile, Server};
use sys::seccomp::Wait;
use verdict::filter::{Coverage, FilterSpec, program};

use self::tenant::Tenant;

/// Two cards, the second of which is not granted when there is one slot only.
const PROFILE: &str = "[driver]\nversion = \"570.195.03\"\n[implicit]\nchannel_group_bytes = 131072\nchannel_bytes = 65536\nva_space_bytes = 65536\n[[card]]\nname = \"Simulated\"\nmemory_mib = 64\narchitecture = \"ada\"\ncount = 2\n";
const SESSION: &str = "fuzz/notify";
const QUOTAS: [u64; 4] = [0, 256 << 10, 4 << 20, 48 << 20];

/// Whether this machine lets a thread be filtered and looked into.
///
/// # Errors
/// What is missing.
pub fn can_run() -> Result<(), String> {
    sys::seccomp::supported().map_err(|error| format!("no user notification: {error}"))?;
    if !nix::unistd::geteuid().is_root() {
        return Err("not root".to_owned());
    }
    Ok(())
}

/// The body.
pub fn run(data: &[u8]) {
    if can_run().is_err() {
        return;
    }
    let mut input = Unstructured::new(data);
    // Input that is too short for a choice ends the run.
    play(&mut input).unwrap_or_default();
}

fn play(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let world = world();
    let quotas = [*input.choose(&QUOTAS)?, *input.choose(&QUOTAS)?];
    let granted = input.int_in_range(1..=2_usize)?;
    let fixture = Fixture::new(world, &quotas[..granted]);
    let tenant = Tenant::new(&world.nodes, fixture.uuids.clone());
    let (listener, hand_over) = mpsc::channel::<OwnedFd>();
    std::thread::scope(|scope| {
        let fake = std::thread::Builder::new()
            .name("tenant".to_owned())
            .spawn_scoped(scope, || {
                let listener_of_this = confine();
                listener.send(listener_of_this).expect("the stage waits");
                tenant.play(input);
            })
            .expect("a thread");
        let listener = hand_over.recv().expect("the tenant's listener");
        let session = Session::start(
            listener,
            1,
            Arc::clone(&fixture.container),
            Arc::clone(&fixture.reaper),
        )
        .expect("a thread");
        let ended = fake.join();
        session.end();
        while !session.is_over() {
            std::thread::yield_now();
        }
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
    fixture.check();
    fixture.close_all();
    Ok(())
}

/// Puts the calling thread under the filter.
fn confine() -> OwnedFd {
    static PROGRAM: OnceLock<Vec<bpf::Instruction>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let spec = FilterSpec {
            release: Release::R570,
            coverage: Coverage::Simulated,
            arch: arch::Arch::NATIVE,
        };
        program(&spec)
    });
    sys::seccomp::install_with_listener(program, Wait::Interruptible).expect("a filter")
}

/// What lives as long as the process.
struct World {
    server: Server,
    socket: PathBuf,
    nodes: PathBuf,
    _folder: tempfile::TempDir,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        sys::signal::interrupts(WAKE_SIGNAL).expect("a handler");
        let folder = tempfile::tempdir().expect("a folder");
        let profile = Profile::parse(Path::new("p"), PROFILE).expect("a profile");
        let server = Server::bind(profile, folder.path()).expect("a server");
        server.start().expect("a thread");
        let socket = SimulatedInventory::socket_path(folder.path());
        World {
            server,
            nodes: socket.with_file_name("dev"),
            socket,
            _folder: folder,
        }
    })
}

/// One container's broker.
struct Fixture {
    world: &'static World,
    container: Arc<Container>,
    reaper: Arc<Reaper>,
    quotas: Vec<u64>,
    uuids: Vec<[u8; 16]>,
}

impl Fixture {
    fn new(world: &'static World, quotas: &[u64]) -> Self {
        let driver = SimDriver::connect(&world.socket, SESSION).expect("a session");
        let identities = world.server.machine().greeting().cards;
        let slots: Vec<Slot> = identities
            .iter()
            .zip(quotas)
            .map(|(card, quota_bytes)| Slot {
                uuid: card.uuid.clone(),
                uuid_bytes: uuid_bytes(&card.uuid).expect("a UUID"),
                minor: card.minor,
                quota_bytes: *quota_bytes,
            })
            .collect();
        let uuids = identities
            .iter()
            .map(|card| uuid_bytes(&card.uuid).expect("a UUID"))
            .collect();
        let driver = Box::new(driver);
        let parts = Parts::new(SESSION.to_owned(), Release::R570, driver, slots);
        let container = Container::alone(parts);
        Self {
            world,
            container: Arc::new(container.expect("a container")),
            reaper: Arc::new(Reaper::new().expect("a reaper")),
            quotas: quotas.to_vec(),
            uuids,
        }
    }

    /// What the simulated card holds for this container, bytes.
    fn held_by_driver(&self, card: usize) -> u64 {
        let accounts = self.world.server.machine().account();
        let sessions = &accounts[card].sessions;
        let ours = sessions.iter().find(|(name, _)| name == SESSION);
        ours.map_or(0, |(_, bytes)| *bytes)
    }

    /// At rest: nothing is reserved, no quota was passed, and the driver counts what the ledger counts.
    fn check(&self) {
        let state = self.container.journal.change();
        let ledger = &state.ledger;
        assert_eq!(ledger.check_invariants(), Ok(()));
        let snapshot = ledger.snapshot();
        assert_eq!(
            (snapshot.reservations, snapshot.pins),
            (0, 0),
            "{snapshot:?}"
        );
        for (at, quota_bytes) in self.quotas.iter().enumerate() {
            let card = CardSlot(u8::try_from(at).expect("two cards"));
            assert!(ledger.peak(card) <= *quota_bytes, "{snapshot:?}");
            assert_eq!(
                ledger.used(card),
                self.held_by_driver(at),
                "ledger and driver of card {at}: {snapshot:?}"
            );
        }
        for at in self.quotas.len()..self.uuids.len() {
            assert_eq!(self.held_by_driver(at), 0, "a card that is not granted");
        }
    }

    /// The tenant is gone, and with it the last descriptor of every file: all memory comes back, while the session stays.
    fn close_all(&self) {
        let mut files: Vec<_> = self
            .container
            .journal
            .change()
            .files()
            .map(|(id, entry)| (id, entry.kind))
            .collect();
        // The driver holds the control file that a device file is registered with.
        files.sort_by_key(|(_, kind)| *kind == driver::FileKind::Ctl);
        for (id, _) in files {
            self.container.driver.closed(id).expect("the simulator");
            self.container
                .journal
                .change()
                .record(Operation::CloseFile {
                    file: ledger::FileId(id.0),
                });
        }
        let state = self.container.journal.change();
        assert_eq!(state.ledger.check_invariants(), Ok(()));
        let left = state.ledger.snapshot();
        assert_eq!((left.allocations, left.exporting_files), (0, 0), "{left:?}");
        for (at, _) in self.uuids.iter().enumerate() {
            assert_eq!(self.held_by_driver(at), 0, "left on card {at}: {left:?}");
        }
    }
}
