use super::*;
use crate::allocation::tests::{FixtureNode, UID, cards, plain};
use crate::api::fake;

#[test]
fn what_was_given_back_meanwhile_is_not_reserved() {
    let uid = |last: u8| ClaimUid::new(format!("11111111-2222-3333-4444-55555555555{last}"));
    let (first, other) = (uid(1).unwrap(), uid(2).unwrap());
    let local = Arc::<Mutex<UnderWay>>::default();
    let late = Attempt::begin(&local, &first);
    let untouched = Attempt::begin(&local, &other);
    lock(&local).release(&first);
    let again = Attempt::begin(&local, &first);
    let is_current = |attempt: &Attempt| attempt.is_current(&lock(&local));
    assert!(!is_current(&late));
    assert!(is_current(&again) && is_current(&untouched));
    // What is not under way is forgotten.
    drop((late, again, untouched));
    lock(&local).release(&first);
    assert!(lock(&local).0.is_empty());
}

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
        patience: Duration::from_millis(20),
        ..Preparer::new(name, node, connection, cdi, events, counts)
    }
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
    let claim = ClaimRef {
        namespace: "team-a".to_owned(),
        name: "c".to_owned(),
        uid: ClaimUid::new(UID).unwrap(),
    };
    let hung = node.hang();
    let (of_task, of_claim) = (preparer.clone(), claim.clone());
    let first = tokio::spawn(async move { of_task.prepare(of_claim).await });
    let until = Instant::now() + Duration::from_secs(60);
    while preparer.turn.available_permits() == 1 {
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
    assert!(lock(&preparer.local).0.is_empty());
}
