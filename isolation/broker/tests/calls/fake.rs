//! A driver behind the trait that keeps objects as RM does, records every call, and can be made to wait.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use driver::{
    Binding, Call, Caller, CardIdentity, CardSum, Driver, Error, Executed, FileId, FileKind,
    FileRef, ImplicitBytes, Incident, RequestedCard, Ticket,
};
use nix::sys::stat::fstat;
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::class::{NV01_MEMORY_VIRTUAL, PARAMS_WINDOW};
use nvabi::layout::{
    card_info, disable_channels, import_object, memory_params, nvos00, nvos21, nvos46, nvos54,
    nvos55, virtual_params,
};
use nvabi::{Release, control, escape, status, uvm};

use crate::rm;

/// The granted card.
pub(crate) const UUID: &str = "GPU-00000000-0000-0000-0000-0000000000a1";
/// What the card itself has; the views must hide it.
pub(crate) const CARD_KIB: u32 = 24 << 20;
/// The driver rounds sizes up to this.
pub(crate) const GRANULE: u64 = 64 << 10;

/// A call as it reached the driver.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) cmd: u32,
    pub(crate) file: FileId,
    pub(crate) caller: Caller,
    pub(crate) segments: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<(u64, u64), FileKind>,
    clients: HashMap<u32, FileId>,
    /// The control file of each file that is registered with one.
    registered: HashMap<FileId, FileId>,
    objects: Objects,
    /// Channels and groups that may not run.
    stopped: HashSet<(u32, u32)>,
    /// By client and channel group, microseconds.
    timeslices: HashMap<(u32, u32), u64>,
    seen: Vec<Seen>,
    /// When a gate was opened (`true`) or closed.
    turns: Vec<(Instant, bool)>,
    /// A handle was to be made below an object that is not there, or memory to be mapped by what has no address space any more.
    is_wedged: bool,
    /// The address spaces of virtual memory.
    spaces: HashMap<(u32, u32), u32>,
    /// The most that all objects ever held at once.
    peak_bytes: u64,
    next_handle: u32,
    next_client: u32,
    /// Calls with this number (and class, for allocations) wait.
    held_back: Option<(u32, Option<u32>)>,
    /// Of these, those of this file alone.
    held_file: Option<FileId>,
    waiting: usize,
    /// The next call with this number is carried out, and its answer does not come.
    lost: Option<u32>,
    /// Calls whose answers do not come yet.
    unanswered: usize,
}

/// The driver.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    /// Absent: 570.195.03.
    version: Option<&'static str>,
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) allocated: AtomicU64,
    pub(crate) freed: AtomicU64,
    pub(crate) closed: AtomicU64,
    /// Whether it cannot be told of closed files.
    pub(crate) hears_of_no_close: AtomicBool,
    /// How often it was asked which files it holds, and how often that has changed.
    pub(crate) held_requests: AtomicU64,
    pub(crate) held_changes: AtomicU64,
    /// What it replies then.
    pub(crate) kept_files: Mutex<BTreeSet<FileId>>,
    /// Bytes that its sums have and no object: as if something had got past the broker.
    pub(crate) leaked_bytes: AtomicU64,
    /// What it reports, all of it.
    pub(crate) incidents: Mutex<Vec<Incident>>,
    /// Sizes are rounded up to this as well, whatever page was asked for: a rule that no verdict knows.
    pub(crate) rounds_to_bytes: AtomicU64,
    /// Every call takes a time up to this many microseconds, ever another one.
    pub(crate) slow_micros: AtomicU64,
    /// So often it is found that a second file of nvidia-uvm keeps the first one.
    pub(crate) second_files: AtomicU64,
    /// Whether no call is executed.
    pub(crate) does_not_answer: AtomicBool,
    /// Whether it plays an executor of a real driver.
    pub(crate) is_bound: AtomicBool,
    /// Whether it plays a real driver whose calls are executed in their callers: those that a broker hands back do not reach it.
    pub(crate) is_compat: AtomicBool,
    /// Controls and classes that it refuses, with their statuses.
    pub(crate) refused: Mutex<HashMap<u32, u32>>,
    /// The same for one client's alone: by control and client.
    pub(crate) refused_for: Mutex<HashMap<(u32, u32), u32>>,
    /// What it takes by itself.
    pub(crate) implicit: Mutex<ImplicitBytes>,
    turn: AtomicU64,
    cards: Vec<CardIdentity>,
}

impl Fake {
    pub(crate) fn new() -> Arc<Self> {
        Self::of_version(None)
    }

    pub(crate) fn of_version(version: Option<&'static str>) -> Arc<Self> {
        Arc::new(Self {
            version,
            cards: vec![CardIdentity {
                uuid: UUID.to_owned(),
                minor: 0,
                gpu_id: 0x100,
                device_instance: 0,
                memory_bytes: u64::from(CARD_KIB) << 10,
            }],
            second_files: AtomicU64::new(u64::MAX),
            ..Self::default()
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn add_node(&self, path: &std::path::Path, kind: FileKind) {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(path).unwrap();
        self.lock().nodes.insert((meta.dev(), meta.ino()), kind);
    }

    /// Bytes that its objects hold.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.lock().objects.bytes
    }

    /// Whether a real driver might not answer any more.
    pub(crate) fn is_wedged(&self) -> bool {
        self.lock().is_wedged
    }

    /// The most that its objects ever held at once.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.lock().peak_bytes
    }

    pub(crate) fn client_count(&self) -> usize {
        self.lock().clients.len()
    }

    /// A root client that the kernel has had made by a caller, on a file that the driver has seen.
    pub(crate) fn client_of_the_kernel(&self, file: FileId) -> u32 {
        let mut state = self.lock();
        let file = state.bound(file);
        state.new_client(file)
    }

    /// Whether a channel is disabled, or a channel or group off its runlist.
    pub(crate) fn is_stopped(&self, client: u32, object: u32) -> bool {
        self.lock().stopped.contains(&(client, object))
    }

    /// An object ends, and the broker is not told.
    pub(crate) fn lose(&self, client: u32, object: u32) {
        self.lock().objects.remove((client, object));
    }

    /// When gates were opened (`true`) and closed since this was last asked.
    pub(crate) fn take_turns(&self) -> Vec<(Instant, bool)> {
        std::mem::take(&mut self.lock().turns)
    }

    pub(crate) fn timeslice(&self, client: u32, group: u32) -> Option<u64> {
        self.lock().timeslices.get(&(client, group)).copied()
    }

    /// The controls of a number that reached it.
    pub(crate) fn controls(&self, cmd: u32) -> Vec<Seen> {
        let mut seen = self.seen();
        seen.retain(|seen| {
            seen.cmd & 0xff == 0x2a && u32_at(&seen.segments[0], nvos54::CMD) == Some(cmd)
        });
        seen
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.lock().seen.clone()
    }

    /// Lets calls of a number wait until [`Fake::let_go`].
    pub(crate) fn hold_back(&self, cmd: u32, class: Option<u32>) {
        self.lock().held_back = Some((cmd & 0xff, class));
    }

    /// Waits until that many calls wait.
    pub(crate) fn wait_for_held(&self, count: usize) {
        let end = Instant::now() + Duration::from_secs(10);
        let mut state = self.lock();
        while state.waiting < count {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} calls came", state.waiting);
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Of the calls that wait, and of those that come, only this file's wait from now on.
    pub(crate) fn hold_back_only(&self, file: FileId) {
        self.lock().held_file = Some(file);
        self.changed.notify_all();
    }

    pub(crate) fn let_go(&self) {
        let mut state = self.lock();
        (state.held_back, state.held_file) = (None, None);
        drop(state);
        self.changed.notify_all();
    }

    /// The next call with this number is carried out and not answered: to its maker it is as if it had not come back.
    pub(crate) fn lose_answer(&self, cmd: u32) {
        self.lock().lost = Some(cmd & 0xff);
    }

    pub(crate) fn has_lost_an_answer(&self) -> bool {
        self.lock().unanswered > 0
    }

    pub(crate) fn find_answers(&self) {
        self.lock().unanswered = 0;
        self.changed.notify_all();
    }

    fn may_lose_the_answer(&self, cmd: u32) {
        let mut state = self.lock();
        if state.lost != Some(cmd & 0xff) {
            return;
        }
        (state.lost, state.unanswered) = (None, 1);
        while state.unanswered > 0 {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn spend_time(&self) {
        let most = self.slow_micros.load(Ordering::Relaxed);
        if most > 0 {
            let turn = self.turn.fetch_add(7919, Ordering::Relaxed);
            let end = Instant::now() + Duration::from_micros(turn % most);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        }
    }

    fn alloc(&self, state: &mut State, file: FileId, call: &mut Call) -> u32 {
        let (arg, rest) = call.segments.split_first_mut().unwrap();
        let word = |at| u32_at(&arg.bytes, at).unwrap();
        let (client, parent, needed, class) = (
            word(nvos21::H_ROOT),
            word(nvos21::H_PARENT),
            word(nvos21::H_NEW),
            word(nvos21::H_CLASS),
        );
        let handle = if class == 0 || class == rm::ROOT {
            if state.clients.contains_key(&needed) {
                return status::NV_ERR_INSERT_DUPLICATE_NAME;
            }
            match needed {
                0 => state.new_client(file),
                _ => {
                    state.clients.insert(needed, file);
                    needed
                }
            }
        } else {
            if !state.clients.contains_key(&client) {
                return status::NV_ERR_INVALID_CLIENT;
            }
            let handle = if needed == 0 {
                state.next_handle += 1;
                0xcaf0_0000 + state.next_handle
            } else {
                needed
            };
            if state.objects.contains_key(&(client, handle)) {
                return status::NV_ERR_INSERT_DUPLICATE_NAME;
            }
            let mut bytes = 0;
            if class == rm::VIDMEM {
                let params = &mut rest[0].bytes;
                bytes = u64_at(params, memory_params::SIZE).unwrap();
                let page = page_of(params).max(self.rounds_to_bytes.load(Ordering::SeqCst));
                bytes = bytes.max(1).next_multiple_of(page);
                put_u64(params, memory_params::SIZE, bytes);
                self.allocated.fetch_add(1, Ordering::SeqCst);
            } else if let Some(params) = rest.first_mut() {
                assert!(params.bytes.len() <= PARAMS_WINDOW as usize);
                if let Some(first) = params.bytes.first_mut() {
                    *first = first.wrapping_add(1);
                }
            }
            if class == NV01_MEMORY_VIRTUAL {
                let space = u32_at(&rest[0].bytes, virtual_params::H_VA_SPACE).unwrap();
                state.spaces.insert((client, handle), space);
            }
            state.objects.insert((client, handle), (parent, bytes));
            state.peak_bytes = state.peak_bytes.max(state.objects.bytes);
            handle
        };
        put_u32(&mut arg.bytes, nvos21::H_NEW, handle);
        status::NV_OK
    }

    fn free(&self, state: &mut State, arg: &[u8]) -> u32 {
        let word = |at| u32_at(arg, at).unwrap();
        let (client, object) = (word(nvos00::H_ROOT), word(nvos00::H_OLD));
        if client == object {
            return match state.drop_client(client) {
                true => status::NV_OK,
                false => status::NV_ERR_INVALID_CLIENT,
            };
        }
        if !state.objects.remove((client, object)) {
            return status::NV_ERR_OBJECT_NOT_FOUND;
        }
        self.freed.fetch_add(1, Ordering::SeqCst);
        let mut below = vec![object];
        while let Some(parent) = below.pop() {
            for child in state.objects.below(client, parent) {
                state.objects.remove((client, child));
                below.push(child);
            }
        }
        status::NV_OK
    }
}

/// The page that both attributes ask for.
fn page_of(params: &[u8]) -> u64 {
    let attr = u32_at(params, memory_params::ATTR).unwrap();
    let attr2 = u32_at(params, memory_params::ATTR2).unwrap();
    match attr & memory_params::ATTR_PAGE_SIZE_MASK {
        memory_params::ATTR_PAGE_SIZE_HUGE => match attr2 & memory_params::ATTR2_HUGE_MASK {
            memory_params::ATTR2_HUGE_512M => 512 << 20,
            memory_params::ATTR2_HUGE_256G => 256 << 30,
            _ => 2 << 20,
        },
        _ => GRANULE,
    }
}

/// As many as a broker lets a tenant have: each is found by its name, or below its parent.
#[derive(Debug, Default)]
struct Objects {
    /// By client and handle: parent, bytes.
    by_name: BTreeMap<(u32, u32), (u32, u64)>,
    /// Client, parent and handle.
    by_parent: BTreeSet<(u32, u32, u32)>,
    /// Of all of them.
    bytes: u64,
}

impl Objects {
    fn contains_key(&self, name: &(u32, u32)) -> bool {
        self.by_name.contains_key(name)
    }

    fn insert(&mut self, name: (u32, u32), (parent, bytes): (u32, u64)) {
        self.remove(name);
        self.by_name.insert(name, (parent, bytes));
        self.by_parent.insert((name.0, parent, name.1));
        self.bytes += bytes;
    }

    fn remove(&mut self, name: (u32, u32)) -> bool {
        let Some((parent, bytes)) = self.by_name.remove(&name) else {
            return false;
        };
        self.by_parent.remove(&(name.0, parent, name.1));
        self.bytes -= bytes;
        true
    }

    fn below(&self, client: u32, parent: u32) -> Vec<u32> {
        let all = (client, parent, 0)..=(client, parent, u32::MAX);
        self.by_parent
            .range(all)
            .map(|(_, _, handle)| *handle)
            .collect()
    }
}

impl State {
    /// The file that a client which a call on a file makes is bound to.
    fn bound(&self, file: FileId) -> FileId {
        self.registered.get(&file).copied().unwrap_or(file)
    }

    fn new_client(&mut self, file: FileId) -> u32 {
        self.next_client += 1;
        let handle = 0xc1d0_0000 + self.next_client;
        self.clients.insert(handle, file);
        handle
    }

    /// Below an object that is not there some drivers make no handle, and never answer again.
    fn look_for_destination(&mut self, client: u32, parent: u32) {
        let is_root = client == parent && self.clients.contains_key(&client);
        self.is_wedged |= !is_root && !self.objects.contains_key(&(client, parent));
    }

    /// Virtual memory goes with its address space, and some drivers do not look whether it has.
    fn map_dma(&mut self, arg: &[u8]) -> u32 {
        let word = |at| u32_at(arg, at).unwrap();
        let mapper = (word(nvos46::H_CLIENT), word(nvos46::H_DMA));
        let space = self.spaces.get(&mapper);
        let is_there = space.is_some_and(|space| self.objects.contains_key(&(mapper.0, *space)));
        self.is_wedged |= !is_there;
        status::NV_OK
    }

    fn drop_client(&mut self, client: u32) -> bool {
        let all = self.objects.by_name.range((client, 0)..=(client, u32::MAX));
        let all: Vec<(u32, u32)> = all.map(|(name, _)| *name).collect();
        for name in all {
            self.objects.remove(name);
        }
        self.clients.remove(&client).is_some()
    }
}

/// The bytes of an export are the ledger's to count: here an import is another handle for nothing.
fn import(state: &mut State, call: &mut Call) -> u32 {
    let client = u32_at(&call.segments[0].bytes, nvos54::H_CLIENT).unwrap();
    let params = &mut call.segments[1].bytes;
    let word = |at| u32_at(params, at).unwrap();
    let (parent, needed) = (word(import_object::H_PARENT), word(import_object::H_OBJECT));
    if state.objects.contains_key(&(client, needed)) {
        return status::NV_ERR_INSERT_DUPLICATE_NAME;
    }
    state.look_for_destination(client, parent);
    state.objects.insert((client, needed), (parent, 0));
    status::NV_OK
}

fn answer_control(state: &mut State, file: FileId, call: &mut Call) -> u32 {
    let word = |at| u32_at(&call.segments[0].bytes, at).unwrap();
    let (cmd, client, object) = (
        word(nvos54::CMD),
        word(nvos54::H_CLIENT),
        word(nvos54::H_OBJECT),
    );
    if let Some(params) = call.segments.get_mut(1)
        && let Some(status) = schedule(state, file, (client, object), cmd, &mut params.bytes)
    {
        return status;
    }
    if cmd == control::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD {
        return import(state, call);
    }
    if cmd == control::NV2080_CTRL_CMD_FB_GET_INFO_V2 {
        let params = &mut call.segments[1].bytes;
        let count = u32_at(params, 0).unwrap() as usize;
        for entry in params[4..].chunks_exact_mut(8).take(count) {
            put_u32(entry, 4, CARD_KIB);
        }
    }
    status::NV_OK
}

/// The scheduler's controls. As the driver's, they want the very file that the client was made on.
fn schedule(
    state: &mut State,
    file: FileId,
    name: (u32, u32),
    cmd: u32,
    params: &mut [u8],
) -> Option<u32> {
    let (is_on, names) = match cmd {
        control::NV2080_CTRL_CMD_CE_GET_ALL_CAPS => {
            // Of the copy engines the second is on the runlist of graphics.
            params[2] = 1;
            return Some(status::NV_OK);
        }
        control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS => {
            let count = u32_at(params, disable_channels::COUNT).unwrap() as usize;
            let entry = |list: usize, index: usize| u32_at(params, list + 4 * index).unwrap();
            let listed = (0..count).map(|index| {
                let client = entry(disable_channels::CLIENTS, index);
                (client, entry(disable_channels::CHANNELS, index))
            });
            (params[disable_channels::DISABLE] == 0, listed.collect())
        }
        control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE | control::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE => {
            (params[0] != 0, vec![name])
        }
        control::NVA06C_CTRL_CMD_SET_TIMESLICE | control::NVA06C_CTRL_CMD_GET_TIMESLICE => {
            if !state.objects.contains_key(&name) {
                return Some(status::NV_ERR_OBJECT_NOT_FOUND);
            }
            if cmd == control::NVA06C_CTRL_CMD_SET_TIMESLICE {
                let micros = u64_at(params, 0).unwrap();
                state.timeslices.insert(name, micros);
            } else {
                let micros = state.timeslices.get(&name).copied();
                put_u64(params, 0, micros.unwrap_or(1024));
            }
            return Some(status::NV_OK);
        }
        _ => return None,
    };
    if state.clients.get(&name.0) != Some(&file) {
        return Some(status::NV_ERR_INVALID_CLIENT);
    }
    let is_known = |name: &(u32, u32)| state.objects.contains_key(name);
    if !is_known(&name) || !names.iter().all(is_known) {
        return Some(status::NV_ERR_INVALID_OBJECT_HANDLE);
    }
    if cmd == control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS {
        state.turns.push((Instant::now(), is_on));
    }
    for name in names {
        if is_on {
            state.stopped.remove(&name);
        } else {
            state.stopped.insert(name);
        }
    }
    Some(status::NV_OK)
}

fn dup(state: &mut State, arg: &mut [u8]) -> u32 {
    let word = |at| u32_at(arg, at).unwrap();
    let source = (word(nvos55::H_CLIENT_SRC), word(nvos55::H_OBJECT_SRC));
    let (client, parent, handle) = (
        word(nvos55::H_CLIENT),
        word(nvos55::H_PARENT),
        word(nvos55::H_OBJECT),
    );
    if !state.objects.contains_key(&source) {
        return status::NV_ERR_OBJECT_NOT_FOUND;
    }
    state.look_for_destination(client, parent);
    // The memory is the source's: the bytes are not counted twice.
    state.objects.insert((client, handle), (parent, 0));
    status::NV_OK
}

fn unreachable() -> Error {
    Error::Executor {
        socket: String::new(),
        step: "connect",
        source: nix::errno::Errno::EMFILE.into(),
    }
}

/// The trait's implementation, for the broker to own.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) Arc<Fake>);

impl Driver for Handle {
    fn version(&self) -> &str {
        self.0.version.unwrap_or("570.195.03")
    }

    fn cards(&self) -> &[CardIdentity] {
        &self.0.cards
    }

    fn implicit(&self) -> ImplicitBytes {
        *self.0.implicit.lock().unwrap()
    }

    fn binding(&self) -> Binding {
        let is = |plays: &AtomicBool| plays.load(Ordering::Relaxed);
        match (is(&self.0.is_compat), is(&self.0.is_bound)) {
            (true, _) => Binding::Caller,
            (false, true) => Binding::Executor,
            (false, false) => Binding::None,
        }
    }

    fn is_fake(&self) -> bool {
        true
    }

    fn classify(&self, fd: BorrowedFd<'_>) -> Option<FileKind> {
        let stat = fstat(fd).ok()?;
        let nodes = &self.0.lock().nodes;
        nodes.get(&(stat.st_dev, stat.st_ino)).copied()
    }

    fn execute(
        &self,
        file: FileRef<'_>,
        caller: Caller,
        _ticket: Ticket,
        call: &mut Call,
    ) -> Result<Executed, Error> {
        let fake = &*self.0;
        let first = call.segments[0].bytes.clone();
        let mut state = fake.lock();
        state.seen.push(Seen {
            cmd: call.cmd,
            file: file.id,
            caller,
            segments: call
                .segments
                .iter()
                .map(|segment| segment.bytes.clone())
                .collect(),
        });
        if fake.does_not_answer.load(Ordering::SeqCst) {
            return Err(unreachable());
        }
        let class = u32_at(&first, nvos21::H_CLASS);
        state.waiting += 1;
        fake.changed.notify_all();
        while state
            .held_back
            .is_some_and(|(nr, of)| nr == call.cmd & 0xff && of.is_none_or(|of| Some(of) == class))
            && state.held_file.is_none_or(|held| held == file.id)
        {
            state = fake.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
        drop(state);
        fake.spend_time();
        if file.kind == FileKind::Uvm && call.cmd == uvm::UVM_MM_INITIALIZE.cmd {
            // A second file keeps the memory already. The question is another file's about this one.
            let [named] = call.fds.as_slice() else {
                panic!("{:?}", call.fds)
            };
            assert_eq!((named.segment, named.at), (0, 0));
            let (id, kind) = named.file.unwrap();
            assert_eq!(kind, FileKind::Uvm);
            assert_ne!(id, file.id);
            let status = fake.refused.lock().unwrap().get(&call.cmd).copied();
            let more = |left: u64| left.checked_sub(1);
            let found = fake
                .second_files
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
            let status = status.unwrap_or(match found {
                Ok(_) => status::NV_ERR_INVALID_STATE,
                Err(_none) => status::NV_ERR_PAGE_TABLE_NOT_AVAIL,
            });
            put_u32(&mut call.segments[0].bytes, 4, status);
            return Ok(Executed::default());
        }
        let requested = match call.cmd & 0xff {
            0x2b => class,
            0x2a => u32_at(&first, nvos54::CMD),
            _ if call.cmd == uvm::UVM_FREE.cmd && file.kind == FileKind::Uvm => Some(call.cmd),
            _ if [
                uvm::UVM_REGISTER_CHANNEL.cmd,
                uvm::UVM_REGISTER_GPU.cmd,
                uvm::UVM_UNREGISTER_GPU.cmd,
            ]
            .contains(&call.cmd) =>
            {
                Some(call.cmd)
            }
            _ if call.cmd == escape::NV_ESC_FREE_OS_EVENT.cmd(Release::R570) => Some(call.cmd),
            _ => None,
        };
        let refused =
            requested.and_then(|requested| fake.refused.lock().unwrap().get(&requested).copied());
        let client = u32_at(&first, nvos54::H_CLIENT).unwrap_or_default();
        let alone = |requested| {
            fake.refused_for
                .lock()
                .unwrap()
                .get(&(requested, client))
                .copied()
        };
        let refused = refused.or_else(|| requested.and_then(alone));
        let mut state = fake.lock();
        let bound = state.bound(file.id);
        let status = match call.cmd & 0xff {
            _ if refused.is_some() => refused.unwrap(),
            0x2b => fake.alloc(&mut state, bound, call),
            0x29 => fake.free(&mut state, &first),
            0x2a => answer_control(&mut state, bound, call),
            0x34 => dup(&mut state, &mut call.segments[0].bytes),
            0x57 => state.map_dma(&first),
            201 => {
                // A server of its own is shown no descriptors.
                if let Some((control, _)) = call.fds.first().and_then(|slot| slot.file) {
                    state.registered.insert(file.id, control);
                }
                return Ok(Executed::default());
            }
            200 => {
                let arg = &mut call.segments[0].bytes;
                arg.fill(0);
                for (minor, entry) in (0..2u32).zip(arg.chunks_exact_mut(card_info::BYTES)) {
                    put(entry, card_info::VALID, &[1]);
                    put_u32(entry, card_info::MINOR, minor);
                    put_u32(entry, card_info::GPU_ID, 0x100 * (minor + 1));
                }
                return Ok(Executed::default());
            }
            _ => return Ok(Executed::default()),
        };
        drop(state);
        let arg = &mut call.segments[0].bytes;
        let at = match arg.len() {
            16 => nvos00::STATUS,
            28 => nvos55::STATUS,
            // UVM_UNREGISTER_GPU's, and UVM_FREE's.
            20 | 24 => 16,
            // UVM_REGISTER_GPU's.
            40 => 36,
            48 => 40,
            // UVM_REGISTER_CHANNEL's.
            56 => 48,
            _ => nvos21::STATUS,
        };
        put_u32(arg, at, status);
        // A little after the work: the answer is on its way when a signal comes.
        fake.spend_time();
        fake.may_lose_the_answer(call.cmd);
        Ok(Executed::default())
    }

    fn sums(&self, _cards: &[RequestedCard<'_>]) -> Result<Option<Vec<CardSum>>, Error> {
        let leaked = self.0.leaked_bytes.load(Ordering::SeqCst);
        Ok(Some(vec![CardSum {
            uuid: UUID.to_owned(),
            memory_bytes: self.0.held_bytes() + leaked,
            further_bytes: 0,
        }]))
    }

    fn incidents(&self, after: u64) -> Result<Vec<Incident>, Error> {
        let mut incidents = self.0.incidents.lock().unwrap().clone();
        incidents.retain(|incident| incident.sequence > after);
        Ok(incidents)
    }

    fn held(&self) -> Result<Vec<FileId>, Error> {
        self.0.held_requests.fetch_add(1, Ordering::SeqCst);
        Ok(self.0.kept_files.lock().unwrap().iter().copied().collect())
    }

    fn held_changes(&self) -> Option<u64> {
        Some(self.0.held_changes.load(Ordering::SeqCst))
    }

    fn closed(&self, file: FileId) -> Result<(), Error> {
        if self.0.hears_of_no_close.load(Ordering::SeqCst) {
            return Err(unreachable());
        }
        let mut state = self.0.lock();
        let clients: Vec<u32> = state
            .clients
            .iter()
            .filter(|(_, of)| **of == file)
            .map(|(client, _)| *client)
            .collect();
        for client in clients {
            state.drop_client(client);
        }
        self.0.kept_files.lock().unwrap().remove(&file);
        self.0.held_changes.fetch_add(1, Ordering::SeqCst);
        self.0.closed.fetch_add(1, Ordering::SeqCst);
        self.0.changed.notify_all();
        Ok(())
    }
}
