//! Binpack and spread among nodes: Kubernetes' own scheduler, and an agent on each of three nodes that keeps its node's label.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use integration::cache::repository;
use integration::cluster::{
    ControlPlane, Extent, Kubectl, add_node, apply, on_control_plane, remove, template,
};
use integration::command::{LIMIT, wait_until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::fixture::kubelet::Kubelet;
use crate::fixture::{Driver, Fixture};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const GIVEN: &str = "cgpu.io/memory-given";

/// A node whose kubelet the test plays.
struct Worker {
    name: &'static str,
    fixture: Fixture,
    driver: Driver,
    kubelet: Kubelet,
}

impl Worker {
    fn start(plane: &ControlPlane, runtime: &Runtime, name: &'static str) -> Result<Self> {
        add_node(&plane.kubectl(), name)?;
        let agent = plane.kubectl_of("cgpu-agent", Some(name))?;
        runtime.block_on(async {
            let fixture = Fixture::new().await;
            let mut settings = fixture.settings(None);
            settings.node = cluster::NodeName::new(name)?;
            settings.access.kubeconfig = Some(agent.config().to_owned());
            let driver = Driver::start(settings, fixture.host());
            let kubelet = fixture.kubelet().await;
            Ok(Self {
                name,
                fixture,
                driver,
                kubelet,
            })
        })
    }
}

struct Cluster<'a> {
    kubectl: Kubectl,
    runtime: &'a Runtime,
    workers: Vec<Worker>,
    /// From a claim that is prepared to a label that tells it, the longest.
    lag: Duration,
}

impl Cluster<'_> {
    fn wait_label(&self, node: &str, value: &str) -> Result<()> {
        let is_so = |node: &Value| node["metadata"]["labels"][GIVEN] == value;
        self.kubectl
            .wait(&format!("label {value}"), &["node", node], is_so)?;
        Ok(())
    }

    /// Waits until the scheduler has placed a pod and plays its kubelet; waits for the label: 12 of 48 GiB are a quarter.
    fn prepare(&mut self, pod: &str, value: &str) -> Result<String> {
        let is_placed = |pod: &Value| pod["spec"]["nodeName"].is_string();
        let what = format!("{pod} to be placed");
        let pod = self
            .kubectl
            .wait(&what, &["pod", pod, "-n", "team-a"], is_placed)?;
        let node = pod["spec"]["nodeName"].as_str().context("a node")?;
        let claim = &pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
        let claim = claim.as_str().context("a claim")?;
        let object = self
            .kubectl
            .get(&["resourceclaim", claim, "-n", "team-a"])?;
        let uid = object["metadata"]["uid"].as_str().context("a uid")?;
        let worker = self.workers.iter().find(|worker| worker.name == node);
        let worker = worker.context("a worker")?;
        let prepared = self
            .runtime
            .block_on(worker.kubelet.prepare_one(claim, uid));
        assert_eq!(prepared, "");
        let began = Instant::now();
        self.wait_label(node, value)?;
        self.lag = self.lag.max(began.elapsed());
        Ok(node.to_owned())
    }

    fn classic(&self, name: &str, policy: &str) -> Result<()> {
        self.kubectl.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "team-a", "annotations": {"cgpu.io/nodes": policy}},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"aliyun.com/gpu-mem": 12}}}]},
        }))
    }

    /// Takes all pods away, and what is prepared of them.
    fn clear(&self) -> Result<()> {
        let claims = self.kubectl.get(&["resourceclaims", "-n", "team-a"])?;
        remove(&self.kubectl, &["pod", "--all", "-n", "team-a"])?;
        for claim in claims["items"].as_array().context("claims")? {
            let text = |path: &str| claim.pointer(path).and_then(Value::as_str);
            let name = text("/metadata/name").context("a name")?;
            let uid = text("/metadata/uid").context("a uid")?;
            for worker in &self.workers {
                let released = self.runtime.block_on(worker.kubelet.unprepare(name, uid));
                assert_eq!(released, "");
            }
        }
        for node in NODES {
            self.wait_label(node, "0")?;
        }
        Ok(())
    }
}

fn filling(cluster: &mut Cluster<'_>) -> Result<()> {
    let mut nodes = Vec::new();
    for (index, value) in ["30", "50", "80", "100", "30"].into_iter().enumerate() {
        let name = format!("b{index}");
        cluster.classic(&name, "binpack")?;
        nodes.push(cluster.prepare(&name, value)?);
    }
    let (first, last) = (&nodes[..4], &nodes[4]);
    assert!(first.iter().all(|node| *node == first[0]), "{nodes:?}");
    assert_ne!(*last, first[0], "it is full");
    // A pod with a claim, as the guide has it, comes to the one that is begun.
    let page = std::fs::read_to_string(repository().join("docs/guide/kubernetes.md"))?;
    let blocks = page.split("```yaml\n").skip(1);
    let blocks: Vec<&str> = blocks.filter_map(|rest| rest.split("```").next()).collect();
    let claim = blocks[0].split("---\n").next().context("a template")?;
    let pod = blocks.iter().find(|block| block.contains(GIVEN));
    let example = cluster.workers[0].fixture.path("example.yaml");
    std::fs::write(&example, format!("{claim}---\n{}", pod.context("a pod")?))?;
    let example = example.to_string_lossy();
    let create = [
        "create",
        "-n",
        "team-a",
        "--validate=strict",
        "-f",
        &example,
    ];
    cluster.kubectl.run(&create)?.success()?;
    // 20 of 48 GiB.
    assert_eq!(cluster.prepare("packed", "50")?, *last);
    Ok(())
}

fn spreading(cluster: &mut Cluster<'_>) -> Result<()> {
    let mut nodes = Vec::new();
    for (index, value) in ["30", "30", "30", "50", "50", "50"].into_iter().enumerate() {
        let name = format!("s{index}");
        cluster.classic(&name, "spread")?;
        nodes.push(cluster.prepare(&name, value)?);
    }
    for round in nodes.chunks(3) {
        let mut round = round.to_vec();
        round.sort();
        assert_eq!(round, NODES, "{nodes:?}");
    }
    Ok(())
}

#[test]
fn pods_fill_one_node_first_or_take_turns_by_what_agents_tell_of_their_nodes() -> Result<()> {
    on_control_plane(
        "pods_fill_one_node_first_or_take_turns_by_what_agents_tell_of_their_nodes",
        Extent::Whole,
        filled_or_in_turns,
    )
}

fn filled_or_in_turns(plane: &ControlPlane) -> Result<()> {
    plane.network().enter()?;
    let runtime = Runtime::new()?;
    let kubectl = plane.kubectl();
    apply(&kubectl)?;
    kubectl.run(&["create", "namespace", "team-a"])?.success()?;
    kubectl.create(&template("cgpu-m12-c0-x1", "team-a")?)?;
    let workers = NODES.map(|name| Worker::start(plane, &runtime, name));
    let mut cluster = Cluster {
        kubectl,
        runtime: &runtime,
        workers: workers.into_iter().collect::<Result<_>>()?,
        lag: Duration::ZERO,
    };
    for node in NODES {
        cluster.wait_label(node, "0")?;
    }
    wait_until("the service account", LIMIT, || {
        let account = ["get", "serviceaccount", "default", "-n", "team-a"];
        Ok(cluster.kubectl.run(&account)?.succeeded())
    })?;
    filling(&mut cluster)?;
    cluster.clear()?;
    spreading(&mut cluster)?;
    cluster.clear()?;
    println!("the label lags by {:?} at most", cluster.lag);
    for worker in cluster.workers {
        runtime.block_on(worker.driver.end());
    }
    Ok(())
}
