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
    let patience = Duration::from_millis(20);
    Preparer {
        driver: Arc::new(Turns::of_driver(patience)),
        files: Arc::new(Turns::of_files(patience)),
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

/// As behind a claim whose thread waits for the host's lock.
#[tokio::test]
async fn who_waits_for_files_behind_another_claim_has_no_thread_and_an_answer() {
    let preparer = preparer(&Arc::new(FixtureNode::new(cards())));
    let held = preparer.files.take(end()).await.unwrap();
    for _again in 0..3 {
        let why = preparer.unprepare(claim().uid).await.unwrap_err();
        assert!(why.contains("holds up the claims' files"), "{why}");
        // The driver is asked all the same.
        let why = preparer.prepare(claim()).await.unwrap_err();
        assert!(why.contains("a fixture"), "{why}");
    }
    drop(held);
    let why = preparer.unprepare(claim().uid).await.unwrap_err();
    assert!(why.contains("a fixture"), "{why}");
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
    while !preparer.driver.is_taken() {
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
