//! Kubernetes' programs, built once, and etcd of the distribution.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::go::{Effort, GoProgram};
use crate::packages::{Suite, unpacked};
use crate::skip::lacks_root;

/// Its go.mod has `replace … ./staging`, which no module proxy can serve, so this module requires the staging modules as they are published.
const PROGRAMS: GoProgram = GoProgram {
    name: "kubernetes",
    packages: &[
        "k8s.io/kubernetes/cmd/kubectl",
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "k8s.io/kubernetes/cmd/kube-scheduler",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        "k8s.io/kubernetes/cmd/kubelet",
    ],
    tags: "",
    module: include_str!("../../kubernetes/go.mod"),
    sums: include_str!("../../kubernetes/go.sum"),
    source: "",
    effort: Effort {
        linker: "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36",
        limit: Duration::from_secs(3600),
        niceness: 19,
    },
};

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct KubernetesPrograms {
    kubernetes: PathBuf,
    etcd: PathBuf,
}

impl KubernetesPrograms {
    /// Those of the cache, for a test, which needs root. A build takes half an hour, which no test waits for.
    ///
    /// # Errors
    /// A reason to skip aloud.
    pub fn for_tests() -> Result<Self, String> {
        if let Some(reason) = lacks_root() {
            return Err(reason.to_owned());
        }
        let kubernetes = PROGRAMS.built();
        let kubernetes = kubernetes
            .ok_or("Kubernetes' servers are not built: `cargo xtask cluster` builds them")?;
        let etcd = etcd().map_err(|error| format!("{error:#}"))?;
        Ok(Self { kubernetes, etcd })
    }

    /// Builds them, once: about half an hour on two cores.
    ///
    /// # Errors
    /// There is no Go toolchain, no module proxy, or no package of etcd.
    pub fn build() -> Result<Self> {
        Ok(Self {
            etcd: etcd()?,
            kubernetes: PROGRAMS.fetch_all()?,
        })
    }

    /// A program of Kubernetes.
    pub fn program(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }

    /// etcd.
    pub fn etcd(&self) -> PathBuf {
        self.etcd.join("usr/bin/etcd")
    }
}

fn etcd() -> Result<PathBuf> {
    unpacked(Suite::Host, "engines/etcd", &["etcd-server"]).context("fetching etcd")
}
