//! What the scheduler gave a pod, and what a kubelet would do besides.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::kubectl::Kubectl;
use crate::cache::repository;

/// A part of a card that a claim holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// The pool, which is the node.
    pub node: String,
    /// The card.
    pub device: String,
    /// As the scheduler has counted it.
    pub memory: String,
    /// Percent of the card.
    pub cores: String,
}

impl fmt::Display for Share {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            node,
            device,
            memory,
            cores,
        } = self;
        write!(out, "{node}/{device} {memory} {cores} %")
    }
}

/// A file of `integration/kubernetes/workloads`.
pub fn workload(name: &str) -> PathBuf {
    repository().join(format!("integration/kubernetes/workloads/{name}.yaml"))
}

/// The pods of a namespace that have this label, or this name, and are not on their way out.
///
/// # Errors
/// The server refuses it.
pub fn pods(kubectl: &Kubectl, selector: &str) -> Result<Vec<Value>> {
    let list = match selector.split_once('=') {
        Some(_) => kubectl.get(&["pods", "-l", selector])?,
        None => kubectl.get(&[
            "pods",
            "--field-selector",
            &format!("metadata.name={selector}"),
        ])?,
    };
    let pods = list["items"]
        .as_array()
        .cloned()
        .context("a list of pods")?;
    Ok(pods
        .into_iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .collect())
}

/// What the claims of a pod hold, sorted; nothing while it is not placed.
///
/// # Errors
/// The server refuses it.
pub fn shares(kubectl: &Kubectl, pod: &Value) -> Result<Vec<Share>> {
    let statuses = pod["status"]["resourceClaimStatuses"].as_array();
    let mut names: Vec<&str> = statuses
        .into_iter()
        .flatten()
        .filter_map(|status| status["resourceClaimName"].as_str())
        .collect();
    names.extend(pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"].as_str());
    let mut shares = Vec::new();
    for name in names {
        let claim = kubectl.get(&["resourceclaim", name])?;
        let results = claim["status"]["allocation"]["devices"]["results"].as_array();
        for result in results.into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            shares.push(Share {
                node: text(&result["pool"]),
                device: text(&result["device"]),
                memory: text(&result["consumedCapacity"]["memory"]),
                cores: text(&result["consumedCapacity"]["cores"]),
            });
        }
    }
    shares.sort();
    Ok(shares)
}

/// Waits until so many pods are bound to nodes: what each of them holds.
///
/// # Errors
/// They are not within the usual limit.
pub fn wait_placed(kubectl: &Kubectl, selector: &str, count: usize) -> Result<Vec<Vec<Share>>> {
    let mut placed = Vec::new();
    crate::command::wait_until(
        &format!("{count} pods of {selector} to be placed"),
        crate::command::LIMIT,
        || {
            placed = pods(kubectl, selector)?;
            placed.retain(|pod| pod["spec"]["nodeName"].is_string());
            Ok(placed.len() == count)
        },
    )?;
    placed.iter().map(|pod| shares(kubectl, pod)).collect()
}

/// Waits for an event of this reason about an object of this name: its message.
///
/// # Errors
/// There is none within the usual limit.
pub fn wait_event(kubectl: &Kubectl, name: &str, reason: &str) -> Result<String> {
    let mut message = String::new();
    crate::command::wait_until(
        &format!("an event {reason} of {name}"),
        crate::command::LIMIT,
        || {
            let selector = format!("involvedObject.name={name},reason={reason}");
            let events = kubectl.get(&["events", "--field-selector", &selector])?;
            let last = events["items"].as_array().and_then(|events| events.last());
            last.and_then(|event| event["message"].as_str())
                .unwrap_or_default()
                .clone_into(&mut message);
            Ok(!message.is_empty())
        },
    )?;
    Ok(message)
}

/// Takes away the pods that are on their way out, as their nodes' kubelets would when the containers have ended.
///
/// # Errors
/// The server refuses it.
pub fn reap(kubectl: &Kubectl) -> Result<usize> {
    let list = kubectl.get(&["pods"])?;
    let mut count = 0;
    for pod in list["items"].as_array().into_iter().flatten() {
        if pod["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        remove(kubectl, &["pod", name])?;
        count += 1;
    }
    Ok(count)
}

/// Deletes at once what `args` name.
///
/// # Errors
/// The server refuses it.
pub fn remove(kubectl: &Kubectl, args: &[&str]) -> Result<()> {
    let mut all = vec![
        "delete",
        "--ignore-not-found",
        "--force",
        "--grace-period=0",
    ];
    all.extend(args);
    kubectl.run(&all)?.success()?;
    Ok(())
}
