//! What a notified call costs: `cargo bench -p cgpu-broker --bench notify [-- --json] [-- --floor]`.
//!
//! One machine, one run: the same program under the same filter as the tests', served by the real workers. A call is
//! *answered* when the broker refuses it (the struct is read, a status is written back), and *executed* when the driver makes
//! a real ioctl on the duplicate; here it is `/dev/null`'s, which answers ENOTTY. Beside the scheduler's own choice of CPUs
//! (*free*) all threads are measured on one CPU (*pinned*).
//!
//! The *floor* is what no broker can go below: one thread that receives a call, copies [`FLOOR_BYTES`] in and out, and answers, with the
//! kernel's synchronous wake-up. It is measured in turns with the others, so that they are compared on whatever machine this is:
//!
//! ```text
//! a round   floor ─▶ no filter ─▶ passed ─▶ answered ─▶ executed ─▶ rest
//! ```
//!
//! `cargo test` runs one round, without a figure, so that a call that is no longer met as its row says is found at once.
//!
//! Refusals that come too fast are held up (`health::throttle`), which is not what an answer costs. A round has half of what the
//! throttle lets through at once; in the rest its bucket fills again.

#![expect(clippy::unwrap_used, reason = "a measurement fails by it")]

#[path = "../tests/calls/launch.rs"]
mod launch;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::account::Slot;
use broker::container::{Container, Parts};
use broker::reaper::Reaper;
use broker::workers::{Session, WAKE_SIGNAL};
use driver::{
    Binding, Call, Caller, CardIdentity, Driver, Error, Executed, FileId, FileKind, FileRef,
    ImplicitBytes, Ticket,
};
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::stat::fstat;
use nix::unistd::Pid;
use nvabi::bytes::put_u32;
use nvabi::layout::{nvos21, nvos34, nvos54};
use nvabi::{Release, class};
use serde::{Deserialize, Serialize};
use sys::seccomp::{Listener, Wait};

/// NV_ESC_RM_CONTROL
const CONTROL: u32 = 0xc020_462a;
/// NV_ESC_RM_ALLOC, by which the measured program gets a client: an executed call names objects of its own, or is answered.
const ALLOC: u32 = 0xc020_462b;
/// NV_ESC_RM_UNMAP_MEMORY: a flat struct that commits nothing.
const EXECUTED: u32 = 0xc020_464f;
/// What the driver here calls the client.
const CLIENT: u32 = class::CLIENT_HANDLE_BASE;
/// A terminal's ioctl: it passes the filter, and `/dev/null` answers ENOTTY.
const PASSED: u32 = 0x5401;
/// What the floor copies of a caller's memory, and back into it.
const FLOOR_BYTES: usize = 64;
const ROUNDS: usize = 30;
/// Of each kind in a round.
const CALLS: usize = 1_000;
/// The first of them: they find cold caches.
const UNMEASURED: usize = 100;
/// The throttle's bucket fills with time.
const REST: Duration = Duration::from_millis(700);

/// A row of the result. Microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    name: String,
    unit: String,
    median: f64,
    p99: f64,
    n: usize,
    /// Median and p99 of each round, in the order of the rounds, which all rows share.
    rounds: Vec<(f64, f64)>,
}

/// What the measured process is asked for: so many calls, of which the first are not told.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Ask {
    cmd: u32,
    calls: usize,
    unmeasured: usize,
}

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(launch::ROLE) {
        measured_process(&role).unwrap();
        return ExitCode::SUCCESS;
    }
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: not root");
        return ExitCode::SUCCESS;
    }
    sys::signal::interrupts(WAKE_SIGNAL).unwrap();
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let one = {
        let first = (0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap());
        let mut one = CpuSet::new();
        one.set(first.unwrap()).unwrap();
        one
    };
    let has = |needed: &str| std::env::args().any(|flag| flag == needed);
    let mut rows = Vec::new();
    if !has("--bench") {
        // `cargo test`: each kind of call is met by whom it is to be met by.
        measure("short", &KINDS, 1, Duration::ZERO);
        return ExitCode::SUCCESS;
    }
    if has("--floor") {
        rows.extend(measure("free", &[FLOOR], 5, Duration::ZERO));
    } else {
        for (placement, cpus) in [("free", all), ("pinned", one)] {
            // Threads and processes started from here on inherit it.
            sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
            rows.extend(measure(placement, &KINDS, ROUNDS, REST));
        }
    }
    if has("--json") {
        println!("{}", serde_json::to_string(&rows).unwrap());
    } else {
        println!("{:44} {:>8} {:>8}", "", "median", "p99");
        for row in &rows {
            println!(
                "{:44} {:8.2} {:8.2} {}",
                row.name, row.median, row.p99, row.unit
            );
        }
    }
    ExitCode::SUCCESS
}

/// By whom a call is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    Nobody,
    Broker,
    Floor,
}

type Kind = (&'static str, Met, u32);

const FLOOR: Kind = ("floor", Met::Floor, CONTROL);
const KINDS: [Kind; 5] = [
    FLOOR,
    ("no filter", Met::Nobody, PASSED),
    ("passed by the filter", Met::Broker, PASSED),
    ("answered", Met::Broker, CONTROL),
    ("executed", Met::Broker, EXECUTED),
];

fn measure(placement: &str, kinds: &[Kind], rounds: usize, rest: Duration) -> Vec<Row> {
    let (mut plain, plain_socket) = launch::start(launch::PLAIN).unwrap();
    let (mut confined, socket) = launch::start(launch::WITH_FILTER).unwrap();
    let (mut bare, bare_socket) = launch::start(launch::WITH_FILTER).unwrap();
    let session = serve(launch::listener(&socket).unwrap());
    let floor = serve_floor(launch::listener(&bare_socket).unwrap());
    let mut times = vec![Vec::new(); kinds.len()];
    for _round in 0..rounds {
        for ((_, met, cmd), times) in kinds.iter().zip(&mut times) {
            let socket = match met {
                Met::Nobody => &plain_socket,
                Met::Broker => &socket,
                Met::Floor => &bare_socket,
            };
            times.push(ask(socket.as_fd(), *cmd));
        }
        // Not waited for anything.
        std::thread::sleep(rest);
    }
    drop((plain_socket, socket, bare_socket));
    for child in [&mut plain, &mut confined, &mut bare] {
        child.wait().unwrap();
    }
    floor.join().unwrap();
    session.end();
    while !session.is_over() {
        std::thread::yield_now();
    }
    let named = kinds.iter().zip(times);
    named
        .map(|((name, ..), times)| row(format!("{name}, {placement}"), &times))
        .collect()
}

/// Nanoseconds of each call, sorted.
fn ask(socket: BorrowedFd<'_>, cmd: u32) -> Vec<u64> {
    let ask = Ask {
        cmd,
        calls: CALLS + UNMEASURED,
        unmeasured: UNMEASURED,
    };
    let ask = serde_json::to_vec(&ask).unwrap();
    sys::fd_passing::send(socket, &ask, &[]).unwrap();
    let mut buffer = vec![0; 64 << 10];
    let (count, _) = sys::fd_passing::receive(socket, &mut buffer).unwrap();
    serde_json::from_slice(&buffer[..count]).unwrap()
}

fn row(name: String, rounds: &[Vec<u64>]) -> Row {
    let micros = |sorted: &[u64], share: usize| {
        let nanos = sorted[(sorted.len() - 1) * share / 100];
        f64::from(u32::try_from(nanos).unwrap()) / 1000.0
    };
    let mut all = rounds.concat();
    all.sort_unstable();
    Row {
        name,
        unit: "µs".to_owned(),
        median: micros(&all, 50),
        p99: micros(&all, 99),
        n: all.len(),
        rounds: rounds
            .iter()
            .map(|round| (micros(round, 50), micros(round, 99)))
            .collect(),
    }
}

/// Receives, copies, answers; until nobody has the filter any more.
fn serve_floor(listener: OwnedFd) -> std::thread::JoinHandle<()> {
    let listener = Listener::from(listener);
    listener.wake_on_same_cpu().unwrap();
    std::thread::spawn(move || {
        loop {
            let call = match listener.receive() {
                Ok(call) => call,
                Err(error) if error.raw_os_error() == Some(Errno::EINTR as i32) => continue,
                Err(_nobody_has_it) => break,
            };
            let mut bytes = [0; FLOOR_BYTES];
            let [_, _, address, ..] = call.args;
            sys::memory::read_exact(call.tid, address, &mut bytes).unwrap();
            sys::memory::write_all(call.tid, address, &bytes).unwrap();
            listener.answer(call.id, 0).unwrap();
        }
    })
}

fn measured_process(role: &str) -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    if role == launch::WITH_FILTER {
        launch::confine(&socket, Wait::Interruptible)?;
    } else {
        assert_eq!(role, launch::PLAIN);
    }
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    if role == launch::WITH_FILTER {
        let mut arg = [0; 32];
        put_u32(&mut arg, nvos21::H_CLASS, class::NV01_ROOT_CLIENT);
        sys::ioctl::raw(file.as_fd(), ALLOC, &mut arg)?;
    }
    let mut buffer = [0; 4096];
    loop {
        let (count, _) = sys::fd_passing::receive(socket.as_fd(), &mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let ask: Ask = serde_json::from_slice(&buffer[..count])?;
        let times = time_calls(file.as_fd(), ask);
        sys::fd_passing::send(socket.as_fd(), &serde_json::to_vec(&times)?, &[])?;
    }
}

/// Nanoseconds, sorted.
fn time_calls(file: BorrowedFd<'_>, ask: Ask) -> Vec<u64> {
    let Ask { cmd, .. } = ask;
    let size = usize::try_from((cmd >> 16) & 0x3fff).unwrap();
    let mut arg = vec![0; size.max(FLOOR_BYTES)];
    let timed = (0..ask.calls).map(|_| {
        // An unknown control; the status is reset, as programs do.
        if cmd == CONTROL {
            put_u32(&mut arg, nvos54::CMD, 0xdead_beef);
            put_u32(&mut arg, nvos54::STATUS, 0);
        } else if cmd == EXECUTED {
            for at in [nvos34::H_CLIENT, nvos34::H_DEVICE, nvos34::H_MEMORY] {
                put_u32(&mut arg, at, CLIENT);
            }
        }
        let start = Instant::now();
        let result = sys::ioctl::raw(file, cmd, &mut arg);
        let time = start.elapsed().as_nanos();
        assert_eq!(result.is_ok(), cmd == CONTROL, "{result:?}");
        u64::try_from(time).unwrap()
    });
    let mut times: Vec<u64> = timed.skip(ask.unmeasured).collect();
    times.sort_unstable();
    times
}

fn serve(listener: OwnedFd) -> Arc<Session> {
    let slot = Slot {
        uuid: "GPU-00000000-0000-0000-0000-000000000000".to_owned(),
        uuid_bytes: [0; 16],
        minor: 0,
        quota_bytes: 1 << 30,
    };
    let release = Release::R570;
    let stat = fstat(std::fs::File::open("/dev/null").unwrap()).unwrap();
    let driver = Box::new(DevNull(stat.st_rdev));
    let parts = Parts::new("bench/notify".to_owned(), release, driver, vec![slot]);
    let container = Container::alone(parts).unwrap();
    let reaper = Arc::new(Reaper::new().unwrap());
    Session::start(listener, 1, Arc::new(container), reaper).unwrap()
}

/// Takes `/dev/null` for the control file, and really makes the ioctl on it.
struct DevNull(u64);

impl Driver for DevNull {
    fn version(&self) -> &str {
        "570.195.03"
    }

    fn cards(&self) -> &[CardIdentity] {
        &[]
    }

    fn implicit(&self) -> ImplicitBytes {
        ImplicitBytes::default()
    }

    fn classify(&self, fd: BorrowedFd<'_>) -> Option<FileKind> {
        (fstat(fd).ok()?.st_rdev == self.0).then_some(FileKind::Ctl)
    }

    fn execute(
        &self,
        file: FileRef<'_>,
        _caller: Caller,
        _ticket: Ticket,
        call: &mut Call,
    ) -> Result<Executed, Error> {
        let arg = &mut call.segments[0].bytes;
        if call.cmd == ALLOC {
            put_u32(arg, nvos21::H_NEW, CLIENT);
            return Ok(Executed {
                ret: 0,
                new_file: None,
            });
        }
        let ret = match sys::ioctl::raw(file.fd, call.cmd, arg) {
            Ok(value) => value,
            Err(error) => -error.raw_os_error().unwrap(),
        };
        Ok(Executed {
            ret,
            new_file: None,
        })
    }

    fn binding(&self) -> Binding {
        Binding::None
    }

    fn closed(&self, _file: FileId) -> Result<(), Error> {
        Ok(())
    }
}
