//! Pages that are larger than what is asked for: the card never holds more than the quota, not for one instant.

use std::sync::atomic::Ordering;

use nvabi::bytes::put_u32;
use nvabi::layout::memory_params as params;

use crate::Test;
use crate::fake::GRANULE;
use crate::fixture::Fixture;
use crate::quota::with_device;
use crate::rm;
use crate::tenant::{Called, Tenant};

pub(crate) const TESTS: &[Test] = &[
    (
        "pages::a_huge_page_is_reserved_before_it_is_asked_for",
        a_huge_page_is_reserved,
    ),
    (
        "pages::racing_threads_never_pass_the_quota_with_any_page",
        racing_threads_never_pass_it,
    ),
    (
        "pages::what_outgrows_the_quota_is_freed_again_and_refused",
        what_outgrows_the_quota_is_freed,
    ),
    (
        "pages::what_outgrows_its_reservation_and_fits_is_kept",
        what_fits_is_kept,
    ),
];

const MIB: u64 = 1 << 20;
const HUGE: u32 = params::ATTR_PAGE_SIZE_HUGE;
/// Both attributes, and the page that they ask for.
const PAGES: [(u32, u32, u64); 4] = [
    (HUGE, 0, 2 * MIB),
    (HUGE, params::ATTR2_HUGE_2M, 2 * MIB),
    (HUGE, params::ATTR2_HUGE_512M, 512 * MIB),
    (0, 0, GRANULE),
];

fn allocate(
    tenant: &Tenant,
    fd: i32,
    (client, device): (u32, u32),
    (attr, attr2): (u32, u32),
) -> Called {
    let mut block = rm::memory_params(1);
    put_u32(&mut block, params::ATTR, attr);
    put_u32(&mut block, params::ATTR2, attr2);
    let arg = rm::alloc(client, device, 0, rm::VIDMEM, tenant.params_address());
    tenant.call(fd, rm::ALLOC, &arg, &block)
}

fn a_huge_page_is_reserved() {
    for (attr, attr2, page) in PAGES {
        let fixture = Fixture::new(page - GRANULE);
        let (tenant, fd, client, device) = with_device(&fixture);
        let before = fixture.fake.seen().len();
        let called = allocate(&tenant, fd, (client, device), (attr, attr2));
        assert_eq!(called.status(), rm::NO_MEMORY, "{attr:#x} {attr2:#x}");
        assert_eq!(fixture.fake.seen().len(), before, "no driver hears of it");
        fixture.assert_exact(0);

        let fixture = Fixture::new(page);
        let (tenant, fd, client, device) = with_device(&fixture);
        let called = allocate(&tenant, fd, (client, device), (attr, attr2));
        assert_eq!(called.status(), rm::OK, "{attr:#x} {attr2:#x}");
        fixture.assert_exact(page);
    }
}

fn racing_threads_never_pass_it() {
    const QUOTA: u64 = 1200 * MIB;
    const ROUNDS: usize = 120;
    let fixture = Fixture::new(QUOTA);
    let (tenant, fd, client, _device) = with_device(&fixture);
    fixture.fake.slow_micros.store(100, Ordering::SeqCst);
    let threads = [0; 6].map(|_| tenant.thread());
    std::thread::scope(|scope| {
        for (number, thread) in threads.iter().enumerate() {
            let own = match number {
                0 => client,
                _ => tenant.client(fd),
            };
            scope.spawn(move || {
                let device = thread.device(fd, own);
                let mut held = Vec::new();
                for round in 0..ROUNDS {
                    let (attr, attr2, _) = PAGES[(round + number) % PAGES.len()];
                    let called = allocate(thread, fd, (own, device), (attr, attr2));
                    match called.status() {
                        rm::OK => held.push(rm::new_handle(&called.arg)),
                        status => assert_eq!(status, rm::NO_MEMORY),
                    }
                    if round % 3 == 2
                        && let Some(handle) = held.pop()
                    {
                        assert_eq!(thread.free(fd, own, device, handle), rm::OK);
                    }
                }
            });
        }
    });
    let peak = fixture.fake.peak_bytes();
    assert!(peak <= QUOTA, "the card held {peak} of {QUOTA} bytes");
    assert!(peak > QUOTA - 600 * MIB, "the quota was not tried: {peak}");
    let held = fixture.fake.held_bytes();
    fixture.assert_exact(held);
}

fn what_outgrows_the_quota_is_freed() {
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    // A rule of the driver's that nobody has heard of.
    fixture
        .fake
        .rounds_to_bytes
        .store(8 * MIB, Ordering::SeqCst);
    let called = tenant.memory(fd, client, device, 6, MIB);
    assert_eq!(called.status(), rm::NO_MEMORY);
    assert_eq!(rm::new_handle(&called.arg), 6, "the struct is untouched");
    assert_eq!(called.params, rm::memory_params(MIB));
    fixture.assert_exact(MIB);
    fixture.fake.rounds_to_bytes.store(0, Ordering::SeqCst);
    assert_eq!(tenant.memory(fd, client, device, 6, MIB).status(), rm::OK);
    fixture.assert_exact(2 * MIB);
}

fn what_fits_is_kept() {
    let fixture = Fixture::new(16 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    fixture
        .fake
        .rounds_to_bytes
        .store(8 * MIB, Ordering::SeqCst);
    let called = tenant.memory(fd, client, device, 6, MIB);
    assert_eq!(called.status(), rm::OK);
    fixture.assert_exact(8 * MIB);
}
