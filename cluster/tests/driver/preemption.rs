//! The controller that evicts for priority, with Kubernetes' own server, scheduler and controllers, under the rights that it has in a cluster.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::{Access, PreemptionPace, run_preemption};
use integration::cache::repository;
use integration::cluster::{
    Card, ControlPlane, Extent, Kubectl, add_node, apply, on_control_plane, pods, post_slice, reap,
    remove, wait_event, wait_placed,
};
use integration::command::{LIMIT, wait_until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const PACE: PreemptionPace = PreemptionPace {
    period: Duration::from_millis(500),
    patience: Duration::from_secs(1),
    pause: Duration::from_secs(20),
};

/// A pod of a priority class, with a claim of a card's GiB.
fn pod(kubectl: &Kubectl, name: &str, class: &str, gib: u64) -> Result<()> {
    kubectl.create(&json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "vgpu", "exactly": {
            "deviceClassName": "vgpu.cgpu.io", "capacity": {"requests": {"memory": format!("{gib}Gi")}},
        }}]}}},
    }))?;
    kubectl.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"class": class}},
        "spec": {
            "priorityClassName": class, "runtimeClassName": "cgpu",
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
            "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }))
}

/// No kubelet reports that a pod runs.
fn run(kubectl: &Kubectl, name: &str) -> Result<()> {
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}).to_string();
    let patch = [
        "patch",
        "pod",
        name,
        "--subresource=status",
        "--type=strategic",
        "-p",
        &status,
    ];
    kubectl.run(&patch)?.success()?;
    Ok(())
}

fn share(kubectl: &Kubectl, pod: &str) -> Result<String> {
    let placed = wait_placed(kubectl, pod, 1)?.concat();
    Ok(placed.first().context("a share")?.to_string())
}

/// Names of the pods that are there and not on their way out.
fn names(kubectl: &Kubectl, selector: &str) -> Result<Vec<String>> {
    let pods = pods(kubectl, selector)?;
    let mut names: Vec<String> = pods
        .iter()
        .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    Ok(names)
}

fn classes(kubectl: &Kubectl) -> Result<()> {
    for (name, value, policy) in [
        ("low", -10, "PreemptLowerPriority"),
        ("usual", 0, "PreemptLowerPriority"),
        ("high", 1000, "PreemptLowerPriority"),
        ("patient", 1000, "Never"),
    ] {
        kubectl.create(&json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "preemptionPolicy": policy,
        }))?;
    }
    Ok(())
}

/// Waits until the scheduler has called a pod unschedulable, and the controller has had many looks at it since.
fn waits_on(kubectl: &Kubectl, name: &str) -> Result<()> {
    let is_marked = |pod: &Value| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["reason"] == "Unschedulable")
    };
    kubectl.wait("the scheduler's mark", &["pod", name], is_marked)?;
    std::thread::sleep(PACE.patience + PACE.period * 8);
    let pod = kubectl.get(&["pod", name])?;
    ensure!(pod["spec"]["nodeName"].is_null(), "{pod}");
    Ok(())
}

/// What a full node has: on one card two of low priority and a usual one, on the other a usual one alone.
fn fill(kubectl: &Kubectl) -> Result<()> {
    for (name, class, gib) in [
        ("low-old", "low", 8),
        ("usual-one", "usual", 8),
        ("low-young", "low", 8),
        ("usual-two", "usual", 24),
    ] {
        pod(kubectl, name, class, gib)?;
        share(kubectl, name)?;
        run(kubectl, name)?;
        // Ages are of seconds.
        std::thread::sleep(Duration::from_millis(1100));
    }
    Ok(())
}

#[test]
fn the_planned_pods_go_and_the_waiting_pod_comes() -> Result<()> {
    on_control_plane(
        "the_planned_pods_go_and_the_waiting_pod_comes",
        Extent::Whole,
        planned,
    )
}

fn planned(plane: &ControlPlane) -> Result<()> {
    plane.network().enter()?;
    let kubectl = plane.kubectl();
    apply(&kubectl)?;
    classes(&kubectl)?;
    let rights = repository()
        .join("cluster/policies/preemption/controller.yaml")
        .display()
        .to_string();
    kubectl.run(&["apply", "-f", &rights])?.success()?;
    add_node(&kubectl, "n1")?;
    post_slice(
        &kubectl,
        "n1",
        &[Card::new(0, "n1", 24), Card::new(1, "n1", 24)],
    )?;
    fill(&kubectl)?;
    // Without a controller nobody goes.
    pod(&kubectl, "high", "high", 8)?;
    waits_on(&kubectl, "high")?;
    ensure!(
        names(&kubectl, "class=low")? == ["low-old", "low-young"],
        "nobody was evicted"
    );
    let own = plane.kubectl_of("cgpu-preemption", None)?;
    for more in [
        ["get", "secrets"],
        ["delete", "pod/low-old"],
        ["get", "configmaps"],
    ] {
        let refused = own.run(&more)?.failure()?;
        assert!(refused.contains("forbidden"), "{refused}");
    }
    let access = Access {
        kubeconfig: Some(own.config().to_owned()),
        server: None,
    };
    let runtime = Runtime::new()?;
    let serve = || runtime.spawn(run_preemption(access.clone(), PACE, std::future::pending()));
    let controller = serve();
    // The youngest of the lowest priority goes, and no other one while it ends.
    wait_until("an eviction", LIMIT, || {
        Ok(names(&kubectl, "class=low")? == ["low-old"])
    })?;
    let why = wait_event(&kubectl, "low-young", "GpuPreempted")?;
    ensure!(
        why.contains("priority 1000") && why.contains("priority -10"),
        "{why}"
    );
    let why = wait_event(&kubectl, "high", "GpuPreempting")?;
    ensure!(
        why.contains("evicted on node n1") && why.ends_with(": 1"),
        "{why}"
    );
    // Another controller in its place has no memory of it, and sees who is ending.
    controller.abort();
    let controller = serve();
    std::thread::sleep(PACE.patience + PACE.period * 8);
    ensure!(
        names(&kubectl, "class=low")? == ["low-old"],
        "one is enough"
    );
    reap(&kubectl)?;
    ensure!(
        share(&kubectl, "high")? == "n1/gpu-0 8Gi 1 %",
        "it has its place"
    );
    run(&kubectl, "high")?;
    // Of equal priority nobody goes, nor for who waits for nobody.
    pod(&kubectl, "equal", "low", 8)?;
    pod(&kubectl, "patient", "patient", 8)?;
    waits_on(&kubectl, "equal")?;
    waits_on(&kubectl, "patient")?;
    ensure!(
        names(&kubectl, "class=usual")? == ["usual-one", "usual-two"],
        "nobody"
    );
    ensure!(
        names(&kubectl, "class=low")? == ["equal", "low-old"],
        "nobody"
    );
    remove(&kubectl, &["pod", "equal", "patient"])?;
    budget(&kubectl)?;
    in_part(&kubectl)?;
    controller.abort();
    Ok(())
}

/// Lets two evictions be decided, and refuses one of them when it comes: by rights that changed in between, as it were.
fn refusal() -> [Value; 2] {
    let name = json!({"name": "evictions"});
    let api = "admissionregistration.k8s.io/v1";
    [
        json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": name,
            "spec": {
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"], "operations": ["CREATE"],
                }]},
                "validations": [
                    {"expression": "request.dryRun || object.metadata.name != 'low-old'", "message": "not now"},
                    {"expression": "object.metadata.name != 'probe'", "message": "not the probe"},
                ],
            },
        }),
        json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": name,
            "spec": {"policyName": "evictions", "validationActions": ["Deny"]},
        }),
    ]
}

/// The second of two evictions fails: the pause of the pod that waits holds all the same, and nobody else goes in it.
fn in_part(kubectl: &Kubectl) -> Result<()> {
    remove(kubectl, &["pod,poddisruptionbudget", "--all"])?;
    remove(kubectl, &["resourceclaimtemplate", "--all"])?;
    fill(kubectl)?;
    for object in refusal() {
        kubectl.create(&object)?;
    }
    kubectl.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"},
        "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "i"}]},
    }))?;
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "probe"}});
    let path = "--raw=/api/v1/namespaces/default/pods/probe/eviction?dryRun=All";
    wait_until("the policy to be in force", LIMIT, || {
        let reply = kubectl.send("create", &[path], &eviction)?;
        Ok(reply.stderr.contains("not the probe"))
    })?;
    pod(kubectl, "wide", "high", 16)?;
    wait_until("the first eviction", LIMIT, || {
        Ok(names(kubectl, "class=low")? == ["low-old"])
    })?;
    remove(kubectl, &["validatingadmissionpolicybinding", "evictions"])?;
    reap(kubectl)?;
    std::thread::sleep(PACE.patience + PACE.period * 8);
    ensure!(
        names(kubectl, "class=low")? == ["low-old"],
        "nobody goes in the pause"
    );
    wait_until("the other one to go", LIMIT, || {
        Ok(names(kubectl, "class=low")?.is_empty())
    })?;
    reap(kubectl)?;
    ensure!(
        share(kubectl, "wide")? == "n1/gpu-0 16Gi 1 %",
        "it has its place"
    );
    Ok(())
}

/// A budget keeps the pod that would go, and the next best one goes.
fn budget(kubectl: &Kubectl) -> Result<()> {
    let budget = |class: &str, count: u32| {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": class},
            "spec": {"minAvailable": count, "selector": {"matchLabels": {"class": class}}},
        })
    };
    for (class, count) in [("low", 1), ("usual", 2)] {
        kubectl.create(&budget(class, count))?;
        let counted = |budget: &Value| {
            budget["status"]["observedGeneration"].is_u64()
                && budget["status"]["currentHealthy"] != 0
        };
        kubectl.wait(
            "the budget to count",
            &["poddisruptionbudget", class],
            counted,
        )?;
    }
    pod(kubectl, "second", "high", 8)?;
    waits_on(kubectl, "second")?;
    ensure!(
        names(kubectl, "class=low")? == ["low-old"],
        "the budget holds"
    );
    ensure!(
        names(kubectl, "class=usual")? == ["usual-one", "usual-two"],
        "the budget holds"
    );
    kubectl
        .run(&["delete", "poddisruptionbudget", "usual"])?
        .success()?;
    // The lowest priority stays by its budget; of the others the youngest goes.
    wait_until("an eviction", LIMIT, || {
        Ok(names(kubectl, "class=usual")? == ["usual-one"])
    })?;
    ensure!(
        names(kubectl, "class=low")? == ["low-old"],
        "the budget holds"
    );
    reap(kubectl)?;
    ensure!(
        share(kubectl, "second")? == "n1/gpu-1 8Gi 1 %",
        "it has its place"
    );
    Ok(())
}
