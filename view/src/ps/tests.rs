use control::FoldedCard;

use super::*;
use serde_json::json;

fn granted(status: Option<Status>, broker: BrokerState) -> VgpuState {
    let grant = serde_json::from_value(json!({
        "version": 1,
        "key": {"namespace": "default", "id": "c1"},
        "driver": {"kind": "sim", "socket": "/run/cgpu/sim/sim.sock"},
        "driver_version": "570.195.03",
        "cards": [{"uuid": "GPU-1", "minor": 0, "quota_bytes": 4u64 << 30}],
        "compute": {"policy": "fixed", "percent": 30, "weight": null, "priority": "normal"},
        "frontend": {"kind": "shim", "pid": 7},
        "bundle": "/bundle",
        "created_at_unix_ms": 1,
    }))
    .unwrap();
    VgpuState {
        grant,
        broker,
        life: Life::Live,
        status,
        names: serde_json::from_value(json!({"name": "web"})).unwrap(),
        own: Some(OwnUsage {
            cpu_ns: Some(1_250_000_000),
            memory_bytes: Some(6 << 20),
            threads: Some(14),
        }),
    }
}

fn status() -> Status {
    serde_json::from_value(json!({
        "version": 2, "container": "default/c1", "driver": "sim 570.195.03",
        "cards": [{"uuid": "GPU-1", "minor": 0, "quota_bytes": 4u64 << 30, "used_bytes": 64 << 20,
                   "peak_bytes": 128 << 20, "refused": 2, "compute": {
                       "terms": {"policy": "fixed", "percent": 30, "weight": 1, "priority": "normal"}, "enforcement_level": "gate", "reason": null,
                       "holds": true, "entitlement_ppm": 300_000, "gate": {"state": "open"}, "window_ns": 100_000_000, "slice_us": 0,
                       "tenants": 2, "ratio_enforced": null, "latency": {"mean_ns": 160_000, "p50_ns": 1, "p99_ns": 1, "max_ns": 1},
                       "counts": {"calls": 40, "slow": 0, "refused": 0, "lost": 0, "bad_records": 0, "late": 0, "alarms": 0}, "used_ns": 1_500_000_000_u64, "used_ppm": 299_000}}],
        "processes": [{"pid": 42, "name": "train", "cards": [{"uuid": "GPU-1", "used_bytes": 64 << 20}]}],
        "calls": {"total": 9, "answered": 1, "executed": 8, "continued": 0, "refused": 0, "replayed": 0},
        "listeners": 1, "something_newer": true,
        "broker": {"supervisor_pid": 98, "pid": 99, "replaced": 0, "started_at_unix_ms": 1},
        "host_memory": {"limit_bytes": 8u64 << 30, "used_bytes": 32 << 20, "peak_bytes": 48 << 20, "refused": 1},
        "health": {"hung_calls": 1, "violations": 0, "incidents": {"xid": 2, "card_lost": 0, "hung_call": 3}},
        "watching": {"sums": false, "sums_reason": "the driver has not answered within 10000 ms", "incidents": "kernel log"},
        "events": [{"at_unix_ms": 1, "kind": "of_a_newer_version", "text": ""}],
    }))
    .unwrap()
}

#[test]
fn the_document_is_as_scripts_know_it() {
    let mut loose = granted(None, BrokerState::Gone);
    loose.life = Life::Stale;
    loose.grant.isolation = serde_json::from_value(json!({
        "mode": "compat", "managed": "deny", "share_group": "default/train",
        "weakened": ["cap-sys-admin", "dri"],
    }))
    .unwrap();
    let pod = json!({"namespace": "team-a", "name": "p1", "container": "app"});
    loose.names = serde_json::from_value(json!({"pod": pod})).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        state_dir: folder.path().to_owned(),
        ..Config::default()
    };
    let reserved = reserved(&config, &loose.grant).unwrap();
    let running = granted(Some(status()), BrokerState::Alive);
    let document = Ps {
        unread: Vec::new(),
        version: JSON_VERSION,
        vgpus: vec![
            one(&running, Some(99), &reserved),
            one(&loose, Some(99), &reserved),
        ],
        elsewhere: Some(vec!["/run/cgpu/vgpus/moby/old".into()]),
    };
    crate::snapshot::check(&document, "ps");
}

#[test]
fn what_a_broker_lacks_is_reported_and_what_others_hold_comes_through() {
    let mut status = status();
    status.broker.supervisor_pid = 0;
    status.health.unwritten = Some("No space left on device".to_owned());
    status.health.short_of = Some("no descriptor: Too many open files".to_owned());
    status.health.unreachable = Some("executor at /x: connect".to_owned());
    status.folded.ended = vec![FoldedCard {
        uuid: "GPU-1".to_owned(),
        used_bytes: 7,
        processes: 19_998,
    }];
    let vgpu = one(&granted(Some(status), BrokerState::Alive), None, &[]);
    let health = vgpu.health.unwrap();
    assert_eq!(vgpu.state, State::DriverUnreachable);
    for part in [
        "driver unreachable (executor at /x",
        "no descriptor",
        "state not written (No space",
        "2 Xids",
        "no supervisor",
    ] {
        assert!(health.contains(part), "{health}");
    }
    assert_eq!(vgpu.other_processes.unwrap().ended[0].processes, 19_998);
}

#[test]
fn the_state_follows_the_locks_and_the_answer() {
    for (answer, broker, life, state) in [
        (
            Some(status()),
            BrokerState::Alive,
            Life::Live,
            State::Running,
        ),
        (None, BrokerState::Alive, Life::Live, State::Silent),
        (None, BrokerState::Gone, Life::Live, State::BrokerGone),
        (None, BrokerState::Gone, Life::Stale, State::Stale),
        (None, BrokerState::None, Life::Live, State::Running),
        (None, BrokerState::None, Life::Stale, State::Stale),
    ] {
        let mut vgpu = granted(answer, broker);
        vgpu.life = life;
        assert_eq!(one(&vgpu, None, &[]).state, state);
    }
}
