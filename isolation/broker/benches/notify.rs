//! What a notified call costs: `cargo bench -p broker --bench notify [-- --json]`.
//!
//! One machine, one run: the same program under the same filter as the tests', served by the real workers. A call is
//! *answered* when the broker refuses it (the struct is read, a status is written back), and *executed* when the driver makes
//! a real ioctl on the duplicate; here it is `/dev/null`'s, which answers ENOTTY. Beside the scheduler's own choice of CPUs
//! (*free*) all threads are measured on one CPU (*pinned*).
//!
//! Refusals that come too fast are held up (`health::throttle`), which is not what an answer costs. So answered calls are made
//! in bursts that the throttle lets through, with a rest between two.

#![expect(clippy::unwrap_used, reason = "a measurement fails by it")]

#[path = "../tests/calls/launch.rs"]
mod launch;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::account::Slot;
use broker::container::Container;
use broker::reaper::Reaper;
use broker::workers::{Session, WAKE_SIGNAL};
use driver::{
    Binding, Call, Caller, CardIdentity, Driver, Error, Executed, FileId, FileKind, FileRef,
    ImplicitBytes, Ticket,
};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::stat::fstat;
use nix::unistd::Pid;
use nvabi::Release;
use nvabi::bytes::put_u32;
use nvabi::layout::nvos54;
use serde::{Deserialize, Serialize};
use sys::seccomp::Wait;

/// NV_ESC_RM_CONTROL
const CONTROL: u32 = 0xc020_462a;
/// NV_ESC_RM_UNMAP_MEMORY: a flat struct that books nothing.
const EXECUTED: u32 = 0xc020_464f;
/// A terminal's ioctl: it passes the filter, and `/dev/null` answers ENOTTY.
const PASSED: u32 = 0x5401;
const CALLS: usize = 40_000;
/// Half of what the throttle lets through at once; in the rest that follows the bucket is full again.
const BURST: Burst = Burst {
    calls: 1_000,
    unmeasured: 100,
    rest: Duration::from_millis(700),
};
const BURSTS: usize = 10;

/// A row of the result. Microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    name: String,
    unit: String,
    median: f64,
    p99: f64,
    n: usize,
}

/// What the measured process is asked for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Ask {
    cmd: u32,
    bursts: usize,
    burst: Burst,
}

/// Calls one after the other.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Burst {
    calls: usize,
    /// The first of them: they find cold caches.
    unmeasured: usize,
    /// What follows.
    rest: Duration,
}

const ONE_RUN: Burst = Burst {
    calls: CALLS + CALLS / 10,
    unmeasured: CALLS / 10,
    rest: Duration::ZERO,
};

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
    let mut rows = Vec::new();
    for (placement, cpus) in [("free", all), ("pinned", one)] {
        // Threads and processes started from here on inherit it.
        sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
        rows.extend(measure(placement));
    }
    if std::env::args().any(|flag| flag == "--json") {
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

fn measure(placement: &str) -> Vec<Row> {
    let (mut plain, plain_socket) = launch::start(launch::PLAIN).unwrap();
    let (mut confined, socket) = launch::start(launch::WITH_FILTER).unwrap();
    let session = serve(launch::listener(&socket).unwrap());
    let mut rows = Vec::new();
    for (name, socket, cmd, bursts, burst) in [
        ("no filter", &plain_socket, PASSED, 1, ONE_RUN),
        ("passed by the filter", &socket, PASSED, 1, ONE_RUN),
        ("answered", &socket, CONTROL, BURSTS, BURST),
        ("executed", &socket, EXECUTED, 1, ONE_RUN),
    ] {
        let ask = serde_json::to_vec(&Ask { cmd, bursts, burst }).unwrap();
        sys::fd_passing::send(socket.as_fd(), &ask, &[]).unwrap();
        let mut buffer = [0; 4096];
        let (count, _) = sys::fd_passing::receive(socket.as_fd(), &mut buffer).unwrap();
        let mut row: Row = serde_json::from_slice(&buffer[..count]).unwrap();
        row.name = format!("{name}, {placement}");
        rows.push(row);
    }
    drop((plain_socket, socket));
    plain.wait().unwrap();
    confined.wait().unwrap();
    session.end();
    while !session.is_over() {
        std::thread::yield_now();
    }
    rows
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
    let mut buffer = [0; 4096];
    loop {
        let (count, _) = sys::fd_passing::receive(socket.as_fd(), &mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let ask: Ask = serde_json::from_slice(&buffer[..count])?;
        let row = time_calls(file.as_fd(), ask);
        sys::fd_passing::send(socket.as_fd(), &serde_json::to_vec(&row)?, &[])?;
    }
}

fn time_calls(file: BorrowedFd<'_>, Ask { cmd, bursts, burst }: Ask) -> Row {
    let mut arg = vec![0; usize::try_from((cmd >> 16) & 0x3fff).unwrap()];
    let mut times = Vec::new();
    for _burst in 0..bursts {
        let timed = (0..burst.calls).map(|_| {
            // An unknown control; the status is reset, as programs do.
            if cmd == CONTROL {
                put_u32(&mut arg, nvos54::CMD, 0xdead_beef);
                put_u32(&mut arg, nvos54::STATUS, 0);
            }
            let start = Instant::now();
            let result = sys::ioctl::raw(file, cmd, &mut arg);
            let time = start.elapsed().as_nanos();
            assert_eq!(result.is_ok(), cmd == CONTROL, "{result:?}");
            time
        });
        times.extend(timed.skip(burst.unmeasured));
        // Not waited for anything: the throttle's bucket fills with time.
        std::thread::sleep(burst.rest);
    }
    times.sort_unstable();
    let micros = |share: usize| {
        let nanos = times[(times.len() - 1) * share / 100];
        f64::from(u32::try_from(nanos).unwrap()) / 1000.0
    };
    Row {
        name: String::new(),
        unit: "µs".to_owned(),
        median: micros(50),
        p99: micros(99),
        n: times.len(),
    }
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
    let container = Container::alone(
        "bench/notify".to_owned(),
        release,
        Box::new(DevNull(stat.st_rdev)),
        vec![slot],
    );
    let container = container.unwrap();
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
