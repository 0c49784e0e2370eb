//! What the real server answered to the cases, kept for machines that have none: `integration/kubernetes/recorded.json`.
//!
//! The file has the hash of the policies: a changed policy needs new answers.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agents;
use super::cases::{Case, cases};
use super::control_plane::ControlPlane;
use super::kubectl::Kubectl;
use super::policies::hash;
use crate::cache::repository;
use crate::command::{LIMIT, Outcome, wait_until};

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// What the server warned of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What the policies may change of it: labels, claims, runtime class, affinity, resources by container.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub admitted: Value,
}

/// All answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The server's version.
    pub server: String,
    /// [`hash`] of the policies that were applied.
    pub policies: String,
    /// By case.
    pub answers: BTreeMap<String, Answer>,
}

/// The answer to a classic pod where the translating policy is not installed.
pub const UNTRANSLATED: &str = "a classic pod without the translating policy";

fn untranslated(kubectl: &Kubectl) -> Result<Answer> {
    let binding = ["delete", "mutatingadmissionpolicybinding", "cgpu-classic"];
    kubectl.run(&binding)?.success()?;
    let case = cases()?
        .into_iter()
        .find(|case| case.case == "memory and compute");
    let case = case.context("a case that is translated")?;
    let mut last = answer(kubectl, &case)?;
    wait_until("the binding to be gone", LIMIT, || {
        last = answer(kubectl, &case)?;
        Ok(last.refused.is_some())
    })?;
    Ok(last)
}

impl Recorded {
    fn path() -> PathBuf {
        repository().join("integration/kubernetes/recorded.json")
    }

    /// Those that are kept.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read() -> Result<Self> {
        let path = Self::path();
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Keeps these.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        let path = Self::path();
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Asks a server for all of them: it runs each case's admission and stores nothing.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn of_server(plane: &ControlPlane) -> Result<Self> {
        let kubectl = &plane.kubectl();
        let version = kubectl.run(&["version", "-o", "json"])?.success()?.json()?;
        let server = version["serverVersion"]["gitVersion"].as_str();
        let mut answers = agents::answers(plane)?;
        for case in cases()? {
            answers.insert(case.case.clone(), answer(kubectl, &case)?);
        }
        answers.insert(UNTRANSLATED.to_owned(), untranslated(kubectl)?);
        Ok(Self {
            server: server.context("the server's version")?.to_owned(),
            policies: hash()?,
            answers,
        })
    }
}

/// Makes the runtime and priority classes that cases name, the namespaces that they are in, and their service accounts where no controller makes them.
///
/// # Errors
/// The server refuses one.
pub fn prepare(kubectl: &Kubectl) -> Result<()> {
    // The server refuses a pod whose class there is not before it asks the policies.
    for (name, value) in [("online", 1000), ("usual", 500), ("offline", -5)] {
        kubectl.create(&json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value,
        }))?;
    }
    for name in ["nvidia", "kata"] {
        kubectl.create(&json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": name}, "handler": name,
        }))?;
    }
    for (name, labels, annotations) in [
        ("off", json!({"cgpu.io/classic": "off"}), json!({})),
        (
            "limited",
            json!({}),
            json!({"cgpu.io/max-memory-per-card": "16Gi"}),
        ),
        ("packed", json!({}), json!({"cgpu.io/nodes": "binpack"})),
        (
            "bounded",
            json!({}),
            json!({
                "cgpu.io/max-memory": "16Gi", "cgpu.io/memory-claimed": "10Gi",
                "cgpu.io/memory-granted": "11111111-2222-3333-4444-555555555555", "cgpu.io/card-memory": "24Gi",
            }),
        ),
        (
            "uncounted",
            json!({}),
            json!({"cgpu.io/max-memory": "16Gi"}),
        ),
        (
            "mistaken",
            json!({}),
            json!({"cgpu.io/max-memory-per-card": "much"}),
        ),
        (
            "serving",
            json!({}),
            json!({"cgpu.io/high-priority-from": "1000"}),
        ),
        (
            "misled",
            json!({}),
            json!({"cgpu.io/high-priority-from": "online"}),
        ),
    ] {
        kubectl.create(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
        }))?;
        kubectl.create(&json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": name},
        }))?;
    }
    Ok(())
}

/// What the server does with one case.
///
/// # Errors
/// It does not answer.
pub fn answer(kubectl: &Kubectl, case: &Case) -> Result<Answer> {
    let reply = kubectl.send(
        "create",
        &["--dry-run=server", "-o", "json"],
        &case.object()?,
    )?;
    of_reply(&reply)
}

/// What a reply of `kubectl` says, without names of the machine's files.
pub(super) fn of_reply(reply: &Outcome) -> Result<Answer> {
    let path = Regex::new(r#"error when creating "[^"]*": "#)?;
    let (warnings, rest): (Vec<&str>, Vec<&str>) = reply
        .stderr
        .lines()
        .partition(|line| line.starts_with("Warning: "));
    let warnings = warnings.into_iter().map(str::to_owned).collect();
    if !reply.succeeded() {
        let reason = path.replace_all(&rest.join("\n"), "").trim().to_owned();
        return Ok(Answer {
            refused: Some(reason),
            warnings,
            admitted: Value::Null,
        });
    }
    Ok(Answer {
        refused: None,
        warnings,
        admitted: reply.json().map_or(Value::Null, |object| admitted(&object)),
    })
}

fn admitted(object: &Value) -> Value {
    if object["kind"] != "Pod" {
        return json!({"kind": object["kind"]});
    }
    let mut resources = serde_json::Map::new();
    for kind in ["initContainers", "containers"] {
        for container in object["spec"][kind].as_array().into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default();
            resources.insert(name.to_owned(), container["resources"].clone());
        }
    }
    let mut admitted = json!({
        "labels": object["metadata"]["labels"],
        "resourceClaims": object["spec"]["resourceClaims"],
        "runtimeClassName": object["spec"]["runtimeClassName"],
        "resources": resources,
    });
    if object["spec"]["affinity"].is_object() {
        // One line: it is long, and the same for many.
        admitted["affinity"] = Value::String(object["spec"]["affinity"].to_string());
    }
    admitted
}
