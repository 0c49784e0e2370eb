//! Page tables of what is mapped: no sum of the driver's has them, and what is mapped far beyond the quota finds them in it.

use broker::account::uuid_bytes;
use nvabi::bytes::{put, put_u32, put_u64, u32_at, u64_at};
use nvabi::class::{
    FERMI_VASPACE_A as VA_SPACE, NV01_MEMORY_SYSTEM as SYSTEM, NV01_MEMORY_VIRTUAL,
};
use nvabi::layout::{nvos33, nvos34, nvos46, nvos47, virtual_params};
use nvabi::status::{NV_ERR_INSUFFICIENT_RESOURCES, NV_ERR_INVALID_LIMIT, NV_ERR_NOT_SUPPORTED};
use nvabi::uvm::map_external;
use nvabi::{Release, escape, uvm};
use serde_json::Value;

use crate::Test;
use crate::fake::UUID;
use crate::fixture::{Confined, Fixture};
use crate::quota::{set, with_device};
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    (
        "mapped::page_tables_of_rm_s_mappings",
        page_tables_of_rm_s_mappings,
    ),
    (
        "mapped::one_whole_mapping_is_unmapped_and_no_part",
        one_whole_mapping_is_unmapped_and_no_part,
    ),
    (
        "mapped::page_tables_of_uvm_s_mappings",
        page_tables_of_uvm_s_mappings,
    ),
    (
        "mapped::no_driver_hears_of_a_mapping_beyond_its_memory",
        no_driver_hears_of_a_mapping_beyond_its_memory,
    ),
    (
        "mapped::small_mappings_far_from_each_other_take_their_tables",
        small_mappings_far_from_each_other_take_their_tables,
    ),
    (
        "mapped::what_is_mapped_for_the_cpu_is_bounded_by_the_quota",
        what_is_mapped_for_the_cpu_is_bounded_by_the_quota,
    ),
    (
        "mapped::host_memory_is_charged_as_long_as_it_may_be_mapped",
        host_memory_is_charged_as_long_as_it_may_be_mapped,
    ),
    (
        "mapped::what_is_mapped_once_is_free",
        what_is_mapped_once_is_free,
    ),
];

const R: Release = Release::R570;
const MIB: u64 = 1 << 20;
const QUOTA: u64 = 4 * MIB;
/// Of the quota, page tables of 512 MiB are 1 MiB.
const LENGTH: u64 = 512 * MIB;
/// Half of the quota.
const MEMORY: u32 = 5;
/// The host's, so much of it: what is mapped.
const HOST: u32 = 8;

struct Seat<'f> {
    tenant: Confined,
    fd: i32,
    uvm: i32,
    client: u32,
    device: u32,
    dma: u32,
    fixture: &'f Fixture,
}

impl<'f> Seat<'f> {
    fn take(fixture: &'f Fixture) -> Self {
        let (tenant, fd, client, device) = with_device(fixture);
        let made = |class, params: &[u8]| {
            let arg = rm::alloc(client, device, 0, class, tenant.params_address());
            let called = tenant.call(fd, rm::ALLOC, &arg, params);
            assert_eq!(called.status(), rm::OK);
            rm::new_handle(&called.arg)
        };
        let space = made(VA_SPACE, &[0; 48]);
        let mut params = [0; 24];
        put_u32(&mut params, virtual_params::H_VA_SPACE, space);
        let dma = made(NV01_MEMORY_VIRTUAL, &params);
        let uvm = tenant.open(&fixture.path("nvidia-uvm"));
        let seat = Self {
            tenant,
            fd,
            uvm,
            client,
            device,
            dma,
            fixture,
        };
        assert_eq!(seat.memory(MEMORY, 2 * MIB), rm::OK);
        assert_eq!(seat.host_memory(), rm::OK);
        seat
    }

    fn host_memory(&self) -> u32 {
        let params_at = self.tenant.params_address();
        let arg = rm::alloc(self.client, self.device, HOST, SYSTEM, params_at);
        let params = rm::memory_params(LENGTH);
        self.tenant.call(self.fd, rm::ALLOC, &arg, &params).status()
    }

    fn memory(&self, handle: u32, bytes: u64) -> u32 {
        let (client, device) = (self.client, self.device);
        let called = self.tenant.memory(self.fd, client, device, handle, bytes);
        called.status()
    }

    fn free(&self, handle: u32) {
        let freed = self.tenant.free(self.fd, self.client, self.device, handle);
        assert_eq!(freed, rm::OK);
    }

    fn map(&self, address: u64) -> u32 {
        self.map_of(HOST, address, (0, LENGTH))
    }

    fn map_of(&self, memory: u32, address: u64, (offset, bytes): (u64, u64)) -> u32 {
        let row = &escape::NV_ESC_RM_MAP_MEMORY_DMA;
        let mut arg = vec![0; row.size.of(R) as usize];
        put_u32(&mut arg, nvos46::H_CLIENT, self.client);
        put_u32(&mut arg, nvos46::H_DEVICE, self.device);
        put_u32(&mut arg, nvos46::H_DMA, self.dma);
        put_u32(&mut arg, nvos46::H_MEMORY, memory);
        put_u64(&mut arg, nvos46::OFFSET, offset);
        put_u64(&mut arg, nvos46::LENGTH, bytes);
        put_u64(&mut arg, nvos46::DMA_OFFSET.of(R) as usize, address);
        let called = self.tenant.call(self.fd, row.cmd(R), &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, nvos46::STATUS.of(R) as usize).unwrap()
    }

    fn unmap(&self, address: u64, bytes: u64) -> u32 {
        let row = &escape::NV_ESC_RM_UNMAP_MEMORY_DMA;
        let mut arg = vec![0; row.size.of(R) as usize];
        put_u32(&mut arg, nvos47::H_CLIENT, self.client);
        put_u32(&mut arg, 4, self.device);
        put_u32(&mut arg, nvos47::H_DMA, self.dma);
        put_u32(&mut arg, nvos47::H_MEMORY, HOST);
        put_u64(&mut arg, nvos47::DMA_OFFSET, address);
        put_u64(&mut arg, nvos47::SIZE, bytes);
        let called = self.tenant.call(self.fd, row.cmd(R), &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, nvos47::STATUS.of(R) as usize).unwrap()
    }

    fn map_for_cpu(&self, memory: u32) -> u32 {
        self.map_for_cpu_with(memory, self.fd)
    }

    fn map_for_cpu_with(&self, memory: u32, file: i32) -> u32 {
        let row = &escape::NV_ESC_RM_MAP_MEMORY;
        let mut arg = vec![0; row.size.of(R) as usize];
        put_u32(&mut arg, nvos33::H_CLIENT, self.client);
        put_u32(&mut arg, nvos33::H_DEVICE, self.device);
        put_u32(&mut arg, nvos33::H_MEMORY, memory);
        put_u64(&mut arg, nvos33::LENGTH, 4096);
        put_u32(&mut arg, nvos33::FD, file.cast_unsigned());
        let called = self.tenant.call(self.fd, row.cmd(R), &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, nvos33::STATUS).unwrap()
    }

    fn unmap_for_cpu(&self, memory: u32) {
        let row = &escape::NV_ESC_RM_UNMAP_MEMORY;
        let mut arg = vec![0; row.size.of(R) as usize];
        put_u32(&mut arg, nvos34::H_CLIENT, self.client);
        put_u32(&mut arg, nvos34::H_DEVICE, self.device);
        put_u32(&mut arg, nvos34::H_MEMORY, memory);
        let called = self.tenant.call(self.fd, row.cmd(R), &arg, &[]);
        assert_eq!(called.ret, Ok(0));
    }

    fn map_external(&self, base: u64) -> u32 {
        self.map_external_of(base, LENGTH)
    }

    fn map_external_of(&self, base: u64, bytes: u64) -> u32 {
        let row = uvm::UVM_MAP_EXTERNAL_ALLOCATION;
        let at = |offset: nvabi::PerRelease| offset.of(R) as usize;
        let mut arg = vec![0; at(row.size)];
        put_u64(&mut arg, map_external::BASE, base);
        put_u64(&mut arg, map_external::LENGTH, bytes);
        put(&mut arg, map_external::PER_GPU, &uuid_bytes(UUID).unwrap());
        put_u64(&mut arg, at(map_external::COUNT), 1);
        put_u32(&mut arg, at(map_external::H_CLIENT), self.client);
        put_u32(&mut arg, at(map_external::H_MEMORY), HOST);
        let called = self.tenant.call(self.uvm, row.cmd, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, at(row.status)).unwrap()
    }

    fn map_region(&self, base: u64) -> u32 {
        let row = uvm::UVM_MAP_DYNAMIC_PARALLELISM_REGION;
        let mut arg = vec![0; row.size.of(R) as usize];
        put_u64(&mut arg, map_external::BASE, base);
        put_u64(&mut arg, map_external::LENGTH, 4096);
        put(&mut arg, uvm::MAP_REGION_UUID, &uuid_bytes(UUID).unwrap());
        let called = self.tenant.call(self.uvm, row.cmd, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, row.status.of(R) as usize).unwrap()
    }

    fn unmap_external(&self, base: u64) {
        let row = uvm::UVM_UNMAP_EXTERNAL;
        let mut arg = vec![0; row.size.of(R) as usize];
        put_u64(&mut arg, map_external::BASE, base);
        put_u64(&mut arg, map_external::LENGTH, LENGTH);
        put(
            &mut arg,
            uvm::UNMAP_EXTERNAL_UUID,
            &uuid_bytes(UUID).unwrap(),
        );
        assert_eq!(self.tenant.call(self.uvm, row.cmd, &arg, &[]).ret, Ok(0));
    }

    /// 2 MiB are free, less page tables of what is mapped beyond the quota.
    fn fills_up_by(&self, map: impl Fn(u64) -> u32, unmap: impl Fn(u64)) {
        let place = |number: u64| (1 << 40) + number * LENGTH;
        let mapped: Vec<u32> = (0..4).map(|number| map(place(number))).collect();
        let (ok, full) = (rm::OK, rm::NO_MEMORY);
        assert_eq!(mapped, [ok, ok, full, full]);
        let heard = self.fixture.fake.seen().len();
        assert_eq!(self.memory(6, MIB), full);
        assert_eq!(map(place(9)), full);
        assert_eq!(self.fixture.fake.seen().len(), heard);
        // What is mapped anew where it was is no more than before.
        unmap(place(1));
        assert_eq!(map(place(1)), ok);
        assert_eq!(map(place(7)), full);
        unmap(place(1));
        assert_eq!(self.memory(6, MIB), ok);
        assert_eq!(map(place(8)), full);
        self.free(6);
    }
}

fn page_tables_of_rm_s_mappings() {
    let fixture = Fixture::new(QUOTA);
    let seat = Seat::take(&fixture);
    seat.fills_up_by(
        |place| seat.map(place),
        |place| assert_eq!(seat.unmap(place, LENGTH), rm::OK),
    );
    // A part is none; the memory's end is that of its mappings.
    assert_eq!(seat.map(0), rm::OK);
    // What a smaller quota leaves to others is what the card has: the memory and the tables.
    let used_with = |quota: u64| {
        let answer: Value = serde_json::from_str(&set(&fixture, quota, true)).unwrap();
        set(&fixture, QUOTA, true);
        answer["cards"][0]["used_bytes"].as_u64().unwrap()
    };
    assert!(used_with(2 * MIB) > QUOTA / 2 + MIB * 7 / 8);
    assert_eq!(seat.unmap(0, MIB), NV_ERR_NOT_SUPPORTED);
    assert_eq!(seat.memory(6, 2 * MIB), rm::NO_MEMORY);
    seat.free(HOST);
    assert_eq!(used_with(2 * MIB), QUOTA / 2, "tables that are gone");
    assert_eq!(seat.memory(6, 2 * MIB), rm::OK);
    fixture.assert_exact(4 * MIB);
}

/// RM rounds a part to pages and remembers the rest by bytes: what it does not find again stays in the page tables.
fn one_whole_mapping_is_unmapped_and_no_part() {
    const PIECE: u64 = 64 << 10;
    let fixture = Fixture::new(QUOTA);
    let seat = Seat::take(&fixture);
    let heard = || fixture.fake.seen().len();
    for number in 0..4 {
        assert_eq!(seat.map_of(HOST, number * PIECE, (0, PIECE)), rm::OK);
    }
    let before = heard();
    for (address, bytes) in [
        (0, 4096),
        (4096, PIECE - 4096),
        (4096, PIECE),
        (0, PIECE + 1),
        (0, 4 * PIECE - 1),
        (4 * PIECE, PIECE),
        (1 << 40, 4096),
        (u64::MAX, 2),
        // Whole mappings, and not one of them alone.
        (PIECE, 2 * PIECE),
        (0, LENGTH),
    ] {
        let status = seat.unmap(address, bytes);
        assert_eq!(status, NV_ERR_NOT_SUPPORTED, "{address:#x} {bytes:#x}");
    }
    assert_eq!(heard(), before, "no driver heard of it");
    for (address, bytes) in [(0, PIECE), (3 * PIECE, 0)] {
        assert_eq!(seat.unmap(address, bytes), rm::OK);
    }
    let unmapped = fixture.fake.seen();
    let unmapped = unmapped.iter().filter(|call| call.cmd & 0xff == 0x58);
    let sizes = unmapped.map(|call| u64_at(&call.segments[0], nvos47::SIZE).unwrap());
    assert_eq!(sizes.collect::<Vec<_>>(), [0, 0], "RM hears of no size");
    assert_eq!(seat.unmap(0, PIECE), NV_ERR_NOT_SUPPORTED);
    // Of memory that is gone it may be remembered, and is of one size.
    seat.free(HOST);
    assert_eq!(seat.unmap(PIECE, 4096), NV_ERR_NOT_SUPPORTED);
}

fn page_tables_of_uvm_s_mappings() {
    let fixture = Fixture::new(QUOTA);
    let seat = Seat::take(&fixture);
    seat.fills_up_by(
        |place| seat.map_external(place),
        |place| seat.unmap_external(place),
    );
    fixture.assert_exact(2 * MIB);
}

/// So is what is mapped a few times.
fn what_is_mapped_once_is_free() {
    let fixture = Fixture::new(LENGTH + 2 * MIB);
    let seat = Seat::take(&fixture);
    assert_eq!(seat.map(1 << 40), rm::OK);
    assert_eq!(seat.memory(6, LENGTH), rm::OK);
    fixture.assert_exact(LENGTH + 2 * MIB);
}

/// RM takes page tables for all of the length before it looks at the memory's, and keeps them where it refuses.
fn no_driver_hears_of_a_mapping_beyond_its_memory() {
    let fixture = Fixture::new(QUOTA);
    let seat = Seat::take(&fixture);
    let arg = rm::alloc(
        seat.client,
        seat.device,
        9,
        0xc461,
        seat.tenant.params_address(),
    );
    let doorbell = seat.tenant.call(seat.fd, rm::ALLOC, &arg, &[]);
    assert_eq!(doorbell.status(), rm::OK);
    let heard = fixture.fake.seen().len();
    for (memory, part) in [
        (MEMORY, (0, 2 * MIB + 1)),
        (MEMORY, (MIB, MIB + 4096)),
        (MEMORY, (u64::MAX - 4095, 4096)),
        (HOST, (0, LENGTH + (64 << 10))),
        (9, (0, 1 << 40)),
        (seat.dma, (0, 1 << 40)),
    ] {
        let status = seat.map_of(memory, 1 << 40, part);
        assert_eq!(status, NV_ERR_INVALID_LIMIT, "{memory:#x}: {part:?}");
    }
    assert_eq!(fixture.fake.seen().len(), heard);
    for (memory, part) in [
        (MEMORY, (0, 2 * MIB)),
        (MEMORY, (MIB, MIB)),
        (9, (0, 64 << 10)),
    ] {
        assert_eq!(seat.map_of(memory, 1 << 40, part), rm::OK, "{memory:#x}");
    }
}

/// A page takes a table and directories where there is nothing else, and nothing more beside others.
fn small_mappings_far_from_each_other_take_their_tables() {
    const PAGE: u64 = 4096;
    type Map = fn(&Seat<'_>, u64) -> u32;
    type Unmap = fn(&Seat<'_>, u64);
    let ways: [(Map, Unmap); 3] = [
        (
            |seat, address| seat.map_of(HOST, address, (0, PAGE)),
            |seat, address| assert_eq!(seat.unmap(address, PAGE), rm::OK),
        ),
        (
            |seat, address| seat.map_external_of(address, PAGE),
            |seat, base| seat.unmap_external(base),
        ),
        (
            |seat, base| seat.map_region(base),
            |seat, base| seat.tenant.free_range(seat.uvm, base),
        ),
    ];
    // Half of the quota, 1/128 of it and 64 KiB, at 8 KiB each and at 12 KiB, beside what is dense.
    let steps = [(LENGTH, 255..=268), (1 << 38, 168..=178)];
    let all = ways.into_iter().enumerate();
    for ((number, (map, unmap)), (step, expected)) in
        all.flat_map(|way| steps.clone().map(|step| (way, step)))
    {
        let fixture = Fixture::new(QUOTA);
        let seat = Seat::take(&fixture);
        for page in 0..520 {
            assert_eq!(map(&seat, page * PAGE), rm::OK, "{number}: {page}");
        }
        let place = |number: u64| (1 << 40) + number * step;
        let far = (0..1000).take_while(|number| map(&seat, place(*number)) == rm::OK);
        let far = far.count();
        assert!(expected.contains(&far), "{number}: {far}");
        assert_eq!(seat.memory(6, MIB), rm::NO_MEMORY, "{number}");
        for number in 0..140 {
            unmap(&seat, place(number));
        }
        assert_eq!(seat.memory(6, MIB), rm::OK, "{number}");
        fixture.assert_exact(3 * MIB);
    }
}

/// Each piece, however small, takes a page of 2 MiB of the window that all of the card's tenants share.
fn what_is_mapped_for_the_cpu_is_bounded_by_the_quota() {
    const MOST: u64 = (QUOTA + 256 * MIB) / (2 * MIB);
    const OTHER: u32 = 6;
    let fixture = Fixture::new(QUOTA);
    let seat = Seat::take(&fixture);
    for _ in 0..MOST {
        assert_eq!(seat.map_for_cpu(MEMORY), rm::OK);
    }
    let before = fixture.fake.seen().len();
    assert_eq!(seat.map_for_cpu(MEMORY), NV_ERR_INSUFFICIENT_RESOURCES);
    assert_eq!(fixture.fake.seen().len(), before, "no driver heard of it");
    // The host's memory takes nothing of it.
    assert_eq!(seat.map_for_cpu(HOST), rm::OK);
    seat.unmap_for_cpu(MEMORY);
    assert_eq!(seat.map_for_cpu(MEMORY), rm::OK);
    assert_ne!(seat.map_for_cpu(MEMORY), rm::OK);
    // What is freed takes its mappings with it, and its handle is given again.
    seat.free(MEMORY);
    assert_eq!(seat.memory(MEMORY, MIB), rm::OK);
    assert_eq!(seat.memory(OTHER, MIB), rm::OK);
    for memory in [MEMORY, OTHER] {
        for _ in 0..MOST / 2 {
            assert_eq!(seat.map_for_cpu(memory), rm::OK);
        }
    }
    assert_ne!(seat.map_for_cpu(OTHER), rm::OK);
}

/// RM_FREE ends no mapping, and the driver keeps the pages for it.
fn host_memory_is_charged_as_long_as_it_may_be_mapped() {
    let fixture = Fixture::new(QUOTA);
    let seat = Seat::take(&fixture);
    let used = || {
        fixture.reaper.reconcile(&fixture.container);
        fixture.used_bytes_of_the_host()
    };
    let without = used() - LENGTH;
    let control = || seat.tenant.open(&fixture.path("nvidiactl"));
    // A mapping keeps its file open, as any reference does.
    let [one, other] = [control(), control()];
    assert_eq!(seat.map_for_cpu_with(HOST, one), rm::OK);
    assert_eq!(seat.map_for_cpu_with(HOST, other), rm::OK);
    let mapping = fixture.elsewhere(&seat.tenant, one);
    for file in [one, other] {
        seat.tenant.close(file);
    }
    seat.unmap_for_cpu(HOST);
    seat.free(HOST);
    for _ in 0..3 {
        assert_eq!(used(), without + LENGTH, "it may be mapped");
    }
    drop(mapping);
    assert_eq!(used(), without);
    // What its program has unmapped before costs nothing once it is freed.
    assert_eq!(seat.host_memory(), rm::OK);
    let file = control();
    assert_eq!(seat.map_for_cpu_with(HOST, file), rm::OK);
    seat.tenant.close(file);
    assert_eq!(used(), without + LENGTH);
    assert_eq!(fixture.pins(), 0);
    seat.free(HOST);
    assert_eq!(fixture.used_bytes_of_the_host(), without);
}
