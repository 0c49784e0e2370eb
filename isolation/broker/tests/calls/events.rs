//! Events by a descriptor's number, and cards by their ids: the driver asks nobody whose they are.

use std::sync::atomic::Ordering;

use nvabi::bytes::{put_u32, u32_at};
use nvabi::class::NV01_EVENT_OS_EVENT;
use nvabi::layout::{event_params, nvos21, os_event};
use nvabi::{Release, escape, status};

use crate::Test;
use crate::agent::Ask;
use crate::fake::Seen;
use crate::files::reconcile_until;
use crate::fixture::{Confined, Fixture};
use crate::quota::with_device;
use crate::rm;
use crate::tenant::Tenant;

pub(crate) const TESTS: &[Test] = &[
    (
        "events::another_tenants_events_are_not_touched",
        another_tenants_events_are_not_touched,
    ),
    ("events::there_is_an_end_of_them", there_is_an_end_of_them),
    (
        "events::events_of_interrupts_keep_no_records",
        events_of_interrupts_keep_no_records,
    ),
    (
        "events::those_of_a_closed_file_are_freed",
        those_of_a_closed_file_are_freed,
    ),
    (
        "events::those_of_a_freed_client_are_freed_no_more",
        those_of_a_freed_client_are_freed_no_more,
    ),
    (
        "events::those_of_a_client_are_freed_before_it_ends_whichever_file_has_made_them",
        those_of_a_client_are_freed_before_it_ends,
    ),
    (
        "events::a_real_driver_gets_the_callers_number",
        a_real_driver_gets_the_callers_number,
    ),
    (
        "events::only_granted_cards_are_attached",
        only_granted_cards_are_attached,
    ),
];

const MIB: u64 = 1 << 20;
const EINVAL: i32 = 22;
const R: Release = Release::R570;

fn event(tenant: &Tenant, fd: i32, row: &escape::Escape, client: u32, number: i32) -> u32 {
    let mut arg = vec![0; 16];
    put_u32(&mut arg, os_event::H_CLIENT, client);
    put_u32(&mut arg, os_event::FD, number.cast_unsigned());
    let called = tenant.call(fd, row.cmd(R), &arg, &[]);
    assert_eq!(called.ret, Ok(0));
    u32_at(&called.arg, os_event::STATUS).unwrap()
}

fn alloc(tenant: &Tenant, fd: i32, client: u32, number: i32) -> u32 {
    event(tenant, fd, &escape::NV_ESC_ALLOC_OS_EVENT, client, number)
}

fn free(tenant: &Tenant, fd: i32, client: u32, number: i32) -> u32 {
    event(tenant, fd, &escape::NV_ESC_FREE_OS_EVENT, client, number)
}

fn another_tenants_events_are_not_touched() {
    let fixture = Fixture::new(MIB);
    let (tenant, fd, client, _) = with_device(&fixture);
    assert_eq!(alloc(&tenant, fd, client, fd), rm::OK);
    let before = fixture.fake.seen().len();
    for foreign in [client + 1, client - 1, 0, u32::MAX] {
        for call in [alloc, free] {
            let status = call(&tenant, fd, foreign, fd);
            assert_eq!(status, status::NV_ERR_INVALID_CLIENT, "{foreign:#x}");
        }
    }
    assert_eq!(fixture.fake.seen().len(), before, "no driver hears of it");
    assert_eq!(free(&tenant, fd, client, fd), rm::OK);
    assert_eq!(fixture.fake.seen().len(), before + 1);
}

fn there_is_an_end_of_them() {
    const MOST: i32 = 4096;
    let fixture = Fixture::new(MIB);
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let (tenant, fd, client, _) = with_device(&fixture);
    // Any number will do: nobody looks it up.
    let made = (0..MOST).all(|number| alloc(&tenant, fd, client, number) == rm::OK);
    assert!(made);
    let full = status::NV_ERR_INSUFFICIENT_RESOURCES;
    assert_eq!(alloc(&tenant, fd, client, MOST), full);
    assert_eq!(free(&tenant, fd, client, 7), rm::OK);
    assert_eq!(alloc(&tenant, fd, client, MOST), rm::OK);
    assert_eq!(alloc(&tenant, fd, client, MOST + 1), full);
}

/// The driver would keep one in the kernel's memory for each event at each interrupt, which a program causes without a call.
fn events_of_interrupts_keep_no_records() {
    const GR0: u32 = 12;
    let (interrupts, none) = (
        event_params::NONSTALL_INTR,
        event_params::WITHOUT_EVENT_DATA,
    );
    let fixture = Fixture::new(MIB);
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let (tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(alloc(&tenant, fd, client, fd), rm::OK);
    for (requested, executed) in [
        (GR0 | interrupts, GR0 | interrupts | none),
        (GR0 | interrupts | none, GR0 | interrupts | none),
        (GR0, GR0),
    ] {
        let class = NV01_EVENT_OS_EVENT;
        let arg = rm::alloc(client, device, 0, class, tenant.params_address());
        let mut params = vec![0; 24];
        put_u32(&mut params, event_params::H_SRC_RESOURCE, device);
        put_u32(&mut params, event_params::NOTIFY_INDEX, requested);
        put_u32(&mut params, event_params::DATA, fd.cast_unsigned());
        let called = tenant.call(fd, rm::ALLOC, &arg, &params);
        assert_eq!(called.status(), rm::OK);
        let index = |params| u32_at(params, event_params::NOTIFY_INDEX);
        assert_eq!(index(&called.params), Some(requested), "the tenant's own");
        let seen = fixture.fake.seen().pop().unwrap();
        assert_eq!(u32_at(&seen.segments[0], nvos21::H_CLASS), Some(class));
        assert_eq!(index(&seen.segments[1]), Some(executed), "{requested:#x}");
    }
}

/// The driver keeps them as long as anybody has the file open, in a list that every tenant's calls walk.
fn those_of_a_closed_file_are_freed() {
    let row = &escape::NV_ESC_FREE_OS_EVENT;
    let refusals = [None, Some(status::NV_ERR_INVALID_STATE)];
    for (is_compat, refusal) in [false, true]
        .into_iter()
        .flat_map(|is_compat| refusals.map(|refusal| (is_compat, refusal)))
    {
        let fixture = Fixture::new(MIB);
        let fake = &fixture.fake;
        fake.is_bound.store(true, Ordering::Relaxed);
        let (tenant, fd, client, _) = with_device(&fixture);
        fake.is_compat.store(is_compat, Ordering::Relaxed);
        fake.refused
            .lock()
            .unwrap()
            .extend(refusal.map(|it| (row.cmd(R), it)));
        let closed = tenant.open(&fixture.path("nvidiactl"));
        for (file, number) in [(closed, 1), (closed, 2), (closed, 3), (fd, 2), (fd, 9)] {
            assert_eq!(alloc(&tenant, file, client, number), rm::OK);
        }
        let elsewhere = fixture.elsewhere(&tenant, closed);
        tenant.close(closed);
        reconcile_until(&fixture, "the file is given up", || {
            fake.closed.load(Ordering::SeqCst) == 1
        });
        // One of a name that another file has made too may be the other one's.
        assert_eq!(freed(&fake.seen()), [(client, 1), (client, 3)]);
        let count = || fixture.container.journal.change().os_event_count();
        if refusal.is_some() {
            assert_eq!(count(), 5, "the driver has them");
        }
        drop(elsewhere);
        reconcile_until(&fixture, "the rest is another file's", || count() == 2);
    }
}

/// A client of the first file's, with an event of each: 1 and 2.
fn with_events_of_two_files(fixture: &Fixture, is_compat: bool) -> (Confined, [i32; 2], u32) {
    let fake = &fixture.fake;
    fake.is_bound.store(true, Ordering::Relaxed);
    let (tenant, fd, client, _) = with_device(fixture);
    fake.is_compat.store(is_compat, Ordering::Relaxed);
    let files = [fd, tenant.open(&fixture.path("nvidiactl"))];
    for (file, number) in files.into_iter().zip([1, 2]) {
        assert_eq!(alloc(&tenant, file, client, number), rm::OK);
    }
    (tenant, files, client)
}

/// The driver frees them with the client, whose handle may be another container's from then on: a free of an event by that name would be a free of
/// the other one's.
fn those_of_a_freed_client_are_freed_no_more() {
    for is_compat in [false, true] {
        let fixture = Fixture::new(MIB);
        let fake = &fixture.fake;
        let (tenant, [fd, other], client) = with_events_of_two_files(&fixture, is_compat);
        assert_eq!(tenant.free(fd, client, client, client), rm::OK);
        for file in [fd, other] {
            tenant.close(file);
        }
        reconcile_until(&fixture, "both are given up", || {
            fake.closed.load(Ordering::SeqCst) == 2
        });
        assert_eq!(freed(&fake.seen()), []);
    }
}

/// In compat mode a client ends with its file, and the driver keeps what other files have made by its name; in strict mode it is freed.
fn those_of_a_client_are_freed_before_it_ends() {
    for is_compat in [false, true] {
        let fixture = Fixture::new(MIB);
        let fake = &fixture.fake;
        let (tenant, [fd, other], client) = with_events_of_two_files(&fixture, is_compat);
        let _elsewhere = fixture.elsewhere(&tenant, fd);
        tenant.close(fd);
        reconcile_until(&fixture, "the client's file is given up", || {
            fake.closed.load(Ordering::SeqCst) == 1
        });
        let seen = fake.seen();
        let end = seen.iter().position(|call| call.cmd == rm::FREE);
        assert_eq!(end.is_none(), is_compat);
        let before = &seen[..end.unwrap_or(seen.len())];
        assert_eq!(freed(before), [(client, 1), (client, 2)]);
        assert_eq!(freed(&seen).len(), 2);
        assert_eq!(fixture.container.journal.change().os_event_count(), 0);
        // In compat mode it is there as long as somebody else has its file, and nobody hears at once that it is not.
        for call in [alloc, free] {
            let status = call(&tenant, other, client, 3);
            assert_eq!(status, status::NV_ERR_INVALID_CLIENT);
        }
        assert_eq!(fake.seen().len(), seen.len(), "no driver hears of it");
    }
}

/// The events that the driver was asked to free: client and number.
fn freed(seen: &[Seen]) -> Vec<(u32, u32)> {
    let frees = |call: &&Seen| call.cmd == escape::NV_ESC_FREE_OS_EVENT.cmd(R);
    let freed = seen.iter().filter(frees).map(|call| {
        let word = |at| u32_at(&call.segments[0], at).unwrap();
        (word(os_event::H_CLIENT), word(os_event::FD))
    });
    freed.collect()
}

fn a_real_driver_gets_the_callers_number() {
    let fixture = Fixture::new(MIB);
    fixture.fake.is_bound.store(true, Ordering::Relaxed);
    let (tenant, fd, client, _) = with_device(&fixture);
    let continued = fixture.continued();
    assert_eq!(alloc(&tenant, fd, client, 77), rm::OK);
    let seen = fixture.fake.seen().pop().unwrap();
    assert_eq!(u32_at(&seen.segments[0], os_event::FD), Some(77));
    assert_eq!(
        fixture.continued(),
        continued,
        "the kernel does not read it again"
    );
}

fn only_granted_cards_are_attached() {
    let fixture = Fixture::new(MIB);
    let (tenant, fd, _, _) = with_device(&fixture);
    let attach = |cmd: u64, ids: &[u32]| {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        tenant.write(tenant.arg_address(), &bytes);
        let address = tenant.arg_address();
        tenant.ask(&Ask::Ioctl { fd, cmd, address })
    };
    let spelt = |count: u64| [0xc000_46d4 | count << 18, 0x0000_54d4 | count << 18];
    let before = fixture.fake.seen().len();
    for ids in [&[0x200_u32][..], &[0x100, 0x200], &[0, 0, 0xffff_ffff]] {
        for cmd in spelt(ids.len() as u64) {
            assert_eq!(attach(cmd, ids), Err(EINVAL), "{cmd:#x} {ids:x?}");
        }
    }
    assert_eq!(fixture.fake.seen().len(), before, "no driver hears of it");
    for ids in [&[0x100_u32][..], &[0, 0x100, 0]] {
        for cmd in spelt(ids.len() as u64) {
            assert_eq!(attach(cmd, ids), Ok(0), "{cmd:#x} {ids:x?}");
        }
    }
    assert_eq!(fixture.fake.seen().len(), before + 4);
}
