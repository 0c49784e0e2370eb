//! Which file a descriptor names, and where a file can be without anybody seeing it.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::CloneFlags;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, listen,
    sendmsg, socket, socketpair,
};
use nvabi::layout::nvos57;
use nvabi::{bytes, control};
use serde_json::{Value, json};

use crate::pace::{PATIENCE, Pace};
use crate::seat::{Answer, Calls, Interrupted, Seat, Target, done, new_handle, open};
use crate::tally::{PIECE_BYTES, Tally};
use crate::{Fixture, child, kernel};

const RACE: Duration = Duration::from_millis(400);
/// What each thread has to have had, however slow the machine.
const SEATS_LEAST: u64 = 4;
const SMALL_BYTES: u64 = 64 << 10;

fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::empty(),
    )
    .context("make a pair of sockets")
}

/// A thread puts other files under the descriptor's number while calls are made on it.
pub(super) fn dup2_race(fixture: &mut Fixture) -> Result<Value> {
    let (seat, other) = (Seat::take()?, Seat::take()?);
    let others: Vec<File> = vec![
        other.ctl.try_clone()?,
        File::open("/dev/null")?,
        open("nvidia-uvm")?,
        seat.node.try_clone()?,
    ];
    let own = seat.ctl.try_clone()?;
    let number = seat.ctl.try_clone()?;
    let raced = number.as_raw_fd();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            for file in &others {
                // The race is the purpose; a lost one is fine.
                let _over = kernel::put_over(file.as_fd(), raced);
                let _back = kernel::put_over(own.as_fd(), raced);
            }
        }
    });
    let mut calls = Calls::on(raced)?;
    let mut tally = Tally::default();
    let until = Instant::now() + RACE;
    while Instant::now() < until {
        for (client, device) in [(seat.client, seat.device), (other.client, other.device)] {
            let answer = calls.memory_as(client, device, new_handle(), SMALL_BYTES);
            tally.count(answer, SMALL_BYTES);
        }
    }
    stop.store(true, Ordering::Relaxed);
    let _ended = thread.join();
    fixture.keep((seat, other, number));
    Ok(json!({"tally": tally.json()}))
}

/// Another process, which has never opened the driver, is sent the file through a socket.
pub(super) fn fd_passing(fixture: &mut Fixture) -> Result<Value> {
    let counters = kernel::shared_counters()?;
    let (ours, theirs) = pair()?;
    let quota = fixture.quota_bytes;
    let receiver = kernel::fork(move || {
        child::end_with_parent();
        let work = || -> Result<()> {
            let mut names = [0; 8];
            let (_length, files) = sys::fd_passing::receive(theirs.as_fd(), &mut names)?;
            let file = files.first().context("a file came")?;
            let [a, b, c, d, e, f, g, h] = names;
            let (client, device) = (
                u32::from_le_bytes([a, b, c, d]),
                u32::from_le_bytes([e, f, g, h]),
            );
            let mut calls = Calls::on(file.as_raw_fd())?;
            let mut tally = Tally::default();
            let mut next = 0x0b00_0000;
            tally.grab(quota, |bytes| {
                next += 1;
                calls.memory_as(client, device, next, bytes)
            });
            let [done, bytes, ..] = counters;
            bytes.store(tally.bytes, Ordering::SeqCst);
            done.store(1, Ordering::SeqCst);
            child::hold();
            Ok(())
        };
        i32::from(work().is_err())
    })?;
    fixture.keep_child(receiver);
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    tally.grab(quota / 4, |bytes| seat.memory(bytes));
    let mut names = seat.client.to_le_bytes().to_vec();
    names.extend(seat.device.to_le_bytes());
    sys::fd_passing::send(ours.as_fd(), &names, &[seat.ctl.as_fd()])?;
    let [done, bytes, ..] = counters;
    await_counter(done)?;
    let through_socket = bytes.load(Ordering::SeqCst);
    tally.bytes += through_socket;
    // The first holder goes; what the second has stays.
    drop(seat);
    Ok(json!({"tally": tally.json(), "through_socket_bytes": through_socket}))
}

fn await_counter(counter: &std::sync::atomic::AtomicU64) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while counter.load(Ordering::SeqCst) == 0 {
        ensure!(
            Instant::now() < until,
            "the other process did not come to its end"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The only reference to a file full of memory is a message that nobody has read.
pub(super) fn fd_in_flight(fixture: &mut Fixture) -> Result<Value> {
    let counters = kernel::shared_counters()?;
    let (ours, theirs) = pair()?;
    let quota = fixture.quota_bytes;
    let sender = kernel::fork(|| {
        let work = || -> Result<()> {
            let mut seat = Seat::take()?;
            let mut tally = Tally::default();
            tally.grab(quota / 4, |bytes| seat.memory(bytes));
            sys::fd_passing::send(theirs.as_fd(), b"x", &[seat.ctl.as_fd(), seat.node.as_fd()])?;
            let [done, bytes, ..] = counters;
            bytes.store(tally.bytes, Ordering::SeqCst);
            done.store(1, Ordering::SeqCst);
            Ok(())
        };
        i32::from(work().is_err())
    })?;
    nix::sys::wait::waitpid(sender, None)?;
    drop(theirs);
    let [done, bytes, ..] = counters;
    ensure!(
        done.load(Ordering::SeqCst) == 1,
        "the sender did not come to its end"
    );
    let in_flight = bytes.load(Ordering::SeqCst);
    fixture.keep(ours);
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    tally.grab(quota, |bytes| seat.memory(bytes));
    tally.bytes += in_flight;
    fixture.keep(seat);
    Ok(json!({"tally": tally.json(), "in_flight_bytes": in_flight}))
}

/// A thread with a table of its own has the driver where its process has another file.
pub(super) fn private_fd_table(fixture: &mut Fixture) -> Result<Value> {
    let quota = fixture.quota_bytes;
    // The numbers are taken by others in the leader's table.
    let decoy = File::open("/dev/null")?;
    let leader = Seat::take()?;
    let numbers = [decoy.as_raw_fd(), leader.number];
    let (reported, counted) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let work = || -> Result<(Tally, Seat)> {
            nix::sched::unshare(CloneFlags::CLONE_FILES).context("take a table of its own")?;
            let mut seat = Seat::take()?;
            let mut tally = Tally::default();
            for number in numbers {
                kernel::put_over(seat.ctl.as_fd(), number)?;
                let mut calls = Calls::on(number)?;
                tally.grab(quota / 4, |bytes| {
                    calls.memory_as(seat.client, seat.device, new_handle(), bytes)
                });
            }
            tally.grab(quota, |bytes| seat.memory(bytes));
            Ok((tally, seat))
        };
        let (counts, seat) = match work() {
            Ok((tally, seat)) => (Ok(tally), Some(seat)),
            Err(error) => (Err(error), None),
        };
        // The receiver waits for it.
        let _received = reported.send(counts);
        // The table goes with its thread.
        loop {
            std::thread::park();
            std::hint::black_box(&seat);
        }
    });
    let tally = counted.recv().context("the thread tells nothing")??;
    fixture.keep((decoy, leader));
    Ok(json!({"tally": tally.json()}))
}

/// Threads close and open files under each other's calls.
pub(super) fn close_race(_fixture: &mut Fixture) -> Result<Value> {
    let pace = Pace::new(RACE, SEATS_LEAST);
    let threads: Vec<_> = (0..4)
        .map(|_thread| {
            std::thread::spawn(move || -> (u64, u64) {
                let (mut taken, mut allocated) = (0, 0);
                while pace.goes_on(taken) {
                    let Ok(seat) = Seat::take() else { continue };
                    taken += 1;
                    let (number, client, device) = (seat.number, seat.client, seat.device);
                    let (tell, has_begun) = std::sync::mpsc::channel();
                    let racer = std::thread::spawn(move || -> u64 {
                        let Ok(mut calls) = Calls::on(number) else {
                            return 0;
                        };
                        let one = |calls: &mut Calls| {
                            let is_done = calls
                                .memory_as(client, device, new_handle(), SMALL_BYTES)
                                .is_done();
                            let _nobody_waits = tell.send(());
                            is_done
                        };
                        (0..8).filter(|_| one(&mut calls)).count() as u64
                    });
                    // Every other time the file is open for one call at least: else it is the scheduler's luck whether any
                    // comes before the end of the file.
                    if taken % 2 == 0 {
                        let _none_came = has_begun.recv();
                    } else {
                        std::thread::yield_now();
                    }
                    drop(seat);
                    allocated += racer.join().unwrap_or(0);
                }
                (taken, allocated)
            })
        })
        .collect();
    let counts: Vec<(u64, u64)> = threads
        .into_iter()
        .filter_map(|thread| thread.join().ok())
        .collect();
    // Nobody has a descriptor of those files any more. That a file is closed is noticed at an interval, not by an event.
    let client = rmclient::Client::connect(&rmclient::Nodes::default())?;
    let cards = client.cards()?;
    let card = cards.first().context("no card is granted")?;
    let until = Instant::now() + PATIENCE;
    while card.memory()?.used_bytes() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let sum = |pick: fn(&(u64, u64)) -> u64| counts.iter().map(pick).sum::<u64>();
    Ok(
        json!({"seats": sum(|count| count.0), "done": sum(|count| count.1), "tally": Tally::default().json()}),
    )
}

/// The only reference to a file with memory is in an io_uring's table: as much again is taken as soon as it is given.
pub(super) fn fd_in_ring(fixture: &mut Fixture) -> Result<Value> {
    const SETUP: i64 = 425;
    const REGISTER: i64 = 427;
    const REGISTER_FILES: u64 = 2;
    /// The broker's looks come once a second, and two of them must agree.
    const GIVEN_UP: Duration = Duration::from_secs(60);
    let parameters = syscalls::probe::Pages::new(1, syscalls::probe::Guard::Closed)?;
    let ring = match kernel::call(SETUP, [4, parameters.address(), 0, 0, 0, 0]) {
        Ok(number) => kernel::owned(number).context("a ring")?,
        Err(errno) => return Ok(json!({"unavailable": format!("io_uring_setup: {errno}")})),
    };
    let mut seat = Seat::take()?;
    Tally::default().grab(fixture.quota_bytes / 4, |bytes| seat.memory(bytes));
    let mut numbers = seat.ctl.as_raw_fd().to_le_bytes().to_vec();
    numbers.extend(seat.node.as_raw_fd().to_le_bytes());
    parameters.write(2048, &numbers).context("place numbers")?;
    let number = u64::from(ring.as_raw_fd().cast_unsigned());
    let at = parameters.address() + 2048;
    kernel::call(REGISTER, [number, REGISTER_FILES, at, 2, 0, 0])?;
    drop(seat);
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    let until = Instant::now() + GIVEN_UP;
    while tally.bytes < fixture.quota_bytes && Instant::now() < until {
        tally.grab(fixture.quota_bytes, |bytes| seat.memory(bytes));
        std::thread::sleep(Duration::from_millis(100));
    }
    fixture.keep((seat, ring, parameters));
    Ok(json!({"tally": tally.json()}))
}

/// Offsets in the parameters of exports and imports (`ctrl0000unix.h`).
mod carried {
    pub(super) const EXPORT_BYTES: usize = 24;
    pub(super) const EXPORT_FD: usize = 16;
    pub(super) const IMPORT_BYTES: usize = 20;
    /// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE_RM`
    pub(super) const TYPE_RM: u32 = 1;
}

/// Exports memory to a further file of the driver.
fn export(seat: &mut Seat, memory: u32) -> Result<(File, Answer)> {
    let file = open("nvidiactl")?;
    let mut params = [0; carried::EXPORT_BYTES];
    let words = [carried::TYPE_RM, seat.device, seat.device, memory];
    for (at, word) in (0..).step_by(4).zip(words) {
        bytes::put_u32(&mut params, at, word);
    }
    bytes::put(
        &mut params,
        carried::EXPORT_FD,
        &file.as_raw_fd().to_le_bytes(),
    );
    let root = seat.own(seat.client);
    let cmd = control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD;
    let answer = seat.control(root, cmd, 0, &params);
    Ok((file, answer))
}

/// Asks for an object that a file may carry.
fn import(seat: &mut Seat, number: i32) -> Answer {
    let mut params = [0; carried::IMPORT_BYTES];
    let words = [
        number.cast_unsigned(),
        carried::TYPE_RM,
        seat.device,
        seat.device,
        new_handle(),
    ];
    for (at, word) in (0..).step_by(4).zip(words) {
        bytes::put_u32(&mut params, at, word);
    }
    let root = seat.own(seat.client);
    let cmd = control::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD;
    seat.control(root, cmd, 0, &params)
}

/// Lets everybody have an object: `NVOS57_PARAMETERS` with `RS_SHARE_TYPE_ALL` and all rights.
fn share_with_all(seat: &mut Seat, object: u32) -> Answer {
    const SHARE: u64 = 0xc018_4635;
    let mut argument = vec![0; 24];
    bytes::put_u32(&mut argument, 0, seat.client);
    bytes::put_u32(&mut argument, 4, object);
    bytes::put_u32(&mut argument, 12, u32::MAX);
    bytes::put_u32(&mut argument, 16, 1);
    let number = seat.number;
    let answer = seat.spell(number, SHARE, &argument, Interrupted::Again);
    done(answer, nvos57::STATUS, 0)
}

/// Gives its open driver, with memory in it that is exported and shared as widely as it goes, to another container through a
/// socket in a shared folder.
pub(super) fn fd_to_other_container(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    tally.grab(fixture.quota_bytes / 8, |bytes| seat.memory(bytes));
    let Answer::Done(memory) = seat.memory(PIECE_BYTES) else {
        anyhow::bail!("no memory to give away");
    };
    tally.count(Answer::Done(memory), PIECE_BYTES);
    let shared = share_with_all(&mut seat, memory);
    let (transfer_file, exported) = export(&mut seat, memory)?;
    let listener = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::empty(),
        None,
    )?;
    let path = fixture.out.join("shared.sock");
    bind(listener.as_raw_fd(), &UnixAddr::new(&path)?)?;
    listen(&listener, nix::sys::socket::Backlog::new(1)?)?;
    // Both containers' users may connect.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    crate::tell(&fixture.out, "listening", &json!({}))?;
    let connection = sys::fd_passing::accept(listener.as_fd())?;
    let mut names = seat.client.to_le_bytes().to_vec();
    names.extend(seat.device.to_le_bytes());
    names.extend(memory.to_le_bytes());
    let files = [
        seat.ctl.as_raw_fd(),
        seat.node.as_raw_fd(),
        transfer_file.as_raw_fd(),
    ];
    let message = [IoSlice::new(&names)];
    let control = [ControlMessage::ScmRights(&files)];
    sendmsg::<UnixAddr>(
        connection.as_raw_fd(),
        &message,
        &control,
        MsgFlags::empty(),
        None,
    )?;
    fixture.keep((seat, connection, transfer_file));
    Ok(json!({"tally": tally.json(), "shared": shared.text(), "exported": exported.text()}))
}

/// Takes what the other container gives, and allocates through it and beside it.
pub(super) fn fd_from_other_container(fixture: &mut Fixture) -> Result<Value> {
    let connection = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::empty(),
        None,
    )?;
    connect(
        connection.as_raw_fd(),
        &UnixAddr::new(&fixture.out.join("shared.sock"))?,
    )?;
    let mut names = [0; 12];
    let (_length, files) = sys::fd_passing::receive(connection.as_fd(), &mut names)?;
    let name = |at| bytes::u32_at(&names, at).unwrap_or(0);
    let (client, device, memory) = (name(0), name(4), name(8));
    let file = files.first().context("a file came")?;
    let mut foreign = Tally::default();
    let mut calls = Calls::on(file.as_raw_fd())?;
    for _try in 0..16 {
        let answer = calls.memory_as(client, device, new_handle(), PIECE_BYTES);
        foreign.count(answer, PIECE_BYTES);
    }
    // The giver's memory under a handle of one's own: duplicated by name, imported from each file.
    let mut seat = Seat::take()?;
    for object in [memory, device, client] {
        foreign.count(seat.duplicate(Target { client, object }), 0);
    }
    for transfer_file in &files {
        foreign.count(import(&mut seat, transfer_file.as_raw_fd()), 0);
    }
    // A client of its own on the file that it was given, and one on a file of its own.
    let given = File::from(file.try_clone()?);
    let mut tally = Tally::default();
    let mut on_given = Seat::on(given);
    if let Ok(seat) = &mut on_given {
        tally.grab(fixture.quota_bytes, |bytes| seat.memory(bytes));
    }
    tally.grab(fixture.quota_bytes, |bytes| seat.memory(bytes));
    let own_on_given = match &on_given {
        Ok(_) => "done".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    fixture.keep((seat, files));
    fixture.keep(on_given.ok());
    Ok(json!({"foreign": foreign.json(), "own_on_given": own_on_given, "tally": tally.json()}))
}
