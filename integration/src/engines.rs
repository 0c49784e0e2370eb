//! containerd and docker of one origin.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::oci::OciRuntime;
use crate::origin::Origin;
use crate::packages::{Suite, unpacked, version};

/// The engines of one origin, unpacked or built.
#[derive(Debug, Clone)]
pub struct Engines {
    /// Where they are from.
    pub origin: Origin,
    root: PathBuf,
    runc_root: PathBuf,
    oci: PathBuf,
}

impl Engines {
    /// Fetches containerd, docker, and the host release's runc. An error here is a reason to skip aloud.
    pub fn fetch(origin: impl Into<Origin>) -> Result<Self> {
        Self::fetch_with(origin, OciRuntime::HostRunc)
    }

    /// The same, with containers made by another OCI runtime.
    pub fn fetch_with(origin: impl Into<Origin>, oci: OciRuntime) -> Result<Self> {
        let origin = origin.into();
        let root = match origin {
            Origin::Packages(suite) => unpacked(
                suite,
                &format!("engines/{}", suite.name()),
                match suite {
                    Suite::Host => &["containerd", "docker.io", "tini"],
                    Suite::Trixie | Suite::Newer | Suite::Arm64 | Suite::Noble => {
                        &["containerd", "docker.io", "docker-cli", "tini"]
                    }
                },
            )?,
            Origin::Modules(module) => module.fetch()?,
        };
        let oci = oci.fetch()?;
        let runc_root = unpacked(Suite::Host, "engines/runc", &["runc"])?;
        let engines = Self {
            origin,
            root,
            runc_root,
            oci,
        };
        // A program of another release may want a newer C library than this machine has.
        engines.containerd_version()?;
        Ok(engines)
    }

    /// The release's containerd, docker and what belongs to them, without an OCI runtime.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The full path of one of the engines' programs.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        self.folders()
            .into_iter()
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
            .with_context(|| format!("no {name} in {}", self.root.display()))
    }

    /// The folders of the engines' programs, for `PATH`: the OCI runtime's before the host release's runc.
    pub fn folders(&self) -> Vec<PathBuf> {
        let of = |root: &PathBuf| ["usr/bin", "usr/sbin"].map(|folder| root.join(folder));
        let mut folders = match self.origin {
            Origin::Packages(_) => of(&self.root).to_vec(),
            Origin::Modules(_) => vec![self.root.clone()],
        };
        folders.extend(self.oci.parent().map(Path::to_path_buf));
        folders.extend(of(&self.runc_root));
        folders
    }

    /// The OCI runtime that everything on the node uses.
    pub fn runc(&self) -> Result<PathBuf> {
        Ok(self.oci.clone())
    }

    /// Major and minor version of containerd.
    pub fn containerd_version(&self) -> Result<(u32, u32)> {
        version(&self.program("containerd")?)
    }

    /// Major and minor version of docker.
    pub fn docker_version(&self) -> Result<(u32, u32)> {
        version(&self.program("dockerd")?)
    }
}
