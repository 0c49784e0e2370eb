//! A broker's insides around the fake driver, and tenants under the real filter.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::share::Sources;
use broker::account::{Slot, uuid_bytes};
use broker::container::{Container, Inheritance, Parts};
use broker::files::OpenFile;
use broker::health::Plan;
use broker::reaper::Reaper;
use broker::workers::{Session, WAKE_SIGNAL};
use cards::ComputeTerms;
use driver::{FileKind, ImplicitBytes};
use journal::Journal;
use journal::counters::Counter;
use journal::limits::OBJECT_BYTES;
use journal::shared_state::SharedState;
use ledger::{CardSlot, Counted, Operation};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use nvabi::capability::Capabilities;
use nvabi::{Release, uvm};
use supervisor::link::Stored;
use sys::pidfd::PidFd;
use verdict::policy::{CardFigures, Managed, Policy, RegisteredMemory};

use crate::fake::{Fake, Handle, UUID};
use crate::launch::{self, WITH_FILTER};
use crate::tenant::{Process, Tenant};

/// A second node of control files, that can be mapped.
pub(crate) const MAPPABLE_CTL: &str = "nvidiactl-mappable";

/// One container's broker.
pub(crate) struct Fixture {
    pub(crate) container: Arc<Container>,
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) fake: Arc<Fake>,
    /// What a successor would be handed.
    estate: [OwnedFd; 2],
    slot: Slot,
    folder: tempfile::TempDir,
    sessions: Mutex<Vec<Arc<Session>>>,
    events: Option<JoinHandle<()>>,
}

/// Whether a successor is handed what knows which closed files somebody else has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watch {
    HandedOver,
    Lost,
}

/// A tenant's process with its first thread.
pub(crate) struct Confined {
    pub(crate) tenant: Tenant,
    pub(crate) process: Process,
    pub(crate) session: Arc<Session>,
}

impl Confined {
    pub(crate) fn pid(&self) -> i32 {
        self.process.0.id().cast_signed()
    }
}

impl std::ops::Deref for Confined {
    type Target = Tenant;

    fn deref(&self) -> &Tenant {
        &self.tenant
    }
}

impl Fixture {
    pub(crate) fn new(quota_bytes: u64) -> Self {
        Self::planned(quota_bytes, Managed::Deny, Plan::default())
    }

    pub(crate) fn with_managed(quota_bytes: u64, managed: Managed) -> Self {
        Self::planned(quota_bytes, managed, Plan::default())
    }

    /// Looked after as planned; when it is looked is the test's own affair.
    pub(crate) fn watched(quota_bytes: u64, plan: Plan) -> Self {
        Self::planned(quota_bytes, Managed::Deny, plan)
    }

    /// With a share of its card's time, which nobody holds before [`::share::Share::start`].
    pub(crate) fn sharing(requests: ComputeTerms) -> Self {
        Self::capable(Capabilities::default(), ImplicitBytes::default(), requests)
    }

    /// The same, for a container with these capabilities on a driver that takes so much by itself.
    pub(crate) fn capable(
        capabilities: Capabilities,
        implicit: ImplicitBytes,
        requests: ComputeTerms,
    ) -> Self {
        let policy = Policy {
            capabilities,
            ..Policy::default()
        };
        Self::built(1 << 30, policy, Plan::default(), requests, implicit)
    }

    fn planned(quota_bytes: u64, managed: Managed, plan: Plan) -> Self {
        let policy = Policy {
            managed,
            card_figures: CardFigures::Show,
            registered_memory: RegisteredMemory::Allow,
            ..Policy::default()
        };
        let (requests, implicit) = (ComputeTerms::default(), ImplicitBytes::default());
        Self::built(quota_bytes, policy, plan, requests, implicit)
    }

    fn built(
        quota_bytes: u64,
        policy: Policy,
        plan: Plan,
        requests: ComputeTerms,
        implicit: ImplicitBytes,
    ) -> Self {
        sys::signal::interrupts(WAKE_SIGNAL).unwrap();
        let fake = Fake::new();
        *fake.implicit.lock().unwrap() = implicit;
        let folder = tempfile::tempdir().unwrap();
        for (name, kind) in [
            ("nvidiactl", Some(FileKind::Ctl)),
            (MAPPABLE_CTL, Some(FileKind::Ctl)),
            ("nvidia0", Some(FileKind::Card { minor: 0 })),
            ("nvidia-uvm", Some(FileKind::Uvm)),
            ("plain", None),
        ] {
            let path = folder.path().join(name);
            // A real control file has a `poll`, as a FIFO has, which cannot be mapped.
            match name {
                "nvidiactl" => mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap(),
                _ => std::fs::write(&path, [0; 64]).unwrap(),
            }
            if let Some(kind) = kind {
                fake.add_node(&path, kind);
            }
        }
        let driver = Handle(Arc::clone(&fake));
        let slot = Slot {
            uuid: UUID.to_owned(),
            uuid_bytes: uuid_bytes(UUID).unwrap(),
            minor: 0,
            quota_bytes,
        };
        let release = Release::R570;
        let name = "tests/calls".to_owned();
        let mut parts = Parts::new(name, release, Box::new(driver), vec![slot.clone()]);
        parts.call_rules.policy = policy;
        parts.health = plan;
        let cards = vec![cards::GpuUuid::new(UUID).unwrap()];
        let state_dir = Some(folder.path().to_owned());
        let sources = Sources::new(state_dir, requests, cards);
        parts.share = sources.with_nodes(folder.path().to_owned());
        let estate = [SharedState::memfd(), Journal::memfd()].map(Result::unwrap);
        let [shared_state, journal] = estate.each_ref().map(|fd| fd.try_clone().unwrap());
        let inheritance = Inheritance {
            shared_state,
            journal,
            stored: Vec::new(),
            supervisor: Arc::default(),
        };
        let container = Arc::new(Container::resume(parts, inheritance).unwrap());
        let reaper = Arc::new(Reaper::new().unwrap());
        let events = {
            let (container, reaper) = (Arc::clone(&container), Arc::clone(&reaper));
            std::thread::spawn(move || reaper.watch_over(&container))
        };
        Self {
            container,
            reaper,
            fake,
            estate,
            slot,
            folder,
            sessions: Mutex::default(),
            events: Some(events),
        }
    }

    /// What comes after a broker that is killed now: it has taken up what that has left, as it is at this moment.
    pub(crate) fn successor(&self) -> Arc<Container> {
        self.successor_handed(&self.container.files.held(), Watch::HandedOver)
    }

    /// The same, handed these files, which may be fewer than the former broker had.
    pub(crate) fn successor_handed(
        &self,
        files: &[Arc<OpenFile>],
        elsewhere: Watch,
    ) -> Arc<Container> {
        let driver = Handle(Arc::clone(&self.fake));
        let name = "tests/calls".to_owned();
        let slots = vec![self.slot.clone()];
        let mut parts = Parts::new(name, Release::R570, Box::new(driver), slots);
        parts.call_rules.policy = self.container.call_rules.policy;
        let [shared_state, journal] = self.estate.each_ref().map(copy);
        let files = files.iter().map(|file| {
            let stored = Stored::File(file.id, file.kind);
            (stored, file.fd.try_clone().unwrap())
        });
        let watch = match elsewhere {
            Watch::HandedOver => self.container.elsewhere.instance().unwrap(),
            Watch::Lost => None,
        };
        let watch = watch.map(|fd| (Stored::LastReferences, fd));
        let inheritance = Inheritance {
            shared_state,
            journal,
            stored: files.chain(watch).collect(),
            supervisor: Arc::default(),
        };
        let successor = Arc::new(Container::resume(parts, inheritance).unwrap());
        broker::resume::resume(&successor, &[]).unwrap();
        let has_open = || successor.journal.change().open().next().is_some();
        until("it has taken up all calls", || !has_open());
        successor
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A process under the filter as runc installs it: any signal ends a wait.
    pub(crate) fn tenant(&self) -> Confined {
        self.confined(WITH_FILTER)
    }

    /// A process under the filter as `cgpu run` installs it: only fatal signals end a wait.
    pub(crate) fn killable_tenant(&self) -> Confined {
        self.confined(&format!("{WITH_FILTER}-killable"))
    }

    fn confined(&self, role: &str) -> Confined {
        let (child, socket) = launch::start(role).unwrap();
        let listener = launch::listener(&socket).unwrap();
        let session = self.serve(listener);
        Confined {
            tenant: Tenant::new(socket),
            process: Process(child),
            session,
        }
    }

    fn serve(&self, listener: OwnedFd) -> Arc<Session> {
        let (container, reaper) = (Arc::clone(&self.container), Arc::clone(&self.reaper));
        let mut sessions = self.sessions.lock().unwrap();
        let token = sessions.len() as u64 + 1;
        let session = Session::start(listener, token, container, reaper).unwrap();
        sessions.push(Arc::clone(&session));
        // As a broker does: on a machine that is full of processes a thread could not be started.
        let revived = Arc::downgrade(&session);
        std::thread::spawn(move || {
            while let Some(session) = revived.upgrade() {
                session.revive();
                drop(session);
                std::thread::sleep(Duration::from_millis(250));
            }
        });
        session
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.container.journal.change().ledger.used(CardSlot(0))
    }

    /// Of the host's memory, beside what goes by number.
    pub(crate) fn used_bytes_of_the_host(&self) -> u64 {
        let used = self.container.journal.change().ledger.used(CardSlot::HOST);
        used - self.by_number()
    }

    /// What is charged to the host's memory for each object, and for each initialised file of nvidia-uvm.
    pub(crate) fn by_number(&self) -> u64 {
        let state = self.container.journal.change();
        let objects = state.ledger.count(Counted::Objects) * OBJECT_BYTES;
        let of_file = u64::from(uvm::FILE_BYTES.of(Release::R570));
        objects + state.ledger.count(Counted::UvmFiles) * of_file
    }

    /// So many bytes of the host's memory, beside what goes by number now and so many objects more.
    pub(crate) fn limit_host(&self, bytes: u64, objects: u64) {
        let quota_bytes = bytes + self.by_number() + objects * OBJECT_BYTES;
        let card = CardSlot::HOST;
        let operation = Operation::SetQuota { card, quota_bytes };
        self.container.journal.change().record(operation);
    }

    /// References in the ledger that calls, or mappings of the host's memory, have.
    pub(crate) fn pins(&self) -> usize {
        self.container.journal.change().ledger.pins().count()
    }

    /// Another reference to a file of a tenant's, where the broker does not look: in this process.
    pub(crate) fn elsewhere(&self, tenant: &Confined, number: i32) -> OwnedFd {
        let pid = tenant.process.0.id().cast_signed();
        PidFd::open(pid).unwrap().duplicate(number).unwrap()
    }

    pub(crate) fn replayed(&self) -> u64 {
        self.container.counters.value(Counter::Replayed)
    }

    pub(crate) fn continued(&self) -> u64 {
        self.container.counters.value(Counter::Continued)
    }

    /// Nothing is reserved, the ledger's own rules hold, and it agrees with the driver.
    pub(crate) fn assert_exact(&self, bytes: u64) {
        let state = self.container.journal.change();
        let ledger = &state.ledger;
        let snapshot = ledger.snapshot();
        assert_eq!((snapshot.reservations, snapshot.pins), (0, 0));
        assert_eq!(ledger.check_invariants(), Ok(()));
        assert_eq!(
            (ledger.used(CardSlot(0)), self.fake.held_bytes()),
            (bytes, bytes),
            "(ledger, driver)"
        );
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.container.share.end();
        for session in self.sessions.lock().unwrap().iter() {
            session.end();
        }
        self.reaper.end();
        let events = self.events.take().unwrap().join();
        if !std::thread::panicking() {
            assert!(!self.fake.is_wedged(), "a call without its destination");
            events.unwrap();
        }
    }
}

/// Of a memory that somebody may go on with.
fn copy(memory: &OwnedFd) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let mut copy = tempfile::tempfile().unwrap();
    std::io::copy(&mut File::open(path).unwrap(), &mut copy).unwrap();
    copy.into()
}

/// Waits for what happens in another thread or process.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
