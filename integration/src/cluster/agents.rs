//! What a node's agent may write, tried with tokens as kubelets get them for its pods; and what the policies refuse of others' objects.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::kubectl::Kubectl;
use super::nodes::{Card, add_node, post_slice, slice};
use super::recorded::{Answer, of_reply};
use super::tenants;

/// One attempt.
pub(super) struct Attempt {
    pub(super) name: &'static str,
    pub(super) by: Actor,
    pub(super) verb: Verb,
    /// Parts of the refusal; none where it has to succeed.
    pub(super) refused: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Actor {
    /// The agent of node `n1`.
    Agent,
    /// With a token that names no node, as anybody makes one who may.
    AgentOfNoNode,
    /// The controller of templates and quotas.
    Controller,
    /// Who edits the objects of namespace `default`.
    Tenant,
    /// Who may do everything.
    Admin,
}

pub(super) enum Verb {
    /// Creates the slice of a node, changed.
    Create(&'static str, fn(&mut Value)),
    /// Creates an event about the node, changed.
    Event(fn(&mut Value)),
    /// Replaces the posted slice of a node by one with other cards.
    Replace(&'static str),
    /// Merges this into an object.
    Patch(&'static str, &'static str),
    /// Writes this as the status of a claim, by namespace and name.
    Allocate(&'static str, &'static str, &'static str),
    /// Evicts a pod, with so many seconds for its end.
    Evict(&'static str, Option<u32>),
    /// Runs this.
    Run(&'static [&'static str]),
}

const ATTEMPTS: [Attempt; 35] = [
    Attempt {
        name: "agent: a slice of its own node",
        by: Actor::Agent,
        verb: Verb::Create("n1", |_| ()),
        refused: &[],
    },
    Attempt {
        name: "agent: a slice of another node",
        by: Actor::Agent,
        verb: Verb::Create("n2", |_| ()),
        refused: &["agent of node n1", "slice of n2"],
    },
    Attempt {
        name: "agent: a slice of no node",
        by: Actor::Agent,
        verb: Verb::Create("n1", |slice| {
            slice["spec"]["allNodes"] = Value::Bool(true);
            slice["spec"]["nodeName"] = Value::Null;
        }),
        refused: &["agent of node n1", "slice of no node"],
    },
    Attempt {
        name: "agent: a slice in another node's pool",
        by: Actor::Agent,
        verb: Verb::Create("n1", |slice| slice["spec"]["pool"]["name"] = "n2".into()),
        refused: &["agent of node n1", "pool n2"],
    },
    Attempt {
        name: "agent: a slice of another driver",
        by: Actor::Agent,
        verb: Verb::Create("n1", |slice| {
            slice["spec"]["driver"] = "nic.example.com".into()
        }),
        refused: &["driver nic.example.com"],
    },
    Attempt {
        name: "agent: a token without a node",
        by: Actor::AgentOfNoNode,
        verb: Verb::Create("n1", |_| ()),
        refused: &["token names no node"],
    },
    Attempt {
        name: "agent: replaces its own slice",
        by: Actor::Agent,
        verb: Verb::Replace("n1"),
        refused: &[],
    },
    Attempt {
        name: "agent: replaces another node's slice",
        by: Actor::Agent,
        verb: Verb::Replace("n2"),
        refused: &["agent of node n1", "slice of n2"],
    },
    Attempt {
        name: "agent: deletes another node's slice",
        by: Actor::Agent,
        verb: Verb::Run(&[
            "delete",
            "--dry-run=server",
            "resourceslice",
            "n2-gpu.cgpu.io",
        ]),
        refused: &["agent of node n1", "slice of n2"],
    },
    Attempt {
        name: "agent: deletes every slice at once",
        by: Actor::Agent,
        verb: Verb::Run(&[
            "delete",
            "--raw",
            "/apis/resource.k8s.io/v1/resourceslices?dryRun=All",
        ]),
        refused: &["deletecollection"],
    },
    Attempt {
        name: "agent: lists secrets and claims",
        by: Actor::Agent,
        verb: Verb::Run(&["get", "secrets,resourceclaims", "-A"]),
        refused: &[
            "cannot list resource \"secrets\"",
            "cannot list resource \"resourceclaims\"",
        ],
    },
    Attempt {
        name: "agent: an event",
        by: Actor::Agent,
        verb: Verb::Event(|_| ()),
        refused: &[],
    },
    Attempt {
        name: "agent: an event in another node's name",
        by: Actor::Agent,
        verb: Verb::Event(|event| event["reportingInstance"] = "n2".into()),
        refused: &["agent of node n1", "on n2"],
    },
    Attempt {
        name: "agent: an event without a node",
        by: Actor::AgentOfNoNode,
        verb: Verb::Event(|_| ()),
        refused: &["it reports no event"],
    },
    Attempt {
        name: "agent: reads events",
        by: Actor::Agent,
        verb: Verb::Run(&["get", "events.events.k8s.io", "-A"]),
        refused: &["events", "forbidden"],
    },
    Attempt {
        name: "agent: labels its node",
        by: Actor::Agent,
        verb: Verb::Patch("node/n1", GIVEN),
        refused: &[],
    },
    Attempt {
        name: "agent: labels another node",
        by: Actor::Agent,
        verb: Verb::Patch("node/n2", GIVEN),
        refused: &["agent of node n1", "cannot write node n2"],
    },
    Attempt {
        name: "agent: a label without a node",
        by: Actor::AgentOfNoNode,
        verb: Verb::Patch("node/n1", GIVEN),
        refused: &["it labels none"],
    },
    Attempt {
        name: "agent: another label of its node",
        by: Actor::Agent,
        verb: Verb::Patch(
            "node/n1",
            r#"{"metadata":{"labels":{"cgpu.io/memory-given":"40","team":"a"}}}"#,
        ),
        refused: &["agent of node n1", "cannot write label team"],
    },
    Attempt {
        name: "agent: removes a label of its node",
        by: Actor::Agent,
        verb: Verb::Patch(
            "node/n1",
            r#"{"metadata":{"labels":{"kubernetes.io/hostname":null}}}"#,
        ),
        refused: &["cannot write label kubernetes.io/hostname"],
    },
    Attempt {
        name: "agent: taints its node",
        by: Actor::Agent,
        verb: Verb::Patch(
            "node/n1",
            r#"{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}"#,
        ),
        refused: &["can write a label of it and nothing else"],
    },
    Attempt {
        name: "agent: annotates its node",
        by: Actor::Agent,
        verb: Verb::Patch("node/n1", r#"{"metadata":{"annotations":{"a":"b"}}}"#),
        refused: &["can write a label of it and nothing else"],
    },
    Attempt {
        name: "agent: its node's status",
        by: Actor::Agent,
        verb: Verb::Run(&[
            "patch",
            "node",
            "n1",
            "--dry-run=server",
            "--subresource=status",
            "--type=merge",
            "--patch",
            r#"{"status":{"capacity":{"cpu":"1"}}}"#,
        ]),
        refused: &["nodes", "forbidden"],
    },
    Attempt {
        name: "namespace: a policy among nodes",
        by: Actor::Admin,
        verb: Verb::Patch(
            "namespace/default",
            r#"{"metadata":{"annotations":{"cgpu.io/nodes":"spread"}}}"#,
        ),
        refused: &[],
    },
    Attempt {
        name: "namespace: a policy among nodes that nobody knows",
        by: Actor::Admin,
        verb: Verb::Patch(
            "namespace/default",
            r#"{"metadata":{"annotations":{"cgpu.io/nodes":"tight"}}}"#,
        ),
        refused: &["cgpu.io/nodes: \"tight\"", "binpack or spread"],
    },
    Attempt {
        name: "namespace: a maximum of GPU memory",
        by: Actor::Admin,
        verb: Verb::Patch(
            "namespace/default",
            r#"{"metadata":{"annotations":{"cgpu.io/max-memory":"64Gi"}}}"#,
        ),
        refused: &[],
    },
    Attempt {
        name: "namespace: a maximum of GPU memory that is no amount",
        by: Actor::Admin,
        verb: Verb::Patch(
            "namespace/default",
            r#"{"metadata":{"annotations":{"cgpu.io/max-memory":"64GiB"}}}"#,
        ),
        refused: &["cgpu.io/max-memory: \"64GiB\"", "for example 64Gi"],
    },
    Attempt {
        name: "namespace: a maximum of GPU memory below nothing",
        by: Actor::Admin,
        verb: Verb::Patch(
            "namespace/default",
            r#"{"metadata":{"annotations":{"cgpu.io/max-memory":"-1Gi"}}}"#,
        ),
        refused: &["cgpu.io/max-memory: \"-1Gi\"", "0 or more"],
    },
    Attempt {
        name: "controller: the account of a namespace",
        by: Actor::Controller,
        verb: Verb::Patch(
            "namespace/bounded",
            r#"{"metadata":{"annotations":{"cgpu.io/memory-claimed":"12Gi","cgpu.io/memory-granted":null}}}"#,
        ),
        refused: &[],
    },
    Attempt {
        name: "controller: the maximum of a namespace",
        by: Actor::Controller,
        verb: Verb::Patch(
            "namespace/bounded",
            r#"{"metadata":{"annotations":{"cgpu.io/max-memory":null}}}"#,
        ),
        refused: &["cannot write annotation cgpu.io/max-memory"],
    },
    Attempt {
        name: "controller: a label of a namespace",
        by: Actor::Controller,
        verb: Verb::Patch(
            "namespace/bounded",
            r#"{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}"#,
        ),
        refused: &["annotations of a namespace and nothing else"],
    },
    Attempt {
        name: "controller: deletes a namespace",
        by: Actor::Controller,
        verb: Verb::Run(&["delete", "--dry-run=server", "namespace", "bounded"]),
        refused: &["namespaces", "forbidden"],
    },
    Attempt {
        name: "scheduler: allocates a claim that is not granted",
        by: Actor::Admin,
        verb: Verb::Allocate("bounded", "held", ALLOCATION),
        refused: &[
            "claim held has no grant yet",
            "cgpu.io/max-memory: 16Gi",
            "10Gi",
        ],
    },
    Attempt {
        name: "scheduler: gives a claim more than its grant",
        by: Actor::Admin,
        verb: Verb::Allocate("bounded", "granted", ALLOCATION),
        refused: &[
            "claim granted would have 4096Mi of GPU memory",
            "a grant of 1Mi",
            "cgpu.io/max-memory: 16Gi",
        ],
    },
    Attempt {
        name: "scheduler: gives a claim less than nothing",
        by: Actor::Admin,
        verb: Verb::Allocate("default", "free", BELOW_NOTHING),
        refused: &["claim free, request vgpu", "from 0 to 1Pi"],
    },
];

/// As the scheduler writes it.
const ALLOCATION: &str = r#"{"status":{"allocation":{"devices":{"results":[{"request":"vgpu","driver":"gpu.cgpu.io","pool":"n1",
    "device":"gpu-0","shareID":"7007bb35-0000-4000-8000-000000000000","consumedCapacity":{"memory":"4Gi"}}]}}}}"#;

/// As it writes an amount that its sum was too long for.
const BELOW_NOTHING: &str = r#"{"status":{"allocation":{"devices":{"results":[{"request":"vgpu","driver":"gpu.cgpu.io","pool":"n1",
    "device":"gpu-0","shareID":"7007bb35-0000-4000-8000-000000000000","consumedCapacity":{"memory":"-9223372036854775808"}}]}}}}"#;

/// The label that an agent keeps.
const GIVEN: &str = r#"{"metadata":{"labels":{"cgpu.io/memory-given":"40"}}}"#;

/// Posts two nodes with a slice each and makes every attempt.
///
/// # Errors
/// The server does not answer.
pub(super) fn answers(plane: &ControlPlane) -> Result<BTreeMap<String, Answer>> {
    let admin = plane.kubectl();
    for node in ["n1", "n2"] {
        add_node(&admin, node)?;
        post_slice(&admin, node, &[Card::new(0, node, 24)])?;
    }
    let bound = plane.kubectl_of("cgpu-agent", Some("n1"))?;
    let unbound = plane.kubectl_of("cgpu-agent", None)?;
    let controller = plane.kubectl_of("cgpu-templates", None)?;
    for (namespace, name, memory) in [
        ("bounded", "held", "4Gi"),
        ("bounded", "granted", "1Mi"),
        ("default", "free", "4Gi"),
        ("default", "used", "4Gi"),
    ] {
        let metadata = json!({"name": name, "namespace": namespace, "finalizers": ["resource.kubernetes.io/delete-protection"]});
        admin.create(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata,
            "spec": {"devices": {"requests": [{"name": "vgpu", "exactly": {
                "deviceClassName": "vgpu.cgpu.io", "capacity": {"requests": {"memory": memory}},
            }}]}},
        }))?;
    }
    let granted = admin.get(&["resourceclaim", "granted", "--namespace=bounded"])?;
    let uid = granted["metadata"]["uid"].as_str().context("a uid")?;
    let grant = format!("cgpu.io/memory-granted={uid}:1048576");
    admin
        .run(&["annotate", "--overwrite", "namespace", "bounded", &grant])?
        .success()?;
    let tenant = tenants::tenant(plane)?;
    let claim = ["patch", "resourceclaim", "used", "--subresource=status"];
    let given = [&claim[..], &["--type=merge", "--patch", ALLOCATION]].concat();
    admin.run(&given)?.success()?;
    let mut answers = BTreeMap::new();
    for attempt in attempts() {
        let kubectl = match attempt.by {
            Actor::Agent => &bound,
            Actor::AgentOfNoNode => &unbound,
            Actor::Controller => &controller,
            Actor::Tenant => &tenant,
            Actor::Admin => &admin,
        };
        answers.insert(attempt.name.to_owned(), attempt.make(kubectl)?);
    }
    Ok(answers)
}

/// Compares what came of the attempts with what has to.
///
/// # Errors
/// An attempt is missing, or something else came of it.
pub fn check_agents(answers: &BTreeMap<String, Answer>) -> Result<()> {
    for Attempt { name, refused, .. } in attempts() {
        let Some(answer) = answers.get(*name) else {
            bail!("no answer to {name}");
        };
        match (&answer.refused, refused.is_empty()) {
            (None, true) => {}
            (Some(reason), false) if refused.iter().all(|part| reason.contains(part)) => {}
            other => bail!("{name}: {other:?}, not {refused:?}"),
        }
    }
    Ok(())
}

/// Names of the attempts.
pub fn agent_attempts() -> impl Iterator<Item = &'static str> {
    attempts().map(|attempt| attempt.name)
}

fn attempts() -> impl Iterator<Item = &'static Attempt> {
    ATTEMPTS.iter().chain(&tenants::ATTEMPTS)
}

/// As the agent of node `n1` reports an unhealthy card.
fn event() -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "n1.0", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "gpu.cgpu.io/agent",
        "reportingInstance": "n1",
        "action": "Monitor",
        "reason": "GpuUnhealthy",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"},
        "type": "Warning",
    })
}

impl Attempt {
    fn make(&self, kubectl: &Kubectl) -> Result<Answer> {
        let dry = ["--dry-run=server", "-o", "json"];
        let reply =
            match &self.verb {
                Verb::Create(node, change) => {
                    let mut object = slice(node, &[Card::new(0, node, 24)]);
                    object["metadata"]["name"] = "new".into();
                    change(&mut object);
                    kubectl.send("create", &dry, &object)?
                }
                Verb::Event(change) => {
                    let mut object = event();
                    change(&mut object);
                    kubectl.send("create", &dry, &object)?
                }
                Verb::Replace(node) => {
                    let object = slice(node, &[Card::new(0, node, 24), Card::new(1, node, 24)]);
                    kubectl.send("replace", &dry, &object)?
                }
                Verb::Patch(object, patch) => {
                    let patch = ["patch", object, "--type=merge", "--patch", patch];
                    kubectl.run(&[&patch, dry.as_slice()].concat())?
                }
                Verb::Allocate(namespace, name, status) => {
                    let namespace = format!("--namespace={namespace}");
                    let claim = ["patch", "resourceclaim", name, &namespace];
                    let patch = ["--subresource=status", "--type=merge", "--patch", status];
                    kubectl.run(&[&claim[..], &patch, &dry].concat())?
                }
                Verb::Evict(pod, period_s) => {
                    let path =
                        format!("--raw=/api/v1/namespaces/default/pods/{pod}/eviction?dryRun=All");
                    kubectl.send("create", &[&path], &json!({
                    "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod},
                    "deleteOptions": {"gracePeriodSeconds": period_s},
                }))?
                }
                Verb::Run(args) => kubectl.run(args)?,
            };
        of_reply(&reply)
    }
}
