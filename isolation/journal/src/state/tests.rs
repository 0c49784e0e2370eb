//! What is about one thing costs the same however much else there is: entries that are walked through are counted.

use std::sync::Arc;

use compute::Engine;
use driver::{Caller, Segment};
use ledger::steps;
use ledger::{
    Actual, CardSlot, ClientHandle, ObjectHandle, ObjectKind, Operation, Place, ProcessId,
};

use super::*;
use crate::reservation::Reservation;

const CLIENT: u32 = 9;

fn reserved(state: &mut State, kind: ObjectKind) -> ReservationToken {
    let reserve = Op::Ledger(Operation::Reserve { kind, demand: None });
    match state.apply(reserve) {
        Ok(Applied::Reserved(reservation)) => reservation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn results_for_repetitions_are_kept_up_to_a_number_of_bytes() {
    const BLOCK: usize = 64 << 10;
    let mut state = State::new(Ledger::new(&[]), Numbering::default());
    let block = |bytes| {
        Arc::new(vec![Segment {
            address: 4096,
            link: None,
            bytes: vec![7; bytes],
        }])
    };
    let call = |state: &mut State, tid: i32, bytes: usize| {
        let begun = Begun {
            number: state.next_call(),
            key: CallKey::new(tid, 16, [3, 4, 5]),
            caller: Caller { tgid: tid, tid },
            file: FileId(1),
            kind: FileKind::Ctl,
            cmd: 4,
            before: block(bytes),
            fds: Vec::new(),
            reservation: Reservation::Nothing,
        };
        let answer = Answer {
            ret: 0,
            after: block(bytes),
            replaces: None,
            changes_account: ChangesAccount::Yes,
        };
        for op in [
            Op::Begin(0, Box::new(begun)),
            Op::End(0, answer),
            Op::Settle(0, Some(End::Undelivered)),
        ] {
            state.apply(op).unwrap();
        }
    };
    // Such results are rare: they go first.
    for tid in 1..200 {
        call(&mut state, tid, BLOCK);
    }
    let bytes = |state: &State| -> usize {
        let kept = state.kept_threads().filter_map(|tid| state.kept(tid));
        kept.map(|kept| kept.finished.bytes()).sum()
    };
    assert!(bytes(&state) <= MOST_RECORD_BYTES, "{}", bytes(&state));
    let many = state.kept_threads().count();
    assert_eq!(many, MOST_RECORD_BYTES / (2 * BLOCK));
    // There is room again when one is forgotten, and a thread's own is replaced.
    assert!(state.kept(200).is_none());
    state.apply(Op::ForgetThread(1)).unwrap();
    call(&mut state, 200, BLOCK);
    call(&mut state, 200, BLOCK);
    assert!(state.kept(200).is_some());
    assert_eq!(state.kept_threads().count(), many);
    for tid in 2..=200 {
        state.apply(Op::Keep(tid, None)).unwrap();
    }
    assert_eq!((bytes(&state), state.kept.bytes), (0, 0));
    let most = i32::try_from(MOST_RECORDS).unwrap();
    for tid in 1..2 * most {
        call(&mut state, tid, 32);
    }
    assert_eq!(state.kept_threads().count(), MOST_RECORDS);
}

/// So many files, each with an event, a semaphore pool and a device file that is registered with it, and as many channels.
fn filled(count: u32) -> State {
    let ledger = Ledger::new(&[(CardSlot(0), 1 << 30)]);
    let mut state = State::new(ledger, Numbering::default());
    let mut make = |op| drop(state.apply(op).unwrap());
    for number in 0..count {
        let (control, device) = (
            FileId(2 * u64::from(number) + 1),
            FileId(2 * u64::from(number) + 2),
        );
        make(Op::FileSeen(control, FileKind::Ctl));
        make(Op::FileSeen(device, FileKind::Card { minor: 0 }));
        make(Op::FileRegistered(device, control));
        make(Op::OsEvent(control, (number, 1)));
    }
    for number in 0..count {
        let reservation = reserved(&mut state, ObjectKind::Other);
        let file = FileId(2 * u64::from(number) + 1);
        let pool = Op::Pool(file, (4096, 4096), reservation);
        state.apply(pool).unwrap();
        let reservation = reserved(&mut state, ObjectKind::Channel);
        let channel = Operation::AddObject {
            place: Place {
                file: ledger::FileId(1),
                client: ClientHandle(CLIENT),
                parent: ObjectHandle(CLIENT),
                handle: ObjectHandle(100 + number),
                process: ProcessId(1),
            },
            class: 0xc56f,
            kind: ObjectKind::Channel,
            card: None,
            depends_on: Vec::new(),
            reservation,
            actual: Actual::AsReserved,
        };
        state.apply(Op::Ledger(channel)).unwrap();
        let added = ScheduleChange::Added((CLIENT, 100 + number), Engine::Other);
        state.apply(Op::Schedule(added)).unwrap();
    }
    state
}

fn single_steps(count: u32) -> Vec<(&'static str, u64)> {
    let mut state = filled(count);
    let middle = count / 2;
    let control = FileId(2 * u64::from(middle) + 1);
    let mut all = Vec::new();
    let mut of = |name, work: &mut dyn FnMut(&mut State)| {
        let before = steps::taken();
        work(&mut state);
        all.push((name, steps::taken() - before));
    };
    let full = count as usize;
    of("whether there is an event", &mut |state| {
        assert!(state.has_os_event(middle, 1) && !state.has_os_event(middle, 2));
    });
    of("how many there are", &mut |state| {
        assert_eq!((state.os_event_count(), state.pool_count()), (full, full));
    });
    of("the end of an event", &mut |state| {
        state.apply(Op::OsEventGone((1, 1))).unwrap();
        assert_eq!(state.os_event_count(), full - 1);
    });
    of("the free of a channel", &mut |state| {
        let (client, object) = (ClientHandle(CLIENT), ObjectHandle(100 + middle));
        state
            .apply(Op::Ledger(Operation::Free { client, object }))
            .unwrap();
        assert_eq!(state.scheduling().count(), full - 1);
    });
    of("what is given back", &mut |state| {
        let reservation = reserved(state, ObjectKind::Channel);
        let back = Operation::RollBack { reservation };
        state.apply(Op::Ledger(back)).unwrap();
    });
    of("the end of a pool", &mut |state| {
        state.apply(Op::PoolGone(FileId(1), 4096)).unwrap();
        assert_eq!(state.pool_count(), full - 1);
    });
    of("the end of a file", &mut |state| {
        state.apply(Op::FileGone(control)).unwrap();
        assert_eq!(
            (state.os_event_count(), state.pool_count()),
            (full - 2, full - 2)
        );
    });
    all
}

#[cfg(debug_assertions)]
#[test]
fn what_is_about_one_thing_costs_the_same_with_four_times_as_many() {
    assert_eq!(single_steps(200), single_steps(800));
}

#[test]
fn a_card_has_the_device_instance_alone_that_was_learnt_last() {
    let mut state = State::new(Ledger::new(&[]), Numbering::default());
    let (first, second) = (CardSlot(0), CardSlot(1));
    for (instance, card) in [(0, first), (1, second), (0, second), (1, first)] {
        state.apply(Op::Instance(instance, card)).unwrap();
    }
    let learnt: Vec<_> = state.numbering.slot_of_instance.iter().collect();
    assert_eq!(learnt, [(&0, &second), (&1, &first)]);
    state.apply(Op::Instance(1, second)).unwrap();
    let learnt: Vec<_> = state.numbering.slot_of_instance.into_iter().collect();
    assert_eq!(learnt, [(1, second)]);
}
