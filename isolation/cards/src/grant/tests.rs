use super::*;
use crate::store::DiskStore;

fn sample() -> Grant {
    Grant {
        version: VERSION,
        key: ContainerKey::new("default", "c1").unwrap(),
        driver: DriverSpec::Sim {
            socket: "/run/cgpu/sim/sim.sock".into(),
        },
        driver_version: "570.195.03".to_owned(),
        layouts: None,
        cards: vec![CardGrant {
            uuid: GpuUuid::new("GPU-1").unwrap(),
            minor: 0,
            quota_bytes: 4 << 30,
        }],
        compute: ComputeTerms {
            policy: Some(ComputePolicy::Fixed),
            percent: Some(30),
            ..ComputeTerms::default()
        },
        claims: Vec::new(),
        backend: Backend::Broker,
        backend_reason: String::new(),
        isolation: Isolation::default(),
        frontend: Frontend {
            kind: FrontendKind::Shim,
            pid: 7,
        },
        bundle: Some("/bundle".into()),
        created_at_unix_ms: 1,
    }
}

#[test]
fn a_grant_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    sample().write(&DiskStore, dir.path()).unwrap();
    assert_eq!(Grant::read(dir.path()).unwrap(), sample());
}

#[test]
fn version_1_as_it_was_first_written_still_reads() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join(FILE_NAME),
        include_str!("../../tests/data/grant-v1.json"),
    )
    .unwrap();
    assert_eq!(Grant::read(dir.path()).unwrap(), sample());
}

#[test]
fn isolation_is_reported_in_a_word_and_reads_back_by_its_names() {
    let mut isolation = Isolation::default();
    assert_eq!(isolation.summary(), "on");
    isolation.weakened = vec![Weakness::CapSysAdmin, Weakness::Dri];
    assert_eq!(isolation.summary(), "off (cap-sys-admin, dri)");
    for weakness in Weakness::ALL {
        let text = serde_json::to_string(weakness).unwrap();
        assert_eq!(text, format!("\"{}\"", weakness.name()));
        assert_eq!(serde_json::from_str::<Weakness>(&text).unwrap(), *weakness);
    }
}

#[test]
fn a_backend_is_written_as_its_name() {
    for backend in [Backend::Broker, Backend::DriverLimit, Backend::Share] {
        assert_eq!(serde_json::to_value(backend).unwrap(), backend.name());
    }
}

#[test]
fn a_newer_grant_is_named_as_such_even_if_nothing_else_in_it_is_known() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join(FILE_NAME),
        r#"{"version": 2, "shape": "unknown"}"#,
    )
    .unwrap();
    let error = Grant::read(dir.path()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Newer {
                found: 2,
                known: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_truncated_grant_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FILE_NAME), r#"{"version": 1, "key""#).unwrap();
    assert!(matches!(
        Grant::read(dir.path()),
        Err(Error::Unreadable { .. })
    ));
}
