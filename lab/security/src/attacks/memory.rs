//! Ways to card memory beside the plain allocation, and references that outlive a handle.

use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nvabi::layout::{channel_group_params, channel_params, memory_params, nvos02, nvos32, nvos64};
use nvabi::{bytes, class, uvm};
use rmclient::{Client, Form, Nodes};
use rmprogram::{CardExports, CardMemory, Error, GpuRange, Uvm};
use serde_json::{Value, json};

use crate::seat::{
    ALLOC, Answer, Interrupted, New, Seat, allocated, done, memory_block, new_handle, open,
};
use crate::tally::{PIECE_BYTES, Tally};
use crate::{Fixture, kernel};

/// Parameters of memory of the host's for a channel's USERD.
fn userd_block() -> [u8; 128] {
    /// `NVOS32_ATTR_LOCATION_PCI`, `NVOS32_ATTR_PHYSICALITY_ALLOW_NONCONTIGUOUS`
    const ATTR: u32 = 1 << 25 | 3 << 27;
    let mut block = memory_block(channel_params::USERD_BYTES);
    bytes::put_u32(&mut block, memory_params::ATTR, ATTR);
    block
}

/// Allocates, takes a second handle and frees the first, again and again: what a count by handle forgets.
pub(super) fn reference_then_free(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    let mut duplicates = Tally::default();
    for _piece in 0..2 * fixture.quota_bytes / PIECE_BYTES {
        let answer = seat.memory(PIECE_BYTES);
        tally.count(answer, PIECE_BYTES);
        let Answer::Done(handle) = answer else {
            continue;
        };
        let source = seat.own(handle);
        let copy = seat.duplicate(source);
        duplicates.count(copy, 0);
        let freed = seat.free(handle);
        anyhow::ensure!(freed.is_done(), "freeing: {}", freed.text());
        if !copy.is_done() {
            tally.bytes -= PIECE_BYTES;
        }
    }
    fixture.keep(seat);
    Ok(json!({"tally": tally.json(), "duplicates": duplicates.json()}))
}

/// A client of the library's, for the rest of the process.
fn client() -> Result<&'static Client> {
    Ok(Box::leak(Box::new(Client::connect(&Nodes::default())?)))
}

/// Keeps what borrows from [`client`] for the rest of the process.
fn hold<T>(thing: T) {
    Box::leak(Box::new(thing));
}

/// Allocates, maps into a GPU address space and frees the handle.
pub(super) fn map_then_free(fixture: &mut Fixture) -> Result<Value> {
    let client = client()?;
    let cards = client.cards()?;
    let card = cards.first().context("no card is granted")?;
    let uvm = Uvm::open(client)?;
    let uuid = card.uuid()?;
    uvm.register(uuid)?;
    let space = card.va_space()?;
    uvm.register_va_space(uuid, space)?;
    let mut tally = Tally::default();
    for piece in 0..2 * fixture.quota_bytes / PIECE_BYTES {
        let Ok(memory) = card.allocate(Form::Short, PIECE_BYTES) else {
            tally.count(Answer::Status(nvabi::status::NV_ERR_NO_MEMORY), 0);
            continue;
        };
        let range = GpuRange {
            base: (1 << 36) + piece * PIECE_BYTES,
            length_bytes: PIECE_BYTES,
        };
        uvm.create_range(range)?;
        let mapped = uvm.map(range, uuid, memory.handle);
        card.free(memory.handle)?;
        tally.count(
            mapped.map_or(Answer::Errno(libc::EIO), |()| Answer::Done(0)),
            PIECE_BYTES,
        );
    }
    hold(uvm);
    hold(cards);
    Ok(json!({"tally": tally.json()}))
}

/// Allocates, exports to a file and frees the handle. Where exports are refused, nothing is left.
pub(super) fn export_then_free(fixture: &mut Fixture) -> Result<Value> {
    let client = client()?;
    let cards = client.cards()?;
    let card = cards.first().context("no card is granted")?;
    let mut tally = Tally::default();
    let mut files = Vec::new();
    for _piece in 0..2 * fixture.quota_bytes / PIECE_BYTES {
        let Ok(memory) = card.allocate(Form::Short, PIECE_BYTES) else {
            tally.count(Answer::Status(nvabi::status::NV_ERR_NO_MEMORY), 0);
            continue;
        };
        let exported = card.export(memory.handle);
        card.free(memory.handle)?;
        match exported {
            Ok(file) => {
                files.push(file);
                tally.count(Answer::Done(0), PIECE_BYTES);
            }
            Err(error) => {
                let status = error.status().map_or(0, |status| status.0);
                tally.count(Answer::Status(status), 0);
            }
        }
    }
    fixture.keep(files);
    hold(cards);
    Ok(json!({"tally": tally.json()}))
}

/// Registers a channel with nvidia-uvm, which holds its group, and frees the group; then the same with an address space.
pub(super) fn register_then_free(_fixture: &mut Fixture) -> Result<Value> {
    const AMPERE_CHANNEL: u32 = 0xc56f;
    let client = client()?;
    let cards = client.cards()?;
    let card = cards.first().context("no card is granted")?;
    let uuid = card.uuid()?;
    let (mut channels, mut spaces) = (Tally::default(), Tally::default());
    let uvm = Uvm::open(client)?;
    uvm.register(uuid)?;
    let space = card.va_space()?;
    uvm.register_va_space(uuid, space)?;
    let class = class::NV01_MEMORY_SYSTEM;
    let mut block = userd_block();
    let userd = client.allocate(Form::Short, card.device(), class, &mut block)?;
    for _group in 0..1500 {
        let mut params = [0; 20];
        bytes::put_u32(&mut params, channel_group_params::ENGINE_TYPE, 1);
        let class = class::KEPLER_CHANNEL_GROUP_A;
        let Ok(group) = client.allocate(Form::Short, card.device(), class, &mut params) else {
            channels.count(Answer::Status(nvabi::status::NV_ERR_NO_MEMORY), 0);
            continue;
        };
        let mut params = [0; 368];
        bytes::put_u32(&mut params, channel_params::GP_FIFO_ENTRIES, 64);
        bytes::put_u64(&mut params, channel_params::GP_FIFO_OFFSET, 1 << 20);
        bytes::put_u32(&mut params, channel_params::H_VA_SPACE, space.0);
        bytes::put_u32(&mut params, channel_params::H_USERD_MEMORY, userd.0);
        bytes::put_u32(&mut params, channel_params::ENGINE_TYPE, 1);
        let channel = client.allocate(Form::Short, group, AMPERE_CHANNEL, &mut params);
        let registered = channel
            .map_err(Error::from)
            .and_then(|channel| uvm.register_channel(uuid, channel));
        client.free(card.device(), group)?;
        channels.count(answer_of(registered), 0);
    }
    let mut files = vec![uvm];
    for _space in 0..16 {
        let uvm = Uvm::open(client)?;
        uvm.register(uuid)?;
        let Ok(space) = card.va_space() else {
            spaces.count(Answer::Status(nvabi::status::NV_ERR_NO_MEMORY), 0);
            continue;
        };
        let registered = uvm.register_va_space(uuid, space);
        client.free(card.device(), space)?;
        spaces.count(answer_of(registered), 0);
        files.push(uvm);
    }
    hold(files);
    hold(cards);
    Ok(json!({"channels": channels.json(), "spaces": spaces.json()}))
}

fn answer_of(result: Result<(), Error>) -> Answer {
    result.map_or_else(
        |error| Answer::Status(error.status().map_or(0, |status| status.0)),
        |()| Answer::Done(0),
    )
}

/// Channel groups by the thousand, and channels in them: none has a size that could be counted.
pub(super) fn channel_groups(fixture: &mut Fixture) -> Result<Value> {
    const AMPERE_CHANNEL: u32 = 0xc56f;
    let mut seat = Seat::take()?;
    let (mut groups, mut channels) = (Tally::default(), Tally::default());
    let mut params = [0; 20];
    bytes::put_u32(&mut params, channel_group_params::ENGINE_TYPE, 1);
    let mut last = None;
    for _group in 0..3000 {
        let answer = seat.make(seat.device, class::KEPLER_CHANNEL_GROUP_A, &params);
        groups.count(answer, 0);
        if let Answer::Done(group) = answer {
            last = Some(group);
        }
    }
    if let Some(group) = last {
        let Answer::Done(space) = seat.make(seat.device, class::FERMI_VASPACE_A, &[0; 48]) else {
            return Ok(json!({"groups": groups.json(), "channels": "no address space"}));
        };
        let class = class::NV01_MEMORY_SYSTEM;
        let Answer::Done(userd) = seat.make(seat.device, class, &userd_block()) else {
            anyhow::bail!("no memory for USERD")
        };
        let mut params = [0; 368];
        bytes::put_u32(&mut params, channel_params::GP_FIFO_ENTRIES, 64);
        bytes::put_u64(&mut params, channel_params::GP_FIFO_OFFSET, 1 << 20);
        bytes::put_u32(&mut params, channel_params::H_VA_SPACE, space);
        bytes::put_u32(&mut params, channel_params::H_USERD_MEMORY, userd);
        bytes::put_u32(&mut params, channel_params::ENGINE_TYPE, 1);
        for _channel in 0..400 {
            channels.count(seat.make(group, AMPERE_CHANNEL, &params), 0);
        }
    }
    fixture.keep(seat);
    Ok(json!({"groups": groups.json(), "channels": channels.json()}))
}

/// Address spaces by the thousand.
pub(super) fn va_spaces(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut spaces = Tally::default();
    for _space in 0..3000 {
        spaces.count(seat.make(seat.device, class::FERMI_VASPACE_A, &[0; 48]), 0);
    }
    fixture.keep(seat);
    Ok(json!({"spaces": spaces.json()}))
}

/// Shared mappings of nvidia-uvm at the offsets that make managed memory, and the calls that move pages to a card.
pub(super) fn managed_memory(fixture: &mut Fixture) -> Result<Value> {
    const ADDRESS: u64 = 0x2_0000_0000;
    let client = client()?;
    let _uvm = Uvm::open(client)?;
    let file = open("nvidia-uvm")?;
    let number = file.as_raw_fd();
    let mut tally = Tally::default();
    let mut answers = serde_json::Map::new();
    let shared = u64::from(libc::MAP_SHARED.cast_unsigned());
    let validated = u64::from(libc::MAP_SHARED_VALIDATE.cast_unsigned());
    let fixed = u64::from(libc::MAP_FIXED.cast_unsigned());
    let dirty = 1u64 << 40;
    for (name, flags) in [
        ("shared", shared),
        ("shared, fixed", shared | fixed),
        ("validated", validated),
        ("shared, dirty", shared | dirty),
    ] {
        let length = fixture.quota_bytes * 2;
        let args = [
            ADDRESS,
            length,
            3,
            flags,
            u64::from(number.cast_unsigned()),
            ADDRESS,
        ];
        let answer = match kernel::call(libc::SYS_mmap, args) {
            Ok(_address) => Answer::Done(0),
            Err(errno) => Answer::Errno(errno as i32),
        };
        tally.count(answer, 0);
        answers.insert(name.to_owned(), answer.text().into());
    }
    let mut calls = crate::seat::Calls::on(number)?;
    for row in [uvm::UVM_MIGRATE, uvm::UVM_ALLOC_DEVICE_P2P] {
        let mut argument = vec![0; 128];
        bytes::put_u64(&mut argument, 0, ADDRESS);
        bytes::put_u64(&mut argument, 8, fixture.quota_bytes);
        let status_at = usize::try_from(row.status.of(nvabi::Release::R570))?;
        let answer = calls.spell(number, u64::from(row.cmd), &argument, Interrupted::Again);
        answers.insert(
            row.name.to_owned(),
            done(answer, status_at, 0).text().into(),
        );
    }
    fixture.keep(file);
    Ok(json!({"answers": answers, "mapped": tally.json()}))
}

/// The deprecated heap call in all its functions, the old memory call, and the export as a dma-buf.
pub(super) fn heap_and_old_calls(fixture: &mut Fixture) -> Result<Value> {
    const HEAP: u64 = 0xc0b8_464a;
    const OLD_MEMORY: u64 = 0xc038_4627;
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    let mut odd = Tally::default();
    let heap = |seat: &mut Seat, function: u32, size: u64, attr: u32| {
        let mut argument = vec![0; 184];
        bytes::put_u32(&mut argument, nvos32::H_ROOT, seat.client);
        bytes::put_u32(&mut argument, nvos32::H_PARENT, seat.device);
        bytes::put_u32(&mut argument, nvos32::FUNCTION, function);
        bytes::put_u32(&mut argument, nvos32::ALLOC_H_MEMORY, new_handle());
        if function == 6 {
            // Height and pitch make the size.
            bytes::put_u32(&mut argument, 56, 32 << 10);
            bytes::put_u32(&mut argument, 60, 1 << 10);
            bytes::put_u32(&mut argument, 64, attr);
        } else {
            bytes::put_u32(&mut argument, nvos32::ALLOC_ATTR, attr);
        }
        let size_at = if function == 14 {
            80
        } else {
            nvos32::ALLOC_SIZE
        };
        bytes::put_u64(&mut argument, size_at, size);
        let number = seat.number;
        done(
            seat.spell(number, HEAP, &argument, Interrupted::Again),
            nvos32::STATUS,
            0,
        )
    };
    const SCATTERED: u32 = 3 << 27;
    tally.grab(fixture.quota_bytes, |bytes| {
        heap(&mut seat, 2, bytes, SCATTERED)
    });
    // 3 at bits 26:25: anywhere, which is the host.
    let mut host = Tally::default();
    host.count(heap(&mut seat, 2, PIECE_BYTES, SCATTERED | 3 << 25), 0);
    for function in [0, 1, 4, 6, 14, 15, 16, 18, 19, 20, 27, u32::MAX] {
        odd.count(heap(&mut seat, function, PIECE_BYTES, SCATTERED), 0);
    }
    for class in [0x40, 0x3f, 0x82, 0x83, 0xc2, 0xf3] {
        for number in [seat.node.as_raw_fd(), seat.number] {
            let mut argument = vec![0; 56];
            bytes::put_u32(&mut argument, nvos02::H_ROOT, seat.client);
            bytes::put_u32(&mut argument, nvos02::H_PARENT, seat.device);
            bytes::put_u32(&mut argument, nvos02::H_NEW, new_handle());
            bytes::put_u32(&mut argument, nvos02::H_CLASS, class);
            bytes::put_u64(&mut argument, nvos02::LIMIT, PIECE_BYTES - 1);
            let answer = seat.spell(number, OLD_MEMORY, &argument, Interrupted::Again);
            odd.count(done(answer, nvos02::STATUS, 0), 0);
        }
    }
    let mut buffer = vec![0; 2608];
    bytes::put_u32(&mut buffer, 8, seat.client);
    let node = seat.node.as_raw_fd();
    // Each form with the place of its status; a file would be named at 0.
    for (cmd, status_at) in [(0xca28_46d9_u64, 2592), (0xca30_46d9, 2600)] {
        let answer = seat.spell(node, cmd, &buffer, Interrupted::Again);
        odd.count(done(answer, status_at, 0), 0);
    }
    fixture.keep(seat);
    Ok(json!({"tally": tally.json(), "odd": odd.json(), "host": host.json()}))
}

/// Classes that name all of the card's memory, lists of its pages, or memory of other machines.
pub(super) fn privileged_classes(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    for class in [
        0x3f,
        0x42,
        0x81,
        0x82,
        0x83,
        0xb1,
        0xc2,
        0xe0,
        0xf1,
        0xf3,
        0xf8,
        0xf9,
        0xfb,
        0xfd,
        0xffff_ffff,
    ] {
        for parent in [seat.device, seat.subdevice, seat.client] {
            tally.count(
                seat.make(parent, class, &memory_block(PIECE_BYTES)),
                PIECE_BYTES,
            );
        }
    }
    fixture.keep(seat);
    Ok(json!({"tally": tally.json()}))
}

/// Sizes at which sums turn over, and page sizes that round far up.
pub(super) fn absurd_sizes(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    let mut odd = Tally::default();
    tally.grab(fixture.quota_bytes / 4, |bytes| seat.memory(bytes));
    for size in [
        u64::MAX,
        u64::MAX - 0xffff,
        u64::MAX - (2 << 20),
        1 << 63,
        (1 << 63) - 1,
        1 << 40,
        fixture.quota_bytes + 1,
        fixture.quota_bytes,
    ] {
        odd.count(seat.memory(size), 0);
    }
    // Huge pages: 2 MiB, 512 MiB and 256 GiB by attr2, for a few bytes each.
    for attr2 in [1u32 << 20, 2 << 20, 3 << 20] {
        for attr in [3u32 << 27, 3 << 27 | 3 << 23] {
            let mut params = memory_block(1);
            bytes::put_u32(&mut params, memory_params::ATTR, attr);
            bytes::put_u32(&mut params, memory_params::ATTR2, attr2);
            for _piece in 0..4 * fixture.quota_bytes / (2 << 20) {
                let new = New {
                    client: seat.client,
                    parent: seat.device,
                    handle: new_handle(),
                    class: class::NV01_MEMORY_LOCAL_USER,
                };
                let argument = seat.allocation(new, &params);
                let number = seat.number;
                let answer = seat.spell(number, u64::from(ALLOC), &argument, Interrupted::Again);
                odd.count(allocated(answer, nvos64::STATUS), 0);
            }
        }
    }
    fixture.keep(seat);
    Ok(json!({"plain": tally.json(), "odd": odd.json()}))
}
