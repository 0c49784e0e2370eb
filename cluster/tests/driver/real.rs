//! The driver with Kubernetes' own servers: they validate its slices, place pods by them, and hold it to what its token allows.

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::cluster::{ControlPlane, Extent, Kubectl, add_node, apply, on_control_plane};
use integration::command::{LIMIT, wait_until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::fixture::kubelet::Kubelet;
use crate::fixture::{Driver, Fixture, device, uuid};

const SLICE: &str = "n1-gpu.cgpu.io-00";

/// A cluster with one node, whose driver has the token of an agent of that node.
pub(crate) struct Cluster<'a> {
    pub(crate) kubectl: Kubectl,
    agent: Kubectl,
    runtime: &'a Runtime,
    pub(crate) fixture: Fixture,
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(plane: &ControlPlane, runtime: &'a Runtime) -> Result<Self> {
        let kubectl = plane.kubectl();
        apply(&kubectl)?;
        add_node(&kubectl, "n1")?;
        kubectl.run(&["create", "namespace", "team-a"])?.success()?;
        let agent = plane.kubectl_of("cgpu-agent", Some("n1"))?;
        Ok(Self {
            kubectl,
            agent,
            runtime,
            fixture: runtime.block_on(Fixture::new()),
        })
    }

    pub(crate) fn start(&self) -> (Driver, Kubelet) {
        let mut settings = self.fixture.settings(None);
        settings.access.kubeconfig = Some(self.agent.config().to_owned());
        self.runtime.block_on(async {
            let driver = Driver::start(settings, self.fixture.host());
            (driver, self.fixture.kubelet().await)
        })
    }

    fn claim(&self) -> Result<Value> {
        self.kubectl.get(&["resourceclaim", "c", "-n", "team-a"])
    }

    fn slice(&self, what: &str, probe: impl FnMut(&Value) -> bool) -> Result<Value> {
        wait_until("a slice", LIMIT, || {
            let found = self.kubectl.run(&["get", "resourceslice", SLICE])?;
            Ok(found.succeeded())
        })?;
        self.kubectl.wait(what, &["resourceslice", SLICE], probe)
    }

    /// A claim of a part of a card, and a pod that uses it.
    pub(crate) fn ask(&self) -> Result<()> {
        self.kubectl.create(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "team-a"},
            "spec": {"devices": {
                "requests": [{"name": "vgpu", "exactly": {
                    "deviceClassName": "vgpu.cgpu.io",
                    "capacity": {"requests": {"memory": "8Gi", "cores": "30"}},
                }}],
                "config": [{"requests": ["vgpu"], "opaque": {"driver": "gpu.cgpu.io", "parameters": {
                    "apiVersion": "cgpu.io/v1", "kind": "VGpuConfig", "shareGroup": "train", "weight": 5,
                }}}],
            }},
        }))?;
        self.kubectl.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team-a"},
            "spec": {
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
                "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
            },
        }))
    }
}

#[test]
fn the_scheduler_places_by_the_driver_s_slices_and_the_driver_prepares_what_it_gave() -> Result<()>
{
    on_control_plane(
        "the_scheduler_places_by_the_driver_s_slices_and_the_driver_prepares_what_it_gave",
        Extent::Whole,
        placed_and_prepared,
    )
}

fn placed_and_prepared(plane: &ControlPlane) -> Result<()> {
    // The runtime's threads are in the network of the one that makes it.
    plane.network().enter()?;
    let runtime = Runtime::new()?;
    let cluster = Cluster::new(plane, &runtime)?;
    let (driver, kubelet) = cluster.start();

    // The server takes the slice, and a driver that starts again has nothing to change.
    let count = |slice: &Value| slice["spec"]["devices"].as_array().map_or(0, Vec::len);
    let first = cluster.slice("two cards", |slice| count(slice) == 2)?;
    assert_eq!(first["metadata"]["ownerReferences"][0]["name"], "n1");
    runtime.block_on(driver.end());
    drop(kubelet);
    let (driver, kubelet) = cluster.start();

    // The scheduler gives a part of the first card.
    cluster.ask()?;
    let claim = ["resourceclaim", "c", "-n", "team-a"];
    let given = cluster
        .kubectl
        .wait("a claim that is reserved", &claim, |claim| {
            claim["status"]["reservedFor"]
                .as_array()
                .is_some_and(|users| !users.is_empty())
        })?;
    let result = &given["status"]["allocation"]["devices"]["results"][0];
    assert_eq!(result["device"], device(0).as_str(), "{given}");
    let now = cluster.slice("the slice", |_| true)?;
    assert_eq!(
        now["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );

    // A pod of the guide is one that the server takes.
    let page = std::fs::read_to_string(repository().join("docs/guide/kubernetes.md"))?;
    let mut examples = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let example = cluster.fixture.path("example.yaml");
    std::fs::write(&example, examples.next().context("an example")?)?;
    let example = example.to_string_lossy();
    let taken = cluster.kubectl.run(&[
        "create",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        &example,
    ])?;
    let taken = taken.success()?.stdout;
    assert!(
        taken.contains("pod/train created")
            && taken.contains("resourceclaimtemplate.resource.k8s.io/vgpu-8gi created"),
        "{taken}"
    );

    // The kubelet has it prepared, by what the server wrote.
    let uid = given["metadata"]["uid"].as_str().context("a uid")?;
    assert_eq!(runtime.block_on(kubelet.prepare_one("c", uid)), "");
    let record = cluster.fixture.record(uid).context("a record")?;
    let of_request = &record["requests"]["vgpu"];
    assert_eq!(of_request["shares"][0]["memory_bytes"], 8_u64 << 30);
    assert_eq!(of_request["shares"][0]["id"], result["shareID"]);
    assert_eq!(
        (
            &of_request["compute"]["percent"],
            &of_request["share_group"]
        ),
        (&json!(30), &json!("train"))
    );
    assert_eq!(of_request["compute"]["weight"], 5, "the class allows it");
    let pod = cluster.kubectl.get(&["pod", "p", "-n", "team-a"])?;
    assert_eq!(
        record["pods"],
        json!([{"uid": pod["metadata"]["uid"], "name": "p"}])
    );

    // The status is written by the agent's own token.
    let shown = cluster
        .kubectl
        .wait("the claim's status", &claim, |claim| {
            claim["status"]["devices"][0]["data"]["uuid"] == uuid(0)
        })?;
    assert_eq!(
        shown["status"]["devices"][0]["conditions"][0]["type"],
        "Ready"
    );

    // A card's health becomes a taint, once.
    let health = cards::CardHealth {
        version: cards::health::VERSION,
        uuid: cards::GpuUuid::new(uuid(1))?,
        reason: "Xid 79: GPU has fallen off the bus".to_owned(),
        since_unix_ms: 1_700_000_000_000,
    };
    cards::health::report(&cluster.fixture.path("state"), &health)?;
    let is_tainted = |slice: &Value| {
        let devices = slice["spec"]["devices"].as_array();
        devices.is_some_and(|devices| {
            devices
                .iter()
                .any(|device| device["taints"][0]["key"] == "gpu.cgpu.io/xid")
        })
    };
    let tainted = cluster.slice("a taint", is_tainted)?;
    assert_eq!(
        tainted["spec"]["pool"]["generation"],
        first["spec"]["pool"]["generation"]
    );

    // While no agent runs pod and claim go; the next one gives back what nobody has.
    runtime.block_on(driver.end());
    drop(kubelet);
    for args in [["pod", "p"], ["resourceclaim", "c"]] {
        let [kind, name] = args;
        cluster
            .kubectl
            .run(&[
                "delete",
                kind,
                name,
                "-n",
                "team-a",
                "--grace-period=0",
                "--force",
            ])?
            .success()?;
    }
    wait_until("the claim is gone", LIMIT, || Ok(cluster.claim().is_err()))?;
    let (driver, _kubelet) = cluster.start();
    wait_until("the record is released", LIMIT, || {
        Ok(cluster.fixture.record(uid).is_none())
    })?;
    let last = cluster.slice("the slice", is_tainted)?;
    assert_eq!(
        last["metadata"]["resourceVersion"],
        tainted["metadata"]["resourceVersion"]
    );
    runtime.block_on(driver.end());
    drop(cluster);
    Ok(())
}
