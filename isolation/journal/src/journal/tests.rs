//! A journal is read back as it was left, at every moment.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use std::sync::Arc;

use driver::{Caller, FileId, FileKind};
use ledger::{
    Actual, Applied, CardSlot, ClientHandle, Demand, Ledger, ObjectHandle, ObjectKind, PinFor,
    Place, ProcessId, Purpose,
};

use super::log::{
    COMPACT_BYTES, HALF_BYTES, MOST_FRAME_BYTES, REPORTED_BYTES, VERSION_AT, longest_log,
};
use super::*;
use crate::limits;
use crate::state::{Answer, Begun, CallKey, ChangesAccount, Numbering};

fn fresh() -> State {
    State::new(Ledger::new(&[(CardSlot(0), 1 << 30)]), Numbering::default())
}

fn open(file: &OwnedFd) -> Journal {
    Journal::open(file.try_clone().unwrap(), fresh).unwrap()
}

fn image(journal: &Journal) -> Vec<u8> {
    postcard::to_stdvec(&journal.change().0.state).unwrap()
}

fn reserve(bytes: u64) -> Operation {
    Operation::Reserve {
        kind: ObjectKind::Memory,
        demand: Some(Demand {
            card: CardSlot(0),
            bytes,
            purpose: Purpose::Memory,
        }),
    }
}

#[test]
fn a_successor_has_what_was_committed() {
    let file = Journal::memfd().unwrap();
    let first = open(&file);
    {
        let mut change = first.change();
        change.record_op(Op::FileSeen(FileId(3), FileKind::Ctl));
        change.ledger(reserve(1 << 20)).unwrap();
        // Refused, so it is not written.
        change.ledger(reserve(1 << 40)).unwrap_err();
    }
    let before = image(&first);
    drop(first);
    let second = open(&file);
    assert_eq!(image(&second), before);
    assert_eq!(second.change().ledger.used(CardSlot(0)), 1 << 20);
    assert_eq!(second.change().next_file(), FileId(4));
}

#[test]
fn a_successor_lets_go_of_references_that_no_open_call_has() {
    const CARD: CardSlot = CardSlot(0);
    let file = Journal::memfd().unwrap();
    let first = open(&file);
    let of_call = {
        let mut change = first.change();
        let (client, process) = (ClientHandle(7), ProcessId(8));
        let owner = ledger::FileId(3);
        change.record(Operation::SeeClient {
            file: owner,
            client,
            process,
        });
        let pins = [5, 6].map(|handle| {
            let place = Place {
                file: owner,
                client,
                parent: ObjectHandle(7),
                handle: ObjectHandle(handle),
                process,
            };
            let Ok(Applied::Reserved(reservation)) = change.ledger(reserve(1 << 20)) else {
                panic!("there is room")
            };
            change.record(Operation::AddObject {
                place,
                class: 0x40,
                kind: ObjectKind::Memory,
                card: None,
                depends_on: Vec::new(),
                reservation,
                actual: Actual::AsReserved,
            });
            let pin = change.pin((client, place.handle), PinFor::Map { cards: 1 });
            change.record(Operation::Free {
                client,
                object: place.handle,
            });
            pin.unwrap()
        });
        let begun = begun(Reservation::Duplicate {
            client: 7,
            parent: 7,
            pin: pins[0],
        });
        change.record_op(Op::Begin(0, Box::new(begun)));
        assert_eq!(change.ledger.used(CARD), 2 << 20);
        pins[0]
    };
    drop(first);
    let second = open(&file);
    let mut change = second.change();
    change.unpin_all_but_of_open_calls();
    assert_eq!(change.ledger.pins().collect::<Vec<_>>(), [of_call]);
    assert_eq!(change.ledger.used(CARD), 1 << 20);
    // It cannot ask for the call again: the driver may have executed it, and has the memory then.
    let reservation = change.open_in(0).unwrap().begun.reservation.clone();
    change.leave_in_doubt(&reservation);
    change.record_op(Op::End(
        0,
        Answer {
            ret: -5,
            after: Arc::default(),
            replaces: None,
            changes_account: ChangesAccount::No,
        },
    ));
    change.record_op(Op::Settle(0, None));
    drop(change);
    drop(second);
    let third = open(&file);
    let mut change = third.change();
    change.unpin_all_but_of_open_calls();
    assert_eq!(change.ledger.pins().collect::<Vec<_>>(), [of_call]);
    assert_eq!(change.ledger.used(CARD), 1 << 20);
}

fn begun(reservation: Reservation) -> Begun {
    Begun {
        number: 1,
        key: CallKey::new(1, 16, [3, 4, 5]),
        caller: Caller { tgid: 1, tid: 1 },
        file: FileId(1),
        kind: FileKind::Ctl,
        cmd: 4,
        before: Arc::default(),
        fds: Vec::new(),
        reservation,
    }
}

#[test]
fn a_successor_knows_what_a_context_takes_and_no_lower_figure_is_one() {
    let file = Journal::memfd().unwrap();
    let first = open(&file);
    for bytes in [20 << 20, 30 << 20, 10 << 20] {
        first
            .change()
            .record_op(Op::ContextBytes(CardSlot(0), bytes));
    }
    drop(first);
    let second = open(&file);
    assert_eq!(second.change().context_bytes(CardSlot(0)), Some(30 << 20));
    assert_eq!(second.change().context_bytes(CardSlot(1)), None);
}

#[test]
fn what_was_not_committed_never_was() {
    let file = Journal::memfd().unwrap();
    let first = open(&file);
    first.change().ledger(reserve(1)).unwrap();
    let before = image(&first);
    // The bytes of a frame behind the length: its broker was killed before it stored the new one.
    {
        let mut change = first.change();
        let log = &mut change.0.log;
        let end = Log::start(log.half) + log.length;
        log.shared.write(end, &[9; 64]).unwrap();
    }
    drop(first);
    let second = open(&file);
    assert_eq!(image(&second), before);
    second.change().ledger(reserve(2)).unwrap();
    let after = image(&second);
    drop(second);
    assert_eq!(image(&open(&file)), after, "and the next frame is whole");
}

#[test]
fn a_long_log_is_compacted_and_loses_nothing() {
    let file = Journal::memfd().unwrap();
    let journal = open(&file);
    let mut halves = BTreeSet::new();
    for id in 1..60_000 {
        let mut change = journal.change();
        change.record_op(Op::FileSeen(FileId(id), FileKind::Ctl));
        change.record_op(Op::FileGone(FileId(id)));
        halves.insert(change.0.log.half);
        assert!(change.0.log.length < 2 * COMPACT_BYTES);
    }
    assert_eq!(halves.len(), 2);
    let before = image(&journal);
    drop(journal);
    assert_eq!(image(&open(&file)), before);
}

#[test]
fn another_version_is_refused_and_left_alone() {
    let file = Journal::memfd().unwrap();
    let journal = open(&file);
    let image_before = image(&journal);
    let version = |value| {
        let change = journal.change();
        change
            .0
            .log
            .word(VERSION_AT)
            .store(value, Ordering::Release);
    };
    version(VERSION + 1);
    let error = Journal::open(file.try_clone().unwrap(), fresh).unwrap_err();
    assert!(matches!(error, Error::Version { found } if found == VERSION + 1));
    version(VERSION);
    assert_eq!(image(&open(&file)), image_before);
}

#[test]
fn a_spoilt_frame_is_an_error_that_names_it() {
    let file = Journal::memfd().unwrap();
    let journal = open(&file);
    journal.change().ledger(reserve(1)).unwrap();
    {
        let mut change = journal.change();
        let log = &mut change.0.log;
        let first = Log::start(log.half) + 4 + log.snapshot_bytes;
        log.shared.write(first + 4, &[0xff; 4]).unwrap();
    }
    drop(journal);
    let error = Journal::open(file, fresh).unwrap_err();
    assert!(
        matches!(error, Error::Malformed { frame: 1, .. }),
        "{error}"
    );
}

#[test]
fn a_log_is_compacted_before_its_half_is_full() {
    for snapshot_bytes in [
        0,
        1 << 10,
        1 << 20,
        50 << 20,
        100 << 20,
        128 << 20,
        200 << 20,
    ] {
        let longest = longest_log(snapshot_bytes);
        assert!(longest + MOST_FRAME_BYTES <= HALF_BYTES, "{snapshot_bytes}");
        // And not all the time.
        let free = longest.saturating_sub(snapshot_bytes + 4);
        assert!(free >= COMPACT_BYTES / 2, "{snapshot_bytes}: {free}");
    }
}

/// The next number's place, numbers being as long as they can be.
const HIGH: u32 = 0xf000_0000;

/// A part of all that a container may have at most is made, of things that are all alike.
fn at_all_limits(part: u64) -> State {
    use ledger::{
        Actual, Adopted, Applied, ClientHandle, Counted, ObjectHandle, Place, ProcessId, Span,
    };
    let of_ledger = limits::of_ledger(limits::MOST_CARDS.into());
    let small = |most: usize| u32::try_from(most as u64 / part).unwrap();
    let most = |counted| u32::try_from(of_ledger.most(counted).unwrap() / part).unwrap();
    let quota = [(CardSlot(0), u64::MAX)];
    let ledger = Ledger::with_limits(&quota, of_ledger.clone());
    let mut state = State::new(ledger, Numbering::default());
    let mut make = |operation| state.apply(Op::Ledger(operation)).unwrap();
    let file = ledger::FileId(u64::MAX);
    let process = ProcessId(i32::MAX);
    let clients = most(Counted::Kind(ObjectKind::Client));
    for client in 0..clients {
        make(Operation::SeeClient {
            file,
            client: ClientHandle(u32::MAX - client),
            process,
        });
    }
    for number in 0..most(Counted::Objects) - clients {
        let Applied::Reserved(reservation) = make(reserve(1 << 20)) else {
            panic!("{number} objects are too many")
        };
        make(Operation::AddObject {
            place: Place {
                file,
                client: ClientHandle(u32::MAX - number % clients),
                parent: ObjectHandle(HIGH),
                handle: ObjectHandle(HIGH + 1 + number),
                process,
            },
            class: 0xffff,
            kind: ObjectKind::Memory,
            card: None,
            depends_on: vec![ObjectHandle(HIGH)],
            reservation,
            actual: Actual::AsReserved,
        });
    }
    let span = |number: u64| Span::new((1 << 46) + number * 8192, 4096).unwrap();
    for number in 0..u64::from(most(Counted::Mappings)) {
        make(Operation::MapManaged {
            uvm_file: file,
            span: span(number),
            process,
            cards: vec![CardSlot(0)],
        });
    }
    for number in 0..u64::from(most(Counted::Ranges)) {
        make(Operation::AddRange {
            uvm_file: file,
            span: span(number),
        });
    }
    for number in 0..most(Counted::Registrations) {
        let client = ClientHandle(u32::MAX - number % clients);
        let channel = ObjectHandle(HIGH + 1 + number);
        let Applied::Pinned(pin) = make(Operation::Pin {
            client,
            object: channel,
            purpose: PinFor::Register,
        }) else {
            panic!("{number} registrations are too many")
        };
        make(Operation::Register {
            pin,
            uvm_file: file,
            card: CardSlot(0),
            registered: ledger::Registered::Channel { client, channel },
        });
    }
    for number in 0..most(Counted::Exports) / 2 {
        make(Operation::AdoptExport {
            file: ledger::FileId(u64::MAX - u64::from(number >> 8)),
            index: number & 0xff,
            adopted: Adopted {
                origin: u64::MAX - u64::from(number),
                class: 0xffff,
                demand: Some(Demand {
                    card: CardSlot(0),
                    bytes: 1 << 20,
                    purpose: Purpose::Memory,
                }),
                process,
            },
        });
    }
    for number in 0..limits::MOST_FILES as u64 / part {
        let (file, control) = (
            FileId(u64::MAX - 1 - 2 * number),
            FileId(u64::MAX - 2 - 2 * number),
        );
        state.apply(Op::FileSeen(file, FileKind::Uvm)).unwrap();
        state.apply(Op::FileRegistered(file, control)).unwrap();
    }
    for number in 0..small(limits::MOST_OS_EVENTS) {
        let event = (HIGH, HIGH + number);
        state
            .apply(Op::OsEvent(FileId(u64::MAX - 1), event))
            .unwrap();
    }
    for number in 0..small(verdict::schedule::MOST_SCHEDULED) {
        let added = crate::state::scheduling::Change::Added(
            (HIGH, HIGH + number),
            compute::Engine::Graphics,
        );
        state.apply(Op::Schedule(added)).unwrap();
    }
    state
}

/// With numbers as long as they can be, beside the blocks of calls.
#[test]
fn the_state_at_all_limits_fits() {
    const PART: u32 = 64;
    let state = at_all_limits(PART.into());
    let bytes = postcard::to_stdvec(&state).unwrap().len() * PART as usize;
    let pools = limits::MOST_POOLS * 64;
    let host_mappings = limits::MOST_HOST_MAPPINGS * 64;
    // Calls under way, each with its blocks before and after.
    let calls = limits::MOST_CALLS * 2 * CALL_BYTES;
    let records = crate::state::MOST_RECORD_BYTES + crate::state::MOST_RECORDS * 128;
    let sum = bytes + pools + host_mappings + calls + records;
    // Not only the state, but a log behind it that is not compacted all the time.
    let free = longest_log(sum).saturating_sub(sum);
    assert!(
        free >= HALF_BYTES / 8,
        "{bytes} of tables, {calls} of calls, {records} of records"
    );
    // What `vgpu::own_group` lets a broker write.
    assert_eq!(2 * HALF_BYTES, 512 << 20);
}

/// Of a call's blocks, which are few: its struct, its parameters, and what they point to.
const CALL_BYTES: usize = 3 * verdict::blocks::MAX_BLOCK_BYTES;

#[test]
fn a_successor_has_all_that_there_may_be() {
    let file = Journal::memfd().unwrap();
    let journal = Journal::open(file.try_clone().unwrap(), || at_all_limits(64)).unwrap();
    let change = Op::FileSeen(FileId(1), FileKind::Ctl);
    journal.change().record_op(change);
    let before = image(&journal);
    drop(journal);
    let reported = Cell::new(0);
    let moved = || reported.set(reported.get() + 1);
    let journal = Journal::open_moving(file, fresh, &moved).unwrap();
    assert!(image(&journal) == before);
    // Whoever waits for a broker that reads it sees that it moves.
    assert!(
        reported.get() >= before.len() / (2 * REPORTED_BYTES),
        "{}",
        reported.get()
    );
}
