//! Records of claims, compared with what the API server has; the test plays kubelet and API server.

use hyper::Method;
use serde_json::json;

use crate::fixture::api::Fault;
use crate::fixture::{Fixture, claim, claim_path, soon, uid};

#[tokio::test]
async fn records_without_a_claim_are_released_when_an_agent_starts() {
    let fixture = Fixture::new().await;
    for (number, name) in [(1, "stays"), (2, "gone"), (3, "again"), (4, "moved")] {
        fixture.claim(name, claim(number, name, 0, "1Gi"));
    }
    let driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    for (number, name) in [(1, "stays"), (2, "gone"), (3, "again"), (4, "moved")] {
        assert_eq!(kubelet.prepare_one(name, &uid(number)).await, "");
    }
    driver.end().await;
    fixture.api.remove(&claim_path("gone"));
    fixture.claim("again", claim(33, "again", 0, "1Gi"));
    let mut moved = claim(4, "moved", 0, "1Gi");
    moved["status"]["allocation"]["devices"]["results"][0]["pool"] = json!("n2");
    fixture.claim("moved", moved);
    // As after a reboot, and what a crash left.
    let cdi = fixture.path("cdi");
    std::fs::remove_dir_all(&cdi).unwrap();
    std::fs::create_dir(&cdi).unwrap();
    std::fs::write(cdi.join("gpu.cgpu.io-claim-nobody.json"), "{}").unwrap();
    // One that cannot be asked about now is not known to be gone.
    fixture
        .api
        .fail(Method::GET, &claim_path("gone"), Fault::Status(500));
    let _driver = fixture.start();
    soon("the records of claims that are gone are released", || {
        (2..5).all(|number| fixture.record(&uid(number)).is_none())
    })
    .await;
    assert!(fixture.record(&uid(1)).is_some() && fixture.cdi(&uid(1)).is_some());
    let files: Vec<_> = std::fs::read_dir(&cdi)
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
}

#[tokio::test]
async fn a_claim_of_one_pod_is_read_once_and_one_that_cannot_be_read_keeps_no_other_from_it() {
    let fixture = Fixture::new().await;
    let claims = [(1, "broken"), (2, "own"), (3, "shared")];
    for (number, name) in claims {
        fixture.claim(name, claim(number, name, 0, "1Gi"));
    }
    let mut own = claim(2, "own", 0, "1Gi");
    own["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-2", "controller": true}]);
    fixture.claim("own", own);
    let driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    for (number, name) in claims {
        assert_eq!(kubelet.prepare_one(name, &uid(number)).await, "");
    }
    driver.end().await;
    let before = fixture.api.paths(&Method::GET).len();
    let broken = claim_path("broken");
    fixture.api.fail(Method::GET, &broken, Fault::Status(500));
    let _driver = fixture.start();
    // Claims as they were read since, look by look.
    let read = || {
        let paths = fixture.api.paths(&Method::GET).split_off(before);
        let named = |path: String| claims.iter().position(|(_, name)| path == claim_path(name));
        paths.into_iter().filter_map(named).collect::<Vec<_>>()
    };
    soon("two looks", || read().len() >= 5).await;
    assert_eq!(read()[..5], [0, 1, 2, 0, 2]);
}

#[tokio::test]
async fn a_record_outlives_answers_that_do_not_tell_that_its_claim_is_gone() {
    let fixture = Fixture::new().await;
    for (number, name) in [(1, "other"), (2, "once"), (3, "stale")] {
        fixture.claim(name, claim(number, name, 0, "1Gi"));
    }
    let driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    for (number, name) in [(1, "other"), (2, "once"), (3, "stale")] {
        assert_eq!(kubelet.prepare_one(name, &uid(number)).await, "");
    }
    driver.end().await;
    let fail = |name: &str, query: &str, fault| {
        let question = format!("{}{query}", claim_path(name));
        fixture.api.fail(Method::GET, &question, fault);
    };
    // As a proxy has it, or a server without the resource; once, as while a server is restored; and by what a server remembers.
    for _look in 0..3 {
        fail("other", "", Fault::Status(404));
    }
    fail("once", "", Fault::Absent);
    for _look in 0..2 {
        fail("stale", "?resourceVersion=0", Fault::Absent);
    }
    let before = fixture.api.count(&Method::GET, &claim_path("stale"));
    let _driver = fixture.start();
    // A whole look, and two short ones that are not content with the server's memory.
    let read = || fixture.api.count(&Method::GET, &claim_path("stale")) - before;
    soon("three looks", || read() >= 5).await;
    for number in 1..4 {
        assert!(fixture.record(&uid(number)).is_some(), "{number}");
    }
}

#[tokio::test]
async fn the_records_of_another_node_are_released() {
    let fixture = Fixture::new().await;
    fixture.claim("c", claim(1, "c", 0, "1Gi"));
    let driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    driver.end().await;
    let mut settings = fixture.settings(None);
    settings.node = cluster::NodeName::new("renamed").unwrap();
    let _driver = crate::fixture::Driver::start(settings, fixture.host());
    soon("the former node's record is released", || {
        fixture.record(&uid(1)).is_none()
    })
    .await;
}
