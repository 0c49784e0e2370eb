//! The node's slices and health in the cluster, and agents that come and go; the test plays kubelet and API server.
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fixture::api::Fault;
use crate::fixture::kubelet::Kubelet;
use crate::fixture::{Driver, Fixture, SLICE, claim, claim_path, device, share, soon, uid, uuid};
use hyper::Method;
use serde_json::{Value, json};

const HEALTHY: i32 = 1;
const UNHEALTHY: i32 = 2;

/// Reports a card as a broker does.
fn condemn(fixture: &Fixture, card: u32, reason: &str) {
    let health = cards::CardHealth {
        version: cards::health::VERSION,
        uuid: cards::GpuUuid::new(uuid(card)).unwrap(),
        reason: reason.to_owned(),
        since_unix_ms: 1_700_000_000_000,
    };
    cards::health::report(&fixture.path("state"), &health).unwrap();
}

fn generation(fixture: &Fixture) -> Option<i64> {
    fixture.api.get(SLICE)?["spec"]["pool"]["generation"].as_i64()
}

fn names(fixture: &Fixture) -> Vec<Value> {
    fixture
        .devices()
        .iter()
        .map(|device| device["name"].clone())
        .collect()
}

#[tokio::test]
async fn slices_follow_the_cards() {
    let fixture = Fixture::new().await;
    let left = SLICE.replace("-00", "-07");
    fixture.api.put(&left, serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n1-gpu.cgpu.io-07"},
        "spec": {"driver": "gpu.cgpu.io", "nodeName": "n1", "pool": {"name": "n1", "generation": 4, "resourceSliceCount": 1}},
    })).unwrap());
    fixture.api.fail(Method::PATCH, SLICE, Fault::Status(409));
    let _driver = fixture.start();
    soon("a slice", || fixture.devices().len() == 2).await;
    assert_eq!(
        generation(&fixture),
        Some(5),
        "a former agent's generation is passed"
    );
    soon("what a former agent left is gone", || {
        fixture.api.get(&left).is_none()
    })
    .await;

    condemn(&fixture, 1, "Xid 79: GPU has fallen off the bus");
    soon("a taint", || {
        fixture
            .devices()
            .iter()
            .any(|device| device["taints"][0]["value"] == "xid-79")
    })
    .await;
    assert_eq!(generation(&fixture), Some(5), "the devices are the same");

    fixture.set_cards(1);
    soon("one card", || fixture.devices().len() == 1).await;
    assert_eq!(generation(&fixture), Some(6));

    fixture.api.remove(SLICE);
    soon("a slice that somebody deleted", || {
        fixture.devices().len() == 1
    })
    .await;
    let mut foreign = fixture.api.get(SLICE).unwrap();
    foreign["spec"]["devices"] = json!([]);
    fixture.api.put(SLICE, foreign);
    soon("a slice that somebody changed", || {
        fixture.devices().len() == 1
    })
    .await;

    fixture.set_cards(0);
    soon("no slice of a node without cards", || {
        fixture.api.get(SLICE).is_none()
    })
    .await;
}

#[tokio::test]
async fn the_fullest_card_comes_first_and_slices_are_written_once_a_second_at_most() {
    let fixture = Fixture::new().await;
    let driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    soon("a slice", || fixture.devices().len() == 2).await;
    assert_eq!(names(&fixture), [device(0), device(1)]);
    let (began, before) = (Instant::now(), fixture.api.count(&Method::PATCH, SLICE));
    for number in 0..40 {
        let name = format!("c{number}");
        fixture.claim(&name, claim(number, &name, 1, "64Mi"));
        assert_eq!(kubelet.prepare_one(&name, &uid(number)).await, "");
    }
    soon("the fuller card is first", || {
        names(&fixture) == [device(1), device(0)]
    })
    .await;
    let written = fixture.api.count(&Method::PATCH, SLICE) - before;
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(written <= seconds + 1, "{written} writes in {seconds} s");
    assert_eq!(generation(&fixture), Some(1));
    driver.end().await;
}

#[tokio::test]
async fn a_container_outside_of_the_cluster_takes_from_what_is_offered() {
    let fixture = Fixture::new().await;
    let folder = fixture.path("state/cards").join(uuid(0));
    std::fs::create_dir_all(&folder).unwrap();
    let account = json!({
        "version": 1, "uuid": uuid(0),
        "grants": [{"key": {"namespace": "default", "id": "by-hand"}, "quota_bytes": 4_u64 << 30, "created_at_unix_ms": 1}],
    });
    std::fs::write(folder.join("reservations.json"), account.to_string()).unwrap();
    let _driver = fixture.start();
    soon("a slice", || fixture.devices().len() == 2).await;
    let memory = |card: u32| {
        let devices = fixture.devices().into_iter();
        let mut of_card = devices.filter(|found| found["name"] == device(card));
        of_card.next().unwrap()["capacity"]["memory"]["value"].clone()
    };
    assert_eq!((memory(0), memory(1)), (json!("20Gi"), json!("24Gi")));
}

#[tokio::test]
async fn a_node_s_label_changes_its_mode_when_the_last_claim_is_gone() {
    let fixture = Fixture::new().await;
    fixture.claim("c", claim(1, "c", 0, "8Gi"));
    let driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    soon("a slice", || fixture.devices().len() == 2).await;
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    driver.end().await;
    fixture.api.put("/api/v1/nodes/n1", json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "uid": "node-uid", "labels": {"ack.node.gpu.schedule": "default"}},
    }));
    // As the kubelet does while there is no agent.
    fixture.api.remove(SLICE).unwrap();
    let driver = fixture.start();
    let draining = |device: &Value| device["taints"][0]["key"] == "gpu.cgpu.io/mode-change";
    soon("nothing new is placed", || {
        fixture.devices().len() == 2 && fixture.devices().iter().all(draining)
    })
    .await;
    driver.end().await;
    // And another agent finds them.
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    soon("nothing new is placed", || {
        fixture.devices().len() == 2 && fixture.devices().iter().all(draining)
    })
    .await;
    assert_eq!(fixture.devices()[0]["allowMultipleAllocations"], true);
    assert_eq!(kubelet.unprepare("c", &uid(1)).await, "");
    soon("whole cards", || {
        fixture
            .devices()
            .iter()
            .all(|device| device["attributes"]["type"]["string"] == "gpu")
    })
    .await;
    assert_eq!(fixture.devices()[0]["taints"], Value::Null);
}

const NODE: &str = "/api/v1/nodes/n1";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const GIVEN: &str = "cgpu.io/memory-given";

/// Labels the node as its administrator does.
fn label(fixture: &Fixture, name: &str, value: &Value) {
    let mut node = fixture.api.get(NODE).unwrap();
    node["metadata"]["labels"][name] = value.clone();
    node["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    fixture.api.put(NODE, node);
}

fn given(fixture: &Fixture) -> Value {
    fixture.api.get(NODE).unwrap()["metadata"]["labels"][GIVEN].clone()
}

#[tokio::test]
async fn the_order_of_cards_follows_a_label_of_the_node_at_once() {
    let fixture = Fixture::new().await;
    fixture.claim("c", claim(1, "c", 1, "1Gi"));
    let driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    let fullest = [device(1), device(0)];
    let emptiest = [device(0), device(1)];
    soon("the file's policy", || names(&fixture) == fullest).await;
    let began = Instant::now();
    label(&fixture, "ack.node.gpu.placement", &json!("spread"));
    soon("the label's policy", || names(&fixture) == emptiest).await;
    // A node that is only looked at each minute would be late.
    assert!(began.elapsed() < Duration::from_secs(30));
    label(&fixture, "ack.node.gpu.placement", &json!("tight"));
    soon("the file's policy again", || names(&fixture) == fullest).await;
    let unknown = || {
        let events = fixture.api.all(EVENTS).into_iter();
        let mut events = events.filter(|event| event["reason"] == "GpuLabelUnknown");
        events.next()
    };
    soon("an event", || unknown().is_some()).await;
    let event = unknown().unwrap();
    assert_eq!(event["regarding"]["kind"], "Node");
    let text = event.to_string();
    for part in ["ack.node.gpu.placement", "tight", "binpack or spread"] {
        assert!(text.contains(part), "{text}");
    }
    driver.end().await;
}

#[tokio::test]
async fn a_node_is_labelled_with_what_claims_hold_of_its_cards_and_rarely() {
    let fixture = Fixture::new().await;
    label(&fixture, "team", &json!("a"));
    let driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    soon("an empty node", || given(&fixture) == "0").await;
    let (began, before) = (Instant::now(), fixture.api.count(&Method::PATCH, NODE));
    for number in 0..20 {
        let name = format!("c{number}");
        fixture.claim(&name, claim(number, &name, number % 2, "2Gi"));
        assert_eq!(kubelet.prepare_one(&name, &uid(number)).await, "");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // 40 of 48 GiB.
    soon("a full node", || given(&fixture) == "90").await;
    let written = fixture.api.count(&Method::PATCH, NODE) - before;
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(
        written <= seconds / 3 + 1,
        "{written} writes in {seconds} s"
    );
    // What others write in its place does not stay, and their own labels do.
    label(&fixture, GIVEN, &json!("10"));
    soon("a forged label", || given(&fixture) == "90").await;
    fixture.set_cards(0);
    soon("no label without a card", || given(&fixture).is_null()).await;
    assert_eq!(
        fixture.api.get(NODE).unwrap()["metadata"]["labels"],
        json!({"team": "a"})
    );
    driver.end().await;
}

#[tokio::test]
async fn slices_do_not_wait_for_a_label_that_is_not_allowed() {
    let fixture = Fixture::new().await;
    fixture.api.fail(Method::PATCH, NODE, Fault::Status(403));
    let _driver = fixture.start();
    soon("a slice", || fixture.devices().len() == 2).await;
    fixture.set_cards(1);
    soon("one card", || fixture.devices().len() == 1).await;
    fixture.set_cards(2);
    soon("two cards", || fixture.devices().len() == 2).await;
    assert_eq!(given(&fixture), Value::Null);
    assert_eq!(fixture.api.count(&Method::PATCH, NODE), 1);
}

#[tokio::test]
async fn the_kubelet_is_sent_each_change_of_health() {
    let fixture = Fixture::new().await;
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    soon("a slice", || fixture.devices().len() == 2).await;
    let (mut new, mut old) = (kubelet.health().await, kubelet.health_alpha().await);
    let first = new.message().await.unwrap().unwrap();
    assert_eq!(first.devices.len(), 2);
    assert!(
        first
            .devices
            .iter()
            .all(|device| device.health == HEALTHY && device.last_updated_time > 0)
    );
    assert_eq!(old.message().await.unwrap().unwrap().devices.len(), 2);
    condemn(&fixture, 0, "the card was lost");
    let changed = new.message().await.unwrap().unwrap();
    let of = |card: u32| {
        let mut devices = changed.devices.iter();
        devices
            .find(|state| state.device.as_ref().unwrap().device_name == device(card))
            .unwrap()
    };
    assert_eq!(
        (of(0).health, of(0).message.as_str()),
        (UNHEALTHY, "the card was lost")
    );
    assert_eq!(of(1).health, HEALTHY);
    let old = old.message().await.unwrap().unwrap();
    assert!(old.devices.iter().any(|device| device.health == UNHEALTHY));
    // And nothing is prepared there.
    fixture.claim("c", claim(1, "c", 0, "1Gi"));
    let error = kubelet.prepare_one("c", &uid(1)).await;
    assert!(error.contains("the card was lost"), "{error}");
}

#[tokio::test]
async fn sockets_that_are_removed_come_back_and_an_end_in_order_removes_them() {
    let fixture = Fixture::new().await;
    let driver = fixture.start();
    drop(fixture.kubelet().await);
    let folder = fixture.path("kubelet");
    std::fs::remove_dir_all(&folder).unwrap();
    let kubelet = fixture.kubelet().await;
    fixture.claim("c", claim(1, "c", 0, "1Gi"));
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    driver.end().await;
    for socket in [
        "plugins_registry/gpu.cgpu.io@reg.sock",
        "plugins/gpu.cgpu.io/dra.sock",
    ] {
        assert!(!folder.join(socket).exists(), "{socket}");
    }
}

#[tokio::test]
async fn two_agents_serve_during_a_rolling_update_and_one_publishes() {
    let fixture = Fixture::new().await;
    let start = |pod: &str| Driver::start(fixture.settings(Some(pod)), fixture.host());
    let kubelet = |pod: &str| {
        let socket = format!("gpu.cgpu.io@{pod}-reg.sock");
        let folder = fixture.path("kubelet");
        async move { Kubelet::connect(&folder, &socket).await }
    };
    let old = start("old");
    let by_old = kubelet("old").await;
    soon("a slice", || fixture.devices().len() == 2).await;
    let new = start("new");
    let by_new = kubelet("new").await;
    fixture.claim("c", claim(1, "c", 0, "1Gi"));
    fixture.claim("d", claim(2, "d", 0, "1Gi"));
    let (old_answer, new_answer) =
        tokio::join!(by_old.prepare_one("c", "x"), by_new.prepare_one("d", "y"));
    assert!(
        !old_answer.is_empty() && !new_answer.is_empty(),
        "foreign uids are refused by both"
    );
    let c = uid(1);
    let (first, second) = tokio::join!(by_old.prepare_one("c", &c), by_new.prepare_one("c", &c));
    assert_eq!((first.as_str(), second.as_str()), ("", ""));
    old.end().await;
    assert_eq!(by_new.prepare_one("d", &uid(2)).await, "");
    // The new one's slices from here on.
    fixture.set_cards(1);
    soon("the new agent publishes", || fixture.devices().len() == 1).await;
    new.end().await;
}

#[tokio::test]
async fn an_agent_without_an_api_server_waits_for_it() {
    let fixture = Fixture::new().await;
    let kubeconfig = fixture.path("kubeconfig");
    let text = std::fs::read(&kubeconfig).unwrap();
    std::fs::remove_file(&kubeconfig).unwrap();
    fixture.claim("c", claim(1, "c", 0, "1Gi"));
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    let error = kubelet.prepare_one("c", &uid(1)).await;
    assert!(error.contains("the API server is not known"), "{error}");
    std::fs::write(&kubeconfig, text).unwrap();
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    soon("a slice", || fixture.devices().len() == 2).await;
}

#[tokio::test]
async fn settings_that_can_never_work_are_refused() {
    let fixture = Fixture::new().await;
    let mut settings = fixture.settings(Some("../x"));
    let error = settings.check().unwrap_err().to_string();
    assert!(
        error.contains("pod uid") && error.contains("../x"),
        "{error}"
    );
    settings.pod_uid = None;
    settings.kubelet_dir = fixture.path(&"long".repeat(30));
    let error = cluster::run(
        settings,
        fixture.host(),
        Arc::default(),
        std::future::pending(),
    )
    .await
    .unwrap_err();
    assert!(error.to_string().contains("--kubelet-dir"), "{error}");
}

#[tokio::test]
async fn a_hung_call_ends() {
    let fixture = Fixture::new().await;
    fixture.claim("c", claim(1, "c", 0, "1Gi"));
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    let path = claim_path("c");
    fixture
        .api
        .fail(Method::GET, &path, Fault::Slow(Duration::from_secs(60)));
    let began = Instant::now();
    let error = kubelet.prepare_one("c", &uid(1)).await;
    assert!(error.contains("no answer within"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(45));
}

#[tokio::test]
async fn what_a_living_container_has_of_a_claim_that_is_gone_is_not_offered() {
    let fixture = Fixture::new().await;
    fixture.claim("c", claim(1, "c", 0, "8Gi"));
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    let mut program = std::process::Command::new("cat");
    let mut program = program.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pid = program.id();
    // As the container's frontend leaves them.
    let start_ticks = sys::proc::start_ticks(pid.cast_signed()).unwrap();
    let first =
        json!({"pid": pid, "start_ticks": start_ticks, "pid_namespace": null, "groups": []});
    let container = fixture.path("state/vgpus/k8s.io/c");
    std::fs::create_dir_all(&container).unwrap();
    std::fs::write(container.join("first-process.json"), first.to_string()).unwrap();
    let pointer = format!("{}/vgpu/{}", uid(1), share(1));
    let quota_bytes = 8_u64 << 30;
    let grant = json!({
        "key": {"namespace": "k8s.io", "id": "c"}, "quota_bytes": quota_bytes, "claimed_bytes": quota_bytes, "claims": [pointer],
        "created_at_unix_ms": 1,
    });
    let card = fixture.path("state/cards").join(uuid(0));
    std::fs::create_dir_all(&card).unwrap();
    let reservations = json!({"version": 1, "uuid": uuid(0), "grants": [grant]});
    std::fs::write(card.join("reservations.json"), reservations.to_string()).unwrap();
    let offered = || {
        let mut devices = fixture.devices().into_iter();
        let of_card = devices.find(|of| of["name"] == device(0));
        of_card.map_or(Value::Null, |of| of["capacity"]["memory"]["value"].clone())
    };
    soon("the card", || !offered().is_null()).await;
    assert_eq!(offered(), "24Gi", "its claim counts");
    // Its claim is taken from under it; its end gives all of the card back.
    assert_eq!(kubelet.unprepare("c", &uid(1)).await, "");
    soon("what is left", || offered() == "16Gi").await;
    drop(program.stdin.take());
    program.wait().unwrap();
    soon("all of it", || offered() == "24Gi").await;
}
