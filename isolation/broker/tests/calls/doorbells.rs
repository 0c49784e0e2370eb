//! A doorbell is memory to RM, whose address is an offset of a register: nothing takes it for a place in the host's memory.

use broker::account::uuid_bytes;
use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::class::{FERMI_VASPACE_A, NV01_CONTEXT_DMA, NV01_MEMORY_VIRTUAL};
use nvabi::control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD as EXPORT;
use nvabi::layout::{channel_params, context_dma, export_object, nvos21, nvos46, virtual_params};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_INVALID_OBJECT, NV_ERR_INVALID_OBJECT_HANDLE};
use nvabi::uvm::map_external;
use nvabi::{Release, escape, uvm};

use crate::Test;
use crate::fake::UUID;
use crate::fixture::{Confined, Fixture};
use crate::quota::with_device;
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    (
        "doorbells::a_doorbell_is_mapped_with_its_own_kind_of_page",
        a_doorbell_is_mapped_with_its_own_kind_of_page,
    ),
    (
        "doorbells::uvm_maps_memory_and_a_doorbell_of_its_own_kind",
        uvm_maps_memory_and_a_doorbell_of_its_own_kind,
    ),
    (
        "doorbells::errors_are_written_to_memory_alone",
        errors_are_written_to_memory_alone,
    ),
    (
        "doorbells::memory_alone_is_exported",
        memory_alone_is_exported,
    ),
];

const R: Release = Release::R570;
const MIB: u64 = 1 << 20;
const MEMORY: u32 = 5;
const DOORBELL: u32 = 9;
/// The page of the card's figures.
const FIGURES: u32 = 10;
const SPACE: u32 = 11;
const VIRTUAL: u32 = 12;
/// `NV_HOPPER_USERMODE_A_PARAMS` with `bBar1Mapping`.
const IN_THE_WINDOW: [u8; 2] = [1, 0];

struct Seat {
    tenant: Confined,
    fd: i32,
    client: u32,
    device: u32,
}

impl Seat {
    fn take(fixture: &Fixture) -> Self {
        let (tenant, fd, client, device) = with_device(fixture);
        let seat = Self {
            tenant,
            fd,
            client,
            device,
        };
        let memory = seat.tenant.memory(fd, client, device, MEMORY, MIB);
        assert_eq!(memory.status(), rm::OK);
        let mut of_space = [0; 24];
        put_u32(&mut of_space, virtual_params::H_VA_SPACE, SPACE);
        for (handle, class, params) in [
            (DOORBELL, 0xc661, &IN_THE_WINDOW[..]),
            (FIGURES, 0xde, &[0; 8]),
            (SPACE, FERMI_VASPACE_A, &[0; 48]),
            (VIRTUAL, NV01_MEMORY_VIRTUAL, &of_space),
        ] {
            assert_eq!(seat.made(handle, class, params), rm::OK, "{class:#x}");
        }
        seat
    }

    fn made(&self, handle: u32, class: u32, params: &[u8]) -> u32 {
        let params_at = self.tenant.params_address();
        let arg = rm::alloc(self.client, self.device, handle, class, params_at);
        self.tenant.call(self.fd, rm::ALLOC, &arg, params).status()
    }
}

fn a_doorbell_is_mapped_with_its_own_kind_of_page() {
    const PAGE_KIND_VIRTUAL: u32 = 1 << 3;
    const PAGE_KIND_OVERRIDE: u32 = 1 << 19;
    const PAGE_SIZE_4KB: u32 = 1 << 8;
    let fixture = Fixture::new(4 * MIB);
    let seat = Seat::take(&fixture);
    let row = &escape::NV_ESC_RM_MAP_MEMORY_DMA;
    let flags_that_reach = |memory: u32, kind: u32| {
        let mut arg = vec![0; row.size.of(R) as usize];
        put_u32(&mut arg, nvos46::H_CLIENT, seat.client);
        put_u32(&mut arg, nvos46::H_DEVICE, seat.device);
        put_u32(&mut arg, nvos46::H_DMA, VIRTUAL);
        put_u32(&mut arg, nvos46::H_MEMORY, memory);
        put_u64(&mut arg, nvos46::LENGTH, 4096);
        put_u32(&mut arg, nvos46::FLAGS, kind | PAGE_SIZE_4KB);
        let called = seat.tenant.call(seat.fd, row.cmd(R), &arg, &[]);
        let status = u32_at(&called.arg, nvos46::STATUS.of(R) as usize);
        assert_eq!((called.ret, status), (Ok(0), Some(rm::OK)));
        let given_back = u32_at(&called.arg, nvos46::FLAGS);
        assert_eq!(given_back, Some(kind | PAGE_SIZE_4KB));
        let reached = fixture.fake.seen().pop().unwrap();
        u32_at(&reached.segments[0], nvos46::FLAGS).unwrap()
    };
    for kind in [PAGE_KIND_VIRTUAL, PAGE_KIND_OVERRIDE] {
        assert_eq!(flags_that_reach(DOORBELL, kind), PAGE_SIZE_4KB);
        assert_eq!(flags_that_reach(MEMORY, kind), kind | PAGE_SIZE_4KB);
    }
}

fn uvm_maps_memory_and_a_doorbell_of_its_own_kind() {
    const BLOCK_LINEAR: (usize, u32) = (map_external::FORMAT, 1);
    const NO_PLC: (usize, u32) = (map_external::COMPRESSION, 1);
    const READ_ONLY: (usize, u32) = (16, 3);
    let fixture = Fixture::new(4 * MIB);
    let seat = Seat::take(&fixture);
    let file = seat.tenant.open(&fixture.path("nvidia-uvm"));
    let row = uvm::UVM_MAP_EXTERNAL_ALLOCATION;
    let at = |offset: nvabi::PerRelease| offset.of(R) as usize;
    let map = |memory: u32, (word, value): (usize, u32)| {
        let mut arg = vec![0; at(row.size)];
        put_u64(&mut arg, map_external::BASE, 1 << 40);
        put_u64(&mut arg, map_external::LENGTH, 64 << 10);
        put(&mut arg, map_external::PER_GPU, &uuid_bytes(UUID).unwrap());
        put_u32(&mut arg, map_external::PER_GPU + word, value);
        put_u64(&mut arg, at(map_external::COUNT), 1);
        put_u32(&mut arg, at(map_external::H_CLIENT), seat.client);
        put_u32(&mut arg, at(map_external::H_MEMORY), memory);
        let called = seat.tenant.call(file, row.cmd, &arg, &[]);
        assert_eq!(called.ret, Ok(0));
        u32_at(&called.arg, at(row.status)).unwrap()
    };
    assert_eq!(map(MEMORY, BLOCK_LINEAR), rm::OK);
    assert_eq!(map(DOORBELL, READ_ONLY), rm::OK);
    let heard = fixture.fake.seen().len();
    for (memory, word) in [
        (DOORBELL, BLOCK_LINEAR),
        (DOORBELL, NO_PLC),
        (FIGURES, READ_ONLY),
        (VIRTUAL, READ_ONLY),
        (SPACE, READ_ONLY),
    ] {
        let status = map(memory, word);
        assert_eq!(status, NV_ERR_INVALID_OBJECT_HANDLE, "{memory}: {word:?}");
    }
    assert_eq!(fixture.fake.seen().len(), heard, "no driver hears of it");
}

/// RM takes any object of its class `Memory`, and gives its address to the firmware.
fn errors_are_written_to_memory_alone() {
    let fixture = Fixture::new(8 * MIB);
    let seat = Seat::take(&fixture);
    let (client, device) = (seat.client, seat.device);
    let over = |memory: u32, flags: u32| {
        let mut params = [0; 32];
        put_u32(&mut params, context_dma::FLAGS, flags);
        put_u32(&mut params, context_dma::H_MEMORY, memory);
        put_u64(&mut params, context_dma::LIMIT, 0xfff);
        seat.made(20, NV01_CONTEXT_DMA, &params)
    };
    let userd = seat.tenant.userd(seat.fd, (client, device));
    let channel = |at: usize, notifier: u32| {
        let mut params = vec![0; 368];
        put_u32(&mut params, channel_params::H_USERD_MEMORY, userd);
        put_u32(&mut params, channel_params::ENGINE_TYPE, 9);
        put_u32(&mut params, at, notifier);
        seat.made(30, 0xc86f, &params)
    };
    let group = |at: usize, notifier: u32| {
        let mut params = [0; 20];
        put_u32(&mut params, 12, 9);
        put_u32(&mut params, at, notifier);
        seat.made(40, 0xa06c, &params)
    };
    let of_channel = [
        channel_params::H_OBJECT_ERROR,
        channel_params::H_OBJECT_ECC_ERROR,
        channel_params::H_USERD_MEMORY,
    ];
    let of_ours = [NV01_CONTEXT_DMA, 0xc86f, 0xa06c].map(Some);
    for object in [DOORBELL, FIGURES, VIRTUAL, SPACE] {
        for flags in [0, 1 << 20] {
            assert_eq!(over(object, flags), NV_ERR_INVALID_OBJECT, "{object}");
        }
        for at in of_channel {
            assert_eq!(channel(at, object), NV_ERR_INVALID_ARGUMENT, "{object}");
        }
        for at in [0, 4] {
            assert_eq!(group(at, object), NV_ERR_INVALID_ARGUMENT, "{object}");
        }
    }
    // The broker itself asks the driver what a channel would take.
    let seen = fixture.fake.seen();
    let classes = seen
        .iter()
        .map(|call| u32_at(&call.segments[0], nvos21::H_CLASS));
    let reached = classes.filter(|class| of_ours.contains(class));
    assert_eq!(reached.count(), 0, "no driver hears of it");
    // As NVIDIA's own library does, and as libcuda does.
    assert_eq!(over(MEMORY, 0), rm::OK);
    for notifier in [20, MEMORY] {
        assert_eq!(channel(of_channel[0], notifier), rm::OK);
        assert_eq!(group(0, notifier), rm::OK);
        for made in [30, 40] {
            assert_eq!(seat.tenant.free(seat.fd, client, device, made), rm::OK);
        }
    }
}

/// Another container would import a doorbell of a card that it is not granted.
fn memory_alone_is_exported() {
    let fixture = Fixture::new(4 * MIB);
    let seat = Seat::take(&fixture);
    let file = seat.tenant.open(&fixture.path("nvidiactl"));
    let export = |object: u32| {
        let mut params = vec![0; 24];
        put_u32(&mut params, export_object::TYPE, export_object::TYPE_RM);
        put_u32(&mut params, export_object::H_DEVICE, seat.device);
        put_u32(&mut params, export_object::H_OBJECT, object);
        put(&mut params, export_object::FD, &file.to_le_bytes());
        let of = (seat.client, seat.client);
        seat.tenant.control(seat.fd, of, EXPORT, &params).0
    };
    for object in [DOORBELL, FIGURES, VIRTUAL, SPACE] {
        assert_eq!(export(object), NV_ERR_INVALID_ARGUMENT, "{object}");
    }
    assert_eq!(export(MEMORY), rm::OK);
}
