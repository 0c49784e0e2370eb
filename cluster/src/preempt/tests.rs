use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};

use super::*;
use crate::api::fake::{self, Questions, page, refusal};

/// A node's slice with one card of 24 GiB.
fn slice(node: &str) -> Value {
    let policy = |default: &str, max: &str| json!({"default": default, "validRange": {"min": "1", "step": "1", "max": max}});
    json!({
        "metadata": {"name": node},
        "spec": {
            "driver": crate::DRIVER, "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "allowMultipleAllocations": true, "capacity": {
                "memory": {"value": "24Gi", "requestPolicy": policy("24Gi", "24Gi")},
            }}],
        },
    })
}

/// A claim of so much memory; that of a whole card is what a pod has on a node, or waits for.
fn claim(name: &str, requested: &str, holder: Option<(&str, &str)>) -> Value {
    let capacity = json!({"requests": {"memory": requested}});
    let exactly = json!({"deviceClassName": "vgpu.cgpu.io", "capacity": capacity});
    let status = holder.map(|(node, uid)| {
        json!({
            "allocation": {"devices": {"results": [{
                "request": "r", "driver": crate::DRIVER, "pool": node, "device": "gpu-0", "consumedCapacity": {"memory": "24Gi"},
            }]}},
            "reservedFor": [{"resource": "pods", "name": uid, "uid": uid}],
        })
    });
    json!({
        "metadata": {"namespace": "team", "name": name, "uid": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        "status": status,
    })
}

fn pod(uid: &str, priority: i32, is_placed: bool) -> Value {
    let marked = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    json!({
        "metadata": {"namespace": "team", "name": uid, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "containers": [], "priority": priority, "nodeName": is_placed.then_some("n"),
            "resourceClaims": [{"name": "c", "resourceClaimName": uid}],
        },
        "status": {"phase": if is_placed { "Running" } else { "Pending" }, "conditions": [marked]},
    })
}

fn holder(uid: &str, priority: i32) -> Value {
    pod(uid, priority, true)
}

fn pod_that_ends(uid: &str, priority: i32) -> Value {
    let mut pod = pod(uid, priority, true);
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    pod
}

fn controller(
    evict: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static,
) -> (Controller, Questions) {
    controller_of(holder, evict)
}

/// What is there; the pods that wait request so much.
fn answer(holder: fn(&str, i32) -> Value, requested: &str, uri: &str) -> (u16, Value) {
    let path = uri.split('?').next().unwrap();
    let kind = path.rsplit('/').next().unwrap();
    let all = match kind {
        "waits" | "waits-too" => return (200, pod(kind, 9, false)),
        "pods" if uri.contains("spec.nodeName") => {
            vec![pod("waits", 9, false), pod("waits-too", 8, false)]
        }
        "pods" => vec![holder("a", 0), holder("b", 1)],
        "resourceclaims" => vec![
            claim("a", "24Gi", Some(("n1", "a"))),
            claim("b", "24Gi", Some(("n2", "b"))),
            claim("waits", requested, None),
            claim("waits-too", requested, None),
        ],
        "deviceclasses" => vec![json!({"metadata": {"name": "vgpu.cgpu.io"}, "spec": {}})],
        "nodes" => vec![
            json!({"metadata": {"name": "n1"}}),
            json!({"metadata": {"name": "n2"}}),
        ],
        "resourceslices" => vec![slice("n1"), slice("n2")],
        _ => Vec::new(),
    };
    page(&all, "")
}

/// Two nodes with such a pod of low priority each, and pods that wait. The server answers evictions so.
fn controller_of(
    holder: fn(&str, i32) -> Value,
    evict: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static,
) -> (Controller, Questions) {
    let (connection, questions) = fake::serve(move |method, uri, _| {
        let path = uri.split('?').next().unwrap();
        let name = path.split('/').nth(6).unwrap_or_default();
        match (method, path.rsplit('/').next().unwrap()) {
            ("POST", "eviction") => evict(name),
            ("POST", _) => (201, json!({"metadata": {}})),
            _ => answer(holder, "24Gi", uri),
        }
    });
    let controller = Controller {
        connection: Arc::new(connection),
        pace: PreemptionPace::default(),
        pauses: Pauses::default(),
        turns: Turns::default(),
    };
    (controller, questions)
}

/// How long pods pause that were judged just now, seconds.
fn pauses_s(controller: &Controller) -> Vec<u64> {
    let pauses = controller.pauses.of_pods.values();
    let left = pauses.map(|pause| pause.next.until - Instant::now());
    // What has passed since is rounded away.
    left.map(|left| (left.as_secs() + 5) / 10 * 10).collect()
}

/// Names of the pods that evictions were for, dry runs among them.
fn evictions(questions: &Questions) -> Vec<String> {
    let questions = sys::sync::lock(questions);
    let of = |question: &String| {
        let path = question.split('?').next()?.strip_suffix("/eviction")?;
        let run = if question.contains("dryRun") { "?" } else { "" };
        Some(format!("{}{run}", path.rsplit('/').next()?))
    };
    questions.iter().filter_map(of).collect()
}

#[tokio::test]
async fn a_plan_that_the_server_refuses_leaves_other_plans_and_other_pods_their_turns() {
    // The best plan is refused, and the next one is tried.
    let (mut one, questions) = controller(|name| match name {
        "a" => refusal(403, "an admission policy keeps it"),
        _ => (201, json!({})),
    });
    one.look().await.unwrap();
    assert_eq!(evictions(&questions), ["a?", "b?", "b"]);
    // All of them are, and the pod behind has its turn; both pause.
    let (mut none, questions) =
        controller(|_| refusal(500, "This pod has more than one PodDisruptionBudget"));
    none.look().await.unwrap();
    assert_eq!(evictions(&questions), ["a?", "b?", "a?", "b?"]);
    assert_eq!(none.pauses.of_pods.len(), 2);
    none.look().await.unwrap();
    assert_eq!(evictions(&questions).len(), 4, "nobody is due");
}

#[tokio::test]
async fn an_eviction_that_its_dry_run_allowed_is_tried_again_while_the_server_has_no_time() {
    for status in [429, 503, 504] {
        let count = AtomicUsize::new(0);
        let (mut one, questions) = controller(move |_| match count.fetch_add(1, Relaxed) {
            1 => refusal(status, "not now"),
            _ => (201, json!({})),
        });
        one.look().await.unwrap();
        assert_eq!(evictions(&questions), ["a?", "a", "a"], "{status}");
    }
}

#[tokio::test]
async fn a_pod_that_fits_in_a_moment_pauses_and_others_have_its_place() {
    let (mut controller, questions) = controller_of(pod_that_ends, |_| (201, json!({})));
    controller.look().await.unwrap();
    assert_eq!(controller.pauses.of_pods.len(), 2);
    assert_eq!(evictions(&questions), [""; 0]);
}

#[tokio::test]
async fn a_pod_that_fits_on_no_empty_card_has_no_pods_read() {
    let (mut controller, questions) = controller_of(holder, |_| (201, json!({})));
    controller.look().await.unwrap();
    let is_all =
        |question: &String| question.contains("/pods?") && !question.contains("spec.nodeName");
    let lists = sys::sync::lock(&questions).split_off(0);
    assert_eq!(lists.iter().filter(|question| is_all(question)).count(), 1);
    // As large as no card is.
    let (connection, questions) = fake::serve(|_, uri, _| answer(holder, "48Gi", uri));
    controller.connection = Arc::new(connection);
    controller.pauses = Pauses::default();
    controller.look().await.unwrap();
    let lists = sys::sync::lock(&questions).split_off(0);
    let is_read = |part: &str| lists.iter().any(|question| question.contains(part));
    assert!(is_read("/resourceclaims?") && is_read("/resourceslices?"));
    assert!(!lists.iter().any(is_all) && !is_read("/poddisruptionbudgets?"));
    assert_eq!(pauses_s(&controller), [30, 30]);
}

#[tokio::test]
async fn a_pod_that_nothing_helps_pauses_twice_as_long_each_time() {
    let (mut controller, questions) = controller_of(|uid, _| holder(uid, 99), |_| (201, json!({})));
    for pause_s in [30, 60, 120, 240, 480, 600, 600] {
        controller.look().await.unwrap();
        assert_eq!(pauses_s(&controller), [pause_s, pause_s]);
        for pause in controller.pauses.of_pods.values_mut() {
            pause.next.until = Instant::now();
        }
    }
    assert_eq!(evictions(&questions), [""; 0]);
}

#[tokio::test]
async fn what_tenants_write_is_read_in_short_pages() {
    let (mut controller, questions) = controller(|_| refusal(429, "a budget"));
    controller.look().await.unwrap();
    let questions = sys::sync::lock(&questions);
    let lists = |kind: &str| {
        let of = questions.iter().filter(|question| question.contains(kind));
        of.filter(|question| question.starts_with("GET") && question.contains("limit="))
            .map(|question| question.contains("limit=8"))
            .collect::<Vec<_>>()
    };
    assert_eq!(lists("/pods?"), [true, true]);
    assert_eq!(lists("/resourceclaims?"), [true]);
    assert_eq!(lists("/poddisruptionbudgets?"), [true]);
    assert_eq!(lists("/nodes?"), [false]);
}

/// A pod of a new name and uid for each one that its tenant deletes, and what a server has of the former ones.
async fn evictions_of_fresh_pods(former: fn(&str) -> (u16, Value)) -> (Controller, Vec<String>) {
    let made = Arc::new(AtomicUsize::new(0));
    let name = |number: usize| format!("fresh-{number}");
    let of_server = Arc::clone(&made);
    let (connection, questions) = fake::serve(move |method, uri, _| {
        let now = name(of_server.load(Relaxed));
        let path = uri.split('?').next().unwrap();
        let last = path.rsplit('/').next().unwrap();
        match (method, last) {
            ("POST", "eviction") => (201, json!({})),
            ("POST", _) => (201, json!({"metadata": {}})),
            ("GET", of) if of == now => (200, pod(of, 9, false)),
            ("GET", of) if of.starts_with("fresh-") => former(of),
            ("GET", "pods") if uri.contains("spec.nodeName") => page(&[pod(&now, 9, false)], ""),
            ("GET", "resourceclaims") => {
                let held = ["a", "b"].map(|uid| {
                    claim(
                        uid,
                        "24Gi",
                        Some((if uid == "a" { "n1" } else { "n2" }, uid)),
                    )
                });
                page(&[&held[..], &[claim(&now, "24Gi", None)]].concat(), "")
            }
            _ => answer(holder, "24Gi", uri),
        }
    });
    let mut controller = Controller {
        connection: Arc::new(connection),
        pace: PreemptionPace::default(),
        pauses: Pauses::default(),
        turns: Turns::default(),
    };
    for number in 0..4 {
        made.store(number, Relaxed);
        controller.look().await.unwrap();
    }
    let evicted = evictions(&questions);
    (controller, evicted)
}

#[tokio::test]
async fn a_fresh_pod_waits_as_long_as_the_one_that_was_deleted_for_it() {
    let gone = |_: &str| {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"});
        (404, status)
    };
    let (controller, evicted) = evictions_of_fresh_pods(gone).await;
    assert_eq!(evicted, ["a?", "a"], "for the first one alone");
    assert!(controller.pauses.of_pods.is_empty(), "none was judged");
    // A pod that was placed leaves nothing to the next one.
    let (_, evicted) = evictions_of_fresh_pods(|name| (200, pod(name, 9, true))).await;
    assert_eq!(evicted, ["a?", "a"].repeat(4));
}

#[tokio::test]
async fn a_former_pod_that_cannot_be_read_stops_no_look_and_leaves_its_pause() {
    let broken = |_: &str| refusal(400, "no");
    let (_, evicted) = evictions_of_fresh_pods(broken).await;
    assert_eq!(evicted, ["a?", "a"], "for the first one alone");
}

#[tokio::test]
async fn nobody_goes_for_a_claim_that_may_not_be_allocated() {
    for (granted, count) in [("other:1", 0), ("other:1,waits:25769803776", 2)] {
        let annotations = json!({"cgpu.io/max-memory": "24Gi", "cgpu.io/memory-claimed": "48Gi", "cgpu.io/memory-granted": granted});
        let team = json!({"metadata": {"name": "team", "annotations": annotations}});
        let (connection, questions) = fake::serve(move |method, uri, _| {
            match (
                method,
                uri.split('?').next().unwrap().rsplit('/').next().unwrap(),
            ) {
                ("POST", _) => (201, json!({"metadata": {}})),
                (_, "namespaces") => page(std::slice::from_ref(&team), ""),
                _ => answer(holder, "24Gi", uri),
            }
        });
        let (mut controller, _) = controller(|_| (201, json!({})));
        controller.connection = Arc::new(connection);
        controller.look().await.unwrap();
        assert_eq!(evictions(&questions).len(), count, "{granted}");
    }
}
