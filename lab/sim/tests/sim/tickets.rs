//! A call that is asked for again, because its broker was killed before the answer came, is executed once.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use crate::wire::{Connection, PIECE_BYTES, piece, request, start, ticket, used};
use driver::wire::{Answer, Fault, Request, WireFd};
use driver::{FileId, FileKind, Ticket};
use nvabi::bytes::{put_u32, put_u64, u32_at};
use nvabi::escape;
use nvabi::layout::{nvos21, nvos33};
use proptest::prelude::*;

const SESSION: &str = "ns/one";

#[test]
fn a_call_whose_broker_was_killed_in_its_middle_is_answered_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut supervisor = Connection::open(dir.path(), SESSION);
    let objects = supervisor.device();
    // The first broker goes while the simulator works for it, the next one asks at once.
    let slow = Fault::Slow {
        millis: 300,
        calls: 1,
    };
    assert_eq!(supervisor.ask(&Request::Fault(slow)).0, Answer::Ok);
    let killed = Connection::open(dir.path(), SESSION);
    killed.send(&piece(ticket(0, 1), objects));
    drop(killed);
    let mut next = Connection::open(dir.path(), SESSION);
    let first = next.done(&piece(ticket(0, 1), objects)).0;
    assert_eq!(u32_at(&first, nvos21::STATUS), Some(0));
    assert_eq!(used(&server), PIECE_BYTES);
    // And as often as it is asked for.
    assert_eq!(next.done(&piece(ticket(0, 1), objects)).0, first);
    assert_eq!(supervisor.done(&piece(ticket(0, 1), objects)).0, first);
    assert_eq!(used(&server), PIECE_BYTES);
    // Other calls, other call slots and unremembered ones are calls of their own.
    for other in [
        ticket(0, 2),
        ticket(1, 3),
        Ticket::UNREMEMBERED,
        Ticket::UNREMEMBERED,
    ] {
        assert_ne!(next.done(&piece(other, objects)).0, first);
    }
    assert_eq!(used(&server), 5 * PIECE_BYTES);
    // What the killed one had sent before its successor went on comes too late.
    match next.ask(&piece(ticket(0, 1), objects)).0 {
        Answer::Refused { reason } => assert!(reason.contains("call 1 of call slot 0"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(used(&server), 5 * PIECE_BYTES);
}

#[test]
fn the_file_of_an_answer_comes_again_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let _server = start(dir.path());
    let mut supervisor = Connection::open(dir.path(), SESSION);
    let objects = supervisor.device();
    let (memory, _file) = supervisor.done(&piece(ticket(0, 1), objects));
    let mut block = vec![0; 56];
    put_u32(&mut block, nvos33::H_CLIENT, objects.0);
    put_u32(&mut block, nvos33::H_DEVICE, objects.1);
    put_u32(
        &mut block,
        nvos33::H_MEMORY,
        u32_at(&memory, nvos21::H_NEW).unwrap(),
    );
    put_u64(&mut block, nvos33::LENGTH, PIECE_BYTES);
    let target = WireFd {
        segment: 0,
        at: u32::try_from(nvos33::FD).unwrap(),
        number: 9,
        file: Some((FileId(2), FileKind::Card { minor: 0 })),
        private: None,
        sent: false,
    };
    let map = request(
        &escape::NV_ESC_RM_MAP_MEMORY,
        ticket(0, 2),
        vec![block],
        vec![target],
    );
    let inode = |file: Option<File>| file.unwrap().metadata().unwrap().ino();
    let (first, file) = supervisor.done(&map);
    let first_inode = inode(file);
    let (again, file) = Connection::open(dir.path(), SESSION).done(&map);
    assert_eq!((again, inode(file)), (first, first_inode));
}

/// How one call of a broker goes.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Answered,
    /// The broker is killed after it has sent the call, the next one asks again.
    Killed,
    /// The answer came, and the broker was killed before it could pass it on.
    AnsweredAndKilled,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn brokers_may_be_killed_at_any_moment(
        calls in proptest::collection::vec(
            (0..3_u32, prop_oneof![Just(Outcome::Answered), Just(Outcome::Killed), Just(Outcome::AnsweredAndKilled)]),
            1..30,
        )
    ) {
        let dir = tempfile::tempdir().unwrap();
        let server = start(dir.path());
        let mut supervisor = Connection::open(dir.path(), SESSION);
        let objects = supervisor.device();
        let mut broker = Connection::open(dir.path(), SESSION);
        let mut handles = std::collections::BTreeSet::new();
        for ((call_slot, outcome), call) in calls.iter().zip(1_u64..) {
            let request = piece(ticket(*call_slot, call), objects);
            let expected = match outcome {
                Outcome::Answered => None,
                Outcome::Killed => {
                    broker.send(&request);
                    None
                }
                Outcome::AnsweredAndKilled => Some(broker.done(&request).0),
            };
            if !matches!(outcome, Outcome::Answered) {
                broker = Connection::open(dir.path(), SESSION);
            }
            let (block, _file) = broker.done(&request);
            prop_assert_eq!(u32_at(&block, nvos21::STATUS), Some(0));
            prop_assert!(expected.is_none_or(|expected| expected == block));
            handles.insert(u32_at(&block, nvos21::H_NEW).unwrap());
        }
        let made = u64::try_from(calls.len()).unwrap();
        prop_assert_eq!(handles.len(), calls.len());
        prop_assert_eq!(used(&server), made * PIECE_BYTES);
    }
}
