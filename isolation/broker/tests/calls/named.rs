//! Handles that name nothing: no driver hears of the call, since not every driver recovers from looking for them.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use broker::account::uuid_bytes;
use ledger::Counted;
use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::class::{FERMI_VASPACE_A as VA_SPACE, NV01_MEMORY_VIRTUAL};
use nvabi::layout::{
    channel_params, event_params, memory_params, nvos32, nvos33, nvos46, nvos55, virtual_params,
};
use nvabi::status::{
    NV_ERR_INVALID_CLIENT, NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_INVALID_OBJECT_PARENT,
    NV_ERR_NOT_SUPPORTED, NV_ERR_OBJECT_NOT_FOUND, NV_ERR_RESOURCE_LOST,
};
use nvabi::uvm::map_external;
use nvabi::{Release, escape, uvm};

use crate::Test;
use crate::fake::UUID;
use crate::fixture::Fixture;
use crate::quota::with_device;
use crate::rm;
use crate::tenant::Tenant;

pub(crate) const TESTS: &[Test] = &[
    (
        "named::a_duplicate_below_nothing_reaches_no_driver",
        a_duplicate_below_nothing,
    ),
    (
        "named::a_destination_that_goes_meanwhile_is_not_looked_for",
        a_destination_that_goes_meanwhile,
    ),
    (
        "named::what_goes_with_another_object_is_no_destination",
        what_goes_with_another_object,
    ),
    (
        "named::a_mapping_whose_device_is_the_object_itself_reaches_no_driver",
        a_mapping_whose_device_is_the_object_itself,
    ),
    (
        "named::a_copy_of_an_address_space_is_below_a_card",
        a_copy_of_an_address_space,
    ),
    (
        "named::the_name_of_what_is_gone_is_for_its_end_alone",
        the_name_of_what_is_gone,
    ),
    (
        "named::memory_is_mapped_by_what_is_there",
        memory_is_mapped_by_what_is_there,
    ),
    (
        "named::nothing_is_mapped_by_what_goes_meanwhile",
        nothing_is_mapped_by_what_goes_meanwhile,
    ),
    (
        "named::what_a_reference_is_taken_of_is_what_was_charged",
        what_a_reference_is_taken_of_is_what_was_charged,
    ),
    (
        "named::no_call_names_what_is_not_there",
        no_call_names_what_is_not_there,
    ),
];

const MIB: u64 = 1 << 20;
const NOTHING: u32 = 0x00ab_cdef;
const R: Release = Release::R570;

fn dup(tenant: &Tenant, fd: i32, to: (u32, u32), new: u32, from: (u32, u32)) -> u32 {
    let mut arg = vec![0; 28];
    put_u32(&mut arg, nvos55::H_CLIENT, to.0);
    put_u32(&mut arg, nvos55::H_PARENT, to.1);
    put_u32(&mut arg, nvos55::H_OBJECT, new);
    put_u32(&mut arg, nvos55::H_CLIENT_SRC, from.0);
    put_u32(&mut arg, nvos55::H_OBJECT_SRC, from.1);
    let called = tenant.call(fd, escape::NV_ESC_RM_DUP_OBJECT.cmd(R), &arg, &[]);
    assert_eq!(called.ret, Ok(0));
    u32_at(&called.arg, nvos55::STATUS).unwrap()
}

fn a_duplicate_below_nothing() {
    for is_bound in [false, true] {
        let fixture = Fixture::new(4 * MIB);
        fixture.fake.is_bound.store(is_bound, Ordering::Relaxed);
        let (tenant, fd, client, device) = with_device(&fixture);
        assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
        let before = fixture.fake.seen().len();
        for parent in [NOTHING, 0, u32::MAX, client + 1] {
            let status = dup(&tenant, fd, (client, parent), 9, (client, 5));
            assert_eq!(status, NV_ERR_OBJECT_NOT_FOUND, "{parent:#x}");
        }
        let other = dup(&tenant, fd, (client + 1, device), 9, (client, 5));
        assert_eq!(other, NV_ERR_INVALID_CLIENT);
        assert_eq!(fixture.fake.seen().len(), before, "no driver hears of it");
        assert_eq!(dup(&tenant, fd, (client, device), 9, (client, 5)), rm::OK);
        fixture.assert_exact(MIB);
    }
}

/// One thread frees the destination, and others make handles below it: whoever comes second must not reach the driver.
fn a_destination_that_goes_meanwhile() {
    const ROUNDS: u32 = 60;
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    fixture.fake.slow_micros.store(300, Ordering::SeqCst);
    let other = tenant.client(fd);
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    let threads = [tenant.thread(), tenant.thread()];
    for round in 0..ROUNDS {
        let target = tenant.device(fd, other);
        std::thread::scope(|scope| {
            scope.spawn(|| tenant.free(fd, other, other, target));
            for (number, thread) in (0..).zip(&threads) {
                let new = 0x9000 + 2 * round + number;
                scope.spawn(move || dup(thread, fd, (other, target), new, (client, 5)));
            }
        });
    }
    assert!(!fixture.fake.is_wedged());
    fixture.assert_exact(MIB);
}

/// A driver takes an object with others that it depends on, and the broker may not know of all: only what ends by itself is a place.
fn what_goes_with_another_object() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    let before = fixture.fake.seen().len();
    let status = dup(&tenant, fd, (client, 5), 9, (client, 5));
    assert_eq!(status, NV_ERR_OBJECT_NOT_FOUND);
    assert_eq!(fixture.fake.seen().len(), before);
}

/// From 570 on such a call damages a list of the driver's although it is refused.
fn a_mapping_whose_device_is_the_object_itself() {
    for is_bound in [false, true] {
        let fixture = Fixture::new(4 * MIB);
        fixture.fake.is_bound.store(is_bound, Ordering::Relaxed);
        let (tenant, fd, client, device) = with_device(&fixture);
        let arg = rm::alloc(client, device, 0, 0x2080, tenant.params_address());
        let called = tenant.call(fd, rm::ALLOC, &arg, &[0; 4]);
        assert_eq!(called.status(), rm::OK);
        let subdevice = rm::new_handle(&called.arg);
        assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
        let before = fixture.fake.seen().len();
        for (object, expected) in [
            (client, NV_ERR_NOT_SUPPORTED),
            (subdevice, NV_ERR_NOT_SUPPORTED),
            (device, NV_ERR_INVALID_OBJECT_PARENT),
            (5, NV_ERR_INVALID_OBJECT_PARENT),
        ] {
            let row = &escape::NV_ESC_RM_MAP_MEMORY;
            let mut arg = vec![0; row.size.of(R) as usize];
            put_u32(&mut arg, nvos33::H_CLIENT, client);
            put_u32(&mut arg, nvos33::H_DEVICE, object);
            put_u32(&mut arg, nvos33::H_MEMORY, object);
            put_u64(&mut arg, nvos33::LENGTH, 4096);
            put_u32(&mut arg, nvos33::FD, fd.cast_unsigned());
            let called = tenant.call(fd, row.cmd(R), &arg, &[]);
            assert_eq!(called.ret, Ok(0), "{object:#x}");
            let status = u32_at(&called.arg, nvos33::STATUS);
            assert_eq!(status, Some(expected), "{object:#x}");
        }
        assert_eq!(fixture.fake.seen().len(), before, "no driver hears of it");
    }
}

fn made(tenant: &Tenant, fd: i32, (client, parent): (u32, u32), class: u32, params: &[u8]) -> u32 {
    let arg = rm::alloc(client, parent, 0, class, tenant.params_address());
    let called = tenant.call(fd, rm::ALLOC, &arg, params);
    assert_eq!(called.status(), rm::OK, "{class:#x}");
    rm::new_handle(&called.arg)
}

fn a_copy_of_an_address_space() {
    for is_bound in [false, true] {
        let fixture = Fixture::new(4 * MIB);
        fixture.fake.is_bound.store(is_bound, Ordering::Relaxed);
        let (tenant, fd, client, device) = with_device(&fixture);
        let space = made(&tenant, fd, (client, device), VA_SPACE, &[0; 48]);
        let other = tenant.client(fd);
        let before = fixture.fake.seen().len();
        for parent in [(client, client), (other, other)] {
            let status = dup(&tenant, fd, parent, 9, (client, space));
            assert_eq!(status, NV_ERR_INVALID_OBJECT_PARENT);
        }
        assert_eq!(fixture.fake.seen().len(), before, "no driver hears of it");
        let below = tenant.device(fd, other);
        assert_eq!(dup(&tenant, fd, (other, below), 9, (client, space)), rm::OK);
    }
}

/// A driver keeps the name of what went with another object, looks into nothing for some calls that use it, and counts it nowhere.
fn the_name_of_what_is_gone() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let space = made(&tenant, fd, (client, device), VA_SPACE, &[0; 48]);
    let mut params = [0; 20];
    put_u32(&mut params, 8, space);
    put_u32(&mut params, 12, 1);
    let group = made(&tenant, fd, (client, device), 0xa06c, &params);
    let objects = || {
        let change = fixture.container.journal.change();
        change.ledger.count(Counted::Objects)
    };
    let before = objects();
    assert_eq!(tenant.free(fd, client, device, space), rm::OK);
    assert_eq!(objects(), before - 1, "the group's name is left");

    let heard = fixture.fake.seen().len();
    let (scheduled, _) = tenant.control(fd, (client, group), 0xa06c_0105, &[0; 8]);
    assert_eq!(scheduled, NV_ERR_RESOURCE_LOST);
    let arg = rm::alloc(client, group, 0, 0x9067, tenant.params_address());
    let below = tenant.call(fd, rm::ALLOC, &arg, &[0; 12]).status();
    assert_eq!(below, NV_ERR_RESOURCE_LOST);
    let copied = dup(&tenant, fd, (client, device), 9, (client, group));
    assert_eq!(
        copied, NV_ERR_INVALID_OBJECT_HANDLE,
        "there is no memory to hold"
    );
    assert_eq!(fixture.fake.seen().len(), heard, "no driver hears of it");

    assert_eq!(tenant.free(fd, client, device, group), rm::OK);
    assert_eq!(objects(), before - 2);
    assert_eq!(fixture.fake.seen().len(), heard + 1);
}

fn map_dma(tenant: &Tenant, fd: i32, (client, device): (u32, u32), by: u32, memory: u32) -> u32 {
    let row = &escape::NV_ESC_RM_MAP_MEMORY_DMA;
    let mut arg = vec![0; row.size.of(R) as usize];
    put_u32(&mut arg, nvos46::H_CLIENT, client);
    put_u32(&mut arg, nvos46::H_DEVICE, device);
    put_u32(&mut arg, nvos46::H_DMA, by);
    put_u32(&mut arg, nvos46::H_MEMORY, memory);
    put_u64(&mut arg, nvos46::LENGTH, 4096);
    let called = tenant.call(fd, row.cmd(R), &arg, &[]);
    assert_eq!(called.ret, Ok(0));
    u32_at(&called.arg, nvos46::STATUS.of(R) as usize).unwrap()
}

/// An address space, and virtual memory of it.
fn virtual_memory(tenant: &Tenant, fd: i32, below: (u32, u32)) -> (u32, u32) {
    let space = made(tenant, fd, below, VA_SPACE, &[0; 48]);
    let mut params = [0; 24];
    put_u32(&mut params, virtual_params::H_VA_SPACE, space);
    (space, made(tenant, fd, below, NV01_MEMORY_VIRTUAL, &params))
}

/// RM looks into neither party of such a mapping: whatever goes with another object, seen by the ledger or not, is none.
fn memory_is_mapped_by_what_is_there() {
    for is_bound in [false, true] {
        let fixture = Fixture::new(4 * MIB);
        fixture.fake.is_bound.store(is_bound, Ordering::Relaxed);
        let (tenant, fd, client, device) = with_device(&fixture);
        let below = (client, device);
        assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
        let (space, by) = virtual_memory(&tenant, fd, below);
        // The heap's call makes virtual memory too.
        let mut heap = vec![0; escape::NV_ESC_RM_VID_HEAP_CONTROL.size.of(R) as usize];
        put_u32(&mut heap, nvos32::H_ROOT, client);
        put_u32(&mut heap, nvos32::H_PARENT, device);
        put_u32(&mut heap, nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE);
        put_u32(&mut heap, nvos32::H_VA_SPACE, space);
        put_u32(&mut heap, nvos32::ALLOC_H_MEMORY, 7);
        put_u32(&mut heap, nvos32::ALLOC_FLAGS, memory_params::FLAG_VIRTUAL);
        let row = &escape::NV_ESC_RM_VID_HEAP_CONTROL;
        assert_eq!(tenant.call(fd, row.cmd(R), &heap, &[]).ret, Ok(0));
        let mut params = [0; 20];
        put_u32(&mut params, 8, space);
        put_u32(&mut params, 12, 1);
        let group = made(&tenant, fd, below, 0xa06c, &params);
        let doorbell = made(&tenant, fd, below, 0xc461, &[]);

        assert_eq!(map_dma(&tenant, fd, below, by, 5), rm::OK);
        assert_eq!(map_dma(&tenant, fd, below, by, doorbell), rm::OK);
        let heard = fixture.fake.seen().len();
        for (by, memory, expected) in [
            (NOTHING, 5, NV_ERR_OBJECT_NOT_FOUND),
            (by, NOTHING, NV_ERR_OBJECT_NOT_FOUND),
            (by, group, NV_ERR_INVALID_OBJECT_HANDLE),
            (by, client, NV_ERR_INVALID_OBJECT_HANDLE),
            (client, 5, NV_ERR_INVALID_OBJECT_HANDLE),
            (space, 5, NV_ERR_INVALID_OBJECT_HANDLE),
            (group, 5, NV_ERR_INVALID_OBJECT_HANDLE),
            (5, 5, NV_ERR_INVALID_OBJECT_HANDLE),
        ] {
            let status = map_dma(&tenant, fd, below, by, memory);
            assert_eq!(status, expected, "{memory:#x} by {by:#x}");
        }
        let foreign = map_dma(&tenant, fd, (client + 1, device), by, 5);
        assert_eq!(foreign, NV_ERR_INVALID_CLIENT);
        assert_eq!(fixture.fake.seen().len(), heard, "no driver hears of it");

        assert_eq!(tenant.free(fd, client, device, space), rm::OK);
        for gone in [by, 7] {
            let status = map_dma(&tenant, fd, below, gone, 5);
            assert_eq!(status, NV_ERR_RESOURCE_LOST, "{gone:#x}");
        }
        assert_eq!(map_dma(&tenant, fd, below, by, by), NV_ERR_RESOURCE_LOST);
        assert_eq!(fixture.fake.seen().len(), heard + 1, "of the free alone");
        assert!(!fixture.fake.is_wedged());
        fixture.assert_exact(MIB);
    }
}

/// An address space is freed while a mapping is on its way to the driver: it goes after the mapping.
fn nothing_is_mapped_by_what_goes_meanwhile() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let below = (client, device);
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    let (space, by) = virtual_memory(&tenant, fd, below);
    let (mapper, freer) = (tenant.thread(), tenant.thread());
    fixture
        .fake
        .hold_back(escape::NV_ESC_RM_MAP_MEMORY_DMA.cmd(R), None);
    std::thread::scope(|scope| {
        let mapping = scope.spawn(|| map_dma(&mapper, fd, below, by, 5));
        fixture.fake.wait_for_held(1);
        let (freed, is_freed) = mpsc::channel();
        let free = scope.spawn(move || {
            let status = freer.free(fd, client, device, space);
            freed.send(()).unwrap();
            status
        });
        // Long enough for a free that nobody holds up.
        let _held_up = is_freed.recv_timeout(Duration::from_millis(300));
        fixture.fake.let_go();
        assert_eq!(mapping.join().unwrap(), rm::OK);
        assert_eq!(free.join().unwrap(), rm::OK);
    });
    assert!(!fixture.fake.is_wedged());
    assert_eq!(map_dma(&tenant, fd, below, by, 5), NV_ERR_RESOURCE_LOST);
}

/// A handle that is freed and made anew on the way would name larger memory to the driver than to the ledger.
fn what_a_reference_is_taken_of_is_what_was_charged() {
    const UVM_MAP: u32 = uvm::UVM_MAP_EXTERNAL_ALLOCATION.cmd;
    for held_back in [escape::NV_ESC_RM_DUP_OBJECT.cmd(R), UVM_MAP] {
        let fixture = Fixture::new(4 * MIB);
        let (tenant, fd, client, device) = with_device(&fixture);
        let other = tenant.client(fd);
        let below = (other, tenant.device(fd, other));
        let uvm = tenant.open(&fixture.path("nvidia-uvm"));
        assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
        let (taker, freer) = (tenant.thread(), tenant.thread());
        fixture.fake.hold_back(held_back, None);
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| match held_back {
                UVM_MAP => map_externally(&taker, uvm, (client, 5)),
                _ => dup(&taker, fd, below, 9, (client, 5)),
            });
            fixture.fake.wait_for_held(1);
            let heard = fixture.fake.seen().len();
            let (freed, is_freed) = mpsc::channel();
            let made_anew = scope.spawn(move || {
                let free = freer.free(fd, client, device, 5);
                freed.send(()).unwrap();
                (free, freer.memory(fd, client, device, 5, 2 * MIB).status())
            });
            // Long enough for a free that nobody holds up.
            let _held_up = is_freed.recv_timeout(Duration::from_millis(300));
            let heard_meanwhile = fixture.fake.seen().len() - heard;
            fixture.fake.let_go();
            assert_eq!(heard_meanwhile, 0, "{held_back:#x}");
            assert_eq!(taken.join().unwrap(), rm::OK, "{held_back:#x}");
            assert_eq!(made_anew.join().unwrap(), (rm::OK, rm::OK));
        });
        assert_eq!(fixture.used_bytes(), 3 * MIB, "{held_back:#x}");
    }
}

/// Has a file of nvidia-uvm map 1 MiB of memory on the card.
pub(crate) fn map_externally(tenant: &Tenant, uvm: i32, memory: (u32, u32)) -> u32 {
    let row = uvm::UVM_MAP_EXTERNAL_ALLOCATION;
    let at = |offset: nvabi::PerRelease| offset.of(R) as usize;
    let mut arg = vec![0; at(row.size)];
    put_u64(&mut arg, map_external::BASE, 1 << 40);
    put_u64(&mut arg, map_external::LENGTH, MIB);
    put(&mut arg, map_external::PER_GPU, &uuid_bytes(UUID).unwrap());
    put_u64(&mut arg, at(map_external::COUNT), 1);
    put_u32(&mut arg, at(map_external::H_CLIENT), memory.0);
    put_u32(&mut arg, at(map_external::H_MEMORY), memory.1);
    let called = tenant.call(uvm, row.cmd, &arg, &[]);
    assert_eq!(called.ret, Ok(0));
    u32_at(&called.arg, at(row.status)).unwrap()
}

fn no_call_names_what_is_not_there() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let userd = tenant.memory(fd, client, device, 0, MIB);
    assert_eq!(userd.status(), rm::OK);
    let before = fixture.fake.seen().len();
    let alloc = |class: u32, parent: u32, params: &[u8]| {
        let arg = rm::alloc(client, parent, 0, class, tenant.params_address());
        tenant.call(fd, rm::ALLOC, &arg, params).status()
    };
    let parent = alloc(0x2080, NOTHING, &[0; 4]);
    assert_eq!(parent, NV_ERR_OBJECT_NOT_FOUND);
    // An address space of a channel group and of a channel, memory of an error notifier, an event's source.
    let with = |bytes: usize, at: usize| {
        let mut params = vec![0; bytes];
        put_u32(&mut params, at, NOTHING);
        params
    };
    let channel = |at: usize| {
        let mut params = with(368, at);
        let userd = rm::new_handle(&userd.arg);
        put_u32(&mut params, channel_params::H_USERD_MEMORY, userd);
        params
    };
    for (class, params) in [
        (0xa06c, with(20, 8)),
        (0xc56f, channel(28)),
        (0xc56f, channel(0)),
        (0xc56f, channel(60)),
        (0xc56f, with(368, channel_params::H_USERD_MEMORY)),
        (0x9067, with(12, 0)),
        (0x0079, with(24, event_params::H_PARENT_CLIENT + 4)),
        (0x503b, with(512, 4)),
    ] {
        let status = alloc(class, device, &params);
        assert_eq!(status, NV_ERR_OBJECT_NOT_FOUND, "{class:#x}");
    }
    // A question about an object, and one that names a channel in its parameters.
    let (status, _) = tenant.control(fd, (client, NOTHING), 0x2080_0110, &[0; 132]);
    assert_eq!(status, NV_ERR_OBJECT_NOT_FOUND);
    let (status, _) = tenant.control(fd, (client, device), 0x2080_1218, &with(16, 0));
    assert_eq!(status, NV_ERR_OBJECT_NOT_FOUND);
    let (status, _) = tenant.control(fd, (client + 1, client + 1), 0x0000_0102, &[0; 108]);
    assert_eq!(status, NV_ERR_INVALID_CLIENT);
    assert_eq!(fixture.fake.seen().len(), before, "no driver hears of it");
}
