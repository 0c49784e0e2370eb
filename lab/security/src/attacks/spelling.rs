//! One call in every spelling that the driver or the kernel would still understand.

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nvabi::layout::{nvos21, nvos64};
use nvabi::{bytes, class};
use serde_json::{Value, json};
use syscalls::probe::{Guard, PAGE_BYTES, Pages};

use crate::seat::{
    ALLOC, ALLOC_SHORT, Answer, CONTROL, Calls, Interrupted, New, Seat, allocated, errno_of,
    memory_block, new_handle, open,
};
use crate::tally::{PIECE_BYTES, Tally};
use crate::{Fixture, child, kernel};

/// Allocates by the long call under other command registers, and takes what it can get by each of them.
fn by_registers(fixture: &mut Fixture, registers: &[u64]) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    let mut calls = 0;
    for register in registers {
        tally.grab(fixture.quota_bytes, |bytes| {
            let new = New {
                client: seat.client,
                parent: seat.device,
                handle: new_handle(),
                class: class::NV01_MEMORY_LOCAL_USER,
            };
            let argument = seat.allocation(new, &memory_block(bytes));
            let number = seat.number;
            calls += 1;
            let answer = seat.spell(number, *register, &argument, Interrupted::Again);
            allocated(answer, nvos64::STATUS)
        });
    }
    fixture.keep(seat);
    Ok(json!({"tally": tally.json(), "calls": calls}))
}

/// The driver ignores the type byte.
pub(super) fn wrong_type_byte(fixture: &mut Fixture) -> Result<Value> {
    by_registers(fixture, &[0xc030_002b, 0xc030_542b, 0xc030_ff2b])
}

/// The kernel ignores the upper half of the register.
pub(super) fn high_bits(fixture: &mut Fixture) -> Result<Value> {
    let alloc = u64::from(ALLOC);
    by_registers(
        fixture,
        &[
            0x1_0000_0000 | alloc,
            0xffff_ffff_0000_0000 | alloc,
            0x8000_0000_0000_0000 | alloc,
        ],
    )
}

/// The driver ignores the direction.
pub(super) fn direction_bits(fixture: &mut Fixture) -> Result<Value> {
    by_registers(fixture, &[0x0030_462b, 0x4030_462b, 0x8030_462b])
}

/// The command that carries any other command, the old allocation and the registry. On a descriptor that is none, only a
/// filter answers otherwise than EBADF: what it lets pass is seen.
pub(super) fn xfer_tunnel(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let new = New {
        client: seat.client,
        parent: seat.device,
        handle: new_handle(),
        class: class::NV01_MEMORY_LOCAL_USER,
    };
    let inner = seat.allocation(new, &memory_block(PIECE_BYTES));
    const INNER_AT: usize = 3 * PAGE_BYTES;
    seat.pages
        .write(INNER_AT, &inner)
        .context("place the inner struct")?;
    // nv_ioctl_xfer_t: cmd 0, size 4, ptr 8.
    let mut tunnel = [0; 16];
    bytes::put_u32(&mut tunnel, 0, 0x2b);
    bytes::put_u32(&mut tunnel, 4, 48);
    bytes::put_u64(&mut tunnel, 8, seat.pages.address() + INNER_AT as u64);
    let mut answers = Vec::new();
    for cmd in [
        0xc010_46d3u64,
        0xc010_00d3,
        0x9_c010_46d3,
        0x4010_46d3,
        0xc014_4628,
        0xc048_464d,
    ] {
        for number in [seat.number, -1] {
            let mut argument = tunnel.to_vec();
            argument.resize(80, 0);
            let answer = seat.spell(number, cmd, &argument, Interrupted::Again);
            answers.push(json!({
                "cmd": format!("{cmd:#x}"), "descriptor": number >= 0,
                "answer": answer.map_or_else(|errno| format!("{errno:?}"), |_struct| "done".to_owned()),
            }));
        }
    }
    fixture.keep(seat);
    Ok(json!({"answers": answers, "tally": Tally::default().json()}))
}

/// How a child ended that makes one call through another table: its answer as code, or the signal that ended it.
pub(super) fn foreign_call(call: impl FnOnce() -> i64) -> Result<String> {
    let counters = kernel::shared_counters()?;
    let [answered, answer, ..] = counters;
    let child = kernel::fork(move || {
        child::end_with_parent();
        let value = call();
        answer.store(value.cast_unsigned(), std::sync::atomic::Ordering::SeqCst);
        answered.store(1, std::sync::atomic::Ordering::SeqCst);
        0
    })?;
    Ok(match waitpid(child, None)? {
        WaitStatus::Signaled(_, signal, _) => signal.as_str().to_owned(),
        _ if answered.load(std::sync::atomic::Ordering::SeqCst) == 0 => "no answer".to_owned(),
        _ => {
            let value = answer
                .load(std::sync::atomic::Ordering::SeqCst)
                .cast_signed();
            if value < 0 {
                let errno = i32::try_from(-value).unwrap_or(0);
                format!("{:?}", Errno::from_raw(errno))
            } else {
                "done".to_owned()
            }
        }
    })
}

/// `ioctl` through the 32-bit table, which the driver serves by the same function.
pub(super) fn compat_ioctl(fixture: &mut Fixture) -> Result<Value> {
    const IOCTL: u32 = 54;
    const GETPID: u32 = 20;
    let seat = Seat::take()?;
    let low = kernel::low_memory(8192)?;
    let new = New {
        client: seat.client,
        parent: seat.device,
        handle: new_handle(),
        class: class::NV01_MEMORY_LOCAL_USER,
    };
    let mut argument = seat.allocation(new, &[]);
    bytes::put_u64(&mut argument, nvos21::P_PARAMS, u64::from(low) + 4096);
    kernel::scribble(u64::from(low), &argument);
    kernel::scribble(u64::from(low) + 4096, &memory_block(PIECE_BYTES));
    let mut answers = serde_json::Map::new();
    let getpid = foreign_call(|| i64::from(kernel::call_i386(GETPID, [0; 6])))?;
    answers.insert("getpid".to_owned(), getpid.into());
    for (name, number) in [("driver", seat.number.cast_unsigned()), ("none", u32::MAX)] {
        for cmd in [ALLOC, ALLOC_SHORT, CONTROL, 0xc010_46d3, 33] {
            let ended =
                foreign_call(|| i64::from(kernel::call_i386(IOCTL, [number, cmd, low, 0, 0, 0])))?;
            answers.insert(format!("{name} {cmd:#x}"), ended.into());
        }
    }
    fixture.keep(seat);
    Ok(json!({"answers": answers, "tally": Tally::default().json()}))
}

/// `mmap` of nvidia-uvm through the 32-bit table: managed memory whose offset is its address.
pub(super) fn compat_mmap(fixture: &mut Fixture) -> Result<Value> {
    const MMAP2: u32 = 192;
    const OLD_MMAP: u32 = 90;
    const ADDRESS: u32 = 0x2000_0000;
    const BYTES: u32 = 4 << 20;
    const ACCESS: u32 = 3;
    const SHARED_FIXED: u32 = 0x11;
    use std::os::fd::AsRawFd;
    let uvm = open("nvidia-uvm")?;
    let number = uvm.as_raw_fd().cast_unsigned();
    let of_page = |page: u32| [ADDRESS, BYTES, ACCESS, SHARED_FIXED, number, page];
    let low = kernel::low_memory(4096)?;
    let old: Vec<u8> = [ADDRESS, BYTES, ACCESS, SHARED_FIXED, number, ADDRESS]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    kernel::scribble(u64::from(low), &old);
    // An address above 2 GiB would look like an error; this one is below.
    let by_number = foreign_call(|| i64::from(kernel::call_i386(MMAP2, of_page(ADDRESS >> 12))))?;
    let by_struct = foreign_call(|| i64::from(kernel::call_i386(OLD_MMAP, [low, 0, 0, 0, 0, 0])))?;
    let native = kernel::call(
        libc::SYS_mmap,
        [
            u64::from(ADDRESS),
            u64::from(BYTES),
            u64::from(ACCESS),
            u64::from(SHARED_FIXED),
            u64::from(number),
            u64::from(ADDRESS),
        ],
    );
    // What is mapped is charged until it is seen to be gone.
    if let Ok(address) = native {
        kernel::call(
            libc::SYS_munmap,
            [address.cast_unsigned(), u64::from(BYTES), 0, 0, 0, 0],
        )?;
    }
    fixture.keep(uvm);
    Ok(json!({
        "mmap2": by_number, "old_mmap": by_struct,
        "native": native.map_or_else(|errno| format!("{errno:?}"), |_address| "done".to_owned()),
        "tally": Tally::default().json(),
    }))
}

/// `ioctl` through the x32 table, by its own number and by the native one with x32's bit.
pub(super) fn x32_ioctl(fixture: &mut Fixture) -> Result<Value> {
    const X32: i64 = 0x4000_0000;
    let seat = Seat::take()?;
    let mut answers = serde_json::Map::new();
    for (name, number) in [("514", X32 | 514), ("16", X32 | 16)] {
        for (file, descriptor) in [
            ("driver", u64::from(seat.number.cast_unsigned())),
            ("none", u64::MAX),
        ] {
            let args = [descriptor, u64::from(ALLOC), seat.pages.address(), 0, 0, 0];
            let ended = foreign_call(|| match kernel::call(number, args) {
                Ok(value) => value,
                Err(errno) => -i64::from(errno as i32),
            })?;
            answers.insert(format!("{name} {file}"), ended.into());
        }
    }
    fixture.keep(seat);
    Ok(json!({"answers": answers, "tally": Tally::default().json()}))
}

/// Parameters in the serialised form that nobody on the way can read, and the flags that skip the driver's locks.
pub(super) fn serialised_parameters(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    for flags in [1u32, 3, 0x8000_0001] {
        let new = New {
            client: seat.client,
            parent: seat.device,
            handle: new_handle(),
            class: class::NV01_MEMORY_LOCAL_USER,
        };
        let mut argument = seat.allocation(new, &memory_block(PIECE_BYTES));
        bytes::put_u32(&mut argument, nvos64::FLAGS, flags);
        let number = seat.number;
        let answer = seat.spell(number, u64::from(ALLOC), &argument, Interrupted::Again);
        tally.count(allocated(answer, nvos64::STATUS), PIECE_BYTES);
    }
    let mut controls = Tally::default();
    let subdevice = seat.own(seat.subdevice);
    for flags in [1, 2, 4, 7] {
        let cmd = nvabi::control::NV2080_CTRL_CMD_GPU_GET_NAME_STRING;
        controls.count(seat.control(subdevice, cmd, flags, &[0; 132]), 0);
    }
    fixture.keep(seat);
    Ok(json!({"tally": tally.json(), "controls": controls.json()}))
}

/// Structs and parameters at the ends of pages, in memory that cannot be written, in none at all, and in the kernel's.
pub(super) fn bad_pointers(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let (closed, read_only) = (
        Pages::new(1, Guard::Closed)?,
        Pages::new(1, Guard::ReadOnly)?,
    );
    let mut tally = Tally::default();
    let mut odd = Tally::default();
    let (client, device) = (seat.client, seat.device);
    let number = seat.number;
    let of = |calls: &mut Calls, params: u64| {
        let new = New {
            client,
            parent: device,
            handle: new_handle(),
            class: class::NV01_MEMORY_LOCAL_USER,
        };
        let mut argument = calls.allocation(new, &[]);
        bytes::put_u64(&mut argument, nvos21::P_PARAMS, params);
        let answer = calls.spell(number, u64::from(ALLOC), &argument, Interrupted::Again);
        allocated(answer, nvos64::STATUS)
    };
    let block = memory_block(PIECE_BYTES);
    // Ends with its page: good.
    let end = PAGE_BYTES - block.len();
    closed.write(end, &block).context("place parameters")?;
    tally.count(of(&mut seat, closed.address() + end as u64), PIECE_BYTES);
    // Crosses into what cannot be read, or not be written, is there only in part, or is not there.
    for (pages, back) in [
        (&closed, 64),
        (&closed, 127),
        (&read_only, 72),
        (&read_only, 100),
    ] {
        let at = PAGE_BYTES - back;
        let fits: Vec<u8> = block.iter().copied().take(back).collect();
        pages.write(at, &fits).context("place parameters")?;
        odd.count(of(&mut seat, pages.address() + at as u64), 0);
    }
    for address in [
        1,
        PAGE_BYTES as u64,
        u64::MAX - 63,
        0x7fff_ffff_ff80,
        0x8000_0000_0000,
        0xffff_8000_0000_0000,
        0xffff_ffff_8100_0000,
    ] {
        odd.count(of(&mut seat, address), 0);
    }
    // The struct itself: across the edge, and where it cannot be written.
    let mut structs = Tally::default();
    for (pages, at) in [
        (&closed, PAGE_BYTES - 24),
        (&closed, PAGE_BYTES - 47),
        (&closed, PAGE_BYTES),
        (&read_only, PAGE_BYTES - 40),
        (&read_only, PAGE_BYTES),
    ] {
        let answer = match pages.ioctl(number, u64::from(ALLOC), at) {
            Ok(_value) => Answer::Done(0),
            Err(error) => Answer::Errno(errno_of(&error) as i32),
        };
        structs.count(answer, 0);
    }
    // Executed for sure, but the answer cannot be told: again and again.
    for _try in 0..2 * fixture.quota_bytes / PIECE_BYTES {
        let at = PAGE_BYTES - 72;
        let fits: Vec<u8> = block.iter().copied().take(72).collect();
        read_only.write(at, &fits).context("place parameters")?;
        odd.count(of(&mut seat, read_only.address() + at as u64), 0);
    }
    fixture.keep((seat, closed, read_only));
    Ok(json!({
        "at_the_edge": tally.json(), "odd": odd.json(), "structs": structs.json(),
    }))
}
