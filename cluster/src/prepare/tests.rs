use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::allocation::tests::{FixtureNode, UID, cards, plain};
use crate::api::fake;

fn preparer(node: &Arc<FixtureNode>) -> Preparer {
    let (connection, _) = fake::serve(|_, _, _| (200, plain()));
    let (connection, name) = (Arc::new(connection), NodeName::new("n1").unwrap());
    let node = Arc::clone(node) as Arc<dyn Node>;
    let counts = Arc::<Counts>::default();
    let (events, _) = EventSink::new(
        name.clone(),
        Arc::clone(&node),
        Arc::clone(&connection),
        Arc::clone(&counts),
    );
    let cdi = CdiFolder::new("/nonexistent".into());
    Preparer {
        turns: Arc::new(Turns::new(
            Duration::from_millis(20),
            Duration::from_secs(60),
        )),
        ..Preparer::new(name, node, connection, cdi, events, counts)
    }
}

fn claim() -> ClaimRef {
    ClaimRef {
        namespace: "team-a".to_owned(),
        name: "c".to_owned(),
        uid: ClaimUid::new(UID).unwrap(),
    }
}

/// As by a program of cgpu's that is stopped with the host's lock, for which a claim that is given back waits.
#[test]
fn a_lock_that_files_are_under_holds_up_no_event_loop() {
    let (answers, answered) = mpsc::channel();
    let node = Arc::new(FixtureNode::new(cards()));
    let local = Arc::<Mutex<()>>::default();
    let held = lock(&local);
    let of_thread = Arc::clone(&local);
    std::thread::spawn(move || {
        let agent = tokio::runtime::Builder::new_current_thread();
        let agent = { agent }.enable_all().build().unwrap();
        agent.block_on(async move {
            let preparer = Preparer {
                local: of_thread,
                ..preparer(&node)
            };
            let of_task = preparer.clone();
            tokio::spawn(async move { of_task.unprepare(claim().uid).await });
            for _again in 0..2 {
                let prepared = preparer.prepare(claim()).await;
                answers.send(prepared.unwrap_err()).unwrap();
            }
        });
    });
    for _again in 0..2 {
        let why = answered.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(why.contains("a fixture"), "{why}");
    }
    drop(held);
}

/// The kubelet gives each call up and tries again.
#[tokio::test]
#[expect(
    clippy::await_holding_lock,
    reason = "the driver hangs as long as it is held"
)]
async fn a_driver_that_hangs_has_one_thread_however_often_it_is_tried_again() {
    let node = Arc::new(FixtureNode::new(cards()));
    let preparer = preparer(&node);
    let claim = claim();
    let hung = node.hang();
    let (of_task, of_claim) = (preparer.clone(), claim.clone());
    let first = tokio::spawn(async move { of_task.prepare(of_claim).await });
    let until = Instant::now() + Duration::from_secs(60);
    while !preparer.turns.is_taken() {
        assert!(Instant::now() < until, "the driver is not asked");
        tokio::task::yield_now().await;
    }
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    for _again in 0..3 {
        let why = preparer.prepare(claim.clone()).await.unwrap_err();
        assert!(why.contains("the driver does not answer"), "{why}");
    }
    drop(hung);
    // Questions are asked again once it has answered.
    loop {
        let why = preparer.prepare(claim.clone()).await.unwrap_err();
        if why.contains("a fixture") {
            break;
        }
        assert!(Instant::now() < until, "{why}");
    }
    assert!(preparer.under_way.is_empty());
}
