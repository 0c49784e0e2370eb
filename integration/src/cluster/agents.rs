//! What a node's agent may write: tried with tokens as kubelets get them for its pods.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::kubectl::Kubectl;
use super::nodes::{Card, add_node, post_slice, slice};
use super::recorded::{Answer, of_reply};

/// One attempt of the agent of node `n1`.
struct Attempt {
    name: &'static str,
    /// Whether its token is of the node; one that names no node is what anybody makes who may.
    is_bound: bool,
    verb: Verb,
    /// Parts of the refusal; none where it has to succeed.
    refused: &'static [&'static str],
}

enum Verb {
    /// Creates the slice of a node, changed.
    Create(&'static str, fn(&mut Value)),
    /// Creates an event about the node, changed.
    Event(fn(&mut Value)),
    /// Replaces the posted slice of a node by one with other cards.
    Replace(&'static str),
    /// Runs this.
    Run(&'static [&'static str]),
}

const ATTEMPTS: [Attempt; 15] = [
    Attempt {
        name: "agent: a slice of its own node",
        is_bound: true,
        verb: Verb::Create("n1", |_| ()),
        refused: &[],
    },
    Attempt {
        name: "agent: a slice of another node",
        is_bound: true,
        verb: Verb::Create("n2", |_| ()),
        refused: &["agent of node n1", "slice of n2"],
    },
    Attempt {
        name: "agent: a slice of no node",
        is_bound: true,
        verb: Verb::Create("n1", |slice| {
            slice["spec"]["allNodes"] = Value::Bool(true);
            slice["spec"]["nodeName"] = Value::Null;
        }),
        refused: &["agent of node n1", "slice of no node"],
    },
    Attempt {
        name: "agent: a slice in another node's pool",
        is_bound: true,
        verb: Verb::Create("n1", |slice| slice["spec"]["pool"]["name"] = "n2".into()),
        refused: &["agent of node n1", "pool n2"],
    },
    Attempt {
        name: "agent: a slice of another driver",
        is_bound: true,
        verb: Verb::Create("n1", |slice| {
            slice["spec"]["driver"] = "nic.example.com".into()
        }),
        refused: &["driver nic.example.com"],
    },
    Attempt {
        name: "agent: a token without a node",
        is_bound: false,
        verb: Verb::Create("n1", |_| ()),
        refused: &["token names no node"],
    },
    Attempt {
        name: "agent: replaces its own slice",
        is_bound: true,
        verb: Verb::Replace("n1"),
        refused: &[],
    },
    Attempt {
        name: "agent: replaces another node's slice",
        is_bound: true,
        verb: Verb::Replace("n2"),
        refused: &["agent of node n1", "slice of n2"],
    },
    Attempt {
        name: "agent: deletes another node's slice",
        is_bound: true,
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
        is_bound: true,
        verb: Verb::Run(&[
            "delete",
            "--raw",
            "/apis/resource.k8s.io/v1/resourceslices?dryRun=All",
        ]),
        refused: &["deletecollection"],
    },
    Attempt {
        name: "agent: reads secrets",
        is_bound: true,
        verb: Verb::Run(&["get", "secrets", "-A"]),
        refused: &["secrets", "forbidden"],
    },
    Attempt {
        name: "agent: an event",
        is_bound: true,
        verb: Verb::Event(|_| ()),
        refused: &[],
    },
    Attempt {
        name: "agent: an event in another node's name",
        is_bound: true,
        verb: Verb::Event(|event| event["reportingInstance"] = "n2".into()),
        refused: &["agent of node n1", "on n2"],
    },
    Attempt {
        name: "agent: an event without a node",
        is_bound: false,
        verb: Verb::Event(|_| ()),
        refused: &["it reports no event"],
    },
    Attempt {
        name: "agent: reads events",
        is_bound: true,
        verb: Verb::Run(&["get", "events.events.k8s.io", "-A"]),
        refused: &["events", "forbidden"],
    },
];

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
    let mut answers = BTreeMap::new();
    for attempt in &ATTEMPTS {
        let kubectl = if attempt.is_bound { &bound } else { &unbound };
        answers.insert(attempt.name.to_owned(), attempt.make(kubectl)?);
    }
    Ok(answers)
}

/// Compares what came of the attempts with what has to.
///
/// # Errors
/// An attempt is missing, or something else came of it.
pub fn check_agents(answers: &BTreeMap<String, Answer>) -> Result<()> {
    for Attempt { name, refused, .. } in &ATTEMPTS {
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
    ATTEMPTS.iter().map(|attempt| attempt.name)
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
        let reply = match &self.verb {
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
            Verb::Run(args) => kubectl.run(args)?,
        };
        of_reply(&reply)
    }
}
