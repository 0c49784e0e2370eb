use journal::reservation::Reservation;
use journal::shared_state::SharedState;
use journal::state::{Answer, Begun, Numbering, State};

use super::*;
use driver::{Caller, FileId, FileKind};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

const CALL: [u64; 3] = [3, 0xc020_462b, 0x1000];

fn call(tid: i32, registers: [u64; 3]) -> CallKey {
    CallKey::new(tid, 16, registers)
}

fn segments(byte: u8) -> Arc<Vec<Segment>> {
    Arc::new(vec![Segment {
        address: 0x1000,
        link: None,
        bytes: vec![byte; 4],
    }])
}

struct Fixture {
    replay: Replay,
    journal: Journal,
    call_slot: CallSlot,
    other_call_slot: CallSlot,
}

impl Fixture {
    fn new() -> Self {
        Self::on(Journal::memfd().unwrap())
    }

    fn on(journal: OwnedFd) -> Self {
        let state = || State::new(ledger::Ledger::new(&[]), Numbering::default());
        let shared_state = SharedState::open(SharedState::memfd().unwrap()).unwrap();
        Self {
            replay: Replay::default(),
            journal: Journal::open(journal, state).unwrap(),
            call_slot: shared_state.call_slot(1).unwrap(),
            other_call_slot: shared_state.call_slot(1).unwrap(),
        }
    }

    fn enter(&self, call: CallKey) -> ThreadTurn<'_> {
        self.replay
            .enter(&self.journal, &self.call_slot, call, || true)
            .unwrap()
    }

    /// What the driver made of the turn's call: 1 became 2.
    fn execute(&self, call: CallKey) -> Finished {
        let mut change = self.journal.change();
        let begun = Begun {
            number: change.next_call(),
            key: call,
            caller: Caller {
                tgid: call.tid,
                tid: call.tid,
            },
            file: FileId(1),
            kind: FileKind::Ctl,
            cmd: call.cmd,
            before: segments(1),
            fds: Vec::new(),
            reservation: Reservation::Nothing,
        };
        change.record_op(Op::Begin(0, Box::new(begun)));
        change.record_op(Op::End(
            0,
            Answer {
                ret: 0,
                after: segments(2),
                replaces: None,
                changes_account: ChangesAccount::Yes,
            },
        ));
        change.open_in(0).unwrap().finished.clone().unwrap()
    }

    fn with_undelivered(call: CallKey) -> Self {
        let fixture = Self::new();
        let turn = fixture.enter(call);
        fixture.execute(call);
        turn.keep_undelivered();
        fixture
    }

    /// Whether the call, with this struct, gets the record; its answer is delivered.
    fn take(&self, call: CallKey, arg: u8) -> bool {
        let mut turn = self.enter(call);
        match turn.undelivered(&[arg; 4]) {
            Some(finished) => {
                turn.delivered(&finished);
                true
            }
            None => {
                turn.refused();
                false
            }
        }
    }
}

#[test]
fn the_same_call_made_again_gets_the_record_once() {
    let fixture = Fixture::with_undelivered(call(7, CALL));
    let dirty = call(7, [3, 0xffff_0000_c020_462b, 0x1000]);
    assert!(fixture.take(dirty, 1));
    assert!(!fixture.take(dirty, 1));
}

#[test]
fn a_struct_that_holds_the_answer_already_is_the_same_call() {
    assert!(Fixture::with_undelivered(call(7, CALL)).take(call(7, CALL), 2));
}

#[test]
fn another_call_drops_the_record() {
    let first = call(7, CALL);
    for (other, arg) in [
        (call(7, [4, 0xc020_462b, 0x1000]), 1),
        (call(7, [3, 0xc010_4629, 0x1000]), 1),
        (call(7, [3, 0xc020_462b, 0x2000]), 1),
        (CallKey::new(7, 9, CALL), 1),
        (first, 9),
    ] {
        let fixture = Fixture::with_undelivered(first);
        assert!(!fixture.take(other, arg), "{other:?}");
        assert!(!fixture.take(first, 1), "the record is gone: {other:?}");
    }
}

#[test]
fn a_caller_that_gave_up_again_finds_its_record_next_time() {
    let fixture = Fixture::with_undelivered(call(7, CALL));
    drop(fixture.enter(call(7, CALL)));
    let mut turn = fixture.enter(call(7, CALL));
    assert!(turn.undelivered(&[1; 4]).is_some());
    turn.keep_undelivered();
    assert!(fixture.take(call(7, CALL), 1));
}

#[test]
fn threads_do_not_share_records() {
    let fixture = Fixture::with_undelivered(call(7, CALL));
    assert!(!fixture.take(call(8, CALL), 1));
    assert!(fixture.take(call(7, CALL), 1));
    fixture.replay.retain(&fixture.journal, |tid| tid != 7);
    assert!(fixture.journal.change().kept(7).is_none());
}

#[test]
fn an_answer_is_given_again_only_where_it_still_stands() {
    for (is_current, arg, given) in [(true, 2, true), (false, 2, false), (true, 1, false)] {
        let fixture = Fixture::new();
        let turn = fixture.enter(call(7, CALL));
        let finished = fixture.execute(call(7, CALL));
        turn.delivered(&finished);
        let mut turn = fixture.enter(call(7, CALL));
        assert!(turn.undelivered(&[arg; 4]).is_none());
        assert_eq!(turn.answered(|_| is_current).is_some(), given);
    }
}

#[test]
fn a_repetition_waits_for_the_first_try_and_only_the_one_whose_caller_waits() {
    let fixture = Fixture::new();
    let (fixture, first) = (&fixture, fixture.enter(call(7, CALL)));
    let is_waited_for =
        |ticket| sync::lock(&fixture.replay.threads.inner).threads.get(&7) == Some(&ticket);
    let is_given_up = AtomicBool::new(false);
    let (reply, heard) = mpsc::channel();
    let repeat = &move |number: u8, is_waiting: &dyn Fn() -> bool| {
        let turn = fixture.replay.enter(
            &fixture.journal,
            &fixture.call_slot,
            call(7, CALL),
            is_waiting,
        );
        let result = turn.map(|mut turn| turn.undelivered(&[1; 4]).is_some());
        reply.send((number, result)).unwrap();
    };
    std::thread::scope(|scope| {
        let waits_no_more = || !is_given_up.load(Ordering::SeqCst);
        scope.spawn(move || repeat(1, &waits_no_more));
        while !is_waited_for(1) {
            std::thread::yield_now();
        }
        is_given_up.store(true, Ordering::SeqCst);
        scope.spawn(move || repeat(2, &|| true));
        assert_eq!(heard.recv().unwrap(), (1, None));
        // One that the kernel gave to its worker before the others, and that comes here behind them.
        repeat(3, &|| false);
        assert_eq!(heard.recv().unwrap(), (3, None));
        fixture.execute(call(7, CALL));
        first.keep_undelivered();
        assert_eq!(heard.recv().unwrap(), (2, Some(true)));
    });
}

#[test]
fn of_workers_that_send_each_other_away_the_callers_own_remains() {
    let fixture = Fixture::new();
    let (fixture, first) = (&fixture, fixture.enter(call(7, CALL)));
    let requested = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let own = scope.spawn(|| {
            let turn =
                fixture
                    .replay
                    .enter(&fixture.journal, &fixture.call_slot, call(7, CALL), || true);
            turn.is_some()
        });
        let late = scope.spawn(|| {
            // It still waits when it is asked first, and no more when it is asked again.
            let is_waiting = || requested.fetch_add(1, Ordering::SeqCst) == 0;
            let turn = fixture.replay.enter(
                &fixture.journal,
                &fixture.other_call_slot,
                call(7, CALL),
                is_waiting,
            );
            turn.is_some()
        });
        assert!(!late.join().unwrap());
        drop(first);
        assert!(own.join().unwrap());
    });
}

#[test]
fn a_worker_that_is_late_leaves_what_is_kept_of_the_newer_call() {
    let fixture = Fixture::with_undelivered(call(7, CALL));
    let late = call(7, [3, 1, 2]);
    assert!(
        fixture
            .replay
            .enter(&fixture.journal, &fixture.other_call_slot, late, || false)
            .is_none()
    );
    let mut turn = fixture.enter(call(7, CALL));
    assert!(turn.is_repetition());
    assert!(turn.undelivered(&[1; 4]).is_some());
}

#[test]
fn no_call_slot_tells_of_a_call_whose_thread_makes_the_next() {
    let fixture = Fixture::new();
    let first = fixture.enter(call(7, CALL));
    let finished = fixture.execute(call(7, CALL));
    // As if the kernel had written a call.
    fixture.call_slot.for_next_call().unwrap()[0].store(99, Ordering::Relaxed);
    fixture.call_slot.set_phase(Phase::Answering);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            let next = call(7, [3, 1, 2]);
            let _turn =
                fixture
                    .replay
                    .enter(&fixture.journal, &fixture.other_call_slot, next, || true);
            fixture.call_slot.call()
        });
        first.delivered(&finished);
        assert_eq!(next.join().unwrap(), None);
    });
}

#[test]
fn a_successor_takes_what_was_kept() {
    let file = Journal::memfd().unwrap();
    let fixture = Fixture::on(file.try_clone().unwrap());
    let turn = fixture.enter(call(7, CALL));
    fixture.execute(call(7, CALL));
    turn.keep_undelivered();
    drop(fixture);
    let fixture = Fixture::on(file);
    assert!(fixture.take(call(7, CALL), 1));
    assert!(!fixture.take(call(7, CALL), 1));
}
