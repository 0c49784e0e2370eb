//! What a tenant tries so that nobody counts what its pods go on with.

use anyhow::Result;
use serde_json::{Value, json};

use super::agents::{Actor, Attempt, Verb};
use super::control_plane::ControlPlane;
use super::kubectl::Kubectl;

pub(super) const ATTEMPTS: [Attempt; 14] = [
    Attempt {
        name: "tenant: takes the protection of a claim that has GPUs",
        by: Actor::Tenant,
        verb: Verb::Patch("resourceclaim/used", UNPROTECTED),
        refused: &["claim used has GPUs", "goes when its pods have ended"],
    },
    Attempt {
        name: "tenant: takes the protection of a claim that has nothing",
        by: Actor::Tenant,
        verb: Verb::Patch("resourceclaim/free", UNPROTECTED),
        refused: &[],
    },
    Attempt {
        name: "scheduler: takes the protection of a claim",
        by: Actor::Admin,
        verb: Verb::Patch("resourceclaim/used", UNPROTECTED),
        refused: &[],
    },
    Attempt {
        name: "tenant: takes away a pod with claims that has not ended",
        by: Actor::Tenant,
        verb: Verb::Run(&[
            "delete",
            "--dry-run=server",
            "pod/works",
            "--force",
            "--grace-period=0",
        ]),
        refused: &["pod works has claims", "--grace-period=1"],
    },
    Attempt {
        name: "tenant: takes away a pod of a whole card that has not ended",
        by: Actor::Tenant,
        verb: Verb::Run(&[
            "delete",
            "--dry-run=server",
            "pod/whole",
            "--force",
            "--grace-period=0",
        ]),
        refused: &["pod whole has claims"],
    },
    Attempt {
        name: "tenant: takes away all pods",
        by: Actor::Tenant,
        verb: Verb::Run(&[
            "delete",
            "--raw",
            "/api/v1/namespaces/default/pods?gracePeriodSeconds=0&dryRun=All",
        ]),
        refused: &["has claims"],
    },
    Attempt {
        name: "tenant: evicts a pod without waiting for its end",
        by: Actor::Tenant,
        verb: Verb::Evict("works", Some(0)),
        refused: &["pod works may have claims", "--grace-period=1"],
    },
    Attempt {
        name: "tenant: evicts a pod",
        by: Actor::Tenant,
        verb: Verb::Evict("works", None),
        refused: &[],
    },
    Attempt {
        name: "tenant: deletes a pod with claims",
        by: Actor::Tenant,
        verb: Verb::Run(&["delete", "--dry-run=server", "pod/works"]),
        refused: &[],
    },
    Attempt {
        name: "tenant: deletes a pod with claims at once",
        by: Actor::Tenant,
        verb: Verb::Run(&["delete", "--dry-run=server", "pod/works", "--now"]),
        refused: &[],
    },
    Attempt {
        name: "tenant: deletes pods that are ended at once, have ended or were not placed",
        by: Actor::Tenant,
        verb: Verb::Run(&[
            "delete",
            "--dry-run=server",
            "pod/short",
            "pod/ended",
            "pod/waits",
        ]),
        refused: &[],
    },
    Attempt {
        name: "tenant: takes away a pod without claims",
        by: Actor::Tenant,
        verb: Verb::Run(&[
            "delete",
            "--dry-run=server",
            "pod/plain",
            "--force",
            "--grace-period=0",
        ]),
        refused: &[],
    },
    Attempt {
        name: "kubelet: a pod has ended",
        by: Actor::Admin,
        verb: Verb::Run(&[
            "delete",
            "--dry-run=server",
            "pod/works",
            "--force",
            "--grace-period=0",
            "--as=system:node:n1",
            "--as-group=system:nodes",
        ]),
        refused: &[],
    },
    Attempt {
        name: "pod garbage collector: a node is gone",
        by: Actor::Admin,
        verb: Verb::Run(&[
            "delete",
            "--dry-run=server",
            "pod/works",
            "--force",
            "--grace-period=0",
            "--as=system:serviceaccount:kube-system:pod-garbage-collector",
            "--as-group=system:serviceaccounts",
        ]),
        refused: &[],
    },
];

/// Nothing keeps a claim of this from being deleted at once.
const UNPROTECTED: &str = r#"{"metadata":{"finalizers":["example.com/other"]}}"#;

/// An account with what role `edit` is made of where controllers run, and its pods.
///
/// # Errors
/// The server refuses one.
pub(super) fn tenant(plane: &ControlPlane) -> Result<Kubectl> {
    let admin = plane.kubectl();
    let account = ["create", "serviceaccount", "tenant", "-n", "cgpu-system"];
    admin.run(&account)?.success()?;
    for name in ["view", "edit"] {
        let role = format!("--clusterrole=system:aggregate-to-{name}");
        let bind = ["create", "rolebinding", name, "--namespace=default", &role];
        let subject = ["--serviceaccount=cgpu-system:tenant"];
        admin.run(&[&bind[..], &subject].concat())?.success()?;
    }
    pods(&admin)?;
    plane.kubectl_of("tenant", None)
}

/// Pods of node `n1`, as a scheduler and a kubelet leave them.
fn pods(admin: &Kubectl) -> Result<()> {
    let claims = json!([{"name": "gpu", "resourceClaimName": "used"}]);
    let whole = json!({"extendedResourceClaimStatus": {"resourceClaimName": "used", "requestMappings": [
        {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"},
    ]}});
    for (name, node, period_s, claims, status) in [
        ("works", Some("n1"), 1_000_000_000, &claims, Value::Null),
        ("whole", Some("n1"), 1_000_000_000, &Value::Null, whole),
        ("short", Some("n1"), 0, &claims, Value::Null),
        ("ended", Some("n1"), 30, &claims, json!({"phase": "Failed"})),
        ("waits", None, 30, &claims, Value::Null),
        ("plain", Some("n1"), 30, &Value::Null, Value::Null),
    ] {
        admin.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": period_s, "resourceClaims": claims,
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {"example.com/gpu": "1"}}}],
            },
        }))?;
        if status.is_object() {
            let patch = json!({"status": status}).to_string();
            let pod = ["patch", "pod", name, "--subresource=status"];
            let written = [&pod[..], &["--type=merge", "--patch", &patch]].concat();
            admin.run(&written)?.success()?;
        }
    }
    Ok(())
}
