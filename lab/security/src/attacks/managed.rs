//! Managed memory that is mapped where, when and by whom nobody looks.
//!
//! What an attack has got is said by the tables of its processes' mappings: the stretches of nvidia-uvm whose offset is
//! their address.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::unistd::Pid;
use serde_json::{Map, Value, json};

use crate::seat::open;
use crate::{Fixture, kernel};

/// Far from what the kernel chooses itself.
const ADDRESS: u64 = 0x2_0000_0000;
const APART: u64 = 0x40_0000_0000;

const SHARED: u64 = 0x01;
const VALIDATED: u64 = 0x03;
const FIXED: u64 = 0x10;
const GROWS_DOWN: u64 = 0x100;
const NO_RESERVE: u64 = 0x4000;
const POPULATED_LATER: u64 = 0x1_0000;
const NOT_OVER_OTHERS: u64 = 0x10_0000;

/// More than two heartbeats of a broker.
const LONG: Duration = Duration::from_secs(3);

fn map(address: u64, length: u64, flags: u64, number: i32, offset: u64) -> Result<u64, Errno> {
    let number = u64::from(number.cast_unsigned());
    let args = [address, length, 3, flags, number, offset];
    kernel::call(libc::SYS_mmap, args).map(i64::cast_unsigned)
}

fn unmap(address: u64, length: u64) -> Result<()> {
    kernel::call(libc::SYS_munmap, [address, length, 0, 0, 0, 0])?;
    Ok(())
}

/// What a table of mappings has of managed memory.
fn managed_bytes(table: &str) -> Result<u64> {
    let text = std::fs::read(table).with_context(|| format!("read {table}"))?;
    let text = String::from_utf8_lossy(&text);
    let mut bytes = 0_u64;
    for line in text.lines().filter(|line| line.contains("nvidia-uvm")) {
        let mut fields = line.split_ascii_whitespace();
        let (from, end) = fields
            .next()
            .and_then(|range| range.split_once('-'))
            .context("a range")?;
        let is_shared = fields.next().is_some_and(|access| access.ends_with('s'));
        let offset = u64::from_str_radix(fields.next().context("an offset")?, 16)?;
        let (from, end) = (
            u64::from_str_radix(from, 16)?,
            u64::from_str_radix(end, 16)?,
        );
        if is_shared && offset == from {
            bytes = bytes.saturating_add(end.saturating_sub(from));
        }
    }
    Ok(bytes)
}

fn text(answer: Result<u64, Errno>) -> Value {
    match answer {
        Ok(_address) => "done".into(),
        Err(errno) => format!("{errno:?}").into(),
    }
}

/// Confines this thread to the first processor, and lets it have what nobody else wants of it.
fn starve() -> Result<(), Errno> {
    const IDLE: u64 = 5;
    confine()?;
    let priority = [0_u32; 2];
    let pointer = address_of(&raw const priority);
    kernel::call(libc::SYS_sched_setscheduler, [0, IDLE, pointer, 0, 0, 0]).map(drop)
}

fn confine() -> Result<(), Errno> {
    let mut processors = [0_u64; 128];
    let pointer = address_of(&raw const processors);
    kernel::call(libc::SYS_sched_getaffinity, [0, 1024, pointer, 0, 0, 0])?;
    let mut is_first = true;
    for word in &mut processors {
        *word = if is_first {
            *word & word.wrapping_neg()
        } else {
            0
        };
        is_first &= *word == 0;
    }
    let pointer = address_of(&raw const processors);
    kernel::call(libc::SYS_sched_setaffinity, [0, 1024, pointer, 0, 0, 0]).map(drop)
}

fn address_of<T>(pointer: *const T) -> u64 {
    u64::try_from(pointer.expose_provenance()).unwrap_or_default()
}

/// Two threads that get no processor between the answer and their mapping, one after the other: each for most of the slice.
pub(super) fn managed_late(fixture: &mut Fixture) -> Result<Value> {
    let file = open("nvidia-uvm")?;
    let number = file.as_raw_fd();
    let length = fixture.quota_bytes / 4 * 3;
    let is_over = Arc::new(AtomicBool::new(false));
    let busy: Vec<JoinHandle<Result<(), Errno>>> = (0..3)
        .map(|_| {
            let is_over = Arc::clone(&is_over);
            spawn(move || {
                confine()?;
                while !is_over.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                Ok(())
            })
        })
        .collect();
    let mut starved = Vec::new();
    for at in 0..3 {
        let address = ADDRESS + at * APART;
        starved.push(spawn(move || {
            starve()?;
            map(address, length, SHARED | FIXED, number, address)
        }));
        sleep(LONG);
    }
    is_over.store(true, Ordering::SeqCst);
    for thread in busy {
        drop(thread.join());
    }
    let answers: Vec<Value> = starved
        .into_iter()
        .map(|thread| thread.join().map_or(Value::Null, text))
        .collect();
    let bytes = managed_bytes("/proc/self/maps")?;
    // A simulated card's own account does not have them, and is compared with the ledger next.
    for at in 0..3 {
        unmap(ADDRESS + at * APART, length)?;
    }
    fixture.keep(file);
    Ok(json!({"answers": answers, "managed_bytes": bytes}))
}

/// Every flag, at low and high addresses, and by way of calls that give a mapping another place or another offset: each
/// time twice the slice.
pub(super) fn managed_unseen(fixture: &mut Fixture) -> Result<Value> {
    let file = open("nvidia-uvm")?;
    let number = file.as_raw_fd();
    let length = fixture.quota_bytes * 2;
    let mut answers = Map::new();
    let mut most = 0;
    let dirty = 1_u64 << 40;
    for address in [0, 0x1000, 0x2000, 0x8000, 0xf000, 0x1_0000, ADDRESS] {
        for flags in [
            SHARED,
            VALIDATED,
            SHARED | FIXED,
            VALIDATED | FIXED,
            SHARED | NOT_OVER_OTHERS,
            VALIDATED | NOT_OVER_OTHERS,
            SHARED | NOT_OVER_OTHERS | dirty,
            SHARED | FIXED | dirty | GROWS_DOWN,
            SHARED | NOT_OVER_OTHERS | NO_RESERVE | POPULATED_LATER,
        ] {
            let answer = map(address, length, flags, number, address);
            most = most.max(managed_bytes("/proc/self/maps")?);
            if let Ok(at) = answer {
                unmap(at, length)?;
            }
            answers.insert(format!("{address:#x} {flags:#x}"), text(answer));
        }
    }
    // From the file's beginning, which no rule can close: nothing is held so, but it is a mapping of the file.
    let at = ADDRESS + APART;
    let elsewhere = map(at, length, SHARED, number, 0);
    if let Ok(from) = elsewhere {
        const REMAP: i64 = libc::SYS_remap_file_pages;
        let page = from >> 12;
        let answer = kernel::call(REMAP, [from, length, 0, page, 0, 0]);
        most = most.max(managed_bytes("/proc/self/maps")?);
        answers.insert(
            "remap_file_pages".to_owned(),
            text(answer.map(i64::cast_unsigned)),
        );
        unmap(from, length)?;
    }
    fixture.keep(file);
    Ok(json!({"answers": answers, "managed_bytes": most}))
}

/// A child keeps a copy of what its parent gives up, and a process whose first thread has ended keeps what it has. Each
/// time there is room for one.
pub(super) fn managed_heirs(fixture: &mut Fixture) -> Result<Value> {
    let length = fixture.quota_bytes / 4 * 3;
    let file = open("nvidia-uvm")?;
    let number = file.as_raw_fd();
    let mut answers = Map::new();
    let mut most = 0;
    let mut heir = |name: &str, child: Pid, tables: &dyn Fn() -> Result<u64>| -> Result<()> {
        for _ in 0..4 {
            let answer = map(
                ADDRESS + APART,
                length,
                SHARED | FIXED,
                number,
                ADDRESS + APART,
            );
            most = most.max(tables()?.saturating_add(managed_bytes("/proc/self/maps")?));
            if let Ok(at) = answer {
                unmap(at, length)?;
            }
            answers.insert(name.to_owned(), text(answer));
            sleep(LONG / 4);
        }
        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL)?;
        nix::sys::wait::waitpid(child, None)?;
        Ok(())
    };

    let begun = map(ADDRESS, length, SHARED | FIXED, number, ADDRESS);
    let child = kernel::fork(|| {
        sleep(LONG * 100);
        0
    })?;
    unmap(ADDRESS, length)?;
    heir("forked", child, &|| {
        managed_bytes(&format!("/proc/{child}/maps"))
    })?;

    let child = kernel::fork(move || {
        if map(ADDRESS, length, SHARED | FIXED, number, ADDRESS).is_err() {
            return 1;
        }
        spawn(|| sleep(LONG * 100));
        sleep(LONG / 6);
        // The thread alone, not the process.
        i32::from(kernel::call(libc::SYS_exit, [0; 6]).is_err())
    })?;
    sleep(LONG / 3);
    let of_others = || {
        let mut most = 0;
        for task in std::fs::read_dir(format!("/proc/{child}/task"))? {
            let table = task?.path().join("maps");
            most = most.max(managed_bytes(&table.display().to_string())?);
        }
        Ok(most)
    };
    let kept = of_others()?;
    heir("headless", child, &of_others)?;
    answers.insert("kept".to_owned(), kept.into());
    fixture.keep(file);
    answers.insert("begun".to_owned(), text(begun));
    Ok(json!({"answers": answers, "managed_bytes": most}))
}

/// A few pages of every 2 MiB of managed memory stay mapped: nvidia-uvm keeps those 2 MiB of the card for them, and takes others for what is mapped next.
pub(super) fn managed_cut(fixture: &mut Fixture) -> Result<Value> {
    const BLOCK: u64 = 2 << 20;
    const LEFT: u64 = 64 << 10;
    let file = open("nvidia-uvm")?;
    let number = file.as_raw_fd();
    let length = (fixture.quota_bytes / 4 * 3) & !(BLOCK - 1);
    let blocks = || (ADDRESS..ADDRESS + length).step_by(usize::try_from(BLOCK).unwrap_or(1));
    let begun = map(ADDRESS, length, SHARED | FIXED, number, ADDRESS);
    for block in blocks() {
        unmap(block + LEFT, BLOCK - LEFT)?;
    }
    let again = || {
        let address = ADDRESS + APART;
        let answer = map(address, length, SHARED | FIXED, number, address);
        if answer.is_ok() {
            unmap(address, length)?;
        }
        anyhow::Ok(answer)
    };
    let mut cut = Ok(0);
    for _ in 0..4 {
        sleep(LONG / 4);
        cut = again()?;
        if cut.is_ok() {
            break;
        }
    }
    for block in blocks() {
        unmap(block, LEFT)?;
    }
    let mut whole = again()?;
    for _ in 0..8 {
        if whole.is_ok() {
            break;
        }
        sleep(LONG / 4);
        whole = again()?;
    }
    fixture.keep(file);
    Ok(json!({"begun": text(begun), "cut": text(cut), "whole": text(whole)}))
}
