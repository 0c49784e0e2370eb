//! Calls that a killed broker began, and of which nobody will know whether the driver has executed them: what they took stays charged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use driver::{FileId, FileKind, Segment};
use journal::reservation::Reservation;
use journal::shared_state::CallSlot;
use journal::state::{Begun, CallKey, Op};
use ledger::{CardSlot, Demand, ObjectKind, Purpose};

use crate::Test;
use crate::fake::{GRANULE, Seen};
use crate::fixture::{Fixture, until};
use crate::rm;

pub(crate) const TESTS: &[Test] = &[
    (
        "in_doubt::what_cannot_be_repeated_stays_charged",
        what_cannot_be_repeated_stays_charged,
    ),
    (
        "in_doubt::what_is_refused_the_second_time_stays_charged",
        what_is_refused_the_second_time_stays_charged,
    ),
    (
        "in_doubt::what_is_repeated_and_refused_is_given_back_where_calls_are_remembered",
        refused_by_one_that_remembers,
    ),
];

const HANDLE: u32 = 0x5c00_0001;

/// A container whose one call has made memory, and that call as it reached the driver.
fn with_memory() -> (Fixture, crate::fixture::Confined, Seen) {
    let fixture = Fixture::new(4 * GRANULE);
    let tenant = fixture.tenant();
    let fd = tenant.open(&fixture.path("nvidiactl"));
    let client = tenant.client(fd);
    let device = tenant.device(fd, client);
    let made = tenant.memory(fd, client, device, HANDLE, GRANULE);
    assert_eq!(made.status(), rm::OK);
    let seen = fixture.fake.seen().pop().unwrap();
    assert_eq!(fixture.used_bytes(), GRANULE);
    (fixture, tenant, seen)
}

/// Leaves the call in the journal as a broker does that is killed while the driver has it.
fn leave_begun(fixture: &Fixture, seen: &Seen) -> CallSlot {
    let container = &fixture.container;
    let call_slot = container.shared_state.call_slot(u64::MAX).unwrap();
    let segments = seen.segments.iter().map(|bytes| Segment {
        address: 0,
        link: None,
        bytes: bytes.clone(),
    });
    let mut change = container.journal.change();
    let demand = Demand {
        card: CardSlot(0),
        bytes: GRANULE,
        purpose: Purpose::Memory,
    };
    let token = change.reserve(ObjectKind::Memory, Some(demand)).unwrap();
    let begun = Begun {
        number: change.next_call(),
        key: CallKey::new(seen.caller.tid, 16, [3, seen.cmd.into(), 0x1000]),
        caller: seen.caller,
        file: seen.file,
        kind: FileKind::Ctl,
        cmd: seen.cmd,
        before: Arc::new(segments.collect()),
        fds: Vec::new(),
        reservation: Reservation::Client { token },
    };
    change.record_op(Op::Begin(call_slot.number(), Box::new(begun)));
    call_slot
}

/// What is charged once a successor has done with the call.
fn charged_after(fixture: &Fixture, seen: &Seen) -> u64 {
    let container = &fixture.container;
    let left = leave_begun(fixture, seen);
    broker::resume::resume(container, &[]).unwrap();
    until("the call is settled", || {
        container.journal.change().open_in(left.number()).is_none()
    });
    fixture.used_bytes()
}

fn what_cannot_be_repeated_stays_charged() {
    let (fixture, _tenant, mut seen) = with_memory();
    let requested = fixture.fake.seen().len();
    // Nobody has the file.
    seen.file = FileId(1 << 40);
    assert_eq!(charged_after(&fixture, &seen), 2 * GRANULE);
    assert_eq!(fixture.fake.seen().len(), requested);
}

fn what_is_refused_the_second_time_stays_charged() {
    let (fixture, _tenant, seen) = with_memory();
    fixture.fake.is_compat.store(true, Ordering::SeqCst);
    assert_eq!(charged_after(&fixture, &seen), 2 * GRANULE);
    assert_eq!(fixture.fake.held_bytes(), GRANULE);
}

fn refused_by_one_that_remembers() {
    let (fixture, _tenant, seen) = with_memory();
    assert_eq!(charged_after(&fixture, &seen), GRANULE);
    assert_eq!(fixture.fake.held_bytes(), GRANULE);
}
