//! A journal is read back as it was left, at every moment.

use std::os::fd::OwnedFd;

use driver::{FileId, FileKind};
use ledger::{CardSlot, Demand, Ledger, ObjectKind, Purpose};

use super::*;
use crate::state::Numbering;

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
        change.note(Op::FileSeen(FileId(3), FileKind::Ctl));
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
    let mut halves = std::collections::BTreeSet::new();
    for id in 1..60_000 {
        let mut change = journal.change();
        change.note(Op::FileSeen(FileId(id), FileKind::Ctl));
        change.note(Op::FileGone(FileId(id)));
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

/// What a container may have at most, with numbers as long as they can be, beside the records of calls that are kept.
#[test]
fn the_state_at_all_limits_fits() {
    use ledger::{
        Actual, Applied, ClientHandle, Counted, Limits, ObjectHandle, Place, ProcessId, Span,
    };
    const HIGH: u32 = 0xf000_0000;
    /// A part of it is made, of things that are all alike.
    const PART: u32 = 64;
    let limits = crate::account::LIMITS;
    let most = |counted| {
        let limit = limits.iter().find(|(of, _)| *of == counted);
        u32::try_from(limit.unwrap().1).unwrap() / PART
    };
    let all = limits.iter().fold(Limits::none(), |all, (counted, most)| {
        all.with(*counted, most / u64::from(PART))
    });
    let quota = [(CardSlot(0), u64::MAX)];
    let mut ledger = Ledger::with_limits(&quota, all);
    let client = ClientHandle(u32::MAX);
    let file = ledger::FileId(u64::MAX);
    let process = ProcessId(i32::MAX);
    ledger
        .apply(Operation::SeeClient {
            file,
            client,
            process,
        })
        .unwrap();
    for number in 1..most(Counted::Objects) {
        let Ok(Applied::Reserved(reservation)) = ledger.apply(reserve(1 << 20)) else {
            panic!("{number} objects are too many")
        };
        let add = Operation::AddObject {
            place: Place {
                file,
                client,
                parent: ObjectHandle(HIGH),
                handle: ObjectHandle(HIGH + number),
                process,
            },
            class: 0xffff,
            kind: ObjectKind::Memory,
            card: None,
            depends_on: vec![ObjectHandle(HIGH)],
            reservation,
            actual: Actual::AsReserved,
        };
        ledger.apply(add).unwrap();
    }
    for number in 0..u64::from(most(Counted::Mappings)) {
        let map = Operation::MapManaged {
            uvm_file: file,
            span: Span::new((1 << 46) + number * 8192, 4096).unwrap(),
            process,
            cards: vec![CardSlot(0)],
        };
        ledger.apply(map).unwrap();
    }
    for number in 0..u64::from(most(Counted::Ranges)) {
        let span = Span::new((1 << 46) + number * 8192, 4096).unwrap();
        let range = Operation::AddRange {
            uvm_file: file,
            span,
        };
        ledger.apply(range).unwrap();
    }
    let state = State::new(ledger, Numbering::default());
    let bytes = postcard::to_stdvec(&state).unwrap().len() * PART as usize;
    // Events, pools and files are smaller than the smallest of these; a record has two copies of a call's blocks.
    let others =
        (crate::account::MOST_OS_EVENTS + crate::account::MOST_POOLS + crate::files::MOST_FILES)
            * 64;
    let records = crate::state::MOST_RECORDS * 2 * (verdict::blocks::MAX_BLOCK_BYTES + 4096);
    let sum = bytes + others + records + COMPACT_BYTES;
    assert!(
        sum < HALF_BYTES,
        "{bytes} of the ledger, {records} of records"
    );
}
