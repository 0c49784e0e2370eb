//! Calls of compat mode, of which nobody remembers the driver's answer when their broker ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ledger::CardSlot;
use nix::errno::Errno;

use crate::Test;
use crate::fixture::{Confined, Fixture, until};
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    (
        "doubt::what_a_killed_broker_may_have_made_stays_charged",
        what_may_have_been_made_stays_charged,
    ),
    (
        "doubt::an_object_whose_handle_the_driver_chooses_is_not_made_twice",
        is_not_made_twice,
    ),
    (
        "doubt::what_a_killed_broker_has_freed_is_charged_no_longer",
        what_was_freed_is_charged_no_longer,
    ),
    (
        "doubt::who_hands_over_waits_for_the_calls_that_it_makes_itself",
        who_hands_over_waits,
    ),
];

const MIB: u64 = 1 << 20;
const HANDLE: u32 = 0x11;

struct Device {
    tenant: Confined,
    fd: i32,
    client: u32,
    device: u32,
}

fn device(fixture: &Fixture) -> Device {
    let fake = &fixture.fake;
    fake.is_compat.store(true, Ordering::Relaxed);
    let tenant = fixture.tenant();
    let fd = tenant.open(&fixture.path("nvidiactl"));
    // The broker knows the file once a call is made on it. This one is left to the caller.
    let root = rm::alloc(0, 0, 0, rm::ROOT, 0);
    let handed_back = tenant.call(fd, rm::ALLOC, &root, &[]);
    assert_eq!(handed_back.ret, Err(Errno::ENOTTY as i32));
    let client = fake.client_of_the_kernel(fixture.container.files.held()[0].id);
    let device = tenant.device(fd, client);
    Device {
        tenant,
        fd,
        client,
        device,
    }
}

impl Device {
    fn memory(&self, handle: u32) -> u32 {
        let made = self
            .tenant
            .memory(self.fd, self.client, self.device, handle, MIB);
        made.status()
    }

    fn free(&self) -> u32 {
        self.tenant.free(self.fd, self.client, self.device, HANDLE)
    }
}

/// What a successor has charged while the first broker's call has been carried out and has not come back.
fn charged_after(fixture: &Fixture, cmd: u32, call: impl FnOnce() -> u32 + Send) -> u64 {
    let fake = &fixture.fake;
    fake.lose_answer(cmd);
    std::thread::scope(|scope| {
        let called = scope.spawn(call);
        until("the driver has done it", || fake.has_lost_an_answer());
        let successor = fixture.successor();
        let charged = {
            let state = successor.journal.change();
            assert_eq!(state.ledger.check_invariants(), Ok(()));
            // With what is reserved.
            state.ledger.used(CardSlot(0))
        };
        fake.find_answers();
        assert_eq!(called.join().unwrap(), rm::OK);
        charged
    })
}

/// The driver refuses the second one, since the first is there.
fn what_may_have_been_made_stays_charged() {
    let fixture = Fixture::new(4 * MIB);
    let device = device(&fixture);
    let charged = charged_after(&fixture, rm::ALLOC, || device.memory(HANDLE));
    assert_eq!((charged, fixture.fake.held_bytes()), (MIB, MIB));
}

fn is_not_made_twice() {
    let fixture = Fixture::new(4 * MIB);
    let device = device(&fixture);
    let charged = charged_after(&fixture, rm::ALLOC, || device.memory(0));
    assert_eq!((charged, fixture.fake.held_bytes()), (MIB, MIB));
}

fn what_was_freed_is_charged_no_longer() {
    let fixture = Fixture::new(4 * MIB);
    let device = device(&fixture);
    assert_eq!(device.memory(HANDLE), rm::OK);
    let charged = charged_after(&fixture, rm::FREE, || device.free());
    assert_eq!((charged, fixture.fake.held_bytes()), (0, 0));
}

/// A successor would make them again.
fn who_hands_over_waits() {
    let fixture = Fixture::new(4 * MIB);
    let device = device(&fixture);
    fixture.fake.hold_back(rm::ALLOC, Some(rm::VIDMEM));
    let unfinished = || {
        let state = fixture.container.journal.change();
        state
            .open()
            .filter(|(_, open)| open.finished.is_none())
            .count()
    };
    std::thread::scope(|scope| {
        let called = scope.spawn(|| device.memory(HANDLE));
        fixture.fake.wait_for_held(1);
        assert_eq!(unfinished(), 1);
        let handed_over = scope.spawn(|| {
            let is_let_go = std::cell::Cell::new(false);
            let are_busy = || {
                // It has been looked once: it waits.
                if !is_let_go.replace(true) {
                    fixture.fake.let_go();
                }
                true
            };
            fixture.container.finish_calls(Duration::ZERO, are_busy);
            unfinished()
        });
        assert_eq!(handed_over.join().unwrap(), 0);
        assert_eq!(called.join().unwrap(), rm::OK);
    });
    fixture.assert_exact(MIB);
}
