use control::{BrokerStatus, CallCounts, CardStatus, IncidentCounts};
use serde_json::json;

use super::*;

fn state(status: Option<Status>) -> VgpuState {
    let grant = serde_json::from_value(json!({
        "version": 1,
        "key": {"namespace": "default", "id": "c1"},
        "driver": {"kind": "kernel"},
        "driver_version": "570.195.03",
        "cards": [{"uuid": "GPU-1", "minor": 0, "quota_bytes": 4096}],
        "compute": {"policy": null, "percent": null, "weight": null, "priority": "normal"},
        "frontend": {"kind": "shim", "pid": 7},
        "bundle": null,
        "created_at_unix_ms": 1,
    }))
    .unwrap();
    VgpuState {
        grant,
        broker: BrokerState::Alive,
        life: vgpu::Life::Live,
        status,
        own: None,
        names: Names::default(),
    }
}

fn status() -> Status {
    Status {
        cards: vec![CardStatus {
            uuid: "GPU-1".to_owned(),
            quota_bytes: 8192,
            used_bytes: 10,
            peak_bytes: 20,
            refused: 3,
            ..CardStatus::default()
        }],
        calls: CallCounts {
            total: 7,
            answered: 5,
            refused: 2,
            ..CallCounts::default()
        },
        broker: BrokerStatus {
            replaced: 1,
            pid: 5,
            ..BrokerStatus::default()
        },
        health: HealthStatus {
            violations: 1,
            incidents: IncidentCounts {
                xid: 2,
                ..IncidentCounts::default()
            },
            ..HealthStatus::default()
        },
        ..Status::default()
    }
}

#[test]
fn what_a_silent_broker_would_know_is_absent() {
    let silent = one(&state(None), &[]);
    assert_eq!((silent.is_up, &silent.reported), (Some(false), &None));
    let slice = &silent.slices[0];
    assert_eq!(
        (slice.quota_bytes, slice.row.used_bytes, slice.row.refused),
        (None, None, None)
    );
    assert_eq!(slice.row.quota_bytes, 4096, "the grant has it");
    // A container whose backend has no broker lacks none.
    let without = VgpuState {
        broker: BrokerState::None,
        ..state(None)
    };
    let without = one(&without, &[]);
    assert_eq!(without.is_up, None);
    assert_eq!(without.slices[0].quota_bytes, Some(4096));
}

#[test]
fn what_the_broker_reports_counts() {
    let container = one(&state(Some(status())), &[]);
    assert_eq!((container.is_up, container.mode), (Some(true), "strict"));
    let slice = &container.slices[0];
    assert_eq!(
        (slice.quota_bytes, slice.row.quota_bytes, slice.row.refused),
        (Some(8192), 4096, Some(3))
    );
    let reported = container.reported.unwrap();
    let calls = &reported.calls;
    assert_eq!(calls.iter().map(|(_, count)| count).sum::<u64>(), 7);
    assert!(calls.contains(&("refused", 2)) && calls.contains(&("replayed", 0)));
    assert_eq!(
        (
            reported.replaced,
            reported.health.violations,
            reported.health.incidents.xid
        ),
        (1, 1, 2)
    );
}

#[test]
fn a_container_has_its_engines_name_or_its_id_and_its_pods_names() {
    let named = |names: serde_json::Value| {
        let names = serde_json::from_value(names).unwrap();
        let container = one(
            &VgpuState {
                names,
                ..state(None)
            },
            &[],
        );
        (container.name, container.pod.is_some())
    };
    let pod = json!({"namespace": "team-a", "name": "p1", "container": "app"});
    assert_eq!(named(json!({})), ("c1".to_owned(), false));
    assert_eq!(named(json!({"name": "web"})), ("web".to_owned(), false));
    assert_eq!(named(json!({"pod": pod})), (String::new(), true));
}

#[test]
fn a_container_that_cannot_be_read_costs_no_other_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let config: Config = Config {
        state_dir: folder.path().to_owned(),
        ..Config::default()
    };
    assert_eq!(containers(&config).unwrap(), Containers::default());
    let mut grant = serde_json::to_value(&state(None).grant).unwrap();
    for (id, change) in [
        ("good", None),
        ("newer", Some(json!(99))),
        ("half", Some(json!("{"))),
    ] {
        let dir = folder.path().join("vgpus/default").join(id);
        std::fs::create_dir_all(&dir).unwrap();
        grant["key"]["id"] = json!(id);
        grant["version"] = change.clone().unwrap_or_else(|| json!(1));
        let mut text = serde_json::to_string(&grant).unwrap();
        if change == Some(json!("{")) {
            text.truncate(20);
        }
        std::fs::write(dir.join("grant.json"), text).unwrap();
    }
    let found = containers(&config).unwrap();
    let ids: Vec<&str> = found
        .containers
        .iter()
        .map(|container| container.container.as_str())
        .collect();
    assert_eq!((ids, found.unread, found.silent), (vec!["good"], 2, 0));
}
