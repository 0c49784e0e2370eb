//! `cargo xtask cluster`: a private etcd and Kubernetes' own API server, scheduler and controllers, with the policies of `cluster/policies`.
//!
//! At first the nodes are objects alone, with slices as an agent publishes them: what is shown is how pods are admitted, placed, refused and
//! evicted. Their templates are posted in the controller's place. Then two nodes have kubelets, agents and simulated cards. The first run builds
//! Kubernetes, which takes half an hour on two cores.

mod nodes;
mod print;
mod rules;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use integration::cluster::{
    Card, Chart, ControlPlane, Extent, Kubectl, KubernetesPrograms, Share, add_node, apply, pods,
    post_slice, reap, remove, slice, template, wait_event, wait_placed, workload,
};
use integration::command::{LIMIT, Outcome, capture, progress, wait_until};
use integration::node::Node;
use integration::programs::Programs;
use integration::skip;
use serde_json::{Value, json};

use self::print::{print_reply, show_with};
use crate::table::{self, Row};

const CLAIMS: &str = "custom-columns=CLAIM:.metadata.name,NODE:.status.allocation.devices.results[*].pool,\
    CARD:.status.allocation.devices.results[*].device,MEMORY:.status.allocation.devices.results[*].consumedCapacity.memory,\
    CORES:.status.allocation.devices.results[*].consumedCapacity.cores,POD:.status.reservedFor[*].name";

pub(crate) fn run() -> Result<ExitCode> {
    let began = Instant::now();
    if let Some(reason) = skip::lacks_root() {
        bail!("the cluster {reason}: it is in a mount namespace of its own");
    }
    let programs = KubernetesPrograms::build().context("building Kubernetes")?;
    // For tests of the chart, which wait for no build.
    Chart::build().context("building Helm")?;
    Programs::for_tests()?;
    let node = Node::bare()?;
    progress("starting etcd and Kubernetes' control plane");
    let plane = ControlPlane::start(&node, &programs, Extent::Whole)?;
    let mut show = Show {
        kubectl: plane.kubectl(),
        plane: Arc::new(plane),
        rows: Vec::new(),
    };
    show.introduce()?;
    show.claims()?;
    show.classic_job()?;
    show.replicas()?;
    show.order_of_cards()?;
    show.what_does_not_fit()?;
    show.refusals()?;
    show.agents()?;
    show.lost_card()?;
    show.release()?;
    nodes::show(&mut show)?;
    let Show {
        plane, mut rows, ..
    } = show;
    progress("stopping everything and looking for leftovers");
    let plane = Arc::into_inner(plane).context("the nodes have let go of it")?;
    let cleaned = match plane.finish().and_then(|()| node.finish()) {
        Ok(()) => "nothing".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    rows.push(Row::new("left on the machine", "nothing", cleaned));
    Ok(table::print_expected(&rows, began.elapsed()))
}

/// The cluster and what was seen on it so far. Fields end in this order.
struct Show {
    kubectl: Kubectl,
    plane: Arc<ControlPlane>,
    rows: Vec<Row>,
}

impl Show {
    fn expect(&mut self, fact: &str, expected: impl Into<String>, seen: impl Into<String>) {
        self.rows.push(Row::new(fact, expected, seen));
    }

    /// Prints a command as one would type it, and what it prints.
    fn run(&self, args: &[&str]) -> Result<Outcome> {
        show_with(&self.kubectl, args)
    }

    /// The same by cgpu's plugin, which kubectl finds in its path.
    fn plugin(&self, args: &[&str]) -> Result<Outcome> {
        println!("\n$ kubectl {}", args.join(" "));
        let mut command = self.kubectl.command(args)?;
        command.env("PATH", Programs::for_tests()?.folder());
        let reply = capture(&mut command, LIMIT)?;
        print_reply(&reply);
        Ok(reply)
    }

    fn apply(&self, name: &str) -> Result<()> {
        let path = workload(name);
        let shown = path.display().to_string();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        println!("\n$ kubectl apply -f {file}");
        print_reply(&self.kubectl.run(&["apply", "-f", &shown])?.success()?);
        Ok(())
    }

    /// Sends an object that is refused or not, and shows it as a document on standard input.
    fn send(&self, kubectl: &Kubectl, options: &[&str], object: &Value) -> Result<Outcome> {
        let shown: String = options.iter().map(|option| format!("{option} ")).collect();
        println!("\n$ kubectl create {shown}-f - <<< '{object}'");
        let reply = kubectl.send("create", options, object)?;
        print_reply(&reply);
        Ok(reply)
    }

    fn claims_table(&self) -> Result<()> {
        self.run(&["get", "resourceclaims", "-o", CLAIMS])?
            .success()?;
        Ok(())
    }

    fn introduce(&mut self) -> Result<()> {
        println!(
            "\nEverything below runs on {}; `kubectl` is its administrator's.",
            self.plane.address()
        );
        println!("CLAIMS={CLAIMS}");
        self.run(&["version"])?.success()?;
        progress("applying cluster/policies, and posting two nodes with two cards of 24 GiB each");
        apply(&self.kubectl)?;
        for node in ["n1", "n2"] {
            add_node(&self.kubectl, node)?;
            post_slice(&self.kubectl, node, &cards(node))?;
        }
        self.run(&["get", "nodes"])?.success()?;
        self.run(&["get", "resourceslices"])?.success()?;
        self.run(&[
            "get",
            "mutatingadmissionpolicies,validatingadmissionpolicies,deviceclasses",
        ])?
        .success()?;
        Ok(())
    }

    fn claims(&mut self) -> Result<()> {
        println!("\n\n(1) A pod with a claim of its own: 6 GiB and 20 percent.");
        self.apply("claim")?;
        let placed = wait_placed(&self.kubectl, "claimed", 1)?;
        self.claims_table()?;
        self.expect("(1) the claim holds", "gpu-0 6Gi 20 %", amounts(&placed));
        Ok(())
    }

    fn classic_job(&mut self) -> Result<()> {
        println!("\n\n(2) A classic job, unchanged: gpu-mem 8 over gpu-count 2.");
        self.apply("tensorflow-job")?;
        let selector = "app=tensorflow-mnist-multigpu";
        wait_until("the job's pod", LIMIT, || {
            Ok(pods(&self.kubectl, selector)?.len() == 1)
        })?;
        let pod = pods(&self.kubectl, selector)?.pop().context("a pod")?;
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        let waits = wait_event(&self.kubectl, name, "FailedResourceClaimCreation")?;
        println!("\nuntil its template is there: {waits}");
        for name in [
            "cgpu-m4-c0-x2",
            "cgpu-m8-c30-x1",
            "cgpu-m512mi-c0-x1",
            "cgpu-m3000mi-c10-x1",
            "cgpu-m23-c0-x1",
        ] {
            self.kubectl.create(&template(name, "default")?)?;
        }
        let placed = wait_placed(&self.kubectl, selector, 1)?;
        let fields = "jsonpath={.items[0].spec.resourceClaims}{\"\\n\"}{.items[0].spec.containers[0].resources}{\"\\n\"}{.items[0].spec.runtimeClassName}{\"\\n\"}";
        self.run(&["get", "pods", "-l", selector, "-o", fields])?
            .success()?;
        self.claims_table()?;
        self.expect(
            "(2) the job holds",
            "gpu-0 4Gi 1 %, gpu-1 4Gi 1 %",
            amounts(&placed),
        );
        let nodes: BTreeSet<String> = placed
            .concat()
            .into_iter()
            .map(|share| share.node)
            .collect();
        self.expect("(2) nodes of its cards", "1", nodes.len().to_string());
        Ok(())
    }

    fn replicas(&mut self) -> Result<()> {
        println!(
            "\n\n(3) A Deployment of three replicas, 8 GiB and 30 percent each, and a pod of HAMi's dialect."
        );
        self.apply("deployment")?;
        let placed = wait_placed(&self.kubectl, "app=inference", 3)?;
        let whole = |share: &&Share| share.memory == "8Gi" && share.cores == "30";
        let count = placed.concat().iter().filter(whole).count();
        self.expect("(3) replicas that hold 8Gi, 30 %", "3", count.to_string());
        self.apply("hami")?;
        let placed = wait_placed(&self.kubectl, "hami", 1)?;
        self.run(&["get", "pods", "-o", "wide"])?.success()?;
        self.claims_table()?;
        let memory: Vec<String> = placed
            .concat()
            .into_iter()
            .map(|share| share.memory)
            .collect();
        self.expect(
            "(3) HAMi's pod and its init container hold",
            "3000Mi, 512Mi",
            memory.join(", "),
        );
        Ok(())
    }

    fn order_of_cards(&mut self) -> Result<()> {
        println!(
            "\n\n(4) The order of a node's cards in its slice decides: fullest first packs, emptiest first spreads."
        );
        self.clear()?;
        // Another node's cards would be free too.
        self.run(&["cordon", "n2"])?.success()?;
        let [first, second] = cards("n1");
        let pod = |name: &str| {
            classic(
                name,
                &json!({"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": 30}),
            )
        };
        let mut seen = Vec::new();
        for (name, order) in [
            ("pack-1", [&first, &second]),
            ("pack-2", [&first, &second]),
            ("spread", [&second, &first]),
        ] {
            post_slice(&self.kubectl, "n1", &order.map(Clone::clone))?;
            self.send(&self.kubectl, &[], &pod(name))?.success()?;
            seen.extend(wait_placed(&self.kubectl, name, 1)?.concat());
        }
        self.claims_table()?;
        let devices: Vec<&str> = seen.iter().map(|share| share.device.as_str()).collect();
        self.expect(
            "(4) fullest first, twice, then emptiest first",
            "gpu-0 gpu-0 gpu-1",
            devices.join(" "),
        );
        post_slice(&self.kubectl, "n1", &[first, second])?;
        Ok(())
    }

    fn what_does_not_fit(&mut self) -> Result<()> {
        println!("\n\n(5) What no card has left waits, and an event says so.");
        self.apply("large")?;
        let waits = wait_event(&self.kubectl, "large", "FailedScheduling")?;
        self.run(&["get", "pods", "large"])?.success()?;
        self.run(&[
            "get",
            "events",
            "--field-selector",
            "involvedObject.name=large",
        ])?
        .success()?;
        self.expect(
            "(5) 23 GiB on cards of 24 with 8 and more taken",
            "cannot allocate all claims",
            part(&waits, "cannot allocate all claims"),
        );
        let why = self.plugin(&["cgpu", "explain", "large"])?.stdout;
        let needed = "memory: 23 GiB needed";
        self.expect("(5) kubectl cgpu explain", needed, part(&why, needed));
        self.run(&["uncordon", "n2"])?.success()?;
        let placed = wait_placed(&self.kubectl, "large", 1)?;
        self.expect(
            "(5) when another node has a free card",
            "n2/gpu-0 23Gi 1 %",
            texts(&placed),
        );
        self.plugin(&["cgpu", "inspect", "-d"])?.success()?;
        Ok(())
    }

    fn refusals(&mut self) -> Result<()> {
        println!("\n\n(6) What cannot be is refused at once, with the key and its value.");
        let mut uneven = classic("uneven", &json!({"aliyun.com/gpu-mem": 7}));
        uneven["metadata"]["labels"] = json!({"aliyun.com/gpu-count": "2"});
        let percent = classic(
            "percent",
            &json!({"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": 150}),
        );
        let unknown = classic("unknown", &json!({"aliyun.com/gpu-memory": 8}));
        let amounts = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "forged"},
            "spec": {"devices": {
                "requests": [{"name": "vgpu", "exactly": {"deviceClassName": "vgpu.cgpu.io", "capacity": {"requests": {"memory": "1Gi"}}}}],
                "config": [{"opaque": {"driver": "gpu.cgpu.io", "parameters": {"apiVersion": "cgpu.io/v1", "kind": "VGpuConfig", "memory": "200Gi"}}}],
            }},
        });
        for (object, expected) in [
            (uneven, "aliyun.com/gpu-mem: 7"),
            (percent, "aliyun.com/gpu-core.percentage: 150"),
            (unknown, "aliyun.com/gpu-memory: 8"),
            (amounts, "memory: 200Gi"),
        ] {
            let reply = self.send(&self.kubectl, &[], &object)?;
            let seen = if reply.succeeded() {
                "admitted"
            } else {
                part(&reply.stderr, expected)
            };
            let fact = format!(
                "(6) `{}` is refused for",
                object["metadata"]["name"].as_str().unwrap_or_default()
            );
            self.expect(&fact, expected, seen.to_owned());
        }
        Ok(())
    }

    fn agents(&mut self) -> Result<()> {
        println!("\n\n(7) The token of a node's agent writes slices of that node alone.");
        let agent = self.plane.kubectl_of("cgpu-agent", Some("n1"))?;
        show_with(&agent, &["auth", "whoami"])?.success()?;
        for (node, expected) in [
            ("n1", "admitted"),
            ("n2", "the agent of node n1 cannot write a slice of n2"),
        ] {
            let mut object = slice(node, &cards(node));
            object["metadata"]["name"] = json!("by-the-agent");
            let reply = self.send(&agent, &["--dry-run=server"], &object)?;
            let seen = if reply.succeeded() {
                "admitted"
            } else {
                part(&reply.stderr, expected)
            };
            self.expect(
                &format!("(7) a slice of {node}, by the agent of n1"),
                expected,
                seen.to_owned(),
            );
        }
        Ok(())
    }

    fn lost_card(&mut self) -> Result<()> {
        println!(
            "\n\n(8) A lost card's pods are evicted, and their replacements are placed elsewhere."
        );
        self.clear()?;
        self.apply("deployment")?;
        let before = wait_placed(&self.kubectl, "app=inference", 3)?;
        let lost = before.concat().first().context("a share")?.clone();
        let on_it = before
            .concat()
            .iter()
            .filter(|share| is_on(share, &lost))
            .count();
        let mut tainted = cards(&lost.node);
        for card in &mut tainted {
            if card.device == lost.device {
                card.taints = vec![json!({"key": "gpu.cgpu.io/gpu-lost", "effect": "NoExecute"})];
            }
        }
        println!(
            "\n{}/{} is reported lost: its slice has the taint gpu.cgpu.io/gpu-lost, NoExecute.",
            lost.node, lost.device
        );
        post_slice(&self.kubectl, &lost.node, &tainted)?;
        let mut after = Vec::new();
        wait_until("the pods to move", LIMIT, || {
            after.clear();
            for pod in pods(&self.kubectl, "app=inference")? {
                after.extend(integration::cluster::shares(&self.kubectl, &pod)?);
            }
            Ok(after.len() == 3 && !after.iter().any(|share| is_on(share, &lost)))
        })?;
        self.run(&[
            "get",
            "events",
            "--field-selector",
            "reason=DeviceTaintManagerEviction",
        ])?
        .success()?;
        self.run(&["get", "pods", "-o", "wide"])?.success()?;
        self.claims_table()?;
        let evicted = reap(&self.kubectl)?;
        self.expect(
            "(8) pods evicted of those on the card",
            on_it.to_string(),
            evicted.to_string(),
        );
        self.expect("(8) replicas on other cards", "3", after.len().to_string());
        post_slice(&self.kubectl, &lost.node, &cards(&lost.node))?;
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        println!("\n\n(9) Deletion returns everything.");
        self.clear()?;
        let left = self.kubectl.get(&["resourceclaims"])?;
        let left = left["items"].as_array().map_or(0, Vec::len);
        self.expect("(9) claims after deletion", "0", left.to_string());
        for index in 0..4 {
            self.send(&self.kubectl, &[], &whole(&format!("whole-{index}")))?
                .success()?;
        }
        let mut seen = Vec::new();
        for index in 0..4 {
            seen.extend(wait_placed(&self.kubectl, &format!("whole-{index}"), 1)?.concat());
        }
        seen.sort();
        self.claims_table()?;
        self.expect(
            "(9) all whole cards can be had again",
            "n1/gpu-0 24Gi 1 %, n1/gpu-1 24Gi 1 %, n2/gpu-0 24Gi 1 %, n2/gpu-1 24Gi 1 %",
            texts(&[seen]),
        );
        self.clear()
    }

    /// Deletes every workload and waits until its claims are gone.
    fn clear(&self) -> Result<()> {
        println!("\n$ kubectl delete job,deployment,pod --all");
        remove(&self.kubectl, &["job,deployment,pod", "--all"])?;
        wait_until("the claims to be released", LIMIT, || {
            reap(&self.kubectl)?;
            let claims = self.kubectl.get(&["resourceclaims"])?;
            Ok(claims["items"].as_array().is_some_and(Vec::is_empty))
        })
    }
}

fn cards(node: &str) -> [Card; 2] {
    [0, 1].map(|index| Card::new(index, node, 24))
}

fn is_on(share: &Share, card: &Share) -> bool {
    (&share.node, &share.device) == (&card.node, &card.device)
}

fn classic(name: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "app", "image": "registry.example.com/app", "resources": {"limits": limits}}]},
    })
}

fn whole(name: &str) -> Value {
    let mut pod = classic(name, &json!({"aliyun.com/gpu": 1}));
    pod["spec"]["runtimeClassName"] = json!("cgpu");
    pod
}

/// The same without the node: the scheduler chooses among equal ones by chance.
fn amounts(placed: &[Vec<Share>]) -> String {
    let one = |share: &Share| format!("{} {} {} %", share.device, share.memory, share.cores);
    let all: Vec<String> = placed.iter().flatten().map(one).collect();
    all.join(", ")
}

fn texts(placed: &[Vec<Share>]) -> String {
    let all: Vec<String> = placed.iter().flatten().map(ToString::to_string).collect();
    all.join(", ")
}

/// The part that is looked for, or all of the text where it is not there.
fn part<'a>(text: &'a str, expected: &'a str) -> &'a str {
    if text.contains(expected) {
        expected
    } else {
        text.trim()
    }
}
