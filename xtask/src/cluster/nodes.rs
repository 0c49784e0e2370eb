//! The second half: two nodes with kubelets, containerd 2, the agent and the controller of templates; what pods name is what containers see.

use std::collections::BTreeMap;
use std::fs;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, Result, bail};
use integration::cluster::{
    ControlPlane, KubeletNode, NodeAgent, Nth, TemplatesController, remove,
};
use integration::command::{LIMIT, progress, wait_until};
use integration::packages::Suite;
use serde_json::{Value, json};

use super::{Show, part};

/// What a node reports once it serves: the image that it has.
type Started = Sender<Result<String, String>>;

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
    std::thread::scope(|scope| {
        let plane = show.plane.clone();
        let (started, start) = mpsc::channel();
        let mut nodes = Vec::new();
        for which in [Nth::First, Nth::Second] {
            let (started, plane) = (started.clone(), plane.clone());
            let (ends, end) = mpsc::channel();
            let thread = scope.spawn(move || serve(&plane, which, &started, &end));
            nodes.push((ends, thread));
        }
        drop(started);
        let shown = steps(show, &start, nodes.len());
        let mut ended = shown
            .as_ref()
            .map(|_| ())
            .map_err(|error| format!("{error:#}"));
        for (ends, thread) in nodes {
            // A node that is not told to end cleans up as after a failed test.
            if shown.is_ok() {
                let _is_there = ends.send(());
            }
            drop(ends);
            let result = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            if let (Ok(()), Err(error)) = (&ended, result) {
                ended = Err(format!("{error:#}"));
            }
        }
        shown?;
        ended.map_err(anyhow::Error::msg)
    })
}

/// One node, on a thread of its own, until the other side lets go.
fn serve(plane: &ControlPlane, which: Nth, started: &Started, end: &Receiver<()>) -> Result<()> {
    let worker = match KubeletNode::start(plane, which, Suite::Newer)? {
        Ok(worker) => worker,
        Err(reason) => {
            started.send(Err(reason))?;
            return Ok(());
        }
    };
    let agent = NodeAgent::start(plane, &worker, "agent")?;
    // One for the cluster.
    let controller = (which == Nth::First)
        .then(|| TemplatesController::start(plane, &worker.rig.node))
        .transpose()?;
    started.send(Ok(worker.rig.image.name.clone()))?;
    if end.recv().is_err() {
        bail!("the show has failed");
    }
    // The API server forgets a pod that is deleted by force before its kubelet has ended it.
    let claims = worker.rig.node.state_dir().join("claims");
    wait_until("the claims to be released on the node", LIMIT, || {
        Ok(fs::read_dir(&claims).map_or(true, |mut claims| claims.next().is_none()))
    })?;
    if let Some(controller) = controller {
        controller.finish()?;
    }
    agent.finish()?;
    worker.finish()
}

fn steps(show: &mut Show, start: &Receiver<Result<String, String>>, count: usize) -> Result<()> {
    let mut image = String::new();
    for _ in 0..count {
        let reply = start.recv().context("a node has not started")?;
        image = reply.map_err(anyhow::Error::msg)?;
    }
    show.run(&["get", "nodes", "-o", "wide"])?.success()?;
    show.run(&["get", "resourceslices"])?.success()?;
    job(show, &image)?;
    one_on_each(show, &image)?;
    forged(show, &image)?;
    show.clear()?;
    show.expect("(10) claims after deletion", "0", claims(show)?.to_string());
    Ok(())
}

fn claims(show: &Show) -> Result<usize> {
    let left = show.kubectl.get(&["resourceclaims"])?;
    Ok(left["items"].as_array().map_or(0, Vec::len))
}

fn container(image: &str, limits: &Value) -> Value {
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

/// Waits for the one pod with this label: its name.
fn running(show: &Show, label: &str) -> Result<String> {
    let runs = |list: &Value| list["items"][0]["status"]["phase"] == "Running";
    let list = show.kubectl.wait(
        &format!("the pod {label} to run"),
        &["pods", "-l", label],
        runs,
    )?;
    let name = list["items"][0]["metadata"]["name"].as_str();
    Ok(name.context("a name")?.to_owned())
}

fn totals(show: &Show, pod: &str) -> Result<String> {
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
