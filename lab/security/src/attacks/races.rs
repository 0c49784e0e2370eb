//! Changing what is asked between the check and the use.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nvabi::class;
use nvabi::layout::{memory_params, nvos21, nvos64};
use serde_json::{Value, json};

use crate::pace::Pace;
use crate::seat::{
    ALLOC, ARGUMENT_AT, Answer, Calls, Interrupted, New, PARAMS_AT, Seat, Target, allocated,
    memory_block, new_handle,
};
use crate::tally::Tally;
use crate::{Fixture, child, kernel};

const SMALL_BYTES: u64 = 64 << 10;
const LARGE_BYTES: u64 = 16 << 20;
/// How many calls a race is run for at most.
const CALLS_MOST: u64 = 3000;

/// Two contents of one place in memory.
#[derive(Clone)]
struct Flip {
    address: u64,
    one: Vec<u8>,
    other: Vec<u8>,
}

impl Flip {
    fn turn(&self) {
        kernel::scribble(self.address, &self.one);
        kernel::scribble(self.address, &self.other);
    }
}

/// Runs calls while a second thread flips.
fn against_thread(flip: Flip, mut call: impl FnMut() -> Answer) -> Tally {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let (began, begins) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // The receiver waits for it.
        let _received = began.send(());
        while !stopped.load(Ordering::Relaxed) {
            flip.turn();
        }
    });
    let _begun = begins.recv();
    let tally = race(&mut call);
    stop.store(true, Ordering::Relaxed);
    // It holds nothing that could panic.
    let _ended = thread.join();
    tally
}

fn race(call: &mut impl FnMut() -> Answer) -> Tally {
    let mut tally = Tally::default();
    let pace = Pace::race();
    for made in 0..CALLS_MOST {
        if !pace.goes_on(made) {
            break;
        }
        tally.count(call(), 0);
    }
    tally
}

/// One allocation whose struct is written anew and then left to the race.
fn allocation(seat: &mut Seat, class: u32, size_bytes: u64) -> Answer {
    let new = New {
        client: seat.client,
        parent: seat.device,
        handle: new_handle(),
        class,
    };
    /// `NVOS32_ATTR_LOCATION_ANY`, which the driver takes for either class, with `NVOS32_ATTR_PHYSICALITY_ALLOW_NONCONTIGUOUS`.
    const ANYWHERE: u32 = 3 << 25 | 3 << 27;
    let mut block = memory_block(size_bytes);
    nvabi::bytes::put_u32(&mut block, memory_params::ATTR, ANYWHERE);
    let argument = seat.allocation(new, &block);
    let number = seat.number;
    let answer = seat.spell(number, u64::from(ALLOC), &argument, Interrupted::Again);
    allocated(answer, nvos64::STATUS)
}

/// The same with a class that takes turns, so that both are seen even where the other side is seldom given a CPU.
fn of_either_class(seat: &mut Seat, turn: &mut u32) -> Answer {
    *turn += 1;
    let class = if turn.is_multiple_of(2) {
        class::NV01_MEMORY_SYSTEM
    } else {
        class::NV01_MEMORY_LOCAL_USER
    };
    allocation(seat, class, LARGE_BYTES)
}

fn class_place(seat: &Seat) -> Flip {
    Flip {
        address: seat.pages.address() + (ARGUMENT_AT + nvos21::H_CLASS) as u64,
        one: class::NV01_MEMORY_SYSTEM.to_le_bytes().to_vec(),
        other: class::NV01_MEMORY_LOCAL_USER.to_le_bytes().to_vec(),
    }
}

/// The class flips between memory that is not counted and memory that is.
pub(super) fn class_flip(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let flip = class_place(&seat);
    let mut turn = 0;
    let tally = against_thread(flip, || of_either_class(&mut seat, &mut turn));
    fixture.keep(seat);
    Ok(json!({"raced": tally.json(), "piece_bytes": LARGE_BYTES}))
}

/// The size flips between little and much.
pub(super) fn size_flip(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let flip = Flip {
        address: seat.pages.address() + (PARAMS_AT + memory_params::SIZE) as u64,
        one: SMALL_BYTES.to_le_bytes().to_vec(),
        other: LARGE_BYTES.to_le_bytes().to_vec(),
    };
    let tally = against_thread(flip, || {
        allocation(&mut seat, class::NV01_MEMORY_LOCAL_USER, SMALL_BYTES)
    });
    fixture.keep(seat);
    Ok(json!({"raced": tally.json()}))
}

/// The pointer to the parameters flips between two blocks.
pub(super) fn pointer_flip(fixture: &mut Fixture) -> Result<Value> {
    const OTHER_AT: usize = 4 * syscalls::probe::PAGE_BYTES;
    let mut seat = Seat::take()?;
    let base = seat.pages.address();
    let flip = Flip {
        address: base + (ARGUMENT_AT + nvos21::P_PARAMS) as u64,
        one: (base + PARAMS_AT as u64).to_le_bytes().to_vec(),
        other: (base + OTHER_AT as u64).to_le_bytes().to_vec(),
    };
    let tally = against_thread(flip, || {
        let _placed = seat.pages.write(OTHER_AT, &memory_block(LARGE_BYTES));
        allocation(&mut seat, class::NV01_MEMORY_LOCAL_USER, SMALL_BYTES)
    });
    fixture.keep(seat);
    Ok(json!({"raced": tally.json()}))
}

/// The class flips under the hands of a process that shares this one's memory but nothing else.
pub(super) fn flip_by_shared_memory(fixture: &mut Fixture) -> Result<Value> {
    fn flip(address: u64) {
        kernel::scribble(address, &class::NV01_MEMORY_SYSTEM.to_le_bytes());
        kernel::scribble(address, &class::NV01_MEMORY_LOCAL_USER.to_le_bytes());
    }
    let mut seat = Seat::take()?;
    let place = class_place(&seat);
    let other = kernel::sharing_memory(flip, place.address).context("start the other process")?;
    let mut turn = 0;
    let tally = race(&mut || of_either_class(&mut seat, &mut turn));
    nix::sys::signal::kill(other, nix::sys::signal::Signal::SIGKILL)?;
    nix::sys::wait::waitpid(other, None)?;
    fixture.keep(seat);
    Ok(json!({"raced": tally.json(), "piece_bytes": LARGE_BYTES}))
}

/// A parent writes into its child's memory through `/proc/<pid>/mem` while the child is in the call.
pub(super) fn flip_by_proc_mem(fixture: &mut Fixture) -> Result<Value> {
    let counters = kernel::shared_counters()?;
    let [calls, done, over, ..] = counters;
    let mut seat = Seat::take()?;
    let place = class_place(&seat);
    let caller = kernel::fork(move || {
        child::end_with_parent();
        let mut turn = 0;
        while over.load(Ordering::Relaxed) == 0 && calls.load(Ordering::Relaxed) < CALLS_MOST {
            let answer = of_either_class(&mut seat, &mut turn);
            calls.fetch_add(1, Ordering::Relaxed);
            done.fetch_add(u64::from(answer.is_done()), Ordering::Relaxed);
        }
        over.store(2, Ordering::Relaxed);
        child::hold()
    })?;
    fixture.keep_child(caller);
    let memory = File::options()
        .write(true)
        .open(format!("/proc/{caller}/mem"))
        .context("open the child's memory")?;
    let pace = Pace::race();
    let mut writes = 0u64;
    while pace.goes_on(calls.load(Ordering::Relaxed)) {
        for bytes in [&place.one, &place.other] {
            memory
                .write_all_at(bytes, place.address)
                .context("write into the child")?;
            writes += 1;
        }
    }
    over.store(1, Ordering::Relaxed);
    while over.load(Ordering::Relaxed) != 2 {
        std::thread::yield_now();
    }
    Ok(json!({
        "raced": {"done": done.load(Ordering::Relaxed), "calls": calls.load(Ordering::Relaxed)},
        "writes": writes, "piece_bytes": LARGE_BYTES,
    }))
}

/// Four threads allocate, duplicate and free the same few handles of one client.
pub(super) fn handle_race(fixture: &mut Fixture) -> Result<Value> {
    let seat = Seat::take()?;
    let handles: Vec<u32> = (0..6).map(|_| new_handle()).collect();
    let pace = Pace::race();
    let (number, client, device) = (seat.number, seat.client, seat.device);
    let threads: Vec<_> = (0..4usize)
        .map(|thread| {
            let handles = handles.clone();
            std::thread::spawn(move || -> Result<Tally> {
                let mut own = Calls::on(number)?;
                let mut tally = Tally::default();
                let mut turn = thread;
                for _call in (0..).take_while(|made| pace.goes_on(*made)) {
                    turn = turn.wrapping_mul(31).wrapping_add(7);
                    let pick = |salt: usize| handles.get((turn / 3 + salt) % 6).copied();
                    let (Some(one), Some(other)) = (pick(0), pick(1)) else {
                        break;
                    };
                    let answer = match turn % 4 {
                        0 | 1 => own.memory_as(client, device, one, SMALL_BYTES),
                        2 => own.duplicate_as(
                            Target {
                                client,
                                object: device,
                            },
                            one,
                            Target {
                                client,
                                object: other,
                            },
                        ),
                        _ => own.free_as(client, device, other),
                    };
                    tally.count(answer, 0);
                }
                Ok(tally)
            })
        })
        .collect();
    let mut tally = Tally::default();
    for thread in threads {
        if let Ok(counted) = thread.join() {
            tally.add(&counted?);
        }
    }
    fixture.keep(seat);
    Ok(json!({"raced": tally.json()}))
}
