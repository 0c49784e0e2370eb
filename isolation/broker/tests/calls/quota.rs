//! What is granted, refused, given back, and shown.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use broker::control_socket::{Serving, serve};
use control::{BrokerStatus, NewQuota, Request};
use ledger::CardSlot;
use nvabi::bytes::{put_u32, u32_at};
use nvabi::control::{NV2080_CTRL_CMD_FB_GET_INFO_V2, fb_info};
use nvabi::layout::card_info;

use crate::Test;
use crate::fake::{GRANULE, UUID};
use crate::fixture::{Confined, Fixture};
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    ("quota::is_exact", is_exact),
    (
        "quota::size_is_what_the_driver_took",
        size_is_what_the_driver_took,
    ),
    (
        "quota::a_refused_call_reaches_no_driver",
        a_refused_call_reaches_no_driver,
    ),
    (
        "quota::what_the_driver_refuses_is_given_back",
        what_the_driver_refuses_is_given_back,
    ),
    (
        "quota::racing_threads_never_pass_it",
        racing_threads_never_pass_it,
    ),
    (
        "quota::a_duplicate_keeps_its_charge",
        a_duplicate_keeps_its_charge,
    ),
    ("quota::views_show_the_slice", views_show_the_slice),
    (
        "quota::unknown_calls_are_refused_as_the_driver_would",
        unknown_calls_are_refused,
    ),
    (
        "quota::a_change_that_nobody_waits_for_is_not_made",
        a_change_that_nobody_waits_for_is_not_made,
    ),
    (
        "quota::what_is_granted_is_followed_though_no_request_came",
        what_is_granted_is_followed,
    ),
];

const MIB: u64 = 1 << 20;

/// A tenant with a client and its device, on a control file.
pub(crate) fn with_device(fixture: &Fixture) -> (Confined, i32, u32, u32) {
    let tenant = fixture.tenant();
    let fd = tenant.open(&fixture.path("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    (tenant, fd, client, device)
}

/// Asks the control socket for another quota; its answer, for one who waits for it.
pub(crate) fn set(fixture: &Fixture, quota_bytes: u64, waits: bool) -> String {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let request = Request::SetQuota {
        cards: vec![NewQuota {
            uuid: UUID.to_owned(),
            quota_bytes,
        }],
    };
    let line = serde_json::to_string(&request).unwrap() + "\n";
    ours.write_all(line.as_bytes()).unwrap();
    let waiting = waits.then_some(ours);
    let serving = Serving {
        listeners: 0,
        broker: BrokerStatus::default(),
    };
    let served = std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(theirs, &fixture.container, &serving));
        let answer = waiting.map(|stream| {
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).unwrap();
            line
        });
        served.join().unwrap().unwrap();
        answer
    });
    served.unwrap_or_default()
}

/// A request may lie in the control socket while brokers are replaced, for longer than whoever made it waits.
fn a_change_that_nobody_waits_for_is_not_made() {
    let fixture = Fixture::new(4 * MIB);
    let quota = || {
        let journal = fixture.container.journal.change();
        journal.ledger.quota(CardSlot(0))
    };
    let set = |quota_bytes, waits| set(&fixture, quota_bytes, waits);
    assert_eq!(set(3 * MIB, false), "");
    assert_eq!(quota(), 4 * MIB);
    assert!(set(2 * MIB, true).contains("2097152"));
    assert_eq!(quota(), 2 * MIB);
}

fn what_is_granted_is_followed() {
    let fixture = Fixture::new(4 * MIB);
    let folder = tempfile::tempdir().unwrap();
    let grant = |quota_bytes: u64| {
        let grant = serde_json::json!({
            "version": 1,
            "key": {"namespace": "default", "id": "c1"},
            "driver": {"kind": "kernel"},
            "driver_version": "570.195.03",
            "cards": [{"uuid": UUID, "minor": 0, "quota_bytes": quota_bytes}],
            "compute": cards::ComputeTerms::default(),
            "frontend": {"kind": "shim", "pid": 1},
            "bundle": null,
            "created_at_unix_ms": 1,
        });
        std::fs::write(folder.path().join("grant.json"), grant.to_string()).unwrap();
    };
    let followed = || {
        broker::quota::follow(folder.path(), &fixture.container);
        let journal = fixture.container.journal.change();
        journal.ledger.quota(CardSlot(0))
    };
    assert_eq!(followed(), 4 * MIB, "there is no grant");
    for quota_bytes in [6 * MIB, 2 * MIB] {
        grant(quota_bytes);
        assert_eq!(followed(), quota_bytes);
    }
    std::fs::write(folder.path().join("grant.json"), "{").unwrap();
    assert_eq!(followed(), 2 * MIB);
}

fn is_exact() {
    for killable in [false, true] {
        let fixture = Fixture::new(4 * MIB);
        let tenant = if killable {
            fixture.killable_tenant()
        } else {
            fixture.tenant()
        };
        let fd = tenant.open(&fixture.path("nvidiactl"));
        let client = tenant.client(fd);
        let device = tenant.device(fd, client);
        let mut handles = Vec::new();
        for _ in 0..4 {
            let called = tenant.memory(fd, client, device, 0, MIB);
            assert_eq!(called.status(), rm::OK);
            handles.push(rm::new_handle(&called.arg));
        }
        fixture.assert_exact(4 * MIB);

        let over = tenant.memory(fd, client, device, 0, 1);
        assert_eq!(over.status(), rm::NO_MEMORY);
        assert_eq!(rm::new_handle(&over.arg), 0, "hObjectNew is untouched");
        assert_eq!(
            over.params,
            rm::memory_params(1),
            "the parameters are untouched"
        );
        fixture.assert_exact(4 * MIB);

        assert_eq!(tenant.free(fd, client, device, handles[0]), rm::OK);
        fixture.assert_exact(3 * MIB);
        let again = tenant.memory(fd, client, device, 0x77, MIB);
        assert_eq!((again.status(), rm::new_handle(&again.arg)), (rm::OK, 0x77));
        fixture.assert_exact(4 * MIB);

        assert_eq!(tenant.free(fd, client, client, device), rm::OK);
        fixture.assert_exact(0);
    }
}

fn size_is_what_the_driver_took() {
    let fixture = Fixture::new(64 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let called = tenant.memory(fd, client, device, 0, 3 * MIB + 1);
    assert_eq!(called.status(), rm::OK);
    let took = 3 * MIB + GRANULE;
    assert_eq!(rm::size(&called.params), took);
    // Reserved was more: huge pages are assumed until the driver says otherwise.
    fixture.assert_exact(took);
}

fn a_refused_call_reaches_no_driver() {
    let fixture = Fixture::new(MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let before = fixture.fake.seen().len();
    for size in [MIB + 1, u64::MAX, 1 << 40] {
        let called = tenant.memory(fd, client, device, 0, size);
        assert_eq!(called.status(), rm::NO_MEMORY, "{size}");
    }
    assert_eq!(fixture.fake.seen().len(), before);
    fixture.assert_exact(0);
}

fn what_the_driver_refuses_is_given_back() {
    let fixture = Fixture::new(2 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    // The same handle with other words in the struct: not a repetition, and refused by the driver.
    let again = tenant.memory(fd, client, client, 5, MIB);
    assert_ne!(again.status(), rm::OK);
    let elsewhere = tenant.thread();
    let again = elsewhere.memory(fd, client, device, 5, MIB);
    assert_eq!(again.status(), nvabi::status::NV_ERR_INSERT_DUPLICATE_NAME);
    fixture.assert_exact(MIB);
    assert_eq!(tenant.memory(fd, client, device, 6, MIB).status(), rm::OK);
    fixture.assert_exact(2 * MIB);
}

fn racing_threads_never_pass_it() {
    const PIECES: u64 = 40;
    let fixture = Fixture::new(PIECES * GRANULE);
    let (tenant, fd, client, device) = with_device(&fixture);
    fixture.fake.slow_micros.store(200, Ordering::SeqCst);
    let threads = [tenant.thread(), tenant.thread(), tenant.thread()];
    let clients = [client, tenant.client(fd), tenant.client(fd)];
    let granted: u64 = std::thread::scope(|scope| {
        let racing: Vec<_> = threads
            .iter()
            .zip(clients)
            .map(|(thread, own)| {
                scope.spawn(move || {
                    let device = if own == client {
                        device
                    } else {
                        thread.device(fd, own)
                    };
                    let mut granted = 0;
                    while thread.memory(fd, own, device, 0, GRANULE).status() == rm::OK {
                        granted += 1;
                    }
                    granted
                })
            })
            .collect();
        racing
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(granted, PIECES);
    fixture.assert_exact(PIECES * GRANULE);
    let peak = fixture.container.journal.change().ledger.peak(CardSlot(0));
    assert_eq!(peak, PIECES * GRANULE);
}

fn a_duplicate_keeps_its_charge() {
    const DUP: u32 = 0xc01c_4634;
    let fixture = Fixture::new(4 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(tenant.memory(fd, client, device, 5, MIB).status(), rm::OK);
    let mut arg = vec![0; 28];
    for (at, word) in [(0, client), (4, device), (8, 6), (12, client), (16, 5)] {
        put_u32(&mut arg, at, word);
    }
    let called = tenant.call(fd, DUP, &arg, &[]);
    assert_eq!((called.ret, u32_at(&called.arg, 24)), (Ok(0), Some(rm::OK)));
    assert_eq!(tenant.free(fd, client, device, 5), rm::OK);
    assert_eq!(fixture.used_bytes(), MIB, "the duplicate holds the memory");
    assert_eq!(tenant.free(fd, client, device, 6), rm::OK);
    assert_eq!(fixture.used_bytes(), 0);

    // A client that is not the container's cannot be reached into.
    put_u32(&mut arg, 12, 0xc1d0_ffff);
    let called = tenant.call(fd, DUP, &arg, &[]);
    let refused = Some(nvabi::status::NV_ERR_INVALID_CLIENT);
    assert_eq!((called.ret, u32_at(&called.arg, 24)), (Ok(0), refused));
}

fn views_show_the_slice() {
    const CARD_INFO: u32 = 0xc120_46c8;
    let fixture = Fixture::new(8 * MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    assert_eq!(
        tenant.memory(fd, client, device, 0, 2 * MIB).status(),
        rm::OK
    );

    let mut list = vec![0; 460];
    put_u32(&mut list, 0, 3);
    let indices = [fb_info::TOTAL_RAM_SIZE, fb_info::HEAP_FREE, 0x0c];
    for (slot, index) in indices.into_iter().enumerate() {
        put_u32(&mut list, 4 + slot * 8, index);
    }
    let cmd = NV2080_CTRL_CMD_FB_GET_INFO_V2;
    let arg = rm::control(client, device, cmd, tenant.params_address(), 460);
    let called = tenant.call(fd, rm::CONTROL, &arg, &list);
    assert_eq!(called.status(), rm::OK);
    let shown: Vec<Option<u32>> = (0..3)
        .map(|slot| u32_at(&called.params, 8 + slot * 8))
        .collect();
    let unknown_to_us = crate::fake::CARD_KIB;
    assert_eq!(shown, [Some(8 << 10), Some(6 << 10), Some(unknown_to_us)]);

    // Four entries; the driver knows two cards, one is granted.
    let called = tenant.call(fd, CARD_INFO, &[0; 4 * card_info::BYTES], &[]);
    assert_eq!(called.ret, Ok(0));
    let valid: Vec<u8> = called
        .arg
        .chunks_exact(card_info::BYTES)
        .map(|entry| entry[card_info::VALID])
        .collect();
    assert_eq!(valid, [1, 0, 0, 0]);
}

fn unknown_calls_are_refused() {
    let fixture = Fixture::new(MIB);
    let (tenant, fd, client, device) = with_device(&fixture);
    let before = fixture.fake.seen().len();
    let control = rm::control(client, device, 0xdead_beef, tenant.params_address(), 4);
    let called = tenant.call(fd, rm::CONTROL, &control, &[0; 4]);
    assert_eq!(called.status(), nvabi::status::NV_ERR_NOT_SUPPORTED);
    let wrong_size = rm::control(
        client,
        device,
        NV2080_CTRL_CMD_FB_GET_INFO_V2,
        tenant.params_address(),
        4,
    );
    let called = tenant.call(fd, rm::CONTROL, &wrong_size, &[0; 4]);
    assert_eq!(called.status(), nvabi::status::NV_ERR_INVALID_ARGUMENT);
    let class = rm::alloc(client, device, 0, 0xc2, tenant.params_address());
    let called = tenant.call(fd, rm::ALLOC, &class, &[0; 128]);
    assert_eq!(called.status(), nvabi::status::NV_ERR_INVALID_CLASS);
    assert_eq!(fixture.fake.seen().len(), before);
    fixture.assert_exact(0);
}
