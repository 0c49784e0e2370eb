//! The second half: two nodes with kubelets, containerd 2, the agent and the controller of templates; what pods name is what containers see.

use std::collections::BTreeMap;
use std::fs;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, Result, bail};
use integration::cluster::{ControlPlane, Controller, KubeletNode, NodeAgent, Nth, remove};
use integration::command::{LIMIT, progress, succeed, wait_until};
use integration::packages::Suite;
use serde_json::{Value, json};

use super::{Show, part, rules};

/// What a node reports once it serves: the image that it has.
type Started = Sender<Result<String, String>>;

/// What a node is to do, on its own thread.
enum Order {
    /// The agent crashes.
    KillAgent,
    StartAgent,
    /// The next agent starts beside the former one, which ends then, as in a rolling update with a surge.
    UpgradeAgent,
    /// A card falls off the bus.
    LoseCard(String),
    /// All is well, and it ends.
    End,
}

/// The other side of a node.
struct Remote {
    orders: Sender<Order>,
    replies: Receiver<Result<(), String>>,
}

impl Remote {
    fn tell(&self, order: Order) -> Result<()> {
        self.orders.send(order).ok().context("the node has ended")?;
        let reply = self.replies.recv().context("the node has ended")?;
        reply.map_err(anyhow::Error::msg)
    }
}

/// Shows it on the control plane of the first half.
///
/// # Errors
/// A node does not start, or a step fails.
pub(super) fn show(show: &mut Show) -> Result<()> {
    println!(
        "\n\n(10) Two nodes with a kubelet, containerd 2 and two simulated cards each; the nodes without one are gone."
    );
    let kubectl = &show.kubectl;
    remove(kubectl, &["resourceslice", "--all"])?;
    remove(kubectl, &["node", "n1", "n2"])?;
    remove(kubectl, &["resourceclaimtemplate", "--all"])?;
    progress("starting two kubelets, each with a containerd and an agent");
    let controller = Controller::templates(&show.plane)?;
    std::thread::scope(|scope| {
        let plane = show.plane.clone();
        let (started, start) = mpsc::channel();
        let (mut remotes, mut threads) = (Vec::new(), Vec::new());
        for which in [Nth::First, Nth::Second] {
            let (started, plane) = (started.clone(), plane.clone());
            let (orders, order) = mpsc::channel();
            let (reply, replies) = mpsc::channel();
            let thread = scope.spawn(move || serve(&plane, which, &started, &order, &reply));
            remotes.push(Remote { orders, replies });
            threads.push(thread);
        }
        drop(started);
        let shown = steps(show, &start, &remotes);
        let mut ended = shown
            .as_ref()
            .map(|_| ())
            .map_err(|error| format!("{error:#}"));
        for (remote, thread) in remotes.into_iter().zip(threads) {
            // A node that gets no order to end cleans up as after a failed test.
            if shown.is_ok() {
                let _is_there = remote.orders.send(Order::End);
            }
            drop(remote);
            let result = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            if let (Ok(()), Err(error)) = (&ended, result) {
                ended = Err(format!("{error:#}"));
            }
        }
        shown?;
        ended.map_err(anyhow::Error::msg)
    })?;
    controller.finish()
}

/// One node, on a thread of its own, until the other side lets go.
fn serve(
    plane: &ControlPlane,
    which: Nth,
    started: &Started,
    orders: &Receiver<Order>,
    replies: &Sender<Result<(), String>>,
) -> Result<()> {
    let worker = match KubeletNode::start(plane, which, Suite::Newer)? {
        Ok(worker) => worker,
        Err(reason) => {
            started.send(Err(reason))?;
            return Ok(());
        }
    };
    let mut agents = Agents {
        plane,
        worker: &worker,
        running: None,
        count: 0,
    };
    agents.start()?;
    started.send(Ok(worker.rig.image.name.clone()))?;
    loop {
        let done = match orders.recv() {
            Ok(Order::KillAgent) => agents.kill(),
            Ok(Order::StartAgent) => agents.start(),
            Ok(Order::UpgradeAgent) => agents.upgrade(),
            Ok(Order::LoseCard(uuid)) => lose(&worker, &uuid),
            Ok(Order::End) => break,
            Err(_gone) => bail!("the show has failed"),
        };
        replies.send(done.map_err(|error| format!("{error:#}")))?;
    }
    // The API server forgets a pod that is deleted by force before its kubelet has ended it.
    let claims = worker.rig.node.state_dir().join("claims");
    wait_until("the claims to be released on the node", LIMIT, || {
        Ok(fs::read_dir(&claims).map_or(true, |mut claims| claims.next().is_none()))
    })?;
    if let Some(agent) = agents.running {
        agent.finish()?;
    }
    worker.finish()
}

/// The agents of a node, one after the other.
struct Agents<'a> {
    plane: &'a ControlPlane,
    worker: &'a KubeletNode,
    running: Option<NodeAgent>,
    count: u32,
}

impl Agents<'_> {
    fn start(&mut self) -> Result<()> {
        let next = self.next()?;
        self.running = Some(next);
        Ok(())
    }

    fn next(&mut self) -> Result<NodeAgent> {
        self.count += 1;
        NodeAgent::start(self.plane, self.worker, &format!("agent{}", self.count))
    }

    fn kill(&mut self) -> Result<()> {
        self.running.take().map_or(Ok(()), NodeAgent::kill)
    }

    fn upgrade(&mut self) -> Result<()> {
        let next = self.next()?;
        match self.running.replace(next) {
            Some(former) => former.finish(),
            None => Ok(()),
        }
    }
}

fn lose(worker: &KubeletNode, uuid: &str) -> Result<()> {
    let node = &worker.rig.node;
    let mut command = node.command("cgpu-sim")?;
    command
        .args(["fault", "--state-dir"])
        .arg(node.state_dir())
        .args(["card-lost", "--card", uuid]);
    succeed(&mut command)?;
    Ok(())
}

fn steps(
    show: &mut Show,
    start: &Receiver<Result<String, String>>,
    remotes: &[Remote],
) -> Result<()> {
    let mut image = String::new();
    for _ in remotes {
        let reply = start.recv().context("a node has not started")?;
        image = reply.map_err(anyhow::Error::msg)?;
    }
    show.run(&["get", "nodes", "-o", "wide"])?.success()?;
    show.run(&["get", "resourceslices"])?.success()?;
    job(show, &image)?;
    one_on_each(show, &image)?;
    forged(show, &image)?;
    show.clear()?;
    let first = remotes.first().context("a node")?;
    agents(show, first, &image)?;
    rules::show(show, &image)?;
    lost_card(show, first, &image)?;
    show.clear()?;
    show.expect("(17) claims after deletion", "0", claims(show)?.to_string());
    Ok(())
}

fn claims(show: &Show) -> Result<usize> {
    let left = show.kubectl.get(&["resourceclaims"])?;
    Ok(left["items"].as_array().map_or(0, Vec::len))
}

pub(super) fn container(image: &str, limits: &Value) -> Value {
    json!({
        "name": "app", "image": image, "imagePullPolicy": "Never", "command": ["sleep", "100000"],
        "resources": {"limits": limits},
    })
}

/// The classic job over two cards: no template is made by hand here.
fn job(show: &mut Show, image: &str) -> Result<()> {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "mnist"},
        "spec": {"template": {
            "metadata": {"labels": {"app": "mnist", "aliyun.com/gpu-count": "2"}},
            "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                "containers": [container(image, &json!({"aliyun.com/gpu-mem": 8}))],
            },
        }},
    });
    show.send(&show.kubectl, &[], &job)?.success()?;
    let pod = running(show, "app=mnist")?;
    show.run(&["exec", &pod, "--", "cgpu", "smi"])?.success()?;
    show.expect(
        "(10) the job sees",
        "4096 MiB + 4096 MiB",
        totals(show, &pod)?,
    );
    let over = show.run(&["exec", &pod, "--", "cgpu-burn", "alloc", "4097Mi"])?;
    let seen = match over.code {
        Some(3) => "refused, out of memory".to_owned(),
        code => format!("exit code {code:?}"),
    };
    show.expect("(10) 4097 MiB in it", "refused, out of memory", seen);
    Ok(())
}

fn one_on_each(show: &mut Show, image: &str) -> Result<()> {
    for node in ["k1", "k2"] {
        let limits = json!({"aliyun.com/gpu-mem": 6, "aliyun.com/gpu-core.percentage": 30});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("on-{node}"), "labels": {"on": node}},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 0,
                "containers": [container(image, &limits)],
            },
        });
        show.send(&show.kubectl, &[], &pod)?.success()?;
    }
    let mut seen = BTreeMap::new();
    for node in ["k1", "k2"] {
        let pod = running(show, &format!("on={node}"))?;
        seen.insert(node, totals(show, &pod)?);
    }
    show.run(&["get", "pods", "-o", "wide"])?.success()?;
    show.claims_table()?;
    for (node, totals) in seen {
        show.expect(
            &format!("(10) a pod of 6 GiB on {node} sees"),
            "6144 MiB",
            totals,
        );
    }
    Ok(())
}

/// An amount that the pod's author writes himself.
fn forged(show: &mut Show, image: &str) -> Result<()> {
    let spec = json!({
        "runtimeClassName": "cgpu", "terminationGracePeriodSeconds": 0,
        "containers": [container(image, &json!({}))],
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "forged", "annotations": {"cgpu.io/memory.app": "20Gi"}}, "spec": spec,
    });
    show.send(&show.kubectl, &[], &pod)?.success()?;
    let expected = "asks for a vGPU in a pod";
    let mut events = String::new();
    let waited = wait_until("the pod to be refused", LIMIT, || {
        let selector = "involvedObject.name=forged,type=Warning";
        events = show
            .kubectl
            .run(&["get", "events", "--field-selector", selector])?
            .stdout;
        Ok(events.contains(expected))
    });
    show.run(&["get", "pod", "forged"])?.success()?;
    println!("{}", events.trim_end());
    waited.or_else(|error| {
        eprintln!("{error:#}");
        anyhow::Ok(())
    })?;
    show.expect(
        "(10) an annotation that grants 20 GiB",
        expected,
        part(&events, expected).to_owned(),
    );
    Ok(())
}

/// A pod of the first node.
fn pod_on_first(show: &Show, name: &str, image: &str, gib: u64) -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"is": name}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "k1"}, "terminationGracePeriodSeconds": 0,
            "containers": [container(image, &json!({"aliyun.com/gpu-mem": gib}))],
        },
    });
    show.send(&show.kubectl, &[], &pod)?.success()?;
    Ok(())
}

/// Whether a container can still use its memory.
fn allocates(show: &Show, pod: &str) -> Result<&'static str> {
    let done = show.run(&["exec", pod, "--", "cgpu-burn", "alloc", "1Gi"])?;
    Ok(if done.succeeded() {
        "allocates"
    } else {
        "does not"
    })
}

fn agents(show: &mut Show, node: &Remote, image: &str) -> Result<()> {
    println!(
        "\n\n(11) An agent crashes, and another one is upgraded; pods go on, and new ones wait or start."
    );
    pod_on_first(show, "before", image, 2)?;
    running(show, "is=before")?;
    node.tell(Order::KillAgent)?;
    let seen = allocates(show, "before")?;
    show.expect("(11) a container without an agent", "allocates", seen);
    pod_on_first(show, "meanwhile", image, 2)?;
    let selector = "involvedObject.name=meanwhile";
    let mut events = String::new();
    wait_until("the kubelet to miss the driver", LIMIT, || {
        let args = ["get", "events", "--field-selector", selector];
        events = show.kubectl.run(&args)?.stdout;
        Ok(events.contains("FailedPrepareDynamicResources"))
    })?;
    println!("{}", events.trim_end());
    show.expect(
        "(11) a new pod without an agent",
        "FailedPrepareDynamicResources",
        part(&events, "FailedPrepareDynamicResources").to_owned(),
    );
    node.tell(Order::StartAgent)?;
    running(show, "is=meanwhile")?;
    let seen = totals(show, "meanwhile")?;
    show.expect("(11) that pod with the next agent", "2048 MiB", seen);
    node.tell(Order::UpgradeAgent)?;
    pod_on_first(show, "upgraded", image, 2)?;
    running(show, "is=upgraded")?;
    let seen = totals(show, "upgraded")?;
    show.expect(
        "(11) a pod behind an upgrade of the agent",
        "2048 MiB",
        seen,
    );
    let seen = allocates(show, "before")?;
    show.expect("(11) the first container then", "allocates", seen);
    show.clear()
}

/// A card falls off the bus: its pods are evicted, and another card has them.
fn lost_card(show: &mut Show, node: &Remote, image: &str) -> Result<()> {
    println!(
        "\n\n(16) A card of k1 is lost under a pod: the agent taints it, Kubernetes evicts the pod, and its replacement is elsewhere."
    );
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "inference"},
        "spec": {
            "selector": {"matchLabels": {"app": "inference"}},
            "template": {
                "metadata": {"labels": {"app": "inference"}},
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": "k1"}, "terminationGracePeriodSeconds": 0,
                    "containers": [container(image, &json!({"aliyun.com/gpu-mem": 6}))],
                },
            },
        },
    });
    show.send(&show.kubectl, &[], &deployment)?.success()?;
    let pod = running(show, "app=inference")?;
    let card = card_of(show, &pod)?;
    node.tell(Order::LoseCard(card.clone()))?;
    println!("\n{card} is lost; the next call of the container meets it.");
    show.run(&["exec", &pod, "--", "cgpu-burn", "alloc", "1Gi"])?;
    let mut replacement = String::new();
    wait_until("the pod's replacement to run", LIMIT, || {
        let pods = show.kubectl.get(&["pods", "-l", "app=inference"])?;
        let pods = pods["items"].as_array().into_iter().flatten();
        let mut others = pods.filter(|other| {
            other["metadata"]["name"] != pod.as_str() && other["status"]["phase"] == "Running"
        });
        let name = others
            .next()
            .and_then(|pod| pod["metadata"]["name"].as_str());
        replacement = name.unwrap_or_default().to_owned();
        Ok(!replacement.is_empty())
    })?;
    let taints =
        "jsonpath={range .items[*].spec.devices[*]}{.name}{'\\t'}{.taints[*].key}{'\\n'}{end}";
    show.run(&["get", "resourceslices", "-o", taints])?
        .success()?;
    show.run(&["get", "pods", "-o", "wide"])?.success()?;
    let after = card_of(show, &replacement)?;
    let seen = if after == card {
        "the same card"
    } else {
        "another card"
    };
    show.expect(
        "(16) the replacement of a lost card's pod",
        "another card",
        seen,
    );
    let seen = totals(show, &replacement)?;
    show.expect("(16) it sees", "6144 MiB", seen);
    show.clear()
}

/// The one card of a pod, by its UUID.
fn card_of(show: &Show, pod: &str) -> Result<String> {
    let smi = show
        .kubectl
        .run(&["exec", pod, "--", "cgpu", "smi", "--json"])?;
    let smi = smi.success()?.json()?;
    let uuid = smi["cards"][0]["uuid"].as_str();
    Ok(uuid.context("a card")?.to_owned())
}

/// Waits for the one pod with this label: its name.
pub(super) fn running(show: &Show, label: &str) -> Result<String> {
    let runs = |list: &Value| list["items"][0]["status"]["phase"] == "Running";
    let list = show.kubectl.wait(
        &format!("the pod {label} to run"),
        &["pods", "-l", label],
        runs,
    )?;
    let name = list["items"][0]["metadata"]["name"].as_str();
    Ok(name.context("a name")?.to_owned())
}

pub(super) fn totals(show: &Show, pod: &str) -> Result<String> {
    let smi = show
        .kubectl
        .run(&["exec", pod, "--", "cgpu", "smi", "--json"])?;
    let smi = smi.success()?.json()?;
    let totals = smi["cards"].as_array().into_iter().flatten().map(|card| {
        let bytes = card["memory_total_bytes"].as_u64().unwrap_or_default();
        format!("{} MiB", bytes >> 20)
    });
    Ok(totals.collect::<Vec<_>>().join(" + "))
}
