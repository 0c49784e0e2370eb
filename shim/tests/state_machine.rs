//! The container's state machine under arbitrary steps, against what must hold whatever comes.

use std::collections::BTreeMap;
use std::time::SystemTime;

use proptest::prelude::*;
use shim::task::{Container, Denied, Effect, ExecId, Exit, Happened, Phase, Pid, Step, Target};

fn pid(number: u32) -> Pid {
    Pid::new(number).expect("a positive number")
}

fn exec(number: u8) -> ExecId {
    ExecId::new(&format!("e{number}")).expect("a plain name")
}

fn exit(status: u32) -> Exit {
    Exit {
        status,
        at: SystemTime::UNIX_EPOCH,
    }
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        Just(Target::Init),
        (0_u8..3).prop_map(|n| Target::Exec(exec(n)))
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Created(pid(10))),
        Just(Step::Prepared),
        Just(Step::BeginCheckpoint),
        Just(Step::CheckpointEnded),
        (0_u8..3).prop_map(|n| Step::AddExec(exec(n))),
        target().prop_map(Step::BeginStart),
        (target(), 20_u32..30).prop_map(|(target, n)| Step::Started(target, pid(n))),
        target().prop_map(Step::StartFailed),
        Just(Step::BeginPause),
        Just(Step::Paused),
        Just(Step::PauseFailed),
        Just(Step::BeginResume),
        Just(Step::Resumed),
        Just(Step::ResumeFailed),
        (target(), 0_u32..256).prop_map(|(target, status)| Step::Exited(target, exit(status))),
        target().prop_map(Step::BeginDelete),
        Just(Step::Deleted),
        Just(Step::DeleteFailed),
    ]
}

/// What a naive observer of the effects knows of one process.
#[derive(Default)]
struct Seen {
    started: bool,
    settled: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn exits_come_once_and_after_their_start_and_denials_change_nothing(steps in prop::collection::vec(step(), 0..60)) {
        let mut container = Container::new();
        let mut seen: BTreeMap<Target, Seen> = BTreeMap::new();
        for step in steps {
            let before = container.clone();
            let starting = match &step { Step::BeginStart(target) => Some(target.clone()), _ => None };
            let removed = match &step { Step::BeginDelete(target @ Target::Exec(_)) => Some(target.clone()), _ => None };
            match container.apply(step) {
                Err(_) => prop_assert_eq!(&before, &container),
                Ok(effects) => {
                    for effect in effects {
                        match effect {
                            Effect::Publish(Happened::Started(target, _)) => {
                                let process = seen.entry(target).or_default();
                                prop_assert!(!process.started && !process.settled);
                                process.started = true;
                            }
                            Effect::Settle(target, _, _) => {
                                let process = seen.entry(target.clone()).or_default();
                                // An init may end without having run; an exec that has not run has no process.
                                prop_assert!(process.started || target == Target::Init);
                                prop_assert!(!process.settled);
                                process.settled = true;
                            }
                            Effect::Publish(Happened::Created(_)) => prop_assert!(seen.is_empty()),
                            Effect::Publish(_) => {}
                        }
                    }
                    if let Some(target) = removed {
                        // A new exec may take the name.
                        seen.remove(&target);
                    }
                    if let Some(target) = starting {
                        prop_assert!(!seen.get(&target).is_some_and(|process| process.settled));
                    }
                }
            }
            // What is stopped is not signalled: its number may belong to another process by now.
            for target in [Target::Init, Target::Exec(exec(0)), Target::Exec(exec(1)), Target::Exec(exec(2))] {
                if let Ok(view) = container.view(&target)
                    && matches!(view.phase, Phase::Stopped(_)) {
                    prop_assert_eq!(container.signalled(&target), Err(Denied::AlreadyExited(target)));
                }
            }
        }
    }
}

fn running() -> Container {
    let mut container = Container::new();
    for step in [
        Step::Created(pid(10)),
        Step::BeginStart(Target::Init),
        Step::Started(Target::Init, pid(10)),
    ] {
        container.apply(step).expect("each step is allowed");
    }
    container
}

#[test]
fn an_exit_during_start_is_reported_after_the_start() {
    let mut container = Container::new();
    container.apply(Step::Created(pid(10))).unwrap();
    container.apply(Step::BeginStart(Target::Init)).unwrap();
    assert_eq!(
        container.apply(Step::Exited(Target::Init, exit(3))),
        Ok(vec![])
    );
    let effects = container
        .apply(Step::Started(Target::Init, pid(10)))
        .unwrap();
    let started = Effect::Publish(Happened::Started(Target::Init, pid(10)));
    assert_eq!(
        effects,
        [started, Effect::Settle(Target::Init, pid(10), exit(3))]
    );
}

#[test]
fn a_failed_start_can_be_tried_again_and_a_running_container_not_be_deleted() {
    let mut container = Container::new();
    container.apply(Step::Created(pid(10))).unwrap();
    container.apply(Step::BeginStart(Target::Init)).unwrap();
    container.apply(Step::StartFailed(Target::Init)).unwrap();
    container.apply(Step::BeginStart(Target::Init)).unwrap();
    container
        .apply(Step::Started(Target::Init, pid(10)))
        .unwrap();
    let denied = container
        .apply(Step::BeginDelete(Target::Init))
        .unwrap_err();
    assert_eq!(denied, Denied::StillRunning(Target::Init));
}

#[test]
fn two_starts_at_a_time_are_one_start_and_one_refusal() {
    let mut container = running();
    let target = Target::Exec(exec(1));
    container.apply(Step::AddExec(exec(1))).unwrap();
    container.apply(Step::BeginStart(target.clone())).unwrap();
    let denied = container
        .apply(Step::BeginStart(target.clone()))
        .unwrap_err();
    assert_eq!(
        denied,
        Denied::Busy {
            target,
            doing: "start"
        }
    );
    assert_eq!(
        container.apply(Step::AddExec(exec(1))),
        Err(Denied::ExecExists(exec(1)))
    );
}

#[test]
fn an_exec_is_runc_s_to_refuse_while_another_s_start_outlasts_init() {
    let mut container = running();
    let first = Target::Exec(exec(1));
    container.apply(Step::AddExec(exec(1))).unwrap();
    container.apply(Step::BeginStart(first.clone())).unwrap();
    container
        .apply(Step::Exited(Target::Init, exit(137)))
        .unwrap();
    container.apply(Step::AddExec(exec(2))).unwrap();
    container
        .apply(Step::BeginStart(Target::Exec(exec(2))))
        .unwrap();
    for number in [1, 2] {
        container
            .apply(Step::StartFailed(Target::Exec(exec(number))))
            .unwrap();
    }
    assert_eq!(
        container.apply(Step::AddExec(exec(3))),
        Err(Denied::InitEnded)
    );
    assert_eq!(
        container.apply(Step::BeginStart(first)),
        Err(Denied::InitEnded)
    );
}

#[test]
fn the_end_of_a_created_container_during_its_deletion_is_reported() {
    let mut container = Container::new();
    container.apply(Step::Created(pid(10))).unwrap();
    container.apply(Step::BeginDelete(Target::Init)).unwrap();
    let effects = container
        .apply(Step::Exited(Target::Init, exit(137)))
        .unwrap();
    assert_eq!(effects, [Effect::Settle(Target::Init, pid(10), exit(137))]);
    container.apply(Step::Deleted).unwrap();
    assert_eq!(
        container.view(&Target::Init).unwrap().phase,
        Phase::Stopped(exit(137))
    );
}

#[test]
fn pause_and_resume_alternate() {
    let mut container = running();
    let denied = container.apply(Step::BeginResume).unwrap_err();
    assert_eq!(denied.to_string(), "container is running, not paused");
    container.apply(Step::BeginPause).unwrap();
    assert_eq!(
        container.apply(Step::Paused),
        Ok(vec![Effect::Publish(Happened::Paused)])
    );
    assert_eq!(container.view(&Target::Init).unwrap().phase, Phase::Paused);
    container.apply(Step::BeginResume).unwrap();
    assert_eq!(
        container.apply(Step::Resumed),
        Ok(vec![Effect::Publish(Happened::Resumed)])
    );
}

#[test]
fn a_container_from_a_checkpoint_has_its_init_only_once_it_is_started() {
    let mut container = Container::new();
    let created = Effect::Publish(Happened::Created(None));
    assert_eq!(container.apply(Step::Prepared), Ok(vec![created]));
    assert!(container.to_be_restored());
    let view = container.view(&Target::Init).unwrap();
    assert_eq!((view.pid, view.phase), (None, Phase::Created));
    assert_eq!(
        container.signalled(&Target::Init),
        Err(Denied::NotStarted(Target::Init))
    );
    assert_eq!(
        container.apply(Step::AddExec(exec(1))),
        Err(Denied::NotStarted(Target::Init))
    );
    // A restore that fails can be tried again.
    container.apply(Step::BeginStart(Target::Init)).unwrap();
    container.apply(Step::StartFailed(Target::Init)).unwrap();
    container.apply(Step::BeginStart(Target::Init)).unwrap();
    let effects = container.apply(Step::Started(Target::Init, pid(12)));
    let started = Effect::Publish(Happened::Started(Target::Init, pid(12)));
    assert_eq!(effects, Ok(vec![started]));
    assert!(!container.to_be_restored());
    assert_eq!(container.signalled(&Target::Init), Ok(pid(12)));
}

#[test]
fn a_container_that_was_never_restored_is_deleted_without_an_end() {
    let mut container = Container::new();
    container.apply(Step::Prepared).unwrap();
    container.apply(Step::BeginDelete(Target::Init)).unwrap();
    container.apply(Step::DeleteFailed).unwrap();
    container.apply(Step::BeginDelete(Target::Init)).unwrap();
    assert_eq!(container.apply(Step::Deleted), Ok(vec![]));
    assert_eq!(container.view(&Target::Init).unwrap().pid, None);
}

#[test]
fn a_checkpoint_goes_back_to_where_it_came_from_and_is_alone() {
    let mut container = Container::new();
    container.apply(Step::Created(pid(10))).unwrap();
    assert_eq!(
        container.apply(Step::BeginCheckpoint),
        Err(Denied::NotStarted(Target::Init))
    );
    let mut container = running();
    container.apply(Step::BeginCheckpoint).unwrap();
    assert_eq!(container.view(&Target::Init).unwrap().phase, Phase::Running);
    for other in [Step::BeginCheckpoint, Step::BeginPause] {
        let denied = container.apply(other).unwrap_err().to_string();
        assert!(denied.contains("being checkpointed"), "{denied}");
    }
    container.apply(Step::CheckpointEnded).unwrap();
    container.apply(Step::BeginPause).unwrap();
    container.apply(Step::Paused).unwrap();
    container.apply(Step::BeginCheckpoint).unwrap();
    assert_eq!(container.view(&Target::Init).unwrap().phase, Phase::Paused);
    container.apply(Step::CheckpointEnded).unwrap();
    container.apply(Step::BeginResume).unwrap();
    container.apply(Step::Resumed).unwrap();
    // An init that ends with its checkpoint overtakes the checkpoint's end.
    container.apply(Step::BeginCheckpoint).unwrap();
    container
        .apply(Step::Exited(Target::Init, exit(137)))
        .unwrap();
    assert_eq!(
        container.apply(Step::CheckpointEnded),
        Err(Denied::Ended(Target::Init))
    );
}

#[test]
fn what_has_ended_is_neither_started_nor_paused_but_only_a_signal_does_not_find_it() {
    let mut container = running();
    let target = Target::Exec(exec(1));
    for step in [
        Step::AddExec(exec(1)),
        Step::BeginStart(target.clone()),
        Step::Started(target.clone(), pid(11)),
        Step::Exited(target.clone(), exit(0)),
        Step::Exited(Target::Init, exit(0)),
    ] {
        container.apply(step).expect("each step is allowed");
    }
    for step in [
        Step::BeginStart(Target::Init),
        Step::BeginPause,
        Step::BeginResume,
        Step::BeginCheckpoint,
    ] {
        assert_eq!(container.apply(step), Err(Denied::Ended(Target::Init)));
    }
    assert_eq!(
        container.apply(Step::BeginStart(target.clone())),
        Err(Denied::Ended(target.clone()))
    );
    for target in [Target::Init, target] {
        assert_eq!(
            container.signalled(&target),
            Err(Denied::AlreadyExited(target))
        );
    }
}
