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
