//! The tenant's memory: how a call is spelt, where its blocks lie, and who changes them meanwhile.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use nvabi::bytes::{put_u32, put_u64, u32_at};
use nvabi::layout::context_dma;
use nvabi::status;

use crate::Test;
use crate::agent::Ask;
use crate::fake::GRANULE;
use crate::fixture::Fixture;
use crate::quota::with_device;
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    (
        "memory::a_call_is_known_however_it_is_spelt",
        a_call_is_known_however_it_is_spelt,
    ),
    (
        "memory::closed_calls_fail_in_the_filter",
        closed_calls_fail_in_the_filter,
    ),
    (
        "memory::bad_pointers_fail_as_in_the_driver",
        bad_pointers_fail,
    ),
    (
        "memory::an_unwritable_struct_keeps_the_account_exact",
        an_unwritable_struct,
    ),
    (
        "memory::parameters_may_end_with_their_page",
        parameters_may_end_with_their_page,
    ),
    (
        "memory::what_was_checked_is_what_executes",
        what_was_checked_is_what_executes,
    ),
    (
        "memory::only_changed_bytes_are_written",
        only_changed_bytes_are_written,
    ),
    ("memory::no_second_listener", no_second_listener),
    (
        "memory::a_shared_address_space_is_the_clients_own",
        a_shared_address_space_is_the_clients_own,
    ),
];

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const EFAULT: i32 = 14;
const ENOTTY: i32 = 25;

/// `hClientShare` 0 asks for an address space that all such devices of a card share, whoever's they are.
fn a_shared_address_space_is_the_clients_own() {
    let share_at = nvabi::layout::device_params::H_CLIENT_SHARE;
    for is_bound in [true, false] {
        let fixture = Fixture::new(MIB);
        fixture.fake.is_bound.store(is_bound, Ordering::Relaxed);
        let tenant = fixture.tenant();
        let fd = tenant.open(&fixture.path("nvidiactl"));
        let client = tenant.client(fd);
        let arg = rm::alloc(client, client, 0, rm::DEVICE, tenant.params_address());
        let called = tenant.call(fd, rm::ALLOC, &arg, &[0; 56]);
        assert_eq!(called.status(), rm::OK);
        let seen = fixture.fake.seen();
        let seen = seen.last().unwrap().segments.get(1).unwrap().clone();
        assert_eq!(u32_at(&seen, share_at), Some(client));
        assert_eq!(u32_at(&called.params, share_at), Some(0), "as it was given");
        // Nor has one without parameters, which has nothing that could be made its own.
        let seen = fixture.fake.seen().len();
        let arg = rm::alloc(client, client, 0, rm::DEVICE, 0);
        let called = tenant.call(fd, rm::ALLOC, &arg, &[]);
        assert_eq!(called.status(), status::NV_ERR_INVALID_ARGUMENT);
        assert_eq!(fixture.fake.seen().len(), seen);
    }
}

fn a_call_is_known_however_it_is_spelt() {
    const SPELLINGS: [u64; 5] = [
        0xc020_462b,
        0xc020_542b,
        0x0020_002b,
        0x4020_ff2b,
        0xdead_beef_c020_462b,
    ];
    let fixture = Fixture::new(SPELLINGS.len() as u64 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    for cmd in SPELLINGS {
        let arg = rm::alloc(client, device, 0, rm::VIDMEM, tenant.params_address());
        let called = tenant.call(fd, cmd, &arg, &rm::memory_params(MIB));
        assert_eq!(called.status(), rm::OK, "{cmd:#x}");
    }
    fixture.assert_exact(SPELLINGS.len() as u64 * MIB);
    for cmd in SPELLINGS {
        let arg = rm::alloc(client, device, 0, rm::VIDMEM, tenant.params_address());
        let called = tenant.call(fd, cmd, &arg, &rm::memory_params(MIB));
        assert_eq!(called.status(), rm::NO_MEMORY, "{cmd:#x}");
    }
}

fn closed_calls_fail_in_the_filter() {
    let fixture = Fixture::new(MIB);
    let (tenant, fd, _, _) = with_device(&fixture);
    let before = fixture.fake.seen().len();
    for cmd in [0xc010_46d3_u64, 0xc014_4628, 0xc048_464d, 0x7_c010_aad3] {
        assert_eq!(
            tenant.ioctl(fd, cmd, tenant.arg_address()),
            Err(ENOTTY),
            "{cmd:#x}"
        );
    }
    assert_eq!(fixture.fake.seen().len(), before);
}

fn bad_pointers_fail() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let before = fixture.fake.seen().len();
    let pages = tenant.pages(1, false);
    let beyond = pages + PAGE;
    // The struct: not there, and over the end of its page.
    assert_eq!(tenant.ioctl(fd, rm::ALLOC, beyond), Err(EFAULT));
    assert_eq!(tenant.ioctl(fd, rm::ALLOC, beyond - 31), Err(EFAULT));
    // The parameters: likewise, at an address that no process has, and at one that wraps.
    let exact = rm::memory_params(MIB).len() as u64;
    for address in [
        beyond,
        beyond - exact + 1,
        0x7fff_ffff_f000_0000,
        u64::MAX - 7,
    ] {
        let arg = rm::alloc(client, device, 0, rm::VIDMEM, address);
        let called = tenant.call(fd, rm::ALLOC, &arg, &[]);
        assert_eq!((called.ret, called.arg), (Err(EFAULT), arg), "{address:#x}");
    }
    assert_eq!(fixture.fake.seen().len(), before);
    fixture.assert_exact(0);
}

/// Whether this kernel says of a process which memory can be written (6.11 and later).
fn knows_what_is_writable() -> bool {
    const PROCMAP_QUERY: u32 = 0xc068_6611;
    let mut query = [0; 0x68];
    query[..8].copy_from_slice(&0x68_u64.to_ne_bytes());
    let maps = std::fs::File::open("/proc/self/maps").unwrap();
    let answer = sys::ioctl::raw(maps.as_fd(), PROCMAP_QUERY, &mut query);
    // Nothing is mapped at address 0.
    answer.is_err_and(|error| error.raw_os_error() == Some(nix::errno::Errno::ENOENT as i32))
}

fn an_unwritable_struct() {
    if !knows_what_is_writable() {
        return println!("SKIP: this kernel does not say which memory can be written");
    }
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let pages = tenant.pages(1, true);
    // All zeroes: a root client, which the driver makes and whose handle cannot be told.
    assert_eq!(fixture.fake.client_count(), 1);
    assert_eq!(tenant.ioctl(fd, rm::ALLOC, pages + PAGE), Err(EFAULT));
    assert_eq!(fixture.fake.client_count(), 2);
    let clients = fixture.container.journal.change().ledger.clients().count();
    assert_eq!(clients, 2, "the ledger has it: it goes with its file");
    // A struct that reaches into the read-only page, with memory: executed, charged, and not told.
    let at = pages + PAGE - 24;
    let arg = rm::alloc(client, device, 0x66, rm::VIDMEM, tenant.params_address());
    tenant.write(tenant.params_address(), &rm::memory_params(MIB));
    tenant.write(at, &arg[..24]);
    assert_eq!(
        tenant.ioctl(fd, rm::ALLOC, at),
        Ok(0),
        "nothing changed behind the edge"
    );
    fixture.assert_exact(MIB);
    assert_eq!(tenant.free(fd, client, device, 0x66), rm::OK);
    fixture.assert_exact(0);
}

fn parameters_may_end_with_their_page() {
    /// A class whose parameters have no exact size, so a window over them is read.
    const WINDOWED: u32 = 0x2081;
    const CONTEXT_DMA: u32 = 2;
    let fixture = Fixture::new(MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let pages = tenant.pages(2, false);
    let end = pages + 2 * PAGE;
    for address in [end - 8, end - PAGE, end - PAGE - 100] {
        tenant.write(address, &[7; 8]);
        let arg = rm::alloc(client, device, 0, WINDOWED, address);
        let called = tenant.call(fd, rm::ALLOC, &arg, &[]);
        assert_eq!(called.status(), rm::OK);
        let seen = fixture.fake.seen().pop().unwrap();
        assert_eq!(
            (seen.segments[1].len(), &seen.segments[1][..8]),
            (512, &[7; 8][..]),
            "what is judged is what the driver gets"
        );
        assert_eq!(
            tenant.read(address, 2),
            [8, 7],
            "the answer is written back"
        );
    }
    // A notifier of 64 KiB whose limit is cut in the middle: what is left of it counts.
    let mut params = vec![0; 31];
    put_u32(&mut params, context_dma::FLAGS, 1 << 20);
    put_u32(&mut params, context_dma::LIMIT, 0xffff);
    tenant.write(end - 31, &params);
    let arg = rm::alloc(client, device, 0, CONTEXT_DMA, end - 31);
    let called = tenant.call(fd, rm::ALLOC, &arg, &[]);
    assert_eq!(called.status(), status::NV_ERR_INVALID_LIMIT);
    let arg = rm::alloc(client, device, 0, WINDOWED, end);
    assert_eq!(tenant.call(fd, rm::ALLOC, &arg, &[]).ret, Err(EFAULT));
    // An exact size that just fits.
    let params = rm::memory_params(MIB);
    let address = end - params.len() as u64;
    tenant.write(address, &params);
    let arg = rm::alloc(client, device, 0, rm::VIDMEM, address);
    assert_eq!(tenant.call(fd, rm::ALLOC, &arg, &[]).status(), rm::OK);
    fixture.assert_exact(MIB);
}

/// A second thread flips the size between what fits and what does not, as fast as it can, byte by byte.
fn what_was_checked_is_what_executes() {
    const ROUNDS: u32 = 400;
    /// A busy machine may keep one of the two threads waiting for a while.
    const MOST_ROUNDS: u32 = 200_000;
    let fixture = Fixture::new(MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let mut arg = rm::alloc(client, device, 0, rm::VIDMEM, tenant.params_address());
    let (small, large) = (rm::memory_params(MIB), rm::memory_params(64 * MIB));
    tenant.write(tenant.params_address(), &small);
    tenant.ok(&Ask::Flip {
        address: tenant.params_address() + 64,
        one: small[64..72].to_vec(),
        other: large[64..72].to_vec(),
    });
    let (mut granted, mut refused) = (0, 0);
    for round in 0..MOST_ROUNDS {
        if round >= ROUNDS && granted > 0 && refused > 0 {
            break;
        }
        put_u32(&mut arg, 8, 0x1000 + round);
        tenant.write(tenant.arg_address(), &arg);
        assert_eq!(tenant.ioctl(fd, rm::ALLOC, tenant.arg_address()), Ok(0));
        let after = tenant.read(tenant.arg_address(), arg.len());
        match rm::status(&after) {
            rm::OK => {
                granted += 1;
                let took = rm::size(&fixture.fake.seen().pop().unwrap().segments[1]);
                fixture.assert_exact(took.max(1).next_multiple_of(GRANULE));
                let free = rm::free(client, device, 0x1000 + round);
                tenant.write(tenant.arg_address(), &free);
                assert_eq!(tenant.ioctl(fd, rm::FREE, tenant.arg_address()), Ok(0));
            }
            rm::NO_MEMORY => refused += 1,
            other => panic!("status {other:#x}"),
        }
    }
    tenant.ok(&Ask::StopFlipping);
    assert!(
        granted > 0 && refused > 0,
        "{granted} granted, {refused} refused"
    );
    let sizes: Vec<u64> = fixture
        .fake
        .seen()
        .iter()
        .filter(|seen| {
            let params = seen.segments.get(1);
            seen.cmd == rm::ALLOC && params.is_some_and(|params| params.len() == 128)
        })
        .map(|seen| rm::size(&seen.segments[1]))
        .collect();
    assert_eq!(sizes.len(), granted);
    assert!(
        sizes.iter().all(|size| *size <= MIB),
        "the driver got what was checked"
    );
    fixture.assert_exact(0);
}

fn only_changed_bytes_are_written() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    // A neighbour writes into the part of the parameters that the driver does not change, while the call is under way.
    let writer = tenant.thread();
    fixture.fake.hold_back(rm::ALLOC, Some(rm::VIDMEM));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| tenant.memory(fd, client, device, 0x55, MIB + 1));
        fixture.fake.wait_for_held(1);
        let mut later = vec![0; 8];
        put_u64(&mut later, 0, 0x1122_3344_5566_7788);
        writer.write(tenant.params_address() + 96, &later);
        fixture.fake.let_go();
        let called = call.join().unwrap();
        assert_eq!(called.status(), rm::OK);
        assert_eq!(
            called.params[96..104],
            later,
            "the neighbour's bytes are not undone"
        );
        assert_eq!(rm::size(&called.params), MIB + (64 << 10));
    });
}

fn no_second_listener() {
    const EBUSY: i32 = 16;
    let fixture = Fixture::new(MIB);
    let tenant = fixture.tenant();
    assert_eq!(tenant.ask(&Ask::NewListener), Err(EBUSY));
}
