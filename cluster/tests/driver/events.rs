//! What happened on the node, as people find it with `kubectl`; and that nothing waits for it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hyper::Method;
use integration::cluster::{ControlPlane, Extent, Kubectl, on_control_plane};
use integration::command::{LIMIT, wait_until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::fixture::api::Fault;
use crate::fixture::{Fixture, claim, soon, uid, uuid};
use crate::real::Cluster;

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/";

/// A container of a pod, as its frontend records it, and what happens to it.
fn happens(state: &Path, (namespace, pod): (&str, &str), kind: &str, text: &str) {
    let key = cards::ContainerKey::new("k8s.io", format!("{pod}-app")).unwrap();
    let folder = state.join("vgpus/k8s.io").join(key.id());
    std::fs::create_dir_all(&folder).unwrap();
    let names = json!({"pod": {"namespace": namespace, "name": pod, "container": "app"}});
    std::fs::write(folder.join("names.json"), names.to_string()).unwrap();
    let event = cards::events::Event::now(kind, text);
    cards::events::append(&cards::events::of_container(state, &key), &event).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_events_and_they_come_when_the_server_is_back() {
    let fixture = Fixture::new().await;
    // A request that no configuration may have, so that it is refused.
    let refused = |number: u32| {
        let name = format!("refused-{number}");
        let mut claim = claim(number, &name, 0, "1Gi");
        claim["status"]["allocation"]["devices"]["results"][0]["device"] = json!("none");
        (name, claim)
    };
    for number in 1..400 {
        let (name, claim) = refused(number);
        fixture.claim(&name, claim);
    }
    fixture.claim("good", claim(1000, "good", 0, "1Gi"));
    for _ in 0..3 {
        let hangs = Fault::Slow(Duration::from_secs(30));
        fixture.api.fail(Method::POST, EVENTS, hangs);
    }
    let driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    // The first write hangs from now on.
    assert!(!kubelet.prepare_one("refused-1", &uid(1)).await.is_empty());
    soon("a write", || fixture.api.count(&Method::POST, EVENTS) > 0).await;
    // More claims than reports that wait.
    let began = Instant::now();
    let names: Vec<(String, String)> = (2..400)
        .map(|number| (format!("refused-{number}"), uid(number)))
        .collect();
    let names: Vec<(&str, &str)> = names
        .iter()
        .map(|(name, uid)| (name.as_str(), uid.as_str()))
        .collect();
    let answers = kubelet.prepare(&names).await;
    assert!(
        answers
            .claims
            .values()
            .all(|answer| !answer.error.is_empty())
    );
    assert_eq!(kubelet.prepare_one("good", &uid(1000)).await, "");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    happens(
        &fixture.path("state"),
        ("team-b", "p"),
        "xid",
        "Xid 31: a fault\u{1b}[2J",
    );
    let is_there = |reason: &str| {
        let events = fixture.api.all(EVENTS);
        events.into_iter().find(|event| event["reason"] == reason)
    };
    soon("an event of the claim", || {
        is_there("GpuPrepareFailed").is_some()
    })
    .await;
    let event = is_there("GpuPrepareFailed").unwrap();
    assert_eq!(event["regarding"]["kind"], "ResourceClaim");
    assert_eq!(event["related"]["kind"], "Pod");
    // Hundreds of claims of one namespace have something to be written: a pod of another has its turn.
    soon("an event of the pod", || is_there("GpuXid").is_some()).await;
    let event = is_there("GpuXid").unwrap();
    assert_eq!(event["note"], "container app: Xid 31: a fault [2J");
    // One a second.
    let (count, began) = (fixture.api.all(EVENTS).len(), Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let written = fixture.api.all(EVENTS).len() - count;
    let most = began.elapsed().as_secs() + 2;
    assert!(
        (2..=usize::try_from(most).unwrap()).contains(&written),
        "{written}"
    );
    driver.end().await;
}

/// The newest event of a reason about an object.
fn event(kubectl: &Kubectl, namespace: &str, reason: &str) -> Result<Option<Value>> {
    let list = kubectl.get(&["events.events.k8s.io", "-n", namespace])?;
    let mut events = list["items"].as_array().cloned().unwrap_or_default();
    events.retain(|event| event["reason"] == reason);
    assert!(
        events.len() <= 1,
        "one event of an object and reason: {events:#?}"
    );
    Ok(events.pop())
}

fn wait(kubectl: &Kubectl, namespace: &str, reason: &str) -> Result<Value> {
    let mut found = None;
    wait_until(&format!("an event {reason}"), LIMIT, || {
        found = event(kubectl, namespace, reason)?;
        Ok(found.is_some())
    })?;
    found.context("an event")
}

#[test]
fn kubectl_shows_what_happened_to_pods_claims_and_nodes() -> Result<()> {
    on_control_plane(
        "kubectl_shows_what_happened_to_pods_claims_and_nodes",
        Extent::Whole,
        shown,
    )
}

fn shown(plane: &ControlPlane) -> Result<()> {
    plane.network().enter()?;
    let runtime = Runtime::new()?;
    let cluster = Cluster::new(plane, &runtime)?;
    let (driver, kubelet) = cluster.start();
    let kubectl = &cluster.kubectl;
    cluster.ask()?;
    let claim = ["resourceclaim", "c", "-n", "team-a"];
    let given = kubectl.wait("a claim that is reserved", &claim, |claim| {
        let users = claim["status"]["reservedFor"].as_array();
        users.is_some_and(|users| !users.is_empty())
    })?;
    let uid = given["metadata"]["uid"].as_str().context("a uid")?;

    // A claim that is another one by now.
    let other = "00000000-0000-4000-8000-000000000000";
    ensure!(!runtime.block_on(kubelet.prepare_one("c", other)).is_empty());
    let failed = wait(kubectl, "team-a", "GpuPrepareFailed")?;
    assert_eq!(failed["regarding"]["uid"], uid);
    assert_eq!(failed["related"]["name"], "p");
    assert_eq!(failed["type"], "Warning");
    assert_eq!(runtime.block_on(kubelet.prepare_one("c", uid)), "");

    // The container's log: many refusals, and one of each other kind.
    let state = cluster.fixture.path("state");
    for number in 0..200 {
        happens(
            &state,
            ("team-a", "p"),
            "over_quota",
            &format!("{number} MiB {}", "é".repeat(2000)),
        );
    }
    for (kind, reason) in [
        ("xid", "GpuXid"),
        ("violation", "GpuViolation"),
        ("share", "GpuShareMissed"),
        ("broker_replaced", "GpuBrokerReplaced"),
        ("quota_changed", "GpuResized"),
    ] {
        happens(
            &state,
            ("team-a", "p"),
            kind,
            "a text\u{1b}[2J\nof two lines",
        );
        let event = wait(kubectl, "team-a", reason)?;
        assert_eq!(event["note"], "container app: a text [2J of two lines");
        assert_eq!(event["reportingInstance"], "n1");
    }
    let refused = wait(kubectl, "team-a", "GpuQuotaExceeded")?;
    assert_eq!(refused["related"]["name"], "c");
    ensure!(
        refused["note"]
            .as_str()
            .is_some_and(|text| text.len() <= 1024),
        "{refused}"
    );
    let described = kubectl
        .run(&["describe", "pod", "p", "-n", "team-a"])?
        .success()?
        .stdout;
    for reason in ["GpuQuotaExceeded", "GpuXid", "GpuResized"] {
        ensure!(described.contains(reason), "{described}");
    }
    let described = kubectl
        .run(&["describe", "resourceclaim", "c", "-n", "team-a"])?
        .success()?
        .stdout;
    ensure!(described.contains("GpuPrepareFailed"), "{described}");

    // Cards, and the node's mode.
    let health = cards::CardHealth {
        version: cards::health::VERSION,
        uuid: cards::GpuUuid::new(uuid(1))?,
        reason: "Xid 79: GPU has fallen off the bus".to_owned(),
        since_unix_ms: cards::events::now_unix_ms(),
    };
    cards::health::report(&state, &health)?;
    let unhealthy = wait(kubectl, "default", "GpuUnhealthy")?;
    ensure!(
        unhealthy["note"]
            .as_str()
            .is_some_and(|text| text.contains("Xid 79")),
        "{unhealthy}"
    );
    cards::health::clear(&state, &health.uuid)?;
    wait(kubectl, "default", "GpuHealthy")?;
    kubectl
        .run(&["label", "node", "n1", "ack.node.gpu.schedule=default"])?
        .success()?;
    wait_until("the mode", 2 * LIMIT, || {
        Ok(event(kubectl, "default", "GpuModePending")?.is_some())
    })?;
    let described = kubectl.run(&["describe", "node", "n1"])?.success()?.stdout;
    for reason in ["GpuUnhealthy", "GpuHealthy", "GpuModePending"] {
        ensure!(described.contains(reason), "{described}");
    }

    // The count comes later, and the server takes it. Of a log that is read every two seconds its bound is lost.
    happens(&state, ("team-a", "p"), "over_quota", "once more");
    wait_until("the count", 2 * LIMIT, || {
        let refused = event(kubectl, "team-a", "GpuQuotaExceeded")?;
        let count = refused.and_then(|event| event["series"]["count"].as_u64());
        Ok(count.is_some_and(|count| count > 50))
    })?;
    runtime.block_on(driver.end());
    drop(cluster);
    Ok(())
}
