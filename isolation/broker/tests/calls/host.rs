//! The host's memory that a driver takes for a container: no control group counts it, so the ledger does.

use std::sync::atomic::Ordering;

use journal::limits::OBJECT_BYTES;
use ledger::CardSlot;
use nvabi::bytes::{put_u32, put_u64, u32_at};
use nvabi::layout::{
    channel_group_params, channel_params, context_dma, memory_params, nvos02, nvos32,
};
use nvabi::{Release, escape, status, uvm};

use crate::Test;
use crate::files::reconcile_until;
use crate::fixture::{Confined, Fixture};
use crate::quota::with_device;
use crate::rm;
use crate::share::{CHANNEL, COPY, GROUP};

pub(crate) const TESTS: &[Test] = &[
    (
        "host::every_way_to_it_is_counted",
        every_way_to_it_is_counted,
    ),
    (
        "host::racing_threads_never_pass_the_limit",
        racing_threads_never_pass_it,
    ),
    ("host::a_second_handle_keeps_it", a_second_handle_keeps_it),
    (
        "host::memory_of_a_channel_is_charged_as_long_as_the_channel_is_there",
        memory_of_a_channel_is_charged_as_long_as_the_channel_is_there,
    ),
    (
        "host::card_memory_of_a_channel_is_freed_when_the_channel_is_gone",
        card_memory_of_a_channel_is_freed_when_the_channel_is_gone,
    ),
    (
        "host::a_notifier_is_freed_when_the_channel_is_gone",
        a_notifier_is_freed_when_the_channel_is_gone,
    ),
    (
        "host::the_kernel_maps_no_notifier_on_a_card",
        the_kernel_maps_no_notifier_on_a_card,
    ),
    (
        "host::contiguous_memory_is_charged_as_the_kernel_gives_it",
        contiguous_memory_is_charged_as_the_kernel_gives_it,
    ),
    (
        "host::a_registration_that_may_have_failed_keeps_no_other_out",
        a_registration_that_may_have_failed_keeps_no_other_out,
    ),
    (
        "host::what_the_old_call_maps_is_charged_as_long_as_it_may_be_mapped",
        what_the_old_call_maps_is_charged_as_long_as_it_may_be_mapped,
    ),
    (
        "host::objects_and_initialised_files_are_charged_to_the_host",
        objects_and_initialised_files_are_charged_to_the_host,
    ),
    (
        "host::each_registration_of_the_same_pages_is_charged",
        each_registration_of_the_same_pages_is_charged,
    ),
];

const MIB: u64 = 1 << 20;
const SYSTEM: u32 = 0x3e;
const R: Release = Release::R570;
const LIMIT: u64 = 8 * MIB;
/// The least that is counted: a page of the largest that a kernel can have here.
const PAGE: u64 = arch::Arch::NATIVE.largest_page_bytes();

/// Room for the objects of a test.
const OBJECTS: u64 = 64;
const BEYOND: u64 = LIMIT + OBJECTS * OBJECT_BYTES + 1;

fn limited() -> Fixture {
    let fixture = Fixture::new(64 * MIB);
    fixture.limit_host(LIMIT, OBJECTS);
    fixture
}

struct Seat {
    tenant: Confined,
    fd: i32,
    node: i32,
    uvm: i32,
    client: u32,
    device: u32,
}

impl Seat {
    fn take(fixture: &Fixture) -> Self {
        let (tenant, fd, client, device) = with_device(fixture);
        let node = tenant.open(&fixture.path("nvidia0"));
        let uvm = tenant.open(&fixture.path("nvidia-uvm"));
        Self {
            tenant,
            fd,
            node,
            uvm,
            client,
            device,
        }
    }

    /// A channel whose USERD is in these memories, each with its place.
    fn channel(&self, handle: u32, memories: &[(usize, u32)]) -> u32 {
        let mut params = vec![0; 368];
        for (place, memory) in memories {
            put_u32(
                &mut params,
                channel_params::H_USERD_MEMORY + 4 * place,
                *memory,
            );
        }
        put_u32(&mut params, channel_params::ENGINE_TYPE, COPY);
        let arg = rm::alloc(
            self.client,
            self.device,
            handle,
            CHANNEL,
            self.tenant.params_address(),
        );
        self.tenant.call(self.fd, rm::ALLOC, &arg, &params).status()
    }

    fn by_class(&self, handle: u32, bytes: u64) -> u32 {
        self.by_class_with(0, handle, bytes)
    }

    fn by_class_with(&self, attr: u32, handle: u32, bytes: u64) -> u32 {
        let arg = rm::alloc(
            self.client,
            self.device,
            handle,
            SYSTEM,
            self.tenant.params_address(),
        );
        let mut params = rm::memory_params(bytes);
        put_u32(&mut params, memory_params::ATTR, attr);
        self.tenant.call(self.fd, rm::ALLOC, &arg, &params).status()
    }

    fn by_heap(&self, handle: u32, bytes: u64) -> u32 {
        self.by_heap_with(0, handle, bytes)
    }

    fn by_heap_with(&self, attr: u32, handle: u32, bytes: u64) -> u32 {
        const PCI: u32 = 1 << 25;
        let mut arg = vec![0; 184];
        for (at, word) in [
            (nvos32::H_ROOT, self.client),
            (nvos32::H_PARENT, self.device),
            (nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE),
            (nvos32::ALLOC_H_MEMORY, handle),
            (nvos32::ALLOC_ATTR, PCI | attr),
        ] {
            put_u32(&mut arg, at, word);
        }
        put_u64(&mut arg, nvos32::ALLOC_SIZE, bytes);
        let cmd = escape::NV_ESC_RM_VID_HEAP_CONTROL.cmd(R);
        let called = self.tenant.call(self.fd, cmd, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, nvos32::STATUS).unwrap()
    }

    fn by_old_call(&self, handle: u32, bytes: u64) -> u32 {
        self.old_call(SYSTEM, handle, bytes).unwrap()
    }

    /// The status, or the errno of a call that the kernel executes itself.
    fn old_call(&self, class: u32, handle: u32, bytes: u64) -> Result<u32, i32> {
        self.old_call_with(-1, class, handle, bytes)
    }

    /// With a file to map the memory with.
    fn old_call_with(&self, file: i32, class: u32, handle: u32, bytes: u64) -> Result<u32, i32> {
        let mut arg = vec![0; 56];
        for (at, word) in [
            (nvos02::H_ROOT, self.client),
            (nvos02::H_PARENT, self.device),
            (nvos02::H_NEW, handle),
            (nvos02::H_CLASS, class),
            (nvos02::FD, file.cast_unsigned()),
        ] {
            put_u32(&mut arg, at, word);
        }
        put_u64(&mut arg, nvos02::LIMIT, bytes - 1);
        let cmd = escape::NV_ESC_RM_ALLOC_MEMORY.cmd(R);
        let called = self.tenant.call(self.node, cmd, &arg, &[]);
        called
            .ret
            .map(|_zero| u32_at(&called.arg, nvos02::STATUS).unwrap())
    }

    fn pool(&self, base: u64, bytes: u64) -> u32 {
        let row = uvm::UVM_ALLOC_SEMAPHORE_POOL;
        let mut arg = vec![0; row.size.of(R) as usize];
        put_u64(&mut arg, uvm::map_external::BASE, base);
        put_u64(&mut arg, uvm::map_external::LENGTH, bytes);
        let called = self.tenant.call(self.uvm, row.cmd, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, row.status.of(R) as usize).unwrap()
    }

    fn free(&self, handle: u32) {
        let freed = self.tenant.free(self.fd, self.client, self.device, handle);
        assert!([rm::OK, 0x57].contains(&freed), "the fake knows not all");
    }
}

fn every_way_to_it_is_counted() {
    let fixture = limited();
    let seat = Seat::take(&fixture);
    let ways: [&dyn Fn(u32, u64) -> u32; 3] = [
        &|handle, bytes| seat.by_class(handle, bytes),
        &|handle, bytes| seat.by_heap(handle, bytes),
        &|handle, bytes| seat.by_old_call(handle, bytes),
    ];
    for (number, way) in (10..).zip(ways) {
        let before = fixture.fake.seen().len();
        for bytes in [BEYOND, 1 << 40, u64::MAX - 5] {
            assert_eq!(way(number, bytes), rm::NO_MEMORY, "{number}: {bytes}");
        }
        assert_eq!(fixture.fake.seen().len(), before, "no driver hears of it");
        assert_eq!(way(number, 2 * MIB), rm::OK, "{number}");
    }
    assert_eq!(fixture.used_bytes_of_the_host(), 6 * MIB);
    assert_eq!(seat.pool(1 << 36, 4 * MIB), rm::NO_MEMORY);
    assert_eq!(seat.pool(1 << 36, 2 * MIB), rm::OK);
    assert_eq!(fixture.used_bytes_of_the_host(), LIMIT);
    fixture.limit_host(LIMIT, 1);
    for (number, way) in (20..).zip(ways) {
        assert_eq!(way(number, 1), rm::NO_MEMORY, "{number}");
    }
    seat.tenant.free_range(seat.uvm, 1 << 36);
    assert_eq!(fixture.used_bytes_of_the_host(), 6 * MIB);
    seat.free(10);
    assert_eq!(fixture.used_bytes_of_the_host(), 4 * MIB);
    // A page is the least.
    assert_eq!(seat.by_class(30, 1), rm::OK);
    assert_eq!(fixture.used_bytes_of_the_host(), 4 * MIB + PAGE);
    assert_eq!(fixture.used_bytes(), 0, "no card memory");
}

fn racing_threads_never_pass_it() {
    let fixture = limited();
    let (tenant, fd, client, device) = with_device(&fixture);
    fixture.fake.slow_micros.store(100, Ordering::SeqCst);
    let threads = [0; 4].map(|_| tenant.thread());
    let granted: u64 = std::thread::scope(|scope| {
        let racing: Vec<_> = threads
            .iter()
            .map(|thread| {
                scope.spawn(move || {
                    let mut granted = 0;
                    let arg = rm::alloc(client, device, 0, SYSTEM, thread.params_address());
                    let params = rm::memory_params(MIB);
                    while thread.call(fd, rm::ALLOC, &arg, &params).status() == rm::OK {
                        granted += 1;
                    }
                    granted
                })
            })
            .collect();
        racing.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(granted, LIMIT / MIB);
    let by_number = fixture.by_number();
    let state = fixture.container.journal.change();
    let peak = state.ledger.peak(CardSlot::HOST);
    // With an object each of the other threads.
    let most = LIMIT + by_number + 3 * OBJECT_BYTES;
    assert!((LIMIT + by_number..=most).contains(&peak), "{peak}");
}

/// 2 MiB and a page take 4 MiB, of which the driver writes back what was asked for.
fn contiguous_memory_is_charged_as_the_kernel_gives_it() {
    const CONTIGUOUS: u32 = memory_params::ATTR_PHYSICALITY_CONTIGUOUS;
    const ODD: u64 = 2 * MIB + PAGE;
    let ways: [fn(&Seat, u32) -> u32; 3] = [
        |seat, handle| seat.by_class_with(CONTIGUOUS, handle, ODD),
        |seat, handle| seat.by_heap_with(CONTIGUOUS, handle, ODD),
        |seat, handle| seat.by_old_call(handle, ODD),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let fixture = limited();
        let seat = Seat::take(&fixture);
        assert_eq!(way(&seat, 10), rm::OK, "{number}");
        assert_eq!(fixture.used_bytes_of_the_host(), LIMIT / 2, "{number}");
        assert_eq!(seat.by_class(11, ODD), rm::OK, "{number}: in pieces");
        assert_eq!(
            fixture.used_bytes_of_the_host(),
            LIMIT / 2 + ODD,
            "{number}"
        );
        assert_eq!(way(&seat, 12), rm::NO_MEMORY, "{number}");
    }
}

fn a_second_handle_keeps_it() {
    let fixture = limited();
    let seat = Seat::take(&fixture);
    assert_eq!(seat.by_class(10, 3 * MIB), rm::OK);
    let mut arg = vec![0; 28];
    for (at, word) in [
        (0, seat.client),
        (4, seat.device),
        (8, 11),
        (12, seat.client),
        (16, 10),
    ] {
        put_u32(&mut arg, at, word);
    }
    let cmd = escape::NV_ESC_RM_DUP_OBJECT.cmd(R);
    let called = seat.tenant.call(seat.fd, cmd, &arg, &[]);
    assert_eq!(u32_at(&called.arg, 24), Some(rm::OK));
    seat.free(10);
    assert_eq!(
        fixture.used_bytes_of_the_host(),
        3 * MIB,
        "the second handle holds it"
    );
    seat.free(11);
    assert_eq!(fixture.used_bytes_of_the_host(), 0);
}

/// RM keeps the memory that a channel names for its USERD past the memory's own end.
fn memory_of_a_channel_is_charged_as_long_as_the_channel_is_there() {
    let fixture = limited();
    let seat = Seat::take(&fixture);
    let (tenant, fd, client) = (&seat.tenant, seat.fd, seat.client);
    let channel = |handle: u32, memories: &[(usize, u32)]| seat.channel(handle, memories);
    // Each of the eight places counts, and memory that is named twice counts once.
    for (ended, memories) in [(20, vec![(0, 10)]), (21, vec![(7, 10), (3, 10), (0, 11)])] {
        assert_eq!(seat.by_class(10, 3 * MIB), rm::OK);
        assert_eq!(seat.by_class(11, MIB), rm::OK);
        assert_eq!(channel(ended, &memories), rm::OK);
        seat.free(10);
        assert_eq!(fixture.used_bytes_of_the_host(), 4 * MIB);
        assert_eq!(seat.by_class(12, 5 * MIB), rm::NO_MEMORY);
        seat.free(ended);
        assert_eq!(fixture.used_bytes_of_the_host(), MIB);
        seat.free(11);
        assert_eq!(fixture.used_bytes_of_the_host(), 0);
    }
    // Channel first, and all at once by the client.
    assert_eq!(seat.by_class(10, 3 * MIB), rm::OK);
    assert_eq!(channel(20, &[(0, 10)]), rm::OK);
    seat.free(20);
    seat.free(10);
    assert_eq!(fixture.used_bytes_of_the_host(), 0);
    assert_eq!(seat.by_class(10, 3 * MIB), rm::OK);
    assert_eq!(channel(20, &[(0, 10)]), rm::OK);
    let freed = tenant.free(fd, client, 0, client);
    assert_eq!((freed, fixture.used_bytes_of_the_host()), (rm::OK, 0));
    assert_eq!(fixture.container.journal.change().ledger.pins().count(), 0);
}

/// RM frees a card's memory at once, and the engine would write into what is another tenant's.
fn card_memory_of_a_channel_is_freed_when_the_channel_is_gone() {
    let fixture = limited();
    let seat = Seat::take(&fixture);
    let (tenant, fd, client) = (&seat.tenant, seat.fd, seat.client);
    let made = |handle| {
        let called = tenant.memory(fd, client, seat.device, handle, MIB);
        assert_eq!(called.status(), rm::OK);
    };
    let free = |handle| tenant.free(fd, client, seat.device, handle);
    let freed = || fixture.fake.freed.load(Ordering::SeqCst);
    for handle in [10, 11] {
        made(handle);
    }
    let used = fixture.used_bytes();
    assert_eq!(seat.channel(20, &[(0, 10)]), rm::OK);
    assert_eq!(seat.channel(21, &[(0, 10), (5, 10)]), rm::OK);
    let before = freed();
    assert_eq!(free(10), status::NV_ERR_STATE_IN_USE);
    assert_eq!(freed(), before, "no driver heard of it");
    assert_eq!(free(11), rm::OK);
    assert_eq!(free(20), rm::OK);
    assert_eq!(
        free(10),
        status::NV_ERR_STATE_IN_USE,
        "the other channel is there"
    );
    assert_eq!(free(21), rm::OK);
    assert_eq!(free(10), rm::OK);
    assert_eq!(fixture.used_bytes(), used - 2 * MIB);
    // Below another device than the channel, it goes with that device.
    let other = tenant.device(fd, client);
    assert_eq!(tenant.memory(fd, client, other, 10, MIB).status(), rm::OK);
    assert_eq!(seat.channel(20, &[(0, 10)]), rm::OK);
    assert_eq!(
        tenant.free(fd, client, client, other),
        status::NV_ERR_STATE_IN_USE
    );
    // With the channel's own device, and with the client, both go.
    assert_eq!(
        tenant.free(fd, client, client, seat.device),
        rm::OK,
        "the channel goes"
    );
    assert_eq!(tenant.free(fd, client, client, other), rm::OK);
    fixture.assert_exact(0);
}

/// RM has no reference of its own on where it writes errors: kernel and firmware would write into what is another's.
fn a_notifier_is_freed_when_the_channel_is_gone() {
    let fixture = limited();
    let seat = Seat::take(&fixture);
    let (tenant, fd, client) = (&seat.tenant, seat.fd, seat.client);
    let free = |handle| tenant.free(fd, client, seat.device, handle);
    let made = |class: u32, handle: u32, params: &[u8]| {
        let arg = rm::alloc(client, seat.device, handle, class, tenant.params_address());
        tenant.call(fd, rm::ALLOC, &arg, params).status()
    };
    assert_eq!(seat.by_class(12, channel_params::USERD_BYTES), rm::OK);
    let channel = |at: usize, notifier: u32| {
        let mut params = vec![0; 368];
        put_u32(&mut params, at, notifier);
        put_u32(&mut params, channel_params::H_USERD_MEMORY, 12);
        put_u32(&mut params, channel_params::ENGINE_TYPE, COPY);
        params
    };
    let over = |memory: u32| {
        let mut params = vec![0; 32];
        put_u32(&mut params, context_dma::H_MEMORY, memory);
        put_u64(&mut params, context_dma::LIMIT, 0xfff);
        params
    };
    for at in [
        channel_params::H_OBJECT_ERROR,
        channel_params::H_OBJECT_ECC_ERROR,
    ] {
        assert_eq!(seat.by_class(10, MIB), rm::OK);
        assert_eq!(made(2, 11, &over(10)), rm::OK);
        assert_eq!(made(CHANNEL, 20, &channel(at, 11)), rm::OK);
        // With its memory the context DMA goes.
        assert_eq!(free(10), status::NV_ERR_STATE_IN_USE);
        assert_eq!(free(11), status::NV_ERR_STATE_IN_USE);
        for handle in [20, 11, 10] {
            assert_eq!(free(handle), rm::OK);
        }
        assert_eq!(seat.by_class(10, MIB), rm::OK);
        assert_eq!(made(CHANNEL, 20, &channel(at, 10)), rm::OK);
        assert_eq!(free(10), status::NV_ERR_STATE_IN_USE);
        assert_eq!(free(20), rm::OK);
        assert_eq!(free(10), rm::OK);
    }
    // A group's are its channels'.
    for at in [0, 4] {
        assert_eq!(seat.by_class(10, MIB), rm::OK);
        let mut params = vec![0; 32];
        put_u32(&mut params, at, 10);
        put_u32(&mut params, channel_group_params::ENGINE_TYPE, COPY);
        assert_eq!(made(GROUP, 20, &params), rm::OK);
        assert_eq!(free(10), status::NV_ERR_STATE_IN_USE);
        assert_eq!(free(20), rm::OK);
        assert_eq!(free(10), rm::OK);
    }
    assert_eq!(free(12), rm::OK);
    assert_eq!(fixture.used_bytes_of_the_host(), 0);
}

/// Each would take a place of its own in the card's window.
fn the_kernel_maps_no_notifier_on_a_card() {
    const MAPPED: u32 = 1 << 20;
    let fixture = limited();
    let seat = Seat::take(&fixture);
    let (tenant, fd, client) = (&seat.tenant, seat.fd, seat.client);
    let on_card = tenant.memory(fd, client, seat.device, 10, MIB);
    assert_eq!(on_card.status(), rm::OK);
    assert_eq!(seat.by_class(11, MIB), rm::OK);
    let notifier = |memory: u32, flags: u32| {
        let mut params = vec![0; 32];
        put_u32(&mut params, context_dma::FLAGS, flags);
        put_u32(&mut params, context_dma::H_MEMORY, memory);
        put_u64(&mut params, context_dma::LIMIT, 0xfff);
        let arg = rm::alloc(client, seat.device, 0, 2, tenant.params_address());
        tenant.call(fd, rm::ALLOC, &arg, &params).status()
    };
    assert_eq!(notifier(10, MAPPED), status::NV_ERR_NOT_SUPPORTED);
    assert_eq!(notifier(10, 0), rm::OK);
    assert_eq!(notifier(11, MAPPED), rm::OK);
}

/// The driver keeps both in the kernel's memory. A second file keeps the first one's, also when that is closed.
fn objects_and_initialised_files_are_charged_to_the_host() {
    let fixture = limited();
    let seat = Seat::take(&fixture);
    fixture.limit_host(0, 2);
    let device = |handle| {
        let arg = rm::alloc(seat.client, seat.device, handle, 0x2080, 0);
        seat.tenant.call(seat.fd, rm::ALLOC, &arg, &[]).status()
    };
    assert_eq!([10, 11].map(device), [rm::OK; 2]);
    let heard = fixture.fake.seen().len();
    assert_eq!(device(12), rm::NO_MEMORY);
    assert_eq!(fixture.fake.seen().len(), heard, "no driver hears of it");
    seat.free(10);
    assert_eq!(device(12), rm::OK);

    // A debugger's session is a client, a device and a subdevice besides.
    let debugger = || {
        let below = (seat.client, seat.device);
        seat.tenant.on_engine(seat.fd, below, 0x83de, 0)
    };
    fixture.limit_host(0, 3);
    assert_eq!(debugger().0, rm::NO_MEMORY);
    fixture.limit_host(0, 4);
    let (made, session) = debugger();
    assert_eq!([made, device(13)], [rm::OK, rm::NO_MEMORY]);
    seat.free(session);

    let of_file = uvm::FILE_BYTES.of(R).into();
    fixture.limit_host(of_file, 0);
    let second = seat.tenant.open(&fixture.path("nvidia-uvm"));
    let before = fixture.by_number();
    let initialise = |file| {
        let row = uvm::UVM_INITIALIZE;
        let arg = vec![0; row.size.of(R) as usize];
        let called = seat.tenant.call(file, row.cmd, &arg, &[]);
        u32_at(&called.arg, row.status.of(R) as usize)
    };
    for _ in 0..2 {
        let _not_a_driver_s = initialise(seat.uvm);
        assert_eq!(fixture.by_number(), before + of_file);
    }
    assert_eq!(initialise(second), Some(rm::NO_MEMORY));
    // A second file may keep it, unseen.
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let given_up = |file, how_many| {
        seat.tenant.close(file);
        reconcile_until(&fixture, "the file is given up", || {
            fixture.fake.closed.load(Ordering::SeqCst) == how_many
        });
    };
    given_up(seat.uvm, 1);
    assert_eq!(fixture.by_number(), before + of_file);
    fixture.limit_host(of_file, 0);
    let _handed_back = initialise(second);
    assert_eq!(fixture.by_number(), before + 2 * of_file);
    // It goes some time later: its process closes one file after the other.
    seat.tenant.close(second);
    for _ in 0..3 {
        fixture.reaper.reconcile(&fixture.container);
        assert_eq!(fixture.by_number(), before + 2 * of_file);
    }
    fixture.fake.second_files.store(3, Ordering::SeqCst);
    reconcile_until(&fixture, "it is gone", || {
        fixture.by_number() == before + of_file
    });
}

/// What the kernel keeps of registered pages no control group counts. In strict mode the call goes back to the caller: here to a file that
/// knows no such call.
fn each_registration_of_the_same_pages_is_charged() {
    const REGISTERED: u64 = 256 * MIB;
    const NO_SUCH_CALL: Result<u32, i32> = Err(25);
    for (is_bound, executed) in [(false, Ok(rm::OK)), (true, NO_SUCH_CALL)] {
        let fixture = limited();
        let seat = Seat::take(&fixture);
        fixture.fake.is_bound.store(is_bound, Ordering::Relaxed);
        let register = |handle, bytes| seat.old_call(0x71, handle, bytes);
        assert_eq!(register(10, BEYOND * 64), Ok(rm::NO_MEMORY));
        assert_eq!(register(10, REGISTERED), executed);
        assert_eq!(fixture.used_bytes_of_the_host(), REGISTERED / 64);
        assert_eq!(register(11, REGISTERED), executed);
        assert_eq!(register(12, REGISTERED), Ok(rm::NO_MEMORY));
        assert_eq!(fixture.used_bytes_of_the_host(), LIMIT);
        fixture.limit_host(LIMIT, 1);
        assert_eq!(seat.by_class(13, 1), rm::NO_MEMORY);
        let freed = seat.tenant.free(seat.fd, seat.client, 0, seat.client);
        assert_eq!((freed, fixture.used_bytes_of_the_host()), (rm::OK, 0));
    }
}

/// Whether the kernel has registered anything nobody sees. A failed registration's handle is free for the driver, and given again.
fn a_registration_that_may_have_failed_keeps_no_other_out() {
    const NO_SUCH_CALL: Result<u32, i32> = Err(25);
    let fixture = limited();
    let seat = Seat::take(&fixture);
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let register = |handle, bytes| seat.old_call(0x71, handle, bytes);
    let used = || fixture.used_bytes_of_the_host();
    // Either may be there.
    for (bytes, charged) in [
        (128 * MIB, 2 * MIB),
        (128 * MIB, 4 * MIB),
        (64 * MIB, 5 * MIB),
    ] {
        assert_eq!(register(10, bytes), NO_SUCH_CALL);
        assert_eq!(used(), charged);
    }
    assert_eq!(register(10, 256 * MIB), Ok(rm::NO_MEMORY));
    // What is there for sure keeps its handle.
    assert_eq!(seat.by_class(12, 1), rm::OK);
    assert_eq!(register(12, MIB), Ok(status::NV_ERR_INVALID_OBJECT_HANDLE));
    // The first one's end is no end of both.
    let client = seat.client;
    assert_eq!(seat.tenant.free(seat.fd, client, client, client), rm::OK);
    assert_eq!(used(), 3 * MIB);
}

/// It maps what it makes, with the file that it names.
fn what_the_old_call_maps_is_charged_as_long_as_it_may_be_mapped() {
    let fixture = limited();
    let seat = Seat::take(&fixture);
    let file = seat.tenant.open(&fixture.path("nvidiactl"));
    let called = seat.old_call_with(file, SYSTEM, 5, 2 * MIB);
    assert_eq!(called, Ok(rm::OK));
    let mapping = fixture.elsewhere(&seat.tenant, file);
    seat.tenant.close(file);
    let client = seat.client;
    assert_eq!(seat.tenant.free(seat.fd, client, client, client), rm::OK);
    let used = || {
        fixture.reaper.reconcile(&fixture.container);
        fixture.used_bytes_of_the_host()
    };
    for _ in 0..3 {
        assert_eq!(used(), 2 * MIB, "it may be mapped");
    }
    drop(mapping);
    assert_eq!(used(), 0);
}
