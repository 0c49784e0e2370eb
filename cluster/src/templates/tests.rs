use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::api::fake::{self, Questions, page, refusal};
use crate::reports;

/// Pods of one namespace that name so many templates each, and a server that makes none.
fn controller(pods: usize, names: usize) -> (Controller, Questions) {
    let pod = move |at: usize| -> Value {
        let claims = (0..names).map(|name| {
            let template = format!("cgpu-m{}mi-c0-x1", (at * names + name) * 2 + 1);
            json!({"name": format!("c{name}"), "resourceClaimTemplateName": template})
        });
        json!({
            "metadata": {"namespace": "team", "name": format!("p{at}"), "uid": format!("u{at}")},
            "spec": {"containers": [], "resourceClaims": claims.collect::<Vec<_>>()},
        })
    };
    let (connection, questions) = fake::serve(move |method, uri, _| {
        let path = uri.split('?').next().unwrap();
        match (method, path.rsplit('/').next().unwrap()) {
            ("POST", "events") => (201, json!({"metadata": {}})),
            ("POST", _) => refusal(403, "above the ceiling"),
            (_, "pods") => page(&(0..pods).map(pod).collect::<Vec<_>>(), ""),
            _ => page(&[], ""),
        }
    });
    (controller_of(connection), questions)
}

fn controller_of(connection: Connection) -> Controller {
    let connection = Arc::new(connection);
    Controller {
        store: Store::new(Arc::clone(&connection)),
        connection,
        pace: TemplatesPace::default(),
        again_s: AGAIN_S,
        needed: Needed::default(),
        unneeded: BTreeMap::new(),
    }
}

fn count(questions: &Questions, part: &str) -> usize {
    let questions = sys::sync::lock(questions);
    questions
        .iter()
        .filter(|question| question.contains(part))
        .count()
}

#[tokio::test]
async fn a_pod_that_names_templates_by_the_thousand_has_few_tries_and_one_event() {
    let (mut controller, questions) = controller(1, 800);
    controller.list().await.unwrap();
    controller.look().await.unwrap();
    assert_eq!(count(&questions, "POST"), 64 + 1);
    controller.look().await.unwrap();
    assert_eq!(count(&questions, "/events"), 1, "and none again");
}

#[tokio::test]
async fn a_namespace_of_such_pods_has_few_events_a_look() {
    let (mut controller, questions) = controller(100, 20);
    controller.list().await.unwrap();
    assert_eq!(count(&questions, "limit=8"), 1);
    for look in 1..4 {
        controller.look().await.unwrap();
        assert_eq!(
            count(&questions, "/events"),
            reports::OF_NAMESPACE_MAX * look
        );
    }
    let tries = count(&questions, "POST") - count(&questions, "/events");
    assert_eq!(tries, needed::OF_NAMESPACE_MAX * 3);
}

/// A server that refuses what is done with one namespace's templates.
fn refusing(status: u16) -> (Controller, Questions) {
    let (connection, questions) = fake::serve(move |method, uri, body| {
        let path = uri.split('?').next().unwrap();
        match (method, path.rsplit('/').next().unwrap()) {
            // As by EventRateLimit.
            ("POST", "events") => refusal(429, "too many"),
            ("POST" | "DELETE", _) if path.contains("/namespaces/bad/") => {
                refusal(status, "not these")
            }
            ("POST", _) => (201, body.clone()),
            ("DELETE", _) => (200, json!({"kind": "Status", "apiVersion": "v1"})),
            (_, "pods") => page(&["bad", "good"].map(pod_of), ""),
            _ => page(&["bad", "good"].map(template_of), ""),
        }
    });
    let mut controller = controller_of(connection);
    controller.pace.grace = Duration::ZERO;
    (controller, questions)
}

/// A pod that names a template which is not there.
fn pod_of(namespace: &str) -> Value {
    let claim = json!({"name": "c", "resourceClaimTemplateName": "cgpu-m4-c0-x1"});
    json!({
        "metadata": {"namespace": namespace, "name": "p", "uid": namespace},
        "spec": {"containers": [], "resourceClaims": [claim]},
    })
}

/// A template that no pod names.
fn template_of(namespace: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": "cgpu-m8-c0-x1"}, "spec": {"spec": {}}})
}

#[tokio::test]
async fn a_template_that_is_refused_with_whatever_status_holds_up_no_other_one() {
    for status in [400, 403, 404, 409, 422, 429, 500, 502, 503, 504] {
        let (mut controller, questions) = refusing(status);
        controller.list().await.unwrap();
        controller.look().await.unwrap();
        for question in ["POST", "DELETE"] {
            for namespace in ["bad", "good"] {
                let part = format!("/namespaces/{namespace}/resourceclaimtemplates");
                let questions = sys::sync::lock(&questions);
                let mut questions = questions.iter();
                let is_there = questions.any(|it| it.starts_with(question) && it.contains(&part));
                assert!(is_there, "{status}: {question} {part}");
            }
        }
        // What may pass is tried soon again. Too many questions are nobody's fault, and the server's own failure has an event when it lasts.
        let may_pass = matches!(status, 429 | 500..);
        let is_silent = matches!(status, 409 | 429);
        let events = usize::from(!is_silent && !may_pass);
        assert_eq!(controller.store.is_busy(), may_pass, "{status}");
        assert_eq!(count(&questions, "/events"), events, "{status}");
        controller.look().await.unwrap();
        let events = usize::from(!is_silent);
        assert_eq!(controller.store.is_busy(), may_pass, "{status}");
        assert_eq!(count(&questions, "/events"), events, "{status}");
        controller.store.read(&controller.needed).await.unwrap();
        assert!(!controller.store.is_busy());
    }
}

#[tokio::test]
async fn an_event_that_the_server_does_not_take_is_tried_again_later() {
    let is_late = AtomicBool::new(true);
    let (connection, questions) = fake::serve(move |method, uri, _| match method {
        "POST" if uri.contains("/events") => match is_late.swap(false, Ordering::Relaxed) {
            true => refusal(503, "no leader"),
            false => (201, json!({"metadata": {}})),
        },
        "POST" => refusal(403, "above the ceiling"),
        _ if uri.contains("/pods") => page(&[pod_of("team")], ""),
        _ => page(&[], ""),
    });
    let mut controller = controller_of(connection);
    controller.list().await.unwrap();
    for events in [1, 2, 2] {
        controller.look().await.unwrap();
        assert_eq!(count(&questions, "/events"), events);
        controller.look().await.unwrap();
        assert_eq!(count(&questions, "/events"), events, "not by each look");
        let later = Instant::now() + reports::IN_VAIN;
        controller.store.reports.begin(later);
    }
}

#[tokio::test]
async fn a_template_that_a_failing_server_refuses_ends_the_watch_in_a_moment() {
    let (connection, questions) = fake::serve(|method, uri, _| match method {
        "GET" if uri.contains("watch=true") => {
            let mut pod = pod_of("bad");
            pod["metadata"]["resourceVersion"] = json!("7");
            (200, json!([{"type": "ADDED", "object": pod}]))
        }
        "GET" => page(&[], ""),
        _ => refusal(503, "no leader"),
    });
    let mut controller = controller_of(connection);
    controller.again_s = 0;
    let mut backoff = Backoff::default();
    let watched = controller.watch("1", 3600, &mut backoff).await.unwrap();
    assert!(matches!(watched, Watched::Until(version) if version == "7"));
    assert_eq!(count(&questions, "/resourceclaimtemplates"), 1);
    assert_eq!(count(&questions, "/events"), 0);
}

#[tokio::test]
async fn a_list_that_the_server_has_no_time_for_is_no_failure_of_the_look() {
    let is_late = AtomicBool::new(true);
    let (connection, questions) = fake::serve(move |_, _, _| {
        if is_late.fetch_not(Ordering::Relaxed) {
            return refusal(429, "not now");
        }
        page(&[], "")
    });
    let mut controller = controller_of(connection);
    controller.list().await.unwrap();
    controller.look().await.unwrap();
    assert_eq!(count(&questions, "GET"), 4);
}

#[tokio::test]
async fn a_list_whose_watch_is_refused_is_read_more_and_more_rarely() {
    let (connection, questions) = fake::serve(|_, uri, _| match uri.contains("watch=true") {
        true => refusal(403, "not these"),
        false => page(&[], ""),
    });
    let (mut controller, mut backoff) = (controller_of(connection), Backoff::default());
    for _list in 0..4 {
        controller.serve(&mut backoff).await.unwrap_err();
        backoff.next();
    }
    assert_eq!(count(&questions, "watch=true"), 4);
    let wait = backoff.next();
    assert!(wait > Duration::from_secs(4), "{wait:?}");
}
