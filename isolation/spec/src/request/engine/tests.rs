//! Pods whose authors write what only an engine writes.

use cards::Names;
use cards::placement::Amount;
use serde_json::json;

use super::super::{PodPlace, Request, Whose};
use super::*;

const ID: &str = "c0ffee";
const VICTIM: &str = "5a4d";

/// What containerd writes into a container, below it what a pod's author wrote: containerd's own win.
fn containerd<'a>(of_pod: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    over(
        of_pod,
        &[
            ("io.kubernetes.cri.container-type", "container"),
            ("io.kubernetes.cri.sandbox-id", "own"),
            ("io.kubernetes.cri.sandbox-name", "p1"),
            ("io.kubernetes.cri.sandbox-namespace", "team-a"),
            ("io.kubernetes.cri.sandbox-uid", "u1"),
            ("io.kubernetes.cri.container-name", "app"),
            ("io.kubernetes.cri.image-name", "app:1"),
        ],
    )
}

/// The same of CRI-O, with the labels that the kubelet gives.
fn crio<'a>(of_pod: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    over(
        of_pod,
        &[
            ("io.kubernetes.cri-o.ContainerType", "container"),
            ("io.kubernetes.cri-o.ContainerID", ID),
            ("io.kubernetes.cri-o.SandboxID", "own"),
            ("io.kubernetes.cri-o.SandboxName", "k8s_p1_team-a_u1_0"),
            ("io.kubernetes.cri-o.Metadata", r#"{"name":"app"}"#),
            ("io.kubernetes.container.name", "app"),
            ("io.kubernetes.pod.namespace", "team-a"),
        ],
    )
}

/// CRI-O's sandbox: the pod's annotations are written over its own.
fn crio_sandbox<'a>(of_pod: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    over(
        &[
            ("io.kubernetes.cri-o.ContainerType", "sandbox"),
            ("io.kubernetes.cri-o.ContainerID", ID),
            ("io.kubernetes.cri-o.SandboxID", ID),
            ("io.kubernetes.cri-o.SandboxName", "k8s_p1_team-a_u1_0"),
            ("io.kubernetes.cri-o.KubeName", "p1"),
            ("io.kubernetes.cri-o.NamespaceOptions", "{}"),
        ],
        of_pod,
    )
}

fn over<'a>(below: &[(&'a str, &'a str)], above: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let hidden = |key: &str| above.iter().any(|(other, _)| *other == key);
    let mut all: Vec<_> = below
        .iter()
        .filter(|(key, _)| !hidden(key))
        .copied()
        .collect();
    all.extend(above);
    all
}

fn read_with(
    annotations: &[(&str, &str)],
    environment: &[&str],
    devices: Value,
) -> Result<Option<Request>, String> {
    let annotations: serde_json::Map<String, Value> = annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    let spec = json!({
        "annotations": annotations,
        "process": {"env": environment},
        "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}], "devices": devices},
    });
    let whose = Whose {
        id: Some(ID),
        bundle: None,
    };
    Request::from_spec(&Config::default(), whose, &spec).map_err(|error| host_config::chain(&error))
}

fn read(annotations: &[(&str, &str)]) -> Result<Option<Request>, String> {
    read_with(annotations, &[], json!([]))
}

const ASKS: (&str, &str) = ("cgpu.io/memory", "4Gi");

#[test]
fn a_sandbox_is_left_alone_with_what_its_pod_asks_for() {
    let of_containerd = [
        ASKS,
        ("io.kubernetes.cri.container-type", "sandbox"),
        ("io.kubernetes.cri.sandbox-id", ID),
        ("io.kubernetes.cri.sandbox-namespace", "team-a"),
    ];
    assert_eq!(read(&of_containerd), Ok(None));
    assert_eq!(read(&crio_sandbox(&[ASKS])), Ok(None));
    for annotations in [containerd(&[ASKS]), crio(&[ASKS])] {
        let request = read(&annotations).unwrap().unwrap();
        assert_eq!(request.request.amount, Amount::TotalBytes(4 << 30));
        assert_eq!(request.pod_namespace.as_deref(), Some("team-a"));
        let place = PodPlace {
            sandbox: "own".to_owned(),
            container: "app".to_owned(),
            amount: super::super::AmountOf::Pod,
        };
        assert_eq!(request.pod, Some(place));
    }
}

#[test]
fn a_pod_that_writes_the_other_engine_s_keys_is_refused() {
    for key in CONTAINERD {
        for value in ["sandbox", VICTIM, "team-b", ""] {
            let error = read(&crio(&[ASKS, (key, value)])).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
        read(&crio_sandbox(&[ASKS, (key, "sandbox")])).unwrap_err();
    }
    for key in CRIO {
        let error = read(&containerd(&[ASKS, (key, "sandbox")])).unwrap_err();
        assert!(error.contains(key), "{error}");
    }
    // What pods may write, engines read.
    for (key, value) in [
        ("io.kubernetes.cri.rdt-class", "gold"),
        ("io.kubernetes.cri.blockio-class", "slow"),
    ] {
        assert!(read(&crio(&[ASKS, (key, value)])).unwrap().is_some());
    }
    let userns = ("io.kubernetes.cri-o.userns-mode", "auto");
    assert!(read(&containerd(&[ASKS, userns])).unwrap().is_some());
}

#[test]
fn what_asks_and_only_reports_that_it_is_a_sandbox_is_refused() {
    for (kind, sandbox) in [
        (CONTAINERD_TYPE, CONTAINERD_SANDBOX),
        (CRIO_TYPE, CRIO_SANDBOX),
    ] {
        let reports = (kind, "sandbox");
        let plugin = [
            "ALIYUN_COM_GPU_MEM_CONTAINER=4",
            "ALIYUN_COM_GPU_MEM_DEV=24",
        ];
        // Without any word of which, and of another one's.
        let error = read(&[ASKS, reports]).unwrap_err();
        assert!(
            error.contains(kind) && error.contains("asks for a vGPU"),
            "{error}"
        );
        read(&[ASKS, reports, (sandbox, VICTIM)]).unwrap_err();
        read(&[("cgpu.io/memory.app", "4Gi"), reports]).unwrap_err();
        let itself = [reports, (sandbox, ID)];
        read_with(&itself, &plugin, json!([])).unwrap_err();
        read_with(&[reports], &plugin, json!([])).unwrap_err();
        let asking = [ASKS, reports, (sandbox, ID)];
        for device in [
            json!({"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}),
            json!({"path": "/dev/x", "type": "c", "major": 195, "minor": 0}),
            json!({"path": "/dev/../dev/nvidia-uvm", "type": "c", "major": 511, "minor": 0}),
        ] {
            read_with(&asking, &[], json!([device])).unwrap_err();
        }
        read(&[ASKS, reports, (sandbox, ID), (CONTAINERD_NAME, "app")]).unwrap_err();
        // Nobody asks, nobody is limited.
        assert_eq!(read(&[reports]), Ok(None));
    }
}

#[test]
fn a_sandbox_that_plays_a_container_is_refused() {
    let plays = (CRIO_TYPE, "container");
    for forged in [
        vec![ASKS, plays],
        vec![ASKS, plays, (CRIO_SANDBOX, VICTIM)],
        vec![ASKS, plays, (CRIO_SANDBOX, VICTIM), (LABEL_NAME, "app")],
        vec![ASKS, (CRIO_SANDBOX, VICTIM)],
    ] {
        read(&crio_sandbox(&forged)).expect_err(&format!("{forged:?}"));
    }
    let error = read(&[ASKS, plays, (CRIO_SANDBOX, ID), (LABEL_NAME, "app")]).unwrap_err();
    assert!(error.contains(CRIO_SANDBOX), "{error}");
}

#[test]
fn nobody_takes_another_s_name_amount_or_group() {
    // CRI-O without the kubelet's labels: the pod's own words are then the only ones.
    let bare = |of_pod: &[(&'static str, &'static str)]| {
        let mut all = over(of_pod, &crio(&[]));
        let written: Vec<&str> = of_pod.iter().map(|(key, _)| *key).collect();
        all.retain(|(key, _)| ![LABEL_NAME, LABEL_NAMESPACE].contains(key));
        all.extend(of_pod.iter().filter(|(key, _)| {
            [LABEL_NAME, LABEL_NAMESPACE].contains(key) && written.contains(key)
        }));
        all
    };
    let named = [
        ("cgpu.io/memory.app", "1Gi"),
        ("cgpu.io/memory.big", "20Gi"),
    ];
    let own = read(&bare(&named)).unwrap().unwrap();
    assert_eq!(own.request.amount, Amount::TotalBytes(1 << 30));
    assert_eq!(own.pod_namespace.as_deref(), Some("team-a"));
    let error = read(&bare(&[named[0], named[1], (LABEL_NAME, "big")])).unwrap_err();
    assert!(error.contains("another name"), "{error}");
    let grouped = [
        ASKS,
        ("cgpu.io/share-group", "train"),
        (LABEL_NAMESPACE, "team-b"),
    ];
    let error = read(&bare(&grouped)).unwrap_err();
    assert!(error.contains("another namespace"), "{error}");
    // Where no engine makes pods, nobody is in one.
    let alone = [ASKS, (LABEL_NAME, "app"), (LABEL_NAMESPACE, "team-b")];
    let request = read(&alone).unwrap().unwrap();
    assert_eq!((request.pod, request.pod_namespace), (None, None));
}

/// What people call a container of these annotations.
fn called(annotations: &[(&str, &str)]) -> Names {
    let annotations: serde_json::Map<String, Value> = annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    super::super::names(&json!({"annotations": annotations}))
}

#[test]
fn a_container_is_called_as_its_engine_has_it() {
    for annotations in [
        containerd(&[]),
        containerd(&[("io.kubernetes.cri.sandbox-name", "other")]),
        containerd(&[("nerdctl/name", "other")]),
        crio(&[]),
        crio(&[("nerdctl/name", "other")]),
        over(&[], &[crio(&[]), vec![(LABEL_POD, "p1")]].concat()),
    ] {
        let pod = called(&annotations).pod.unwrap();
        let text = format!("{} {} {}", pod.namespace, pod.name, pod.container);
        assert_eq!(text, "team-a p1 app");
        assert_eq!(called(&annotations).name, None);
    }
    let of_nerdctl = [("nerdctl/name", "web"), ("nerdctl/namespace", "default")];
    assert_eq!(called(&of_nerdctl).text().as_deref(), Some("web"));
}

#[test]
fn what_contradicts_or_is_not_plain_is_no_name() {
    for annotations in [
        crio(&[(LABEL_POD, "other")]),
        over(&crio(&[]), &[(LABEL_NAMESPACE, "team-b")]),
        over(&crio(&[]), &[(LABEL_NAME, "other")]),
        over(
            &crio(&[]),
            &[("io.kubernetes.cri-o.Metadata", "{\"name\":\"a b\"}")],
        ),
        over(
            &containerd(&[]),
            &[("io.kubernetes.cri.container-name", "a\u{1b}b")],
        ),
        // Of two engines.
        containerd(&crio(&[])),
        // Of neither: a pod's author may write these.
        vec![
            (LABEL_POD, "p1"),
            (LABEL_NAMESPACE, "team-a"),
            (LABEL_NAME, "app"),
        ],
        vec![("nerdctl/name", "\u{1b}[2J")],
        vec![],
    ] {
        assert!(called(&annotations).is_empty(), "{annotations:?}");
    }
    for spec in [
        json!(null),
        json!({"annotations": {"nerdctl/name": 1}}),
        json!([]),
    ] {
        assert!(super::super::names(&spec).is_empty());
    }
}
