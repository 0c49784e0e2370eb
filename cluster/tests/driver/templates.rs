//! The controller of templates with Kubernetes' own servers, under the rights that it has in a cluster.

use std::time::Duration;

use anyhow::{Context, Result};
use cluster::{Access, TemplatesPace, run_templates};
use integration::cluster::{
    Card, ControlPlane, Extent, Kubectl, add_node, apply, on_control_plane, post_slice, remove,
    wait_event, wait_placed,
};
use integration::command::{LIMIT, wait_until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const PACE: TemplatesPace = TemplatesPace {
    period_s: 1,
    grace: Duration::from_secs(2),
};

fn pod(name: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]},
    })
}

fn templates(kubectl: &Kubectl) -> Result<Vec<String>> {
    let list = kubectl.get(&["resourceclaimtemplates"])?;
    let items = list["items"].as_array().context("a list")?;
    let name = |item: &Value| item["metadata"]["name"].as_str().map(str::to_owned);
    Ok(items.iter().filter_map(name).collect())
}

fn wait_templates(kubectl: &Kubectl, expected: &[&str]) -> Result<()> {
    wait_until(&format!("templates {expected:?}"), LIMIT, || {
        Ok(templates(kubectl)? == expected)
    })
}

fn share(kubectl: &Kubectl, pod: &str) -> Result<String> {
    let placed = wait_placed(kubectl, pod, 1)?.concat();
    Ok(placed.first().context("a share")?.to_string())
}

#[test]
fn templates_are_made_for_pods_and_collected_after_them() -> Result<()> {
    on_control_plane(
        "templates_are_made_for_pods_and_collected_after_them",
        Extent::Whole,
        made_and_collected,
    )
}

fn made_and_collected(plane: &ControlPlane) -> Result<()> {
    plane.network().enter()?;
    let kubectl = plane.kubectl();
    apply(&kubectl)?;
    let own = plane.kubectl_of("cgpu-templates", None)?;
    for more in [["get", "secrets"], ["get", "configmaps"], ["get", "nodes"]] {
        let refused = own.run(&more)?.failure()?;
        assert!(refused.contains("forbidden"), "{refused}");
    }
    let access = Access {
        kubeconfig: Some(own.config().to_owned()),
        server: None,
    };
    let runtime = Runtime::new()?;
    // A pod that was there before the controller, and one of a cluster without cards.
    kubectl.create(&pod("early", &json!({"aliyun.com/gpu-mem": 8})))?;
    kubectl.create(&pod("half", &json!({"nvidia.com/gpumem-percentage": 50})))?;
    let serve = |access: &Access| {
        let access = access.clone();
        runtime.spawn(run_templates(access, PACE, std::future::pending()))
    };
    let controller = serve(&access);
    wait_templates(&kubectl, &["cgpu-m8-c0-x1"])?;
    let why = wait_event(&kubectl, "half", "TemplateRefused")?;
    assert!(
        why.contains("cgpu-p50-c0-x1") && why.contains("no node has a card"),
        "{why}"
    );
    add_node(&kubectl, "n1")?;
    post_slice(&kubectl, "n1", &[Card::new(0, "n1", 24)])?;
    assert_eq!(share(&kubectl, "early")?, "n1/gpu-0 8Gi 1 %");
    assert_eq!(share(&kubectl, "half")?, "n1/gpu-0 12Gi 1 %");
    // Cards of another size: the template is made anew, for those too.
    post_slice(
        &kubectl,
        "n1",
        &[Card::new(0, "n1", 24), Card::new(1, "n1", 48)],
    )?;
    let of_both = |template: &Value| {
        let requests = &template["spec"]["spec"]["devices"]["requests"][0];
        requests["firstAvailable"].as_array().map_or(0, Vec::len) == 2
    };
    wait_until("a template of both sizes", LIMIT, || {
        let template = kubectl.run(&[
            "get",
            "resourceclaimtemplate",
            "cgpu-p50-c0-x1",
            "-o",
            "json",
        ])?;
        Ok(template.succeeded() && of_both(&template.json()?))
    })?;
    kubectl.create(&pod(
        "other-half",
        &json!({"nvidia.com/gpumem-percentage": 50}),
    ))?;
    assert_eq!(share(&kubectl, "other-half")?, "n1/gpu-1 24Gi 1 %");
    // A second controller beside it, the first one killed, and a template that somebody deletes.
    let second = serve(&access);
    controller.abort();
    kubectl
        .run(&["delete", "resourceclaimtemplate", "cgpu-m8-c0-x1"])?
        .success()?;
    wait_templates(&kubectl, &["cgpu-m8-c0-x1", "cgpu-p50-c0-x1"])?;
    // The namespace's own template is left alone, and so is what it refuses.
    kubectl
        .run(&[
            "annotate",
            "namespace",
            "default",
            "cgpu.io/max-memory-per-card=16Gi",
        ])?
        .success()?;
    wait_refused(&kubectl)?;
    remove(&kubectl, &["pod", "--all"])?;
    wait_templates(&kubectl, &[])?;
    second.abort();
    runtime.shutdown_timeout(Duration::from_secs(5));
    Ok(())
}

/// Above the namespace's ceiling: the pod hears why it waits.
fn wait_refused(kubectl: &Kubectl) -> Result<()> {
    kubectl.create(&pod("large", &json!({"aliyun.com/gpu-mem": 17})))?;
    let why = wait_event(kubectl, "large", "TemplateRefused")?;
    for part in [
        "cgpu-m17-c0-x1",
        "memory: 17Gi",
        "max-memory-per-card: 16Gi",
    ] {
        assert!(why.contains(part), "{why}");
    }
    Ok(())
}
