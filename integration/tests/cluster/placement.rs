//! Claims and classic pods through the real scheduler and controllers, on nodes that are objects alone.

use anyhow::{Context, Result};
use integration::cluster::{
    Card, Extent, Kubectl, add_node, apply, on_control_plane, pods, post_slice, reap, remove,
    template, wait_event, wait_placed, workload,
};
use integration::command::{LIMIT, wait_until};
use serde_json::{Value, json};

/// A whole control plane with the policies, and one node with two cards of 24 GiB.
fn on_cluster(test: &str, body: impl FnOnce(&Kubectl) -> Result<()>) -> Result<()> {
    on_control_plane(test, Extent::Whole, |plane| {
        let kubectl = plane.kubectl();
        apply(&kubectl)?;
        add_node(&kubectl, "n1")?;
        post_slice(&kubectl, "n1", &two_cards())?;
        body(&kubectl)
    })
}

fn two_cards() -> [Card; 2] {
    [0, 1].map(|index| Card::new(index, "n1", 24))
}

fn apply_workload(kubectl: &Kubectl, name: &str) -> Result<()> {
    let path = workload(name).display().to_string();
    kubectl.run(&["apply", "-f", &path])?.success()?;
    Ok(())
}

fn texts(placed: &[Vec<integration::cluster::Share>]) -> Vec<Vec<String>> {
    let text = |shares: &Vec<_>| shares.iter().map(ToString::to_string).collect();
    placed.iter().map(text).collect()
}

/// Waits until no claim of the namespace is left.
fn wait_released(kubectl: &Kubectl) -> Result<()> {
    wait_until("the claims to be released", LIMIT, || {
        reap(kubectl)?;
        let claims = kubectl.get(&["resourceclaims"])?;
        Ok(claims["items"].as_array().is_some_and(Vec::is_empty))
    })
}

fn pod(name: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]},
    })
}

#[test]
fn classic_pods_hold_what_they_name_and_give_it_back() -> Result<()> {
    on_cluster(
        "classic_pods_hold_what_they_name_and_give_it_back",
        |kubectl| {
            // A pod waits for its template, with an event that names it.
            apply_workload(kubectl, "tensorflow-job")?;
            let selector = "app=tensorflow-mnist-multigpu";
            wait_until("the job's pod", LIMIT, || {
                Ok(pods(kubectl, selector)?.len() == 1)
            })?;
            let job = pods(kubectl, selector)?.pop().context("a pod")?;
            let name = job["metadata"]["name"].as_str().context("a name")?;
            let waits = wait_event(kubectl, name, "FailedResourceClaimCreation")?;
            assert!(waits.contains("cgpu-m4-c0-x2"), "{waits}");
            for name in [
                "cgpu-m4-c0-x2",
                "cgpu-m8-c30-x1",
                "cgpu-m512mi-c0-x1",
                "cgpu-m3000mi-c10-x1",
                "cgpu-m23-c0-x1",
            ] {
                kubectl.create(&template(name, "default")?)?;
            }
            let job = wait_placed(kubectl, selector, 1)?;
            assert_eq!(texts(&job), [["n1/gpu-0 4Gi 1 %", "n1/gpu-1 4Gi 1 %"]]);
            apply_workload(kubectl, "deployment")?;
            let replicas = wait_placed(kubectl, "app=inference", 3)?;
            // 4 + 8 + 8 on the first card: the third has to be on the second one.
            let mut replicas = texts(&replicas).concat();
            replicas.sort();
            assert_eq!(
                replicas,
                [
                    "n1/gpu-0 8Gi 30 %",
                    "n1/gpu-0 8Gi 30 %",
                    "n1/gpu-1 8Gi 30 %"
                ]
            );
            apply_workload(kubectl, "hami")?;
            let hami = wait_placed(kubectl, "hami", 1)?;
            assert_eq!(
                texts(&hami),
                [["n1/gpu-0 3000Mi 10 %", "n1/gpu-0 512Mi 1 %"]]
            );
            apply_workload(kubectl, "claim")?;
            let claimed = wait_placed(kubectl, "claimed", 1)?;
            assert_eq!(texts(&claimed), [["n1/gpu-1 6Gi 20 %"]]);
            // What does not fit waits, and the event says so.
            apply_workload(kubectl, "large")?;
            let waits = wait_event(kubectl, "large", "FailedScheduling")?;
            assert!(waits.contains("cannot allocate all claims"), "{waits}");
            remove(kubectl, &["job,deployment,pod", "--all"])?;
            wait_released(kubectl)?;
            // A whole card is one that nothing else is on.
            apply_workload(kubectl, "whole-card")?;
            let whole = wait_placed(kubectl, "whole", 1)?;
            assert_eq!(texts(&whole), [["n1/gpu-0 24Gi 1 %"]]);
            kubectl.create(&pod("beside", &json!({"nvidia.com/gpumem": 512})))?;
            assert_eq!(
                texts(&wait_placed(kubectl, "beside", 1)?),
                [["n1/gpu-1 512Mi 1 %"]]
            );
            no_policy_is_mistyped(kubectl)
        },
    )
}

/// The server checks the types of expressions against the objects that they are for, and reports in the policy's status.
fn no_policy_is_mistyped(kubectl: &Kubectl) -> Result<()> {
    wait_until("the policies to be checked", LIMIT, || {
        let policies = kubectl.get(&["validatingadmissionpolicies"])?;
        let all = policies["items"].as_array().context("policies")?;
        for policy in all {
            let warnings = &policy["status"]["typeChecking"]["expressionWarnings"];
            assert!(
                warnings.is_null(),
                "{}: {warnings:#}",
                policy["metadata"]["name"]
            );
        }
        let is_checked = |policy: &Value| !policy["status"]["observedGeneration"].is_null();
        Ok(!all.is_empty() && all.iter().all(is_checked))
    })
}

#[test]
fn a_lost_card_evicts_its_pods_and_quotas_hold_what_they_can() -> Result<()> {
    on_cluster(
        "a_lost_card_evicts_its_pods_and_quotas_hold_what_they_can",
        |kubectl| {
            kubectl.create(&template("cgpu-m8-c30-x1", "default")?)?;
            apply_workload(kubectl, "deployment")?;
            let before = texts(&wait_placed(kubectl, "app=inference", 3)?).concat();
            assert_eq!(before, ["n1/gpu-0 8Gi 30 %"; 3], "first fit");
            let [mut lost, healthy] = two_cards();
            lost.taints = vec![json!({"key": "gpu.cgpu.io/gpu-lost", "effect": "NoExecute"})];
            post_slice(kubectl, "n1", &[lost, healthy])?;
            wait_until("the pods to move", LIMIT, || {
                let placed = pods(kubectl, "app=inference")?;
                let mut shares = Vec::new();
                for pod in &placed {
                    shares.extend(integration::cluster::shares(kubectl, pod)?);
                }
                Ok(shares.len() == 3 && shares.iter().all(|share| share.device == "gpu-1"))
            })?;
            assert_eq!(reap(kubectl)?, 3, "the evicted ones");
            remove(kubectl, &["deployment,pod", "--all"])?;
            wait_released(kubectl)?;
            post_slice(kubectl, "n1", &two_cards())?;
            // What names the classic key counts nothing any more, for no pod has it after translation.
            kubectl.create(&quota("gib", "requests.aliyun.com/gpu-mem", "4"))?;
            kubectl.create(&pod(
                "void",
                &json!({"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": 30}),
            ))?;
            wait_placed(kubectl, "void", 1)?;
            // Devices of the class are counted, and the claim of a pod above the quota is not made.
            kubectl.create(&quota(
                "devices",
                "vgpu.cgpu.io.deviceclass.resource.k8s.io/devices",
                "1",
            ))?;
            let used = |quota: &Value| quota["status"]["used"].to_string().contains("\"1\"");
            kubectl.wait("the quota to count", &["resourcequota", "devices"], used)?;
            kubectl.create(&pod(
                "above",
                &json!({"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-core.percentage": 30}),
            ))?;
            let waits = wait_event(kubectl, "above", "FailedResourceClaimCreation")?;
            assert!(waits.contains("exceeded quota: devices"), "{waits}");
            Ok(())
        },
    )
}

fn quota(name: &str, key: &str, amount: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name},
        "spec": {"hard": {key: amount}},
    })
}
