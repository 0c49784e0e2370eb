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
    let connection = Arc::new(connection);
    let controller = Controller {
        store: Store::new(Arc::clone(&connection)),
        connection,
        pace: TemplatesPace::default(),
        needed: Needed::default(),
        unneeded: BTreeMap::new(),
    };
    (controller, questions)
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
