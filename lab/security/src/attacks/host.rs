//! The host's own memory, which a driver takes for whoever asks and no control group counts.

use std::os::fd::AsRawFd;

use anyhow::Result;
use nvabi::layout::{nvos02, nvos32, nvos64};
use nvabi::{Release, bytes, class, escape, uvm};
use serde_json::{Value, json};

use crate::Fixture;
use crate::seat::{
    ALLOC, Answer, Calls, Interrupted, New, Seat, allocated, done, memory_block, new_handle, open,
};
use crate::tally::Tally;

const RELEASE: Release = Release::R570;
const GIB: u64 = 1 << 30;
/// Sizes that are tried one after another, many times each.
const SIZES: [(u64, usize); 4] = [(1 << 39, 2), (64 * GIB, 2), (GIB, 40), (64 << 20, 8)];

fn by_class(seat: &mut Seat, size: u64) -> Answer {
    let new = New {
        client: seat.client,
        parent: seat.device,
        handle: new_handle(),
        class: class::NV01_MEMORY_SYSTEM,
    };
    let mut block = memory_block(size);
    bytes::put_u32(&mut block, 24, 1 << 25 | 3 << 27);
    let argument = seat.allocation(new, &block);
    let number = seat.number;
    let answer = seat.spell(number, u64::from(ALLOC), &argument, Interrupted::Again);
    allocated(answer, nvos64::STATUS)
}

/// `attr` bits 26:25: behind PCI, a value without a name, and anywhere. All are the host's memory to a driver.
const PLACES: [u32; 3] = [1 << 25, 2 << 25, 3 << 25];

fn by_heap(seat: &mut Seat, attr: u32, size: u64) -> Answer {
    let handle = new_handle();
    let mut argument = vec![0; 184];
    bytes::put_u32(&mut argument, nvos32::H_ROOT, seat.client);
    bytes::put_u32(&mut argument, nvos32::H_PARENT, seat.device);
    bytes::put_u32(&mut argument, nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE);
    bytes::put_u32(&mut argument, nvos32::ALLOC_H_MEMORY, handle);
    bytes::put_u32(&mut argument, nvos32::ALLOC_ATTR, attr);
    bytes::put_u64(&mut argument, nvos32::ALLOC_SIZE, size);
    let cmd = u64::from(escape::NV_ESC_RM_VID_HEAP_CONTROL.cmd(RELEASE));
    let number = seat.number;
    let answer = seat.spell(number, cmd, &argument, Interrupted::Again);
    done(answer, nvos32::STATUS, handle)
}

fn by_old_call(seat: &mut Seat, size: u64) -> Answer {
    let handle = new_handle();
    let mut argument = vec![0; 56];
    bytes::put_u32(&mut argument, nvos02::H_ROOT, seat.client);
    bytes::put_u32(&mut argument, nvos02::H_PARENT, seat.device);
    bytes::put_u32(&mut argument, nvos02::H_NEW, handle);
    bytes::put_u32(&mut argument, nvos02::H_CLASS, class::NV01_MEMORY_SYSTEM);
    bytes::put_u32(&mut argument, nvos02::FD, u32::MAX);
    bytes::put_u64(&mut argument, nvos02::LIMIT, size - 1);
    let cmd = u64::from(escape::NV_ESC_RM_ALLOC_MEMORY.cmd(RELEASE));
    let number = seat.node.as_raw_fd();
    let answer = seat.spell(number, cmd, &argument, Interrupted::Again);
    done(answer, nvos02::STATUS, handle)
}

/// As much of the host's memory as the driver gives, by every way to it.
pub(super) fn host_memory(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let file = open("nvidia-uvm")?;
    let mut pools = Calls::on(file.as_raw_fd())?;
    let (mut sum, mut base) = (Tally::default(), 1_u64 << 40);
    for (size, times) in SIZES {
        for _time in 0..times {
            for way in [by_class, by_old_call] {
                sum.count(way(&mut seat, size), size);
            }
            for attr in PLACES {
                sum.count(by_heap(&mut seat, attr, size), size);
            }
            let row = uvm::UVM_ALLOC_SEMAPHORE_POOL;
            let mut argument = vec![0; usize::try_from(row.size.of(RELEASE))?];
            bytes::put_u64(&mut argument, uvm::map_external::BASE, base);
            bytes::put_u64(&mut argument, uvm::map_external::LENGTH, size);
            base += size;
            let number = pools.number;
            let answer = pools.spell(number, u64::from(row.cmd), &argument, Interrupted::Again);
            let status_at = usize::try_from(row.status.of(RELEASE))?;
            sum.count(done(answer, status_at, 0), size);
        }
    }
    let granted = sum.bytes;
    sum.bytes = 0;
    fixture.keep((seat, file));
    Ok(json!({"tally": Tally::default().json(), "host": sum.json(), "granted_bytes": granted}))
}
