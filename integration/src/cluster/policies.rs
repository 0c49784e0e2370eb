//! What is applied to a cluster: the files of `cluster/policies`, and the runtime class.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::kubectl::Kubectl;
use crate::cache::repository;
use crate::command::{LIMIT, wait_until};

/// The files, in the order in which they are applied.
///
/// # Errors
/// The folder cannot be read.
pub fn files() -> Result<Vec<PathBuf>> {
    let folder = repository().join("cluster/policies");
    let mut files = fs::read_dir(&folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "yaml")
    });
    ensure!(!files.is_empty(), "no policies in {}", folder.display());
    files.push(repository().join("configs/kubernetes/runtimeclass.yaml"));
    files.sort();
    Ok(files)
}

/// The objects of all files.
///
/// # Errors
/// A file cannot be read, or is no YAML.
pub fn objects() -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for file in files()? {
        let text = fs::read_to_string(&file)?;
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text)
            .with_context(|| format!("reading {}", file.display()))?;
        all.extend(objects);
    }
    Ok(all)
}

/// SHA-256 of the objects: comments and layout do not count.
///
/// # Errors
/// As [`objects`].
pub fn hash() -> Result<String> {
    let text = serde_json::to_vec(&objects()?)?;
    let digest = Sha256::digest(&text);
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Applies what a cluster needs whose nodes have a device plugin.
///
/// # Errors
/// The server refuses a file.
pub fn apply_for_plugin(kubectl: &Kubectl) -> Result<()> {
    let folder = repository().join("cluster/policies");
    let of_agent = [
        "agent-namespace.yaml",
        "agent.yaml",
        "device-plugin/agent.yaml",
    ];
    let mut files: Vec<PathBuf> = of_agent.iter().map(|file| folder.join(file)).collect();
    files.push(repository().join("configs/kubernetes/runtimeclass.yaml"));
    for file in files {
        let file = file.to_string_lossy().into_owned();
        kubectl.run(&["apply", "-f", &file])?.success()?;
    }
    Ok(())
}

/// Applies all of it and waits until it is in force: the server reads its policies with a delay.
///
/// # Errors
/// The server refuses a file, or a policy does not come into force.
pub fn apply(kubectl: &Kubectl) -> Result<()> {
    for file in files()? {
        let file = file.to_string_lossy().into_owned();
        kubectl.run(&["apply", "-f", &file])?.success()?;
    }
    let pod = |limits: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]},
        })
    };
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "probe"},
        "spec": {"devices": {"config": [{"opaque": {"driver": "gpu.cgpu.io", "parameters": {"memory": "1Gi"}}}]}},
    });
    let dry = |object: &Value| kubectl.send("create", &["--dry-run=server", "-o", "json"], object);
    wait_until("the policies to be in force", LIMIT, || {
        let translated = dry(&pod(json!({"aliyun.com/gpu-mem": 1})))?;
        let refused = dry(&pod(
            json!({"aliyun.com/gpu-mem": 1, "aliyun.com/gpu-core.percentage": 101}),
        ))?;
        let claim = dry(&claim)?;
        Ok(translated.stdout.contains("cgpu-m1-c0-x1")
            && !refused.succeeded()
            && !claim.succeeded())
    })
}
