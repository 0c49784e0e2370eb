//! The kernel's driver, played: an executor, or a thread of this process, whose ioctls a filter brings here, and the simulated
//! cards that answer them.

use std::cmp::Ordering;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering as Memory};
use std::sync::{Arc, Condvar, Mutex, mpsc};

use broker::fetch;
use broker::memories::Target;
use driver::executor::{Started, spawn_with};
use driver::kernel::{Facts, KernelDriver};
use driver::nodes::Nodes;
use driver::sim::SimDriver;
use driver::{
    Call, Caller, Driver, Error, Executed, FdSlot, FileId, FileKind, FileRef, Link, NewFile,
    Segment, Ticket,
};
use nvabi::Release;
use nvabi::bytes::{put_u32, u32_at, u64_at};
use nvabi::call::Descriptor;
use nvabi::escape::{
    NV_ESC_RM_CONTROL, NV_ESC_RM_MAP_MEMORY as MAP_MEMORY, NV_ESC_WAIT_OPEN_COMPLETE,
};
use nvabi::layout::{device_params, id_info, nvos21, nvos33, nvos54};
use nvabi::{class, control, status};
use sys::pidfd::PidFd;
use sys::seccomp::{Listener, Notification, Wait};
use verdict::{Op, blocks};

use crate::alone::PROGRAM;
use crate::launch;

/// A process that becomes an executor under a filter.
pub(crate) const UNDER_A_FAKE_DRIVER: &str = "under-a-fake-driver";
/// Where it sends the filter's listener.
const SUPERVISOR: &str = "CGPU_TEST_SUPERVISOR";
const THREADS: usize = 12;
const R: Release = Release::R570;

/// In the started process: the filter, then the program.
pub(crate) fn become_executor() -> io::Result<()> {
    let supervisor = std::env::var(SUPERVISOR).unwrap();
    let socket = sys::fd_passing::connect_seqpacket(Path::new(&supervisor))?;
    launch::confine(&socket, Wait::Interruptible)?;
    drop(socket);
    Err(Command::new(PROGRAM).env_clear().exec())
}

/// The driver behind an executor, or behind a [`CallingThread`].
pub(crate) struct Kernel {
    executor: Option<Started>,
    shared: Arc<Shared>,
}

/// A thread of this process whose ioctls are brought to the played driver.
pub(crate) struct CallingThread(Mutex<mpsc::Sender<Requested>>);

/// A call that it is to make, and who gets it back.
struct Requested {
    file: (FileId, FileKind, OwnedFd),
    call: Call,
    answer: mpsc::Sender<(Result<Executed, Error>, Call)>,
}

impl CallingThread {
    /// Starts it, with a driver that makes calls in the process that it is in; the filter's listener.
    fn start(driver: KernelDriver) -> (Self, OwnedFd) {
        let (ours, theirs) = launch::pair().unwrap();
        let (ask, requested) = mpsc::channel::<Requested>();
        std::thread::spawn(move || {
            launch::confine(&theirs, Wait::Interruptible).unwrap();
            for Requested {
                file,
                mut call,
                answer,
            } in requested
            {
                let target = FileRef {
                    id: file.0,
                    kind: file.1,
                    fd: file.2.as_fd(),
                };
                let nobody = Caller { tgid: 0, tid: 0 };
                let done = driver.execute(target, nobody, Ticket::UNREMEMBERED, &mut call);
                answer.send((done, call)).unwrap();
            }
        });
        (Self(Mutex::new(ask)), launch::listener(&ours).unwrap())
    }

    pub(crate) fn execute(&self, file: FileRef<'_>, call: &mut Call) -> Result<Executed, Error> {
        let (answer, answered) = mpsc::channel();
        let fd = file.fd.try_clone_to_owned().unwrap();
        let taken = Call {
            cmd: call.cmd,
            segments: std::mem::take(&mut call.segments),
            fds: std::mem::take(&mut call.fds),
        };
        let requested = Requested {
            file: (file.id, file.kind, fd),
            call: taken,
            answer,
        };
        self.0.lock().unwrap().send(requested).unwrap();
        let (done, made) = answered.recv().unwrap();
        *call = made;
        done
    }
}

/// Changes an answer of the driver: the struct, and the parameters behind it.
type Play = Box<dyn Fn(&mut [u8], &mut [u8]) + Send>;

struct Shared {
    listener: Listener,
    /// Who makes the ioctls.
    pid: i32,
    has_ended: AtomicBool,
    nodes: Nodes,
    sim: SimDriver,
    files: Mutex<Vec<(FileId, OwnedFd)>>,
    /// Minors of cards in the order of their first opens: a card's place in it is its device instance.
    numbered: Mutex<Vec<u32>>,
    /// What became of an open that did not wait, of whichever card.
    open_result: AtomicI32,
    /// Structs and blocks as the executor's ioctls had them.
    seen: Mutex<Vec<(u32, Vec<Vec<u8>>)>>,
    held_back: Mutex<HeldBack>,
    changed: Condvar,
    /// What becomes of the answer to GPU_GET_PID_INFO.
    sums: Mutex<Option<Play>>,
    /// What the executor's last MAP_MEMORY has made ready in a file.
    mapped: Mutex<Option<OwnedFd>>,
}

/// A command whose calls wait here.
#[derive(Default)]
struct HeldBack {
    cmd: Option<u32>,
    waiting: usize,
}

impl Kernel {
    /// Starts an executor that listens at `socket`, in front of the cards of a simulator.
    pub(crate) fn start(socket: &Path, sim_socket: &Path) -> Self {
        let supervisor = socket.with_extension("supervisor");
        let accepting = sys::fd_passing::listen_seqpacket(&supervisor).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env(launch::ROLE, UNDER_A_FAKE_DRIVER)
            .env(SUPERVISOR, &supervisor);
        let executor = spawn_with(command, socket).unwrap();
        let connection = sys::fd_passing::accept(accepting.as_fd()).unwrap();
        let listener = launch::listener(&connection).unwrap();
        let pid = executor.child.id().cast_signed();
        Self {
            executor: Some(executor),
            shared: Shared::start(listener, pid, sim_socket),
        }
    }

    /// Starts a thread whose ioctls come here, in front of the cards of a simulator.
    pub(crate) fn here(facts: Facts, sim_socket: &Path) -> (Self, CallingThread) {
        let (calling, listener) = CallingThread::start(KernelDriver::with(facts));
        let pid = std::process::id().cast_signed();
        let shared = Shared::start(listener, pid, sim_socket);
        let executor = None;
        (Self { executor, shared }, calling)
    }

    pub(crate) fn sim(&self) -> &SimDriver {
        &self.shared.sim
    }

    /// Bytes that the cards themselves count.
    pub(crate) fn held_bytes(&self) -> u64 {
        let cards = self.shared.sim.account().unwrap();
        cards.iter().map(|card| card.used_bytes).sum()
    }

    /// The structs and blocks of every control of this number that was asked for, in order.
    pub(crate) fn controls(&self, cmd: u32) -> Vec<Vec<Vec<u8>>> {
        let mut controls = self.calls(crate::rm::CONTROL);
        controls.retain(|blocks| u32_at(&blocks[0], nvos54::CMD) == Some(cmd));
        controls
    }

    /// The same of every ioctl of a command.
    pub(crate) fn calls(&self, cmd: u32) -> Vec<Vec<Vec<u8>>> {
        let seen = self.shared.seen.lock().unwrap();
        seen.iter()
            .filter(|(of, _)| *of == cmd)
            .map(|(_, blocks)| blocks.clone())
            .collect()
    }

    /// All cards were closed by everybody, and are opened in this order, by their minors (gpu_mgr.c, `gpumgrAllocDeviceInstance`).
    pub(crate) fn opened_anew(&self, minors: &[u32]) {
        *self.shared.numbered.lock().unwrap() = minors.to_vec();
    }

    /// Nodes that were opened with O_NONBLOCK were opened with this result.
    pub(crate) fn set_open_result(&self, result: i32) {
        self.shared.open_result.store(result, Memory::SeqCst);
    }

    /// No process has any of the driver's files open: what is played here does not see when the last one closes one.
    pub(crate) fn close_files(&self) {
        for (id, _fd) in self.shared.files.lock().unwrap().drain(..) {
            self.shared.sim.closed(id).unwrap();
        }
    }

    /// The kernel, for calls that a tenant makes itself.
    pub(crate) fn native(&self) -> Native {
        Native(Arc::clone(&self.shared))
    }

    /// How many ioctls of a command were made.
    pub(crate) fn count(&self, cmd: u32) -> usize {
        let seen = self.shared.seen.lock().unwrap();
        seen.iter().filter(|(of, _)| *of == cmd).count()
    }

    /// Whether any word of any struct or block that an ioctl had was this one.
    pub(crate) fn has_seen(&self, word: u64) -> bool {
        let seen = self.shared.seen.lock().unwrap();
        seen.iter().flat_map(|(_, blocks)| blocks).any(|block| {
            (0..block.len())
                .step_by(8)
                .any(|at| u64_at(block, at) == Some(word))
        })
    }

    /// Changes what is said of the sums of processes; the cards' own sums are in the parameters.
    pub(crate) fn play_sums(&self, play: impl Fn(&mut [u8], &mut [u8]) + Send + 'static) {
        *self.shared.sums.lock().unwrap() = Some(Box::new(play));
    }

    /// The driver's files that whoever makes the ioctls has open.
    pub(crate) fn open_files(&self) -> Vec<FileKind> {
        self.shared.open_files()
    }

    /// Lets calls of a command wait in the driver.
    pub(crate) fn hold_back(&self, cmd: u32) {
        self.shared.held_back.lock().unwrap().cmd = Some(cmd);
    }

    pub(crate) fn wait_for_held(&self, calls: usize) {
        let held = self.shared.held_back.lock().unwrap();
        let patience = std::time::Duration::from_secs(10);
        let (_held, waited) = self
            .shared
            .changed
            .wait_timeout_while(held, patience, |held| held.waiting < calls)
            .unwrap();
        assert!(!waited.timed_out(), "never: {calls} calls in the driver");
    }

    pub(crate) fn let_go(&self) {
        self.shared.held_back.lock().unwrap().cmd = None;
        self.shared.changed.notify_all();
    }
}

/// A kernel that answers what a production filter lets pass.
pub(crate) struct Native(Arc<Shared>);

impl Native {
    /// Executes a call as one of the tenant's own process: no broker and no executor has part in it.
    pub(crate) fn execute(
        &self,
        file: FileRef<'_>,
        caller: Caller,
        call: &mut Call,
    ) -> Result<Executed, Error> {
        let shared = &self.0;
        let (id, kind) = shared.identify(file.fd).unwrap().unwrap();
        for slot in &mut call.fds {
            slot.file = shared.identify(slot.fd.as_fd()).unwrap();
        }
        let file = FileRef {
            id,
            kind,
            fd: file.fd,
        };
        shared.sim.execute(file, caller, Ticket::UNREMEMBERED, call)
    }
}

impl Native {
    /// What a mmap of the descriptor that a MAP_MEMORY of the executor's has named would show its owner. There is no such thing behind a plain
    /// file, so the memory takes its place.
    pub(crate) fn mapped(&self, call: &Call) -> Option<NewFile> {
        let replaces = u32_at(&call.segments.first()?.bytes, nvos33::FD)?;
        let is_map = call.cmd == MAP_MEMORY.cmd(R);
        let fd = is_map.then(|| self.0.mapped.lock().unwrap().take())??;
        Some(NewFile {
            replaces: replaces.cast_signed(),
            fd,
        })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.let_go();
        self.shared.has_ended.store(true, Memory::SeqCst);
        if let Some(executor) = &mut self.executor {
            crate::alone::end(&mut executor.child);
        }
    }
}

impl Shared {
    fn start(listener: OwnedFd, pid: i32, sim_socket: &Path) -> Arc<Self> {
        let shared = Arc::new(Self {
            listener: Listener::from(listener),
            pid,
            has_ended: AtomicBool::new(false),
            nodes: Nodes::below(&sim_socket.with_file_name("dev")).unwrap(),
            sim: SimDriver::connect(sim_socket, &format!("strict/{pid}")).unwrap(),
            files: Mutex::default(),
            numbered: Mutex::new(vec![0, 1]),
            open_result: AtomicI32::new(0),
            seen: Mutex::default(),
            held_back: Mutex::default(),
            changed: Condvar::new(),
            sums: Mutex::default(),
            mapped: Mutex::default(),
        });
        for _ in 0..THREADS {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.serve());
        }
        shared
    }

    fn serve(&self) {
        loop {
            match self.listener.receive() {
                Ok(call) => self.answer(&call),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if self.has_gone() => return,
                Err(_) => {}
            }
        }
    }

    fn has_gone(&self) -> bool {
        self.has_ended.load(Memory::SeqCst)
            || PidFd::open(self.pid).map_or(true, |pidfd| pidfd.wait_exit(0).unwrap_or(true))
    }

    fn answer(&self, call: &Notification) {
        const SYS_IOCTL: i32 = 16;
        assert_eq!(
            call.nr, SYS_IOCTL,
            "the executor makes ioctls and nothing else"
        );
        let answered = match self.ioctl(call) {
            Ok(value) => self.listener.answer(call.id, value.into()),
            Err(errno) => self.listener.fail(call.id, errno),
        };
        // It may have been killed meanwhile.
        let _gone = answered;
    }

    fn ioctl(&self, call: &Notification) -> Result<i32, i32> {
        const EBADF: i32 = 9;
        const EFAULT: i32 = 14;
        const ENOTTY: i32 = 25;
        let cmd = u32::try_from(call.args[1] & 0xffff_ffff).unwrap();
        let number = i32::try_from(call.args[0]).map_err(|_error| EBADF)?;
        let (id, kind, fd) = self.file(number).map_err(|_error| EBADF)?.ok_or(ENOTTY)?;
        let op = verdict::op(broker::files::surface(kind), cmd, R).map_err(|_error| ENOTTY)?;
        let copied = fetch::argument(self.pid, &op, call.args[2], R);
        let mut segments = vec![copied.map_err(|_error| EFAULT)?];
        self.parameters(&op, &mut segments).ok_or(EFAULT)?;
        let copies = segments.iter().map(|block| block.bytes.clone()).collect();
        self.seen.lock().unwrap().push((cmd, copies));
        self.wait_while_held(cmd);
        let before = segments.clone();
        let mut request = Call {
            cmd,
            fds: self.slots(&op, &segments)?,
            segments,
        };
        let file = FileRef {
            id,
            kind,
            fd: fd.as_fd(),
        };
        let caller = Caller {
            tgid: self.pid,
            tid: call.tid,
        };
        if self.is_refused_device(cmd, &request) {
            let denied = status::NV_ERR_INSUFFICIENT_PERMISSIONS;
            put_u32(&mut request.segments[0].bytes, nvos21::STATUS, denied);
            fetch::write_back(&Target::Number(self.pid), &before, &request.segments)
                .map_err(|_error| EFAULT)?;
            return Ok(0);
        }
        let instance = self.take_instance(cmd, &mut request);
        let done = self
            .sim
            .execute(file, caller, Ticket::UNREMEMBERED, &mut request)
            .unwrap();
        self.put_instance(cmd, &mut request, instance);
        if let Some(made) = done.new_file.filter(|_| cmd == MAP_MEMORY.cmd(R)) {
            *self.mapped.lock().unwrap() = Some(made.fd);
        }
        self.play(cmd, &mut request);
        fetch::write_back(&Target::Number(self.pid), &before, &request.segments)
            .map_err(|_error| EFAULT)?;
        if done.ret < 0 {
            Err(-done.ret)
        } else {
            Ok(done.ret)
        }
    }

    /// Copies what the struct points to. A control that is no tenant's is the broker's own, and points to nothing further.
    fn parameters(&self, op: &Op, segments: &mut Vec<Segment>) -> Option<()> {
        let arg = &segments[0].bytes;
        let control = u32_at(arg, nvos54::CMD).and_then(|cmd| control::known(cmd, R));
        let own = control.filter(|control| !control.decision.is_a_tenants());
        let is_control = op.escape() == Some(NV_ESC_RM_CONTROL.id);
        let Some(own) = own.filter(|_| is_control) else {
            return fetch::parameters(self.pid, op, segments, R).ok();
        };
        let address = u64_at(arg, nvos54::P_PARAMS)?;
        let mut bytes = vec![0; own.params_bytes as usize];
        sys::memory::read_exact(self.pid, address, &mut bytes).ok()?;
        segments.push(Segment {
            address,
            link: Some(Link {
                segment: 0,
                pointer_at: u32::try_from(nvos54::P_PARAMS).ok()?,
            }),
            bytes,
        });
        Some(())
    }

    /// A device is made for a process only that has the card's node open (device.c, `deviceConstruct_IMPL`: `osIsGpuAccessible`;
    /// nv.c, `nv_is_gpu_accessible` goes through `current->files`).
    fn is_refused_device(&self, cmd: u32, request: &Call) -> bool {
        device_instance(cmd, request).is_some_and(|instance| {
            let minor = self.minor_of(instance);
            !self.open_files().contains(&FileKind::Card { minor })
        })
    }

    fn minor_of(&self, instance: u32) -> u32 {
        let numbered = self.numbered.lock().unwrap();
        let minor = numbered.get(instance as usize).copied();
        minor.unwrap_or(instance)
    }

    /// The simulated cards' instances are their minors: a device is made by that. The instance that was named.
    fn take_instance(&self, cmd: u32, request: &mut Call) -> Option<u32> {
        let instance = device_instance(cmd, request)?;
        let minor = self.minor_of(instance);
        put_u32(
            &mut request.segments[1].bytes,
            device_params::DEVICE_ID,
            minor,
        );
        Some(instance)
    }

    /// Instances as this driver numbers its cards, in the parameters of a device, and in an answer to GPU_GET_ID_INFO.
    fn put_instance(&self, cmd: u32, request: &mut Call, named: Option<u32>) {
        let [first, params, ..] = request.segments.as_mut_slice() else {
            return;
        };
        let control = u32_at(&first.bytes, nvos54::CMD);
        if let Some(instance) = named {
            put_u32(&mut params.bytes, device_params::DEVICE_ID, instance);
        } else if cmd == crate::rm::CONTROL
            && control == Some(control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2)
            && u32_at(&first.bytes, nvos54::STATUS) == Some(status::NV_OK)
        {
            let minor = u32_at(&params.bytes, id_info::DEVICE_INSTANCE).unwrap();
            let numbered = self.numbered.lock().unwrap();
            let (block, at, word) = match (0..).zip(numbered.iter()).find(|(_, of)| **of == minor) {
                Some((instance, _)) => (params, id_info::DEVICE_INSTANCE, instance),
                // No process has it open (`gpumgrGetGpuIdInfoV2`).
                None => (first, nvos54::STATUS, status::NV_ERR_INVALID_ARGUMENT),
            };
            put_u32(&mut block.bytes, at, word);
        }
    }

    fn open_files(&self) -> Vec<FileKind> {
        let numbers = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).unwrap();
        numbers
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(|number| Some(self.file(number).ok()??.1))
            .collect()
    }

    fn play(&self, cmd: u32, request: &mut Call) {
        if cmd == NV_ESC_WAIT_OPEN_COMPLETE.cmd(R) {
            let result = self.open_result.load(Memory::SeqCst);
            put_u32(&mut request.segments[0].bytes, 0, result.cast_unsigned());
        }
        let [first, params, ..] = request.segments.as_mut_slice() else {
            return;
        };
        let requested = u32_at(&first.bytes, nvos54::CMD);
        if cmd == crate::rm::CONTROL
            && requested == Some(control::NV2080_CTRL_CMD_GPU_GET_PID_INFO)
            && let Some(play) = self.sums.lock().unwrap().as_ref()
        {
            play(&mut first.bytes, &mut params.bytes);
        }
    }

    fn wait_while_held(&self, cmd: u32) {
        let mut held = self.held_back.lock().unwrap();
        if held.cmd != Some(cmd) {
            return;
        }
        held.waiting += 1;
        self.changed.notify_all();
        let mut held = self
            .changed
            .wait_while(held, |held| held.cmd == Some(cmd))
            .unwrap();
        held.waiting -= 1;
    }

    /// What the executor has under a number, by the open file.
    fn file(&self, number: i32) -> io::Result<Option<(FileId, FileKind, OwnedFd)>> {
        let fd = PidFd::open(self.pid)?.duplicate(number)?;
        let found = self.identify(fd.as_fd())?;
        Ok(found.map(|(id, kind)| (id, kind, fd)))
    }

    fn identify(&self, fd: BorrowedFd<'_>) -> io::Result<Option<(FileId, FileKind)>> {
        let Some(kind) = self.nodes.kind(fd) else {
            return Ok(None);
        };
        let mut files = self.files.lock().unwrap();
        for (id, known) in files.iter() {
            if sys::kcmp::own_files(fd, known.as_fd())? == Ordering::Equal {
                return Ok(Some((*id, kind)));
            }
        }
        let id = FileId(files.len() as u64 + 1);
        files.push((id, fd.try_clone_to_owned()?));
        Ok(Some((id, kind)))
    }

    /// The descriptor in a struct or in a control's parameters, as the kernel resolves it: in the executor.
    fn slots(&self, op: &Op, segments: &[Segment]) -> Result<Vec<FdSlot>, i32> {
        const EBADF: i32 = 9;
        let blocks: Vec<&[u8]> = segments.iter().map(|block| &*block.bytes).collect();
        // A number that the driver keeps as a name is looked up by nobody.
        if let Some(Descriptor::Named(_)) = op.descriptor() {
            return Ok(Vec::new());
        }
        let Some(named) = blocks::descriptor(op, &blocks) else {
            return Ok(Vec::new());
        };
        let (segment, at) = (named.segment, named.at);
        let number = u32_at(blocks[usize::from(segment)], at)
            .unwrap()
            .cast_signed();
        if number < 0 {
            return Ok(Vec::new());
        }
        let (id, kind, fd) = self.file(number).map_err(|_error| EBADF)?.ok_or(EBADF)?;
        Ok(vec![FdSlot {
            segment,
            at: u32::try_from(at).unwrap(),
            number,
            file: Some((id, kind)),
            fd,
        }])
    }
}

/// The instance that a call names which makes a device.
fn device_instance(cmd: u32, request: &Call) -> Option<u32> {
    let class = u32_at(&request.segments[0].bytes, nvos21::H_CLASS);
    let is_device = cmd == crate::rm::ALLOC && class == Some(class::NV01_DEVICE_0);
    is_device.then(|| u32_at(&request.segments[1].bytes, device_params::DEVICE_ID).unwrap())
}
