//! Pointers that are followed, and those that a hostile pod's author writes.

use std::fs;

use cards::ManagedMemory;
use cards::claims::{ClaimName, ClaimUid, PodOfClaim};
use cards::grant::{ComputePolicy, Priority};
use host_config::chain;
use serde_json::{Value, json};

use super::super::Whose;
use super::*;

const POD: &str = "6d3e-pod";
const MIB: u64 = 1 << 20;

struct Node {
    dir: tempfile::TempDir,
    config: Config,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            state_dir: dir.path().to_owned(),
            ..Config::default()
        };
        fs::create_dir(dir.path().join("claims")).unwrap();
        Self { dir, config }
    }

    /// As the agent writes it.
    fn record(&self, uid: &str, requests: &[(&str, Given)]) {
        let record = Record {
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
            requests: requests
                .iter()
                .map(|(name, given)| ((*name).to_owned(), given.clone()))
                .collect(),
        };
        let path = self.dir.path().join(format!("claims/{uid}.json"));
        fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
    }

    fn read(&self, engine: Value, of_pod: Value, env: &[&str]) -> Result<Option<Request>, String> {
        let mut annotations = of_pod;
        for (key, value) in engine.as_object().unwrap() {
            annotations[key] = value.clone();
        }
        let spec = json!({
            "annotations": annotations,
            "process": {"env": env},
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
        });
        let whose = Whose {
            id: Some("c0ffee"),
            bundle: None,
        };
        Request::from_spec(&self.config, whose, &spec).map_err(|error| chain(&error))
    }
}

fn given(shares: &[(u32, u64)]) -> Given {
    let share = |(card, mib): &(u32, u64)| Share {
        id: format!("s-{card}-{mib}"),
        card: cards::GpuUuid::new(format!("GPU-{card}")).unwrap(),
        device: format!("gpu-{card}"),
        memory_bytes: mib * MIB,
    };
    Given {
        shares: shares.iter().map(share).collect(),
        compute: ComputeTerms::default(),
        managed: None,
        share_group: None,
    }
}

fn containerd(uid: &str) -> Value {
    json!({
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.sandbox-id": "own",
        "io.kubernetes.cri.sandbox-name": "p1",
        "io.kubernetes.cri.sandbox-namespace": "team-a",
        "io.kubernetes.cri.sandbox-uid": uid,
        "io.kubernetes.cri.container-name": "app",
    })
}

fn crio(uid: &str) -> Value {
    json!({
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.ContainerID": "c0ffee",
        "io.kubernetes.cri-o.SandboxID": "own",
        "io.kubernetes.cri-o.SandboxName": format!("k8s_p1_team-a_{uid}_0"),
        "io.kubernetes.cri-o.Metadata": r#"{"name":"app"}"#,
        "io.kubernetes.container.name": "app",
    })
}

#[test]
fn a_container_gets_what_its_claims_give_whatever_its_engine() {
    let node = Node::new();
    let terms = Given {
        compute: ComputeTerms {
            percent: Some(30),
            policy: Some(ComputePolicy::Soft),
            priority: Priority::High,
            ..ComputeTerms::default()
        },
        ..given(&[(0, 4096), (1, 4096)])
    };
    let other = Given {
        shares: given(&[(1, 1024)]).shares,
        ..terms.clone()
    };
    node.record("c-1", &[("vgpu", terms)]);
    node.record("c-2", &[("any/small", other)]);
    let env = [
        "PATH=/bin",
        "CGPU_CLAIM_0000aaaa=c-1/vgpu/s-0-4096",
        "CGPU_CLAIM_0000bbbb=c-1/vgpu/s-1-4096",
        // A variable twice is one share.
        "CGPU_CLAIM_0000bbbb=c-1/vgpu/s-1-4096",
        "CGPU_CLAIM_0000cccc=c-2/any/small/s-1-1024",
        // What an image or the pod's author says of amounts is not read beside a claim.
        "ALIYUN_COM_GPU_MEM_CONTAINER=1000",
        "ALIYUN_COM_GPU_MEM_DEV=24",
        "CGPU_DISABLE=1",
        "NVIDIA_VISIBLE_DEVICES=all",
    ];
    for engine in [containerd(POD), crio(POD)] {
        let request = node.read(engine, json!({}), &env).unwrap().unwrap();
        let card = |index: u32| cards::GpuUuid::new(format!("GPU-{index}")).unwrap();
        let parts = vec![(card(0), 4096 * MIB), (card(1), 5120 * MIB)];
        assert_eq!(request.request.amount, Amount::PerCard(parts));
        assert_eq!(request.claims.len(), 3);
        assert_eq!(request.compute.percent, Some(30));
        assert_eq!(request.compute.priority, Priority::High);
        assert_eq!(request.pod_namespace.as_deref(), Some("team-a"));
        assert!(request.pod.is_some());
    }
}

#[test]
fn a_pointer_to_what_is_not_the_pod_s_is_refused_with_the_variable_and_the_claim() {
    let node = Node::new();
    node.record("c-1", &[("vgpu", given(&[(0, 4096)]))]);
    let good = "CGPU_CLAIM_0000aaaa=c-1/vgpu/s-0-4096";
    let cases = [
        // Another pod's claim, by the uid that the engine writes.
        (
            containerd("other"),
            good,
            "claim team-a/gpu-c-1 is reserved for other pods: pod other",
        ),
        (crio("other"), good, "is reserved for other pods"),
        // No pod, or an engine that does not say which.
        (json!({}), good, "names no pod's uid"),
        (
            json!({"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": "own"}),
            good,
            "names no pod's uid",
        ),
        // A label alone is the author's.
        (
            json!({"io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.cri-o.SandboxID": "own",
                "io.kubernetes.cri-o.ContainerID": "c0ffee", "io.kubernetes.pod.uid": POD}),
            good,
            "names no pod's uid",
        ),
        (
            containerd(POD),
            "CGPU_CLAIM_0000aaaa=c-9/vgpu/s-0-4096",
            "claim c-9 is not prepared on this node",
        ),
        (
            containerd(POD),
            "CGPU_CLAIM_0000aaaa=c-1/vgpu/s-1-1",
            "has no share c-1/vgpu/s-1-1",
        ),
        (
            containerd(POD),
            "CGPU_CLAIM_0000aaaa=c-1/other/s-0-4096",
            "has no share",
        ),
        (
            containerd(POD),
            "CGPU_CLAIM_0000aaaa=../../etc/passwd/x/y",
            "names no share",
        ),
        (containerd(POD), "CGPU_CLAIM_=", "names no share"),
        (
            containerd(POD),
            "CGPU_CLAIM_X=8Gi",
            "<uid of the claim>/<request>/<share>",
        ),
    ];
    for (engine, variable, part) in cases {
        let error = node.read(engine, json!({}), &[variable]).unwrap_err();
        assert!(error.contains(part), "{variable}: {error}");
        assert!(error.contains("CGPU_CLAIM_"), "{error}");
    }
    // An author's label that contradicts what CRI-O says elsewhere.
    let mut engine = crio(POD);
    engine["io.kubernetes.pod.uid"] = json!("other");
    node.read(engine, json!({}), &[good]).unwrap_err();
    // Both engines' keys.
    let mut engine = crio(POD);
    engine["io.kubernetes.cri.sandbox-uid"] = json!(POD);
    node.read(engine, json!({}), &[good]).unwrap_err();
    // More than a container needs.
    let many: Vec<(u32, u64)> = (1..=129).map(|mib| (0, mib)).collect();
    node.record("c-2", &[("vgpu", given(&many))]);
    let variables: Vec<String> = many
        .iter()
        .map(|(card, mib)| format!("CGPU_CLAIM_{mib:08x}=c-2/vgpu/s-{card}-{mib}"))
        .collect();
    let variables: Vec<&str> = variables.iter().map(String::as_str).collect();
    let error = node
        .read(containerd(POD), json!({}), &variables)
        .unwrap_err();
    assert!(error.contains("at most 128"), "{error}");
}

#[test]
fn a_record_that_cannot_be_read_starts_nothing() {
    let node = Node::new();
    let path = node.dir.path().join("claims/c-1.json");
    for text in ["{", r#"{"version": 2}"#, "null"] {
        fs::write(&path, text).unwrap();
        let variable = ["CGPU_CLAIM_0000aaaa=c-1/vgpu/s-0-4096"];
        node.read(containerd(POD), json!({}), &variable)
            .unwrap_err();
    }
}

#[test]
fn beside_a_claim_annotations_hold_more_strictly_and_ask_for_nothing() {
    let node = Node::new();
    let strict = Given {
        managed: Some(ManagedMemory::Charge),
        share_group: Some("train".to_owned()),
        ..given(&[(0, 4096)])
    };
    node.record("c-1", &[("vgpu", strict)]);
    let variable = ["CGPU_CLAIM_0000aaaa=c-1/vgpu/s-0-4096"];
    for (key, value) in [
        ("cgpu.io/memory", "200Gi"),
        ("cgpu.io/memory.app", "1Gi"),
        ("cgpu.io/cards", "0,"),
        ("cgpu.io/compute", "100"),
        ("cgpu.io/weight", "100"),
        ("cgpu.io/policy", "native"),
        ("cgpu.io/priority", "high"),
        ("cgpu.io/share-group", "others"),
    ] {
        let of_pod = json!({ key: value });
        let error = node.read(containerd(POD), of_pod, &variable).unwrap_err();
        for part in [value, "gpu-c-1", "cgpu.io/managed and cgpu.io/on-violation"] {
            assert!(error.contains(part), "{key}: {error}");
        }
    }
    let read = |key: &str, value: &str| {
        let request = node.read(containerd(POD), json!({ key: value }), &variable)?;
        Ok::<_, String>(request.unwrap().isolation)
    };
    let isolation = read("cgpu.io/managed", "deny").unwrap();
    assert_eq!(isolation.managed, ManagedMemory::Deny);
    assert_eq!(isolation.share_group.as_deref(), Some("train"));
    let loose = read("cgpu.io/managed", "allow").unwrap_err();
    assert!(loose.contains("charge"), "{loose}");
    // A claim that is looser than the host.
    let mut node = node;
    node.config.isolation.managed = ManagedMemory::Deny;
    let error = node
        .read(containerd(POD), json!({}), &variable)
        .unwrap_err();
    assert!(error.contains("deny"), "{error}");
}

#[test]
fn requests_of_different_terms_are_not_one_container_s() {
    let node = Node::new();
    let high = Given {
        compute: ComputeTerms {
            priority: Priority::High,
            ..ComputeTerms::default()
        },
        ..given(&[(1, 4096)])
    };
    node.record("c-1", &[("one", given(&[(0, 4096)])), ("two", high)]);
    let both = [
        "CGPU_CLAIM_1=c-1/one/s-0-4096",
        "CGPU_CLAIM_2=c-1/two/s-1-4096",
    ];
    let error = node.read(containerd(POD), json!({}), &both).unwrap_err();
    assert!(
        error.contains("\"one\"") && error.contains("\"two\""),
        "{error}"
    );
    for one in both {
        node.read(containerd(POD), json!({}), &[one])
            .unwrap()
            .unwrap();
    }
}

#[test]
fn a_sandbox_that_points_at_a_claim_is_none() {
    let node = Node::new();
    node.record("c-1", &[("vgpu", given(&[(0, 4096)]))]);
    let mut engine = containerd(POD);
    engine["io.kubernetes.cri.container-type"] = json!("sandbox");
    engine["io.kubernetes.cri.sandbox-id"] = json!("c0ffee");
    let variable = ["CGPU_CLAIM_0000aaaa=c-1/vgpu/s-0-4096"];
    node.read(engine, json!({}), &variable).unwrap_err();
}
