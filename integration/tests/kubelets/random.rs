//! Random lives of pods on two real kubelets: what the scheduler counts, what the nodes have reserved and what the cards hold agree.
//!
//! `CGPU_KUBELET_STEPS` and `CGPU_KUBELET_SEED` say how many steps, and which; `cargo xtask long kubelets` takes three hundred.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use integration::cluster::{
    ControlPlane, Extent, Kubectl, KubeletNode, NodeAgent, Nth, apply, on_control_plane,
};
use integration::command::wait_until;
use integration::node::Node;
use integration::packages::Suite;
use integration::skip;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Pods at a time: some of them wait for space now and then.
const PODS_MAX: usize = 16;
/// After so many steps all is compared.
const COMPARED_EVERY: u64 = 100;
/// What a claim has beside what its container holds of it.
const SPARE_MIB: u64 = 256;
/// How long all may take to come to rest: an agent that was killed, a kubelet that looks at all its pods again.
const REST: Duration = Duration::from_secs(240);

const MIB: u64 = 1 << 20;

/// What a node is to do, on its own thread.
enum Order {
    KillAgent,
    StartAgent,
    RestartKubelet,
    Look,
}

/// What a node reports of itself.
struct Looked {
    /// `cgpu cards --json`.
    cards: Value,
    /// `cgpu-sim account`.
    account: Value,
    /// The claims that have a record.
    records: BTreeSet<String>,
}

/// The other side of a node.
struct Remote {
    name: &'static str,
    orders: Sender<Order>,
    replies: Receiver<Result<Option<Looked>, String>>,
    has_agent: bool,
}

impl Remote {
    fn tell(&self, order: Order) -> Result<Option<Looked>> {
        self.orders.send(order).ok().context("the node has ended")?;
        let reply = self.replies.recv().context("the node has ended")?;
        reply.map_err(anyhow::Error::msg)
    }

    fn look(&self) -> Result<Looked> {
        self.tell(Order::Look)?.context("a look")
    }
}

/// A node until the other side lets go.
fn serve(
    plane: &ControlPlane,
    which: Nth,
    started: &Sender<Result<String, String>>,
    orders: &Receiver<Order>,
    replies: &Sender<Result<Option<Looked>, String>>,
) -> Result<()> {
    let mut worker = match KubeletNode::start(plane, which, Suite::Newer)? {
        Ok(worker) => worker,
        Err(reason) => {
            started.send(Err(reason))?;
            return Ok(());
        }
    };
    let mut agents = 0;
    let mut start = |worker: &KubeletNode| {
        agents += 1;
        NodeAgent::start(plane, worker, &format!("agent{agents}"))
    };
    let mut agent = Some(start(&worker)?);
    started.send(Ok(worker.rig.image.name.clone()))?;
    while let Ok(order) = orders.recv() {
        let done = match order {
            Order::KillAgent => agent.take().map_or(Ok(()), NodeAgent::kill).map(|()| None),
            Order::StartAgent => start(&worker).map(|next| {
                agent = Some(next);
                None
            }),
            Order::RestartKubelet => worker.restart_kubelet().map(|()| None),
            Order::Look => look(&worker.rig.node).map(Some),
        };
        replies.send(done.map_err(|error| format!("{error:#}")))?;
    }
    agent.map_or(Ok(()), NodeAgent::finish)?;
    worker.finish()
}

fn look(node: &Node) -> Result<Looked> {
    let claims = std::fs::read_dir(node.state_dir().join("claims"));
    let names = claims.into_iter().flatten().flatten();
    Ok(Looked {
        cards: node.cgpu(&["cards", "--json"])?.success()?.json()?,
        account: node.sim_account()?,
        records: names
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                Some(name.strip_suffix(".json")?.to_owned())
            })
            .collect(),
    })
}

/// What was done, for the summary.
#[derive(Default)]
struct Done {
    created: u32,
    deleted: u32,
    agents_killed: u32,
    kubelets_killed: u32,
    compared: u32,
    /// Of all comparisons: pods that ran, and pods that had no space.
    ran: usize,
    waited: usize,
}

struct World<'a> {
    kubectl: &'a Kubectl,
    image: String,
    nodes: Vec<Remote>,
    random: Xoshiro256PlusPlus,
    /// Memory of each pod's claim, GiB, by the pod's name.
    pods: BTreeMap<String, u64>,
    made: u32,
    done: Done,
}

/// A claim's part of a card: the card's UUID in the cluster's spelling, bytes.
type Given = (String, u64);

impl World<'_> {
    fn below(&mut self, most: u64) -> u64 {
        self.random.next_u64() % most
    }

    fn templates(&self) -> Result<()> {
        for gib in 1..=12 {
            for cores in [0, 20] {
                self.kubectl.create(&json!({
                    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
                    "metadata": {"name": format!("m{gib}-c{cores}")},
                    "spec": {"spec": {"devices": {"requests": [{"name": "vgpu", "exactly": {
                        "deviceClassName": "vgpu.cgpu.io",
                        "capacity": {"requests": {"memory": format!("{gib}Gi"), "cores": cores.to_string()}},
                    }}]}}},
                }))?;
            }
        }
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        let gib = 1 + self.below(12);
        let cores = 20 * self.below(2);
        self.made += 1;
        let name = format!("p{}", self.made);
        let held = format!("{}Mi", gib * 1024 - SPARE_MIB);
        self.kubectl.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "runtimeClassName": "cgpu", "terminationGracePeriodSeconds": 0,
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": format!("m{gib}-c{cores}")}],
                "containers": [{
                    "name": "app", "image": self.image, "imagePullPolicy": "Never",
                    "command": ["cgpu-burn", "hold", held], "resources": {"claims": [{"name": "gpu"}]},
                }],
            },
        }))?;
        self.pods.insert(name, gib);
        self.done.created += 1;
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let which = usize::try_from(self.below(self.pods.len() as u64))?;
        let name = self.pods.keys().nth(which).context("a pod")?.clone();
        let args = ["delete", "pod", &name, "--wait=false"];
        self.kubectl.run(&args)?.success()?;
        self.pods.remove(&name);
        self.done.deleted += 1;
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let draw = self.below(100);
        let which = usize::from(self.below(2) == 1);
        match draw {
            0..=49 if self.pods.len() < PODS_MAX => self.create()?,
            0..=84 if !self.pods.is_empty() => self.delete()?,
            0..=91 => {
                let node = &mut self.nodes[which];
                let order = if node.has_agent {
                    self.done.agents_killed += 1;
                    Order::KillAgent
                } else {
                    Order::StartAgent
                };
                node.has_agent = !node.has_agent;
                node.tell(order)?;
            }
            92..=95 => {
                self.nodes[which].tell(Order::RestartKubelet)?;
                self.done.kubelets_killed += 1;
            }
            _ => {}
        }
        let pause = self.below(500);
        std::thread::sleep(Duration::from_millis(pause));
        Ok(())
    }

    /// Waits until every pod runs, or has no space; says how many of each there are.
    fn rest(&mut self) -> Result<(BTreeSet<String>, usize)> {
        for node in &mut self.nodes {
            if !node.has_agent {
                node.tell(Order::StartAgent)?;
                node.has_agent = true;
            }
        }
        let mut at_rest = (BTreeSet::new(), 0);
        let mut left = Vec::new();
        let waited = wait_until("all pods to run or to wait for space", REST, || {
            let pods = self.kubectl.get(&["pods"])?;
            let pods = pods["items"].as_array().cloned().unwrap_or_default();
            left.clear();
            at_rest = (BTreeSet::new(), 0);
            for pod in &pods {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let status = &pod["status"];
                let is_known = self.pods.contains_key(name);
                if is_known && status["containerStatuses"][0]["state"]["running"].is_object() {
                    at_rest.0.insert(name.to_owned());
                } else if is_known && has_no_space(status) {
                    at_rest.1 += 1;
                } else {
                    left.push(format!("{name}: {status}"));
                }
            }
            Ok(left.is_empty() && at_rest.0.len() + at_rest.1 == self.pods.len())
        });
        waited.with_context(|| format!("still on the way: {left:#?}"))?;
        Ok(at_rest)
    }

    /// What the scheduler has given on each node, by the claim's uid.
    fn given(&self) -> Result<BTreeMap<String, BTreeMap<String, Given>>> {
        let claims = self.kubectl.get(&["resourceclaims"])?;
        let mut given: BTreeMap<String, BTreeMap<String, Given>> = BTreeMap::new();
        for claim in claims["items"].as_array().into_iter().flatten() {
            let uid = claim["metadata"]["uid"].as_str().context("a uid")?;
            let results = &claim["status"]["allocation"]["devices"]["results"];
            for result in results.as_array().into_iter().flatten() {
                let text = |key: &str| result[key].as_str().context("a result").map(str::to_owned);
                let memory = result["consumedCapacity"]["memory"].as_str();
                let gib = memory.and_then(|memory| memory.strip_suffix("Gi"));
                let bytes = gib.context("GiB")?.parse::<u64>()? << 30;
                let of_node = given.entry(text("pool")?).or_default();
                let twice = of_node.insert(uid.to_owned(), (text("device")?, bytes));
                ensure!(twice.is_none(), "{claim} has two results");
            }
        }
        Ok(given)
    }

    fn compare(&mut self) -> Result<()> {
        let (running, waiting) = self.rest()?;
        // Claims of deleted pods go after them, and records after the claims.
        let mut last = String::new();
        wait_until("the accounts to agree", REST, || {
            last = self.differences(&running)?;
            Ok(last.is_empty())
        })
        .with_context(|| last.clone())?;
        self.done.compared += 1;
        self.done.ran += running.len();
        self.done.waited += waiting;
        Ok(())
    }

    /// Where the three accounts differ; empty: nowhere.
    fn differences(&self, running: &BTreeSet<String>) -> Result<String> {
        let given = self.given()?;
        let mut text = String::new();
        let mut held_bytes = 0;
        for node in &self.nodes {
            let name = node.name;
            let looked = node.look()?;
            let none = BTreeMap::new();
            let given = given.get(name).unwrap_or(&none);
            let uids: BTreeSet<String> = given.keys().cloned().collect();
            if looked.records != uids {
                writeln!(
                    text,
                    "{name}: records {:?}, claims {uids:?}",
                    looked.records
                )?;
            }
            let cards = looked.cards["cards"].as_array().context("cards")?;
            for card in cards {
                let uuid = card["uuid"].as_str().context("a uuid")?;
                let number = |of: &Value, key: &str| of[key].as_u64().context("a number");
                let of_card = given
                    .values()
                    .filter(|(device, _)| *device == uuid.to_ascii_lowercase());
                let counted: u64 = of_card.map(|(_, bytes)| bytes).sum();
                let reserved = number(card, "granted_bytes")?;
                if counted != reserved {
                    writeln!(
                        text,
                        "{name} {uuid}: counted {counted}, reserved {reserved}"
                    )?;
                }
                let memory = number(card, "memory_bytes")?;
                ensure!(
                    counted <= memory,
                    "given twice: {counted} of {memory} bytes of {uuid}"
                );
                let mut account = looked.account.as_array().into_iter().flatten();
                let on_card = account.find(|account| account["uuid"] == uuid);
                let used = number(on_card.context("the card's account")?, "used_bytes")?;
                ensure!(
                    used <= reserved,
                    "{uuid} holds {used} of {reserved} reserved bytes"
                );
                held_bytes += used;
            }
        }
        let sizes = running.iter().filter_map(|name| self.pods.get(name));
        let least: u64 = sizes.map(|gib| (gib * 1024 - SPARE_MIB) * MIB).sum();
        if held_bytes < least {
            writeln!(text, "cards hold {held_bytes}, containers have {least}")?;
        }
        Ok(text)
    }
}

fn has_no_space(status: &Value) -> bool {
    let conditions = status["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "PodScheduled" && condition["status"] == "False")
}

fn steps() -> Result<(u64, u64)> {
    let read = |key: &str, default: u64| match std::env::var(key) {
        Ok(text) => text.parse().with_context(|| format!("{key}={text:?}")),
        Err(_absent) => Ok(default),
    };
    Ok((
        read("CGPU_KUBELET_STEPS", 30)?,
        read("CGPU_KUBELET_SEED", 1)?,
    ))
}

fn live(world: &mut World<'_>, steps: u64) -> Result<()> {
    world.templates()?;
    for step in 1..=steps {
        world.step().with_context(|| format!("step {step}"))?;
        if step % COMPARED_EVERY == 0 || step == steps {
            world.compare().with_context(|| format!("step {step}"))?;
        }
    }
    // In the end nothing is left.
    while !world.pods.is_empty() {
        world.delete()?;
    }
    world.compare()
}

#[test]
fn two_kubelets_live_random_lives_and_all_accounts_agree() -> Result<()> {
    let test = "two_kubelets_live_random_lives_and_all_accounts_agree";
    on_control_plane(test, Extent::Whole, |plane| {
        if let Some(reason) = lives(plane)? {
            skip!(test, "{reason}");
        }
        Ok(())
    })
}

/// The lives on two nodes, or a reason to skip.
fn lives(plane: &ControlPlane) -> Result<Option<String>> {
    let (steps, seed) = steps()?;
    let kubectl = plane.kubectl();
    apply(&kubectl)?;
    std::thread::scope(|scope| -> Result<Option<String>> {
        let (started, start) = mpsc::channel();
        let mut threads = Vec::new();
        let mut nodes = Vec::new();
        for which in [Nth::First, Nth::Second] {
            let started = started.clone();
            let (orders, order) = mpsc::channel();
            let (reply, replies) = mpsc::channel();
            threads.push(scope.spawn(move || serve(plane, which, &started, &order, &reply)));
            nodes.push(Remote {
                name: which.name(),
                orders,
                replies,
                has_agent: true,
            });
        }
        drop(started);
        let mut image = String::new();
        for _ in &nodes {
            match start.recv() {
                Ok(Ok(name)) => image = name,
                Ok(Err(reason)) => return Ok(Some(reason)),
                Err(_ended) => bail!("a node has not started"),
            }
        }
        let mut world = World {
            kubectl: &kubectl,
            image,
            nodes,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            pods: BTreeMap::new(),
            made: 0,
            done: Done::default(),
        };
        live(&mut world, steps)?;
        summarise(seed, steps, &world.done)?;
        drop(world);
        for thread in threads {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        Ok(None)
    })
}

fn summarise(seed: u64, steps: u64, done: &Done) -> Result<()> {
    let Done {
        created,
        deleted,
        agents_killed,
        kubelets_killed,
        compared,
        ran,
        waited,
    } = done;
    let text = format!(
        "seed {seed}, {steps} steps: {created} pods created, {deleted} deleted, {agents_killed} agents and {kubelets_killed} kubelets killed; \
         {compared} comparisons with {ran} running and {waited} waiting pods in all, no difference\n"
    );
    print!("{text}");
    if let Some(path) = std::env::var_os("CGPU_KUBELET_SUMMARY") {
        std::fs::write(path, text)?;
    }
    Ok(())
}
