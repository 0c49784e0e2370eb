//! The engines.

use anyhow::Result;

use crate::containerd::{CGPU, RUNC};
use crate::oci::OciRuntime;
use crate::packages::{Engines, Suite};
use crate::podman;
use crate::pods;
use crate::programs::Programs;

use super::containerd::Ctr;
use super::cri::Cri;
use super::docker::DockerRow;
use super::engine::Engine;
use super::nerdctl::NerdctlRow;
use super::podman::PodmanRow;

/// What the user types into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// containerd by `ctr`.
    Containerd,
    /// containerd by nerdctl.
    Nerdctl,
    /// containerd's CRI by `crictl`.
    Cri,
    /// dockerd by `docker`.
    Docker,
    /// podman, which has no daemon.
    Podman,
}

impl Family {
    /// Its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd (ctr)",
            Self::Nerdctl => "nerdctl",
            Self::Cri => "CRI (containerd, crictl)",
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

/// How the engine comes to cgpu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Our shim by its runtime type.
    Shim,
    /// Our shim by a name in the engine's configuration: `runtime_path` of CRI, `runtimeType` of docker.
    ConfiguredShim,
    /// `cgpu-runtime` in the place of runc.
    Wrapper,
    /// `cgpu-hook` as podman's `precreate` hook.
    Hook,
}

impl Door {
    /// Its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shim => "shim by type",
            Self::ConfiguredShim => "shim by configuration",
            Self::Wrapper => "wrapper",
            Self::Hook => "hook",
        }
    }
}

/// One engine of one release with one door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// What the user types into.
    pub family: Family,
    /// Which releases the engine is from.
    pub suite: Suite,
    /// Who creates the containers.
    pub oci: OciRuntime,
    /// How it comes to cgpu.
    pub door: Door,
}

const fn row(family: Family, suite: Suite, oci: OciRuntime, door: Door) -> Row {
    Row {
        family,
        suite,
        oci,
        door,
    }
}

/// Every row. On Debian 12 the host release has containerd 1.6, docker 20.10, runc 1.1.5 and crun 1.8.
pub const ROWS: &[Row] = {
    use Door::{ConfiguredShim, Hook, Shim, Wrapper};
    use Family::{Containerd, Cri, Docker, Nerdctl, Podman};
    use OciRuntime::{HostCrun, HostRunc, NewerCrun, NewerRunc};
    use Suite::{Host, Newer, Trixie};
    &[
        row(Containerd, Host, HostRunc, Shim),
        row(Containerd, Trixie, HostRunc, Shim),
        row(Containerd, Newer, HostRunc, Shim),
        row(Containerd, Newer, NewerRunc, Shim),
        row(Containerd, Host, HostCrun, Shim),
        row(Containerd, Newer, NewerCrun, Shim),
        row(Containerd, Host, HostRunc, Wrapper),
        row(Containerd, Trixie, HostRunc, Wrapper),
        row(Containerd, Newer, NewerRunc, Wrapper),
        row(Docker, Host, HostRunc, Wrapper),
        row(Docker, Trixie, HostRunc, Wrapper),
        row(Docker, Newer, NewerRunc, Wrapper),
        row(Docker, Trixie, HostRunc, Shim),
        row(Docker, Newer, HostRunc, Shim),
        row(Docker, Newer, NewerRunc, Shim),
        row(Docker, Newer, NewerRunc, ConfiguredShim),
        row(Nerdctl, Trixie, HostRunc, Shim),
        row(Nerdctl, Newer, NewerRunc, Shim),
        row(Nerdctl, Newer, HostRunc, Wrapper),
        row(Cri, Host, HostRunc, ConfiguredShim),
        row(Cri, Trixie, HostRunc, ConfiguredShim),
        row(Cri, Newer, NewerRunc, ConfiguredShim),
        row(Cri, Host, HostRunc, Shim),
        row(Cri, Trixie, HostRunc, Shim),
        row(Cri, Newer, HostRunc, Shim),
        row(Cri, Host, HostRunc, Wrapper),
        row(Cri, Trixie, HostRunc, Wrapper),
        row(Cri, Newer, HostRunc, Wrapper),
        row(Podman, Host, HostRunc, Wrapper),
        row(Podman, Host, HostRunc, Hook),
        row(Podman, Trixie, HostRunc, Wrapper),
        row(Podman, Trixie, NewerRunc, Hook),
        row(Podman, Trixie, NewerCrun, Wrapper),
    ]
};

impl Row {
    /// Whether fifty containers are started on it: one row of each kind, or the whole takes hours.
    pub fn bears_load(&self) -> bool {
        let kinds = [
            row(
                Family::Containerd,
                Suite::Host,
                OciRuntime::HostRunc,
                Door::Shim,
            ),
            row(
                Family::Containerd,
                Suite::Newer,
                OciRuntime::NewerRunc,
                Door::Shim,
            ),
            row(
                Family::Docker,
                Suite::Host,
                OciRuntime::HostRunc,
                Door::Wrapper,
            ),
            row(
                Family::Docker,
                Suite::Newer,
                OciRuntime::NewerRunc,
                Door::Shim,
            ),
            row(
                Family::Nerdctl,
                Suite::Newer,
                OciRuntime::NewerRunc,
                Door::Shim,
            ),
            row(
                Family::Cri,
                Suite::Newer,
                OciRuntime::NewerRunc,
                Door::ConfiguredShim,
            ),
            row(
                Family::Podman,
                Suite::Host,
                OciRuntime::HostRunc,
                Door::Wrapper,
            ),
        ];
        kinds.contains(self)
    }

    /// The row in words, where its engine cannot say its version.
    pub fn title(&self) -> String {
        format!("{} of {}", self.family.name(), self.suite.name())
    }

    /// The row for a command line: `docker/newer/shim by type/NewerRunc`.
    pub fn key(&self) -> String {
        format!(
            "{}/{}/{}/{:?}",
            self.family.name(),
            self.suite.name(),
            self.door.name(),
            self.oci
        )
    }

    /// Starts the row's engine on a node of its own, or says why this machine cannot have it.
    ///
    /// # Errors
    /// It could be fetched but does not start.
    pub fn open(&self, programs: &Programs) -> Result<Result<Box<dyn Engine>, String>> {
        if let Some(reason) = crate::skip::lacks_root() {
            return Ok(Err(reason.to_owned()));
        }
        let engines = match Engines::fetch_with(self.suite, self.oci) {
            Ok(engines) => engines,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        let client = match self.family {
            Family::Nerdctl => crate::nerdctl::program().map(drop),
            Family::Cri => crate::crictl::program().map(drop),
            Family::Podman => podman::Release::fetch(self.suite).map(drop),
            Family::Containerd | Family::Docker => Ok(()),
        };
        if let Err(error) = client {
            return Ok(Err(format!("{error:#}")));
        }
        let (major, minor) = engines.containerd_version()?;
        if (self.family, self.door) == (Family::Cri, Door::ConfiguredShim)
            && (major, minor) < (1, 7)
        {
            return Ok(Err(format!(
                "containerd {major}.{minor} does not look at runtime_path and starts its own shim: name the type or the wrapper"
            )));
        }
        let below = format!("containerd {major}.{minor}, {}", self.oci.title()?);
        let engine: Box<dyn Engine> = match self.family {
            Family::Containerd => Box::new(Ctr::start(programs, &engines, self.shim(), below)?),
            Family::Docker => {
                let name = match self.door {
                    Door::Shim => CGPU,
                    Door::ConfiguredShim => "cgpu-type",
                    Door::Wrapper | Door::Hook => "cgpu",
                };
                let (major, minor) = engines.docker_version()?;
                let title = format!("docker {major}.{minor}, {below}");
                Box::new(DockerRow::start(programs, &engines, name, title)?)
            }
            Family::Nerdctl => Box::new(NerdctlRow::start(programs, &engines, self.door, below)?),
            Family::Cri => {
                let handler = match self.door {
                    Door::Shim => pods::BY_TYPE,
                    Door::ConfiguredShim => pods::BY_PATH,
                    Door::Wrapper | Door::Hook => pods::BY_WRAPPER,
                };
                Box::new(Cri::start(programs, &engines, handler, below)?)
            }
            Family::Podman => {
                let door = match self.door {
                    Door::Hook => podman::Door::Precreate,
                    Door::Shim | Door::ConfiguredShim | Door::Wrapper => podman::Door::Wrapper,
                };
                // crun wants no hybrid control groups.
                let groups = match self.oci {
                    OciRuntime::HostRunc | OciRuntime::NewerRunc => podman::Cgroups::Host,
                    OciRuntime::HostCrun | OciRuntime::NewerCrun => podman::Cgroups::Unified,
                };
                let title = self.oci.title()?;
                let release = podman::Release::fetch(self.suite)?;
                Box::new(PodmanRow::start(
                    programs, &engines, &release, door, groups, title,
                )?)
            }
        };
        Ok(Ok(engine))
    }

    /// The runtime type that `ctr` is given.
    fn shim(&self) -> &'static str {
        match self.door {
            Door::Shim | Door::ConfiguredShim => CGPU,
            Door::Wrapper | Door::Hook => RUNC,
        }
    }
}
