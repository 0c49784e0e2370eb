//! The tenant's side: a thread under the filter that does what it is asked, one request a message.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sched::{CloneFlags, unshare};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawn};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};
use sys::pidfd::PidFd;
use sys::seccomp::Wait;
use syscalls::mapping::Mapping;
use syscalls::probe::{Guard, Pages, Sharing};

use crate::launch::{self, PLAIN, WITH_FILTER};
use crate::rm;

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Ask {
    Open {
        path: String,
    },
    Dup {
        fd: i32,
    },
    Close {
        fd: i32,
    },
    /// A socket pair.
    Pair,
    SendFd {
        socket: i32,
        fd: i32,
    },
    ReceiveFd {
        socket: i32,
    },
    /// Pages with a guard behind them; the answer is their address.
    Pages {
        count: usize,
        read_only_guard: bool,
    },
    Write {
        address: u64,
        bytes: Vec<u8>,
    },
    Read {
        address: u64,
        count: usize,
    },
    Ioctl {
        fd: i32,
        cmd: u64,
        address: u64,
    },
    /// `mmap` of one page, shared.
    Map {
        fd: i32,
        offset: u64,
    },
    /// Managed memory: shared, at the offset of its address, which is the answer.
    MapManaged {
        fd: i32,
        bytes: usize,
    },
    /// Ends it.
    UnmapManaged {
        address: u64,
    },
    /// Ends what is behind so many bytes of it.
    ShortenManaged {
        address: u64,
        bytes: usize,
    },
    /// So many mappings of no file.
    ManyMappings {
        count: usize,
    },
    /// Maps a file of a name that is no text, in this folder.
    MapNameless {
        folder: String,
    },
    /// Becomes `sleep`, while a child has its memory that waits for whoever writes to this pipe. There is no answer.
    BecomeAnother {
        pipe: PathBuf,
    },
    /// This thread's number.
    Tid,
    /// Runs until [`Ask::StopFlipping`], and then answers.
    Spin,
    /// A further thread; its socket comes with the answer.
    Thread,
    /// Gives this thread a descriptor table of its own.
    Unshare,
    /// A further process that inherits these descriptors; its socket comes with the answer.
    Process {
        inherit: Vec<i32>,
    },
    /// Tries to install a filter with a listener.
    NewListener,
    /// A thread that writes one and the other in turn until told to stop.
    Flip {
        address: u64,
        one: Vec<u8>,
        other: Vec<u8>,
    },
    StopFlipping,
    Storm(Storm),
    /// So many clients, or pieces of memory below a device, one after the other; the answer is how many there were before the first
    /// refusal.
    Fill {
        fd: i32,
        below: Option<(u32, u32)>,
        count: u32,
    },
}

/// Allocations and frees under a timer's signals.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Storm {
    pub(crate) fd: i32,
    pub(crate) client: u32,
    pub(crate) device: u32,
    pub(crate) bytes: u64,
    pub(crate) millis: u64,
    pub(crate) timer_micros: u32,
    /// Whether the kernel repeats an interrupted call (SA_RESTART); else the program does.
    pub(crate) kernel_repeats: bool,
    /// Whether the program chooses the handles; else the driver does.
    pub(crate) own_handles: bool,
}

/// What a storm came to, as the program saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StormReport {
    pub(crate) allocated: u64,
    pub(crate) freed: u64,
    /// The first statuses (and negative errnos) other than success.
    pub(crate) failures: Vec<(String, i64)>,
    pub(crate) interrupted: u64,
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// A value, or an errno.
    Value(Result<i64, i32>),
    Bytes(Vec<u8>),
    Storm(StormReport),
}

type Files = Arc<Mutex<HashMap<i32, OwnedFd>>>;

/// The process's pages. They stay mapped: another thread's call may be under way on them.
static PAGES: Mutex<Vec<&'static Pages>> = Mutex::new(Vec::new());
static MANAGED: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());
static FLIPPING: AtomicBool = AtomicBool::new(false);

/// The whole life of a started process.
pub(crate) fn main(role: &str) -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    match role.strip_prefix(WITH_FILTER) {
        Some("-killable") => launch::confine(&socket, Wait::Killable)?,
        Some(_) => launch::confine(&socket, Wait::Interruptible)?,
        None => assert_eq!(role, PLAIN),
    }
    serve(&socket, Files::default())
}

fn serve(socket: &OwnedFd, mut files: Files) -> io::Result<()> {
    let mut buffer = vec![0; 128 * 1024];
    loop {
        let (count, _) = sys::fd_passing::receive(socket.as_fd(), &mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let ask: Ask = serde_json::from_slice(&buffer[..count])?;
        let (reply, attached) = match answer(ask, &mut files) {
            Ok(answered) => answered,
            Err(error) => (Reply::Value(Err(error.raw_os_error().unwrap_or(5))), None),
        };
        let attached: Vec<_> = attached.iter().map(AsFd::as_fd).collect();
        sys::fd_passing::send(socket.as_fd(), &serde_json::to_vec(&reply)?, &attached)?;
    }
}

fn answer(ask: Ask, files: &mut Files) -> io::Result<(Reply, Option<OwnedFd>)> {
    let value = |value: i64| Ok((Reply::Value(Ok(value)), None));
    let keep = |file: OwnedFd| {
        let number = file.as_raw_fd();
        files.lock().unwrap().insert(number, file);
        number
    };
    let copy = |number: i32| match files.lock().unwrap().get(&number) {
        Some(file) => file.try_clone(),
        // Inherited.
        None => PidFd::open(std::process::id().cast_signed())?.duplicate(number),
    };
    match ask {
        Ask::Open { path } => {
            let file = std::fs::File::options().read(true).write(true).open(path)?;
            value(keep(file.into()).into())
        }
        Ask::Dup { fd } => value(keep(copy(fd)?).into()),
        Ask::Close { fd } => {
            files.lock().unwrap().remove(&fd);
            value(0)
        }
        Ask::Pair => {
            let (one, other) = launch::pair()?;
            let numbers = [keep(one), keep(other)].map(|number| u8::try_from(number).unwrap());
            Ok((Reply::Bytes(numbers.to_vec()), None))
        }
        Ask::SendFd { socket, fd } => {
            sys::fd_passing::send(copy(socket)?.as_fd(), b"x", &[copy(fd)?.as_fd()])?;
            value(0)
        }
        Ask::ReceiveFd { socket } => {
            let (_, fds) = sys::fd_passing::receive(copy(socket)?.as_fd(), &mut [0; 4])?;
            value(keep(fds.into_iter().next().unwrap()).into())
        }
        Ask::Pages {
            count,
            read_only_guard,
        } => {
            let guard = if read_only_guard {
                Guard::ReadOnly
            } else {
                Guard::Closed
            };
            let pages = Pages::new(count, guard)?;
            let address = pages.address();
            PAGES.lock().unwrap().push(Box::leak(Box::new(pages)));
            value(i64::try_from(address).unwrap())
        }
        Ask::Write { address, bytes } => {
            at(address, |pages, at| pages.write(at, &bytes)).unwrap();
            value(0)
        }
        Ask::Read { address, count } => {
            let bytes = at(address, |pages, at| pages.read(at, count)).unwrap();
            Ok((Reply::Bytes(bytes), None))
        }
        Ask::Ioctl { fd, cmd, address } => value(ioctl(fd, cmd, address)?),
        Ask::Map { fd, offset } => {
            syscalls::probe::mmap(copy(fd)?.as_fd(), Sharing::Shared, offset)?;
            value(0)
        }
        Ask::MapManaged { fd, bytes } => {
            let mapping = Mapping::at_its_offset(copy(fd)?, bytes)?;
            let address = mapping.address();
            MANAGED.lock().unwrap().push(mapping);
            value(i64::try_from(address).unwrap())
        }
        Ask::UnmapManaged { address } => {
            MANAGED.lock().unwrap().retain(|it| it.address() != address);
            value(0)
        }
        Ask::ShortenManaged { address, bytes } => {
            let mut all = MANAGED.lock().unwrap();
            let mapping = all.iter_mut().find(|it| it.address() == address);
            mapping.unwrap().shorten(bytes)?;
            value(0)
        }
        Ask::BecomeAnother { pipe } => Err(become_another(pipe)),
        Ask::ManyMappings { count } => {
            // A page and its guard are two.
            for _ in 0..count / 2 {
                Box::leak(Box::new(Pages::new(1, Guard::Closed)?));
            }
            value(0)
        }
        Ask::MapNameless { folder } => {
            let name = std::ffi::OsStr::from_bytes(b"\xff\xfe");
            let path = std::path::Path::new(&folder).join(name);
            let mut options = std::fs::File::options();
            options.create_new(true).read(true).write(true);
            let file = options.open(path)?;
            MANAGED.lock().unwrap().push(Mapping::shared(file, 4096)?);
            value(0)
        }
        Ask::Tid => value(nix::unistd::gettid().as_raw().into()),
        Ask::Spin => {
            FLIPPING.store(true, Ordering::SeqCst);
            while FLIPPING.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            value(0)
        }
        Ask::Thread => {
            let (ours, theirs) = launch::pair()?;
            let files = Arc::clone(files);
            std::thread::spawn(move || serve(&theirs, files));
            Ok((Reply::Value(Ok(0)), Some(ours)))
        }
        Ask::Unshare => {
            unshare(CloneFlags::CLONE_FILES)?;
            *files = Files::default();
            value(0)
        }
        Ask::Process { inherit } => {
            for number in inherit {
                let files = files.lock().unwrap();
                fcntl(&files[&number], FcntlArg::F_SETFD(FdFlag::empty()))?;
            }
            let (child, socket) = launch::start(PLAIN)?;
            let id = i64::from(child.id());
            // It ends with its socket; whoever waits for this process does not wait for that one.
            Ok((Reply::Value(Ok(id)), Some(socket)))
        }
        Ask::NewListener => {
            const NEW_LISTENER: u64 = 1 << 3;
            sys::seccomp::install_nothing(NEW_LISTENER)?;
            value(0)
        }
        Ask::Flip {
            address,
            one,
            other,
        } => {
            FLIPPING.store(true, Ordering::SeqCst);
            std::thread::spawn(move || {
                while FLIPPING.load(Ordering::SeqCst) {
                    for bytes in [&one, &other] {
                        at(address, |pages, at| pages.write(at, bytes)).unwrap();
                    }
                }
            });
            value(0)
        }
        Ask::StopFlipping => {
            FLIPPING.store(false, Ordering::SeqCst);
            value(0)
        }
        Ask::Storm(storm) => Ok((Reply::Storm(storm.run()?), None)),
        Ask::Fill { fd, below, count } => value(fill(fd, below, count)?),
    }
}

fn fill(fd: i32, below: Option<(u32, u32)>, count: u32) -> io::Result<i64> {
    const PARAMS: usize = 512;
    let pages = Pages::new(1, Guard::Closed)?;
    let params_at = pages.address() + PARAMS as u64;
    for number in 0..count {
        let arg = match below {
            Some((client, device)) => rm::alloc(client, device, 0, rm::VIDMEM, params_at),
            None => rm::alloc(0, 0, 0, rm::ROOT, 0),
        };
        pages.write(0, &arg).unwrap();
        pages.write(PARAMS, &rm::memory_params(1)).unwrap();
        pages.ioctl(fd, rm::ALLOC.into(), 0)?;
        if rm::status(&pages.read(0, arg.len()).unwrap()) != rm::OK {
            return Ok(number.into());
        }
    }
    Ok(count.into())
}

fn at<T>(address: u64, act: impl FnOnce(&Pages, usize) -> T) -> T {
    let pages = PAGES.lock().unwrap().clone();
    let found = pages.into_iter().find(|pages| {
        let end = pages.address() + (pages.writable_bytes() + syscalls::probe::PAGE_BYTES) as u64;
        (pages.address()..end).contains(&address)
    });
    let found = found.expect("an address of this process");
    act(found, usize::try_from(address - found.address()).unwrap())
}

fn ioctl(fd: i32, cmd: u64, address: u64) -> io::Result<i64> {
    at(address, |pages, at| pages.ioctl(fd, cmd, at))
}

impl StormReport {
    fn failed(&mut self, what: &str, how: i64) {
        if self.failures.len() < 10 {
            self.failures.push((what.to_owned(), how));
        }
    }
}

impl Storm {
    fn run(&self) -> io::Result<StormReport> {
        /// `SIGALRM`
        const ALARM: i32 = 14;
        const HELD: usize = 4;
        const PARAMS: usize = 512;
        if self.kernel_repeats {
            syscalls::alarm::restarts(ALARM)?;
        } else {
            sys::signal::interrupts(ALARM)?;
        }
        let pages = Pages::new(1, Guard::Closed)?;
        let mut report = StormReport::default();
        let mut held = std::collections::VecDeque::new();
        let mut next = 0x5000_0000;
        let call = |cmd: u32, bytes: usize, report: &mut StormReport| loop {
            match pages.ioctl(self.fd, cmd.into(), 0) {
                Ok(_zero) => {
                    let arg = pages.read(0, bytes).unwrap();
                    break (i64::from(rm::status(&arg)), arg);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => report.interrupted += 1,
                Err(error) => break (-i64::from(error.raw_os_error().unwrap()), Vec::new()),
            }
        };
        syscalls::alarm::interval_timer(self.timer_micros)?;
        let end = Instant::now() + Duration::from_millis(self.millis);
        while Instant::now() < end || !held.is_empty() {
            if held.len() < HELD && Instant::now() < end {
                next += 1;
                let handle = if self.own_handles { next } else { 0 };
                let params_at = pages.address() + PARAMS as u64;
                let memory = rm::alloc(self.client, self.device, handle, rm::VIDMEM, params_at);
                pages.write(0, &memory).unwrap();
                pages.write(PARAMS, &rm::memory_params(self.bytes)).unwrap();
                match call(rm::ALLOC, memory.len(), &mut report) {
                    (0, arg) => {
                        report.allocated += 1;
                        held.push_back(rm::new_handle(&arg));
                    }
                    (other, _) => report.failed("alloc", other),
                }
            } else if let Some(handle) = held.pop_front() {
                let free = rm::free(self.client, self.device, handle);
                pages.write(0, &free).unwrap();
                match call(rm::FREE, free.len(), &mut report) {
                    (0, _) => report.freed += 1,
                    (other, _) => report.failed("free", other),
                }
            }
        }
        syscalls::alarm::interval_timer(0)?;
        Ok(report)
    }
}

/// A child of `posix_spawn` has its parent's memory until it is another program, and opens its files before.
fn become_another(pipe: PathBuf) -> io::Error {
    std::thread::spawn(move || {
        let mut actions = PosixSpawnFileActions::init().unwrap();
        actions
            .add_open(0, pipe.as_path(), OFlag::O_RDONLY, Mode::empty())
            .unwrap();
        let attributes = PosixSpawnAttr::init().unwrap();
        posix_spawn(c"/bin/true", &actions, &attributes, &[c"true"], &[c""; 0])
    });
    let has_child = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let mut children =
            tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap());
        children.any(|children| !children.is_empty())
    };
    while !has_child() {
        std::thread::yield_now();
    }
    Command::new("sleep").arg("600").exec()
}
