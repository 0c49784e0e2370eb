//! Claims of Kubernetes as the node's agent prepares them: their records and CDI specs, without an API server.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::node::Node;

/// One request of a claim: its name, and MiB of each card by the card's index.
pub type Requested<'a> = (&'a str, &'a [(usize, u64)]);

/// A claim that is prepared on a node, until it is dropped.
#[derive(Debug)]
pub struct PreparedClaim {
    uid: String,
    requests: Vec<(String, Vec<String>)>,
    record: PathBuf,
    spec: PathBuf,
}

/// Where a node's engines look for CDI specs.
#[must_use]
pub fn cdi_folder(node: &Node) -> PathBuf {
    node.root().join("cdi")
}

impl PreparedClaim {
    /// Prepares a claim for these pods.
    ///
    /// # Errors
    /// The node does not say its cards, or a file cannot be written.
    pub fn new(node: &Node, uid: &str, pods: &[&str], requests: &[Requested<'_>]) -> Result<Self> {
        let cards = node.cgpu(&["cards", "--json"])?.success()?.json()?;
        let uuid = |index: usize| {
            let uuid = cards["cards"][index]["uuid"].as_str();
            uuid.with_context(|| format!("card {index} in {cards}"))
        };
        let (mut given, mut devices, mut names) = (Map::new(), Vec::new(), Vec::new());
        for (request, parts) in requests {
            let (mut shares, mut of_request) = (Vec::new(), Vec::new());
            for (index, mib) in *parts {
                let id = format!("{request}-{index}");
                shares.push(json!({
                    "id": id, "card": uuid(*index)?, "device": format!("gpu-{index}"), "memory_bytes": mib << 20,
                }));
                let name = format!("{uid}-{id}");
                let variable = format!("CGPU_CLAIM_{:08x}={uid}/{request}/{id}", devices.len());
                devices.push(json!({"name": name, "containerEdits": {"env": [variable]}}));
                of_request.push(format!("gpu.cgpu.io/claim={name}"));
            }
            given.insert((*request).to_owned(), json!({"shares": shares}));
            names.push(((*request).to_owned(), of_request));
        }
        let pods: Vec<Value> = pods
            .iter()
            .map(|pod| json!({"uid": pod, "name": pod}))
            .collect();
        let prepared = Self {
            uid: uid.to_owned(),
            requests: names,
            record: node.state_dir().join("claims").join(format!("{uid}.json")),
            spec: cdi_folder(node).join(format!("gpu.cgpu.io-claim-{uid}.json")),
        };
        for file in [&prepared.record, &prepared.spec] {
            fs::create_dir_all(file.parent().context("a file has a folder")?)?;
        }
        let record = json!({
            "version": 1,
            "claim": {"namespace": "default", "name": format!("claim-{uid}"), "uid": uid},
            "node": "n1",
            "pods": pods,
            "requests": given,
        });
        fs::write(&prepared.record, record.to_string())?;
        let spec = json!({"cdiVersion": "0.6.0", "kind": "gpu.cgpu.io/claim", "devices": devices});
        fs::write(&prepared.spec, spec.to_string())?;
        Ok(prepared)
    }

    /// The CDI devices that the kubelet names for a container which uses this request.
    pub fn devices(&self, request: &str) -> Vec<&str> {
        let named = self.requests.iter().filter(|(name, _)| name == request);
        named
            .flat_map(|(_, devices)| devices.iter().map(String::as_str))
            .collect()
    }

    /// A pointer to the first share of a request, as whoever forges one would write it.
    #[must_use]
    pub fn pointer(&self, request: &str, index: usize) -> String {
        format!("{}/{request}/{request}-{index}", self.uid)
    }
}

impl Drop for PreparedClaim {
    fn drop(&mut self) {
        for file in [&self.record, &self.spec] {
            drop(fs::remove_file(file));
        }
    }
}
