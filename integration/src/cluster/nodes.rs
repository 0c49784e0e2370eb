//! Nodes that are objects alone: what an agent would publish is posted, and no kubelet starts what is placed there.

use anyhow::Result;
use serde_json::{Value, json};

use super::kubectl::Kubectl;

/// A card as an agent publishes it.
#[derive(Debug, Clone)]
pub struct Card {
    /// `gpu-0`.
    pub device: String,
    /// Its UUID.
    pub uuid: String,
    /// Memory that can be reserved, in GiB.
    pub memory_gib: u64,
    /// Taints, as the API has them.
    pub taints: Vec<Value>,
    /// Whether claims have parts of it; else one has all of it.
    pub is_shared: bool,
}

impl Card {
    /// A healthy card.
    pub fn new(index: usize, node: &str, memory_gib: u64) -> Self {
        Self {
            device: format!("gpu-{index}"),
            uuid: format!("GPU-{node}-{index}"),
            memory_gib,
            taints: Vec::new(),
            is_shared: true,
        }
    }

    fn object(&self, index: usize) -> Value {
        let memory = format!("{}Gi", self.memory_gib);
        let mut card = json!({
            "name": self.device,
            "allowMultipleAllocations": true,
            "attributes": {
                "type": {"string": "vgpu"},
                "uuid": {"string": self.uuid},
                "minor": {"int": index},
                "productName": {"string": "NVIDIA H200"},
                "cudaComputeCapability": {"version": "9.0.0"},
                "driverVersion": {"version": "570.195.3"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            },
            "capacity": {
                "memory": {"value": memory, "requestPolicy": {
                    "default": memory, "validRange": {"min": "1Mi", "step": "1Mi", "max": memory},
                }},
                "cores": {"value": "100", "requestPolicy": {
                    "default": "1", "validRange": {"min": "1", "step": "1", "max": "100"},
                }},
                "shares": {"value": "25", "requestPolicy": {"default": "1", "validValues": ["1"]}},
            },
        });
        if !self.taints.is_empty() {
            card["taints"] = json!(self.taints);
        }
        if !self.is_shared {
            card["capacity"] = json!({"memory": {"value": memory}});
            drop(
                card.as_object_mut()
                    .map(|card| card.remove("allowMultipleAllocations")),
            );
        }
        card
    }
}

/// The slice of a node with these cards.
pub fn slice(node: &str, cards: &[Card]) -> Value {
    let devices: Vec<Value> = cards
        .iter()
        .enumerate()
        .map(|(index, card)| card.object(index))
        .collect();
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": format!("{node}-gpu.cgpu.io")},
        "spec": {
            "driver": "gpu.cgpu.io",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    })
}

/// Posts a node that is ready, with what the scheduler looks at besides cards.
///
/// # Errors
/// The server refuses it.
pub fn add_node(kubectl: &Kubectl, name: &str) -> Result<()> {
    kubectl.create(&json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
    }))?;
    // The server taints each new node until somebody calls it ready.
    let untainted = r#"{"spec":{"taints":null}}"#;
    kubectl
        .run(&["patch", "node", name, "--type=merge", "-p", untainted])?
        .success()?;
    let status = json!({"status": {
        "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"},
        "capacity": {"cpu": "64", "memory": "512Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Posted", "message": "a node without a kubelet"}],
    }});
    let status = status.to_string();
    kubectl
        .run(&[
            "patch",
            "node",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ])?
        .success()?;
    Ok(())
}

/// Posts a node's cards, or replaces them.
///
/// # Errors
/// The server refuses them.
pub fn post_slice(kubectl: &Kubectl, node: &str, cards: &[Card]) -> Result<()> {
    kubectl
        .send(
            "apply",
            &["--server-side", "--force-conflicts"],
            &slice(node, cards),
        )?
        .success()?;
    Ok(())
}
