//! Pages larger than what is asked for, from many threads at once, at the brink of the slice.

use anyhow::{Context, Result};
use nvabi::layout::{memory_params as params, nvos32, nvos64};
use nvabi::{bytes, class};
use rmclient::{Client, Nodes};
use rmprogram::{CardMemory, GpuRange, Uvm};
use serde_json::{Value, json};

use crate::Fixture;
use crate::seat::{
    ALLOC, Answer, Interrupted, New, Seat, allocated, done, memory_block, new_handle,
};
use crate::tally::{PIECE_BYTES, Tally};

const THREADS: usize = 6;
const ROUNDS: usize = 60;
const MIB: u64 = 1 << 20;
/// `attr`: scattered pages, and huge ones.
const SCATTERED: u32 = 3 << 27;
const HUGE: u32 = SCATTERED | params::ATTR_PAGE_SIZE_HUGE;
const CHOSEN: u32 = params::FLAG_FIXED_ADDRESS | params::FLAG_ALIGNMENT_FORCE;
/// VID_HEAP_CONTROL.
const HEAP: u64 = 0xc0b8_464a;

/// One byte, in pages of another size each.
#[derive(Clone, Copy)]
struct PageRequest {
    attr: u32,
    attr2: u32,
    flags: u32,
    alignment: u64,
}

const REQUESTS: [PageRequest; 8] = [
    request(HUGE, params::ATTR2_HUGE_2M),
    request(HUGE, params::ATTR2_HUGE_512M),
    request(HUGE, params::ATTR2_HUGE_256G),
    request(SCATTERED, params::ATTR2_HUGE_512M),
    request(HUGE, 0),
    request(SCATTERED | params::ATTR_PAGE_SIZE_4K, 0),
    PageRequest {
        flags: CHOSEN,
        alignment: 256 * MIB,
        ..request(SCATTERED, 0)
    },
    PageRequest {
        flags: params::FLAG_FIXED_ADDRESS | params::FLAG_ALIGNMENT_HINT,
        alignment: 128 * MIB,
        ..request(HUGE, params::ATTR2_HUGE_2M)
    },
];

const fn request(attr: u32, attr2: u32) -> PageRequest {
    PageRequest {
        attr,
        attr2,
        flags: 0,
        alignment: 0,
    }
}

fn by_class(seat: &mut Seat, class: u32, request: PageRequest, size: u64) -> Answer {
    let mut block = memory_block(size);
    bytes::put_u32(&mut block, params::FLAGS, request.flags);
    bytes::put_u32(&mut block, params::ATTR, request.attr);
    bytes::put_u32(&mut block, params::ATTR2, request.attr2);
    bytes::put_u64(&mut block, params::ALIGNMENT, request.alignment);
    let new = New {
        client: seat.client,
        parent: seat.device,
        handle: new_handle(),
        class,
    };
    let argument = seat.allocation(new, &block);
    let number = seat.number;
    let answer = seat.spell(number, u64::from(ALLOC), &argument, Interrupted::Again);
    allocated(answer, nvos64::STATUS)
}

fn by_heap(seat: &mut Seat, request: PageRequest, size: u64) -> Answer {
    let handle = new_handle();
    let mut argument = vec![0; 184];
    bytes::put_u32(&mut argument, nvos32::H_ROOT, seat.client);
    bytes::put_u32(&mut argument, nvos32::H_PARENT, seat.device);
    bytes::put_u32(&mut argument, nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE);
    bytes::put_u32(&mut argument, nvos32::ALLOC_H_MEMORY, handle);
    bytes::put_u64(&mut argument, nvos32::ALLOC_SIZE, size);
    bytes::put_u32(&mut argument, nvos32::ALLOC_FLAGS, request.flags);
    bytes::put_u32(&mut argument, nvos32::ALLOC_ATTR, request.attr);
    bytes::put_u32(&mut argument, nvos32::ALLOC_ATTR2, request.attr2);
    bytes::put_u64(&mut argument, nvos32::ALLOC_ALIGNMENT, request.alignment);
    let number = seat.number;
    let answer = seat.spell(number, HEAP, &argument, Interrupted::Again);
    done(answer, nvos32::STATUS, handle)
}

/// Many threads, each with a client of its own, ask for one byte in every size of page and give some of it back, so that the slice is at its
/// brink all the time.
pub(super) fn huge_pages(fixture: &mut Fixture) -> Result<Value> {
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            std::thread::spawn(move || -> Result<(Seat, Tally)> {
                let mut seat = Seat::take()?;
                let mut tally = Tally::default();
                let mut held = Vec::new();
                for round in 0..ROUNDS {
                    let request = REQUESTS[(round + number) % REQUESTS.len()];
                    let answer = match round % 2 {
                        0 => by_class(&mut seat, class::NV01_MEMORY_LOCAL_USER, request, 1),
                        _ => by_heap(&mut seat, request, 1),
                    };
                    tally.count(answer, 1);
                    if let Answer::Done(handle) = answer {
                        held.push(handle);
                    }
                    if round % 3 == 2
                        && let Some(handle) = held.pop()
                    {
                        let freed = seat.free(handle);
                        anyhow::ensure!(freed.is_done(), "freeing: {}", freed.text());
                        tally.bytes -= 1;
                    }
                }
                Ok((seat, tally))
            })
        })
        .collect();
    let mut sum = Tally::default();
    for thread in threads {
        let (seat, tally) = thread
            .join()
            .map_err(|_panic| anyhow::anyhow!("a thread panicked"))??;
        sum.add(&tally);
        fixture.keep(seat);
    }
    Ok(json!({"tally": sum.json()}))
}

/// Fills the slice, and then takes address space whose page tables the driver would make at once: 128 MiB of the card for each 64 GiB.
pub(super) fn page_tables(fixture: &mut Fixture) -> Result<Value> {
    const SPACE: u64 = 64 << 30;
    const TIMES: usize = 8;
    let mut seat = Seat::take()?;
    let mut memory = Tally::default();
    memory.grab(fixture.quota_bytes, |_bytes| seat.memory(PIECE_BYTES));
    let mut spaces = serde_json::Map::new();
    for (name, flags) in [
        ("at once", params::FLAG_VIRTUAL),
        ("sparse", params::FLAG_VIRTUAL | params::FLAG_SPARSE),
        (
            "sparse and lazy",
            params::FLAG_VIRTUAL | params::FLAG_SPARSE | params::FLAG_LAZY,
        ),
    ] {
        let request = PageRequest {
            flags,
            ..request(0, 0)
        };
        let mut tally = Tally::default();
        for _time in 0..TIMES {
            let class = class::NV50_MEMORY_VIRTUAL;
            tally.count(by_class(&mut seat, class, request, SPACE), 0);
            tally.count(by_heap(&mut seat, request, SPACE), 0);
        }
        spaces.insert(name.to_owned(), tally.json());
    }
    let sparse = sparse_ranges(SPACE)?;
    fixture.keep(seat);
    Ok(json!({"tally": memory.json(), "spaces": spaces, "sparse_ranges": sparse}))
}

/// How many of some ranges of nvidia-uvm got page tables for all of their length. They are held for the rest of the process.
fn sparse_ranges(length_bytes: u64) -> Result<u64> {
    let client: &'static Client = Box::leak(Box::new(Client::connect(&Nodes::default())?));
    let cards = Box::leak(Box::new(client.cards()?));
    let card = cards.first().context("no card is granted")?;
    let (uvm, uuid) = (Box::leak(Box::new(Uvm::open(client)?)), card.uuid()?);
    uvm.register(uuid)?;
    uvm.register_va_space(uuid, card.va_space()?)?;
    let mut done = 0;
    for number in 1..=8 {
        let range = GpuRange {
            base: number * length_bytes,
            length_bytes,
        };
        uvm.create_range(range)?;
        done += u64::from(uvm.map_sparse(range, uuid).is_ok());
    }
    Ok(done)
}
