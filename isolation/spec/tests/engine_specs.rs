//! Requests in the specs that engines really write: `specs/*.json` came to runc from containerd 1.6 (`ctr run`, `crictl`), and
//! from docker 20.10, 26 and 28 (`docker run`, its hook of a daemon that is gone left out).
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use cards::grant::Priority;
use cards::placement::{Amount, Share};
use host_config::Config;
use serde_json::Value;
use spec::Request;
use spec::request::{AmountOf, PodPlace, Whose};

const SHARE: Share = Share {
    container: 4,
    device: 24,
};

const SANDBOX: &str = "c6ff3cff8615b72118258f8e7b30af293e23b6896c1232094212d52cf3094c63";

fn requested(engine: &str) -> Option<Request> {
    let path = format!("{}/tests/specs/{engine}.json", env!("CARGO_MANIFEST_DIR"));
    let spec: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let whose = Whose {
        // Of the sandbox; the others have names of their own.
        id: engine.ends_with("sandbox").then_some(SANDBOX),
        bundle: None,
    };
    Request::from_spec(&Config::default(), whose, &spec).unwrap()
}

#[test]
fn ctr_passes_annotations_and_labels_on() {
    let request = requested("ctr-1.6").unwrap();
    let narrowed = Amount::AtMost {
        total_bytes: 4 << 30,
        share: SHARE,
    };
    assert_eq!(request.request.amount, narrowed);
    assert_eq!(request.compute.priority, Priority::Low, "a label");
    assert_eq!(request.pod, None);
}

#[test]
fn docker_before_23_passes_the_environment_alone() {
    let request = requested("docker-20.10").unwrap();
    assert_eq!(request.request.amount, Amount::Share(SHARE));
}

#[test]
fn docker_since_24_passes_annotations_and_no_label() {
    for engine in ["docker-26.1", "docker-28.5"] {
        let request = requested(engine).unwrap();
        let narrowed = Amount::AtMost {
            total_bytes: 4 << 30,
            share: SHARE,
        };
        assert_eq!(request.request.amount, narrowed, "{engine}");
        assert_eq!(request.compute.priority, Priority::Normal, "{engine}");
    }
}

#[test]
fn cri_gives_the_pod_s_annotations_to_sandbox_and_container() {
    assert_eq!(requested("cri-containerd-1.6-sandbox"), None);
    let request = requested("cri-containerd-1.6-container").unwrap();
    assert_eq!(request.pod_namespace.as_deref(), Some("team-a"));
    let place = PodPlace {
        sandbox: SANDBOX.to_owned(),
        container: "app".to_owned(),
        amount: AmountOf::Pod,
    };
    assert_eq!(request.pod, Some(place));
}
