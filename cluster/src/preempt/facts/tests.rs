use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn read<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn pod(change: impl FnOnce(&mut Value)) -> lean::Pod {
    let mut pod = json!({
        "metadata": {"namespace": "team", "name": "a", "uid": "u", "labels": {"app": "x"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [], "priority": -3},
        "status": {"phase": "Running"},
    });
    change(&mut pod);
    read(pod)
}

fn budgets(all: &[(Value, i32)]) -> OfNamespaces {
    let mut budgets = OfNamespaces::default();
    for (selector, left) in all {
        budgets.add(read(json!({
            "metadata": {"namespace": "team", "name": "b"},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": left, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
        })));
    }
    budgets
}

#[test]
fn who_may_go_is_known_by_the_pod() {
    let none = OfNamespaces::default();
    let standing = |change: fn(&mut Value)| holder(pod(change), false, &none).standing;
    assert_eq!(standing(|_| ()), Standing::Evictable);
    assert_eq!(
        standing(|pod| pod["status"]["phase"] = json!("Succeeded")),
        Standing::Leaves
    );
    assert_eq!(
        standing(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
        Standing::Leaves
    );
    assert_eq!(
        standing(|pod| {
            pod["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]);
        }),
        Standing::Stays
    );
    assert_eq!(
        standing(
            |pod| pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"})
        ),
        Standing::Stays
    );
    assert_eq!(holder(pod(|_| ()), true, &none).standing, Standing::Stays);
    assert_eq!(holder(pod(|_| ()), false, &none).priority, -3);
}

#[test]
fn budgets_are_of_the_pods_that_they_select() {
    let budgets = budgets(&[
        (json!({"matchLabels": {"app": "x"}}), 0),
        (json!({"matchLabels": {"app": "y"}}), 0),
        (Value::Null, 5),
        (json!({}), 2),
        (
            json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["y"]}]}),
            1,
        ),
    ]);
    assert_eq!(budgets.left, [0, 0, 2, 1]);
    assert_eq!(holder(pod(|_| ()), false, &budgets).budgets, [0, 2, 3]);
    let elsewhere = pod(|pod| pod["metadata"]["namespace"] = json!("other"));
    assert_eq!(holder(elsewhere, false, &budgets).budgets, [0_usize; 0]);
    let unreadable = pod(|pod| pod["metadata"]["labels"] = json!({"app": "z".repeat(1 << 20)}));
    assert_eq!(
        holder(unreadable, false, &budgets).budgets,
        [0, 1, 2, 3],
        "of labels that are too long nobody knows"
    );
    let pending = pod(|pod| pod["status"]["phase"] = json!("Pending"));
    assert_eq!(holder(pending, false, &budgets).budgets, [0_usize; 0]);
}

#[test]
fn another_driver_s_devices_are_seen() {
    let claim = |driver: &str| -> lean::Claim {
        read(json!({
            "metadata": {"namespace": "team", "name": "c"},
            "spec": {},
            "status": {
                "allocation": {"devices": {"results": [{"driver": driver, "pool": "n1", "device": "d", "request": "r"}]}},
                "reservedFor": [{"resource": "pods", "name": "a", "uid": "u"}],
            },
        }))
    };
    let mut claims = Claims::default();
    claims.add(claim(DRIVER), &BTreeSet::new());
    assert!(claims.foreign.is_empty() && claims.shares.len() == 1);
    let named = BTreeSet::from([("team".to_owned(), "c".to_owned())]);
    claims.add(claim("nic.example.com"), &named);
    assert!(claims.foreign.contains("u") && claims.shares.len() == 1);
    assert_eq!(claims.of_waiting.len(), 1);
}
