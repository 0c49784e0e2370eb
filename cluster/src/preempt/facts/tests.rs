use serde_json::{Value, json};

use super::*;

fn read<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn pod(change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {"namespace": "team", "name": "a", "uid": "u", "labels": {"app": "x"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [], "priority": -3},
        "status": {"phase": "Running"},
    });
    change(&mut pod);
    read(pod)
}

fn budget(selector: Value, left: i32) -> Budget {
    Budget::of(read(json!({
        "metadata": {"namespace": "team", "name": "b"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": left, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    })))
    .unwrap()
}

#[test]
fn who_may_go_is_known_by_the_pod() {
    let standing = |change: fn(&mut Value)| holder(pod(change), false, &[]).standing;
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
        standing(|pod| pod["metadata"]["annotations"] = json!({MIRROR: "hash"})),
        Standing::Stays
    );
    assert_eq!(holder(pod(|_| ()), true, &[]).standing, Standing::Stays);
    assert_eq!(holder(pod(|_| ()), false, &[]).priority, -3);
}

#[test]
fn budgets_are_of_the_pods_that_they_select() {
    let budgets = [
        budget(json!({"matchLabels": {"app": "x"}}), 0),
        budget(json!({"matchLabels": {"app": "y"}}), 0),
        budget(json!({}), 2),
        budget(
            json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["y"]}]}),
            1,
        ),
    ];
    assert_eq!(holder(pod(|_| ()), false, &budgets).budgets, [0, 2, 3]);
    let elsewhere = pod(|pod| pod["metadata"]["namespace"] = json!("other"));
    assert_eq!(holder(elsewhere, false, &budgets).budgets, [0_usize; 0]);
    let pending = pod(|pod| pod["status"]["phase"] = json!("Pending"));
    assert_eq!(holder(pending, false, &budgets).budgets, [0_usize; 0]);
}

#[test]
fn another_driver_s_devices_are_seen() {
    let claim = |driver: &str| -> ResourceClaim {
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
