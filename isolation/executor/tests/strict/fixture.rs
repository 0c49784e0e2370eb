//! A simulator, an executor under the played driver, a broker's insides in front of it, and tenants.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::share::Sources;
use broker::account::{Slot, uuid_bytes};
use broker::container::{Container, Parts};
use broker::health::Plan;
use broker::reaper::Reaper;
use broker::workers::{Session, WAKE_SIGNAL};
use cards::{ComputeTerms, GpuUuid, SimulatedInventory};
use driver::executor::ExecutorDriver;
use driver::kernel::Facts;
use driver::nodes::Nodes;
use driver::{
    Binding, Call, Caller, CardIdentity, CardSum, Driver, Error, Executed, FileId, FileKind,
    FileRef, ImplicitBytes, RequestedCard, Ticket,
};
use ledger::CardSlot;
use nvabi::Release;
use nvabi::call::Descriptor;
use nvabi::capability::Capabilities;
use rmclient::{Client, Form, Nodes as ClientNodes};
use rmprogram::{CardMemory, GpuRange, Uvm};
use sys::seccomp::Wait;
use verdict::Policy;
use verdict::policy::{CardFigures, RegisteredMemory, SameUser};

use crate::alone::facts;
use crate::kernel::{CallingThread, Kernel, Native};
use crate::launch::{self, WITH_FILTER};
use crate::tenant::{Process, Tenant};

/// A tenant that is the project's own open client.
pub(crate) const CLIENT: &str = "client";
/// One word for it.
pub(crate) const WORD: &str = "CGPU_TEST_WORD";
/// Where it finds the card's files.
pub(crate) const NODES: &str = "CGPU_TEST_NODES";

pub(crate) const MIB: u64 = 1 << 20;
/// More than any answer takes that comes at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const PROFILE: &str = "[driver]\nversion = \"570.195.03\"\n[[card]]\nname = \"Simulated\"\nmemory_mib = 1024\narchitecture = \"ada\"\ncount = 2\n";
const TWO_CARDS: &str = "[driver]\nversion = \"570.195.03\"\n[[card]]\nname = \"First\"\nmemory_mib = 1024\narchitecture = \"blackwell\"\n[[card]]\nname = \"Second\"\nmemory_mib = 1024\narchitecture = \"blackwell\"\n[[nvlink]]\ncards = [0, 1]\ncount = 2\n[[nvlink]]\ncards = [0]\n[[boost_group]]\ncards = [1]\n[[boost_group]]\ncards = [0, 1]\n";

/// What is taken for objects of a card of [`Fixture::of_generation`].
pub(crate) const CONTEXTS: ImplicitBytes = ImplicitBytes {
    channel_group: 32 * MIB,
    other_group: 2 * MIB,
    channel: 256 << 10,
    va_space: 0,
};

/// A struct and its blocks.
pub(crate) type Blocks = Vec<Vec<u8>>;

/// Who makes a container's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `cgpu-executor`.
    Strict,
    /// The broker's own process.
    Compat,
}

/// What some stages have.
#[derive(Default)]
struct Extras {
    plan: Plan,
    patience: Option<Duration>,
    requests: Option<ComputeTerms>,
    profile: Option<String>,
    /// The driver does not say beforehand how it numbers its cards, as a real one does not.
    unnumbered: bool,
    /// All of the cards are granted, not the first alone.
    all_granted: bool,
    implicit: ImplicitBytes,
    context_bytes: Option<u64>,
    policy: Policy,
}

enum Way {
    Strict(Arc<ExecutorDriver>),
    Compat(CallingThread, Facts),
}

/// The driver of a mode, with what a real card's calls would have taught, and the binding of choice: a tenant in front of
/// plain files cannot make those calls that are left to it.
struct Front {
    way: Way,
    native: Native,
    cards: Vec<CardIdentity>,
    binding: Arc<Mutex<Binding>>,
    implicit: ImplicitBytes,
    here: Arc<Mutex<Vec<Blocks>>>,
}

/// A process under the filter, which ends when this is dropped.
pub(crate) type Confined = (Tenant, Process);

pub(crate) struct Fixture {
    pub(crate) kernel: Kernel,
    pub(crate) container: Arc<Container>,
    executor: Option<Arc<ExecutorDriver>>,
    binding: Arc<Mutex<Binding>>,
    /// What was asked for with the calling thread's own rights: nobody plays a driver for the threads of a test.
    pub(crate) here: Arc<Mutex<Vec<Blocks>>>,
    reaper: Arc<Reaper>,
    folder: tempfile::TempDir,
    _server: sim::Server,
    sessions: Mutex<Vec<Arc<Session>>>,
}

impl Fixture {
    pub(crate) fn new(quota_bytes: u64, binding: Binding) -> Self {
        Self::built(quota_bytes, binding, Mode::Strict, Extras::default())
    }

    /// With a watch, and with less patience for the driver's sums than usual.
    pub(crate) fn watched(plan: Plan, patience: Duration) -> Self {
        let extras = Extras {
            plan,
            patience: Some(patience),
            ..Extras::default()
        };
        Self::built(64 * MIB, Binding::Executor, Mode::Strict, extras)
    }

    /// With a share of the card's time.
    pub(crate) fn sharing(mode: Mode, requests: ComputeTerms) -> Self {
        let extras = Extras {
            requests: Some(requests),
            ..Extras::default()
        };
        Self::built(64 * MIB, Binding::None, mode, extras)
    }

    /// Under the policy of a real card's strict mode: what is shared with a user is shared with the container.
    pub(crate) fn narrowing(quota_bytes: u64, binding: Binding) -> Self {
        let policy = Policy {
            same_user: SameUser::Narrow,
            card_figures: CardFigures::Show,
            registered_memory: RegisteredMemory::Allow,
            ..Policy::default()
        };
        let extras = Extras {
            policy,
            ..Extras::default()
        };
        Self::built(quota_bytes, binding, Mode::Strict, extras)
    }

    /// In front of two cards, of which the first is granted.
    pub(crate) fn of_two_cards(quota_bytes: u64) -> Self {
        let extras = Extras {
            profile: Some(TWO_CARDS.to_owned()),
            ..Extras::default()
        };
        Self::built(quota_bytes, Binding::Executor, Mode::Strict, extras)
    }

    /// The same, and how the cards are numbered is learnt from answers alone.
    pub(crate) fn of_two_unnumbered_cards(quota_bytes: u64) -> Self {
        let extras = Extras {
            profile: Some(TWO_CARDS.to_owned()),
            unnumbered: true,
            ..Extras::default()
        };
        Self::built(quota_bytes, Binding::Executor, Mode::Strict, extras)
    }

    /// The same, and both are granted.
    pub(crate) fn of_two_granted_cards(quota_bytes: u64) -> Self {
        let extras = Extras {
            profile: Some(TWO_CARDS.to_owned()),
            unnumbered: true,
            all_granted: true,
            ..Extras::default()
        };
        Self::built(quota_bytes, Binding::Executor, Mode::Strict, extras)
    }

    /// In front of a driver whose contexts are declared to take something, and of cards that take so much for one.
    pub(crate) fn with_contexts(
        quota_bytes: u64,
        implicit: ImplicitBytes,
        context_bytes: u64,
    ) -> Self {
        let extras = Extras {
            implicit,
            context_bytes: Some(context_bytes),
            ..Extras::default()
        };
        Self::built(quota_bytes, Binding::Executor, Mode::Strict, extras)
    }

    /// In front of a card of an architecture whose contexts and channels take something, for a container with these capabilities.
    pub(crate) fn of_generation(architecture: &str, capabilities: Capabilities) -> Self {
        let profile = format!(
            "[driver]\nversion = \"570.195.03\"\n[[card]]\nname = \"Simulated\"\nmemory_mib = 1024\narchitecture = {architecture:?}\n\
             video_frame_us = 1000\n"
        );
        let policy = Policy {
            capabilities,
            ..Policy::default()
        };
        let extras = Extras {
            profile: Some(profile),
            implicit: CONTEXTS,
            context_bytes: Some(CONTEXTS.channel_group),
            policy,
            ..Extras::default()
        };
        Self::built(128 * MIB, Binding::None, Mode::Strict, extras)
    }

    fn built(quota_bytes: u64, binding: Binding, mode: Mode, extras: Extras) -> Self {
        sys::signal::interrupts(WAKE_SIGNAL).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let profile = extras.profile.as_deref().unwrap_or(PROFILE);
        let text = match extras.context_bytes {
            Some(bytes) => {
                let ImplicitBytes {
                    channel_group,
                    other_group,
                    channel,
                    va_space,
                } = extras.implicit;
                format!(
                    "{profile}context_bytes = {bytes}\n[implicit]\nchannel_group_bytes = {channel_group}\n\
                     other_group_bytes = {other_group}\nchannel_bytes = {channel}\nva_space_bytes = {va_space}\n"
                )
            }
            None => profile.to_owned(),
        };
        let profile = sim::Profile::parse(&folder.path().join("p"), &text).unwrap();
        let server = sim::Server::bind(profile, folder.path()).unwrap();
        server.start().unwrap();
        let sim_socket = SimulatedInventory::socket_path(folder.path());
        let facts = facts(Nodes::below(&sim_socket.with_file_name("dev")).unwrap());
        let (kernel, way) = match mode {
            Mode::Strict => {
                let socket = folder.path().join("executor.sock");
                let kernel = Kernel::start(&socket, &sim_socket);
                let nodes = sim_socket.with_file_name("dev");
                let patience = extras.patience.unwrap_or(PATIENCE);
                let executor = ExecutorDriver::connect(&socket, facts)
                    .unwrap()
                    .asking_by(nodes, patience);
                (kernel, Way::Strict(Arc::new(executor)))
            }
            Mode::Compat => {
                let (kernel, calling) = Kernel::here(facts.clone(), &sim_socket);
                (kernel, Way::Compat(calling, facts))
            }
        };
        let executor = match &way {
            Way::Strict(executor) => Some(Arc::clone(executor)),
            Way::Compat(..) => None,
        };
        let here = Arc::default();
        let binding = Arc::new(Mutex::new(binding));
        let granted = match extras.all_granted {
            true => kernel.sim().cards(),
            false => &kernel.sim().cards()[..1],
        };
        let slot = |card: &CardIdentity| Slot {
            uuid: card.uuid.clone(),
            uuid_bytes: uuid_bytes(&card.uuid).unwrap(),
            minor: card.minor,
            quota_bytes,
        };
        let slots: Vec<Slot> = granted.iter().map(slot).collect();
        let uuids = slots.iter().map(|slot| GpuUuid::new(&slot.uuid).unwrap());
        let uuids = uuids.collect();
        let cards = match extras.unnumbered {
            true => Vec::new(),
            false => kernel.sim().cards().to_vec(),
        };
        let front = Front {
            way,
            native: kernel.native(),
            cards,
            binding: Arc::clone(&binding),
            implicit: extras.implicit,
            here: Arc::clone(&here),
        };
        let release = Release::R570;
        let name = "tests/strict".to_owned();
        let mut parts = Parts::new(name, release, Box::new(front), slots);
        parts.health = extras.plan;
        parts.call_rules.policy = extras.policy;
        if let Some(requests) = extras.requests {
            let state_dir = Some(folder.path().to_owned());
            let sources = Sources::new(state_dir, requests, uuids);
            let nodes = sim_socket.with_file_name("dev");
            parts.share = sources.with_nodes(nodes);
        }
        let container = Arc::new(Container::alone(parts).unwrap());
        let reaper = Arc::new(Reaper::new().unwrap());
        Self {
            kernel,
            container,
            executor,
            binding,
            here,
            reaper,
            folder,
            _server: server,
            sessions: Mutex::default(),
        }
    }

    pub(crate) fn executor(&self) -> &ExecutorDriver {
        self.executor.as_ref().unwrap()
    }

    /// From now on the container's calls are bound so.
    pub(crate) fn bind(&self, binding: Binding) {
        *self.binding.lock().unwrap() = binding;
    }

    pub(crate) fn nodes(&self) -> PathBuf {
        SimulatedInventory::socket_path(self.folder.path()).with_file_name("dev")
    }

    pub(crate) fn state_dir(&self) -> &Path {
        self.folder.path()
    }

    /// Another container's executor on the same cards.
    pub(crate) fn another(&self) -> (Kernel, ExecutorDriver) {
        let socket = self.folder.path().join("another.sock");
        let kernel = Kernel::start(
            &socket,
            &SimulatedInventory::socket_path(self.folder.path()),
        );
        let facts = facts(Nodes::below(&self.nodes()).unwrap());
        let executor = ExecutorDriver::connect(&socket, facts).unwrap();
        (kernel, executor.asking_by(self.nodes(), PATIENCE))
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("executor.sock")
    }

    /// A program that has the card's node open, as it must natively for a device of it.
    pub(crate) fn tenant(&self) -> Confined {
        let confined = self.tenant_without_card();
        confined.0.open(&self.nodes().join("nvidia0"));
        confined
    }

    pub(crate) fn tenant_without_card(&self) -> Confined {
        let (child, socket) = launch::start(WITH_FILTER).unwrap();
        self.serve(launch::listener(&socket).unwrap());
        (Tenant::new(socket), Process(child))
    }

    /// The open client's process, and the socket on which it says how far it is.
    pub(crate) fn client(&self) -> (Child, OwnedFd) {
        self.process(CLIENT, "")
    }

    /// A process that confines itself and plays a role, with a word for it, and the socket between us.
    pub(crate) fn process(&self, role: &str, word: &str) -> (Child, OwnedFd) {
        let (ours, theirs) = launch::pair().unwrap();
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .env(launch::ROLE, role)
            .env(NODES, self.nodes())
            .env(WORD, word)
            .stdin(std::process::Stdio::from(theirs))
            .spawn()
            .unwrap();
        self.serve(launch::listener(&ours).unwrap());
        (child, ours)
    }

    fn serve(&self, listener: OwnedFd) {
        let (container, reaper) = (Arc::clone(&self.container), Arc::clone(&self.reaper));
        let mut sessions = self.sessions.lock().unwrap();
        let token = sessions.len() as u64 + 1;
        sessions.push(Session::start(listener, token, container, reaper).unwrap());
    }

    /// Closes what nobody in the container holds any more.
    pub(crate) fn reconcile(&self) {
        self.reaper.reconcile(&self.container);
    }

    /// With what is reserved for calls under way.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.container.journal.change().ledger.used(CardSlot(0))
    }

    /// The ledger holds these bytes, its rules hold, and the cards count the same.
    pub(crate) fn assert_exact(&self, bytes: u64) {
        let state = self.container.journal.change();
        let ledger = &state.ledger;
        assert_eq!(ledger.check_invariants(), Ok(()));
        assert_eq!(
            (ledger.used(CardSlot(0)), self.kernel.held_bytes()),
            (bytes, bytes),
            "(ledger, cards)"
        );
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for session in self.sessions.lock().unwrap().iter() {
            session.end();
        }
    }
}

/// In the client's process: from the first call to the last, a word after each step and a pause for it to be looked at.
pub(crate) fn client() -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    launch::confine(&socket, Wait::Interruptible)?;
    let step = |word: &str| {
        sys::fd_passing::send(socket.as_fd(), word.as_bytes(), &[]).unwrap();
        sys::fd_passing::receive(socket.as_fd(), &mut [0; 8]).unwrap();
    };
    let nodes = ClientNodes::in_dir(std::env::var_os(NODES).unwrap());
    let client = Client::connect(&nodes).unwrap();
    let cards = client.cards().unwrap();
    let card = &cards[0];
    let memory = card.allocate(Form::Short, 32 * MIB).unwrap();
    let other = card.allocate(Form::Long, 8 * MIB).unwrap();
    let third = card.allocate(Form::Long, 8 * MIB).unwrap();
    step("allocated");
    card.allocate(Form::Short, 32 * MIB).unwrap_err();
    let uvm = Uvm::open(&client).unwrap();
    let uuid = card.uuid().unwrap();
    uvm.register(uuid).unwrap();
    let va_space = card.va_space().unwrap();
    uvm.register_va_space(uuid, va_space).unwrap();
    let at = GpuRange {
        base: 0x7f00_0000_0000,
        length_bytes: 32 * MIB,
    };
    uvm.create_range(at).unwrap();
    uvm.map(at, uuid, memory.handle).unwrap();
    card.free(memory.handle).unwrap();
    step("mapped and freed");
    uvm.unmap(at, uuid).unwrap();
    uvm.free_range(at).unwrap();
    card.free(other.handle).unwrap();
    card.free(third.handle).unwrap();
    let mapped = card.allocate(Form::Short, MIB).unwrap();
    // A file of the mapping's own is named in the struct; the plain file behind it holds no memory of a card.
    let _refused_by_the_file = card.map(mapped.handle, MIB);
    card.free(mapped.handle).unwrap();
    step("unmapped");
    Ok(())
}

/// Whether a call of a tenant's stays with it in strict mode: the driver pins pages of the process that makes it.
fn pins_the_callers_pages(call: &Call) -> bool {
    let row = nvabi::escape::row(call.cmd, Release::R570);
    let class = call.segments.first().and_then(|first| {
        let at = nvabi::layout::nvos02::H_CLASS;
        nvabi::bytes::u32_at(&first.bytes, at)
    });
    row.is_some_and(|row| row.id == nvabi::escape::Id::AllocMemory)
        && class == Some(nvabi::class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)
}

impl Driver for Front {
    fn version(&self) -> &str {
        match &self.way {
            Way::Strict(executor) => executor.version(),
            Way::Compat(_, facts) => &facts.version,
        }
    }

    fn cards(&self) -> &[CardIdentity] {
        &self.cards
    }

    fn implicit(&self) -> ImplicitBytes {
        self.implicit
    }

    fn classify(&self, fd: BorrowedFd<'_>) -> Option<FileKind> {
        match &self.way {
            Way::Strict(executor) => executor.classify(fd),
            Way::Compat(_, facts) => facts.nodes.kind(fd),
        }
    }

    fn execute(
        &self,
        file: FileRef<'_>,
        caller: Caller,
        ticket: Ticket,
        call: &mut Call,
    ) -> Result<Executed, Error> {
        if ticket.as_native().is_some() || pins_the_callers_pages(call) {
            return self.native.execute(file, caller, call);
        }
        match &self.way {
            Way::Strict(executor) => {
                // A broker in front of a card looks up no number that the driver keeps as a name: the executor gets no file to put
                // its own number in the place of.
                let row = nvabi::escape::row(call.cmd, Release::R570);
                if let Some(Descriptor::Named(_)) = row.and_then(|row| row.descriptor) {
                    call.fds.clear();
                }
                let mut done = executor.execute(file, caller, ticket, call)?;
                done.new_file = done.new_file.or_else(|| self.native.mapped(call));
                Ok(done)
            }
            Way::Compat(calling, _) => calling.execute(file, call),
        }
    }

    fn execute_here(&self, _file: FileRef<'_>, call: &mut Call) -> Result<Executed, Error> {
        let blocks = call.segments.iter().map(|block| block.bytes.clone());
        self.here.lock().unwrap().push(blocks.collect());
        Ok(Executed::default())
    }

    fn binding(&self) -> Binding {
        *self.binding.lock().unwrap()
    }

    fn is_fake(&self) -> bool {
        true
    }

    fn process(&self) -> Option<i32> {
        match &self.way {
            Way::Strict(executor) => executor.process(),
            Way::Compat(..) => None,
        }
    }

    fn sums(&self, cards: &[RequestedCard<'_>]) -> Result<Option<Vec<CardSum>>, Error> {
        match &self.way {
            Way::Strict(executor) => executor.sums(cards),
            Way::Compat(..) => Ok(None),
        }
    }

    fn reach(&self) -> Result<(), Error> {
        match &self.way {
            Way::Strict(executor) => executor.reach(),
            Way::Compat(..) => Ok(()),
        }
    }

    fn held(&self) -> Result<Vec<FileId>, Error> {
        match &self.way {
            Way::Strict(executor) => executor.held(),
            Way::Compat(..) => Ok(Vec::new()),
        }
    }

    fn held_changes(&self) -> Option<u64> {
        match &self.way {
            Way::Strict(executor) => executor.held_changes(),
            Way::Compat(..) => None,
        }
    }

    fn closed(&self, file: FileId) -> Result<(), Error> {
        match &self.way {
            Way::Strict(executor) => executor.closed(file),
            Way::Compat(..) => Ok(()),
        }
    }
}
