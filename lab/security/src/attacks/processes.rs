//! Processes that come, go, stop and meddle with each other in the middle of calls.

use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use nvabi::layout::nvos21;
use nvabi::{bytes, class};
use serde_json::{Value, json};

use crate::pace::PATIENCE;
use crate::seat::{ALLOC, ARGUMENT_AT, Calls, New, Seat, memory_block, new_handle};
use crate::tally::Tally;
use crate::{Fixture, child, kernel};

const SMALL_BYTES: u64 = 64 << 10;

/// Processes that are forked, vforked and exec'd by the dozen, each with memory of its own, and that end in every way.
pub(super) fn process_storm(fixture: &mut Fixture) -> Result<Value> {
    let own = std::env::current_exe()?;
    let mut ends = std::collections::BTreeMap::<String, u64>::new();
    for round in 0..12 {
        let mut children = Vec::new();
        for way in 0..4 {
            let own = own.clone();
            children.push(kernel::fork(move || {
                let Ok(mut seat) = Seat::take() else { return 9 };
                if !seat.memory(16 << 20).is_done() {
                    return 8;
                }
                match (round + way) % 4 {
                    // A grandchild inherits the files and goes after its parent.
                    0 => i32::from(
                        kernel::fork(|| i32::from(!seat.memory(SMALL_BYTES).is_done())).is_err(),
                    ),
                    // posix_spawn: vfork and exec.
                    1 => {
                        let spawned = Command::new(&own)
                            .arg("nothing")
                            .stdin(Stdio::null())
                            .status();
                        i32::from(!spawned.is_ok_and(|status| status.success()))
                    }
                    2 => raise(Signal::SIGKILL).map_or(1, |()| 1),
                    // The files are closed by exec.
                    _ => {
                        let error = std::os::unix::process::CommandExt::exec(
                            Command::new(&own).arg("nothing").stdin(Stdio::null()),
                        );
                        i32::from(error.raw_os_error().is_some())
                    }
                }
            })?);
        }
        for child in children {
            let end = match waitpid(child, None)? {
                WaitStatus::Exited(_, code) => format!("code {code}"),
                WaitStatus::Signaled(_, signal, _) => signal.as_str().to_owned(),
                other => format!("{other:?}"),
            };
            *ends.entry(end).or_default() += 1;
        }
    }
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    tally.grab(fixture.quota_bytes, |bytes| seat.memory(bytes));
    fixture.keep(seat);
    Ok(json!({"ends": ends, "tally": tally.json()}))
}

/// Processes that end while their threads are in calls: by exit, SIGKILL, a crash, or by becoming another program.
pub(super) fn exit_in_mid_call(fixture: &mut Fixture) -> Result<Value> {
    let own = std::env::current_exe()?;
    let mut random = 12345u32;
    let mut ended = 0;
    for round in 0..32u32 {
        random = random.wrapping_mul(1_103_515_245).wrapping_add(12345);
        let delay = Duration::from_micros(u64::from(random >> 16) % 3000);
        let own = own.clone();
        let victim = kernel::fork(move || {
            let Ok(seat) = Seat::take() else { return 9 };
            let (number, client, device) = (seat.number, seat.client, seat.device);
            for _thread in 0..3 {
                std::thread::spawn(move || -> Result<()> {
                    let mut calls = Calls::on(number)?;
                    loop {
                        let handle = new_handle();
                        if calls
                            .memory_as(client, device, handle, SMALL_BYTES)
                            .is_done()
                            && handle.is_multiple_of(2)
                        {
                            calls.free_as(client, device, handle);
                        }
                    }
                });
            }
            std::thread::sleep(delay);
            match round % 4 {
                0 => 0,
                1 => raise(Signal::SIGSEGV).map_or(1, |()| 1),
                2 => {
                    let _failed = std::os::unix::process::CommandExt::exec(
                        Command::new(&own).arg("nothing").stdin(Stdio::null()),
                    );
                    1
                }
                _ => child::hold(),
            }
        })?;
        if round % 4 == 3 {
            std::thread::sleep(delay + Duration::from_millis(2));
            kill(victim, Signal::SIGKILL)?;
        }
        waitpid(victim, None)?;
        ended += 1;
    }
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    tally.grab(fixture.quota_bytes, |bytes| seat.memory(bytes));
    fixture.keep(seat);
    Ok(json!({"ended": ended, "tally": tally.json()}))
}

/// Allocates `most` pieces with handles that the driver chooses, so that a call that is executed twice is not refused for
/// its handle, and frees none. Counts into shared memory.
fn count_allocations(counters: &'static [std::sync::atomic::AtomicU64; 512], most: u64) -> i32 {
    let [ready, done, failed, ..] = counters;
    child::end_with_parent();
    let Ok(mut seat) = Seat::take() else { return 9 };
    ready.store(1, Ordering::SeqCst);
    let mut calls = 0;
    while calls < most && ready.load(Ordering::SeqCst) == 1 {
        let answer = seat.memory_chosen(SMALL_BYTES);
        let counter = if answer.is_done() { done } else { failed };
        counter.fetch_add(1, Ordering::SeqCst);
        calls += 1;
    }
    ready.store(3, Ordering::SeqCst);
    child::hold()
}

/// As many stops hit calls at many moments.
const STOPS: u32 = 100;

/// The caller is stopped and continued, over and over, wherever it is.
pub(super) fn sigstop_of_the_caller(fixture: &mut Fixture) -> Result<Value> {
    let counters = kernel::shared_counters()?;
    let [ready, done, failed, ..] = counters;
    let most = fixture.quota_bytes / SMALL_BYTES - 64;
    let caller = kernel::fork(move || count_allocations(counters, most))?;
    fixture.keep_child(caller);
    while ready.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let until = Instant::now() + Duration::from_millis(600);
    let mut stops = 0;
    // On a machine that is slow a while brings few.
    while (Instant::now() < until || stops < STOPS) && ready.load(Ordering::SeqCst) == 1 {
        kill(caller, Signal::SIGSTOP)?;
        waitpid(caller, Some(WaitPidFlag::WUNTRACED))?;
        kill(caller, Signal::SIGCONT)?;
        stops += 1;
        std::thread::sleep(Duration::from_micros(200));
    }
    // Two ends it; the caller may have come to its own.
    let _running = ready.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst);
    while ready.load(Ordering::SeqCst) != 3 {
        std::thread::yield_now();
    }
    let tally = Tally {
        bytes: done.load(Ordering::SeqCst) * SMALL_BYTES,
        done: done.load(Ordering::SeqCst),
        ..Tally::default()
    };
    Ok(json!({"stops": stops, "failed": failed.load(Ordering::SeqCst), "tally": tally.json()}))
}

/// A parent traces its child: it turns harmless calls into allocations at their entry, and repeats those that a stop ended.
pub(super) fn ptrace_sibling(fixture: &mut Fixture) -> Result<Value> {
    let counters = kernel::shared_counters()?;
    let [ready, returned, ..] = counters;
    let seat = Seat::take()?;
    let new = New {
        client: seat.client,
        parent: seat.device,
        handle: 0,
        class: class::NV01_MEMORY_LOCAL_USER,
    };
    let argument = seat.allocation(new, &memory_block(crate::tally::PIECE_BYTES));
    let address = seat.pages.address() + ARGUMENT_AT as u64;
    let _placed = seat.pages.write(ARGUMENT_AT, &argument);
    let number = u64::from(seat.number.cast_unsigned());
    let calls_most = 4 * fixture.quota_bytes / crate::tally::PIECE_BYTES;
    let clean = argument.clone();
    let traced = kernel::fork(move || {
        child::end_with_parent();
        if ptrace::traceme().is_err() || raise(Signal::SIGSTOP).is_err() {
            return 9;
        }
        for _call in 0..calls_most {
            let _again = seat.pages.write(ARGUMENT_AT, &clean);
            // Looks harmless: the tracer makes an allocation of it.
            let answer = kernel::call(libc::SYS_getppid, [0; 6]);
            let reported = seat.pages.read(ARGUMENT_AT, 48).unwrap_or_default();
            let status = bytes::u32_at(&reported, nvabi::layout::nvos64::STATUS);
            let handle = bytes::u32_at(&reported, nvos21::H_NEW);
            if answer == Ok(0) && status == Some(0) && handle != Some(0) {
                returned.fetch_add(1, Ordering::SeqCst);
            }
        }
        ready.store(1, Ordering::SeqCst);
        child::hold()
    })?;
    fixture.keep_child(traced);
    waitpid(traced, None)?;
    if let Err(errno) = ptrace::setoptions(traced, ptrace::Options::PTRACE_O_TRACESYSGOOD) {
        return Ok(
            json!({"unavailable": format!("ptrace: {errno}"), "tally": Tally::default().json()}),
        );
    }
    let mut turned = 0u64;
    let mut at_entry = false;
    ptrace::syscall(traced, None)?;
    while ready.load(Ordering::SeqCst) == 0 {
        match waitpid(traced, Some(WaitPidFlag::WNOHANG))? {
            WaitStatus::PtraceSyscall(_) => {
                at_entry = !at_entry;
                let mut registers = ptrace::getregs(traced)?;
                let getppid = u64::try_from(libc::SYS_getppid)?;
                if at_entry && registers.orig_rax == getppid {
                    registers.orig_rax = u64::try_from(libc::SYS_ioctl)?;
                    registers.rdi = number;
                    registers.rsi = u64::from(ALLOC);
                    registers.rdx = address;
                    ptrace::setregs(traced, registers)?;
                    turned += 1;
                }
                ptrace::syscall(traced, None)?;
            }
            // Our own stops are not handed on, or the process would stay stopped.
            WaitStatus::Stopped(_, Signal::SIGSTOP) => ptrace::syscall(traced, None)?,
            WaitStatus::Stopped(_, signal) => ptrace::syscall(traced, Some(signal))?,
            WaitStatus::StillAlive => {
                if turned.is_multiple_of(3) {
                    // Somewhere in the call, or between two.
                    let _stop = kill(traced, Signal::SIGSTOP);
                }
                std::thread::yield_now();
            }
            other => anyhow::bail!("the traced process: {other:?}"),
        }
    }
    ptrace_end(traced)?;
    let tally = Tally {
        bytes: returned.load(Ordering::SeqCst) * crate::tally::PIECE_BYTES,
        done: returned.load(Ordering::SeqCst),
        ..Tally::default()
    };
    Ok(json!({"turned": turned, "tally": tally.json()}))
}

/// Lets the tracee go on by itself.
fn ptrace_end(traced: Pid) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    kill(traced, Signal::SIGSTOP)?;
    while Instant::now() < until {
        match waitpid(traced, None)? {
            WaitStatus::Stopped(_, Signal::SIGSTOP) => {
                ptrace::detach(traced, None)?;
                return Ok(());
            }
            WaitStatus::PtraceSyscall(_) | WaitStatus::Stopped(..) => ptrace::cont(traced, None)?,
            other => anyhow::bail!("the traced process: {other:?}"),
        }
    }
    anyhow::bail!("the traced process does not stop")
}

/// Looks for whoever holds the limit and for what it speaks through, and signals everything in reach.
pub(super) fn kill_around(_fixture: &mut Fixture) -> Result<Value> {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir("/proc")
        .context("list processes")?
        .flatten()
    {
        if let Ok(name) = std::fs::read_to_string(entry.path().join("comm")) {
            seen.push(name.trim_end().to_owned());
        }
    }
    let mut signalled = Vec::new();
    for signal in [
        Signal::SIGSTOP,
        Signal::SIGCONT,
        Signal::SIGTERM,
        Signal::SIGKILL,
    ] {
        signalled.push(match kill(Pid::from_raw(-1), signal) {
            Ok(()) => "sent".to_owned(),
            Err(errno) => format!("{errno}"),
        });
    }
    // Numbers from the host's namespace name nobody here; who is hit nevertheless is of this container.
    let strangers = (2..4096).filter(|pid| {
        Pid::from_raw(*pid) != nix::unistd::getpid()
            && kill(Pid::from_raw(*pid), Signal::SIGKILL) == Err(Errno::EPERM)
    });
    let out_of_reach = strangers.count();
    let paths = [
        "/run/cgpu",
        "/run/containerd",
        "/var/run/docker.sock",
        "/run/cgpu/sim/sim.sock",
    ];
    let reachable: Vec<&str> = paths
        .into_iter()
        .filter(|path| std::fs::exists(path).unwrap_or(false))
        .collect();
    let own = std::fs::read_dir("/proc/self/fd").context("list descriptors")?;
    let inherited: Vec<String> = own
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .map(|target| target.display().to_string())
        .filter(|target| target.contains("seccomp") || target.contains("sock"))
        .collect();
    Ok(json!({
        "seen": seen, "signalled": signalled, "out_of_reach": out_of_reach, "reachable": reachable,
        "inherited": inherited, "tally": Tally::default().json(),
    }))
}
