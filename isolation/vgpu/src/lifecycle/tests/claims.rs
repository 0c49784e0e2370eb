//! Containers that come for what a cluster's scheduler gave.

use std::collections::BTreeMap;
use std::process::Stdio;

use cards::claims::{ClaimName, ClaimUid, Claims, Given, PodOfClaim, Record, Share};
use cards::{CardHealth, ComputeTerms, Grant};
use host_config::chain;

use super::*;
use crate::claims::{self, Answers};
use crate::{Requested, change, reclaim};

const POD: &str = "6d3e";

fn prepare(config: &Config, record: &Record) -> Result<(), Error> {
    Answers::ask(config)?.reserve(config, record)
}

fn record(uid: &str, gib: u64) -> Record {
    Record {
        version: 1,
        claim: ClaimName {
            namespace: "team-a".to_owned(),
            name: format!("gpu-{uid}"),
            uid: ClaimUid::new(uid).unwrap(),
        },
        node: "n1".to_owned(),
        pods: vec![PodOfClaim {
            uid: POD.to_owned(),
            name: "p1".to_owned(),
        }],
        requests: BTreeMap::from([(
            "vgpu".to_owned(),
            Given {
                shares: vec![Share {
                    id: "s-1".to_owned(),
                    card: GpuUuid::new("GPU-1").unwrap(),
                    device: "gpu-1".to_owned(),
                    memory_bytes: gib << 30,
                }],
                compute: ComputeTerms::default(),
                managed: None,
                share_group: None,
            },
        )]),
    }
}

impl TestHost {
    /// As containerd's CRI makes it, with the claim's CDI device.
    fn bundle_of_claim(&self, id: &str, pod: &str, claim: &str) -> PathBuf {
        let bundle = self.bundle(
            id,
            json!({
                "io.kubernetes.cri.container-type": "container",
                "io.kubernetes.cri.sandbox-id": format!("sandbox-of-{pod}"),
                "io.kubernetes.cri.container-name": "app",
                "io.kubernetes.cri.sandbox-name": "p1",
                "io.kubernetes.cri.sandbox-namespace": "team-a",
                "io.kubernetes.cri.sandbox-uid": pod,
            }),
        );
        let path = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let env = spec["process"]["env"].as_array_mut().unwrap();
        env.push(json!(format!("CGPU_CLAIM_0a0b0c0d={claim}/vgpu/s-1")));
        fs::write(&path, serde_json::to_vec(&spec).unwrap()).unwrap();
        bundle
    }

    fn create_of_claim(&self, id: &str, pod: &str, claim: &str) -> Result<Option<Created>, Error> {
        let bundle = self.bundle_of_claim(id, pod, claim);
        create(&self.config, &key(id), &bundle, FrontendKind::Shim)
    }

    fn is_prepared(&self, claim: &str) -> bool {
        let claims = Claims::of(&self.config.state_dir);
        claims
            .read(&ClaimUid::new(claim).unwrap())
            .unwrap()
            .is_some()
    }

    fn release_claim(&self, claim: &str) {
        claims::release(&self.config, &ClaimUid::new(claim).unwrap()).unwrap();
    }
}

#[test]
fn a_claim_is_reserved_before_its_container_and_outlives_it() {
    let host = TestHost::new();
    prepare(&host.config, &record("c-1", 20)).unwrap();
    // Nobody else gets it, and no reclaim takes it.
    assert_eq!(reclaim(&host.config).unwrap(), []);
    assert!(host.is_prepared("c-1"));
    let refused = host.create("plain", "25Gi").unwrap_err();
    assert!(chain(&refused).contains("4 GiB"), "{refused}");
    let refused = prepare(&host.config, &record("c-2", 5)).unwrap_err();
    assert!(
        chain(&refused).contains("request \"vgpu\" of claim team-a/gpu-c-2, device gpu-1"),
        "{}",
        chain(&refused)
    );

    let created = host.create_of_claim("1", POD, "c-1").unwrap().unwrap();
    let grant = Grant::read(host.config.state_dir.join("vgpus/default/1").as_path()).unwrap();
    assert_eq!(grant.claims[0].to_string(), "c-1/vgpu/s-1");
    assert_eq!(
        (grant.cards[0].minor, grant.cards[0].quota_bytes),
        (1, 20 << 30)
    );
    assert_eq!(host.reserved_mib(), 20 << 10);
    // A larger quota would be seen by no scheduler.
    let more = Requested {
        memory: Some("21Gi"),
        ..Requested::default()
    };
    let refused = change(&container(&host.config, &key("1")), &more).unwrap_err();
    assert!(
        chain(&refused).contains("more than the container's claim gives"),
        "{}",
        chain(&refused)
    );

    drop(created);
    release(&host.config, &key("1")).unwrap();
    assert!(
        host.is_prepared("c-1"),
        "a container that is started again finds it"
    );
    let again = host.create_of_claim("2", POD, "c-1").unwrap().unwrap();
    drop(again);
    release(&host.config, &key("2")).unwrap();
    host.release_claim("c-1");
    host.release_claim("c-1");
    prepare(&host.config, &record("c-2", 24)).unwrap();
    host.release_claim("c-2");
    host.assert_clean(&"claims");
}

#[test]
fn a_frontend_killed_at_any_step_leaves_the_claim_to_the_next_start() {
    for (at, step) in STEPS.iter().enumerate() {
        let host = TestHost::new();
        prepare(&host.config, &record("c-1", 20)).unwrap();
        let bundle = host.bundle_of_claim("killed", POD, "c-1");
        let play = format!("{}:{}:{at}", host.dir.path().display(), bundle.display());
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lifecycle::tests::play_frontend"])
            .env(PLAY_FRONTEND, play)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(9), "{step:?}");
        life::await_no_broker(&host);
        assert!(host.is_prepared("c-1"), "{step:?}");
        // Its container is made again, by another name.
        let vgpu = host.create_of_claim("next", POD, "c-1").unwrap();
        assert!(vgpu.is_some(), "{step:?}");
        assert_eq!(host.reserved_mib(), 20 << 10, "{step:?}");
        release(&host.config, &key("next")).unwrap();
        host.release_claim("c-1");
        host.assert_clean(step);
    }
}

#[test]
fn other_pods_and_second_containers_are_refused_and_leave_nothing() {
    let host = TestHost::new();
    prepare(&host.config, &record("c-1", 4)).unwrap();
    let foreign = host.create_of_claim("f", "other-pod", "c-1").unwrap_err();
    assert!(
        chain(&foreign).contains("is reserved for other pods"),
        "{}",
        chain(&foreign)
    );
    assert_eq!(foreign.reason(), "request");
    let first = host.create_of_claim("1", POD, "c-1").unwrap().unwrap();
    let second = host.create_of_claim("2", POD, "c-1").unwrap_err();
    for part in [
        "container default/1 has the share",
        "resources.claims[].request",
    ] {
        assert!(chain(&second).contains(part), "{}", chain(&second));
    }
    assert_eq!(host.reserved_mib(), 4 << 10);
    drop(first);
    release(&host.config, &key("1")).unwrap();
    // Another pod that the claim is reserved for too.
    let mut shared = record("c-1", 4);
    shared.pods.push(PodOfClaim {
        uid: "other-pod".to_owned(),
        name: "p2".to_owned(),
    });
    prepare(&host.config, &shared).unwrap();
    let other = host
        .create_of_claim("3", "other-pod", "c-1")
        .unwrap()
        .unwrap();
    host.create_of_claim("4", POD, "c-1").unwrap_err();
    drop(other);
    release(&host.config, &key("3")).unwrap();
    host.release_claim("c-1");
    host.create_of_claim("5", POD, "c-1").unwrap_err();
    host.assert_clean(&"refused");
}

#[test]
fn a_claim_whose_card_is_unhealthy_by_now_starts_nothing() {
    let host = TestHost::new();
    prepare(&host.config, &record("c-1", 4)).unwrap();
    let unhealthy = CardHealth {
        version: 1,
        uuid: GpuUuid::new("GPU-1").unwrap(),
        reason: "Xid 79".to_owned(),
        since_unix_ms: 0,
    };
    cards::health::report(&host.config.state_dir, &unhealthy).unwrap();
    let refused = host.create_of_claim("1", POD, "c-1").unwrap_err();
    assert!(chain(&refused).contains("Xid 79"), "{}", chain(&refused));
    host.assert_clean(&"unhealthy");
}

/// Agents that prepare, containers outside of the cluster, and containers that come for their claims, all at once.
#[test]
fn twenty_at_once_never_have_more_than_the_card() {
    let host = TestHost::new();
    let (prepared, plain) = std::thread::scope(|scope| {
        let host = &host;
        let claims: Vec<_> = (0..10)
            .map(|at| {
                let claim = record(&format!("c-{at}"), 5);
                scope.spawn(move || prepare(&host.config, &claim).is_ok().then_some(at))
            })
            .collect();
        let plain: Vec<_> = (0..10)
            .map(|at| scope.spawn(move || host.create(&format!("p{at}"), "5Gi").ok()))
            .collect();
        let plain = plain.into_iter().filter_map(|one| one.join().unwrap());
        let plain: Vec<_> = plain.collect();
        let claims = claims.into_iter().filter_map(|one| one.join().unwrap());
        (claims.collect::<Vec<usize>>(), plain)
    });
    // Plain ones may be on either card; eight of 5 GiB are all that two cards of 24 have.
    let granted = prepared.len() + plain.len();
    assert!(
        prepared.len() <= 4 && granted <= 8,
        "{prepared:?} {granted}"
    );
    for at in &prepared {
        let id = format!("t{at}");
        let created = host
            .create_of_claim(&id, POD, &format!("c-{at}"))
            .unwrap()
            .unwrap();
        drop(created);
        release(&host.config, &key(&id)).unwrap();
        host.release_claim(&format!("c-{at}"));
    }
    drop(plain);
    for at in 0..10 {
        release(&host.config, &key(&format!("p{at}"))).unwrap();
    }
    host.assert_clean(&"twenty");
}
