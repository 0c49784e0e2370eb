//! The chart `cluster/chart`, by Helm itself, and as Helm rendered it: `integration/kubernetes/chart.yaml`.
//!
//! The kept text has the hash of the chart's files: a changed chart needs another one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::control_plane::ControlPlane;
use crate::cache::repository;
use crate::command::{LIMIT, Outcome, capture};
use crate::go::{Effort, GoProgram};

const PROGRAM: GoProgram = GoProgram {
    name: "helm",
    packages: &["helm.sh/helm/v3/cmd/helm"],
    tags: "",
    module: include_str!("../../helm/go.mod"),
    sums: include_str!("../../helm/go.sum"),
    source: "",
    effort: Effort::USUAL,
};

/// The namespace that the chart is rendered for.
pub const CHART_NAMESPACE: &str = "cgpu-system";

/// Helm, and the chart.
#[derive(Debug)]
pub struct Chart {
    helm: PathBuf,
}

impl Chart {
    /// Helm of the cache. The error is a reason to skip aloud: no test waits for its build.
    ///
    /// # Errors
    /// It is not built.
    pub fn with_built() -> Result<Self, String> {
        let folder = PROGRAM.built();
        let folder = folder.ok_or("Helm is not built: `cargo xtask cluster` builds it")?;
        Ok(Self {
            helm: folder.join("helm"),
        })
    }

    /// Builds Helm, once: about two minutes.
    ///
    /// # Errors
    /// There is no Go toolchain, or no module proxy.
    pub fn build() -> Result<Self> {
        Ok(Self {
            helm: PROGRAM.fetch()?,
        })
    }

    fn helm(&self, verb: &[&str], options: &[&str]) -> Result<Outcome> {
        let mut command = Command::new(&self.helm);
        command.args(verb).arg(folder()).args(options);
        // Helm says on standard error that the policies are a link; its own settings are in the user's folder.
        let home = tempfile::tempdir()?;
        command.env("HOME", home.path());
        capture(&mut command, LIMIT)
    }

    /// `helm lint --strict`.
    ///
    /// # Errors
    /// Helm cannot be started.
    pub fn lint(&self) -> Result<Outcome> {
        self.helm(&["lint", "--strict"], &[])
    }

    /// What would be installed, with these options.
    ///
    /// # Errors
    /// Helm cannot be started.
    pub fn render(&self, options: &[&str]) -> Result<Outcome> {
        let mut all = vec!["--namespace", CHART_NAMESPACE, "--kube-version", "1.36.3"];
        all.extend(options);
        self.helm(&["template", "cgpu"], &all)
    }
}

impl Chart {
    /// Helm on a cluster, for example `install cgpu CHART`, as somebody who may do everything; `CHART` is the chart's folder.
    ///
    /// # Errors
    /// Helm cannot be started.
    pub fn on(&self, plane: &ControlPlane, args: &[&str]) -> Result<Outcome> {
        let mut command = plane.network().command(&self.helm)?;
        let home = tempfile::tempdir()?;
        let chart = folder();
        let chart = chart.to_string_lossy();
        let args = args.iter().map(|arg| match *arg {
            "CHART" => &*chart,
            arg => arg,
        });
        command
            .args(args)
            .args(["--namespace", CHART_NAMESPACE])
            .env("HOME", home.path())
            .env("KUBECONFIG", plane.kubectl().config());
        capture(&mut command, LIMIT)
    }
}

fn folder() -> PathBuf {
    repository().join("cluster/chart")
}

/// Where the rendered chart is kept.
#[must_use]
pub fn kept_rendering() -> PathBuf {
    repository().join("integration/kubernetes/chart.yaml")
}

/// SHA-256 of the chart's files and of the policies in it.
///
/// # Errors
/// A file cannot be read.
pub fn chart_hash() -> Result<String> {
    let mut files = Vec::new();
    for part in [
        "chart",
        "chart/templates",
        "policies",
        "policies/device-plugin",
    ] {
        let folder = repository().join("cluster").join(part);
        let entries =
            fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut digest = Sha256::new();
    for file in &files {
        let text = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        digest.update(relative(file));
        digest.update(text);
    }
    let digest = digest.finalize();
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn relative(file: &Path) -> Vec<u8> {
    let relative = file.strip_prefix(repository()).unwrap_or(file);
    relative.as_os_str().as_encoded_bytes().to_vec()
}
