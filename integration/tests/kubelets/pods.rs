//! Pods with claims on a real node: Kubernetes' own servers and kubelet, containerd 2 or CRI-O, the agent, the shim or the wrapper, simulated cards.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use integration::cluster::{
    Bindings, ControlPlane, Controller, Extent, Host, Kubectl, KubeletNode, NodeAgent, Nth, Steps,
    apply, apply_for_plugin, on_control_plane, remove,
};
use integration::command::{LIMIT, wait_until};
use integration::packages::Suite;
use integration::programs::NO_MEMORY;
use integration::skip;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

struct Cluster<'a> {
    plane: &'a ControlPlane,
    kubectl: Kubectl,
    worker: &'a KubeletNode,
}

impl Cluster<'_> {
    /// A container that waits, of the image that the node has.
    fn container(&self, name: &str, resources: Value) -> Value {
        json!({
            "name": name, "image": self.worker.rig.image.name, "imagePullPolicy": "Never",
            "command": ["sleep", "100000"], "resources": resources,
        })
    }

    fn pod(&self, name: &str, annotations: Value, spec: Value) -> Result<()> {
        let mut spec = spec;
        spec["terminationGracePeriodSeconds"] = json!(0);
        self.kubectl.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations}, "spec": spec,
        }))
    }

    /// A pod with a claim of this template, which one container uses.
    fn claiming(&self, name: &str, template: &str, annotations: Value) -> Result<()> {
        let app = self.container("app", json!({"claims": [{"name": "gpu"}]}));
        self.pod(
            name,
            annotations,
            json!({
                "runtimeClassName": "cgpu",
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
                "containers": [app],
            }),
        )
    }

    fn running(&self, pod: &str) -> Result<Value> {
        let runs =
            |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["running"].is_object();
        self.kubectl
            .wait(&format!("{pod} to run"), &["pod", pod], runs)
    }

    /// Why a pod's container is not started.
    fn refused(&self, pod: &str) -> Result<String> {
        let mut reason = String::new();
        wait_until(&format!("{pod} to be refused"), LIMIT, || {
            let pod = self.kubectl.get(&["pod", pod])?;
            let state = &pod["status"]["containerStatuses"][0];
            let waiting = &state["state"]["waiting"];
            let ended = [
                &state["lastState"]["terminated"]["message"],
                &state["state"]["terminated"]["message"],
                &waiting["message"],
            ];
            let texts = ended.iter().filter_map(|text| text.as_str());
            reason = texts.collect::<Vec<_>>().join("\n");
            Ok(reason.contains("cgpu") || reason.contains("claim"))
        })
        .with_context(|| format!("at last: {reason}"))?;
        Ok(reason)
    }

    fn exec(&self, pod: &str, program: &[&str]) -> Result<integration::command::Outcome> {
        self.kubectl.run(&[&["exec", pod, "--"], program].concat())
    }

    /// The totals that a container sees, in GiB.
    fn totals(&self, pod: &str) -> Result<Vec<u64>> {
        let smi = self
            .exec(pod, &["cgpu", "smi", "--json"])?
            .success()?
            .json()?;
        let cards = smi["cards"].as_array().context("cards")?;
        let totals = cards.iter().map(|card| card["memory_total_bytes"].as_u64());
        Ok(totals
            .map(|bytes| bytes.unwrap_or_default() / GIB)
            .collect())
    }

    fn prepared(&self) -> Vec<String> {
        let node = &self.worker.rig.node;
        let folders = [
            node.state_dir().join("claims"),
            integration::claims::cdi_folder(node),
        ];
        let entries = folders
            .iter()
            .filter_map(|folder| std::fs::read_dir(folder).ok());
        let names = entries
            .flatten()
            .flatten()
            .map(|entry| entry.path().display().to_string());
        names.collect()
    }
}

fn with_claim(cluster: &Cluster<'_>) -> Result<()> {
    let kubectl = &cluster.kubectl;
    kubectl.create(&json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "six"},
        "spec": {"spec": {"devices": {"requests": [{"name": "vgpu", "exactly": {
            "deviceClassName": "vgpu.cgpu.io", "capacity": {"requests": {"memory": "6Gi", "cores": "20"}},
        }}]}}},
    }))?;
    cluster.claiming("claimed", "six", json!({}))?;
    cluster.running("claimed")?;
    ensure!(cluster.totals("claimed")? == [6], "what it sees");
    let over = cluster.exec("claimed", &["cgpu-burn", "alloc", "7Gi"])?;
    ensure!(over.code == NO_MEMORY, "{over:?}");
    cluster
        .exec("claimed", &["cgpu-burn", "alloc", "5Gi"])?
        .success()?;
    let ps = cluster.worker.rig.node.cgpu(&["ps"])?.success()?.stdout;
    ensure!(ps.contains("claimed/app"), "{ps}");
    let claims = kubectl.wait("the claim's status", &["resourceclaims"], |claims| {
        claims["items"][0]["status"]["devices"][0]["data"]["uuid"].is_string()
    })?;
    ensure!(
        claims["items"].as_array().map_or(0, Vec::len) == 1,
        "{claims}"
    );
    Ok(())
}

/// A crash of the agent is nothing to who runs; who comes waits for the next agent.
fn without_agent(cluster: &Cluster<'_>, agent: NodeAgent) -> Result<NodeAgent> {
    agent.kill()?;
    cluster
        .exec("claimed", &["cgpu-burn", "alloc", "5Gi"])?
        .success()?;
    cluster.claiming("late", "six", json!({}))?;
    let event =
        |kubectl: &Kubectl| kubectl.get(&["events", "--field-selector=involvedObject.name=late"]);
    wait_until("the kubelet to miss the driver", LIMIT, || {
        let events = event(&cluster.kubectl)?.to_string();
        Ok(events.contains("FailedPrepareDynamicResources") || events.contains("gpu.cgpu.io"))
    })?;
    let agent = NodeAgent::start(cluster.plane, cluster.worker, "second")?;
    cluster.running("late")?;
    ensure!(cluster.totals("late")? == [6], "what it sees");
    remove(&cluster.kubectl, &["pod", "late"])?;
    Ok(agent)
}

/// The seeds' job: two cards, 4 GiB of each, by the classic keys.
fn classic(cluster: &Cluster<'_>) -> Result<()> {
    let controller = Controller::templates(cluster.plane)?;
    let app = cluster.container("app", json!({"limits": {"aliyun.com/gpu-mem": 8}}));
    cluster.kubectl.create(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "classic", "labels": {"aliyun.com/gpu-count": "2"}},
        "spec": {"containers": [app], "terminationGracePeriodSeconds": 0},
    }))?;
    cluster.running("classic")?;
    ensure!(cluster.totals("classic")? == [4, 4], "what it sees");
    remove(&cluster.kubectl, &["pod", "classic"])?;
    controller.finish()
}

/// Online and offline pods share a card: what their priority is in the cluster, it is on the card.
fn ranked(cluster: &Cluster<'_>) -> Result<()> {
    let controller = Controller::templates(cluster.plane)?;
    let leave = [
        "annotate",
        "namespace",
        "default",
        "cgpu.io/high-priority-from=1000",
    ];
    cluster.kubectl.run(&leave)?.success()?;
    cluster.kubectl.create(&json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "online"}, "value": 1000,
    }))?;
    let app = || cluster.container("app", json!({"limits": {"aliyun.com/gpu-mem": 2}}));
    let online = json!({"priorityClassName": "online", "containers": [app()]});
    cluster.pod("online", json!({}), online)?;
    let low = json!({"cgpu.io/priority": "low"});
    cluster.pod("offline", low, json!({"containers": [app()]}))?;
    for pod in ["online", "offline"] {
        cluster.running(pod)?;
    }
    let ps = cluster.worker.rig.node.cgpu(&["ps", "--json"])?;
    let ps = ps.success()?.json()?;
    for (pod, priority) in [("online", "high"), ("offline", "low")] {
        let mut vgpus = ps["vgpus"].as_array().context("vGPUs")?.iter();
        let vgpu = vgpus.find(|vgpu| vgpu["pod"]["name"] == pod);
        let compute = &vgpu.context("a vGPU")?["compute"];
        ensure!(compute["priority"] == priority, "{pod}: {compute}");
        ensure!(compute["policy"] == "soft", "{pod}: {compute}");
    }
    let cards: std::collections::BTreeSet<String> = ps["vgpus"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|vgpu| vgpu["cards"][0]["uuid"].to_string())
        .collect();
    ensure!(cards.len() == 1, "they share one card: {cards:?}");
    remove(&cluster.kubectl, &["pod", "online", "offline"])?;
    let none = |claims: &Value| claims["items"].as_array().is_some_and(Vec::is_empty);
    let claims = ["resourceclaims"];
    cluster.kubectl.wait("no claim", &claims, none)?;
    controller.finish()
}

/// What a pod's author may write who read the source.
fn forged(cluster: &Cluster<'_>) -> Result<()> {
    let claims = cluster.kubectl.get(&["resourceclaims"])?;
    let victim = claims["items"][0].clone();
    let (uid, share) = (
        victim["metadata"]["uid"].as_str().context("a uid")?,
        victim["status"]["allocation"]["devices"]["results"][0]["shareID"]
            .as_str()
            .context("a share")?,
    );
    let pointer = format!("{uid}/vgpu/{share}");
    let mut thief = cluster.container("app", json!({}));
    thief["env"] = json!([{"name": "CGPU_CLAIM_00000000", "value": pointer}]);
    cluster.pod(
        "thief",
        json!({}),
        json!({"runtimeClassName": "cgpu", "containers": [thief]}),
    )?;
    let why = cluster.refused("thief")?;
    ensure!(why.contains("is reserved for other pods"), "{why}");
    // Amounts in annotations, without a claim and beside one.
    let asking = json!({"cgpu.io/memory.app": "20Gi"});
    let app = cluster.container("app", json!({}));
    cluster.pod(
        "asking",
        asking.clone(),
        json!({"runtimeClassName": "cgpu", "containers": [app]}),
    )?;
    let why = cluster.refused("asking")?;
    ensure!(
        why.contains("asks for a vGPU in a pod, whose author cannot"),
        "{why}"
    );
    cluster.claiming("greedy", "six", asking)?;
    let why = cluster.refused("greedy")?;
    ensure!(why.contains("beside claim"), "{why}");
    // Without our handler a claim's devices are no card.
    let app = cluster.container("app", json!({"claims": [{"name": "gpu"}]}));
    cluster.pod("plain", json!({}), json!({
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "six"}], "containers": [app],
    }))?;
    cluster.running("plain")?;
    let nodes = cluster.exec("plain", &["sh", "-c", "ls /dev | grep -c nvidia"])?;
    ensure!(nodes.stdout.trim() == "0", "{nodes:?}");
    remove(
        &cluster.kubectl,
        &["pod", "thief", "asking", "greedy", "plain"],
    )
}

/// A control plane and a node with a kubelet, and what is left of claims in the end: nothing.
fn on_worker(
    test: &str,
    host: Host,
    prepare: impl FnOnce(&Kubectl) -> Result<()>,
    body: impl FnOnce(&Cluster<'_>) -> Result<NodeAgent>,
) -> Result<()> {
    on_control_plane(test, Extent::Whole, |plane| {
        let kubectl = plane.kubectl();
        prepare(&kubectl)?;
        // CRI-O comes by itself, with the runc and podman of the machine's release.
        let suite = match host {
            Host::WithCrio => Suite::Host,
            Host::WithCgpu | Host::WithoutCgpu => Suite::Newer,
        };
        let worker = match KubeletNode::start_on(plane, Nth::First, suite, host)? {
            Ok(worker) => worker,
            Err(reason) => skip!(test, "{reason}"),
        };
        let cluster = Cluster {
            plane,
            kubectl,
            worker: &worker,
        };
        let agent = body(&cluster)?;
        wait_until("the claims to be released", LIMIT, || {
            Ok(cluster.prepared().is_empty())
        })
        .with_context(|| format!("left: {:?}", cluster.prepared()))?;
        agent.finish()?;
        worker.finish()
    })
}

/// What holds under every engine. Returns the agent that serves at last.
fn quota(cluster: &Cluster<'_>, agent: NodeAgent) -> Result<NodeAgent> {
    with_claim(cluster)?;
    let agent = without_agent(cluster, agent)?;
    classic(cluster)?;
    forged(cluster)?;
    remove(&cluster.kubectl, &["pod", "claimed"])?;
    Ok(agent)
}

#[test]
fn a_pod_s_claim_is_its_quota() -> Result<()> {
    let test = "a_pod_s_claim_is_its_quota";
    on_worker(test, Host::WithCgpu, apply, |cluster| {
        let agent = NodeAgent::start(cluster.plane, cluster.worker, "first")?;
        ranked(cluster)?;
        quota(cluster, agent)
    })
}

#[test]
fn a_pod_s_claim_is_its_quota_under_crio() -> Result<()> {
    let test = "a_pod_s_claim_is_its_quota_under_crio";
    on_worker(test, Host::WithCrio, apply, |cluster| {
        let name = cluster.worker.name();
        let info = cluster.kubectl.get(&["node", name])?["status"]["nodeInfo"].take();
        let engine = info["containerRuntimeVersion"].as_str();
        ensure!(
            engine.is_some_and(|engine| engine.starts_with("cri-o://")),
            "{info}"
        );
        let agent = NodeAgent::start(cluster.plane, cluster.worker, "first")?;
        quota(cluster, agent)
    })
}

/// Starts a pod, and removes it again. Returns when each step was reached.
fn start(
    cluster: &Cluster<'_>,
    bindings: &Bindings,
    name: &str,
    is_claiming: bool,
) -> Result<Steps> {
    let began = SystemTime::now();
    if is_claiming {
        cluster.claiming(name, "small", json!({}))?;
    } else {
        let app = cluster.container("app", json!({}));
        let spec = json!({"runtimeClassName": "cgpu", "containers": [app]});
        cluster.pod(name, json!({}), spec)?;
    }
    let pod = cluster.running(name)?;
    let steps = bindings.steps(cluster.worker, &pod, began)?;
    remove(&cluster.kubectl, &["pod", name])?;
    Ok(steps)
}

/// Of the report: pods of one kind, and how long each step took in the median, ms.
fn line(kind: &str, all: &[Steps]) -> String {
    let median = |pick: &dyn Fn(&Steps) -> Duration| {
        let mut times: Vec<Duration> = all.iter().map(pick).collect();
        times.sort();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        median.as_secs_f64() * 1e3
    };
    let longest = all.iter().map(|steps| steps.started).max();
    format!(
        "a pod's start {kind} a claim, of {}: median {:.0} ms, longest {:.0} ms\n\
         to its node {:.0} ms, from there {:.0} ms: to its sandbox {:.0} ms, to its container {:.0} ms, to its program {:.0} ms\n",
        all.len(),
        median(&|steps| steps.started),
        longest.unwrap_or_default().as_secs_f64() * 1e3,
        median(&|steps| steps.bound),
        median(&|steps| steps.started.saturating_sub(steps.bound)),
        median(&|steps| steps.sandbox.saturating_sub(steps.bound)),
        median(&|steps| steps.created.saturating_sub(steps.sandbox)),
        median(&|steps| steps.started.saturating_sub(steps.created)),
    )
}

/// The sample of one metric without labels.
fn sample(metrics: &str, name: &str) -> Result<f64> {
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.with_context(|| format!("no {name}"))?.parse()?)
}

/// What a claim costs on a node, pods with one and without one in turns.
fn costs(cluster: &Cluster<'_>, pods: u32) -> Result<NodeAgent> {
    cluster.kubectl.create(&json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "small"},
        "spec": {"spec": {"devices": {"requests": [{"name": "vgpu", "exactly": {
            "deviceClassName": "vgpu.cgpu.io", "capacity": {"requests": {"memory": "1Gi"}},
        }}]}}},
    }))?;
    let agent = NodeAgent::start(cluster.plane, cluster.worker, "first")?;
    let generation = || -> Result<u64> {
        let slices = cluster.kubectl.get(&["resourceslices"])?;
        let generation = &slices["items"][0]["metadata"]["generation"];
        generation.as_u64().context("a generation")
    };
    let (mut plain, mut claiming) = (Vec::new(), Vec::new());
    let bindings = Bindings::watch(&cluster.kubectl)?;
    // The first of each kind reads programs from the disk.
    start(cluster, &bindings, "plain", false)?;
    start(cluster, &bindings, "claiming", true)?;
    let (before, began) = (generation()?, Instant::now());
    for number in 0..pods {
        let name = |kind| format!("{kind}-{number}");
        plain.push(start(cluster, &bindings, &name("plain"), false)?);
        claiming.push(start(cluster, &bindings, &name("claiming"), true)?);
    }
    let writes = generation()?.saturating_sub(before);
    let seconds = began.elapsed().as_secs_f64();
    let metrics = agent.metrics()?;
    let of = |name: &str| sample(&metrics, &format!("cgpu_prepare_duration_seconds_{name}"));
    let (prepared, took) = (of("count")?, of("sum")?);
    ensure!(prepared >= f64::from(pods) + 1.0, "{prepared} prepared");
    let text = format!(
        "{}{}of that the driver's prepare: mean {:.1} ms\n\
         the node's slice was written {writes} times in {seconds:.0} s\n\
         private memory of the agent: {} KiB\n",
        line("without", &plain),
        line("with", &claiming),
        took / prepared * 1e3,
        agent.private_kib()?,
    );
    print!("{text}");
    if let Some(path) = std::env::var_os("CGPU_NODE_SUMMARY") {
        std::fs::write(path, text)?;
    }
    Ok(agent)
}

#[test]
fn what_a_claim_costs() -> Result<()> {
    let pods = match std::env::var("CGPU_NODE_PODS") {
        Ok(text) => text
            .parse()
            .with_context(|| format!("CGPU_NODE_PODS={text:?}"))?,
        Err(_absent) => 2,
    };
    on_worker("what_a_claim_costs", Host::WithCgpu, apply, |cluster| {
        costs(cluster, pods)
    })
}

const UNITS: &str = "aliyun.com/gpu-mem";

impl Cluster<'_> {
    /// A pod whose containers ask for units, the first ones as init containers.
    fn counting(&self, name: &str, init: &[u64], units: u64) -> Result<()> {
        let limits = |units: u64| json!({"limits": {UNITS: units}});
        let before: Vec<Value> = init
            .iter()
            .enumerate()
            .map(|(index, units)| {
                let mut container = self.container(&format!("init{index}"), limits(*units));
                container["command"] = json!(["cgpu-burn", "alloc", "1Gi"]);
                container
            })
            .collect();
        let mut app = self.container("app", limits(units));
        // The first process of a container hears only signals that it asks for.
        let ends = "trap 'exit 3' TERM; while :; do sleep 1; done";
        app["command"] = json!(["sh", "-c", ends]);
        self.pod(
            name,
            json!({}),
            json!({"runtimeClassName": "cgpu", "initContainers": before, "containers": [app]}),
        )
    }

    /// Why the kubelet does not admit a pod.
    fn not_admitted(&self, name: &str) -> Result<String> {
        let failed = |pod: &Value| pod["status"]["phase"] == "Failed";
        let pod = self
            .kubectl
            .wait("a pod that is refused", &["pod", name], failed)?;
        let message = pod["status"]["message"].as_str().unwrap_or_default();
        Ok(message.to_owned())
    }
}

/// What one of the pods has, GiB.
fn counted(cluster: &Cluster<'_>) -> Result<u64> {
    // On each of two cards is a pod that leaves a little.
    let name = cluster.worker.name();
    let total = &cluster.kubectl.get(&["node", name])?["status"]["allocatable"][UNITS];
    let card: u64 = total.as_str().context("units")?.parse::<u64>()? / 2;
    let (one, two) = (card - 4, card - 6);
    cluster.counting("one", &[], one)?;
    cluster.running("one")?;
    ensure!(cluster.totals("one")? == [one], "what it sees");
    let over = cluster.exec("one", &["cgpu-burn", "alloc", &format!("{}Gi", one + 1)])?;
    ensure!(over.code == NO_MEMORY, "{over:?}");
    // An init container's memory is its pod's container's after it.
    cluster.counting("two", &[two], two)?;
    cluster.running("two")?;
    ensure!(cluster.totals("two")? == [two], "what it sees");
    // The scheduler counts ten units, which no card has.
    cluster.counting("wide", &[], 8)?;
    let why = cluster.not_admitted("wide")?;
    ensure!(
        why.contains("no card of this node has that much free"),
        "{why}"
    );
    cluster.counting("uneven", &[2], 1)?;
    let mut why = String::new();
    wait_until("an init container that does not start", LIMIT, || {
        let pod = cluster.kubectl.get(&["pod", "uneven"])?;
        let waiting = &pod["status"]["initContainerStatuses"][0]["state"]["waiting"];
        why = waiting["message"].as_str().unwrap_or_default().to_owned();
        Ok(why.contains("as much as another"))
    })
    .with_context(|| why.clone())?;
    remove(&cluster.kubectl, &["pod", "wide", "uneven"])?;
    // Who knows another pod's pointer gains nothing.
    let records = cluster.worker.rig.node.state_dir().join("claims");
    let mut entries = std::fs::read_dir(&records)?;
    let record = entries.next().context("a record")??.path();
    let uid = record
        .file_stem()
        .context("a name")?
        .to_string_lossy()
        .into_owned();
    let mut thief = cluster.container("app", json!({}));
    thief["env"] = json!([{"name": "CGPU_CLAIM_00000000", "value": format!("{uid}/memory/0")}]);
    cluster.pod(
        "thief",
        json!({}),
        json!({"runtimeClassName": "cgpu", "containers": [thief]}),
    )?;
    let why = cluster.refused("thief")?;
    ensure!(why.contains("is reserved for other pods"), "{why}");
    remove(&cluster.kubectl, &["pod", "thief"])?;
    Ok(one)
}

#[test]
fn a_pod_of_a_cluster_that_only_counts_has_what_was_counted() -> Result<()> {
    let test = "a_pod_of_a_cluster_that_only_counts_has_what_was_counted";
    on_worker(test, Host::WithCgpu, apply_for_plugin, |cluster| {
        let start = |name| NodeAgent::start_plugin(cluster.plane, cluster.worker, name, UNITS);
        let agent = start("first")?;
        let one = counted(cluster)?;
        // Without an agent who runs goes on, and the next agent lets the next container of the pod in.
        agent.kill()?;
        let alloc = cluster.exec("one", &["cgpu-burn", "alloc", &format!("{}Gi", one - 1)])?;
        alloc.success()?;
        let agent = start("second")?;
        cluster.exec("one", &["kill", "1"])?;
        let restarted = |pod: &Value| {
            let status = &pod["status"]["containerStatuses"][0];
            status["restartCount"] == 1 && status["state"]["running"].is_object()
        };
        let pod = ["pod", "one"];
        cluster.kubectl.wait("another start", &pod, restarted)?;
        ensure!(cluster.totals("one")? == [one], "what it sees");
        remove(&cluster.kubectl, &["pod", "one", "two"])?;
        Ok(agent)
    })
}
