//! What a cluster's owner rules: how pods go to nodes, who comes before whom on a card, how much a namespace gets, and who goes for whom.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use integration::cluster::{Controller, pods, remove};
use integration::command::{LIMIT, wait_until};
use serde_json::{Value, json};

use super::nodes::{container, running, totals};
use super::{Show, part};

/// The part of a node's memory that claims hold, by its label.
const GIVEN: &str = "cgpu.io/memory-given";
/// Two of the pods that fill a card of 24 GiB.
const HALF_GIB: u64 = 11;
/// Two on each card of two nodes with two cards.
const FILL: usize = 8;

/// Shows it on two nodes without claims.
///
/// # Errors
/// A step fails.
pub(super) fn show(show: &mut Show, image: &str) -> Result<()> {
    among_nodes(show, image)?;
    priority_on_a_card(show, image)?;
    maximum_of_a_namespace(show, image)?;
    eviction(show, image)
}

/// A classic pod with some GiB.
fn classic(name: &str, image: &str, gib: u64, annotations: &Value, spec: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"is": name}, "annotations": annotations},
        "spec": spec,
    });
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    pod["spec"]["containers"] = json!([container(image, &json!({"aliyun.com/gpu-mem": gib}))]);
    pod
}

fn annotate(show: &Show, annotation: &str) -> Result<()> {
    show.run(&["annotate", "namespace", "default", annotation])?
        .success()?;
    Ok(())
}

fn among_nodes(show: &mut Show, image: &str) -> Result<()> {
    println!(
        "\n\n(12) Among nodes: one after the other on one node, or in turns. Agents keep a label of their nodes for it."
    );
    for (policy, expected) in [("binpack", "1 node"), ("spread", "2 nodes")] {
        let mut nodes = BTreeSet::new();
        for (index, given) in ["30", "50"].into_iter().enumerate() {
            let name = format!("{policy}-{index}");
            let annotations = json!({"cgpu.io/nodes": policy});
            let pod = classic(&name, image, 12, &annotations, &json!({}));
            show.send(&show.kubectl, &[], &pod)?.success()?;
            running(show, &format!("is={name}"))?;
            let pod = show.kubectl.get(&["pod", &name])?;
            let node = pod["spec"]["nodeName"].as_str().context("a node")?;
            let is_first = nodes.insert(node.to_owned());
            wait_given(show, node, if is_first { "30" } else { given })?;
        }
        show.run(&["get", "nodes", "-L", GIVEN])?.success()?;
        let seen = match nodes.len() {
            1 => "1 node".to_owned(),
            count => format!("{count} nodes"),
        };
        show.expect(&format!("(12) two pods, {policy}, are on"), expected, seen);
        show.clear()?;
        for node in ["k1", "k2"] {
            wait_given(show, node, "0")?;
        }
    }
    Ok(())
}

fn wait_given(show: &Show, node: &str, value: &str) -> Result<()> {
    let is_so = |node: &Value| node["metadata"]["labels"][GIVEN] == value;
    let what = format!("{GIVEN}={value} of {node}");
    show.kubectl.wait(&what, &["node", node], is_so)?;
    Ok(())
}

fn priority_on_a_card(show: &mut Show, image: &str) -> Result<()> {
    println!(
        "\n\n(13) Online before offline on one card, by the PriorityClass that pods have anyway, where the namespace's owner lets it."
    );
    annotate(show, "cgpu.io/high-priority-from=1000")?;
    for (name, value) in [("online", 1000), ("offline", -10)] {
        show.kubectl.create(&json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value,
        }))?;
        let spec =
            json!({"priorityClassName": name, "nodeSelector": {"kubernetes.io/hostname": "k1"}});
        let pod = classic(name, image, 4, &json!({}), &spec);
        show.send(&show.kubectl, &[], &pod)?.success()?;
        running(show, &format!("is={name}"))?;
    }
    let columns = "custom-columns=POD:.status.reservedFor[*].name,CLASS:.spec.devices.requests[*].exactly.deviceClassName,\
        CARD:.status.allocation.devices.results[*].device,PRIORITY:.status.devices[*].data.priority";
    let mut seen = String::new();
    wait_until("the claims' status", LIMIT, || {
        let claims = show.kubectl.get(&["resourceclaims"])?;
        let claims = claims["items"].as_array().context("claims")?;
        let mut of = claims
            .iter()
            .filter_map(|claim| {
                let pod = claim["status"]["reservedFor"][0]["name"].as_str()?;
                let priority = &claim["status"]["devices"][0]["data"]["priority"];
                Some(format!("{pod} {}", priority.as_str()?))
            })
            .collect::<Vec<_>>();
        of.sort();
        seen = of.join(", ");
        Ok(of.len() == 2)
    })?;
    show.run(&["get", "resourceclaims", "-o", columns])?
        .success()?;
    show.expect(
        "(13) priority on the card",
        "offline low, online high",
        seen,
    );
    let raised = json!({"cgpu.io/priority": "high"});
    let pod = classic("raised", image, 4, &raised, &json!({}));
    let refused = show.send(&show.kubectl, &[], &pod)?;
    let expected = "cgpu.io/priority: high";
    show.expect(
        "(13) a pod that raises its own",
        expected,
        part(&refused.stderr, expected).to_owned(),
    );
    show.clear()
}

fn maximum_of_a_namespace(show: &mut Show, image: &str) -> Result<()> {
    println!("\n\n(14) A namespace's maximum of GPU memory: 20 GiB, and three pods of 8 GiB.");
    annotate(show, "cgpu.io/max-memory=20Gi")?;
    let wait_claimed = |claimed: Value| {
        let is_so = |namespace: &Value| {
            namespace["metadata"]["annotations"]["cgpu.io/memory-claimed"] == claimed
        };
        let what = format!("the account of {claimed}");
        show.kubectl.wait(&what, &["namespace", "default"], is_so)
    };
    wait_claimed(json!("0"))?;
    for name in ["first", "second"] {
        let pod = classic(name, image, 8, &json!({}), &json!({}));
        show.send(&show.kubectl, &[], &pod)?.success()?;
        running(show, &format!("is={name}"))?;
    }
    wait_claimed(json!("16Gi"))?;
    let pod = classic("third", image, 8, &json!({}), &json!({}));
    show.send(&show.kubectl, &[], &pod)?.success()?;
    let expected = "cgpu.io/max-memory: 20Gi";
    let mut events = String::new();
    wait_until("the third pod to wait", LIMIT, || {
        let selector = "involvedObject.name=third";
        let args = ["get", "events", "--field-selector", selector];
        events = show.kubectl.run(&args)?.success()?.stdout;
        Ok(events.contains(expected))
    })?;
    println!("{}", events.trim_end());
    show.run(&["get", "pods"])?.success()?;
    let seen = part(&events, expected).to_owned();
    show.expect("(14) the third pod waits for", expected, seen);
    show.run(&["delete", "pod", "first"])?.success()?;
    let third = running(show, "is=third")?;
    let seen = totals(show, &third)?;
    show.expect(
        "(14) and when the first has gone, it sees",
        "8192 MiB",
        seen,
    );
    annotate(show, "cgpu.io/max-memory-")?;
    show.clear()
}

/// Names of the pods of a Deployment that run, and of those that wait.
fn offline(show: &Show) -> Result<(usize, usize)> {
    let pods = pods(&show.kubectl, "app=offline")?;
    let count = |phase: &str| {
        let those = pods.iter().filter(|pod| pod["status"]["phase"] == phase);
        those.count()
    };
    Ok((count("Running"), count("Pending")))
}

fn eviction(show: &mut Show, image: &str) -> Result<()> {
    println!(
        "\n\n(15) Eviction for priority, where it is turned on: a Deployment of offline pods fills all cards, and an online pod comes."
    );
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "offline"},
        "spec": {
            "replicas": FILL,
            "selector": {"matchLabels": {"app": "offline"}},
            "template": {
                "metadata": {"labels": {"app": "offline"}},
                "spec": {
                    "priorityClassName": "offline", "terminationGracePeriodSeconds": 0,
                    "containers": [container(image, &json!({"aliyun.com/gpu-mem": HALF_GIB}))],
                },
            },
        },
    });
    show.send(&show.kubectl, &[], &deployment)?.success()?;
    wait_until("all of them to run", LIMIT * 2, || {
        Ok(offline(show)? == (FILL, 0))
    })?;
    let controller = Controller::preemption(&show.plane)?;
    let spec = json!({"priorityClassName": "online"});
    let pod = classic("urgent", image, HALF_GIB, &json!({}), &spec);
    show.send(&show.kubectl, &[], &pod)?.success()?;
    let urgent = running(show, "is=urgent")?;
    let seen = totals(show, &urgent)?;
    show.expect("(15) the online pod runs, and sees", "11264 MiB", seen);
    // Its replacement comes, waits, and drives nobody away, nor does another one go for the same pod.
    wait_until("the replacement", LIMIT, || {
        Ok(offline(show)? == (FILL - 1, 1))
    })?;
    std::thread::sleep(Duration::from_secs(15));
    let reasons = ["reason=GpuPreempting", "reason=GpuPreempted"];
    for reason in reasons {
        show.run(&["get", "events", "--field-selector", reason])?
            .success()?;
    }
    show.run(&["get", "pods"])?.success()?;
    let (running, waiting) = offline(show)?;
    show.expect(
        "(15) offline pods that run, and that wait",
        format!("{} and 1", FILL - 1),
        format!("{running} and {waiting}"),
    );
    controller.finish()?;
    annotate(show, "cgpu.io/high-priority-from-")?;
    show.clear()?;
    remove(&show.kubectl, &["priorityclass", "online", "offline"])
}
